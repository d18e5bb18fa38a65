//go:build linux

// Package output bounds what a process writes before it leaves the sandbox: of
// a stream, a Window lets the first bytes through as they come and keeps the
// last ones until the end, while the whole goes to a file inside the sandbox.
// It does not read from anything and knows no wire format. Its invariant: the
// memory of a Window never depends on how much is written to it, and Write
// never waits for a reader.
package output

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/agent-sandbox/abx/internal/agent/account"
)

// MaxWindow bounds head and tail, each, in bytes.
const MaxWindow = 16 << 20

// Options of a Window. The zero value passes everything and writes no file.
type Options struct {
	// Head and Tail are bytes. Both 0: everything passes at once.
	Head, Tail int
	// Dir is the folder for the whole of a stream that was cut; it is made when
	// needed. Its parent must exist and be trusted; a link in Dir's own place is
	// refused. Empty: no file.
	Dir string
	// Name begins the file's name, as "12-stdout".
	Name string
	// Owner gets the file, as far as this process may give it away.
	Owner account.Account
}

// Window cuts one stream. Safe for concurrent use; bytes of concurrent Writes
// are counted and kept in the order in which Write got them.
type Window struct {
	opts Options

	mu      sync.Mutex
	total   int64
	head    []byte // what passed, until a file has it
	tail    []byte // what is owed; up to twice Options.Tail while it moves on
	recent  []byte // newest bytes, for NewestLine
	cut     bool   // more than Head+Tail came
	done    bool
	file    *os.File // while it is written
	path    string
	partial bool // the file lacks the end of the stream
}

// New returns an empty Window. Close frees what it holds.
func New(o Options) *Window {
	o.Head, o.Tail = max(o.Head, 0), max(o.Tail, 0)
	return &Window{opts: o}
}

// ParseWindow reads the value of the header Abx-Window, "HEAD,TAIL" in bytes,
// each 0 to MaxWindow. Empty means 0,0.
func ParseWindow(s string) (head, tail int, err error) {
	if s == "" {
		return 0, 0, nil
	}
	first, second, ok := strings.Cut(s, ",")
	if !ok {
		return 0, 0, fmt.Errorf("window %.40q: want HEAD,TAIL in bytes, as 12288,20480", s)
	}
	for _, p := range []struct {
		text string
		to   *int
	}{{first, &head}, {second, &tail}} {
		n, err := strconv.Atoi(strings.TrimSpace(p.text))
		if err != nil || n < 0 || n > MaxWindow {
			return 0, 0, fmt.Errorf("window %.40q: %.20q is not a number of bytes from 0 to %d", s, p.text, MaxWindow)
		}
		*p.to = n
	}
	return head, tail, nil
}

// Write takes the next bytes of the stream and returns those to send at once:
// a part of p itself, valid as long as p is. Bytes after Finish or Close are
// counted and dropped.
func (w *Window) Write(p []byte) (now []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.total
	w.total += int64(len(p))
	if w.done {
		return nil
	}
	w.remember(p)
	if w.opts.Head == 0 && w.opts.Tail == 0 {
		return p
	}
	if room := int64(w.opts.Head) - before; room > 0 {
		now = p[:min(room, int64(len(p)))]
	}
	switch {
	case w.cut:
		w.save(p)
	case w.total > int64(w.opts.Head)+int64(w.opts.Tail):
		w.cut = true
		w.open()
		w.save(w.head)
		w.save(w.tail)
		w.save(p)
		w.head = nil
	case w.opts.Dir != "":
		w.head = append(w.head, now...)
	}
	w.owe(p[len(now):])
	return now
}

// owe keeps the last bytes. The slice holds up to twice the tail so that a
// byte is moved at most once.
func (w *Window) owe(p []byte) {
	n := w.opts.Tail
	if len(p) >= n {
		w.tail = append(w.tail[:0], p[len(p)-n:]...)
		return
	}
	if len(w.tail)+len(p) > 2*n {
		w.tail = w.tail[:copy(w.tail, w.tail[len(w.tail)-n:])]
	}
	w.tail = append(w.tail, p...)
}

// Finish ends the stream and returns the tail that is still owed; further
// calls return nil. When Total is no more than head and tail together, what
// Write and Finish returned is the whole.
func (w *Window) Finish() (rest []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return nil
	}
	_ = w.end()
	rest, w.tail = w.tail, nil
	return rest[max(0, len(rest)-w.opts.Tail):]
}

// Close ends the stream without its tail. It leaves the file in the sandbox.
func (w *Window) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tail = nil
	return w.end()
}

func (w *Window) end() error {
	w.done, w.head = true, nil
	if w.file == nil {
		return nil
	}
	err := w.file.Close()
	w.file = nil
	return err
}

// Total is how many bytes were written, in all.
func (w *Window) Total() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total
}

// File is the path of the file with the whole stream, "" when nothing was left
// out or no file could be made.
func (w *Window) File() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.path
}

// Partial reports whether the file ends early because the disk was full.
func (w *Window) Partial() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.partial
}
