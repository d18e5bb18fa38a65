//go:build !linux

package main

import (
	"context"

	"github.com/agent-sandbox/abx/internal/cli"
)

// roles are Linux's: there is no engine here.
var roles map[string]func(args []string) error

// newHost is nil: sandboxes run on this machine on Linux only.
var newHost func(context.Context, cli.HostOptions) (*cli.Host, error)
