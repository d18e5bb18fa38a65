//go:build linux

package interpreter

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// codeContext is one context: a queue of cells and, from the first of them on,
// a kernel. A kernel that died is replaced by the next cell.
type codeContext struct {
	service *Service
	info    e2b.Context
	turn    chan struct{} // holds one token while a cell has the kernel
	closed  chan struct{} // the context was deleted

	// kernel and lost belong to the holder of the turn.
	kernel *kernel
	lost   string // why state was lost that no call was told of yet

	mu         sync.Mutex
	waiting    int
	client     *emitter      // of the call that has the turn
	generation int           // of kernels: restart makes those before it stale
	restarted  chan struct{} // closed by restart, for the cell that runs
	ended      bool
	wg         sync.WaitGroup // calls, and the end of the kernel
}

func newCodeContext(s *Service, info e2b.Context) *codeContext {
	return &codeContext{
		service: s, info: info,
		turn: make(chan struct{}, 1), closed: make(chan struct{}), restarted: make(chan struct{}),
	}
}

// enter notes a call that will want the turn; leave undoes it.
func (c *codeContext) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return refuse(http.StatusNotFound, "context %q not found: it was deleted", c.info.ID)
	}
	if c.waiting > maxWaiting {
		return refuse(http.StatusTooManyRequests, "%d calls of this context wait already; use another context to run code at the same time", maxWaiting)
	}
	c.waiting++
	c.wg.Add(1)
	return nil
}

func (c *codeContext) leave() {
	c.mu.Lock()
	c.waiting--
	c.mu.Unlock()
	c.wg.Done()
}

// current tells which kernels are not stale, and when they become so.
func (c *codeContext) current() (generation int, stale <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.generation, c.restarted
}

// ready returns a kernel that runs, the one of the cells before if it can be.
// It needs the turn.
func (c *codeContext) ready() (*kernel, error) {
	generation, stale := c.current()
	if c.kernel != nil && c.kernel.generation != generation {
		c.drop()
	}
	if c.kernel != nil && (c.kernel.dead() || c.kernel.failure() != nil) {
		if c.lost == "" && c.kernel.cells > 0 {
			c.lost = "the kernel died between this call and the one before"
		}
		c.drop()
	}
	if c.kernel != nil {
		return c.kernel, nil
	}
	k, err := c.start()
	if err != nil {
		return nil, err
	}
	k.generation, k.stale = generation, stale
	c.kernel = k
	return k, nil
}

// start starts a kernel.
func (c *codeContext) start() (*kernel, error) {
	s := c.service
	a, err := s.opts.Book.Lookup(s.opts.User())
	if err != nil {
		return nil, err
	}
	version := s.opts.EnvVersion()
	env := s.opts.Env(a)
	d := s.drivers[c.info.Language]
	program, err := d.program(env)
	if errors.Is(err, errNoProgram) {
		return nil, refuse(http.StatusBadRequest, "no kernel for language %q: %v; use a template that has it", c.info.Language, err)
	}
	if err != nil {
		return nil, err
	}
	if err := s.files.ensure(); err != nil {
		return nil, err
	}
	o := place{
		driverDir: s.files.path, program: program, account: a,
		dir: filepath.Join(s.opts.RunDir, "kernel-"+strconv.FormatInt(s.serial.Add(1), 10)),
	}
	k, err := startKernel(s.opts.Table, d, o, env, c.info.CWD)
	if err != nil {
		return nil, err
	}
	k.version = version
	return k, nil
}

// renew makes a cell bring along what changed in the sandbox's environment.
func (c *codeContext) renew(k *kernel, next *cell) {
	s := c.service
	version := s.opts.EnvVersion()
	if version == k.version {
		return
	}
	a, err := s.opts.Book.Lookup(s.opts.User())
	if err != nil {
		return // of the next kernel's start
	}
	now := s.opts.Env(a)
	next.Set, next.Unset = difference(k.env, now)
	k.env, k.version = now, version
}

func difference(before, after []string) (set map[string]string, unset []string) {
	old, set := envMap(before), envMap(after)
	for name, value := range old {
		switch now, ok := set[name]; {
		case !ok:
			unset = append(unset, name)
		case now == value:
			delete(set, name)
		}
	}
	return set, unset
}

func envMap(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, kv := range env {
		if name, value, ok := strings.Cut(kv, "="); ok && name != "" {
			m[name] = value
		}
	}
	return m
}

// drop ends the kernel. It needs the turn.
func (c *codeContext) drop() {
	if c.kernel != nil {
		c.kernel.close()
		c.kernel = nil
	}
}

// serve notes whose call has the turn.
func (c *codeContext) serve(e *emitter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.client = e
}

// pass gives the turn to the next.
func (c *codeContext) pass() {
	c.serve(nil)
	<-c.turn
}

// takeAway takes the turn from the call that has it, whose kernel is ending.
// A client that does not read must not keep it.
func (c *codeContext) takeAway(from *emitter) {
	stalled := time.AfterFunc(letGoAfter, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if from != nil && c.client == from {
			from.abort()
		}
	})
	defer stalled.Stop()
	c.turn <- struct{}{}
}

// restart ends the kernel and the cell that runs on it, and returns when the
// kernel is gone. Cells that wait run on a new one.
func (c *codeContext) restart() {
	c.mu.Lock()
	c.generation++
	close(c.restarted)
	c.restarted = make(chan struct{})
	generation, ended, client := c.generation, c.ended, c.client
	if !ended {
		c.wg.Add(1)
	}
	c.mu.Unlock()
	if ended {
		return
	}
	defer c.wg.Done()
	c.takeAway(client)
	defer c.pass()
	if c.kernel == nil || c.kernel.generation < generation {
		c.drop()
		c.lost = "" // it was asked for
	}
}

// end closes the context for good. It does not wait.
func (c *codeContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	c.generation++
	close(c.restarted)
	c.restarted = make(chan struct{})
	close(c.closed)
	client := c.client
	c.wg.Go(func() {
		c.takeAway(client)
		defer c.pass()
		c.drop()
	})
}

// wait returns when nothing of an ended context runs.
func (c *codeContext) wait() { c.wg.Wait() }

// take waits for the turn. false: the client went away, or the context did.
func (c *codeContext) take(ctx context.Context, alive func()) bool {
	select {
	case c.turn <- struct{}{}:
		return true
	default:
	}
	tick := time.NewTicker(c.service.aliveEvery)
	defer tick.Stop()
	for {
		select {
		case c.turn <- struct{}{}:
			return true
		case <-ctx.Done():
			return false
		case <-c.closed:
			return false
		case <-tick.C:
			alive()
		}
	}
}
