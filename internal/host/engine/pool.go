package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

const (
	// poolTick is how often the pool looks at itself without being asked.
	poolTick = 15 * time.Second
	// poolLease is how long the agent of an entry lets it wait for the host;
	// it is renewed at half of it.
	poolLease = 10 * time.Minute
	// poolRetry is the pause after a fill that failed; it doubles to poolTick.
	poolRetry = time.Second
)

// pool holds warmed sandboxes without an owner. Guarded by the Engine's lock.
type pool struct {
	waiting    []*member
	filling    context.CancelFunc // of the fill under way, or nil
	quietSince time.Time          // when the newest create ended
	retryAt    time.Time          // no fill before
	failures   int                // in a row
}

// pop takes the entry that waits longest, or nil. Dead ones are left to their
// watchers.
func (p *pool) pop() *member {
	i := slices.IndexFunc(p.waiting, alive)
	if i < 0 {
		return nil
	}
	m := p.waiting[i]
	p.waiting = slices.Delete(p.waiting, i, i+1)
	return m
}

func alive(m *member) bool {
	select {
	case <-m.box.Done():
		return false
	default:
		return true
	}
}

// shrink makes the pool, the entry that is being made included, fit into room
// places and returns what must be disposed of.
func (p *pool) shrink(room int) []*member {
	if over := len(p.waiting) - room; over > 0 {
		if p.filling != nil {
			p.filling()
		}
		out := slices.Clone(p.waiting[:over])
		p.waiting = slices.Delete(p.waiting, 0, over)
		return out
	}
	if p.filling != nil && len(p.waiting)+1 > room {
		p.filling()
	}
	return nil
}

// take empties the pool.
func (p *pool) take() []*member {
	if p.filling != nil {
		p.filling()
	}
	out := p.waiting
	p.waiting = nil
	return out
}

// lookAgain wakes the pool's keeper.
func (e *Engine) lookAgain() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// drop takes a dead entry out of the pool and reports whether it was there.
func (e *Engine) drop(m *member) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.Index(e.pool.waiting, m)
	if i < 0 {
		return false
	}
	e.pool.waiting = slices.Delete(e.pool.waiting, i, i+1)
	return true
}

// keepPool is the one goroutine that fills the pool.
func (e *Engine) keepPool() {
	defer e.wg.Done()
	timer := time.NewTimer(e.opts.RefillDelay)
	defer timer.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-e.wake:
		case <-timer.C:
		}
		timer.Reset(e.tendPool())
	}
}

// tendPool does one thing for the pool and says when to look again.
func (e *Engine) tendPool() time.Duration {
	e.renewLeases()
	free, ok := e.opts.FreeMemory()
	short := ok && free < e.opts.PoolFreeMemory

	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return poolTick
	}
	if short {
		surplus := e.pool.take()
		e.mu.Unlock()
		for _, m := range surplus {
			e.log.Info("memory is short; pool entry given up", slog.String("sandbox", m.id), slog.Int64("free", free))
			e.dispose(m)
		}
		return poolTick
	}
	pause := e.fillPause()
	if pause > 0 {
		e.mu.Unlock()
		return pause
	}
	// Nobody waits for a fill, so no caller's context bounds it: take does, at
	// the latest in Close.
	ctx, cancel := context.WithTimeout(context.Background(), e.opts.StartTimeout+warmTimeout)
	defer cancel()
	e.pool.filling = cancel
	e.mu.Unlock()
	return e.filled(e.fill(ctx))
}

// fillPause is how long not to fill; 0 to fill now. The caller holds e.mu.
func (e *Engine) fillPause() time.Duration {
	now := time.Now()
	used := len(e.live) + len(e.creates) + e.closing + len(e.pool.waiting)
	if len(e.pool.waiting) >= e.opts.PoolSize || used >= e.opts.MaxSandboxes || len(e.creates) > 0 {
		return poolTick // a claim, an end or the end of a create wakes us
	}
	if d := e.pool.quietSince.Add(e.opts.RefillDelay).Sub(now); d > 0 {
		return d
	}
	return max(0, e.pool.retryAt.Sub(now))
}

// filled notes how a fill went and says when to look again.
func (e *Engine) filled(err error) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pool.filling = nil
	if err == nil {
		e.pool.failures = 0
		return time.Millisecond
	}
	if errors.Is(err, context.Canceled) {
		return poolTick
	}
	pause := min(poolTick, poolRetry<<min(e.pool.failures, 10))
	e.pool.failures++
	e.pool.retryAt = time.Now().Add(pause)
	e.log.Warn("pool entry could not be made", slog.Any("error", err), slog.Duration("retry", pause))
	return pause
}

// fill makes one entry. An entry whose warm-up was answered, with whatever
// error (there may be no Python on this host), is kept: its agent works. One
// that did not answer is not.
func (e *Engine) fill(ctx context.Context) error {
	m, err := e.start(ctx, e.opts.PoolTemplate)
	if err != nil {
		return err
	}
	m.agentEnd = time.Now().Add(poolLease)
	err = configure(ctx, m.box, Request{}, "", poolLease)
	if err == nil {
		err = warm(ctx, m.box)
	}
	var answered *statusError
	if errors.As(err, &answered) && answered.path != initPath {
		e.log.Warn("pool entry is not warm", slog.String("sandbox", m.id), slog.Any("error", err))
		err = nil
	}
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		e.dispose(m)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("prepare sandbox %s: %w", m.id, err)
	}
	return e.shelve(ctx, m)
}

// shelve puts m into the pool if there is still room for it.
func (e *Engine) shelve(ctx context.Context, m *member) error {
	e.mu.Lock()
	used := len(e.live) + len(e.creates) + e.closing + len(e.pool.waiting)
	if e.closed || ctx.Err() != nil || used >= e.opts.MaxSandboxes {
		e.mu.Unlock()
		e.dispose(m)
		return context.Canceled
	}
	e.pool.waiting = append(e.pool.waiting, m)
	e.wg.Add(1)
	go e.watch(m)
	e.mu.Unlock()
	return nil
}

// renewLeases moves the agents' deadlines of entries that wait long. An entry
// that does not answer is dropped.
func (e *Engine) renewLeases() {
	e.mu.Lock()
	due := slices.DeleteFunc(slices.Clone(e.pool.waiting), func(m *member) bool {
		return time.Until(m.agentEnd) > poolLease/2
	})
	// While it is renewed nobody can claim it: a claim would set a deadline of
	// its own at the same time.
	e.pool.waiting = slices.DeleteFunc(e.pool.waiting, func(m *member) bool { return slices.Contains(due, m) })
	e.mu.Unlock()
	for _, m := range due {
		err := e.renew(m)
		e.mu.Lock()
		keep := err == nil && !e.closed && alive(m)
		if keep {
			m.agentEnd = time.Now().Add(poolLease)
			e.pool.waiting = append(e.pool.waiting, m)
		}
		e.mu.Unlock()
		if !keep {
			e.log.Warn("pool entry does not answer", slog.String("sandbox", m.id), slog.Any("error", err))
			e.dispose(m)
		}
	}
}

// renew is one call of renewLeases, which Close cuts short.
func (e *Engine) renew(m *member) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- prolong(ctx, m.box, poolLease) }()
	select {
	case err := <-done:
		return err
	case <-e.stop:
		cancel()
		return <-done
	}
}
