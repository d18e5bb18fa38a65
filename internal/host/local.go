package host

import (
	"context"
	"log/slog"

	"github.com/agent-sandbox/abx/internal/host/driver/namespace"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// LocalOptions of a host on this machine. StateDir is required.
type LocalOptions struct {
	// StateDir holds records of running hosts; see namespace.Options.
	StateDir string
	// Build identifies this program and the agent that it carries.
	Build string
	// Path, Env and Home find the interpreters of whoever runs this; nothing of
	// them reaches a sandbox.
	Path string
	Env  []string
	Home string

	Limits       *engine.Limits // nil means engine.DefaultLimits
	MaxSandboxes int            // 0 means engine.DefaultSandboxes
	PoolSize     int
	PoolTemplate string
	Domain       string
	Logger       *slog.Logger
}

// NewLocal makes a host whose sandboxes run on this machine, in namespaces.
// The caller closes it.
func NewLocal(ctx context.Context, o LocalOptions) (*Host, error) {
	driver, err := namespace.New(namespace.Options{
		StateDir: o.StateDir, Build: o.Build, Path: o.Path, Env: o.Env, Home: o.Home, Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
	return New(ctx, Options{
		Driver: driver, Domain: o.Domain, Limits: o.Limits, MaxSandboxes: o.MaxSandboxes,
		PoolSize: o.PoolSize, PoolTemplate: o.PoolTemplate, Secure: true, Logger: o.Logger,
	})
}
