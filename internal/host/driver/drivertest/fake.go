package drivertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// Fake is a driver whose sandboxes are agents in this process, reached over
// net.Pipe: nothing is isolated and nothing outside this process is touched.
// All of it works in a testing/synctest bubble. The zero value is ready; the
// exported fields are read at each start and must not change while one runs.
type Fake struct {
	// Before is called at the begin of each start; an error of it fails the
	// start. It may block, as long as it heeds ctx.
	Before func(ctx context.Context, spec engine.Spec) error
	// Closing is called at the begin of each sandbox's first Close, which
	// returns its error.
	Closing func(spec engine.Spec) error
	// Agent answers on the agent's port what is not /init or /health. A
	// sandbox with a token asks for it first. Default: 404.
	Agent http.Handler
	// Init is asked before a POST /init is obeyed; an error of it is a 500.
	Init func(spec engine.Spec, init e2b.Init) error
	// Interpreter answers on the interpreter's port. Default: GET /health and
	// POST /execute of a cell that does nothing.
	Interpreter http.Handler
	// Gives is what Isolation returns. Default: tier "namespace", all enforced.
	Gives *engine.Isolation

	mu      sync.Mutex
	boxes   []*FakeSandbox
	started int
	closed  bool
}

// Start makes a sandbox.
func (f *Fake) Start(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	if !e2b.ValidID(spec.ID) {
		return nil, engine.Errorf(engine.ErrInvalid, "sandbox id %q", spec.ID)
	}
	if f.Before != nil {
		if err := f.Before(ctx, spec); err != nil {
			return nil, err
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, errors.New("driver is closed")
	}
	b := &FakeSandbox{fake: f, spec: spec, done: make(chan struct{}), ports: map[int]*fakePort{}}
	b.Handle(e2b.PortAgent, http.HandlerFunc(b.serveAgent))
	interpreter := f.Interpreter
	if interpreter == nil {
		interpreter = http.HandlerFunc(serveInterpreter)
	}
	b.Handle(e2b.PortInterpreter, interpreter)
	f.boxes = append(f.boxes, b)
	f.started++
	return b, nil
}

// Isolation tells what Gives holds.
func (f *Fake) Isolation() engine.Isolation {
	if f.Gives != nil {
		return *f.Gives
	}
	return engine.Isolation{Tier: "namespace", MemoryEnforced: true, ProcessesEnforced: true, Network: "none"}
}

// Close makes further starts fail.
func (f *Fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

// Live lists the sandboxes that are not gone, the oldest first.
func (f *Fake) Live() []*FakeSandbox {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.boxes)
}

// Started is how many sandboxes were made so far.
func (f *Fake) Started() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.started
}

// Find is the live sandbox of that id, or nil.
func (f *Fake) Find(id string) *FakeSandbox {
	for _, b := range f.Live() {
		if b.spec.ID == id {
			return b
		}
	}
	return nil
}

// FakeSandbox is a sandbox of Fake.
type FakeSandbox struct {
	fake    *Fake
	spec    engine.Spec
	done    chan struct{}
	closing sync.Once
	failed  error // of closing
	wg      sync.WaitGroup

	mu       sync.Mutex
	ports    map[int]*fakePort
	conns    map[net.Conn]struct{}
	inits    []e2b.Init
	token    string
	deadline *time.Timer
	dead     bool
	err      error
}

type fakePort struct {
	serve func(net.Conn)
	stop  func()
}

// Spec is what the sandbox was started with.
func (b *FakeSandbox) Spec() engine.Spec { return b.spec }

// Inits lists the bodies of all POST /init so far.
func (b *FakeSandbox) Inits() []e2b.Init {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.inits)
}

// Handle opens a port on which h answers HTTP/1.1.
func (b *FakeSandbox) Handle(port int, h http.Handler) {
	l := &listener{conns: make(chan net.Conn), done: make(chan struct{})}
	life, end := context.WithCancel(context.Background()) // of the sandbox
	server := &http.Server{
		Handler:     h,
		ErrorLog:    log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return life },
	}
	b.wg.Add(1)
	go func() {
		defer b.wg.Done()
		server.Serve(l) // ends with the listener
	}()
	b.open(port, &fakePort{
		serve: func(c net.Conn) {
			select {
			case l.conns <- c:
			case <-l.done:
				c.Close()
			}
		},
		stop: func() { server.Close(); end() },
	})
}

// HandleConn opens a port on which serve has each connection to itself. serve
// must return when the connection is closed.
func (b *FakeSandbox) HandleConn(port int, serve func(net.Conn)) {
	b.open(port, &fakePort{
		serve: func(c net.Conn) {
			b.wg.Add(1)
			go func() {
				defer b.wg.Done()
				defer c.Close()
				serve(c)
			}()
		},
		stop: func() {},
	})
}

func (b *FakeSandbox) open(port int, p *fakePort) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ports[port] = p
}

// Dial connects to a port opened by Handle or HandleConn.
func (b *FakeSandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	b.mu.Lock()
	if b.dead {
		b.mu.Unlock()
		return nil, fmt.Errorf("dial sandbox %s: %w", b.spec.ID, engine.ErrLost)
	}
	p := b.ports[port]
	if p == nil {
		b.mu.Unlock()
		return nil, fmt.Errorf("dial port %d of sandbox %s: %w", port, b.spec.ID, engine.ErrPortClosed)
	}
	near, far := net.Pipe()
	if b.conns == nil {
		b.conns = map[net.Conn]struct{}{}
	}
	tracked := &fakeConn{Conn: far, box: b}
	b.conns[tracked] = struct{}{}
	b.mu.Unlock()
	p.serve(tracked)
	return near, nil
}

// fakeConn is the far end of a connection.
type fakeConn struct {
	net.Conn
	box *FakeSandbox
}

func (c *fakeConn) Close() error {
	c.box.mu.Lock()
	delete(c.box.conns, c)
	c.box.mu.Unlock()
	return c.Conn.Close()
}

// Done is closed when the sandbox is gone.
func (b *FakeSandbox) Done() <-chan struct{} { return b.done }

// Err is what Die was given.
func (b *FakeSandbox) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// Die ends the sandbox as if its agent had died of err.
func (b *FakeSandbox) Die(err error) { b.end(err) }

// Close ends the sandbox and waits for its goroutines.
func (b *FakeSandbox) Close() error {
	b.closing.Do(func() {
		if b.fake.Closing != nil {
			b.failed = b.fake.Closing(b.spec)
		}
		b.end(nil)
		<-b.done // somebody else's end may be under way
		b.mu.Lock()
		b.err = nil
		b.mu.Unlock()
		b.wg.Wait()
	})
	return b.failed
}

func (b *FakeSandbox) end(err error) {
	b.mu.Lock()
	if b.dead {
		b.mu.Unlock()
		return
	}
	b.dead, b.err = true, err
	if b.deadline != nil {
		b.deadline.Stop()
	}
	conns := make([]net.Conn, 0, len(b.conns))
	for c := range b.conns {
		conns = append(conns, c)
	}
	ports := b.ports
	b.mu.Unlock()
	// Connections first: a dead agent finishes no reply.
	for _, c := range conns {
		c.Close()
	}
	for _, p := range ports {
		p.stop()
	}
	b.fake.mu.Lock()
	b.fake.boxes = slices.DeleteFunc(b.fake.boxes, func(o *FakeSandbox) bool { return o == b })
	b.fake.mu.Unlock()
	close(b.done)
}

func (b *FakeSandbox) serveAgent(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/init" && r.Method == http.MethodPost:
		b.serveInit(w, r)
	case r.URL.Path == "/health":
		w.WriteHeader(http.StatusNoContent)
	case b.fake.Agent == nil:
		http.NotFound(w, r)
	case !b.knows(r.Header.Get(e2b.HeaderAccessToken)):
		w.WriteHeader(http.StatusUnauthorized)
		json.NewEncoder(w).Encode(e2b.Error{Code: http.StatusUnauthorized, Message: "wrong access token"})
	default:
		b.fake.Agent.ServeHTTP(w, r)
	}
}

func (b *FakeSandbox) knows(token string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.token == "" || b.token == token
}

func (b *FakeSandbox) serveInit(w http.ResponseWriter, r *http.Request) {
	var init e2b.Init
	if err := json.NewDecoder(r.Body).Decode(&init); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if b.fake.Init != nil {
		if err := b.fake.Init(b.spec, init); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	b.mu.Lock()
	b.inits = append(b.inits, init)
	if init.AccessToken != nil {
		b.token = *init.AccessToken
	}
	if init.Abx != nil && init.Abx.LifetimeMS > 0 && !b.dead {
		if b.deadline != nil {
			b.deadline.Stop()
		}
		life := time.Duration(init.Abx.LifetimeMS) * time.Millisecond
		b.deadline = time.AfterFunc(life, func() { b.end(errors.New("agent's own deadline")) })
	}
	b.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

// serveInterpreter is an interpreter whose cells do nothing.
func serveInterpreter(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/health":
		io.WriteString(w, `"OK"`)
	case "/execute":
		io.Copy(io.Discard, r.Body)
		enc := json.NewEncoder(w)
		enc.Encode(e2b.Line{Type: e2b.LineExecutions, ExecutionCount: 1})
		enc.Encode(e2b.Line{Type: e2b.LineEnd})
	default:
		http.NotFound(w, r)
	}
}

// listener hands an http.Server the connections that Dial makes.
type listener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *listener) Addr() net.Addr { return address{} }

type address struct{}

func (address) Network() string { return "pipe" }
func (address) String() string  { return "fake" }
