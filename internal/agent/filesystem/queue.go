//go:build linux

package filesystem

import (
	"sync"

	pb "github.com/agent-sandbox/abx/internal/e2b/filesystem"
)

// An event is one change, named relative to the watched directory.
type event struct {
	name string
	kind pb.EventType
}

// lostEvents stands where events were lost; the package comment tells clients.
var lostEvents = event{name: ".", kind: pb.EventType_EVENT_TYPE_WRITE}

// Bounds of one queue.
const (
	maxQueued      = 32768
	maxQueuedBytes = 8 << 20 // of names
)

// A queue holds the events of one watch until the client takes them. It never
// blocks who fills it: what does not fit is lost, and that is told in order.
type queue struct {
	most int
	wake chan struct{} // holds a token when there may be something to take

	mu    sync.Mutex
	items []event
	bytes int
	lost  bool  // events after the last item were lost
	end   error // why no more will come, after the items
}

func newQueue(most int) *queue {
	return &queue{most: most, wake: make(chan struct{}, 1)}
}

// push adds e, unless it only repeats the last one.
func (q *queue) push(e event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end != nil {
		return
	}
	if n := len(q.items); n > 0 && !q.lost && q.items[n-1] == e && repeats(e.kind) {
		return
	}
	if len(q.items) >= q.most || q.bytes+len(e.name) > maxQueuedBytes {
		q.lost = true
		return
	}
	if q.lost {
		q.items, q.lost = append(q.items, lostEvents), false
	}
	q.items = append(q.items, e)
	q.bytes += len(e.name)
	q.signal()
}

// repeats reports whether two such events in a row tell no more than one.
func repeats(k pb.EventType) bool {
	return k == pb.EventType_EVENT_TYPE_WRITE || k == pb.EventType_EVENT_TYPE_CHMOD
}

// lose notes that events are missing from here on.
func (q *queue) lose() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end == nil {
		q.lost = true
		q.signal()
	}
}

// finish lets the queue end with err once it is empty. The first call counts.
func (q *queue) finish(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end == nil {
		q.end = err
		q.signal()
	}
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take returns all events so far, and the end when none will follow.
func (q *queue) take() ([]event, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	if q.lost {
		items = append(items, lostEvents)
	}
	q.items, q.bytes, q.lost = nil, 0, false
	return items, q.end
}
