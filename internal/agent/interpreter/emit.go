package interpreter

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// keepBuffer is how much of its buffer an emitter keeps for the next line.
const keepBuffer = 256 << 10

// emitter writes lines to a client. Safe for concurrent use. A write waits for
// the client; after the first that fails, lines are dropped.
type emitter struct {
	w       http.ResponseWriter
	control *http.ResponseController

	mu      sync.Mutex
	buf     []byte
	started bool // the status is sent: too late to refuse
	pending bool // written and not flushed
	err     error
}

func newEmitter(w http.ResponseWriter) *emitter {
	return &emitter{w: w, control: http.NewResponseController(w)}
}

// line sends what appendTo appends. A line that is not urgent goes with the
// next that is.
func (e *emitter) line(urgent bool, appendTo func([]byte) []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.send(urgent, appendTo)
}

// tryLine is line, unless another line waits for the client.
func (e *emitter) tryLine(appendTo func([]byte) []byte) {
	if e.mu.TryLock() {
		defer e.mu.Unlock()
		e.send(true, appendTo)
	}
}

func (e *emitter) send(urgent bool, appendTo func([]byte) []byte) {
	if e.err != nil {
		return
	}
	e.buf = appendTo(e.buf[:0])
	if !e.started {
		e.started = true
		h := e.w.Header()
		h.Set("Content-Type", "application/x-ndjson")
		h.Set("Cache-Control", "no-store")
		e.w.WriteHeader(http.StatusOK)
	}
	if _, err := e.w.Write(e.buf); err != nil {
		e.err = err
	}
	e.pending = true
	if urgent {
		e.flush()
	}
	if cap(e.buf) > keepBuffer {
		e.buf = nil
	}
}

func (e *emitter) flush() {
	if e.err == nil && e.pending {
		if err := e.control.Flush(); !errors.Is(err, http.ErrNotSupported) {
			e.err = err
		}
	}
	e.pending = false
}

// tryFlush sends what waits, unless a line is being written.
func (e *emitter) tryFlush() {
	if e.mu.TryLock() {
		defer e.mu.Unlock()
		e.flush()
	}
}

func (e *emitter) hasStarted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.started
}

// abort makes a write that waits for the client fail. It does not wait.
func (e *emitter) abort() {
	_ = e.control.SetWriteDeadline(time.Unix(1, 0)) // a transport in memory may have none
}

// refuse ends a stream that cannot go on as it should.
func (e *emitter) refuse(name, text string) {
	e.line(false, func(b []byte) []byte { return appendError(b, name, text, "") })
	e.line(true, func(b []byte) []byte {
		return appendLine(b, e2b.Line{Type: e2b.LineEnd, Abx: &e2b.LineAbx{ExitCode: 1, Reason: e2b.ReasonExit, Detail: text}})
	})
}

// finish drops what comes later: the handler may return.
func (e *emitter) finish() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flush()
	e.err = errFinished
}

var errFinished = errors.New("stream is finished")
