package session

import (
	"context"
	"sync"
	"time"
)

// A box is a sandbox of the session with what is known about its life.
type box[S Sandbox] struct {
	sandbox S
	id      string
	timeout time.Duration // that it was created with
	dying   bool          // guarded by Session.mu: no call may begin

	mu    sync.Mutex
	calls map[time.Time]int // how long each running call needs the sandbox
	next  *round            // the extension to send next
	busy  bool              // a goroutine sends extensions
}

// A round is one extension that several calls wait for.
type round struct {
	done chan struct{}
	err  error // valid after done
}

func (b *box[S]) hold(until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[until]++
}

func (b *box[S]) release(until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.calls[until]--; b.calls[until] <= 0 {
		delete(b.calls, until)
	}
}

// extend makes the sandbox live as long as its timeout from now, and as long
// as every running call needs it. Extensions of one sandbox are sent one after
// another, or a shorter one might arrive last; calls that come meanwhile share
// the next.
func (b *box[S]) extend(ctx context.Context, s *Session[S]) error {
	b.mu.Lock()
	if b.next == nil {
		b.next = &round{done: make(chan struct{})}
	}
	r := b.next
	if !b.busy {
		if !s.enter() {
			b.next = nil
			b.mu.Unlock()
			return ErrEnded
		}
		b.busy = true
		go b.send(s)
	}
	b.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send sends extensions until no call waits for one.
func (b *box[S]) send(s *Session[S]) {
	defer s.work.Done()
	for {
		b.mu.Lock()
		r := b.next
		b.next = nil
		if r == nil {
			b.busy = false
			b.mu.Unlock()
			return
		}
		d := b.timeout
		for until := range b.calls {
			d = max(d, time.Until(until))
		}
		b.mu.Unlock()
		ctx, cancel := context.WithTimeout(s.life, s.opts.CallTimeout)
		r.err = b.sandbox.SetTimeout(ctx, d)
		cancel()
		close(r.done)
	}
}
