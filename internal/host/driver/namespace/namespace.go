// Package namespace is the driver that keeps sandboxes in Linux namespaces: of
// users, mounts, processes, network, IPC, host name and cgroups, with a root
// made from an allow list and a system call filter. It needs no daemon, no
// root and no download. It is not for code of strangers on a machine that
// matters: the kernel is shared.
//
// A sandbox is one child process, the agent, PID 1 of its namespace. What the
// kernel does not take away when that dies (cgroup folders) the janitor does,
// a small process that outlives this one.
package namespace

import (
	"log/slog"
)

// Roles of this program that Driver starts it in; cmd/abx maps them.
const (
	RoleAgent   = "abx-agent"
	RoleJanitor = "abx-janitor"
)

// Tier is the name of what this driver gives.
const Tier = "namespace"

// Options for New. StateDir is required.
type Options struct {
	// StateDir holds records of running hosts, so that a later one can sweep
	// what a dead one left. It is made if missing.
	StateDir string
	// Build identifies this program; an agent of another build is refused.
	Build string
	// Path is the PATH by which interpreters of the host are found.
	Path string
	// Env is the environment in which a shimmed interpreter (pyenv, nvm) is
	// asked where it really lives. Nothing of it reaches a sandbox.
	Env []string
	// Home is the home folder of whoever runs this, for the same purpose.
	Home string
	// Single maps one user id even where more could be had; for tests.
	Single bool
	// NoCgroup uses no cgroups even where they could be had; for tests.
	NoCgroup bool
	Logger   *slog.Logger // nil discards
}
