//go:build linux

package interpreter

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agent-sandbox/abx/internal/agent/account"
	"github.com/agent-sandbox/abx/internal/agent/process"
	"github.com/agent-sandbox/abx/internal/e2b"
)

// Limits and times that no client sets.
const (
	maxContexts  = 64
	maxWaiting   = 32       // calls of one context
	maxBody      = 16 << 20 // bytes of a request
	startLimit   = 30 * time.Second
	flushAfter   = 20 * time.Millisecond // until the first lines of a silent cell are sent
	lastWordWait = 50 * time.Millisecond
	letGoAfter   = time.Second // a client that does not take the end of its call
)

// Options of a Service. Table, RunDir are required.
type Options struct {
	Table *process.Table
	Judge *process.Judge // nil: by wait status alone
	Book  account.Book
	User  func() string // who runs the kernels; nil: account.UserName
	// Env is the environment of a kernel; its PATH finds the interpreter.
	Env func(account.Account) []string
	// EnvVersion changes when Env's result may have changed: kernels that run
	// get the difference with their next cell. nil: never.
	EnvVersion func() int64
	DefaultDir string // of contexts that name none; empty: /home/user
	// RunDir is a folder of the agent's that users can enter and not write,
	// for driver files and what belongs to a kernel.
	RunDir   string
	LogDir   string   // where the whole of cut output goes; see output.Options.Dir
	ScanDirs []string // where output files are looked for
	Logger   *slog.Logger
}

// Service is the code interpreter. Safe for concurrent use.
type Service struct {
	opts    Options
	mux     *http.ServeMux
	drivers map[string]driver
	files   driverDir
	serial  atomic.Int64 // of kernels, for their folders
	closing chan struct{}

	aliveEvery, progressEvery, interruptEvery time.Duration

	mu       sync.Mutex
	contexts []*codeContext          // in the order they were made
	defaults map[string]*codeContext // by language
	closed   bool
}

// New returns a Service; it starts no process. Close ends it.
func New(o Options) *Service {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.User == nil {
		o.User = func() string { return account.UserName }
	}
	if o.Env == nil {
		o.Env = func(a account.Account) []string {
			return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + a.Home, "USER=" + a.Name, "LOGNAME=" + a.Name}
		}
	}
	if o.EnvVersion == nil {
		o.EnvVersion = func() int64 { return 0 }
	}
	o.DefaultDir = cmp.Or(o.DefaultDir, "/home/user")
	s := &Service{
		opts: o, mux: http.NewServeMux(), closing: make(chan struct{}),
		drivers:    map[string]driver{python: pythonDriver{}, bash: shellDriver{}},
		files:      driverDir{path: filepath.Join(o.RunDir, "driver")},
		defaults:   map[string]*codeContext{},
		aliveEvery: 5 * time.Second, progressEvery: 2 * time.Second, interruptEvery: 500 * time.Millisecond,
	}
	s.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { answer(w, "OK") })
	s.mux.HandleFunc("POST /execute", s.execute)
	s.mux.HandleFunc("GET /contexts", s.list)
	s.mux.HandleFunc("POST /contexts", s.create)
	s.mux.HandleFunc("POST /contexts/{id}/restart", s.restart)
	s.mux.HandleFunc("DELETE /contexts/{id}", s.remove)
	return s
}

// Prepare writes what kernels need, so that they can still be started when the
// disk is full. The first kernel does it otherwise. Errors come back there.
func (s *Service) Prepare() error { return s.files.ensure() }

// ServeHTTP serves the routes that the package comment lists.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Close ends all kernels and waits for them. Calls that run end with an error
// line, if their client still takes one. Safe to call twice.
func (s *Service) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	all := s.contexts
	s.contexts, s.defaults = nil, map[string]*codeContext{}
	s.mu.Unlock()
	if first {
		close(s.closing)
	}
	for _, c := range all {
		c.end()
	}
	for _, c := range all {
		c.wait()
	}
	return nil
}

func (s *Service) keepalive(report bool) time.Duration {
	if report {
		return s.progressEvery
	}
	return s.aliveEvery
}

// refusal is an error with its status; its text is for the client.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

func refuse(status int, format string, args ...any) error {
	return &refusal{status, fmt.Sprintf(format, args...)}
}

// fail answers with an error. What is not a refusal is told in the log.
func (s *Service) fail(w http.ResponseWriter, err error) {
	var r *refusal
	if !errors.As(err, &r) {
		s.opts.Logger.Error("code interpreter", "error", err)
		r = &refusal{http.StatusInternalServerError, err.Error()}
	}
	http.Error(w, r.text, r.status)
}

func answer(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
}

// decode reads a JSON body. An empty one leaves v as it is.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	err := d.Decode(v)
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return refuse(http.StatusRequestEntityTooLarge, "the request is longer than %d MiB; write long data to a file first", maxBody>>20)
	case err != nil && r.ContentLength != 0:
		return refuse(http.StatusBadRequest, "the body is not the JSON that is expected here: %v", err)
	}
	return nil
}

func (s *Service) list(w http.ResponseWriter, _ *http.Request) {
	if _, err := s.defaultContext(python); err != nil {
		s.fail(w, err)
		return
	}
	s.mu.Lock()
	all := make([]e2b.Context, 0, len(s.contexts))
	for _, c := range s.contexts {
		all = append(all, c.info)
	}
	s.mu.Unlock()
	answer(w, all)
}

func (s *Service) create(w http.ResponseWriter, r *http.Request) {
	var body e2b.NewContext
	if err := decode(w, r, &body); err != nil {
		s.fail(w, err)
		return
	}
	c, err := s.newContext(body)
	if err != nil {
		s.fail(w, err)
		return
	}
	answer(w, c.info)
}

func (s *Service) newContext(body e2b.NewContext) (*codeContext, error) {
	language, err := parseLanguage(body.Language)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	cwd := cmp.Or(body.CWD, s.opts.DefaultDir)
	if body.CWD != "" {
		if !filepath.IsAbs(cwd) {
			cwd = filepath.Join(s.opts.DefaultDir, cwd)
		}
		if info, err := os.Stat(cwd); err != nil || !info.IsDir() {
			return nil, refuse(http.StatusBadRequest, "cwd %q is not a folder in this sandbox; make it first", clip(body.CWD))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addContext(language, cwd)
}

// addContext needs the lock.
func (s *Service) addContext(language, cwd string) (*codeContext, error) {
	if s.closed {
		return nil, refuse(http.StatusServiceUnavailable, "the code interpreter is closed")
	}
	if len(s.contexts) >= maxContexts {
		return nil, refuse(http.StatusTooManyRequests, "this sandbox has %d code contexts, the most it may have; delete one first", maxContexts)
	}
	var id [16]byte
	rand.Read(id[:])
	c := newCodeContext(s, e2b.Context{ID: hex.EncodeToString(id[:]), Language: language, CWD: cwd})
	s.contexts = append(s.contexts, c)
	return c, nil
}

// defaultContext is the one that a language's cells without a context go to.
func (s *Service) defaultContext(language string) (*codeContext, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.defaults[language]; c != nil {
		return c, nil
	}
	c, err := s.addContext(language, s.opts.DefaultDir)
	if err == nil {
		s.defaults[language] = c
	}
	return c, err
}

func (s *Service) find(id string) (*codeContext, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.contexts {
		if c.info.ID == id {
			return c, nil
		}
	}
	return nil, refuse(http.StatusNotFound, "context %q not found; GET /contexts lists those there are", clip(id))
}

func (s *Service) restart(w http.ResponseWriter, r *http.Request) {
	c, err := s.find(r.PathValue("id"))
	if err != nil {
		s.fail(w, err)
		return
	}
	c.restart()
	answer(w, nil)
}

func (s *Service) remove(w http.ResponseWriter, r *http.Request) {
	c, err := s.find(r.PathValue("id"))
	if err != nil {
		s.fail(w, err)
		return
	}
	s.mu.Lock()
	for i, other := range s.contexts {
		if other == c {
			s.contexts = append(s.contexts[:i:i], s.contexts[i+1:]...)
			break
		}
	}
	if s.defaults[c.info.Language] == c {
		delete(s.defaults, c.info.Language)
	}
	s.mu.Unlock()
	c.end()
	answer(w, nil)
}
