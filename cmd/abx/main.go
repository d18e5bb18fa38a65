// Command abx runs code of AI agents in isolated sandboxes. This file is the
// map of the program: what it is when it is started by a person or an IDE, and
// the roles in which it starts itself again.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/agent-sandbox/abx/internal/cli"
)

// Stamped by make. build identifies this program and the agent inside it.
var (
	version = "dev"
	build   = "dev"
)

func main() {
	// A role is argv[0]: see package reexec.
	if role, ok := roles[os.Args[0]]; ok {
		if err := role(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, os.Args[0]+":", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(cli.Run(context.Background(), newEnv(), os.Args[1:]))
}

// newEnv is the world outside, as the command line sees it.
func newEnv() *cli.Env {
	home, _ := os.UserHomeDir() // "": commands that need it say so
	dir, _ := os.Getwd()
	return &cli.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		LookupEnv: os.LookupEnv, Home: home, Dir: dir,
		Version: version, Build: build, NewHost: newHost,
	}
}
