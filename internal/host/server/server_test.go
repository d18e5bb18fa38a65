package server_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/driver/drivertest"
	"github.com/agent-sandbox/abx/internal/host/engine"
	"github.com/agent-sandbox/abx/internal/host/server"
)

type rig struct {
	t      *testing.T
	fake   *drivertest.Fake
	engine *engine.Engine
	server *server.Server
	log    bytes.Buffer
}

func newRig(t *testing.T, eo engine.Options, so server.Options) *rig {
	t.Helper()
	r := &rig{t: t, fake: &drivertest.Fake{}}
	if eo.Limits == (engine.Limits{}) {
		eo.Limits = engine.DefaultLimits()
	}
	eo.FreeMemory = func() (int64, bool) { return 0, false }
	e, err := engine.New(r.fake, eo)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	so.Logger = slog.New(slog.NewTextHandler(&r.log, nil))
	r.engine, r.server = e, server.New(e, so)
	return r
}

func (r *rig) do(method, target, body string) *httptest.ResponseRecorder {
	req := httptest.NewRequestWithContext(r.t.Context(), method, target, strings.NewReader(body))
	rec := httptest.NewRecorder()
	r.server.ServeHTTP(rec, req)
	return rec
}

func read[T any](t *testing.T, rec *httptest.ResponseRecorder) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(rec.Body.Bytes(), &v); err != nil {
		t.Fatalf("%d %s: %v", rec.Code, rec.Body, err)
	}
	return v
}

func (r *rig) create(body string) e2b.Sandbox {
	r.t.Helper()
	rec := r.do("POST", "/sandboxes", body)
	if rec.Code != 201 {
		r.t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	return read[e2b.Sandbox](r.t, rec)
}

func TestCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, engine.Options{}, server.Options{Domain: "sbx.test:8443"})
		r.fake.Gives = &engine.Isolation{Tier: "namespace", Notes: []string{"No memory limit here."}, ProcessesEnforced: true}
		// What SDKs send.
		body := `{"templateID":"base","timeout":300,"metadata":{"a":"b"},"envVars":{"K":"V"},"secure":true,` +
			`"allow_internet_access":true,"autoPause":false,"mcp":null,"network":{"denyOut":["0.0.0.0/0"]},"unknown":[1]}`
		got := r.create(body)
		domain := "sbx.test:8443"
		want := e2b.Sandbox{
			TemplateID: "base", SandboxID: got.SandboxID, ClientID: got.ClientID, EnvdVersion: e2b.EnvdVersion, Alias: "base",
			EnvdAccessToken: got.EnvdAccessToken, Domain: &domain,
			Abx: &e2b.SandboxAbx{
				Isolation: "namespace", Notes: []string{"No memory limit here."}, Network: "none",
				Limits: &e2b.Limits{DiskBytes: 1 << 30, Processes: 512, OpenFiles: 4096},
			},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if got.EnvdAccessToken == "" || !e2b.ValidID(got.SandboxID) {
			t.Errorf("%+v", got)
		}
		init := r.fake.Find(got.SandboxID).Inits()[0]
		if init.EnvVars["K"] != "V" || *init.AccessToken != got.EnvdAccessToken || init.Abx.LifetimeMS != 330_000 {
			t.Errorf("init %+v", init)
		}
		detail := read[e2b.SandboxDetail](t, r.do("GET", "/sandboxes/"+got.SandboxID, ""))
		wantDetail := e2b.SandboxDetail{
			ListedSandbox: e2b.ListedSandbox{
				TemplateID: "base", SandboxID: got.SandboxID, ClientID: got.ClientID, Alias: "base",
				StartedAt: time.Now().UTC(), EndAt: time.Now().Add(5 * time.Minute).UTC(),
				CPUCount: runtime.NumCPU(), MemoryMB: 2048, DiskSizeMB: 1024,
				State: "running", EnvdVersion: e2b.EnvdVersion, Metadata: map[string]string{"a": "b"},
			},
			EnvdAccessToken: got.EnvdAccessToken, Domain: &domain,
			Lifecycle: &e2b.Lifecycle{OnTimeout: "kill"}, Abx: want.Abx,
		}
		if diff := cmp.Diff(wantDetail, detail); diff != "" {
			t.Errorf("detail (-want +got)\n%s", diff)
		}
	})
}

func TestGenerations(t *testing.T) {
	yes, no := "true", "false"
	tests := []struct {
		path, secure string
		always       bool
		token        bool
		timeout      time.Duration
	}{
		{"/sandboxes", "", false, false, 15 * time.Second},
		{"/sandboxes", yes, false, true, 15 * time.Second},
		{"/sandboxes", no, true, false, 15 * time.Second},
		{"/sandboxes", "", true, true, 15 * time.Second},
		{"/v2/sandboxes", "", false, true, 300 * time.Second},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, engine.Options{}, server.Options{Secure: tt.always})
			body := `{"templateID":"base"}`
			if tt.secure != "" {
				body = `{"templateID":"base","secure":` + tt.secure + `}`
			}
			rec := r.do("POST", tt.path, body)
			got := read[e2b.Sandbox](t, rec)
			if rec.Code != 201 || (got.EnvdAccessToken != "") != tt.token || got.Domain != nil {
				t.Errorf("%s %s: %d %s", tt.path, body, rec.Code, rec.Body)
			}
			if !strings.Contains(rec.Body.String(), `"domain":null`) {
				t.Errorf("domain is not null: %s", rec.Body)
			}
			if info, _ := r.engine.Get(got.SandboxID); info.EndAt.Sub(info.StartedAt) != tt.timeout {
				t.Errorf("%s lives %v", tt.path, info.EndAt.Sub(info.StartedAt))
			}
		})
	}
}

func TestPrivatePortsAndMask(t *testing.T) {
	r := newRig(t, engine.Options{}, server.Options{})
	got := r.create(`{"templateID":"base","network":{"allowPublicTraffic":false,"maskRequestHost":"localhost:${PORT}"}}`)
	info, err := r.engine.Get(got.SandboxID)
	if err != nil || got.TrafficAccessToken == nil || *got.TrafficAccessToken != info.TrafficToken || info.TrafficToken == "" {
		t.Errorf("%+v, %v", got, err)
	}
	if info.MaskHost != "localhost:${PORT}" {
		t.Errorf("mask %q", info.MaskHost)
	}
}

func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, engine.Options{}, server.Options{})
		id := r.create(`{"templateID":"base","timeout":60,"secure":true}`).SandboxID
		left := func() time.Duration {
			info, err := r.engine.Get(id)
			if err != nil {
				t.Fatal(err)
			}
			return time.Until(info.EndAt)
		}
		steps := []struct {
			path, body string
			status     int
			left       time.Duration
		}{
			{"/sandboxes/%s/timeout", `{"timeout":30}`, 204, 30 * time.Second},
			{"/sandboxes/%s/connect", `{"timeout":10}`, 200, 30 * time.Second},
			{"/sandboxes/%s/connect", `{"timeout":0}`, 200, 30 * time.Second},
			{"/sandboxes/%s/connect", `{"timeout":100}`, 200, 100 * time.Second},
			{"/sandboxes/%s/refreshes", `{"duration":200}`, 204, 200 * time.Second},
			{"/sandboxes/%s/refreshes", ``, 204, 200 * time.Second},
			{"/v2/sandboxes/%s/connect", ``, 200, 300 * time.Second},
			{"/v2/sandboxes/%s/connect", `{"memory":false}`, 200, 300 * time.Second},
			{"/v2/sandboxes/%s/connect", `{"timeout":400}`, 200, 400 * time.Second},
		}
		for _, s := range steps {
			rec := r.do("POST", fmt.Sprintf(s.path, id), s.body)
			if rec.Code != s.status || left() != s.left {
				t.Errorf("%s %s: %d %s, left %v", s.path, s.body, rec.Code, rec.Body, left())
			}
			if rec.Code == 200 {
				info, _ := r.engine.Get(id)
				if got := read[e2b.Sandbox](t, rec); got.SandboxID != id || got.EnvdAccessToken != info.AccessToken {
					t.Errorf("connect: %+v", got)
				}
			} else if rec.Body.Len() != 0 {
				t.Errorf("body %q", rec.Body)
			}
		}
		if rec := r.do("POST", "/sandboxes/"+id+"/timeout", `{"timeout":0}`); rec.Code != 204 {
			t.Errorf("expire now: %d", rec.Code)
		}
		rec := r.do("DELETE", "/sandboxes/"+id, "")
		if rec.Code != 404 || rec.Header().Get(e2b.HeaderReason) != "expired" || !strings.Contains(rec.Body.String(), "expired at") {
			t.Errorf("%d %v %s", rec.Code, rec.Header(), rec.Body)
		}
		other := r.create(`{"templateID":"base"}`).SandboxID
		if rec := r.do("DELETE", "/sandboxes/"+other, ""); rec.Code != 204 || len(r.fake.Live()) != 0 {
			t.Errorf("kill: %d", rec.Code)
		}
		if rec := r.do("GET", "/health", ""); rec.Code != 204 {
			t.Errorf("health: %d", rec.Code)
		}
	})
}

func TestCapacity(t *testing.T) {
	r := newRig(t, engine.Options{MaxSandboxes: 1}, server.Options{})
	r.create(`{"templateID":"base"}`)
	rec := r.do("POST", "/sandboxes", `{"templateID":"base"}`)
	if got := read[e2b.Error](t, rec); rec.Code != 429 || got.Code != 429 || !strings.Contains(got.Message, "max_sandboxes") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if rec.Header().Get("Retry-After") != "" {
		t.Error("SDKs would retry in vain")
	}
}

func TestUnknownErrorStaysInside(t *testing.T) {
	r := newRig(t, engine.Options{}, server.Options{})
	r.fake.Init = func(engine.Spec, e2b.Init) error { return errors.New("secret detail") }
	rec := r.do("POST", "/sandboxes", `{"templateID":"base"}`)
	got := read[e2b.Error](t, rec)
	m := regexp.MustCompile(`^internal error \(id ([a-z0-9]{12}) in the log\)$`).FindStringSubmatch(got.Message)
	if rec.Code != 500 || m == nil {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	if log := r.log.String(); !strings.Contains(log, m[1]) || !strings.Contains(log, "secret detail") {
		t.Errorf("log %s", log)
	}
}

// encodeMetadata does what SDKs do: percent-encode, form-encode, query-encode.
func encodeMetadata(m map[string]string) string {
	form := url.Values{}
	component := func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
	for k, v := range m {
		form.Set(component(k), component(v))
	}
	return url.Values{"metadata": {form.Encode()}}.Encode()
}

func TestListFilters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, engine.Options{}, server.Options{})
		odd := map[string]string{"sp ace": "a&b=c", "plus+": "100%", "ünï": "é"}
		data, _ := json.Marshal(map[string]any{"templateID": "base", "metadata": odd, "timeout": 3600})
		first := r.create(string(data)).SandboxID
		begin := time.Now()
		time.Sleep(time.Minute)
		second := r.create(`{"templateID":"code-interpreter-v1","metadata":{"x":"y"},"timeout":3600}`).SandboxID
		tests := []struct {
			query string
			want  []string
		}{
			{"", []string{second, first}},
			{"order=asc", []string{first, second}},
			{"order=desc", []string{second, first}},
			{"state=running", []string{second, first}},
			{"state=running,paused", []string{second, first}},
			{"state=running&state=paused", []string{second, first}},
			{"state=paused", nil},
			{"template=base", []string{first}},
			{"startedAfter=" + url.QueryEscape(begin.UTC().Format(time.RFC3339)), []string{second}},
			{encodeMetadata(odd), []string{first}},
			{encodeMetadata(map[string]string{"sp ace": "a&b=c"}), []string{first}},
			{encodeMetadata(map[string]string{"x": "y"}), []string{second}},
			{encodeMetadata(map[string]string{"x": "y", "sp ace": "a&b=c"}), nil},
			{encodeMetadata(map[string]string{"x": "z"}), nil},
		}
		for _, tt := range tests {
			rec := r.do("GET", "/v2/sandboxes?"+tt.query, "")
			var got []string
			for _, s := range read[[]e2b.ListedSandbox](t, rec) {
				got = append(got, s.SandboxID)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || rec.Header().Get("X-Next-Token") != "" || rec.Header().Get("X-Total-Running") != "2" {
				t.Errorf("%s: %v\n%s", tt.query, rec.Header(), diff)
			}
			if strings.HasPrefix(tt.query, "metadata") {
				if old := read[[]e2b.ListedSandbox](t, r.do("GET", "/sandboxes?"+tt.query, "")); len(old) != len(tt.want) {
					t.Errorf("v1 %s: %d", tt.query, len(old))
				}
			}
		}
		if body := strings.TrimSpace(r.do("GET", "/v2/sandboxes?state=paused", "").Body.String()); body != "[]" {
			t.Errorf("empty list is %s", body)
		}
	})
}

func TestListPages(t *testing.T) {
	for _, order := range []string{"asc", "desc"} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, engine.Options{}, server.Options{})
			want := map[string]bool{}
			for i := range 23 {
				if i%3 == 0 {
					time.Sleep(time.Second) // some start at the same time
				}
				want[r.create(`{"templateID":"base","timeout":3600}`).SandboxID] = true
			}
			seen := map[string]bool{}
			var last time.Time
			token, pages := "", 0
			for {
				rec := r.do("GET", "/v2/sandboxes?limit=5&order="+order+"&nextToken="+token, "")
				for _, s := range read[[]e2b.ListedSandbox](t, rec) {
					if seen[s.SandboxID] {
						t.Errorf("%s twice", s.SandboxID)
					}
					if !last.IsZero() && !s.StartedAt.Equal(last) && s.StartedAt.After(last) != (order == "asc") {
						t.Errorf("%v after %v", s.StartedAt, last)
					}
					seen[s.SandboxID], last = true, s.StartedAt
				}
				pages++
				if pages == 2 { // one that was shown goes, a new one comes
					for id := range seen {
						r.do("DELETE", "/sandboxes/"+id, "")
						break
					}
				}
				if token = rec.Header().Get("X-Next-Token"); token == "" {
					break
				}
			}
			if diff := cmp.Diff(want, seen); diff != "" || pages != 5 {
				t.Errorf("%d pages\n%s", pages, diff)
			}
		})
	}
}

func TestGuard(t *testing.T) {
	tests := []struct {
		name   string
		keys   []string
		host   string
		header map[string]string
		path   string
		status int
	}{
		{"key", []string{"k1", "k2"}, "any.test", map[string]string{"X-API-KEY": "k2"}, "/", 200},
		{"bearer", []string{"k1"}, "any.test", map[string]string{"Authorization": "bearer k1"}, "/", 200},
		{"key from a page", []string{"k1"}, "any.test", map[string]string{"X-API-KEY": "k1", "Origin": "https://app.test"}, "/", 200},
		{"no key", []string{"k1"}, "localhost", nil, "/", 401},
		{"wrong key", []string{"k1"}, "localhost", map[string]string{"X-API-KEY": "k"}, "/", 401},
		{"empty key configured", []string{""}, "localhost", nil, "/", 401},
		{"health", []string{"k1"}, "localhost", nil, "/health", 200},
		{"open, loopback", nil, "127.0.0.1:3000", nil, "/", 200},
		{"open, IPv6", nil, "[::1]:3000", nil, "/", 200},
		{"open, name", nil, "localhost:3000", map[string]string{"X-API-KEY": "whatever"}, "/", 200},
		{"open, our domain", nil, "api.sbx.test:8443", nil, "/", 200},
		{"open, rebound name", nil, "evil.example", nil, "/", 403},
		{"open, like ours", nil, "evilsbx.test", nil, "/", 403},
		{"open, foreign page", nil, "127.0.0.1:3000", map[string]string{"Origin": "https://evil.example"}, "/", 403},
		{"open, opaque page", nil, "127.0.0.1:3000", map[string]string{"Origin": "null"}, "/", 403},
		{"open, a sandbox's page", nil, "127.0.0.1:3000", map[string]string{"Origin": "https://3000-i1.sbx.test"}, "/", 403},
		{"open, another local page", nil, "127.0.0.1:3000", map[string]string{"Origin": "http://127.0.0.1:5173"}, "/", 403},
		{"open, own page", nil, "127.0.0.1:3000", map[string]string{"Origin": "http://127.0.0.1:3000"}, "/", 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := server.Guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), server.GuardOptions{Keys: tt.keys, Domain: "sbx.test:8443"})
			req := httptest.NewRequest("POST", tt.path, nil)
			req.Host = tt.host
			for k, v := range tt.header {
				req.Header.Set(k, v)
			}
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, req)
			if rec.Code != tt.status {
				t.Errorf("got %d %s", rec.Code, rec.Body)
			}
			if tt.status != 200 {
				if got := read[e2b.Error](t, rec); got.Code != tt.status {
					t.Errorf("body %s", rec.Body)
				}
			}
		})
	}
}
