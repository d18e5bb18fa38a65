//go:build !cgo

package namespace

// builtWithCgo is false: this program can be its own agent.
const builtWithCgo = false
