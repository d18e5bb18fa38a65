// Package server is E2B's control plane over an engine: REST routes that
// create, list, extend and end sandboxes. It translates and checks; it keeps
// nothing. What E2B's API has and this host has not is answered by name (501).
//
// Its one invariant: every error is {"code": status, "message": text} with the
// status of the HTTP answer, and no text of an unknown error leaves the host.
//
// To add a route: a line in routes, a method beside its kin, and, if it was
// there before, out of the list in unsupported.go.
package server

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"runtime"
	"strconv"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// Options of a Server. The zero value works.
type Options struct {
	// Domain that sandboxes' host names end in, as clients can resolve it; it
	// may hold a port. Empty: clients must route by header.
	Domain string
	// Secure gives sandboxes created over the v1 route a token also when the
	// client did not say. Those of v2 always have one.
	Secure bool
	// Logger defaults to none.
	Logger *slog.Logger
}

// Server is the http.Handler of the control plane. It asks for no key: see
// Guard. Safe for concurrent use.
type Server struct {
	engine *engine.Engine
	opts   Options
	log    *slog.Logger
	mux    *http.ServeMux
}

// New makes a Server over e.
func New(e *engine.Engine, opts Options) *Server {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{engine: e, opts: opts, log: opts.Logger, mux: http.NewServeMux()}
	s.routes()
	return s
}

// endpoint answers one route: with a status and a body (nil for none), or with
// an error for the table.
type endpoint func(w http.ResponseWriter, r *http.Request) (status int, body any, err error)

func (s *Server) routes() {
	for pattern, serve := range map[string]endpoint{
		"GET /health":                     s.health,
		"POST /sandboxes":                 s.createV1,
		"POST /v2/sandboxes":              s.createV2,
		"GET /sandboxes":                  s.listV1,
		"GET /v2/sandboxes":               s.listV2,
		"GET /sandboxes/{id}":             s.get,
		"DELETE /sandboxes/{id}":          s.kill,
		"POST /sandboxes/{id}/timeout":    s.setTimeout,
		"POST /sandboxes/{id}/refreshes":  s.refresh,
		"POST /sandboxes/{id}/connect":    s.connectV1,
		"POST /v2/sandboxes/{id}/connect": s.connectV2,
	} {
		s.mux.Handle(pattern, s.endpoint(serve))
	}
	for pattern, feature := range unsupported {
		s.mux.Handle(pattern, s.endpoint(func(http.ResponseWriter, *http.Request) (int, any, error) {
			return 0, nil, engine.Errorf(engine.ErrUnsupported, "%s not supported by this host", feature)
		}))
	}
}

func (s *Server) endpoint(serve endpoint) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, body, err := serve(w, r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		writeJSON(w, status, body)
	})
}

// ServeHTTP answers r. Unknown routes and wrong methods are JSON, too.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	handler, pattern := s.mux.Handler(r)
	if pattern != "" {
		s.mux.ServeHTTP(w, r)
		return
	}
	// The mux's own answer is text; its status and Allow are what we want.
	var plain statusOnly
	handler.ServeHTTP(&plain, r)
	if plain.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", plain.Header().Get("Allow"))
		writeError(w, http.StatusMethodNotAllowed, "method "+clip(r.Method)+" is not allowed for "+clip(r.URL.Path)+"; allowed: "+plain.Header().Get("Allow"))
		return
	}
	writeError(w, http.StatusNotFound, "no such route: "+clip(r.Method)+" "+clip(r.URL.Path))
}

// statusOnly is a ResponseWriter that keeps no body.
type statusOnly struct {
	header http.Header
	status int
}

func (s *statusOnly) Header() http.Header {
	if s.header == nil {
		s.header = http.Header{}
	}
	return s.header
}
func (s *statusOnly) WriteHeader(status int)      { s.status = status }
func (s *statusOnly) Write(p []byte) (int, error) { return len(p), nil }

func (s *Server) health(http.ResponseWriter, *http.Request) (int, any, error) {
	return http.StatusNoContent, nil, nil
}

func (s *Server) get(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	info, err := s.engine.Get(r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, e2b.SandboxDetail{
		ListedSandbox:   listed(info),
		EnvdAccessToken: info.AccessToken,
		Domain:          s.domain(),
		Lifecycle:       &e2b.Lifecycle{OnTimeout: "kill"},
		Abx:             s.about(info),
	}, nil
}

func (s *Server) kill(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusNoContent, nil, s.engine.Kill(r.Context(), r.PathValue("id"))
}

// domain is what clients build host names with; nil for none.
func (s *Server) domain() *string {
	if s.opts.Domain == "" {
		return nil
	}
	return &s.opts.Domain
}

// about says in what a sandbox is kept. A limit that is not enforced is left
// out; the notes tell why.
func (s *Server) about(info engine.Info) *e2b.SandboxAbx {
	in := s.engine.Isolation()
	limits := e2b.Limits{
		MemoryBytes: info.Limits.MemoryBytes,
		DiskBytes:   info.Limits.DiskBytes,
		Processes:   info.Limits.Processes,
		OpenFiles:   info.Limits.OpenFiles,
	}
	if !in.MemoryEnforced {
		limits.MemoryBytes = 0
	}
	if !in.ProcessesEnforced {
		limits.Processes = 0
	}
	network := in.Network
	if network == "" {
		network = "none"
	}
	return &e2b.SandboxAbx{Isolation: in.Tier, Notes: in.Notes, Network: network, Limits: &limits}
}

// clientID is a field that E2B deprecated; old SDKs put it into host names.
const clientID = "00000000"

// answer is what create and connect send.
func (s *Server) answer(info engine.Info) e2b.Sandbox {
	out := e2b.Sandbox{
		TemplateID:      info.Template,
		SandboxID:       info.ID,
		ClientID:        clientID,
		EnvdVersion:     e2b.EnvdVersion,
		Alias:           info.Template,
		EnvdAccessToken: info.AccessToken,
		Domain:          s.domain(),
		Abx:             s.about(info),
	}
	if info.TrafficToken != "" {
		out.TrafficAccessToken = &info.TrafficToken
	}
	return out
}

// What a sandbox without limits is said to have: SDKs expect numbers.
const (
	unlimitedMemoryMB = 2048
	unlimitedDiskMB   = 1024
)

// listed is info as lists show it.
func listed(info engine.Info) e2b.ListedSandbox {
	memory, disk := int(info.Limits.MemoryBytes>>20), int(info.Limits.DiskBytes>>20)
	if memory == 0 {
		memory = unlimitedMemoryMB
	}
	if disk == 0 {
		disk = unlimitedDiskMB
	}
	return e2b.ListedSandbox{
		TemplateID:  info.Template,
		SandboxID:   info.ID,
		ClientID:    clientID,
		Alias:       info.Template,
		StartedAt:   info.StartedAt.UTC(),
		EndAt:       info.EndAt.UTC(),
		CPUCount:    runtime.NumCPU(),
		MemoryMB:    memory,
		DiskSizeMB:  disk,
		State:       e2b.StateRunning,
		EnvdVersion: e2b.EnvdVersion,
		Metadata:    info.Metadata,
	}
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	if body == nil {
		w.WriteHeader(status)
		return
	}
	data, err := json.Marshal(body)
	if err != nil { // only our own structs come here
		panic(err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(data)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	w.Write(data)
}

func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "..."
	}
	return s
}
