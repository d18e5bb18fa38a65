//go:build linux

package process

import (
	"sync"
	"sync/atomic"

	"github.com/agent-sandbox/abx/internal/agent/output"
)

// The streams of a process.
const (
	streamOut = iota
	streamErr
	streamTTY
)

// watcherBytes is how much output waits for a watcher without a window; then
// the process waits.
const watcherBytes = 64 << 10

// chunk is a piece of one stream.
type chunk struct {
	stream int
	data   []byte
}

// watcher is one client that streams a job. The job's readers put, the
// client's own goroutine takes.
type watcher struct {
	windows []*output.Window // of streamOut and streamErr; nil: everything
	newest  atomic.Int32     // the stream that wrote last
	wake    chan struct{}    // one token when there is something to take

	mu     sync.Mutex
	room   sync.Cond // of mu: something was taken, or the watcher left
	queue  []chunk
	spare  []chunk  // the queue before, to be used again
	free   [][]byte // so are buffers
	queued int
	left   bool
}

func newWatcher(windows []*output.Window) *watcher {
	w := &watcher{windows: windows, wake: make(chan struct{}, 1)}
	w.room.L = &w.mu
	return w
}

// window returns the window of a stream; a terminal counts as standard output.
func (w *watcher) window(stream int) *output.Window {
	if w.windows == nil {
		return nil
	}
	return w.windows[stream%streamTTY]
}

// put queues a copy of p. Without a window it waits for room, so that a slow
// client slows its process; with one it never waits, and no more than the
// window's head is ever queued.
func (w *watcher) put(stream int, p []byte) {
	if win := w.window(stream); win != nil {
		w.newest.Store(int32(stream))
		if p = win.Write(p); len(p) == 0 {
			return
		}
	}
	w.mu.Lock()
	for w.windows == nil && w.queued > 0 && w.queued+len(p) > watcherBytes && !w.left {
		w.room.Wait()
	}
	if w.left {
		w.mu.Unlock()
		return
	}
	w.queued += len(p)
	if last := len(w.queue) - 1; last >= 0 && w.queue[last].stream == stream && len(w.queue[last].data)+len(p) <= pipeChunk {
		w.queue[last].data = append(w.queue[last].data, p...)
	} else {
		w.queue = append(w.queue, chunk{stream, append(w.buffer(), p...)})
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) buffer() []byte {
	if n := len(w.free); n > 0 {
		b := w.free[n-1]
		w.free = w.free[:n-1]
		return b[:0]
	}
	return nil
}

// take returns what is queued, in order. It is valid until the next take.
func (w *watcher) take() []chunk {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.spare {
		if len(w.free) < watcherBytes/pipeChunk+1 {
			w.free = append(w.free, c.data)
		}
	}
	w.queue, w.spare, w.queued = w.spare[:0], w.queue, 0
	w.room.Broadcast()
	return w.spare
}

// leave ends the watcher: nothing waits for it any more.
func (w *watcher) leave() {
	w.mu.Lock()
	w.left, w.queue = true, nil
	w.room.Broadcast()
	w.mu.Unlock()
	for _, win := range w.windows {
		_ = win.Close()
	}
}
