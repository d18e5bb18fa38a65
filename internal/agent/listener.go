//go:build linux

package agent

import (
	"context"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/agent-sandbox/abx/internal/control"
	"github.com/agent-sandbox/abx/internal/e2b"
)

// handoff is a net.Listener without an address: connections are put into it.
type handoff struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newHandoff() *handoff {
	return &handoff{conns: make(chan net.Conn), done: make(chan struct{})}
}

// put gives c to Accept; false when the listener is closed.
func (h *handoff) put(c net.Conn) bool {
	select {
	case h.conns <- c:
		return true
	case <-h.done:
		return false
	}
}

func (h *handoff) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handoff) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

func (h *handoff) Addr() net.Addr { return &net.UnixAddr{Name: "host", Net: "unix"} }

// dialing bounds a connection to a port inside, which is at once or never.
const dialing = 10 * time.Second

// connect returns one end of a connection to a port: a socket pair whose other
// end one of our own servers gets, or a TCP connection to what listens inside.
// The caller closes it.
func (s *server) connect(port int) (*os.File, error) {
	var to *handoff
	switch port {
	case e2b.PortAgent:
		to = s.envd
	case e2b.PortInterpreter:
		to = s.interpreterPort
	default:
		return dialInside(port)
	}
	ours, theirs, err := control.StreamPair()
	if err != nil {
		return nil, err
	}
	c, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, err
	}
	if !to.put(c) {
		c.Close()
		theirs.Close()
		return nil, net.ErrClosed
	}
	return theirs, nil
}

func dialInside(port int) (*os.File, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialing)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		// A server may listen on ::1 alone.
		c6, err6 := d.DialContext(ctx, "tcp", net.JoinHostPort("::1", strconv.Itoa(port)))
		if err6 != nil {
			return nil, err
		}
		c = c6
	}
	defer c.Close()
	return c.(*net.TCPConn).File()
}
