package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
)

// A startingHost is a transport to a host that starts meanwhile: a request
// waits until the host is there. So the MCP server answers at once.
type startingHost struct {
	cancel context.CancelFunc
	ready  chan struct{} // closed when the rest is valid
	host   *Host
	err    error
}

// startHost begins to start a host and returns. Close it.
func startHost(newHost func(context.Context, HostOptions) (*Host, error), o HostOptions) *startingHost {
	ctx, cancel := context.WithCancel(context.Background())
	s := &startingHost{cancel: cancel, ready: make(chan struct{})}
	go func() {
		defer close(s.ready)
		s.host, s.err = newHost(ctx, o)
		if s.err != nil {
			s.err = &hostError{s.err}
		}
	}()
	return s
}

// RoundTrip waits for the host and hands the request to it.
func (s *startingHost) RoundTrip(r *http.Request) (*http.Response, error) {
	err := s.wait(r.Context())
	if err == nil {
		return s.host.Transport.RoundTrip(r)
	}
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return nil, err
}

// wait returns when the host is there, with why it is not.
func (s *startingHost) wait(ctx context.Context) error {
	select {
	case <-s.ready:
		return s.err
	default:
	}
	select {
	case <-s.ready:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// started reports whether the start is over, well or not.
func (s *startingHost) started() bool {
	select {
	case <-s.ready:
		return true
	default:
		return false
	}
}

// Close ends the start, or the host with all its sandboxes.
func (s *startingHost) Close() error {
	s.cancel()
	<-s.ready
	if s.host == nil || s.host.Close == nil {
		return nil
	}
	return s.host.Close()
}

// hostError is why no sandbox can run on this machine.
type hostError struct{ err error }

func (h *hostError) Error() string {
	return fmt.Sprintf("sandboxes cannot run on this machine: %v", h.err)
}

func (h *hostError) Unwrap() error { return h.err }

// Next is the cause's own next step, if it has one.
func (h *hostError) Next() string {
	var own interface{ Next() string }
	if errors.As(h.err, &own) {
		return own.Next()
	}
	var file *fs.PathError
	if errors.As(h.err, &file) && strings.Contains(filepath.ToSlash(file.Path), "/.abx") {
		return "Records of running sandboxes go there: set HOME to a folder that you may write, and start abx again."
	}
	return "Mend that and start abx again."
}
