//go:build linux

package agent

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/abx/internal/agent/account"
	"github.com/agent-sandbox/abx/internal/agent/filesystem"
	"github.com/agent-sandbox/abx/internal/agent/interpreter"
	"github.com/agent-sandbox/abx/internal/agent/process"
	"github.com/agent-sandbox/abx/internal/agent/setup"
	"github.com/agent-sandbox/abx/internal/control"
	"github.com/agent-sandbox/abx/internal/e2b"
)

// Folders inside that setup made for the agent.
const (
	runDir = "/run/abx"
	logDir = "/var/log/abx"
)

// server holds the identity that the host gave this sandbox, and the services.
type server struct {
	setup   control.Setup
	book    account.Book
	overdue chan struct{} // closed when the sandbox's time is over

	envd            *handoff
	interpreterPort *handoff

	mu       sync.Mutex
	env      map[string]string
	version  int64 // of env
	token    string
	user     string
	workdir  string
	deadline *time.Timer
}

func newServer(s control.Setup, lent map[string][]*os.File, log *slog.Logger) (*server, error) {
	srv := &server{
		setup: s, book: account.Book{Single: s.Single},
		overdue: make(chan struct{}), user: account.UserName,
		envd: newHandoff(), interpreterPort: newHandoff(),
	}
	table, err := process.NewTable(tableOptions(s, lent[control.FileWork], log))
	if err != nil {
		return nil, err
	}
	judge := &process.Judge{Counters: counters(lent), Disk: "/", Limits: e2b.Limits{
		MemoryBytes: s.MemoryBytes, DiskBytes: s.DiskBytes, Processes: s.ProcessLimit, OpenFiles: s.OpenFiles,
	}}
	processes := process.NewService(process.Options{
		Table: table, Book: srv.book, Env: srv.environ, DefaultUser: srv.defaultUser,
		DefaultDir: srv.defaultDir, Judge: judge, LogDir: logDir, Logger: log,
	})
	files := filesystem.New(filesystem.Options{
		Book: srv.book, DefaultUser: srv.defaultUser, DefaultDir: srv.defaultDir,
		Signature: srv.checkSignature, Logger: log,
	})
	code := interpreter.New(interpreter.Options{
		Table: table, Judge: judge, Book: srv.book, User: srv.defaultUser, Env: srv.environ,
		EnvVersion: srv.envVersion, DefaultDir: "/home/user", RunDir: runDir, LogDir: logDir,
		ScanDirs: []string{"/app", "/home/user", "/tmp", "/root"}, Logger: log,
	})
	// These end with the sandbox.
	go func() { _ = newHTTPServer(srv.handler(processes, files), log).Serve(srv.envd) }()
	go func() { _ = newHTTPServer(code, log).Serve(srv.interpreterPort) }()
	go func() { _ = code.Prepare() }() // the first kernel tells its error
	return srv, nil
}

func tableOptions(s control.Setup, work []*os.File, log *slog.Logger) process.TableOptions {
	o := process.TableOptions{Logger: log, NoCredential: s.Single, Reap: true}
	if s.Single {
		o.OpenFiles = uint64(s.OpenFiles)
	}
	switch {
	case len(work) == 0:
	case s.CgroupFD:
		o.CgroupFD = int(work[0].Fd())
	default:
		// "0" is whoever writes: the one thread that starts every process, which
		// are then born in the workload's part of the cgroup.
		o.Prepare = func() error {
			for _, f := range work {
				if _, err := f.WriteString("0"); err != nil {
					return fmt.Errorf("join the workload's cgroup: %w", err)
				}
			}
			return nil
		}
	}
	return o
}

func counters(files map[string][]*os.File) setup.Counters {
	one := func(name string) *os.File {
		if f := files[name]; len(f) == 1 {
			return f[0]
		}
		return nil
	}
	return setup.Counters{OOM: one(control.FileOOM), Pids: one(control.FilePids), Peak: one(control.FileMemoryPeak)}
}

func (s *server) handler(processes *process.Service, files *filesystem.Service) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(processes.Handler())
	mux.Handle(files.Handler())
	mux.Handle("/files", files.Files())
	mux.Handle("/files/", files.Files())
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("GET /envs", s.serveEnvs)
	mux.HandleFunc("POST /init", s.serveInit)
	return s.authorize(mux)
}

// authorize asks for the sandbox's token, where it has one, on all but the
// routes that have their own rule: health has none, files take a signature
// instead, and init comes from the host alone, which the gateway sees to.
func (s *server) authorize(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		open := r.URL.Path == "/health" || r.URL.Path == "/files" || r.URL.Path == "/init"
		if !open && !s.tokenOK(r) {
			writeError(w, http.StatusUnauthorized, "the sandbox's access token is missing or wrong (header X-Access-Token)")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *server) tokenOK(r *http.Request) bool {
	s.mu.Lock()
	token := s.token
	s.mu.Unlock()
	return token == "" || subtle.ConstantTimeCompare([]byte(token), []byte(r.Header.Get(e2b.HeaderAccessToken))) == 1
}

// checkSignature lets a request to /files through by token or by signed URL.
func (s *server) checkSignature(r *http.Request, op string) error {
	s.mu.Lock()
	token := s.token
	s.mu.Unlock()
	if token == "" || s.tokenOK(r) {
		return nil
	}
	if r.Header.Get(e2b.HeaderAccessToken) != "" {
		return errors.New("the sandbox's access token is wrong")
	}
	q := r.URL.Query()
	got := q.Get("signature")
	if got == "" {
		return errors.New("missing signature query parameter")
	}
	var expires int64
	if v := q.Get("signature_expiration"); v != "" {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return errors.New("invalid signature expiration")
		}
		expires = n
	}
	want := e2b.Sign(q.Get("path"), op, q.Get("username"), token, expires)
	if subtle.ConstantTimeCompare([]byte(got), []byte(want)) != 1 {
		return errors.New("invalid signature")
	}
	if expires != 0 && time.Now().Unix() > expires {
		return errors.New("signature is already expired")
	}
	return nil
}

func (s *server) serveEnvs(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	env := maps.Clone(s.env)
	s.mu.Unlock()
	if env == nil {
		env = map[string]string{}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(env) // a gone client needs no answer
}

func (s *server) serveInit(w http.ResponseWriter, r *http.Request) {
	var in e2b.Init
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<20)).Decode(&in); err != nil {
		writeError(w, http.StatusBadRequest, "init: "+err.Error())
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.EnvVars != nil && !maps.Equal(in.EnvVars, s.env) {
		s.env = in.EnvVars
		s.version++
	}
	if in.AccessToken != nil {
		s.token = *in.AccessToken
	}
	if in.DefaultUser != "" {
		s.user = in.DefaultUser
	}
	if in.DefaultWorkdir != "" {
		s.workdir = in.DefaultWorkdir
	}
	if in.Abx != nil && in.Abx.LifetimeMS > 0 {
		s.live(time.Duration(in.Abx.LifetimeMS) * time.Millisecond)
	}
	w.WriteHeader(http.StatusNoContent)
}

// live moves the deadline after which the agent ends by itself, should its
// host hang. The caller holds mu.
func (s *server) live(d time.Duration) {
	if s.deadline == nil {
		s.deadline = time.AfterFunc(d, sync.OnceFunc(func() { close(s.overdue) }))
		return
	}
	s.deadline.Reset(d)
}

func (s *server) envVersion() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

func (s *server) defaultUser() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.user
}

func (s *server) defaultDir(a account.Account) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.workdir != "" {
		return s.workdir
	}
	return a.Home
}

// environ is what every process of a user starts with: what a login would give
// it, then the sandbox's own variables.
func (s *server) environ(a account.Account) []string {
	path := s.setup.Path
	if a.Name != account.UserName {
		path = strings.ReplaceAll(path, "/home/user/.", a.Home+"/.")
	}
	env := []string{
		"PATH=" + path, "HOME=" + a.Home, "USER=" + a.Name, "LOGNAME=" + a.Name,
		"LANG=C.UTF-8", "NPM_CONFIG_PREFIX=" + a.Home + "/.npm-global",
		"NODE_PATH=" + a.Home + "/.npm-global/lib/node_modules",
		// pip turns to the user's folder by itself, the system's being read-only;
		// told to, it would refuse --target and virtual environments.
		"PYTHONUSERBASE=" + a.Home + "/.local", "PIP_BREAK_SYSTEM_PACKAGES=1",
		"PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_ROOT_USER_ACTION=ignore",
	}
	env = append(env, s.setup.Env...)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(s.env)) {
		env = append(env, k+"="+s.env[k])
	}
	return env
}

func writeError(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(e2b.Error{Code: status, Message: message}) // a gone client needs no answer
}
