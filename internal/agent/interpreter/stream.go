//go:build linux

package interpreter

import (
	"os"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/output"
)

// chunkBytes is how much is read at once, and the most text of one line.
const chunkBytes = 64 << 10

// lateBytes is how much of what comes between two cells is kept.
const lateBytes = 64 << 10

var chunks = sync.Pool{New: func() any { return new([chunkBytes]byte) }}

// stream reads one output pipe of a kernel, as long as the kernel lives, so
// that nobody who holds the other end ever waits for a cell.
type stream struct {
	file *os.File
	conn syscall.RawConn

	mu   sync.Mutex // held while bytes are read and delivered, to keep their order
	sink *outlet    // of the running cell; nil between cells
	late []byte
}

func newStream(f *os.File) (*stream, error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &stream{file: f, conn: conn}, nil
}

// pump delivers until the pipe ends or the file is closed.
func (s *stream) pump() {
	for ended := false; !ended; {
		err := s.conn.Read(func(fd uintptr) (done bool) {
			n, again := s.step(int(fd), chunkBytes)
			ended = n == 0 && !again
			return !again
		})
		if err != nil {
			return
		}
	}
}

// step reads up to limit bytes and delivers them. again means: none there now.
func (s *stream) step(fd, limit int) (n int, again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read(fd, limit)
}

func (s *stream) read(fd, limit int) (n int, again bool) {
	buf := chunks.Get().(*[chunkBytes]byte)
	defer chunks.Put(buf)
	for {
		n, err := unix.Read(fd, buf[:min(limit, chunkBytes)])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, err == unix.EAGAIN
		}
		s.deliver(buf[:n])
		return n, false
	}
}

func (s *stream) deliver(p []byte) {
	if s.sink != nil {
		s.sink.write(p)
		return
	}
	if over := len(s.late) + len(p) - lateBytes; over > 0 {
		s.late = s.late[:copy(s.late, s.late[min(over, len(s.late)):])]
		p = p[max(0, len(p)-lateBytes):]
	}
	s.late = append(s.late, p...)
}

// attach makes o get what comes, after what came since the last cell.
func (s *stream) attach(o *outlet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.late) > 0 {
		o.write(s.late)
		s.late = nil
	}
	s.sink = o
}

// drain delivers what the pipe holds at this moment: all that a kernel wrote
// before it sent a frame. What others write meanwhile is not waited for.
func (s *stream) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.conn.Control(func(fd uintptr) {
		left, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		for err == nil && left > 0 {
			n, _ := s.read(int(fd), left)
			if n <= 0 {
				return
			}
			left -= n
		}
	})
}

// detach ends the delivery to a cell.
func (s *stream) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sink = nil
}

// outlet turns the bytes of one stream of one cell into lines. A character
// that arrives in pieces is sent whole. The stream's lock guards it.
type outlet struct {
	name   string // stdout or stderr
	window *output.Window
	room   int64 // head and tail of the window; 0: it leaves nothing out
	emit   *emitter
	part   []byte // the begin of a character
	tail   []byte // newest bytes, for the judge
}

// judgeBytes is how much of stderr's end the judge sees.
const judgeBytes = 4 << 10

func (o *outlet) write(p []byte) {
	o.tail = append(o.tail, p[max(0, len(p)-judgeBytes):]...)
	if over := len(o.tail) - judgeBytes; over > 0 {
		o.tail = o.tail[:copy(o.tail, o.tail[over:])]
	}
	if now := o.window.Write(p); len(now) > 0 {
		o.send(now)
	}
}

// send emits lines, whole characters only.
func (o *outlet) send(p []byte) {
	if len(o.part) > 0 {
		p = append(o.part, p...)
		o.part = nil
	}
	for len(p) > 0 {
		n := wholeCharacters(p[:min(len(p), chunkBytes)])
		if n == 0 {
			o.part = append([]byte(nil), p...)
			return
		}
		o.line(p[:n])
		p = p[n:]
	}
}

func (o *outlet) line(p []byte) {
	o.emit.line(true, func(b []byte) []byte { return appendOutput(b, o.name, p, time.Now()) })
}

// finish sends what the window kept for the end. Where it left something out,
// a character that the cut divided is left out too.
func (o *outlet) finish() {
	rest := o.window.Finish()
	if o.room > 0 && o.window.Total() > o.room {
		o.part = nil
		for i := 0; i < utf8.UTFMax && len(rest) > 0 && !utf8.RuneStart(rest[0]); i++ {
			rest = rest[1:]
		}
	}
	o.send(rest)
	if len(o.part) > 0 {
		o.line(o.part)
		o.part = nil
	}
}

// wholeCharacters is the length of p without the begin of a character at its
// end. Bytes that can be no character are whole.
func wholeCharacters(p []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(p); i++ {
		c := p[len(p)-i:]
		if utf8.RuneStart(c[0]) {
			if !utf8.FullRune(c) {
				return len(p) - i
			}
			break
		}
	}
	return len(p)
}
