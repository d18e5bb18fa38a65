package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// Limits on what a server may make the client hold.
const (
	maxJSON      = 16 << 20 // one JSON answer or message
	maxErrorBody = 64 << 10
	maxRetries   = 3
	maxRetryWait = 30 * time.Second // a longer Retry-After is given back
)

var identity = []string{"identity"}

// request builds a request for base+path. A body of nil is none; size -1 is
// unknown. Redirects are never followed and no URL ends up in an error, since
// requests go to the transport without an [http.Client].
func (c *Client) request(ctx context.Context, method string, base *url.URL, path, query string, body io.Reader, size int64) *http.Request {
	u := *base
	u.Path += path
	u.RawQuery = query
	r := &http.Request{
		Method: method, URL: &u, Host: u.Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: make(http.Header, 8),
	}
	r.Header["User-Agent"] = c.userAgent
	r.Header["Accept-Encoding"] = identity
	if body != nil && size != 0 {
		rc, ok := body.(io.ReadCloser)
		if !ok {
			rc = io.NopCloser(body)
		}
		r.Body, r.ContentLength = rc, size
	}
	return r.WithContext(ctx)
}

// exchange sends one call to the control plane and decodes its answer into out
// (nil: dropped).
func (c *Client) exchange(ctx context.Context, method, path, query string, in, out any) (http.Header, error) {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return nil, &Error{Message: "encode request", cause: err}
		}
	}
	r := c.request(ctx, method, c.control, path, query, bytes.NewReader(body), int64(len(body)))
	if in != nil {
		r.Header["Content-Type"] = jsonType
	}
	if c.keyHeaders != nil {
		r.Header[e2b.HeaderAPIKey] = c.keyHeaders
	}
	resp, err := c.transport.RoundTrip(r)
	if err != nil {
		return nil, &Error{Message: "reach " + c.control.Host + ": " + c.redact(err.Error()), cause: err}
	}
	defer drain(resp.Body)
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, c.answerError(resp, 0)
	}
	if out == nil {
		return resp.Header, nil
	}
	return resp.Header, decode(resp.Body, out)
}

var jsonType = []string{"application/json"}

// call is exchange with the client's request timeout, retries for idempotent
// calls, and op and id in the error.
func (c *Client) call(ctx context.Context, op, id, method, path, query string, in, out any, idempotent bool) (http.Header, error) {
	var h http.Header
	err := c.bounded(ctx, op, id, idempotent, func(ctx context.Context) (err error) {
		h, err = c.exchange(ctx, method, path, query, in, out)
		return err
	})
	return h, err
}

// bounded runs f within the request timeout and, when again is set, once more
// after each 429 that says when, up to three times. Its error names op and id.
func (c *Client) bounded(ctx context.Context, op, id string, again bool, f func(context.Context) error) error {
	inner := ctx
	if c.timeout > 0 {
		var cancel context.CancelFunc
		inner, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	for try := 0; ; try++ {
		err := f(inner)
		if err == nil {
			return nil
		}
		e := c.explain(ctx, op, id, err)
		if !again || try == maxRetries || e.Status != http.StatusTooManyRequests || e.RetryAfter == 0 || e.RetryAfter > maxRetryWait {
			return e
		}
		t := time.NewTimer(e.RetryAfter)
		select {
		case <-t.C:
		case <-inner.Done():
			t.Stop()
			return c.explain(ctx, op, id, inner.Err())
		}
	}
}

// explain makes err, from any layer, an *Error about op and id. When ctx (the
// caller's) has ended that is the cause, whatever err says.
func (c *Client) explain(ctx context.Context, op, id string, err error) *Error {
	if cause := ctx.Err(); cause != nil {
		return &Error{Op: op, SandboxID: id, Message: cause.Error(), cause: cause}
	}
	var e *Error
	if errors.As(err, &e) && !isTimeout(e.cause) {
		e.Op, e.SandboxID = op, id
		return e
	}
	if isTimeout(err) {
		return &Error{Op: op, SandboxID: id, cause: context.DeadlineExceeded,
			Message: fmt.Sprintf("no answer within %s", c.timeout)}
	}
	e = &Error{Op: op, SandboxID: id, Message: c.redact(err.Error()), cause: err}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return e
	}
	e.Message = c.redact(ce.Message())
	if connect.IsWireError(err) {
		e.Code = ce.Code().String()
		e.kinds[0] = codeKinds[ce.Code()]
		e.cause = nil
	}
	return e
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// answerError reads what an answer other than success says. port is 0 for the
// control plane.
func (c *Client) answerError(resp *http.Response, port int) *Error {
	e := &Error{Status: resp.StatusCode, RetryAfter: retryAfter(resp.Header, time.Now()), size: wholeSize(resp.Header)}
	data, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	var body struct {
		Code    json.RawMessage `json:"code"`
		Message string          `json:"message"`
	}
	if err := json.Unmarshal(data, &body); err == nil {
		e.Message = body.Message
		var n int
		var code connect.Code
		var text string
		if json.Unmarshal(body.Code, &n) == nil && n >= 400 && n <= 599 {
			e.Status = n
		} else if json.Unmarshal(body.Code, &text) == nil && code.UnmarshalText([]byte(text)) == nil {
			e.Code = text
			e.kinds[0] = codeKinds[code]
		}
	} else if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "text/plain" || kind == "" {
		e.Message = string(data)
	}
	e.Message = c.redact(e.Message)
	switch {
	case e.Status >= 300 && e.Status <= 399:
		e.Message = "the server redirects to another address; redirects are not followed, set the address it means"
	case port != 0 && resp.StatusCode == http.StatusBadGateway:
		e.kinds[0] = gatewayKind(port, e.Message)
	case e.kinds[0] == nil && port != 0 && e.Status == http.StatusServiceUnavailable:
		e.kinds[0] = ErrLost
	case e.kinds[0] == nil:
		e.kinds[0] = statusKinds[e.Status]
	}
	if e.Message == "" && e.kinds[0] == nil {
		e.Message = "HTTP status " + resp.Status
	}
	return e
}

// redact takes the client's secret out of a text of others and makes the text
// fit to be shown.
func (c *Client) redact(s string) string {
	if len(c.key) >= 4 {
		s = strings.ReplaceAll(s, c.key, "[redacted]")
	}
	return oneLine(s)
}

// transportError says what a failed round trip to a sandbox means: when the
// sandbox could not even be reached nothing was lost.
func (c *Client) transportError(host string, err error) error {
	if isTimeout(err) {
		return err
	}
	e := &Error{Message: "reach " + host + ": " + c.redact(err.Error()), cause: err}
	var dial *net.OpError
	var dns *net.DNSError
	if (errors.As(err, &dial) && dial.Op == "dial") || errors.As(err, &dns) {
		return e
	}
	e.kinds[0] = ErrLost
	return e
}

// readAll reads r to its end, at most limit bytes.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, &Error{Message: "read the answer: " + oneLine(err.Error()), kinds: [2]error{ErrLost}, cause: err}
	}
	if int64(len(data)) > limit {
		return nil, &Error{Message: fmt.Sprintf("the answer is larger than %d MiB", limit>>20)}
	}
	return data, nil
}

func decode(r io.Reader, out any) error {
	data, err := readAll(r, maxJSON)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return &Error{Message: "the answer is not the JSON of this protocol: check the address", cause: err}
	}
	return nil
}

// drain closes a body after reading a little rest, so that its connection can
// be used again.
func drain(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 4<<10)
	_ = body.Close()
}
