// Package cgroup makes, fills and removes control groups, version 1 and 2. It
// knows nothing of sandboxes. Groups are made below the group that this process
// is in (or, with version 2, its nearest ancestor that may have children), so
// that whoever limits this process limits them too.
//
// Version 1 was measured; version 2 with delegated controllers was written from
// the kernel's documentation and could be tried only as far as a hierarchy
// without controllers allows. Windows and macOS have no cgroups: every function
// answers ErrNone there.
package cgroup

import "errors"

// ErrNone is wrapped when this process may not make groups here; its text says why.
var ErrNone = errors.New("no usable cgroup")

// Limits of a group; zero is none.
type Limits struct {
	MemoryBytes int64 // of everything in the group, files in tmpfs included
	Processes   int64 // of the work part
}
