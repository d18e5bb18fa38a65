package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agent-sandbox/abx/internal/mcp/tool"
)

// A call is a request that wants an answer, beside the library: what is large
// goes around it.
type call struct {
	key       jsonrpc.ID // the library's
	id        []byte     // as the client wrote it
	arguments []byte     // of a tool; nil: none given

	ctx    context.Context // ends when the client cancels, leaves, or the server stops
	cancel context.CancelCauseFunc

	// result, when set, takes the place of `"content":[]` in the answer.
	result []byte

	cancelled bool // by the client, who wants no answer; guarded by connection.mu
}

// A connection is the library's view of one client on two streams of lines.
// What the library would end the connection for (a line that is too long or is
// no JSON-RPC) is answered here.
type connection struct {
	out    io.Writer
	lines  <-chan line
	grace  time.Duration // for running calls after the end of input
	finish time.Duration // for their answers after that
	max    int
	log    *slog.Logger

	stop    <-chan struct{} // the server stops
	drained chan struct{}   // no message is read any more, what was owed is written
	closed  chan struct{}   // the library is done
	once    sync.Once

	write sync.Mutex // one message at a time

	mu    sync.Mutex
	calls map[jsonrpc.ID]*call
	idle  chan struct{} // closed when no answer is owed; nil when nobody waits
}

type line struct {
	text []byte
	err  error
}

// Connect implements the library's Transport.
func (c *connection) Connect(context.Context) (sdk.Connection, error) { return c, nil }

func (c *connection) SessionID() string { return "" }

// connect starts reading in. The goroutine that reads ends with in: a read
// from a terminal or pipe cannot be interrupted.
func connect(ctx context.Context, in io.Reader, out io.Writer, o Options) *connection {
	lines := make(chan line)
	c := &connection{
		out: out, lines: lines, grace: o.Grace, finish: o.Finish, max: o.MaxMessage, log: o.Logger,
		stop: ctx.Done(), drained: make(chan struct{}), closed: make(chan struct{}), calls: map[jsonrpc.ID]*call{},
	}
	go func() {
		r := newLineReader(in, o.MaxMessage)
		for {
			text, err := r.next()
			select {
			case lines <- line{text, err}:
			case <-c.closed:
				return
			}
			if err != nil && !errors.Is(err, errLineTooLong) {
				return
			}
		}
	}()
	return c
}

// Read returns the next message for the library. After the end of input it
// waits until the answers that are owed are written.
func (c *connection) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.next(ctx)
	if err != nil {
		close(c.drained) // the library reads no more
		return nil, err
	}
	return m, nil
}

func (c *connection) next(ctx context.Context) (*jsonrpc.Request, error) {
	for {
		select {
		case l := <-c.lines:
			if l.err != nil && !errors.Is(l.err, errLineTooLong) {
				c.drain(c.grace, tool.ErrLeft)
				return nil, io.EOF
			}
			r, err := c.accept(l)
			if err != nil {
				return nil, err
			}
			if r != nil {
				return r, nil
			}
		case <-c.stop:
			c.drain(0, nil)
			return nil, io.EOF
		case <-c.closed:
			return nil, io.EOF
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// accept turns a line into a request, or answers it itself and returns nil.
func (c *connection) accept(l line) (*jsonrpc.Request, error) {
	if l.err != nil {
		return nil, c.refuse(refuse(nil, jsonrpc.CodeInvalidRequest,
			"invalid request: a message may have up to %d bytes: send large files in parts", c.max))
	}
	text := bytes.TrimSpace(bytes.TrimPrefix(l.text, []byte("\ufeff")))
	if len(text) == 0 {
		return nil, nil
	}
	m, bad := parse(text)
	if bad != nil {
		return nil, c.refuse(bad)
	}
	if m.method == nil {
		c.log.Debug("answer to no request of ours dropped")
		return nil, nil
	}
	if m.id == nil {
		if string(m.method) == methodCancelled {
			c.cancelled(m.params)
		}
		return m.request(nil), nil
	}
	call, err := c.open(m.id)
	if err != nil {
		return nil, c.refuse(refuse(nil, jsonrpc.CodeInvalidRequest, "invalid request: %v", err))
	}
	return m.request(call), nil
}

func (c *connection) refuse(r *refusal) error {
	c.log.Debug("message refused", "code", r.code, "reason", r.text)
	return c.send(append(appendError(nil, r.id, r.code, r.text, nil), '\n'))
}

// open notes that an answer is owed.
func (c *connection) open(id []byte) (*call, error) {
	key, err := makeID(id)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[key] != nil {
		return nil, fmt.Errorf("id %s is that of a call that still runs", clip(id))
	}
	n := &call{key: key, id: id}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	c.calls[key] = n
	return n, nil
}

func clip(b []byte) []byte { return b[:min(len(b), 80)] }

// cancelled notes that the client wants no answer any more.
func (c *connection) cancelled(params []byte) {
	id, ok := cancelledID(params)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if call := c.calls[id]; call != nil {
		call.cancelled = true
		call.cancel(nil)
	}
}

// take ends a call and returns it, nil for an id that has none. The answer is
// owed until paid.
func (c *connection) take(id jsonrpc.ID) (_ *call, cancelled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.calls[id]
	return call, call != nil && call.cancelled
}

func (c *connection) paid(call *call) {
	call.cancel(nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, call.key)
	if len(c.calls) == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// drain waits for the answers that are owed: grace for calls to end by
// themselves, then, with all of them cancelled, the time to say so.
func (c *connection) drain(grace time.Duration, cause error) {
	c.mu.Lock()
	if len(c.calls) == 0 {
		c.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	c.idle = idle
	c.mu.Unlock()
	if c.await(idle, grace) {
		return
	}
	c.mu.Lock()
	for _, call := range c.calls {
		call.cancel(cause)
	}
	c.mu.Unlock()
	c.await(idle, c.finish)
}

func (c *connection) await(idle <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-idle:
		return true
	case <-c.closed:
		return true
	case <-t.C:
		return false
	}
}

// Write sends one message of the library.
func (c *connection) Write(_ context.Context, msg jsonrpc.Message) error {
	switch m := msg.(type) {
	case *jsonrpc.Response:
		call, cancelled := c.take(m.ID)
		if call == nil {
			return nil // answered already
		}
		defer c.paid(call)
		if cancelled {
			return nil
		}
		return c.answer(call, m)
	default:
		data, err := jsonrpc.EncodeMessage(msg)
		if err != nil {
			return err
		}
		return c.send(append(data, '\n'))
	}
}

// emptyContent is what a call's result replaces; in the library's result it is
// a key and its value, since a string would have its quotes escaped.
var emptyContent = []byte(`"content":[]`)

func (c *connection) answer(call *call, m *jsonrpc.Response) error {
	if m.Error != nil {
		code, text, data := errorOf(m.Error)
		return c.send(append(appendError(nil, call.id, code, text, data), '\n'))
	}
	head := append(appendHead(nil, call.id), `"result":`...)
	if at := bytes.Index(m.Result, emptyContent); call.result != nil && at >= 0 {
		head = append(head, m.Result[:at]...)
		return c.send(head, call.result, m.Result[at+len(emptyContent):], []byte("}\n"))
	}
	return c.send(append(append(head, m.Result...), "}\n"...))
}

// joinBelow is up to which size the parts of a message are copied together to
// be written at once.
const joinBelow = 256 << 10

// send writes the parts of one message, with its line's end.
func (c *connection) send(parts ...[]byte) error {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	if len(parts) > 1 && size < joinBelow {
		parts = [][]byte{bytes.Join(parts, nil)}
	}
	c.write.Lock()
	defer c.write.Unlock()
	for _, p := range parts {
		if _, err := c.out.Write(p); err != nil {
			return fmt.Errorf("write to the client: %w", err)
		}
	}
	return nil
}

// Close implements the library's Connection: no message is read any more.
func (c *connection) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}
