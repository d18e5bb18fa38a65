package session

import (
	"context"
	"errors"
	"slices"
	"time"
)

// A flight is one creation that any number of calls wait for.
type flight[S Sandbox] struct {
	explicit  bool // by create_sandbox: becomes the default, whatever is
	single    bool // one call waits: nobody wants the sandbox when it left
	abandoned bool // it left; guarded by Session.mu
	replaces  bool // the default before died by itself

	done chan struct{} // closed when the rest is valid
	box  *box[S]
	err  error
}

func (f *flight[S]) wait(ctx context.Context) (*box[S], error) {
	select {
	case <-f.done:
		return f.box, f.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// launch starts fl; Session.mu is held and the session is not over.
func (s *Session[S]) launch(fl *flight[S], spec Spec) {
	if spec.Template == "" {
		spec.Template = s.opts.Template
	}
	if spec.Timeout <= 0 {
		spec.Timeout = s.opts.Timeout
	}
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		ctx, cancel := context.WithTimeout(s.life, s.opts.CreateTimeout)
		defer cancel()
		sb, err := s.create(ctx, spec)
		if s.land(fl, sb, err, spec.Timeout) {
			close(fl.done)
			return
		}
		close(fl.done)
		s.discard(sb)
	}()
}

// land puts the created sandbox into the session. kept is false when nobody
// may have it: it must be killed.
func (s *Session[S]) land(fl *flight[S], sb S, err error, timeout time.Duration) (kept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lazy == fl {
		s.lazy = nil
	}
	s.explicit = slices.DeleteFunc(s.explicit, func(o *flight[S]) bool { return o == fl })
	switch {
	case err != nil:
		fl.err = err
		return true
	case s.ended:
		fl.err = ErrEnded
		return false
	case fl.abandoned:
		fl.err = context.Canceled
		return false
	}
	b := &box[S]{sandbox: sb, id: sb.ID(), timeout: timeout, calls: map[time.Time]int{}}
	s.boxes[b.id] = b
	if fl.explicit || !fl.single && (s.current == nil || s.current.dying) {
		s.current, s.lost = b, false
	}
	fl.box = b
	return true
}

// abandon gives up a creation that only the caller wanted.
func (s *Session[S]) abandon(fl *flight[S]) {
	s.mu.Lock()
	select {
	case <-fl.done:
	default:
		fl.abandoned = true
		s.mu.Unlock()
		return
	}
	b := fl.box
	if b == nil || b.dying || !s.enterLocked() {
		s.mu.Unlock()
		return
	}
	b.dying = true
	s.mu.Unlock()
	defer s.work.Done()
	s.discard(b.sandbox)
	s.forget(b, false)
}

// discard kills a sandbox that nobody can reach.
func (s *Session[S]) discard(sb S) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), s.opts.CallTimeout)
	defer cancel()
	if err := sb.Kill(ctx); err != nil && !s.opts.Gone(err) {
		s.opts.Logger.Warn("sandbox could not be killed; it ends with its lifetime", "sandbox", sb.ID(), "error", err)
	}
}

// enter counts a piece of work that End waits for, unless the session is over.
func (s *Session[S]) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.enterLocked()
}

func (s *Session[S]) enterLocked() bool {
	if s.ended {
		return false
	}
	s.work.Add(1)
	return true
}

// End kills every sandbox of the session, all at once, and returns when they
// are gone or ctx ended. A creation that is under way then is waited for, and
// its sandbox killed. The first call does it; later ones wait for it.
func (s *Session[S]) End(ctx context.Context) error {
	s.mu.Lock()
	first := !s.ended
	s.ended = true
	var all []*box[S]
	if first {
		for _, b := range s.boxes {
			all = append(all, b)
		}
		clear(s.boxes)
		s.current = nil
	}
	s.mu.Unlock()
	if first {
		go s.end(ctx, all)
	}
	select {
	case <-s.over:
		return s.endErr
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Session[S]) end(ctx context.Context, all []*box[S]) {
	defer close(s.over)
	defer s.cancel()
	errs := make(chan error, len(all))
	for _, b := range all {
		go func() { errs <- b.sandbox.Kill(ctx) }()
	}
	for range all {
		if err := <-errs; err != nil && !s.opts.Gone(err) {
			s.endErr = errors.Join(s.endErr, err)
		}
	}
	idle := make(chan struct{})
	go func() {
		s.work.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
		s.endErr = errors.Join(s.endErr, ctx.Err())
	}
}
