// Package host runs sandboxes on this machine and serves E2B's wire for them:
// it puts together an engine over a driver, the control plane and the gateway.
// Clients reach it in memory (Transport) or over any listener (Handler); both
// ways end in the same handlers.
//
// Its one invariant: when Close has returned, nothing of any sandbox is left.
package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/agent-sandbox/abx/internal/host/engine"
	"github.com/agent-sandbox/abx/internal/host/gateway"
	"github.com/agent-sandbox/abx/internal/host/server"
)

// Options of a Host. All but Driver may be zero.
type Options struct {
	// Driver that runs the sandboxes; the Host closes it, also when New fails.
	Driver engine.Driver
	// Domain of sandboxes' host names (PORT-ID.DOMAIN), as clients resolve it;
	// it may hold a port. Empty: clients route by header.
	Domain string
	// Templates that exist; see engine.Options.
	Templates []string
	// Limits of every sandbox; nil means engine.DefaultLimits.
	Limits *engine.Limits
	// MaxSandboxes at once; 0 means engine.DefaultSandboxes.
	MaxSandboxes int
	// MaxLifetime of one sandbox; 0 means engine.MaxLifetime.
	MaxLifetime time.Duration
	// PoolSize is how many warmed sandboxes wait; 0 for none.
	PoolSize int
	// PoolTemplate is what they are made of; see engine.Options.
	PoolTemplate string
	// Secure gives every sandbox an access token, also when an old client did
	// not ask for one.
	Secure bool
	// APIKeys that Handler accepts on the control plane. None: it is open to
	// programs that reach it, and closed to web pages. Transport asks for none.
	APIKeys []string
	// Logger defaults to none.
	Logger *slog.Logger
}

// Host is a running host. Safe for concurrent use.
type Host struct {
	driver    engine.Driver
	engine    *engine.Engine
	gateway   *gateway.Gateway
	handler   http.Handler // for listeners: asks for keys
	transport *transport
}

// New makes a host. ctx bounds the making only. The caller closes the Host.
func New(ctx context.Context, o Options) (*Host, error) {
	if o.Driver == nil {
		return nil, errors.New("host without a driver")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := context.Cause(ctx); err != nil {
		return nil, errors.Join(err, o.Driver.Close())
	}
	limits := engine.DefaultLimits()
	if o.Limits != nil {
		limits = *o.Limits
	}
	eng, err := engine.New(o.Driver, engine.Options{
		Templates:    o.Templates,
		Limits:       limits,
		MaxSandboxes: o.MaxSandboxes,
		MaxLifetime:  o.MaxLifetime,
		PoolSize:     o.PoolSize,
		PoolTemplate: o.PoolTemplate,
		Logger:       o.Logger,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("host: %w", err), o.Driver.Close())
	}
	control := server.New(eng, server.Options{Domain: o.Domain, Secure: o.Secure, Logger: o.Logger})
	gate := gateway.New(eng, gateway.Options{Logger: o.Logger})
	guarded := server.Guard(control, server.GuardOptions{Keys: o.APIKeys, Domain: o.Domain})
	return &Host{
		driver:    o.Driver,
		engine:    eng,
		gateway:   gate,
		handler:   planes(gate, guarded),
		transport: newTransport(planes(gate, control), o.Logger),
	}, nil
}

// planes sends a request to the gateway or to the control plane.
func planes(gate *gateway.Gateway, control http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if gate.Handles(r) {
			gate.ServeHTTP(w, r)
			return
		}
		control.ServeHTTP(w, r)
	})
}

// Handler serves both planes to a listener. Its http.Server must have no
// WriteTimeout and no ReadTimeout: streams last as long as sandboxes do.
func (h *Host) Handler() http.Handler { return h.handler }

// Transport calls both planes in memory, without an API key. The host part of
// a URL is as good as any; requests for sandboxes name them by header or host
// as over a network. WebSockets need a listener.
func (h *Host) Transport() http.RoundTripper { return h.transport }

// Isolation says what sandboxes are kept in.
func (h *Host) Isolation() engine.Isolation { return h.engine.Isolation() }

// Sandboxes is how many sandboxes run or start, those that wait in the pool not
// counted.
func (h *Host) Sandboxes() int { return h.engine.Len() }

// Close ends all sandboxes and requests, then the driver. Safe to call twice.
func (h *Host) Close() error {
	err := h.engine.Close()
	h.transport.close()
	if err == nil { // else a sandbox still has its connections
		err = h.gateway.Close()
	}
	return errors.Join(err, h.driver.Close())
}
