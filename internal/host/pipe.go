package host

import (
	"io"
	"sync"
)

// pipeWindow is how many bytes of a reply wait for a client that is slower
// than the handler.
const pipeWindow = 64 << 10

// pipe carries the body of one reply from a handler to its client. A Write
// that fits the window returns at once; another waits for the reader and
// copies straight into its buffer, as does one that finds a reader waiting. So
// bytes are seen as they are written, a stalled client costs no more than
// the window, and bulk is copied once.
type pipe struct {
	mu       sync.Mutex
	changed  *sync.Cond
	buf      []byte // unread bytes are buf[off:]
	off      int
	want     []byte // a waiting reader's buffer
	got      int    // what was put into it
	writing  bool   // a Write waits; others queue behind it
	writeErr error  // no more comes: io.EOF, or why not
	readErr  error  // nobody reads any more
}

func newPipe() *pipe {
	p := &pipe{}
	p.changed = sync.NewCond(&p.mu)
	return p
}

// Read returns what is there, or waits.
func (p *pipe) Read(dst []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(dst) == 0 {
		return 0, nil
	}
	for {
		switch {
		case p.readErr != nil:
			return 0, p.readErr
		case p.off < len(p.buf):
			n := copy(dst, p.buf[p.off:])
			p.off += n
			if p.off == len(p.buf) {
				p.buf, p.off = p.buf[:0], 0
			}
			p.changed.Broadcast()
			return n, nil
		case p.writeErr != nil:
			return 0, p.writeErr
		case p.want != nil: // a second reader: no such use, but no harm either
			p.changed.Wait()
			continue
		}
		p.want, p.got = dst, 0
		p.changed.Broadcast()
		for p.got == 0 && p.writeErr == nil && p.readErr == nil {
			p.changed.Wait()
		}
		p.want = nil
		if p.got > 0 {
			return p.got, nil
		}
	}
}

// Write hands over src, of which nothing is kept.
func (p *pipe) Write(src []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.writing {
		p.changed.Wait()
	}
	for len(src) > 0 {
		if p.readErr != nil {
			return n, p.readErr
		}
		if p.writeErr != nil {
			return n, io.ErrClosedPipe
		}
		if p.want != nil && p.got == 0 && p.off == len(p.buf) {
			p.got = copy(p.want, src)
			src, n = src[p.got:], n+p.got
			p.changed.Broadcast()
			continue
		}
		if len(p.buf)-p.off+len(src) <= pipeWindow {
			p.keep(src)
			return n + len(src), nil
		}
		p.writing = true
		p.changed.Wait()
		p.writing = false
	}
	p.changed.Broadcast()
	return n, nil
}

// keep appends to the window, in place where that goes.
func (p *pipe) keep(src []byte) {
	if p.off > 0 && len(p.buf)+len(src) > cap(p.buf) {
		p.buf = p.buf[:copy(p.buf, p.buf[p.off:])]
		p.off = 0
	}
	p.buf = append(p.buf, src...)
	p.changed.Broadcast()
}

// finish ends the writing: readers get what is left, then err.
func (p *pipe) finish(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writeErr == nil {
		p.writeErr = err
		p.changed.Broadcast()
	}
}

// abandon ends the reading: what is left is dropped, both sides get err.
func (p *pipe) abandon(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.readErr == nil {
		p.readErr, p.buf, p.off = err, nil, 0
		p.changed.Broadcast()
	}
}
