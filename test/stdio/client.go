// Package stdio is a client of the Model Context Protocol over a child's
// standard input and output, written by hand: newline-delimited JSON-RPC 2.0
// and nothing else. It serves the demo, the benchmarks and the tests that look
// at the built program from outside; it is not part of the product.
//
// Its invariant: a reply goes to the call with its id, whatever the order.
package stdio

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Options for Start. Path is required.
type Options struct {
	Path   string
	Args   []string  // default: mcp start --quiet
	Env    []string  // nil means this process's
	Stderr io.Writer // nil discards
}

// Client is one running server. Safe for concurrent use.
type Client struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when the child is gone; err is set before
	err    error

	writing sync.Mutex // one line at a time
	stdin   io.WriteCloser
	stdout  io.Closer

	mu      sync.Mutex
	next    int
	waiting map[int]chan []byte
	closed  bool // no more replies will come
}

// Start starts the server. ctx bounds its whole life. The caller closes the
// client.
func Start(ctx context.Context, o Options) (*Client, error) {
	if len(o.Args) == 0 {
		o.Args = []string{"mcp", "start", "--quiet"}
	}
	cmd := exec.CommandContext(ctx, o.Path, o.Args...)
	cmd.Env, cmd.Stderr = o.Env, o.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &Client{cmd: cmd, stdin: stdin, stdout: stdout, waiting: map[int]chan []byte{}, exited: make(chan struct{})}
	go func() {
		c.read(stdout)
		c.err = cmd.Wait()
		close(c.exited)
	}()
	return c, nil
}

// Embedded returns env without what would send the calls elsewhere than to
// sandboxes on this machine.
func Embedded(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains([]string{"ABX_SANDBOX_API_KEY", "ABX_SANDBOX_BASE_URL", "ABX_SANDBOX_DOMAIN", "ABX_DEFAULT_TEMPLATE"}, name)
	})
}

// PID is the server's process.
func (c *Client) PID() int { return c.cmd.Process.Pid }

// Close ends the server's input, as an IDE does that closes, and waits until
// it has left; one that does not leave in 10 s is killed. A second Close
// returns the same.
func (c *Client) Close() error {
	c.stdin.Close()
	select {
	case <-c.exited:
		return c.err
	case <-time.After(10 * time.Second):
		return errors.Join(errors.New("the server did not leave within 10 s of the end of its input"), c.Kill())
	}
}

// Kill ends the server with SIGKILL and waits for it, though not for what it
// may have left behind with its output open.
func (c *Client) Kill() error {
	err := c.cmd.Process.Kill()
	c.stdout.Close()
	<-c.exited
	return err
}

func (c *Client) read(r io.Reader) {
	lines := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		if id, ok := idOf(line); ok {
			c.mu.Lock()
			ch := c.waiting[id]
			delete(c.waiting, id)
			c.mu.Unlock()
			if ch != nil {
				ch <- line
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, ch := range c.waiting {
		close(ch)
	}
}

// idOf finds the number of a reply without decoding the rest of it, which may
// be megabytes. A notification or a request of the server's has none.
func idOf(line []byte) (int, bool) {
	d := json.NewDecoder(bytes.NewReader(line))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return 0, false
	}
	for d.More() {
		key, err := d.Token()
		if err != nil || key == "method" {
			return 0, false
		}
		if key == "id" {
			var id int
			return id, d.Decode(&id) == nil
		}
		var skip json.RawMessage
		if d.Decode(&skip) != nil {
			return 0, false
		}
	}
	return 0, false
}

// A Request is one call, written out, for those who measure what the answer
// takes and not how long it takes to write the question.
type Request struct {
	id   int
	line []byte
}

// Bytes is the length of the message.
func (r Request) Bytes() int { return len(r.line) }

// Prepare writes a call.
func (c *Client) Prepare(method string, params any) (Request, error) {
	p, err := json.Marshal(params)
	if err != nil {
		return Request{}, fmt.Errorf("%s: %w", method, err)
	}
	c.mu.Lock()
	c.next++
	id := c.next
	c.mu.Unlock()
	line := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%s,"params":%s}`+"\n", id, strconv.Quote(method), p)
	return Request{id, line}, nil
}

// Send sends r and returns the reply's line as it came. A call that ctx ends
// is cancelled in the server too.
func (c *Client) Send(ctx context.Context, r Request) ([]byte, error) {
	ch := make(chan []byte, 1)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, c.gone()
	}
	c.waiting[r.id] = ch
	c.mu.Unlock()
	if err := c.write(r.line); err != nil {
		return nil, err
	}
	select {
	case line, ok := <-ch:
		if !ok {
			return nil, c.gone()
		}
		return line, nil
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), c.Notify("notifications/cancelled", map[string]any{"requestId": r.id}))
	}
}

func (c *Client) gone() error {
	<-c.exited
	return errors.Join(errors.New("the server ended"), c.err)
}

func (c *Client) write(line []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	_, err := c.stdin.Write(line)
	return err
}

// Notify sends a notification.
func (c *Client) Notify(method string, params any) error {
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "method": method, "params": params})
	if err != nil {
		return err
	}
	return c.write(append(line, '\n'))
}

// Call sends a call and decodes its result. An error of the server's is one
// here.
func (c *Client) Call(ctx context.Context, method string, params, result any) error {
	r, err := c.Prepare(method, params)
	if err != nil {
		return err
	}
	line, err := c.Send(ctx, r)
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	return Decode(line, result)
}

// Decode reads the result out of a reply's line.
func Decode(line []byte, result any) error {
	var reply struct {
		Result json.RawMessage
		Error  *struct {
			Code    int
			Message string
		}
	}
	if err := json.Unmarshal(line, &reply); err != nil {
		return err
	}
	if e := reply.Error; e != nil {
		return fmt.Errorf("error %d: %s", e.Code, e.Message)
	}
	return json.Unmarshal(reply.Result, result)
}

// Server is what initialize tells.
type Server struct {
	ProtocolVersion string
	ServerInfo      struct{ Name, Version string }
	Instructions    string
}

// Initialize opens the session.
func (c *Client) Initialize(ctx context.Context) (Server, error) {
	var s Server
	err := c.Call(ctx, "initialize", map[string]any{
		"protocolVersion": "2025-06-18",
		"capabilities":    map[string]any{},
		"clientInfo":      map[string]any{"name": "abx-test", "version": "1"},
	}, &s)
	if err != nil {
		return Server{}, err
	}
	return s, c.Notify("notifications/initialized", map[string]any{})
}

// Result is what a tool returned.
type Result struct {
	Content []struct {
		Type, Text, Data, MimeType string
	}
	StructuredContent json.RawMessage
	IsError           bool
}

// Text is what a model reads.
func (r Result) Text() string {
	var b bytes.Buffer
	for _, c := range r.Content {
		if b.Len() > 0 && c.Text != "" {
			b.WriteByte('\n')
		}
		b.WriteString(c.Text)
	}
	return b.String()
}

// Arguments of a tool.
type Arguments map[string]any

// PrepareTool writes a tool's call.
func (c *Client) PrepareTool(name string, args Arguments) (Request, error) {
	if args == nil {
		args = Arguments{}
	}
	return c.Prepare("tools/call", map[string]any{"name": name, "arguments": args})
}

// Tool calls a tool and decodes its structured result into out, which may be
// nil. A result that says it is an error is returned as one.
func (c *Client) Tool(ctx context.Context, name string, args Arguments, out any) (Result, error) {
	r, err := c.PrepareTool(name, args)
	if err != nil {
		return Result{}, err
	}
	line, err := c.Send(ctx, r)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", name, err)
	}
	return DecodeTool(name, line, out)
}

// DecodeTool reads a tool's result out of a reply's line.
func DecodeTool(name string, line []byte, out any) (Result, error) {
	var result Result
	if err := Decode(line, &result); err != nil {
		return Result{}, fmt.Errorf("%s: %w", name, err)
	}
	if result.IsError {
		return result, fmt.Errorf("%s: %s", name, result.Text())
	}
	if out == nil {
		return result, nil
	}
	if err := json.Unmarshal(result.StructuredContent, out); err != nil {
		return result, fmt.Errorf("%s: structured result: %w", name, err)
	}
	return result, nil
}
