package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/driver/drivertest"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

func TestSign(t *testing.T) {
	const want = "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"
	if got := sign("hello.txt", "read", "user", "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", ""); got != want {
		t.Errorf("got %s", got)
	}
}

func TestSigner(t *testing.T) {
	e, err := engine.New(&drivertest.Fake{}, engine.Options{FreeMemory: func() (int64, bool) { return 0, false }})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var infos []engine.Info
	for range 3 {
		info, err := e.Create(t.Context(), engine.Request{Template: engine.TemplateBase, Lifetime: time.Hour, Secure: true})
		if err != nil {
			t.Fatal(err)
		}
		infos = append(infos, info)
	}
	g := New(e, Options{})
	tests := []struct {
		method, op, expiration string
		ok                     bool
	}{
		{"GET", "read", "", true},
		{"HEAD", "read", "1999999999", true},
		{"POST", "write", "", true},
		{"OPTIONS", "write", "", true},
		{"OPTIONS", "read", "", true},
		{"GET", "write", "", false},
		{"POST", "read", "", false},
	}
	for _, tt := range tests {
		for _, info := range infos {
			q := url.Values{"path": {"a b.txt"}, "username": {"root"}, "signature": {sign("a b.txt", tt.op, "root", info.AccessToken, tt.expiration)}}
			if tt.expiration != "" {
				q.Set("signature_expiration", tt.expiration)
			}
			r := httptest.NewRequest(tt.method, "http://127.0.0.1/files?"+q.Encode(), nil)
			if !g.Handles(r) {
				t.Fatal("not handled")
			}
			to, err := g.signer(r)
			if ok := err == nil; ok != tt.ok || ok && (to != e2b.Address{SandboxID: info.ID, Port: e2b.PortAgent}) {
				t.Errorf("%s signed for %s: %v, %v", tt.method, tt.op, to, err)
			}
		}
	}
}

// TestSignedReply: a browser gives no origin to what a file holds.
func TestSignedReply(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<script>") })
	e, err := engine.New(&drivertest.Fake{Agent: page}, engine.Options{FreeMemory: func() (int64, bool) { return 0, false }})
	if err != nil {
		t.Fatal(err)
	}
	g := New(e, Options{})
	defer func() { e.Close(); g.Close() }()
	info, err := e.Create(t.Context(), engine.Request{Template: engine.TemplateBase, Lifetime: time.Hour, Secure: true})
	if err != nil {
		t.Fatal(err)
	}
	q := url.Values{"path": {"x.html"}, "signature": {sign("x.html", "read", "", info.AccessToken, "")}}
	r := httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1/files?"+q.Encode(), nil)
	r.Header.Set(e2b.HeaderAccessToken, info.AccessToken) // the fake knows no signatures
	rec := httptest.NewRecorder()
	g.ServeHTTP(rec, r)
	if rec.Code != 200 || rec.Body.String() != "<script>" || rec.Header().Get("Content-Security-Policy") != "sandbox" {
		t.Errorf("%d %q %v", rec.Code, rec.Body, rec.Header())
	}
}

// FuzzRoute: whatever a request says, it reaches only a sandbox and a port that
// all of its names agree on, and never a control route of an agent.
func FuzzRoute(f *testing.F) {
	f.Add("3000-iabc.abx.test", "", "", "/x")
	f.Add("127.0.0.1:3000", "iabc", "49983", "/init")
	f.Add("49983-iabc.abx.test", "iabc", "49983", "/%2569nit")
	f.Add("49999-IABC-1.abx.test:1", "", "", "//x/..%2finit")
	f.Add("localhost", "iabc", "", "/files?signature=x")
	e, err := engine.New(&drivertest.Fake{}, engine.Options{})
	if err != nil {
		f.Fatal(err)
	}
	g := New(e, Options{})
	f.Fuzz(func(t *testing.T, host, id, port, target string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || !strings.HasPrefix(target, "/") {
			return // no server passes that on
		}
		r := &http.Request{Method: "POST", Host: host, URL: u, Header: http.Header{}}
		if id != "" {
			r.Header.Set(e2b.HeaderSandboxID, id)
		}
		if port != "" {
			r.Header.Set(e2b.HeaderSandboxPort, port)
		}
		to, named, err := g.address(r)
		if !g.Handles(r) {
			if id != "" || port != "" {
				t.Fatal("a request with routing headers would reach the control plane")
			}
			return
		}
		if err != nil {
			return
		}
		if !e2b.ValidID(to.SandboxID) || to.Port < 1 || to.Port > 65535 {
			t.Fatalf("address %+v", to)
		}
		if named && id != "" && (to.SandboxID != id) {
			t.Fatalf("%q reaches %q", id, to.SandboxID)
		}
		// What an agent's own mux could make of the path, once and again.
		seen := u.Path
		for range 3 {
			clean := path.Clean("/" + seen)
			if (clean == "/init" || strings.HasPrefix(clean, "/init/")) && to.Port == e2b.PortAgent && !hidden(to.Port, u) {
				t.Fatalf("%q is not hidden", target)
			}
			next, err := url.PathUnescape(seen)
			if err != nil {
				break
			}
			seen = next
		}
	})
}
