//go:build linux

// Command abx-agent is the program that runs as PID 1 inside a sandbox. It is
// built first and carried inside abx; people do not start it.
package main

import (
	"fmt"
	"os"

	"github.com/agent-sandbox/abx/internal/agent"
)

// build is stamped by make; the host's must be the same.
var build string

func main() {
	if err := agent.Run(build); err != nil {
		fmt.Fprintln(os.Stderr, "abx-agent:", err)
		os.Exit(1)
	}
}
