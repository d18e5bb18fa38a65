package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/sandbox"
)

// keep answers with the built-in handler after it has noted the body.
func (p *platform) keep(into *string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		*into = string(b)
		p.serveControl(w, r)
	})
}

func TestCreateSends(t *testing.T) {
	for _, tt := range []struct {
		name string
		opts []sandbox.CreateOption
		want string
	}{
		{"defaults", nil, `{"templateID":"base","timeout":300,"secure":true}`},
		{"all", []sandbox.CreateOption{
			sandbox.Template("code-interpreter-v1"), sandbox.Timeout(90*time.Second + time.Millisecond),
			sandbox.Env(map[string]string{"A": "1", "B": "1"}), sandbox.Env(map[string]string{"B": "2"}),
			sandbox.Metadata(map[string]string{"k": "v"}), sandbox.Secure(false), sandbox.Isolation("namespace"),
			sandbox.AllowInternet(false), sandbox.AllowOut("a.test"), sandbox.DenyOut("10.0.0.0/8", "::/0"), sandbox.AutoPause(),
		}, `{"templateID":"code-interpreter-v1","timeout":91,"metadata":{"k":"v"},"envVars":{"A":"1","B":"2"},"secure":false,` +
			`"allow_internet_access":false,"autoPause":true,"network":{"allowOut":["a.test"],"denyOut":["10.0.0.0/8","::/0"]},"abx":{"isolation":"namespace"}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlatform()
			var body string
			p.control["POST /sandboxes"] = p.keep(&body)
			if _, err := p.client(t).Create(t.Context(), tt.opts...); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, body); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCreateTells(t *testing.T) {
	p := newPlatform()
	sb := p.sandbox(t)
	want := sandbox.Info{
		ID: testID, Template: "tpl", Domain: "sbx.example.test", AgentVersion: e2b.EnvdVersion, Isolation: "namespace",
		Notes: []string{"no cgroup"}, Network: "open", Limits: sandbox.Limits{MemoryBytes: 2 << 30},
	}
	if diff := cmp.Diff(want, sb.Info()); diff != "" {
		t.Error(diff)
	}
	if got, want := sb.Host(80), "80-"+testID+".sbx.example.test"; got != want {
		t.Errorf("Host: %q, want %q", got, want)
	}
	if got, want := sb.URL(80), "https://80-"+testID+".sbx.example.test"; got != want {
		t.Errorf("URL: %q, want %q", got, want)
	}
	for _, s := range []string{fmt.Sprintf("%+v", sb), fmt.Sprint(p.client(t)), fmt.Sprintf("%+v %#v", sandbox.Config{APIKey: testKey}, sandbox.Config{APIKey: testKey})} {
		if strings.Contains(s, testToken) || strings.Contains(s, testKey) {
			t.Errorf("a secret is shown: %s", s)
		}
	}
}

func TestTimeouts(t *testing.T) {
	p := newPlatform()
	c, sb := p.client(t), p.sandbox(t)
	ctx := t.Context()
	create := func(d time.Duration) error { _, err := c.Create(ctx, sandbox.Timeout(d)); return err }
	connect := func(d time.Duration) error { _, err := c.Connect(ctx, testID, sandbox.Timeout(d)); return err }
	run := func(d time.Duration) error { _, err := sb.Commands.Run(ctx, "x", sandbox.Timeout(d)); return err }
	for _, tt := range []struct {
		name string
		f    func(time.Duration) error
		d    time.Duration
		ok   bool
	}{
		{"create", create, time.Millisecond, true},
		{"create", create, 0, false},
		{"create", create, -time.Second, false},
		{"create", create, 1 << 62, false},
		{"connect", connect, 0, false},
		{"set", func(d time.Duration) error { return sb.SetTimeout(ctx, d) }, 0, true},
		{"set", func(d time.Duration) error { return sb.SetTimeout(ctx, d) }, -1, false},
		{"run", run, 0, true},
		{"run", run, 1500 * time.Microsecond, true},
		{"run", run, -1, false},
		{"run", run, 1 << 62, false},
	} {
		err := tt.f(tt.d)
		if tt.ok && err != nil || !tt.ok && !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s with %s: %v", tt.name, tt.d, err)
		}
	}
}

func TestLifecycle(t *testing.T) {
	p := newPlatform()
	var timeout, connect string
	p.control["POST /sandboxes/"+testID+"/timeout"] = p.keep(&timeout)
	p.control["POST /sandboxes/"+testID+"/connect"] = p.keep(&connect)
	c, ctx := p.client(t), t.Context()
	sb, err := c.Connect(ctx, testID, sandbox.Timeout(time.Minute))
	if err != nil || connect != `{"timeout":60}` {
		t.Fatalf("connect: %v, sent %s", err, connect)
	}
	if err := sb.SetTimeout(ctx, 0); err != nil || timeout != `{"timeout":0}` {
		t.Errorf("set timeout: %v, sent %s", err, timeout)
	}
	if info, err := c.Get(ctx, testID); err != nil || info.State != "running" || info.CPUs != 2 || info.Isolation != "namespace" {
		t.Errorf("get: %+v, %v", info, err)
	}
	if ok, err := sb.IsRunning(ctx); !ok || err != nil {
		t.Errorf("running: %t, %v", ok, err)
	}
	for name, f := range map[string]func(context.Context) error{"pause": sb.Pause, "kill": sb.Kill} {
		if err := f(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, call := range map[string]func() error{
		"unknown":    func() error { return c.Kill(ctx, "iother") },
		"unknown 2":  func() error { _, err := c.Connect(ctx, "iother"); return err },
		"not the id": func() error { _, err := c.Get(ctx, "iother"); return err },
	} {
		if err := call(); !errors.Is(err, sandbox.ErrNotFound) || errors.Is(err, sandbox.ErrExpired) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, id := range []string{"", "../x", "a/b", "a?b", "a b", "ä", strings.Repeat("x", 200)} {
		if err := c.Kill(ctx, id); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("id %q: %v", id, err)
		}
	}
}

// A handle whose sandbox is gone says so, on both planes.
func TestGone(t *testing.T) {
	p := newPlatform()
	sb := p.sandbox(t)
	for _, call := range []string{"POST /sandboxes/" + testID + "/timeout", "DELETE /sandboxes/" + testID} {
		p.control[call] = failing(http.StatusNotFound, "gone")
	}
	for _, call := range []string{"GET /health", "POST /process.Process/Start", "POST /process.Process/List", "GET /files", "POST /files", "POST /execute"} {
		p.agent[call] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			reply(w, http.StatusBadGateway, e2b.NotFoundError{SandboxID: testID, Message: e2b.MessageSandboxNotFound, Code: 502})
		})
	}
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"timeout": func() error { return sb.SetTimeout(ctx, time.Minute) },
		"kill":    func() error { return sb.Kill(ctx) },
		"run":     func() error { _, err := sb.Commands.Run(ctx, "true"); return err },
		"start":   func() error { _, err := sb.Commands.Start(ctx, "true"); return err },
		"list":    func() error { _, err := sb.Commands.List(ctx); return err },
		"read":    func() error { _, err := sb.Files.Read(ctx, "/f"); return err },
		"write":   func() error { return sb.Files.Write(ctx, "/f", []byte("x")) },
		"code":    func() error { _, err := sb.RunCode(ctx, "1"); return err },
	} {
		if err := call(); !errors.Is(err, sandbox.ErrExpired) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if ok, err := sb.IsRunning(ctx); ok || err != nil {
		t.Errorf("running: %t, %v", ok, err)
	}
}

func TestIsolationIsNeverLess(t *testing.T) {
	for _, tt := range []struct {
		ours bool
		ask  string
		ok   bool
	}{
		{true, "namespace", true}, {true, "auto", true}, {true, "gvisor", false},
		{false, "auto", true}, {false, "namespace", false},
	} {
		p := newPlatform()
		p.ours = tt.ours
		_, err := p.client(t).Create(t.Context(), sandbox.Isolation(tt.ask))
		if tt.ok && err != nil || !tt.ok && !errors.Is(err, sandbox.ErrUnsupported) {
			t.Errorf("ours %t, asked %s: %v", tt.ours, tt.ask, err)
		}
		if seen := p.seen(); !tt.ok && seen[len(seen)-1].Method != http.MethodDelete {
			t.Errorf("ours %t, asked %s: the sandbox was left alive", tt.ours, tt.ask)
		}
	}
}

func TestList(t *testing.T) {
	pages := func(n int, token func(int) string) http.Handler {
		page := 0
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			page++
			if next := token(page); next != "" {
				w.Header().Set("X-Next-Token", next)
			}
			reply(w, http.StatusOK, make([]e2b.ListedSandbox, n))
		})
	}
	three := func(page int) string { return map[int]string{1: "b", 2: "c"}[page] }
	for _, tt := range []struct {
		name  string
		serve http.Handler
		opts  []sandbox.ListOption
		want  int // -1: an error
		calls int
	}{
		{"three pages", pages(2, three), nil, 6, 3},
		{"limit inside the second", pages(2, three), []sandbox.ListOption{sandbox.Limit(3)}, 3, 2},
		{"empty", pages(0, func(int) string { return "" }), nil, 0, 1},
		{"the same page forever", pages(2, func(int) string { return "b" }), nil, -1, 2},
		{"empty pages forever", pages(0, func(n int) string { return fmt.Sprint(n) }), nil, -1, 1},
		{"negative limit", nil, []sandbox.ListOption{sandbox.Limit(-1)}, -1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlatform()
			p.control["GET /v2/sandboxes"] = tt.serve
			got, err := p.client(t).List(t.Context(), tt.opts...)
			if tt.want < 0 {
				if err == nil {
					t.Error("no error")
				}
			} else if err != nil || len(got) != tt.want {
				t.Errorf("%d sandboxes, %v; want %d", len(got), err, tt.want)
			}
			if n := len(p.seen()); n != tt.calls {
				t.Errorf("%d calls, want %d", n, tt.calls)
			}
		})
	}
}

// The filter is escaped twice: the server decodes the query value as a form and
// then each key and value again.
func TestListFilter(t *testing.T) {
	p := newPlatform()
	labels := map[string]string{"a b": "1&2=3", "ü": "%"}
	if _, err := p.client(t).List(t.Context(), sandbox.Metadata(labels), sandbox.State("running", "paused")); err != nil {
		t.Fatal(err)
	}
	query, err := url.ParseQuery(p.last(t, "/v2/sandboxes").Query)
	if err != nil {
		t.Fatal(err)
	}
	if got := query.Get("state"); got != "running,paused" {
		t.Errorf("state %q", got)
	}
	pairs, err := url.ParseQuery(query.Get("metadata"))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for k, v := range pairs {
		key, _ := url.QueryUnescape(k)
		got[key], _ = url.QueryUnescape(v[0])
	}
	if diff := cmp.Diff(labels, got); diff != "" {
		t.Error(diff)
	}
}

func TestNewClientRefuses(t *testing.T) {
	for name, cfg := range map[string]sandbox.Config{
		"nothing":       {},
		"no scheme":     {BaseURL: "api.example.test"},
		"other scheme":  {BaseURL: "ftp://example.test"},
		"a password":    {BaseURL: "https://user:secret@example.test"},
		"a query":       {BaseURL: "https://example.test?key=secret"},
		"bad URL":       {BaseURL: "https://secret\x7f"},
		"bad domain":    {Domain: "a/b"},
		"bad port":      {Domain: "a.test:x"},
		"key with \\n":  {Domain: "a.test", APIKey: "secret\n"},
		"sandbox URL":   {Domain: "a.test", SandboxURL: "a.test"},
		"domain by dot": {Domain: ".a.test"},
	} {
		_, err := sandbox.NewClient(cfg)
		if !errors.Is(err, sandbox.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Where requests for a sandbox go, and that they always carry its address.
func TestRouting(t *testing.T) {
	for _, tt := range []struct {
		name   string
		cfg    sandbox.Config
		domain string // in the answer
		want   string // host of the agent; empty: an error
	}{
		{"domain of the answer", sandbox.Config{Domain: "cfg.test"}, "answer.test:8443", "49983-" + testID + ".answer.test:8443"},
		{"domain of the config", sandbox.Config{Domain: "cfg.test"}, "", "49983-" + testID + ".cfg.test"},
		{"domain of the base URL", sandbox.Config{BaseURL: "https://api.cn.example"}, "", "49983-" + testID + ".cn.example"},
		{"sandbox URL", sandbox.Config{Domain: "cfg.test", SandboxURL: "http://one.test:1/"}, "answer.test", "one.test:1"},
		{"loopback", sandbox.Config{BaseURL: "http://127.0.0.1:3000"}, "", "127.0.0.1:3000"},
		{"no domain", sandbox.Config{BaseURL: "https://platform.test"}, "", ""},
		{"domain that is none", sandbox.Config{Domain: "cfg.test"}, "evil.test/x#", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlatform()
			p.domain = tt.domain
			c := p.client(t, func(cfg *sandbox.Config) {
				cfg.BaseURL, cfg.Domain, cfg.SandboxURL = tt.cfg.BaseURL, tt.cfg.Domain, tt.cfg.SandboxURL
			})
			sb, err := c.Create(t.Context())
			if tt.want == "" {
				if err == nil {
					t.Fatal("no error")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := sb.Commands.List(t.Context()); err != nil {
				t.Fatal(err)
			}
			r := p.last(t, "/process.Process/List")
			if r.Host != tt.want || r.Header.Get(e2b.HeaderSandboxID) != testID || r.Header.Get(e2b.HeaderSandboxPort) != "49983" {
				t.Errorf("host %q, headers %v; want host %q", r.Host, r.Header, tt.want)
			}
		})
	}
}

func TestBadAnswers(t *testing.T) {
	text := func(s string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) })
	}
	endless := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := io.WriteString(w, strings.Repeat(" ", 64<<10)); err != nil {
				return
			}
		}
	})
	for name, h := range map[string]http.Handler{
		"html": text("<html>"), "no id": text("{}"), "bad id": text(`{"sandboxID":"../../x"}`), "empty": text(""), "endless": endless,
		"cut": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "{")
			panic(http.ErrAbortHandler)
		}),
	} {
		p := newPlatform()
		p.control["POST /sandboxes"] = h
		_, err := p.client(t).Create(t.Context())
		var e *sandbox.Error
		if !errors.As(err, &e) || e.Op != "create sandbox" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
