package gateway

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	drainBytes = 1 << 20
	drainTime  = 2 * time.Second
)

// body is a request's body on its way into a sandbox. The port may answer
// before it has read all of it, and the sandbox may die while the client is
// silent; in both cases the handler must not return while somebody reads.
type body struct {
	from    io.ReadCloser
	control *http.ResponseController
	eof     atomic.Bool

	mu       sync.Mutex
	finished bool
}

// Read reads from the client.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	if err == io.EOF {
		b.eof.Store(true)
	}
	return n, err
}

// Close does nothing: finish closes.
func (b *body) Close() error { return nil }

// ended reports whether the body was read to its end.
func (b *body) ended() bool { return b.eof.Load() }

// abort ends a Read that waits for the client, and all later ones.
func (b *body) abort() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.finished { // else the connection is another request's
		b.control.SetReadDeadline(longAgo)
	}
}

var longAgo = time.Unix(1, 0)

// release leaves the body alone from here on: its connection is taken over.
func (b *body) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.finished = true
}

// finish closes; after it nobody reads. When there is a whole reply it reads
// what little may be left before, so that a client which still writes gets to
// read it.
func (b *body) finish(whole bool) {
	b.mu.Lock()
	released := b.finished
	b.mu.Unlock()
	if released {
		return
	}
	switch {
	case b.ended():
	case !whole:
		b.control.SetReadDeadline(longAgo)
	default:
		b.control.Flush() // the client may wait for it before it writes on
		b.control.SetReadDeadline(time.Now().Add(drainTime))
		if _, err := io.CopyN(io.Discard, b, drainBytes); err == io.EOF {
			b.control.SetReadDeadline(time.Time{})
		}
	}
	b.mu.Lock()
	b.finished = true
	b.mu.Unlock()
	b.from.Close()
}
