package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host"
	"github.com/agent-sandbox/abx/internal/host/driver/drivertest"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

func newHost(t *testing.T, f *drivertest.Fake, o host.Options) *host.Host {
	t.Helper()
	o.Driver = f
	h, err := host.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if len(f.Live()) != 0 {
			t.Error("sandboxes left")
		}
	})
	return h
}

func send(t *testing.T, rt http.RoundTripper, method, target, body string, header ...string) (*http.Response, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp, string(data), err
}

func createOver(t *testing.T, rt http.RoundTripper, header ...string) e2b.Sandbox {
	t.Helper()
	resp, body, err := send(t, rt, "POST", "http://embedded/sandboxes", `{"templateID":"base","timeout":300,"secure":true}`, header...)
	var s e2b.Sandbox
	if err != nil || resp.StatusCode != 201 || json.Unmarshal([]byte(body), &s) != nil {
		t.Fatalf("%s, %v", body, err)
	}
	return s
}

func TestBothPlanesInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{Agent: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			data, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %s", r.URL.Path, data)
		})}
		h := newHost(t, f, host.Options{APIKeys: []string{"k"}})
		rt := h.Transport()
		s := createOver(t, rt)
		if h.Sandboxes() != 1 || h.Isolation().Tier != "namespace" {
			t.Errorf("%d sandboxes in %q", h.Sandboxes(), h.Isolation().Tier)
		}
		to := []string{e2b.HeaderSandboxID, s.SandboxID, e2b.HeaderSandboxPort, "49983"}
		resp, body, err := send(t, rt, "POST", "http://embedded/files", "hello", append(to, e2b.HeaderAccessToken, s.EnvdAccessToken)...)
		if err != nil || resp.StatusCode != 200 || body != "/files hello" {
			t.Errorf("%v %s %v", resp, body, err)
		}
		resp, body, _ = send(t, rt, "GET", "http://49983-"+s.SandboxID+".abx.local/health", "")
		if resp.StatusCode != 204 {
			t.Errorf("health by host: %d %s", resp.StatusCode, body)
		}
		resp, _, _ = send(t, rt, "GET", "http://embedded/x", "", to...)
		if resp.StatusCode != 401 {
			t.Errorf("without the token: %d", resp.StatusCode)
		}
		resp, body, _ = send(t, rt, "GET", "http://embedded/ws", "", append(to, e2b.HeaderAccessToken, s.EnvdAccessToken, "Upgrade", "websocket", "Connection", "Upgrade")...)
		if resp.StatusCode != 200 {
			t.Errorf("upgrade that the port declines: %d %s", resp.StatusCode, body)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if _, _, err := send(t, rt, "GET", "http://embedded/health", ""); err == nil {
			t.Error("answered after Close")
		}
		if _, err := f.Start(t.Context(), engine.Spec{ID: "i1"}); err == nil {
			t.Error("driver is not closed")
		}
	})
}

func TestKeysOnListeners(t *testing.T) {
	h := newHost(t, &drivertest.Fake{}, host.Options{APIKeys: []string{"k"}})
	server := httptest.NewServer(h.Handler())
	defer server.Close()
	client := server.Client()
	get := func(path string, header ...string) int {
		req, _ := http.NewRequestWithContext(t.Context(), "GET", server.URL+path, nil)
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	s := createOver(t, h.Transport())
	for _, tt := range []struct {
		want   int
		path   string
		header []string
	}{
		{204, "/health", nil},
		{401, "/sandboxes", nil},
		{200, "/sandboxes", []string{"X-API-KEY", "k"}},
		// The data plane has the sandboxes' tokens.
		{204, "/health", []string{e2b.HeaderSandboxID, s.SandboxID, e2b.HeaderSandboxPort, "49983"}},
		{502, "/health", []string{e2b.HeaderSandboxID, "inone", e2b.HeaderSandboxPort, "49983"}},
	} {
		if got := get(tt.path, tt.header...); got != tt.want {
			t.Errorf("%s %v: %d, want %d", tt.path, tt.header, got, tt.want)
		}
	}
}

// TestDeathInMemory: over the in-memory transport, too, a dead sandbox is never
// a clean end.
func TestDeathInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{Agent: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "begin")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})}
		h := newHost(t, f, host.Options{})
		s := createOver(t, h.Transport())
		req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://49983-"+s.SandboxID+".abx.local/stream", nil)
		req.Header.Set(e2b.HeaderAccessToken, s.EnvdAccessToken)
		resp, err := h.Transport().RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		f.Find(s.SandboxID).Die(errors.New("shot"))
		if rest, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q, %v", rest, err)
		}
	})
}

// TestCancelReachesTheAgent: in memory, a client that stops waiting ends the
// agent's request, also while it is silent in the middle of an upload.
func TestCancelReachesTheAgent(t *testing.T) {
	for _, upload := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ended := make(chan struct{})
			f := &drivertest.Fake{Agent: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				defer close(ended)
				io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
			})}
			h := newHost(t, f, host.Options{})
			s := createOver(t, h.Transport())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var body io.Reader = strings.NewReader("x")
			if upload {
				silent, in := io.Pipe()
				defer in.Close()
				body = silent
			}
			req, _ := http.NewRequestWithContext(ctx, "POST", "http://49983-"+s.SandboxID+".abx.local/x", body)
			req.Header.Set(e2b.HeaderAccessToken, s.EnvdAccessToken)
			done := make(chan error)
			go func() {
				_, err := h.Transport().RoundTrip(req)
				done <- err
			}()
			synctest.Wait()
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			<-ended
		})
	}
}

func TestCloseCutsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{Agent: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})}
		h := newHost(t, f, host.Options{PoolSize: 1})
		s := createOver(t, h.Transport())
		req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://49983-"+s.SandboxID+".abx.local/stream", nil)
		req.Header.Set(e2b.HeaderAccessToken, s.EnvdAccessToken)
		resp, err := h.Transport().RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Error("a clean end")
		}
	})
}

func TestNewRefuses(t *testing.T) {
	if _, err := host.New(t.Context(), host.Options{}); err == nil {
		t.Error("host without a driver")
	}
	f := &drivertest.Fake{}
	if _, err := host.New(t.Context(), host.Options{Driver: f, PoolTemplate: "x"}); err == nil {
		t.Error("unknown pool template")
	}
	if _, err := f.Start(t.Context(), engine.Spec{ID: "i1"}); err == nil {
		t.Error("the driver of a host that was not made is not closed")
	}
}

func benchHost(b *testing.B, agent http.HandlerFunc) (http.RoundTripper, string) {
	f := &drivertest.Fake{Agent: agent}
	h, err := host.New(b.Context(), host.Options{Driver: f})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { h.Close() })
	req, _ := http.NewRequest("POST", "http://embedded/sandboxes", strings.NewReader(`{"templateID":"base","timeout":300}`))
	resp, err := h.Transport().RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	var s e2b.Sandbox
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		b.Fatal(err)
	}
	return h.Transport(), "http://49983-" + s.SandboxID + ".abx.local/x"
}

func BenchmarkChainUnary(b *testing.B) {
	rt, target := benchHost(b, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, `{"ok":true}`)
	})
	b.ReportAllocs()
	for b.Loop() {
		req, _ := http.NewRequest("POST", target, strings.NewReader(`{"a":1}`))
		resp, err := rt.RoundTrip(req)
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

func BenchmarkChainUp8MiB(b *testing.B) {
	rt, target := benchHost(b, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) })
	data := strings.Repeat("x", 8<<20)
	b.SetBytes(8 << 20)
	for b.Loop() {
		req, _ := http.NewRequest("POST", target, strings.NewReader(data))
		resp, err := rt.RoundTrip(req)
		if err != nil {
			b.Fatal(err)
		}
		resp.Body.Close()
	}
}

func BenchmarkChainDown8MiB(b *testing.B) {
	data := make([]byte, 8<<20)
	rt, target := benchHost(b, func(w http.ResponseWriter, r *http.Request) { w.Write(data) })
	b.SetBytes(8 << 20)
	for b.Loop() {
		req, _ := http.NewRequest("GET", target, nil)
		resp, err := rt.RoundTrip(req)
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); n != 8<<20 || err != nil {
			b.Fatal(n, err)
		}
		resp.Body.Close()
	}
}
