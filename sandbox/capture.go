package sandbox

import "slices"

// A capture keeps the first head and the last tail bytes of a stream in one
// buffer that grows with what comes, and counts all. What follows head is a
// ring once both are full.
type capture struct {
	head, tail int
	buf        []byte
	at         int // in the ring: where the oldest byte is
	total      int64
}

// newCapture keeps what s asks for.
func newCapture(s *callSettings) capture {
	if s.head+s.tail > 0 {
		return capture{head: s.head, tail: s.tail}
	}
	return capture{head: s.maxOutput - s.maxOutput/2, tail: s.maxOutput / 2}
}

func (c *capture) write(p []byte) {
	c.total += int64(len(p))
	if room := c.head + c.tail - len(c.buf); room > 0 {
		n := min(room, len(p))
		c.buf = append(c.buf, p[:n]...)
		p = p[n:]
	}
	if len(p) == 0 || c.tail == 0 {
		return
	}
	ring := c.buf[c.head:]
	if skip := len(p) - c.tail; skip > 0 {
		p = p[skip:]
		c.at = (c.at + skip) % c.tail
	}
	n := copy(ring[c.at:], p)
	copy(ring, p[n:])
	c.at = (c.at + len(p)) % c.tail
}

// result returns what was kept, in order, and how many bytes of it come before
// what was left out (all, when nothing was). total is the server's count, 0
// when it has none; it tells of bytes that the server left out itself.
func (c *capture) result(total int64) (kept []byte, head int, all int64) {
	if c.at > 0 {
		ring := c.buf[c.head:]
		slices.Reverse(ring[:c.at])
		slices.Reverse(ring[c.at:])
		slices.Reverse(ring)
		c.at = 0
	}
	all = max(total, c.total)
	if all > int64(len(c.buf)) {
		return c.buf, min(c.head, len(c.buf)), all
	}
	return c.buf, len(c.buf), all
}
