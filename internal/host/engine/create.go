package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// Request says what sandbox to create.
type Request struct {
	Template string        // required
	Lifetime time.Duration // required, at most MaxLifetime
	Metadata map[string]string
	Env      map[string]string // of every process inside
	// Secure gives the agent an access token that clients must send.
	Secure bool
	// PrivatePorts gives the other ports a token that clients must send.
	PrivatePorts bool
	// MaskHost is the Host that servers inside see; ${PORT} stands for the port.
	MaskHost string
	// Isolation names the least isolation that will do: auto (or empty),
	// namespace, gvisor.
	Isolation string
}

// create is one create under way.
type create struct {
	cancel context.CancelCauseFunc
	claim  *member   // taken from the pool, or nil
	evict  []*member // pool entries that must go before it starts
}

// Create makes a sandbox and returns when it can be used. ctx bounds the
// create only. On an error nothing is left of it and it was never listed.
//
// Errors: ErrNotFound for an unknown template, ErrInvalid, ErrUnsupported for
// an isolation that this host has not, ErrCapacity.
func (e *Engine) Create(ctx context.Context, req Request) (Info, error) {
	if err := e.check(req); err != nil {
		return Info{}, err
	}
	ctx, c, err := e.reserve(ctx, req.Template)
	if err != nil {
		return Info{}, err
	}
	defer e.release(c)
	for _, m := range c.evict {
		if err := e.dispose(m); err != nil {
			e.log.Warn("pool entry not fully gone", slog.String("sandbox", m.id), slog.Any("error", err))
		}
	}
	token := ""
	if req.Secure {
		token = newToken()
	}
	if m := c.claim; m != nil {
		if err := e.configure(ctx, m, req, token); err == nil {
			return e.publish(c, m, req, token)
		} else if ctx.Err() != nil {
			return Info{}, startError(m.id, errors.Join(context.Cause(ctx), e.dispose(m)))
		} else {
			e.log.Warn("pool entry was no good; starting another sandbox", slog.String("sandbox", m.id), slog.Any("error", err))
			e.dispose(m)
		}
	}
	m, err := e.launch(ctx, req.Template)
	if err != nil {
		return Info{}, err
	}
	if err := e.configure(ctx, m, req, token); err != nil {
		return Info{}, startError(m.id, errors.Join(err, e.dispose(m)))
	}
	return e.publish(c, m, req, token)
}

func (e *Engine) check(req Request) error {
	if !slices.Contains(e.opts.Templates, req.Template) {
		return Errorf(ErrNotFound, "template %.80q was not found; this host has %s", req.Template, strings.Join(e.opts.Templates, ", "))
	}
	if err := CheckLifetime(req.Lifetime, e.opts.MaxLifetime); err != nil {
		return err
	}
	for name, value := range req.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return Errorf(ErrInvalid, "environment variable %.80q: a name cannot be empty or hold '=', and neither name nor value a NUL", name)
		}
	}
	return e.checkIsolation(req.Isolation)
}

// tiers from the least isolation to the most.
var tiers = []string{"namespace", "gvisor"}

func (e *Engine) checkIsolation(want string) error {
	if want == "" || want == "auto" {
		return nil
	}
	wanted := slices.Index(tiers, want)
	if wanted < 0 {
		return Errorf(ErrInvalid, "isolation %.80q is none of auto, %s", want, strings.Join(tiers, ", "))
	}
	have := e.driver.Isolation().Tier
	if slices.Index(tiers, have) < wanted {
		return Errorf(ErrUnsupported, "isolation %q is not supported by this host, which has %q", want, have)
	}
	return nil
}

// reserve takes a place for a sandbox of template, with a pool entry in it if
// there is one, and bounds ctx by the engine's Close. release gives it back.
func (e *Engine) reserve(ctx context.Context, template string) (context.Context, *create, error) {
	if free, ok := e.opts.FreeMemory(); ok && free < e.opts.MinFreeMemory {
		return nil, nil, Errorf(ErrCapacity, "the host has %d MiB of memory left, too little for another sandbox (setting min_free_memory, %d MiB); kill one first", free>>20, e.opts.MinFreeMemory>>20)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, nil, errStopping
	}
	used := len(e.live) + len(e.creates) + e.closing
	if used >= e.opts.MaxSandboxes {
		return nil, nil, Errorf(ErrCapacity, "this host has %d sandboxes, the most that it may (setting max_sandboxes); kill one or raise the setting", used)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	c := &create{cancel: cancel}
	e.creates[c] = struct{}{}
	e.wg.Add(1)
	if template == e.opts.PoolTemplate {
		c.claim = e.pool.pop()
	}
	c.evict = e.pool.shrink(e.opts.MaxSandboxes - used - 1)
	return ctx, c, nil
}

// errStopping answers creates of a closed engine.
var errStopping = Errorf(ErrCapacity, "this host is stopping and takes no more sandboxes")

// release ends a create, whether it made a sandbox or not.
func (e *Engine) release(c *create) {
	c.cancel(nil)
	e.mu.Lock()
	delete(e.creates, c)
	e.pool.quietSince = time.Now()
	e.mu.Unlock()
	e.lookAgain()
	e.wg.Done()
}

// launch starts a sandbox, when its turn has come.
func (e *Engine) launch(ctx context.Context, template string) (*member, error) {
	select {
	case e.starts <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for other starts: %w", context.Cause(ctx))
	}
	defer func() { <-e.starts }()
	return e.start(ctx, template)
}

// start makes a sandbox without identity.
func (e *Engine) start(ctx context.Context, template string) (*member, error) {
	id := e.freshID()
	ctx, cancel := context.WithTimeoutCause(ctx, e.opts.StartTimeout,
		Errorf(context.DeadlineExceeded, "not ready after %v", e.opts.StartTimeout))
	defer cancel()
	box, err := e.driver.Start(ctx, Spec{ID: id, Template: template, Limits: e.opts.Limits})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, startError(id, err)
	}
	return newMember(id, template, box), nil
}

func (e *Engine) freshID() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		if id := newID(); e.live[id] == nil && !e.graves.has(id) {
			return id
		}
	}
}

// configure gives m what req asks for.
func (e *Engine) configure(ctx context.Context, m *member, req Request, token string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	m.agentEnd = time.Now().Add(req.Lifetime + agentSlack)
	return configure(ctx, m.box, req, token, req.Lifetime+agentSlack)
}

// publish puts m into the list: from here on it has a life of its own.
func (e *Engine) publish(c *create, m *member, req Request, token string) (Info, error) {
	m.begin(req, token, e.opts.Limits)
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return Info{}, errors.Join(errStopping, e.dispose(m))
	}
	delete(e.creates, c)
	e.live[m.id] = m
	m.timer = time.AfterFunc(req.Lifetime, func() { e.expire(m) })
	if c.claim != m {
		e.wg.Add(1)
		go e.watch(m)
	}
	e.mu.Unlock()
	// Whoever watched it in the pool may have seen its end before it was listed.
	select {
	case <-m.box.Done():
		e.gone(m)
		return Info{}, fmt.Errorf("start sandbox %s: %v", m.id, lostBecause(m.box.Err()))
	default:
	}
	return m.describe(), nil
}
