package tool

import (
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/agent-sandbox/abx/sandbox"
)

// A ticker tells a client how a long call goes, every so often, by itself: a
// quiet command is alive too. nil tells nothing.
type ticker struct {
	tell  func(Progress)
	start time.Time
	stop  chan struct{}
	done  sync.WaitGroup

	mu     sync.Mutex
	newest string
}

// startTicker begins to tell r's client. Stop it.
func startTicker(r Request, every time.Duration) *ticker {
	if r.Progress == nil {
		return nil
	}
	t := &ticker{tell: r.Progress, start: time.Now(), stop: make(chan struct{})}
	t.done.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				t.say()
			case <-t.stop:
				return
			}
		}
	})
	return t
}

func (t *ticker) say() {
	elapsed := time.Since(t.start)
	t.mu.Lock()
	newest := t.newest
	t.mu.Unlock()
	msg := fmt.Sprintf("running for %d s", int(elapsed.Seconds()))
	if newest != "" {
		msg += ": " + newest
	}
	t.tell(Progress{Elapsed: elapsed, Message: msg})
}

// leftovers are the terminal codes of a line whose escape characters the SDK
// has dropped.
var leftovers = regexp.MustCompile(`\[[0-9;]*[mK]`)

// listen makes the SDK tell the newest output.
func (t *ticker) listen() sandbox.CallOption {
	return sandbox.OnProgress(func(p sandbox.Progress) {
		line := clipText(leftovers.ReplaceAllString(p.NewestLine, ""))
		t.mu.Lock()
		defer t.mu.Unlock()
		if line != "" {
			t.newest = line
		}
	})
}

// Stop returns when nothing more will be told.
func (t *ticker) Stop() {
	if t == nil {
		return
	}
	close(t.stop)
	t.done.Wait()
}
