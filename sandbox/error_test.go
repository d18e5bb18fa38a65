package sandbox_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/e2b/process"
	"github.com/agent-sandbox/abx/sandbox"
)

var sentinels = []error{
	sandbox.ErrNotFound, sandbox.ErrExpired, sandbox.ErrCapacity, sandbox.ErrUnauthorized, sandbox.ErrInvalid,
	sandbox.ErrUnsupported, sandbox.ErrConflict, sandbox.ErrLost, fs.ErrPermission, context.DeadlineExceeded, context.Canceled,
}

// wantOnly checks that err matches want (nil: none) and no other sentinel.
func wantOnly(t *testing.T, err, want error) {
	t.Helper()
	if err == nil {
		t.Error("no error")
		return
	}
	for _, s := range sentinels {
		if got := errors.Is(err, s); got != (s == want) {
			t.Errorf("%q matches %q: %t", err, s, got)
		}
	}
}

func TestStatuses(t *testing.T) {
	for _, tt := range []struct {
		status        int
		control, data error
	}{
		{400, sandbox.ErrInvalid, sandbox.ErrInvalid},
		{401, sandbox.ErrUnauthorized, sandbox.ErrUnauthorized},
		{403, sandbox.ErrUnauthorized, sandbox.ErrUnauthorized},
		{404, sandbox.ErrNotFound, sandbox.ErrNotFound},
		{409, sandbox.ErrConflict, sandbox.ErrConflict},
		{410, sandbox.ErrExpired, sandbox.ErrExpired},
		{413, sandbox.ErrInvalid, sandbox.ErrInvalid},
		{418, nil, nil},
		{429, sandbox.ErrCapacity, sandbox.ErrCapacity},
		{500, nil, nil},
		{501, sandbox.ErrUnsupported, sandbox.ErrUnsupported},
		{502, nil, sandbox.ErrExpired},
		{503, sandbox.ErrCapacity, sandbox.ErrLost},
		{507, sandbox.ErrCapacity, sandbox.ErrCapacity},
		{302, nil, nil},
	} {
		p := newPlatform()
		sb := p.sandbox(t)
		p.control["GET /sandboxes/"+testID] = failing(tt.status, "the server says so")
		p.agent["GET /files"] = failing(tt.status, "the server says so")
		_, err := p.client(t).Get(t.Context(), testID)
		wantOnly(t, err, tt.control)
		_, err2 := sb.Files.Read(t.Context(), "/f")
		wantOnly(t, err2, tt.data)
		for _, err := range []error{err, err2} {
			var e *sandbox.Error
			if !errors.As(err, &e) || e.Status != tt.status || e.SandboxID != testID || tt.status >= 400 && !strings.Contains(err.Error(), "the server says so") {
				t.Errorf("status %d: %q, %+v", tt.status, err, e)
			}
		}
	}
}

func TestConnectCodes(t *testing.T) {
	for code, want := range map[connect.Code]error{
		connect.CodeCanceled:           context.Canceled,
		connect.CodeUnknown:            nil,
		connect.CodeInvalidArgument:    sandbox.ErrInvalid,
		connect.CodeNotFound:           sandbox.ErrNotFound,
		connect.CodeAlreadyExists:      sandbox.ErrConflict,
		connect.CodePermissionDenied:   fs.ErrPermission,
		connect.CodeResourceExhausted:  sandbox.ErrCapacity,
		connect.CodeFailedPrecondition: sandbox.ErrConflict,
		connect.CodeAborted:            sandbox.ErrConflict,
		connect.CodeOutOfRange:         sandbox.ErrInvalid,
		connect.CodeUnimplemented:      sandbox.ErrUnsupported,
		connect.CodeInternal:           nil,
		connect.CodeUnavailable:        sandbox.ErrLost,
		connect.CodeDataLoss:           sandbox.ErrLost,
		connect.CodeUnauthenticated:    sandbox.ErrUnauthorized,
		connect.CodeDeadlineExceeded:   context.DeadlineExceeded,
	} {
		p := newPlatform()
		p.program["x"] = func(context.Context, *connect.Request[process.StartRequest], func(*process.ProcessEvent) error) error {
			return connect.NewError(code, errors.New("the agent says so"))
		}
		p.agent["POST /filesystem.Filesystem/Stat"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = connect.NewErrorWriter().Write(w, r, connect.NewError(code, errors.New("the agent says so")))
		})
		sb := p.sandbox(t)
		_, stream := sb.Commands.Run(t.Context(), "x")
		_, unary := sb.Files.Stat(t.Context(), "x")
		for _, err := range []error{stream, unary} {
			wantOnly(t, err, want)
			var e *sandbox.Error
			if !errors.As(err, &e) || e.Code != code.String() || !strings.Contains(err.Error(), "the agent says so") {
				t.Errorf("%s: %+v", code, err)
			}
		}
	}
}

func TestClosedPort(t *testing.T) {
	p := newPlatform()
	sb := p.sandbox(t)
	for _, call := range []string{"POST /execute", "POST /process.Process/Start"} {
		p.agent[call] = failing(http.StatusBadGateway, e2b.MessagePortClosed)
	}
	_, err := sb.RunCode(t.Context(), "1")
	wantOnly(t, err, sandbox.ErrUnsupported)
	_, err = sb.Commands.Run(t.Context(), "true")
	wantOnly(t, err, sandbox.ErrLost)
}

// The integer code in a body goes before the status; a body may be anything.
func TestErrorBodies(t *testing.T) {
	for _, tt := range []struct {
		name, kind, body string
		want             error
		text             string
	}{
		{"integer code", "application/json", `{"code":404,"message":"no such thing"}`, sandbox.ErrNotFound, "no such thing"},
		{"absurd code", "application/json", `{"code":7,"message":"x"}`, nil, "x"},
		{"plain text", "text/plain; charset=utf-8", "Context c9 not found\n", nil, "Context c9 not found"},
		{"html", "text/html", "<html>502</html>", nil, "HTTP status"},
		{"empty", "", "", nil, "HTTP status"},
		{"control characters", "application/json", `{"message":"a\u001b[31mb\nc\u0000"}`, nil, "a[31mb c"},
		{"the key", "application/json", `{"message":"bad key ` + testKey + `!"}`, nil, "bad key [redacted]!"},
		{"the token", "text/plain", "bad token " + testToken, nil, "bad token [redacted]"},
		{"long", "text/plain", strings.Repeat("é", 1<<20), nil, "ééé..."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlatform()
			sb := p.sandbox(t)
			p.agent["GET /contexts"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Type"] = []string{tt.kind}
				w.WriteHeader(http.StatusInternalServerError)
				_, _ = io.WriteString(w, tt.body)
			})
			_, err := sb.ListContexts(t.Context())
			wantOnly(t, err, tt.want)
			if !strings.Contains(err.Error(), tt.text) || strings.Contains(err.Error(), testKey) || strings.Contains(err.Error(), testToken) || len(err.Error()) > 3000 {
				t.Errorf("%.200q, want %q", err, tt.text)
			}
		})
	}
}

// refuses n times with 429 and then gives way.
func refuses(n int, after string, then http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n--; n >= 0 {
			if after != "" {
				w.Header().Set("Retry-After", after)
			}
			fail(w, http.StatusTooManyRequests, "slow down")
			return
		}
		then.ServeHTTP(w, r)
	})
}

func TestRetry(t *testing.T) {
	get := func(ctx context.Context, c *sandbox.Client, _ *sandbox.Sandbox) error {
		_, err := c.Get(ctx, testID)
		return err
	}
	for _, tt := range []struct {
		name    string
		refuse  int
		after   string
		call    string
		control bool
		f       func(context.Context, *sandbox.Client, *sandbox.Sandbox) error
		ok      bool
		calls   int
		waited  time.Duration
	}{
		{"get", 3, "2", "GET /sandboxes/" + testID, true, get, true, 4, 6 * time.Second},
		{"get too often", 4, "1", "GET /sandboxes/" + testID, true, get, false, 4, 3 * time.Second},
		{"no Retry-After", 1, "", "GET /sandboxes/" + testID, true, get, false, 1, 0},
		{"too long", 1, "3600", "GET /sandboxes/" + testID, true, get, false, 1, 0},
		{"create is not idempotent", 1, "1", "POST /sandboxes", true, func(ctx context.Context, c *sandbox.Client, _ *sandbox.Sandbox) error {
			_, err := c.Create(ctx)
			return err
		}, false, 1, 0},
		{"rpc", 1, "1", "POST /filesystem.Filesystem/ListDir", false, func(ctx context.Context, _ *sandbox.Client, sb *sandbox.Sandbox) error {
			_, err := sb.Files.List(ctx, "/")
			return err
		}, true, 2, time.Second},
		{"rpc that is not idempotent", 1, "1", "POST /filesystem.Filesystem/Move", false, func(ctx context.Context, _ *sandbox.Client, sb *sandbox.Sandbox) error {
			return sb.Files.Rename(ctx, "/f", "/g")
		}, false, 1, 0},
		{"read", 2, "1", "GET /files", false, func(ctx context.Context, _ *sandbox.Client, sb *sandbox.Sandbox) error {
			_, err := sb.Files.Read(ctx, "/f")
			return err
		}, true, 3, 2 * time.Second},
		{"run", 1, "1", "POST /process.Process/Start", false, func(ctx context.Context, _ *sandbox.Client, sb *sandbox.Sandbox) error {
			_, err := sb.Commands.Run(ctx, "true")
			return err
		}, false, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlatform()
				p.files["/f"] = []byte("x")
				sb := p.sandbox(t)
				before := len(p.seen())
				if tt.control {
					p.control[tt.call] = refuses(tt.refuse, tt.after, http.HandlerFunc(p.serveControl))
				} else {
					p.agent[tt.call] = refuses(tt.refuse, tt.after, http.HandlerFunc(p.serveAgent))
				}
				start := time.Now()
				err := tt.f(t.Context(), p.client(t), sb)
				if tt.ok && err != nil || !tt.ok && !errors.Is(err, sandbox.ErrCapacity) {
					t.Error(err)
				}
				if n := len(p.seen()) - before; n != tt.calls {
					t.Errorf("%d calls, want %d", n, tt.calls)
				}
				if d := time.Since(start); d != tt.waited {
					t.Errorf("waited %s, want %s", d, tt.waited)
				}
			})
		})
	}
}

// A wait for the next try ends with ctx, and a silent server with the request timeout.
func TestWaitsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlatform()
		p.files["/f"] = []byte("x")
		c, sb := p.client(t), p.sandbox(t)
		p.control["GET /sandboxes/"+testID] = refuses(9, "20", nil)
		p.agent["GET /files"] = refuses(9, "20", nil)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := c.Get(ctx, testID)
		wantOnly(t, err, context.DeadlineExceeded)
		ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err = sb.Files.Read(ctx, "/f")
		wantOnly(t, err, context.DeadlineExceeded)

		silent := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		for _, call := range []string{"POST /process.Process/Start", "POST /process.Process/List", "GET /files", "POST /filesystem.Filesystem/WatchDir", "GET /contexts"} {
			p.agent[call] = silent
		}
		p.control["GET /sandboxes/"+testID] = silent
		for name, call := range map[string]func() error{
			"get":      func() error { _, err := c.Get(t.Context(), testID); return err },
			"run":      func() error { _, err := sb.Commands.Run(t.Context(), "x"); return err },
			"list":     func() error { _, err := sb.Commands.List(t.Context()); return err },
			"read":     func() error { _, err := sb.Files.Read(t.Context(), "/f"); return err },
			"watch":    func() error { _, err := sb.Files.Watch(t.Context(), "/"); return err },
			"contexts": func() error { _, err := sb.ListContexts(t.Context()); return err },
		} {
			start := time.Now()
			err := call()
			wantOnly(t, err, context.DeadlineExceeded)
			if d := time.Since(start); d != time.Minute || err != nil && !strings.Contains(err.Error(), "no answer within 1m0s") {
				t.Errorf("%s: after %s: %v", name, d, err)
			}
		}
	})
}

// Secrets go where they belong and nowhere else, whatever is called.
func TestSecretsStayApart(t *testing.T) {
	p := newPlatform()
	p.files["/f"] = []byte("x")
	p.program["true"] = exits(0, "", "")
	p.code["1"] = lines(`{"type":"end_of_execution"}`)
	c, ctx := p.client(t), t.Context()
	sb := p.sandbox(t)
	_, _ = c.List(ctx)
	_, _ = c.Get(ctx, testID)
	_, _ = sb.Commands.Run(ctx, "true")
	_, _ = sb.Commands.List(ctx)
	_, _ = sb.Files.Read(ctx, "/f")
	_ = sb.Files.Write(ctx, "/g", nil)
	_, _ = sb.Files.List(ctx, "/")
	_, _ = sb.RunCode(ctx, "1")
	_, _ = sb.CreateContext(ctx)
	_, _ = sb.IsRunning(ctx)
	_ = sb.Kill(ctx)
	for _, r := range p.seen() {
		key, token := r.Header.Get(e2b.HeaderAPIKey), r.Header.Get(e2b.HeaderAccessToken)
		if control := r.Port == 0; control && (key != testKey || token != "") || !control && (key != "" || token != testToken) {
			t.Errorf("%s %s (port %d): key %q, token %q", r.Method, r.Path, r.Port, key, token)
		}
		if r.Header.Get("Accept-Encoding") != "identity" || r.Header.Get("User-Agent") != "abx-go" {
			t.Errorf("%s: headers %v", r.Path, r.Header)
		}
	}
}

// A redirect would take the key to another host.
func TestRedirectsAreNotFollowed(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the other host was called with %v", r.Header)
	}))
	defer other.Close()
	srv := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer srv.Close()
	c, err := sandbox.NewClient(sandbox.Config{BaseURL: srv.URL, APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Get(t.Context(), testID); err == nil || !strings.Contains(err.Error(), "redirect") {
		t.Error(err)
	}
}

// Where nobody listens nothing is lost; the text names the host.
func TestUnreachable(t *testing.T) {
	srv := httptest.NewServer(nil)
	p := newPlatform()
	sb := p.sandbox(t, func(c *sandbox.Config) {
		c.SandboxURL = srv.URL
		c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == "/sandboxes" {
				return memory{p}.RoundTrip(r)
			}
			return http.DefaultTransport.RoundTrip(r)
		})
	})
	srv.Close()
	_, err := sb.Commands.Run(t.Context(), "true")
	wantOnly(t, err, nil)
	if err == nil || !strings.Contains(err.Error(), strings.TrimPrefix(srv.URL, "http://")) {
		t.Error(err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
