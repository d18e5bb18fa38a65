//go:build cgo

package namespace

// builtWithCgo: the runtime then cannot change capabilities on all of its
// threads, so this program cannot be its own agent.
const builtWithCgo = true
