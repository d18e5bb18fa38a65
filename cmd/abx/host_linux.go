package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/agent-sandbox/abx/internal/agent"
	"github.com/agent-sandbox/abx/internal/cli"
	"github.com/agent-sandbox/abx/internal/host"
	"github.com/agent-sandbox/abx/internal/host/driver/namespace"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// roles are what this program is when it is started again by itself.
var roles = map[string]func(args []string) error{
	// PID 1 of a sandbox, in a build that carries no separate agent.
	namespace.RoleAgent: func([]string) error { return agent.Run(build) },
	// Cleans up after a host that was killed.
	namespace.RoleJanitor: namespace.Janitor,
}

// defaultPool is how many warmed sandboxes wait for one client on STDIO.
const defaultPool = 1

// newHost starts the embedded host.
func newHost(ctx context.Context, o cli.HostOptions) (*cli.Host, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, errors.New("the home folder is unknown (set HOME): records of running sandboxes go there")
	}
	limits, err := engine.DefaultLimits().Given(engine.Limits{
		MemoryBytes: o.MemoryBytes, DiskBytes: o.DiskBytes, Processes: o.Processes, OpenFiles: o.OpenFiles,
	})
	if err != nil {
		return nil, err
	}
	pool := o.PoolSize
	if pool < 0 {
		pool = defaultPool
	}
	h, err := host.NewLocal(ctx, host.LocalOptions{
		StateDir: filepath.Join(home, ".abx", "run", "hosts"), Build: build,
		Path: os.Getenv("PATH"), Env: os.Environ(), Home: home,
		Limits: &limits, MaxSandboxes: o.MaxSandboxes,
		PoolSize: pool, PoolTemplate: o.Template, Domain: o.Domain, Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
	iso := h.Isolation()
	return &cli.Host{Transport: h.Transport(), Isolation: iso.Tier, Notes: iso.Notes, Close: h.Close}, nil
}
