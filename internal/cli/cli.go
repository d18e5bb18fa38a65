// Package cli is the command line: it reads settings, puts client, host and
// MCP server together, and prints. Each command is a file that bears its
// words, as mcp_start.go; exit.go maps errors to exit codes. It holds no
// globals: everything from outside comes by Env.
//
// To add a command: a file that bears its words, with its options, newX (flags
// only) and runX (resolve, call one package, print); add newX to its parent
// here, and a script to testdata/script.
//
// Its one invariant: standard output is a command's result (or JSON-RPC) and
// nothing else; notes and errors go to standard error.
package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"

	"github.com/spf13/cobra"

	"github.com/agent-sandbox/abx/internal/config"
)

// Env is all that the commands have of the world outside.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	LookupEnv      func(name string) (string, bool)
	Home           string // the user's, "" when unknown
	Dir            string // the working folder
	Version, Build string // of the program; "" is "dev"
	// NewHost starts the embedded host. ctx bounds the start; the caller closes
	// the Host. An error may have a method Next() string that says what to do.
	// nil: this abx has no embedded host.
	NewHost func(ctx context.Context, o HostOptions) (*Host, error)

	json bool
}

// HostOptions are the settings of an embedded host. Zero means the default.
type HostOptions struct {
	Isolation    string // auto, namespace or gvisor; "" is auto
	Domain       string // of the hosts of sandboxes
	Template     string // that a pool keeps warm
	PoolSize     int    // -1: not set
	MaxSandboxes int

	MemoryBytes, DiskBytes, Processes, OpenFiles int64 // of each sandbox

	Logger *slog.Logger // never nil
}

// A Host runs sandboxes on this machine.
type Host struct {
	Transport http.RoundTripper
	Isolation string   // the tier in force
	Notes     []string // what this machine could not give, in sentences
	Close     func() error
}

// Run runs the command line args, without the program's name, and returns the
// exit code.
func Run(ctx context.Context, env *Env, args []string) int {
	env.fill()
	root := newRoot(env)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	return env.report(cmd, err)
}

func (e *Env) fill() {
	if e.Version == "" {
		e.Version = "dev"
	}
	if e.LookupEnv == nil {
		e.LookupEnv = func(string) (string, bool) { return "", false }
	}
	e.Stderr = &lockedWriter{w: e.Stderr}
}

func newRoot(env *Env) *cobra.Command {
	version := false
	root := &cobra.Command{
		Use:   "abx",
		Short: "Run code of AI agents in isolated sandboxes",
		Long: "abx runs code and commands of AI agents in isolated Linux sandboxes, on this machine,\n" +
			"and offers them to AI IDEs over the Model Context Protocol (MCP).",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          commandsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				return runVersion(env)
			}
			return cmd.Help()
		},
	}
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.PersistentFlags().BoolVar(&env.json, "json", false, "print the result as one JSON document")
	root.Flags().BoolVarP(&version, "version", "v", false, "print the version")
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newMCP(env), newVersion(env))
	return root
}

func newMCP(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Serve sandboxes to AI IDEs (Model Context Protocol)",
		Args:  commandsOnly,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newMCPStart(env))
	return cmd
}

// settings reads all settings; flags are those that the user gave.
func (e *Env) settings(flags map[config.Key]config.Value) (*config.Settings, error) {
	if e.Home != "" && !filepath.IsAbs(e.Home) {
		return nil, &Hint{Err: fmt.Errorf("the home folder %q is not an absolute path", e.Home), Code: CodeConfig, Next: "set HOME to the absolute path of a folder that you may write"}
	}
	s, err := config.Load(config.Options{Flags: flags, LookupEnv: e.LookupEnv, Dir: e.Dir, Home: e.Home})
	if err != nil {
		return nil, &Hint{Err: err, Code: CodeConfig}
	}
	return s, nil
}

// print writes a command's result: v as JSON, or text.
func (e *Env) print(v any, text string) error {
	if !e.json {
		_, err := io.WriteString(e.Stdout, text)
		return err
	}
	return json.NewEncoder(e.Stdout).Encode(v)
}

// lockedWriter lets notes, logs and errors share a stream, a whole write at a
// time. A stream that is gone is no reason to fail.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.w != nil {
		_, _ = l.w.Write(p)
	}
	return len(p), nil
}

// note writes a line for people.
func (e *Env) note(format string, args ...any) {
	fmt.Fprintf(e.Stderr, format+"\n", args...)
}
