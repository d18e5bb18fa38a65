// Package mcptest is an E2B platform in memory for the tests of the MCP
// server: sandboxes that keep files and answer commands and code as the test
// says. It isolates nothing and runs nothing; only tests import it.
package mcptest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/e2b/filesystem/filesystemconnect"
	"github.com/agent-sandbox/abx/internal/e2b/process/processconnect"
	"github.com/agent-sandbox/abx/sandbox"
)

// A Platform is the other end of a sandbox.Client. Its fields are set before
// the first call.
type Platform struct {
	Abx      *e2b.SandboxAbx // told at creation; nil: a platform that is not ours
	Command  func(*Sandbox, *Command) End
	Code     func(*Sandbox, *Code) e2b.LineAbx
	Refuse   func(method, path string) (status int, message string) // 0: go on
	NoWork   bool                                                   // sandboxes have no /app
	Requests func(method, path string)                              // told of every control request

	mu    sync.Mutex
	boxes map[string]*Sandbox
	made  int
}

// A Sandbox of a Platform.
type Sandbox struct {
	ID      string
	Created e2b.NewSandbox

	p     *Platform
	mu    sync.Mutex
	end   time.Time
	files map[string][]byte // by absolute path
	dirs  map[string]bool
	gone  bool               // the data plane knows it no more
	left  int                // control requests until the control plane knows that
	odd   map[string]refusal // what is neither file nor folder, or closed
}

// Client returns a client of p.
func (p *Platform) Client(t testing.TB) *sandbox.Client {
	t.Helper()
	c, err := sandbox.NewClient(sandbox.Config{BaseURL: "http://platform.test", SandboxURL: "http://platform.test", Domain: "sandboxes.test", Transport: p.Transport()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Transport carries requests to p.
func (p *Platform) Transport() http.RoundTripper { return transport{http.HandlerFunc(p.serve)} }

// Alive lists the ids of the sandboxes that run, in order.
func (p *Platform) Alive() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := []string{}
	for id, b := range p.boxes {
		if b.alive() {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Sandbox returns the sandbox of that id, nil when there is none.
func (p *Platform) Sandbox(id string) *Sandbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.boxes[id]
}

// Expire ends a sandbox as the end of its lifetime does.
func (s *Sandbox) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = time.Time{}
}

// Vanish ends a sandbox so that the control plane learns of it some requests
// later than the data plane.
func (s *Sandbox) Vanish(requests int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone, s.left = true, requests
}

// vanished reports whether the data plane knows the sandbox no more.
func (s *Sandbox) vanished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// learn counts a control request of a sandbox that vanished.
func (s *Sandbox) learn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		if s.left--; s.left < 0 {
			s.end = time.Time{}
		}
	}
}

func (s *Sandbox) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.end)
}

func (p *Platform) serve(w http.ResponseWriter, r *http.Request) {
	a, data, err := e2b.ParseRequest(r)
	switch {
	case err != nil:
		answer(w, http.StatusBadRequest, e2b.Error{Code: 400, Message: err.Error()})
	case data:
		p.serveSandbox(w, r, a)
	default:
		p.serveControl(w, r)
	}
}

func (p *Platform) serveSandbox(w http.ResponseWriter, r *http.Request, a e2b.Address) {
	s := p.Sandbox(a.SandboxID)
	if s == nil || !s.alive() || s.vanished() {
		answer(w, http.StatusBadGateway, e2b.NotFoundError{SandboxID: a.SandboxID, Message: e2b.MessageSandboxNotFound, Code: 502})
		return
	}
	mux := http.NewServeMux()
	mux.Handle(processconnect.NewProcessHandler(processes{s: s}))
	mux.Handle(filesystemconnect.NewFilesystemHandler(files{s: s}))
	mux.HandleFunc("GET /files", s.getFile)
	mux.HandleFunc("POST /files", s.putFile)
	mux.HandleFunc("POST /execute", s.execute)
	mux.ServeHTTP(w, r)
}

func (p *Platform) serveControl(w http.ResponseWriter, r *http.Request) {
	if p.Requests != nil {
		p.Requests(r.Method, r.URL.Path)
	}
	if p.Refuse != nil {
		if status, message := p.Refuse(r.Method, r.URL.Path); status != 0 {
			answer(w, status, e2b.Error{Code: status, Message: message})
			return
		}
	}
	if r.Method == http.MethodPost && r.URL.Path == "/sandboxes" {
		p.create(w, r)
		return
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	s := p.Sandbox(parts[min(1, len(parts)-1)])
	if s != nil {
		s.learn()
	}
	if s == nil || !s.alive() {
		answer(w, http.StatusNotFound, e2b.Error{Code: 404, Message: "sandbox not found"})
		return
	}
	switch {
	case r.Method == http.MethodDelete:
		s.Expire()
		w.WriteHeader(http.StatusNoContent)
	case strings.HasSuffix(r.URL.Path, "/timeout"):
		var body e2b.SetTimeout
		_ = json.NewDecoder(r.Body).Decode(&body)
		s.mu.Lock()
		s.end = time.Now().Add(time.Duration(*body.Timeout) * time.Second)
		s.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	default:
		answer(w, http.StatusNotFound, e2b.Error{Code: 404, Message: "no such call"})
	}
}

func (p *Platform) create(w http.ResponseWriter, r *http.Request) {
	s := &Sandbox{p: p, files: map[string][]byte{}, dirs: map[string]bool{"/": true, "/tmp": true, "/home": true, "/home/user": true, "/app": !p.NoWork}}
	if err := json.NewDecoder(r.Body).Decode(&s.Created); err != nil {
		answer(w, http.StatusBadRequest, e2b.Error{Code: 400, Message: err.Error()})
		return
	}
	s.end = time.Now().Add(time.Duration(*s.Created.Timeout) * time.Second)
	p.mu.Lock()
	p.made++
	s.ID = fmt.Sprintf("i%019d", p.made)
	if p.boxes == nil {
		p.boxes = map[string]*Sandbox{}
	}
	p.boxes[s.ID] = s
	p.mu.Unlock()
	answer(w, http.StatusCreated, e2b.Sandbox{TemplateID: s.Created.TemplateID, SandboxID: s.ID, EnvdVersion: e2b.EnvdVersion, Abx: p.Abx})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func length(h http.Header) int64 {
	n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64)
	if err != nil {
		return -1
	}
	return n
}
