//go:build linux

package process

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Bytes read at once.
const (
	pipeChunk = 32 << 10
	ttyChunk  = 16 << 10
)

// ttyBacklog bounds what a terminal can hold, with room to spare; it does not
// say how much it does hold.
const ttyBacklog = 256 << 10

// newPipe returns a pipe: ours is polled and never blocks a thread, theirs is
// blocking, as programs expect. outward says that we read and they write.
func newPipe(outward bool) (ours, theirs *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	if !outward {
		fds[0], fds[1] = fds[1], fds[0]
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

// source is one output stream of a process: the end of a pipe, or a terminal.
type source struct {
	file *os.File
	tty  bool
	buf  []byte // while it is read
}

// buffers holds *[pipeChunk]byte.
var buffers = sync.Pool{New: func() any { return new([pipeChunk]byte) }}

// buffer takes a buffer for reading; free gives it back.
func (s *source) buffer() (free func()) {
	b := buffers.Get().(*[pipeChunk]byte)
	s.buf = b[:]
	if s.tty {
		s.buf = b[:ttyChunk]
	}
	return func() {
		s.buf = nil
		buffers.Put(b)
	}
}

// until, with a buffer, reads and passes what comes until the stream ends (ended is true) or
// interrupt is called.
func (s *source) until(pass func([]byte)) (ended bool) {
	for {
		n, err := s.file.Read(s.buf)
		if n > 0 {
			pass(s.buf[:n])
		}
		if err != nil {
			return !errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

// interrupt makes until return when it has to wait. What is in the pipe stays.
func (s *source) interrupt() { _ = s.file.SetReadDeadline(time.Unix(1, 0)) }

// backlog passes what is in the stream now and does not wait for more. Others
// may go on writing: it takes no more than there was when it began.
func (s *source) backlog(pass func([]byte)) {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return
	}
	left := ttyBacklog
	_ = s.file.SetReadDeadline(time.Time{})
	_ = raw.Control(func(fd uintptr) {
		if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil && !s.tty {
			left = n
		}
	})
	for left > 0 {
		n := 0
		_ = raw.Read(func(fd uintptr) bool {
			n, err = ignoringEINTR(func() (int, error) { return unix.Read(int(fd), s.buf[:min(left, len(s.buf))]) })
			return true
		})
		if n <= 0 || err != nil {
			return
		}
		left -= n
		pass(s.buf[:n])
	}
}

// discard reads and drops until nobody holds the other end, so that no
// background process blocks or dies of SIGPIPE, then closes the stream.
func (s *source) discard() {
	defer s.buffer()()
	s.until(func([]byte) {})
	_ = s.file.Close()
}

func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}

// openTTY opens a new terminal of the given size, owned by uid as far as this
// process may give it away.
func openTTY(cols, rows uint16, uid int) (ours, theirs *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal: /dev/ptmx: %w", err)
	}
	ours = os.NewFile(uintptr(fd), "/dev/ptmx")
	peer, err := openPeer(fd)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open a terminal: %w", err), ours.Close())
	}
	theirs = os.NewFile(uintptr(peer), "tty")
	_ = unix.Fchown(peer, uid, -1)
	_ = unix.Fchmod(peer, 0o600)
	if err := resize(ours, cols, rows); err != nil {
		return nil, nil, errors.Join(err, ours.Close(), theirs.Close())
	}
	return ours, theirs, nil
}

// openPeer opens the other side of a terminal by the descriptor, which works
// whatever is mounted on /dev/pts, or by its number where the kernel is not
// Linux itself.
func openPeer(fd int) (peer int, err error) {
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return -1, fmt.Errorf("unlock: %w", err)
	}
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	got, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, flags)
	if errno == 0 {
		return int(got), nil
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return -1, fmt.Errorf("number: %w", err)
	}
	return unix.Open(fmt.Sprintf("/dev/pts/%d", n), flags, 0)
}

// resize sets the size of a terminal; its foreground group gets SIGWINCH.
func resize(tty *os.File, cols, rows uint16) error {
	raw, err := tty.SyscallConn()
	if err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	control := raw.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
	if err = errors.Join(control, err); err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	return nil
}

// closeAll closes the files that are not nil.
func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
