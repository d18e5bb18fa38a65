package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// transport is an http.RoundTripper that calls a handler in this process, with
// no connection between. A reply's first byte arrives when it is written; the
// end of the request's context, or closing the reply's body, ends the
// handler's context; a handler that panics or aborts gives the client an
// error, never a clean end. There is no Hijack, so no WebSockets: those need a
// real connection.
type transport struct {
	handler http.Handler
	log     *slog.Logger
	server  *http.Server // what handlers find under http.ServerContextKey; serves nothing

	mu     sync.Mutex
	calls  map[*call]struct{}
	closed bool
	wg     sync.WaitGroup
}

var (
	errTransportClosed = errors.New("the embedded host is closed")
	errAborted         = fmt.Errorf("the embedded host broke off its reply: %w", io.ErrUnexpectedEOF)
	errBodyClosed      = errors.New("read of a closed reply")
)

func newTransport(h http.Handler, log *slog.Logger) *transport {
	return &transport{handler: h, log: log, server: &http.Server{Handler: h}, calls: map[*call]struct{}{}}
}

// close ends all calls and waits for their handlers.
func (t *transport) close() {
	t.mu.Lock()
	t.closed = true
	calls := slices.Collect(maps.Keys(t.calls))
	t.mu.Unlock()
	for _, c := range calls {
		c.fail(errTransportClosed)
	}
	t.wg.Wait()
}

// RoundTrip calls the handler and returns when it has sent its header.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := context.Cause(req.Context()); err != nil {
		closeBody(req)
		return nil, err
	}
	if req.URL == nil {
		closeBody(req)
		return nil, errors.New("request without a URL")
	}
	c := newCall(t, req)
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		closeBody(req)
		return nil, errTransportClosed
	}
	t.calls[c] = struct{}{}
	t.wg.Add(1)
	t.mu.Unlock()
	stop := context.AfterFunc(req.Context(), func() { c.fail(context.Cause(req.Context())) })
	go t.serve(c, stop)
	select {
	case <-c.failed:
		return nil, c.cause
	case <-c.ready:
	}
	if c.response == nil {
		return nil, c.failure()
	}
	return c.response, nil
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}

// serve runs the handler of one call.
func (t *transport) serve(c *call, stop func() bool) {
	defer t.wg.Done()
	clean := false
	defer func() {
		if v := recover(); v != nil && v != http.ErrAbortHandler {
			t.log.Error("handler panicked", slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
		}
		stop()
		c.end(clean)
		t.mu.Lock()
		delete(t.calls, c)
		t.mu.Unlock()
	}()
	t.handler.ServeHTTP(c, c.request)
	clean = true
}

// call is one request and its reply; to the handler it is the ResponseWriter.
type call struct {
	request *http.Request // the handler's
	client  *http.Request
	cancel  context.CancelFunc
	body    *requestBody
	pipe    *pipe

	ready    chan struct{}  // closed when response is set or never will be
	response *http.Response // the client's; nil when the call failed before

	failOnce sync.Once
	failed   chan struct{}
	cause    error // after failed

	// The handler's side.
	header    http.Header
	committed bool
	length    int64 // declared, or -1
	written   int64
	bodyless  bool // HEAD: counted, not sent
	forbidden bool // a status that has no body
	timer     deadline
}

func newCall(t *transport, req *http.Request) *call {
	c := &call{
		client: req,
		pipe:   newPipe(),
		ready:  make(chan struct{}),
		failed: make(chan struct{}),
		header: http.Header{},
		length: -1,
	}
	// The server's side of a wire: it gets the client's wish to end (through
	// fail), not the values in its context.
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	ctx = context.WithValue(ctx, http.ServerContextKey, t.server)
	ctx = context.WithValue(ctx, http.LocalAddrContextKey, net.Addr(memory{}))
	r := req.Clone(ctx)
	if r.Host == "" {
		r.Host = r.URL.Host
	}
	if r.Method == "" {
		r.Method = http.MethodGet
	}
	if r.Header == nil {
		r.Header = http.Header{}
	}
	r.RequestURI = r.URL.RequestURI()
	r.URL.Scheme, r.URL.Host, r.URL.User, r.URL.Fragment = "", "", nil, ""
	r.RemoteAddr = "@"
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	r.Response, r.GetBody, r.Close = nil, nil, false
	c.bodyless = r.Method == http.MethodHead
	c.setBody(r)
	c.request = r
	return c
}

func (c *call) setBody(r *http.Request) {
	c.body = &requestBody{left: r.ContentLength}
	switch {
	case c.client.Body == nil || c.client.Body == http.NoBody:
		r.Body, r.ContentLength, r.TransferEncoding = http.NoBody, 0, nil
		return
	case r.ContentLength <= 0: // to a client 0 says "unknown" when there is a body
		r.ContentLength, c.body.left = -1, -1
		r.TransferEncoding = []string{"chunked"}
	default:
		r.TransferEncoding = nil
	}
	c.body.from = c.client.Body
	r.Body = c.body
}

// fail ends the call because of err, on both sides.
func (c *call) fail(err error) {
	c.failOnce.Do(func() {
		c.cause = err
		close(c.failed)
	})
	c.pipe.abandon(c.cause)
	c.cancel()
	c.body.Close()
}

func (c *call) failure() error {
	select {
	case <-c.failed:
		return c.cause
	default:
		return errAborted
	}
}

// end is the end of the handler.
func (c *call) end(clean bool) {
	defer c.cancel()
	defer c.body.Close()
	defer c.timer.stop()
	if !clean {
		c.pipe.finish(errAborted)
		if !c.committed {
			close(c.ready)
		}
		return
	}
	if !c.committed {
		if c.header.Get("Content-Length") == "" && !c.bodyless {
			c.header.Set("Content-Length", "0")
		}
		c.WriteHeader(http.StatusOK)
	}
	if c.length >= 0 && c.written < c.length && !c.bodyless && !c.forbidden {
		c.pipe.finish(errAborted)
		return
	}
	c.sendTrailer()
	c.pipe.finish(io.EOF)
}

// Header is the header that WriteHeader sends.
func (c *call) Header() http.Header { return c.header }

// WriteHeader sends the header. Informational ones are not passed on.
func (c *call) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid status %d", status))
	}
	if c.committed || status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	c.commit(status, nil)
}

func (c *call) commit(status int, first []byte) {
	c.committed = true
	c.forbidden = status == http.StatusNoContent || status == http.StatusNotModified || status < 200
	if n, err := strconv.ParseInt(c.header.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		c.length = n
	} else {
		c.header.Del("Content-Length")
	}
	if len(first) > 0 && c.header.Values("Content-Type") == nil && c.header.Get("Content-Encoding") == "" {
		c.header.Set("Content-Type", http.DetectContentType(first))
	}
	resp := &http.Response{
		Status:        strconv.Itoa(status) + " " + http.StatusText(status),
		StatusCode:    status,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        c.header.Clone(),
		ContentLength: c.length,
		Request:       c.client,
		Body:          &replyBody{call: c},
	}
	if c.forbidden {
		resp.ContentLength = 0
	}
	if resp.ContentLength < 0 {
		resp.TransferEncoding = []string{"chunked"}
	}
	c.announceTrailer(resp)
	c.response = resp
	close(c.ready)
}

// Write sends p at once; it waits when the client is behind.
func (c *call) Write(p []byte) (int, error) {
	if !c.committed {
		c.commit(http.StatusOK, p)
	}
	switch {
	case c.forbidden:
		return 0, http.ErrBodyNotAllowed
	case c.length >= 0 && c.written+int64(len(p)) > c.length:
		return 0, http.ErrContentLength
	case c.bodyless:
		c.written += int64(len(p))
		return len(p), nil
	}
	n, err := c.pipe.Write(p)
	c.written += int64(n)
	return n, err
}

// FlushError sends the header; what is written is sent already.
func (c *call) FlushError() error {
	if !c.committed {
		c.commit(http.StatusOK, nil)
	}
	select {
	case <-c.failed:
		return c.cause
	default:
		return nil
	}
}

// Flush is FlushError.
func (c *call) Flush() { _ = c.FlushError() }

// EnableFullDuplex has nothing to enable: both ways are open.
func (c *call) EnableFullDuplex() error { return nil }

// SetReadDeadline ends the reading of the request's body at that time.
func (c *call) SetReadDeadline(at time.Time) error {
	c.timer.set(at, func() { c.body.Close() })
	return nil
}

// deadline calls a function at a time that may be moved.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
}

func (d *deadline) set(at time.Time, f func()) {
	d.stop()
	if at.IsZero() {
		return
	}
	wait := time.Until(at)
	if wait <= 0 {
		f()
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timer = time.AfterFunc(wait, f)
}

func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
}

// requestBody is what the handler reads: the client's body, whose promised
// length it holds the client to, and which is closed once.
type requestBody struct {
	from   io.ReadCloser // nil when there is none
	closed atomic.Bool

	reading sync.Mutex // held by Read, not by Close
	left    int64      // -1 when unknown
}

// Read reads from the client.
func (b *requestBody) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	if b.left == 0 {
		return 0, io.EOF
	}
	if b.left > 0 && int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.from.Read(p)
	if b.left > 0 {
		b.left -= int64(n)
		if err == io.EOF && b.left > 0 {
			err = io.ErrUnexpectedEOF
		}
		if err == nil && b.left == 0 {
			err = io.EOF
		}
	}
	if err != nil && err != io.EOF && b.closed.Load() {
		err = http.ErrBodyReadAfterClose
	}
	return n, err
}

// Close closes the client's body, which ends a Read that waits in it.
func (b *requestBody) Close() error {
	if b.from == nil || b.closed.Swap(true) {
		return nil
	}
	return b.from.Close()
}

// replyBody is what the client reads.
type replyBody struct{ call *call }

func (b *replyBody) Read(p []byte) (int, error) { return b.call.pipe.Read(p) }

// Close tells the handler that nobody reads any more.
func (b *replyBody) Close() error {
	b.call.pipe.abandon(errBodyClosed)
	b.call.fail(errBodyClosed)
	return nil
}

// memory is the address of both ends.
type memory struct{}

func (memory) Network() string { return "memory" }
func (memory) String() string  { return "embedded" }
