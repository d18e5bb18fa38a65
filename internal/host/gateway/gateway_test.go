package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/driver/drivertest"
	"github.com/agent-sandbox/abx/internal/host/engine"
	"github.com/agent-sandbox/abx/internal/host/gateway"
)

// rig is a gateway on a real listener, over one fake sandbox.
type rig struct {
	t      *testing.T
	fake   *drivertest.Fake
	engine *engine.Engine
	server *httptest.Server
	info   engine.Info
	box    *drivertest.FakeSandbox
}

func newRig(t *testing.T, req engine.Request, o gateway.Options) *rig {
	t.Helper()
	r := &rig{t: t, fake: &drivertest.Fake{}}
	r.fake.Agent = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		fmt.Fprintf(w, "agent %s", q.URL.EscapedPath())
	})
	e, err := engine.New(r.fake, engine.Options{FreeMemory: func() (int64, bool) { return 0, false }})
	if err != nil {
		t.Fatal(err)
	}
	r.engine = e
	g := gateway.New(e, o)
	r.server = httptest.NewServer(g)
	t.Cleanup(func() {
		if err := errors.Join(e.Close(), g.Close()); err != nil {
			t.Error(err)
		}
		r.server.Close()
	})
	req.Template, req.Lifetime = engine.TemplateBase, time.Hour
	r.info, err = e.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	r.box = r.fake.Find(r.info.ID)
	return r
}

// to makes a request for a port of the sandbox, routed by header.
func (r *rig) to(port int, method, path string, body io.Reader) *http.Request {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.server.URL+path, body)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set(e2b.HeaderSandboxID, r.info.ID)
	req.Header.Set(e2b.HeaderSandboxPort, strconv.Itoa(port))
	return req
}

func (r *rig) do(req *http.Request) (*http.Response, string, error) {
	r.t.Helper()
	resp, err := r.server.Client().Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

func TestRouting(t *testing.T) {
	r := newRig(t, engine.Request{}, gateway.Options{})
	r.box.Handle(3000, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		io.WriteString(w, "port 3000 "+q.Host)
	}))
	id := r.info.ID
	front := strings.TrimPrefix(r.server.URL, "http://")
	notFound := func(id string) string {
		return `{"sandboxId":"` + id + `","message":"The sandbox was not found","code":502}`
	}
	tests := []struct {
		name   string
		host   string
		header map[string]string
		status int
		body   string
	}{
		{"by host", "3000-" + id + ".abx.test", nil, 200, "port 3000 3000-" + id + ".abx.test"},
		{"by host with a port", "3000-" + id + ".abx.test:8080", nil, 200, "port 3000 3000-" + id + ".abx.test:8080"},
		{"by host, old form", "3000-" + id + "-00000000.abx.test", nil, 200, "port 3000 3000-" + id + "-00000000.abx.test"},
		{"by host, capitals", "3000-" + strings.ToUpper(id) + ".ABX.test", nil, 200, "port 3000 3000-" + strings.ToUpper(id) + ".ABX.test"},
		{"by header", "", map[string]string{e2b.HeaderSandboxID: id, e2b.HeaderSandboxPort: "3000"}, 200, "port 3000 " + front},
		{"by both", "3000-" + id + ".abx.test", map[string]string{e2b.HeaderSandboxID: id, e2b.HeaderSandboxPort: "3000"}, 200, "port 3000 3000-" + id + ".abx.test"},
		{"agent", "49983-" + id + ".abx.test", nil, 200, "agent /x"},
		{"unknown", "3000-i0000.abx.test", nil, 502, notFound("i0000")},
		{"port closed", "3001-" + id + ".abx.test", nil, 502, `{"sandboxId":"` + id + `","message":"The sandbox is running but port is not open","port":3001,"code":502}`},
		{"one header", "", map[string]string{e2b.HeaderSandboxID: id}, 400, `{"code":400,"message":"headers E2b-Sandbox-Id and E2b-Sandbox-Port go together; one is missing"}`},
		{"bad port", "", map[string]string{e2b.HeaderSandboxID: id, e2b.HeaderSandboxPort: "70000"}, 400, `{"code":400,"message":"header E2b-Sandbox-Port: \"70000\" is not a port (1 to 65535)"}`},
		{"two names", "3001-" + id + ".abx.test", map[string]string{e2b.HeaderSandboxID: id, e2b.HeaderSandboxPort: "3000"}, 400, `{"code":400,"message":"the host name and the E2b-Sandbox-Id headers name different ports of sandboxes"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req, _ := http.NewRequestWithContext(t.Context(), "GET", r.server.URL+"/x", nil)
			req.Host = tt.host
			for k, v := range tt.header {
				req.Header.Set(k, v)
			}
			resp, body, err := r.do(req)
			if err != nil || resp.StatusCode != tt.status || body != tt.body {
				t.Errorf("got %d %s, %v\nwant %d %s", resp.StatusCode, body, err, tt.status, tt.body)
			}
		})
	}
	t.Run("header twice", func(t *testing.T) {
		req := r.to(3000, "GET", "/", nil)
		req.Header.Add(e2b.HeaderSandboxID, "iother")
		if resp, _, _ := r.do(req); resp.StatusCode != 400 {
			t.Errorf("got %d", resp.StatusCode)
		}
	})
}

func TestEndedSandboxSaysWhy(t *testing.T) {
	tests := []struct {
		reason string
		end    func(*rig)
	}{
		{"killed", func(r *rig) { r.engine.Kill(r.t.Context(), r.info.ID) }},
		{"expired", func(r *rig) { r.engine.SetTimeout(r.t.Context(), r.info.ID, 0) }},
		{"lost", func(r *rig) {
			r.box.Die(errors.New("shot"))
			for len(r.engine.List()) > 0 {
				<-r.box.Done()
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			r := newRig(t, engine.Request{}, gateway.Options{})
			r.do(r.to(e2b.PortAgent, "GET", "/health", nil)) // a route is open
			tt.end(r)
			resp, body, _ := r.do(r.to(e2b.PortAgent, "GET", "/health", nil))
			if got := resp.Header.Get(e2b.HeaderReason); resp.StatusCode != 502 || got != tt.reason || !strings.Contains(body, e2b.MessageSandboxNotFound) {
				t.Errorf("%d, reason %q, %s", resp.StatusCode, got, body)
			}
		})
	}
}

// raw sends lines as they are and returns the reply's status and body.
func (r *rig) raw(request string) (int, string) {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, request)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

func TestControlRoutesAreHidden(t *testing.T) {
	r := newRig(t, engine.Request{}, gateway.Options{})
	told := len(r.box.Inits())
	for _, target := range []string{
		"/init", "/init/", "//init", "/./init", "/x/../init", "/%69nit", "/in%69t", "/%2finit", "/%2e/init", "/x/%2e%2e/init",
		"/%2569nit", "/INIT", "/init?x=1", "/init;v=1", "/init/x", "/\\init", "/%5cinit", "/freeze", "/fsfreeze", "http://other/init",
		"/init%20", "/%20init",
	} {
		for _, port := range []int{e2b.PortAgent, e2b.PortInterpreter} {
			for _, method := range []string{"POST", "GET"} {
				status, body := r.raw(fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %d-%s.abx.test\r\nContent-Length: 2\r\n\r\n{}", method, target, port, r.info.ID))
				if strings.HasPrefix(target, "http:") {
					// The target's host counts, which names no sandbox.
					if status == 200 || status == 204 {
						t.Errorf("%s %s: %d %s", method, target, status, body)
					}
				} else if status != 404 || !strings.Contains(body, `"code":404`) {
					t.Errorf("%s %s on %d: %d %s", method, target, port, status, body)
				}
			}
		}
	}
	if len(r.box.Inits()) != told {
		t.Error("the agent was told something")
	}
	if status, _ := r.raw(fmt.Sprintf("CONNECT /init HTTP/1.1\r\nHost: 49983-%s.abx.test\r\n\r\n", r.info.ID)); status != 405 {
		t.Errorf("CONNECT: %d", status)
	}
	// A server of the user's own may have such a route.
	r.box.Handle(3000, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "mine") }))
	if _, body, _ := r.do(r.to(3000, "POST", "/init", nil)); body != "mine" {
		t.Errorf("port 3000: %s", body)
	}
	for _, path := range []string{"/initial", "/files", "/process.Process/Start", "/a%2Fb"} {
		if _, body, _ := r.do(r.to(e2b.PortAgent, "GET", path, nil)); body != "agent "+path {
			t.Errorf("%s: %s", path, body)
		}
	}
}

func TestHeaders(t *testing.T) {
	r := newRig(t, engine.Request{MaskHost: "localhost:${PORT}"}, gateway.Options{})
	var got http.Header
	var host, query string
	r.box.Handle(3000, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		got, host, query = q.Header, q.Host, q.URL.RawQuery
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "1")
		w.Header().Set("X-End", "1")
	}))
	req := r.to(3000, "GET", "/?a;b=%zz&c", nil)
	for k, v := range map[string]string{
		"X-API-KEY": "e2b_secret", "Authorization": "Basic dXNlcjo=", "X-Access-Token": "t", e2b.HeaderTraffic: "x",
		"X-Forwarded-For": "6.6.6.6", "Forwarded": "for=6.6.6.6", "Connection": "X-Mine", "X-Mine": "1", "Te": "trailers", "User-Agent": "ua",
		"Accept-Encoding": "identity",
	} {
		req.Header.Set(k, v)
	}
	resp, _, _ := r.do(req)
	want := http.Header{
		"Authorization": {"Basic dXNlcjo="}, "X-Access-Token": {"t"}, "User-Agent": {"ua"}, "Te": {"trailers"}, "Accept-Encoding": {"identity"},
		"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Proto": {"http"}, "X-Forwarded-Host": {strings.TrimPrefix(r.server.URL, "http://")},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("request (-want +got)\n%s", diff)
	}
	if host != "localhost:3000" || query != "a;b=%zz&c" {
		t.Errorf("host %q, query %q", host, query)
	}
	if resp.Header.Get("X-Hop") != "" || resp.Header.Get("X-End") != "1" {
		t.Errorf("reply %v", resp.Header)
	}
}

func TestPrivatePorts(t *testing.T) {
	r := newRig(t, engine.Request{PrivatePorts: true, Secure: true}, gateway.Options{})
	r.box.Handle(3000, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		io.WriteString(w, "in "+q.Header.Get(e2b.HeaderTraffic))
	}))
	for token, status := range map[string]int{"": 403, "x": 403, r.info.AccessToken: 403, r.info.TrafficToken: 200} {
		req := r.to(3000, "GET", "/", nil)
		req.Header.Set(e2b.HeaderTraffic, token)
		if resp, body, _ := r.do(req); resp.StatusCode != status || status == 200 && body != "in " {
			t.Errorf("token %q: %d %s", token, resp.StatusCode, body)
		}
	}
	// The agent's port is left to the agent.
	if resp, _, _ := r.do(r.to(e2b.PortAgent, "GET", "/x", nil)); resp.StatusCode != 401 {
		t.Errorf("agent: %d", resp.StatusCode)
	}
}

// TestUnnamedFileURL: without routing only a signature will do, of which
// signed_test.go has more.
func TestUnnamedFileURL(t *testing.T) {
	r := newRig(t, engine.Request{}, gateway.Options{})
	for query, message := range map[string]string{
		"?path=x":                 "missing signature query parameter",
		"?path=x&signature=v1_no": "invalid signature",
	} {
		req, _ := http.NewRequestWithContext(t.Context(), "GET", r.server.URL+"/files"+query, nil)
		if resp, body, _ := r.do(req); resp.StatusCode != 401 || !strings.Contains(body, message) {
			t.Errorf("%s: %d %s", query, resp.StatusCode, body)
		}
	}
}

func TestWebSocket(t *testing.T) {
	r := newRig(t, engine.Request{}, gateway.Options{})
	r.box.HandleConn(3000, func(c net.Conn) {
		br := bufio.NewReader(c)
		req, err := http.ReadRequest(br)
		if err != nil || req.Header.Get("Upgrade") != "websocket" {
			return
		}
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		io.Copy(c, br)
	})
	conn, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: 3000-%s.abx.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", r.info.ID)
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatalf("%v, %v", resp, err)
	}
	for _, word := range []string{"one", "two"} {
		io.WriteString(conn, word)
		var got [3]byte
		if _, err := io.ReadFull(br, got[:]); err != nil || string(got[:]) != word {
			t.Fatalf("%q, %v", got, err)
		}
	}
	r.box.Die(errors.New("shot"))
	if _, err := br.ReadByte(); err == nil {
		t.Error("still open after the sandbox died")
	}
}

// TestServerSentEvents: each event arrives before the next is made.
func TestServerSentEvents(t *testing.T) {
	r := newRig(t, engine.Request{}, gateway.Options{})
	next := make(chan struct{})
	r.box.Handle(3000, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
	}))
	resp, err := r.server.Client().Do(r.to(3000, "GET", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for i := range 3 {
		lines.Scan()
		if want := fmt.Sprintf("data: %d", i); lines.Text() != want {
			t.Errorf("got %q, want %q", lines.Text(), want)
		}
		lines.Scan()
		next <- struct{}{}
	}
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("end: %q, %v", lines.Text(), lines.Err())
	}
}

// TestDeathInMidStream: whatever way a reply is framed, a dead sandbox never
// looks like its end.
func TestDeathInMidStream(t *testing.T) {
	for _, framing := range []string{
		"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"Content-Length: 10\r\n\r\nhello",
		"Connection: close\r\n\r\nhello",
	} {
		name, _, _ := strings.Cut(framing, ":")
		t.Run(name, func(t *testing.T) {
			r := newRig(t, engine.Request{}, gateway.Options{})
			r.box.HandleConn(3000, func(c net.Conn) {
				br := bufio.NewReader(c)
				http.ReadRequest(br)
				io.WriteString(c, "HTTP/1.1 200 OK\r\n"+framing)
				br.ReadByte() // until it is closed
			})
			resp, err := r.server.Client().Do(r.to(3000, "GET", "/", nil))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var got [5]byte
			if _, err := io.ReadFull(resp.Body, got[:]); err != nil || string(got[:]) != "hello" {
				t.Fatalf("%q, %v", got, err)
			}
			r.box.Die(errors.New("shot"))
			if _, err := io.ReadAll(resp.Body); err == nil {
				t.Error("a clean end")
			}
		})
	}
	t.Run("clean end of a live one", func(t *testing.T) {
		r := newRig(t, engine.Request{}, gateway.Options{})
		r.box.HandleConn(3000, func(c net.Conn) {
			http.ReadRequest(bufio.NewReader(c))
			io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello")
		})
		if _, body, err := r.do(r.to(3000, "GET", "/", nil)); err != nil || body != "hello" {
			t.Errorf("%q, %v", body, err)
		}
	})
}

// TestDeathBeforeTheReply: it is told apart from a server that breaks off.
func TestDeathBeforeTheReply(t *testing.T) {
	r := newRig(t, engine.Request{}, gateway.Options{})
	got := make(chan struct{})
	r.box.HandleConn(3000, func(c net.Conn) {
		br := bufio.NewReader(c)
		req, _ := http.ReadRequest(br)
		if req.URL.Path == "/wait" {
			close(got)
			br.ReadByte()
		}
	})
	resp, body, _ := r.do(r.to(3000, "GET", "/break", nil))
	if resp.StatusCode != 502 || !strings.Contains(body, "port 3000 of the sandbox broke off without a reply") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	go func() {
		<-got
		r.box.Die(errors.New("shot"))
	}()
	resp, body, _ = r.do(r.to(3000, "GET", "/wait", nil))
	if resp.StatusCode != 502 || !strings.Contains(body, e2b.MessageSandboxNotFound) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// TestDeathDuringASilentUpload: the client hears of it though it says nothing.
func TestDeathDuringASilentUpload(t *testing.T) {
	r := newRig(t, engine.Request{}, gateway.Options{})
	begun := make(chan struct{})
	r.box.Handle(3000, http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		io.ReadFull(q.Body, make([]byte, 5))
		close(begun)
		io.Copy(io.Discard, q.Body)
	}))
	silent, in := io.Pipe()
	defer in.Close()
	go func() {
		io.WriteString(in, "hello")
		<-begun
		r.box.Die(errors.New("shot"))
	}()
	resp, body, _ := r.do(r.to(3000, "POST", "/", silent))
	if resp.StatusCode != 502 || !strings.Contains(body, e2b.MessageSandboxNotFound) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// TestClientLeaves: the port sees it.
func TestClientLeaves(t *testing.T) {
	r := newRig(t, engine.Request{}, gateway.Options{})
	begun, ended := make(chan struct{}), make(chan struct{})
	r.box.Handle(3000, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		io.Copy(io.Discard, q.Body)
		w.(http.Flusher).Flush()
		close(begun)
		<-q.Context().Done()
		close(ended)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	req := r.to(3000, "POST", "/", strings.NewReader("x")).WithContext(ctx)
	go func() {
		<-begun
		cancel()
	}()
	if resp, err := r.server.Client().Do(req); err == nil {
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	<-ended
}

// TestEarlyReply: a port that answers before it has read the request loses no
// byte of its answer, and the connection stays usable or is closed.
func TestEarlyReply(t *testing.T) {
	r := newRig(t, engine.Request{}, gateway.Options{})
	reply := bytes.Repeat([]byte("0123456789abcdef"), 4<<10)
	r.box.Handle(3000, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		io.ReadFull(q.Body, make([]byte, 16))
		for part := range len(reply) / (8 << 10) {
			w.Write(reply[part*(8<<10) : (part+1)*(8<<10)])
			w.(http.Flusher).Flush()
		}
		io.Copy(io.Discard, q.Body)
	}))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 100 {
				size := []int{16, 1 << 10, 300 << 10}[i%3]
				resp, body, err := r.do(r.to(3000, "POST", "/", bytes.NewReader(make([]byte, size))))
				if err != nil || resp.StatusCode != 200 || body != string(reply) {
					t.Errorf("upload of %d: %d, %d bytes, %v", size, resp.StatusCode, len(body), err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestRefusedUpload: a reply to an upload that nobody wants reaches the client.
func TestRefusedUpload(t *testing.T) {
	r := newRig(t, engine.Request{Secure: true}, gateway.Options{})
	for range 20 {
		resp, body, err := r.do(r.to(e2b.PortAgent, "POST", "/files", bytes.NewReader(make([]byte, 600<<10))))
		if err != nil || resp.StatusCode != 401 || !strings.Contains(body, "wrong access token") {
			t.Fatalf("%d %s %v", resp.StatusCode, body, err)
		}
	}
	resp, body, err := r.do(r.to(3000, "POST", "/", bytes.NewReader(make([]byte, 600<<10))))
	if err != nil || resp.StatusCode != 502 || !strings.Contains(body, e2b.MessagePortClosed) {
		t.Errorf("%d %s %v", resp.StatusCode, body, err)
	}
}

// TestHostileReplies: nothing that a port sends harms more than its own client.
func TestHostileReplies(t *testing.T) {
	tests := []struct {
		name, reply string
	}{
		{"endless header", "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: "+strings.Repeat("a", 1000)+"\r\n", 1000)},
		{"endless first line", "HTTP/1.1 200 " + strings.Repeat("a", 1<<20)},
		{"not HTTP", "SSH-2.0-OpenSSH\r\n\r\n"},
		{"many early hints", strings.Repeat("HTTP/1.1 103 Early\r\nX-A: "+strings.Repeat("a", 4000)+"\r\n\r\n", 1000)},
		{"bad length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, engine.Request{}, gateway.Options{})
			r.box.HandleConn(3000, func(c net.Conn) {
				http.ReadRequest(bufio.NewReader(c))
				io.WriteString(c, tt.reply)
			})
			resp, body, _ := r.do(r.to(3000, "GET", "/", nil))
			if resp.StatusCode != 502 || !strings.Contains(body, "broke off") {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
		})
	}
}

func TestTooManyRequests(t *testing.T) {
	r := newRig(t, engine.Request{}, gateway.Options{MaxRequests: 2})
	let, in := make(chan struct{}), make(chan struct{})
	r.box.Handle(3000, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { in <- struct{}{}; <-let }))
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if resp, _, _ := r.do(r.to(3000, "GET", "/", nil)); resp.StatusCode != 200 {
				t.Errorf("got %d", resp.StatusCode)
			}
		})
		<-in
	}
	if resp, body, _ := r.do(r.to(3000, "GET", "/", nil)); resp.StatusCode != 429 || !strings.Contains(body, "more than 2 requests") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	close(let)
	wg.Wait()
}

// TestTrailers: declared or not, they pass.
func TestTrailers(t *testing.T) {
	r := newRig(t, engine.Request{}, gateway.Options{})
	r.box.Handle(3000, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		io.WriteString(w, "x")
		w.Header().Set("X-Sum", "1")
		w.Header().Set(http.TrailerPrefix+"X-More", "2")
	}))
	resp, _, _ := r.do(r.to(3000, "GET", "/", nil))
	if diff := cmp.Diff(http.Header{"X-Sum": {"1"}, "X-More": {"2"}}, resp.Trailer); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
