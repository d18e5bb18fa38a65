// Package session keeps the sandboxes of one MCP client: which one is the
// default, which exist, how long they live, and that all of them end with the
// client. It knows neither tools nor the wire.
//
// Its one invariant: a sandbox that was created for a session is either in it,
// or killed.
package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// A Sandbox is what a session needs of one.
type Sandbox interface {
	ID() string
	// SetTimeout makes the sandbox end d from now.
	SetTimeout(ctx context.Context, d time.Duration) error
	Kill(ctx context.Context) error
}

// Spec says what sandbox to create.
type Spec struct {
	Template string            // "" is the session's
	Timeout  time.Duration     // lifetime; 0 is the session's
	Envs     map[string]string // environment variables
}

// Options of a session. The zero value works.
type Options struct {
	Template string        // of sandboxes whose Spec has none
	Timeout  time.Duration // of sandboxes whose Spec has none; default 300 s
	// Gone reports whether an error says that a sandbox does not exist any
	// more. Default: none does.
	Gone func(error) bool
	// Margin is added to a call's own timeout when the sandbox must live that
	// long; default 30 s.
	Margin time.Duration
	// Longest is the longest life that a sandbox is ever extended to; default
	// 24 h.
	Longest time.Duration
	// CallTimeout bounds each request that a session makes on its own behalf
	// (extend, kill); default 30 s. Creating has CreateTimeout, default 2 min.
	CallTimeout   time.Duration
	CreateTimeout time.Duration
	Logger        *slog.Logger // nil discards
}

// Errors of a session. What the platform answers is passed on as it is.
var (
	// ErrUnknown is the same for an id that never was and for one of another session.
	ErrUnknown = errors.New("unknown sandbox")
	// ErrDead is for a sandbox of this session that was killed or whose lifetime is over.
	ErrDead = errors.New("sandbox is gone")
	// ErrNoDefault: there is no default sandbox to act on.
	ErrNoDefault = errors.New("no default sandbox")
	// ErrEnded: the session is over.
	ErrEnded = errors.New("session ended")
)

// A Session is safe for concurrent use. End it.
type Session[S Sandbox] struct {
	create func(context.Context, Spec) (S, error)
	opts   Options

	// life is the context of what a session does on its own behalf: creations
	// and extensions outlive the call that asked for them.
	life   context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup // what runs under life

	mu       sync.Mutex
	boxes    map[string]*box[S]
	dead     map[string]bool // ids that were ours
	current  *box[S]         // the default
	lost     bool            // the last default died by itself
	lazy     *flight[S]      // the lazy creation under way
	explicit []*flight[S]    // other creations under way
	ended    bool
	over     chan struct{} // closed when End has done its work
	endErr   error
}

// New makes a session that creates sandboxes by create.
func New[S Sandbox](create func(context.Context, Spec) (S, error), o Options) *Session[S] {
	if o.Timeout <= 0 {
		o.Timeout = 300 * time.Second
	}
	if o.Margin <= 0 {
		o.Margin = 30 * time.Second
	}
	if o.Longest <= 0 {
		o.Longest = 24 * time.Hour
	}
	if o.CallTimeout <= 0 {
		o.CallTimeout = 30 * time.Second
	}
	if o.CreateTimeout <= 0 {
		o.CreateTimeout = 2 * time.Minute
	}
	if o.Gone == nil {
		o.Gone = func(error) bool { return false }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	life, cancel := context.WithCancel(context.Background())
	return &Session[S]{
		create: create, opts: o, life: life, cancel: cancel,
		boxes: map[string]*box[S]{}, dead: map[string]bool{}, over: make(chan struct{}),
	}
}

// A Lease is the right to use a sandbox for one call. Release it.
type Lease[S Sandbox] struct {
	Sandbox S
	// Created: the sandbox was made because none was named.
	Created bool
	// Replaced: it was made since the default before it had died; what was in
	// that one is lost.
	Replaced bool

	box   *box[S]
	until time.Time
	once  sync.Once
}

// Release ends the use. Safe to call twice.
func (l *Lease[S]) Release() {
	l.once.Do(func() { l.box.release(l.until) })
}

// Ask says what Use wants.
type Ask struct {
	ID   string        // "" is the default sandbox, created if there is none
	Call time.Duration // the call's own timeout; 0: none to speak of
	// Fresh creates a sandbox for this call when ID is empty, and leaves the
	// default alone: for clients of protocols without sessions.
	Fresh bool
}

// Use finds or makes the sandbox of a call and extends its life. ctx bounds
// the waiting only: a sandbox that is being created is finished for others.
func (s *Session[S]) Use(ctx context.Context, a Ask) (*Lease[S], error) {
	if a.ID != "" {
		b, err := s.find(a.ID)
		if err != nil {
			return nil, err
		}
		return s.lease(ctx, b, a.Call)
	}
	if a.Fresh {
		b, err := s.make(ctx, Spec{}, false)
		if err != nil {
			return nil, err
		}
		l, err := s.lease(ctx, b, a.Call)
		if l != nil {
			l.Created = true
		}
		return l, err
	}
	var created, replaced bool
	for range 5 {
		b, fl, err := s.fallback()
		if err != nil {
			return nil, err
		}
		if fl != nil {
			made, err := fl.wait(ctx)
			if fl.explicit {
				continue // whatever came of it, look again
			}
			if err != nil {
				return nil, err
			}
			b, created, replaced = made, true, fl.replaces
		}
		l, err := s.lease(ctx, b, a.Call)
		if errors.Is(err, ErrDead) && ctx.Err() == nil {
			continue
		}
		if l != nil {
			l.Created, l.Replaced = created, replaced
		}
		return l, err
	}
	return nil, fmt.Errorf("default sandbox: %w, five times in a row", ErrDead)
}

// find returns the session's sandbox of that id.
func (s *Session[S]) find(id string) (*box[S], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch b := s.boxes[id]; {
	case s.ended:
		return nil, ErrEnded
	case b != nil && !b.dying:
		return b, nil
	case b != nil || s.dead[id]:
		return nil, fmt.Errorf("%w: %s", ErrDead, id)
	}
	return nil, fmt.Errorf("%w: %s", ErrUnknown, id)
}

// fallback returns the default sandbox, or the creation that will give one,
// which it starts if there is none.
func (s *Session[S]) fallback() (*box[S], *flight[S], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return nil, nil, ErrEnded
	case s.current != nil && !s.current.dying:
		return s.current, nil, nil
	case len(s.explicit) > 0:
		return nil, s.explicit[len(s.explicit)-1], nil
	case s.lazy == nil:
		s.lazy = &flight[S]{done: make(chan struct{}), replaces: s.lost}
		s.launch(s.lazy, Spec{})
	}
	return nil, s.lazy, nil
}

// stopping is how long a call may take to end when its timeout is over: what
// ignores signals is killed, and what it wrote is fetched. The sandbox must live
// through that, also when a call may take as long as it lives.
const stopping = 5 * time.Second

// lease extends b's life by its timeout, or by what a call that may take
// longer than that needs, and counts the call.
func (s *Session[S]) lease(ctx context.Context, b *box[S], call time.Duration) (*Lease[S], error) {
	need := b.timeout
	if call > need {
		need = min(call+s.opts.Margin, s.opts.Longest)
	} else if call > 0 {
		need = max(need, min(call+stopping, s.opts.Longest))
	}
	until := time.Now().Add(need)
	b.hold(until)
	if err := b.extend(ctx, s); err != nil {
		b.release(until)
		if s.opts.Gone(err) {
			s.forget(b, true)
			return nil, fmt.Errorf("%w: %s", ErrDead, b.id)
		}
		return nil, err
	}
	return &Lease[S]{Sandbox: b.sandbox, box: b, until: until}, nil
}

// Create makes a sandbox and makes it the default. When ctx ends first, the
// sandbox is killed as soon as it is there.
func (s *Session[S]) Create(ctx context.Context, spec Spec) (S, error) {
	b, err := s.make(ctx, spec, true)
	if err != nil {
		var none S
		return none, err
	}
	return b.sandbox, nil
}

func (s *Session[S]) make(ctx context.Context, spec Spec, makeDefault bool) (*box[S], error) {
	fl := &flight[S]{done: make(chan struct{}), explicit: makeDefault, single: true}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil, ErrEnded
	}
	if makeDefault {
		s.explicit = append(s.explicit, fl)
	}
	s.launch(fl, spec)
	s.mu.Unlock()
	b, err := fl.wait(ctx)
	if err != nil && ctx.Err() != nil {
		s.abandon(fl)
	}
	return b, err
}

// Kill ends the sandbox of that id; "" is the default one, which is then
// cleared. A sandbox that is gone already is a success once: ErrDead after.
// It returns the id that it killed.
func (s *Session[S]) Kill(ctx context.Context, id string) (string, error) {
	b, err := s.victim(ctx, id)
	if err != nil {
		return "", err
	}
	if err := b.sandbox.Kill(ctx); err != nil && !s.opts.Gone(err) {
		s.mu.Lock()
		b.dying = false
		s.mu.Unlock()
		return b.id, err
	}
	s.forget(b, false)
	return b.id, nil
}

// victim marks the sandbox to kill, so that no call begins in it.
func (s *Session[S]) victim(ctx context.Context, id string) (*box[S], error) {
	if id == "" {
		if fl := s.creating(); fl != nil {
			_, _ = fl.wait(ctx) // a create_sandbox just before this one
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.current == nil || s.current.dying {
			return nil, ErrNoDefault
		}
		s.current.dying = true
		return s.current, nil
	}
	b, err := s.find(id)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.dying {
		return nil, fmt.Errorf("%w: %s", ErrDead, id)
	}
	b.dying = true
	return b, nil
}

// creating returns a creation of the default that is under way, when there is
// no default yet.
func (s *Session[S]) creating() *flight[S] {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.current != nil:
		return nil
	case len(s.explicit) > 0:
		return s.explicit[len(s.explicit)-1]
	}
	return s.lazy
}

// forget drops b. byItself says that nobody here killed it.
func (s *Session[S]) forget(b *box[S], byItself bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.boxes[b.id] != b {
		return
	}
	delete(s.boxes, b.id)
	s.dead[b.id] = true
	if s.current == b {
		s.current, s.lost = nil, byItself
	}
}
