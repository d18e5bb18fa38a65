//go:build !linux

package namespace

import (
	"context"
	"fmt"
	"runtime"

	"github.com/agent-sandbox/abx/internal/host/engine"
)

// Driver exists on Linux; elsewhere New refuses.
type Driver struct{}

// New answers engine.ErrUnsupported: namespaces are Linux's.
func New(Options) (*Driver, error) {
	return nil, fmt.Errorf("%w: sandboxes on this machine need Linux, this is %s: use a remote server or the cloud", engine.ErrUnsupported, runtime.GOOS)
}

// Start answers engine.ErrUnsupported.
func (*Driver) Start(context.Context, engine.Spec) (engine.Sandbox, error) {
	return nil, engine.ErrUnsupported
}

// Isolation is empty.
func (*Driver) Isolation() engine.Isolation { return engine.Isolation{} }

// Close does nothing.
func (*Driver) Close() error { return nil }

// Janitor answers engine.ErrUnsupported.
func Janitor([]string) error { return engine.ErrUnsupported }
