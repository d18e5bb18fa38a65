package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxMessage bounds one message; the kernel's default socket buffer holds it.
const maxMessage = 160 << 10

// maxFiles bounds the descriptors beside one message.
const maxFiles = 16

// Conn is one end of a control socket. Send and Receive may each be called by
// one goroutine at a time.
type Conn struct {
	file *os.File
	raw  interface {
		Read(func(uintptr) bool) error
		Write(func(uintptr) bool) error
	}
}

// NewConn wraps one end of a socket pair and takes it over: Close closes it.
func NewConn(f *os.File) (*Conn, error) {
	if err := unix.SetNonblock(int(f.Fd()), true); err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	// Fd put the file into blocking mode as far as the runtime knows: a new
	// os.File on the same descriptor joins the poller.
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	f.Close()
	g := os.NewFile(uintptr(fd), "control")
	raw, err := g.SyscallConn()
	if err != nil {
		g.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return &Conn{file: g, raw: raw}, nil
}

// Pair returns a connected pair of SOCK_SEQPACKET sockets, close-on-exec.
func Pair() (a, b *os.File, err error) {
	return pair(unix.SOCK_SEQPACKET)
}

// StreamPair returns a connected pair of stream sockets, close-on-exec.
func StreamPair() (a, b *os.File, err error) {
	return pair(unix.SOCK_STREAM | unix.SOCK_NONBLOCK)
}

func pair(kind int) (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket"), nil
}

// Send writes one message. The files are lent: the caller closes its copies.
func (c *Conn) Send(msg any, files ...*os.File) error {
	b, err := json.Marshal(msg)
	if err != nil {
		return fmt.Errorf("encode control message: %w", err)
	}
	if len(b) > maxMessage {
		return fmt.Errorf("control message of %d bytes; the most is %d", len(b), maxMessage)
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	var sent error
	err = c.raw.Write(func(fd uintptr) bool {
		sent = unix.Sendmsg(int(fd), b, rights, nil, unix.MSG_NOSIGNAL)
		return !errors.Is(sent, unix.EAGAIN)
	})
	if err == nil {
		err = sent
	}
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	return nil
}

// Receive reads one message into msg and returns the files beside it, which
// the caller closes. It returns io.EOF when the other side is gone.
func (c *Conn) Receive(msg any) ([]*os.File, error) {
	b := make([]byte, maxMessage)
	oob := make([]byte, unix.CmsgSpace(maxFiles*4))
	var n, oobn, flags int
	var got error
	receive := func(fd uintptr) bool {
		n, oobn, flags, _, got = unix.Recvmsg(int(fd), b, oob, unix.MSG_CMSG_CLOEXEC)
		return !errors.Is(got, unix.EAGAIN)
	}
	err := c.raw.Read(receive)
	if err == nil && errors.Is(got, unix.ECONNRESET) {
		// The other side ended with a message of ours unread. The kernel tells that
		// once, before what the other side had sent.
		err = c.raw.Read(receive)
	}
	if err == nil {
		err = got
	}
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	files, err := filesOf(oob[:oobn])
	if err != nil {
		return nil, err
	}
	if n == 0 && len(files) == 0 {
		return nil, io.EOF
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		closeAll(files)
		return nil, errors.New("control message too long")
	}
	if err := json.Unmarshal(b[:n], msg); err != nil {
		closeAll(files)
		return nil, fmt.Errorf("decode control message: %w", err)
	}
	return files, nil
}

func filesOf(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("control message: %w", err)
	}
	var files []*os.File
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// Close closes this end; a pending Send or Receive returns.
func (c *Conn) Close() error { return c.file.Close() }
