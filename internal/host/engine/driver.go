package engine

import (
	"context"
	"net"
	"time"
)

// A Driver runs sandboxes on one kind of isolation. Implementations pass
// drivertest.Run and are safe for concurrent use.
//
// To add a driver: fill this interface in a package of its own under
// internal/host/driver, run drivertest.Run in its tests, and name it in
// internal/host/host.go (and its re-exec roles, if any, in cmd/abx).
type Driver interface {
	// Start makes a sandbox and returns when its agent answers. ctx bounds the
	// start only. On an error nothing is left behind.
	Start(ctx context.Context, spec Spec) (Sandbox, error)
	// Isolation says what sandboxes of this driver are kept in.
	Isolation() Isolation
	// Close ends what the driver itself holds (helper processes, folders).
	// Sandboxes must be closed before. Safe to call twice.
	Close() error
}

// Spec says what to start. All fields but Template's are required.
type Spec struct {
	ID       string // [a-z0-9]+; also the host name inside
	Template string
	Limits   Limits
}

// Limits of one sandbox. Zero means no limit for that resource.
type Limits struct {
	MemoryBytes int64
	DiskBytes   int64
	Processes   int64
	OpenFiles   int64
}

// Isolation describes what a driver gives on this machine.
type Isolation struct {
	Tier  string   // namespace, gvisor
	Notes []string // what this machine could not give, a sentence each
	// Enforced is false for a limit that Notes explains away.
	MemoryEnforced, ProcessesEnforced bool
	// Network is what sandboxes can reach: none, open, allow. Empty means none.
	Network string
}

// Sandbox is one started sandbox, without identity or lifetime: those are the
// engine's. Safe for concurrent use.
type Sandbox interface {
	// Dial connects to a port inside: e2b.PortAgent and e2b.PortInterpreter are
	// the agent's own, any other is a TCP port on the sandbox's loopback. An
	// error that wraps ErrPortClosed means that nothing listens there; one that
	// wraps ErrLost, that the sandbox is gone.
	Dial(ctx context.Context, port int) (net.Conn, error)
	// Done is closed when the sandbox is gone, however it went.
	Done() <-chan struct{}
	// Err says why it went; nil before Done and after Close.
	Err() error
	// Close kills everything inside and removes all that the sandbox had on
	// this machine; it returns when that is done. Safe to call twice.
	Close() error
}

// Default limits; see the settings of the same names in docs/settings.md.
const (
	DefaultMemoryBytes = 2 << 30
	DefaultDiskBytes   = 1 << 30
	DefaultProcesses   = 512
	DefaultOpenFiles   = 4096
	DefaultSandboxes   = 256            // at once on a host
	MaxLifetime        = 24 * time.Hour // of one sandbox
)

// Names of the templates that every machine has, without a download.
const (
	TemplateBase            = "base"
	TemplateCodeInterpreter = "code-interpreter-v1"
)
