// Package gateway carries requests to ports inside sandboxes, as the wire
// names them: by host name, by header, or, for a signed file URL, by whose
// signature it is. It holds one pool of connections for each sandbox, and no
// state that outlives it.
//
// Its one invariant: what a client reads from it is what the port sent, whole,
// or an error; the death of a sandbox never looks like a clean end. Nothing
// that an agent or a server inside sends is trusted.
package gateway

import (
	"bytes"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"log"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// Options of a Gateway. The zero value works.
type Options struct {
	// MaxRequests at once into one sandbox; more get 429. Default 2048.
	MaxRequests int
	// Logger defaults to none.
	Logger *slog.Logger
}

// Gateway is the http.Handler of the data plane. Safe for concurrent use.
type Gateway struct {
	engine *engine.Engine
	opts   Options
	log    *slog.Logger
	errors *log.Logger // of net/http

	mu     sync.Mutex
	routes map[string]*route
	wg     sync.WaitGroup
}

// New makes a Gateway to the sandboxes of e.
func New(e *engine.Engine, opts Options) *Gateway {
	if opts.MaxRequests <= 0 {
		opts.MaxRequests = 2048
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return &Gateway{
		engine: e,
		opts:   opts,
		log:    opts.Logger,
		errors: slog.NewLogLogger(opts.Logger.Handler(), slog.LevelDebug),
		routes: map[string]*route{},
	}
}

// Close waits until the connections to all sandboxes are gone. Call it after
// the engine's Close, which ends them.
func (g *Gateway) Close() error {
	g.wg.Wait()
	return nil
}

// Handles reports whether r is for a sandbox; otherwise it is for the control
// plane.
func (g *Gateway) Handles(r *http.Request) bool {
	if _, ok, err := e2b.ParseRequest(r); ok || err != nil {
		return true
	}
	return isFileURL(r)
}

// ServeHTTP carries r to its port.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to, named, err := g.address(r)
	if err != nil {
		status := http.StatusBadRequest
		if errors.Is(err, errUnsigned) {
			status = http.StatusUnauthorized
		}
		writeError(w, r, status, err.Error())
		return
	}
	if r.Method == http.MethodConnect {
		writeError(w, r, http.StatusMethodNotAllowed, "CONNECT is not carried into sandboxes")
		return
	}
	if hidden(to.Port, r.URL) {
		writeError(w, r, http.StatusNotFound, "no such route")
		return
	}
	box, info, err := g.engine.Find(to.SandboxID)
	if err != nil {
		writeNotFound(w, r, to.SandboxID, err)
		return
	}
	if !admitted(r, to, info) {
		writeError(w, r, http.StatusForbidden, "the ports of this sandbox are private; send its traffic access token in "+e2b.HeaderTraffic)
		return
	}
	if !named {
		// A page out of a sandbox's file must not get the control plane's origin.
		w = &sealed{ResponseWriter: w}
	}
	g.route(to.SandboxID, box).serve(w, r, to, info)
}

// address finds the port that r is for; named is false when only a signature
// tells it. Names that contradict each other are refused: what stands before us
// may have judged by one of them.
func (g *Gateway) address(r *http.Request) (to e2b.Address, named bool, err error) {
	for _, name := range []string{e2b.HeaderSandboxID, e2b.HeaderSandboxPort} {
		if len(r.Header.Values(name)) > 1 {
			return to, false, errors.New("header " + name + " is there more than once")
		}
	}
	to, named, err = e2b.ParseRequest(r)
	if err != nil {
		return to, false, err
	}
	if !named {
		to, err = g.signer(r)
		return to, false, err
	}
	if host, ok := e2b.ParseHost(r.Host); ok && host != to {
		return to, false, errors.New("the host name and the " + e2b.HeaderSandboxID + " headers name different ports of sandboxes")
	}
	return to, true, nil
}

// control lists what the agent answers to its host only, by the first segment
// of the path.
var control = map[string]bool{
	"init": true, "freeze": true, "unfreeze": true, "thaw": true, "fsfreeze": true, "fsunfreeze": true, "fsthaw": true,
	"collapse": true, "snapshot": true, "shutdown": true, "debug": true, "abx": true,
}

// hidden reports whether u is a control route of the agent, however it is
// spelt: encoded (more than once, too), in capitals, with dots or slashes.
func hidden(port int, u *url.URL) bool {
	if port != e2b.PortAgent && port != e2b.PortInterpreter {
		return false
	}
	p := u.Path
	if p == "" {
		p = u.Opaque
	}
	for range 4 {
		clean := path.Clean("/" + strings.ReplaceAll(p, "\\", "/"))
		first, _, _ := strings.Cut(clean[1:], "/")
		first = strings.ToLower(strings.TrimSpace(first))
		if first, _, _ = strings.Cut(first, ";"); control[first] {
			return true
		}
		next, err := url.PathUnescape(p)
		if err != nil || next == p {
			return false
		}
		p = next
	}
	return true // nobody honest encodes that often
}

// admitted checks the token of private ports. The agent's port has a token of
// its own, which the agent checks.
func admitted(r *http.Request, to e2b.Address, info engine.Info) bool {
	if info.TrafficToken == "" || to.Port == e2b.PortAgent {
		return true
	}
	got := r.Header.Get(e2b.HeaderTraffic)
	return subtle.ConstantTimeCompare([]byte(got), []byte(info.TrafficToken)) == 1
}

// writeNotFound answers for a sandbox that is not there, in the words that
// E2B's SDKs wait for.
func writeNotFound(w http.ResponseWriter, r *http.Request, id string, err error) {
	if reason := engine.Reason(err); reason != "" {
		w.Header().Set(e2b.HeaderReason, reason)
	}
	write(w, r, http.StatusBadGateway, e2b.NotFoundError{
		SandboxID: id, Message: e2b.MessageSandboxNotFound, Code: http.StatusBadGateway,
	})
}

func writePortClosed(w http.ResponseWriter, r *http.Request, to e2b.Address) {
	write(w, r, http.StatusBadGateway, e2b.PortClosedError{
		SandboxID: to.SandboxID, Message: e2b.MessagePortClosed, Port: to.Port, Code: http.StatusBadGateway,
	})
}

func writeError(w http.ResponseWriter, r *http.Request, status int, message string) {
	write(w, r, status, e2b.Error{Code: status, Message: message})
}

// write sends an answer of the gateway's own. What is left of the request's
// body is not worth reading, so the connection ends with it.
func write(w http.ResponseWriter, r *http.Request, status int, body any) {
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(body) // plain structs: cannot fail
	out := bytes.TrimSpace(data.Bytes())
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(out)))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if r.ContentLength != 0 && r.ProtoMajor == 1 {
		h.Set("Connection", "close")
	}
	w.WriteHeader(status)
	w.Write(out)
}
