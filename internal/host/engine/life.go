package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"
)

// member is one started sandbox of the engine: in the pool, in the list, or on
// its way into or out of one of them.
type member struct {
	id, template string
	box          Sandbox
	moving       chan struct{} // a token in it: its deadline is being moved
	ended        chan struct{} // closed when the box is closed

	closing  sync.Once
	closeErr error // after ended

	mu       sync.Mutex
	info     Info
	agentEnd time.Time // when the agent itself would end it
	timer    *time.Timer

	// Guarded by the Engine's lock.
	counted bool // in Engine.closing
	tracked bool // in Engine.wg
}

func newMember(id, template string, box Sandbox) *member {
	return &member{
		id:       id,
		template: template,
		box:      box,
		moving:   make(chan struct{}, 1),
		ended:    make(chan struct{}),
	}
}

// begin makes m the sandbox that req asked for.
func (m *member) begin(req Request, token string, limits Limits) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.info = Info{
		ID:          m.id,
		Template:    m.template,
		Metadata:    maps.Clone(req.Metadata),
		AccessToken: token,
		MaskHost:    req.MaskHost,
		StartedAt:   now,
		EndAt:       now.Add(req.Lifetime),
		Limits:      limits,
	}
	if req.PrivatePorts {
		m.info.TrafficToken = newToken()
	}
}

func (m *member) describe() Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	info := m.info
	info.Metadata = maps.Clone(info.Metadata)
	return info
}

// SetTimeout lets the sandbox live for d from now, which may be shorter than
// before; 0 ends it at once, and SetTimeout returns when it is gone. In all, a
// sandbox lives no longer than MaxLifetime: the rest is cut off.
func (e *Engine) SetTimeout(ctx context.Context, id string, d time.Duration) error {
	m, err := e.member(id)
	if err != nil {
		return err
	}
	if d == 0 {
		return e.finish(ctx, m, ErrExpired)
	}
	if err := CheckLifetime(d, e.opts.MaxLifetime); err != nil {
		return err
	}
	return e.move(ctx, m, d, false)
}

// Extend lets the sandbox live for at least d from now; it never shortens. The
// rest is as with SetTimeout.
func (e *Engine) Extend(ctx context.Context, id string, d time.Duration) (Info, error) {
	m, err := e.member(id)
	if err != nil {
		return Info{}, err
	}
	if d > 0 {
		if err := CheckLifetime(d, e.opts.MaxLifetime); err != nil {
			return Info{}, err
		}
		if err := e.move(ctx, m, d, true); err != nil {
			return Info{}, err
		}
	}
	return m.describe(), nil
}

// move sets a deadline in both clocks, the later one first, so that at no time
// the agent would end what the engine lets live.
func (e *Engine) move(ctx context.Context, m *member, d time.Duration, extend bool) error {
	select {
	case m.moving <- struct{}{}:
		defer func() { <-m.moving }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	m.mu.Lock()
	end, old, agentEnd := time.Now().Add(d), m.info.EndAt, m.agentEnd
	if latest := m.info.StartedAt.Add(e.opts.MaxLifetime); end.After(latest) {
		end = latest
	}
	m.mu.Unlock()
	switch {
	case end.Equal(old), extend && end.Before(old):
		return nil
	case end.After(old):
		// A session extends before every use, and that call costs more than many a
		// command: the agent is asked when its own deadline comes near.
		if agentEnd.Before(end.Add(agentSlack / 2)) {
			if err := e.prolong(ctx, m, end); err != nil {
				return err
			}
		}
		m.setEnd(end)
	default:
		m.setEnd(end)
		if err := e.prolong(ctx, m, end); err != nil {
			e.log.Warn("agent keeps its later deadline", slog.String("sandbox", m.id), slog.Any("error", err))
		}
	}
	return nil
}

func (m *member) setEnd(end time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.info.EndAt = end
	m.timer.Reset(time.Until(end))
}

// prolong tells the agent of a sandbox that is to end at end. The caller holds
// m.moving.
func (e *Engine) prolong(ctx context.Context, m *member, end time.Time) error {
	end = end.Add(agentSlack)
	if err := prolong(ctx, m.box, time.Until(end)); err != nil {
		return e.unheard(ctx, m, err)
	}
	m.mu.Lock()
	m.agentEnd = end
	m.mu.Unlock()
	return nil
}

// deathTime is how much later than a sandbox's connections its Done may end.
const deathTime = time.Second

// unheard is the error for a call that the agent of m did not answer: that it
// is gone, if it is, else err.
func (e *Engine) unheard(ctx context.Context, m *member, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var answered *statusError
	if !errors.As(err, &answered) {
		timer := time.NewTimer(deathTime)
		defer timer.Stop()
		select {
		case <-m.box.Done():
			e.gone(m)
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if _, gone := e.member(m.id); gone != nil {
		return gone
	}
	if errors.Is(err, context.DeadlineExceeded) {
		// Nothing that is asked of a hung sandbox would ever be answered.
		lost := Errorf(ErrLost, "sandbox %s is lost: its agent did not answer for %v", m.id, callTimeout)
		if err := e.finish(ctx, m, lost); err != nil && !errors.Is(err, ErrLost) {
			return err
		}
		return lost
	}
	// Not %w: what failed is the host's matter.
	return fmt.Errorf("set the deadline of sandbox %s: %v", m.id, err)
}

// Kill ends a sandbox and returns when nothing is left of it. ctx bounds the
// waiting only: the sandbox ends all the same.
func (e *Engine) Kill(ctx context.Context, id string) error {
	m, err := e.member(id)
	if err != nil {
		return err
	}
	return e.finish(ctx, m, errKilled)
}

// finish ends m because of cause and waits for it.
func (e *Engine) finish(ctx context.Context, m *member, cause error) error {
	if !e.bury(m, cause) {
		_, err := e.member(m.id)
		return err
	}
	go e.dispose(m)
	select {
	case <-m.ended:
		return m.closeErr
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// bury takes m out of the list and remembers why. It reports whether m was
// there: then the caller must dispose of it.
func (e *Engine) bury(m *member, cause error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.live[m.id] != m {
		return false
	}
	delete(e.live, m.id)
	e.graves.add(m.id, cause, time.Now())
	m.timer.Stop()
	e.closing++
	m.counted = true
	if !e.closed {
		// Close disposes of those that were still listed when it began itself.
		e.wg.Add(1)
		m.tracked = true
	}
	return true
}

// dispose closes the box of m, once; all callers wait for it.
func (e *Engine) dispose(m *member) error {
	m.closing.Do(func() {
		if err := m.box.Close(); err != nil {
			m.closeErr = fmt.Errorf("end sandbox %s: %w", m.id, err)
			e.log.Error("sandbox left something behind", slog.String("sandbox", m.id), slog.Any("error", err))
		}
		e.mu.Lock()
		if m.counted {
			e.closing--
		}
		tracked := m.tracked
		e.mu.Unlock()
		close(m.ended)
		e.lookAgain()
		if tracked {
			e.wg.Done()
		}
	})
	return m.closeErr
}

// expire is called by the clock of m.
func (e *Engine) expire(m *member) {
	m.mu.Lock()
	early := time.Now().Before(m.info.EndAt) // it was extended meanwhile
	m.mu.Unlock()
	if early || !e.bury(m, ErrExpired) {
		return
	}
	e.log.Info("sandbox expired", slog.String("sandbox", m.id))
	e.dispose(m)
}

// watch waits for the end of m, which it did not choose or which comes with
// its being closed.
func (e *Engine) watch(m *member) {
	defer e.wg.Done()
	<-m.box.Done()
	e.gone(m)
}

// gone takes a dead m out of where it is.
func (e *Engine) gone(m *member) {
	cause := lostBecause(m.box.Err())
	m.mu.Lock()
	if end := m.info.EndAt; !end.IsZero() && !time.Now().Before(end) {
		cause = ErrExpired // its agent was first
	}
	m.mu.Unlock()
	if !e.bury(m, cause) && !e.drop(m) {
		return
	}
	if errors.Is(cause, ErrLost) {
		e.log.Warn("sandbox lost", slog.String("sandbox", m.id), slog.Any("cause", cause))
	}
	e.dispose(m)
}
