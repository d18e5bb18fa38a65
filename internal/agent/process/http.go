//go:build linux

package process

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/e2b/process/processconnect"
)

const (
	defaultKeepalive = 90 * time.Second
	minKeepalive     = 10 * time.Millisecond
	// maxRequest bounds a request message in bytes.
	maxRequest = 16 << 20
)

// call is what a streaming request carries beside its message.
type call struct {
	timeout    time.Duration // 0: none
	timeoutErr error
	writer     *heldWriter
}

type callKey struct{}

// callOf returns the call that wrap put into ctx.
func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// wrap prepares requests for connect. It takes the timeout of streaming calls
// away, for connect would cut the stream at that moment, while ours still has
// an end event to tell. It reads their request to its end, which lets net/http
// notice a client that goes away, and a proxy before us answer in order. It
// turns compression of answers off: client and sandbox are near.
func wrap(next http.Handler) http.Handler {
	rejected := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{}
		body := r.Body
		r = r.WithContext(context.WithValue(r.Context(), callKey{}, c))
		r.Header = r.Header.Clone()
		for _, name := range []string{"Accept-Encoding", "Connect-Accept-Encoding", "Grpc-Accept-Encoding"} {
			r.Header.Del(name)
		}
		if r.URL.Path == processconnect.ProcessStartProcedure || r.URL.Path == processconnect.ProcessConnectProcedure {
			c.timeout, c.timeoutErr = parseTimeout(r.Header.Get(e2b.HeaderTimeout))
			r.Header.Del(e2b.HeaderTimeout)
			message, err := io.ReadAll(http.MaxBytesReader(w, body, maxRequest+5))
			if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
				_ = rejected.Write(w, r, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("request is larger than %d bytes; write large input to a file or to the process's stdin", maxRequest)))
				return
			} else if err != nil {
				return // the client is gone
			}
			r.Body = io.NopCloser(bytes.NewReader(message))
			c.writer = &heldWriter{ResponseWriter: w, held: true}
			w = c.writer
		}
		next.ServeHTTP(w, r)
	})
}

// parseTimeout reads Connect-Timeout-Ms. Empty and 0 mean none. Fractions pass:
// some clients compute the value from seconds.
func parseTimeout(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	ms, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(ms) || math.IsInf(ms, 0) || ms < 0 {
		return 0, fmt.Errorf("header %s: %.40q is not a number of milliseconds; 0 means no limit", e2b.HeaderTimeout, s)
	}
	if ms == 0 || ms > float64(math.MaxInt64/int64(time.Millisecond)) {
		return 0, nil
	}
	return max(1, time.Duration(ms*float64(time.Millisecond))), nil
}

// parseKeepalive reads Keepalive-Ping-Interval, in seconds.
func parseKeepalive(s string) time.Duration {
	seconds, err := strconv.ParseFloat(s, 64)
	if err != nil || !(seconds > 0) || seconds > math.MaxInt32 {
		return defaultKeepalive
	}
	return max(minKeepalive, time.Duration(seconds*float64(time.Second)))
}

// userOf reads the user from Authorization: Basic base64("USER:"). Empty means
// the default: other schemes are no business of ours.
func userOf(h http.Header) string {
	scheme, value, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Basic") {
		return ""
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(value))
	if err != nil {
		return ""
	}
	user, _, _ := strings.Cut(string(b), ":")
	return user
}

// heldWriter keeps the flushes of connect back while held, so that the events
// of a short command leave in one write. Not safe for concurrent use, as
// ResponseWriters are.
type heldWriter struct {
	http.ResponseWriter
	held bool
}

// Flush does nothing while held.
func (w *heldWriter) Flush() {
	if !w.held {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
	}
}

// Unwrap is for http.ResponseController.
func (w *heldWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// release flushes now and from now on.
func (w *heldWriter) release() {
	w.held = false
	w.Flush()
}
