package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/agent-sandbox/abx/internal/config"
	"github.com/agent-sandbox/abx/internal/mcp"
	"github.com/agent-sandbox/abx/internal/mcp/tool"
	"github.com/agent-sandbox/abx/sandbox"
)

// startTemplate is the template of sandboxes of abx mcp start.
const startTemplate = "code-interpreter-v1"

type mcpStart struct {
	flags    map[config.Key]config.Value
	lifetime int
	given    bool // lifetime was
	quiet    bool
}

func newMCPStart(env *Env) *cobra.Command {
	var template, isolation string
	o := &mcpStart{flags: map[config.Key]config.Value{}}
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Serve MCP on standard input and output",
		Long: "Serves MCP to one client on standard input and output, one JSON-RPC message a line, until\n" +
			"input ends or the process gets SIGINT or SIGTERM. All sandboxes of the client then end.\n" +
			"Notes go to standard error. AI IDEs start this command by themselves.",
		Example: "  printf '%s\\n' \\\n" +
			`    '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}' \` + "\n" +
			`    '{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}' | abx mcp start`,
		Args:        noArguments,
		Annotations: map[string]string{stdoutIsProtocol: "1"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			for key, f := range map[config.Key]struct{ name, text string }{config.Template: {"template", template}, config.Isolation: {"isolation", isolation}} {
				if cmd.Flags().Changed(f.name) {
					o.flags[key] = config.Given(key, "--"+f.name, f.text)
				}
			}
			o.given = cmd.Flags().Changed("timeout")
			return runMCPStart(cmd.Context(), env, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&template, "template", "", `template of sandboxes for which none is named (default "`+startTemplate+`", or ABX_DEFAULT_TEMPLATE)`)
	f.StringVar(&isolation, "isolation", "", "least isolation of sandboxes: auto, namespace or gvisor (default auto, or ABX_ISOLATION)")
	f.IntVar(&o.lifetime, "timeout", 0, "seconds that a sandbox lives after its last use, when no timeout is named (default 300)")
	f.BoolVar(&o.quiet, "quiet", false, "write no notes to standard error")
	return cmd
}

func runMCPStart(ctx context.Context, env *Env, o *mcpStart) (err error) {
	set, err := env.settings(o.flags)
	if err != nil {
		return err
	}
	if err := checkStart(env, set, o); err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	log := slog.New(slog.DiscardHandler)
	if !o.quiet {
		log = slog.New(slog.NewTextHandler(env.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	host := startHost(env.NewHost, hostOptions(set, log))
	defer func() { err = errors.Join(err, host.Close()) }()
	server, err := newServer(env, set, o, host, log)
	if err != nil {
		return err
	}
	if !o.quiet {
		startNotes(env, set)
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		hostNotes(ctx, env, host, o.quiet)
	}()
	err = server.ServeStdio(ctx, env.Stdin, env.Stdout)
	stop()
	<-told
	if errors.Is(err, syscall.EPIPE) { // the client went first
		return nil
	}
	return err
}

// checkStart refuses what this abx cannot do, before anything is started.
func checkStart(env *Env, set *config.Settings, o *mcpStart) error {
	if o.lifetime < 0 || o.given && o.lifetime == 0 {
		return &Hint{Err: fmt.Errorf("--timeout %d: give at least 1 second", o.lifetime), Code: CodeUsage}
	}
	if o.lifetime > tool.Longest {
		return &Hint{Err: fmt.Errorf("--timeout %d: give at most %d seconds, a day", o.lifetime, tool.Longest), Code: CodeUsage}
	}
	switch v := set.Get(config.Isolation); v.Text {
	case "", "auto", "namespace":
	case "gvisor":
		return &Hint{Err: fmt.Errorf("isolation gvisor (from %s) is not in this abx", v.From()), Code: CodeUnsupported,
			Next: "use --isolation namespace; it is never chosen silently in place of gvisor"}
	default:
		return &Hint{Err: fmt.Errorf("isolation %q (from %s) is unknown", v.Text, v.From()), Code: CodeUsage, Next: "use auto, namespace or gvisor"}
	}
	for _, key := range []config.Key{config.APIKey, config.BaseURL} {
		if v := set.Get(key); v.Text != "" {
			return cloudRefusal(set, key)
		}
	}
	if env.NewHost == nil {
		return &Hint{Err: errors.New("this abx cannot run sandboxes on this machine"), Code: CodeUnsupported, Next: "sandboxes run on Linux"}
	}
	return nil
}

// cloudRefusal says that sandboxes of a platform are configured, which this
// abx cannot use, and how to run them here.
func cloudRefusal(set *config.Settings, key config.Key) error {
	what := map[config.Key]string{config.APIKey: "an API key", config.BaseURL: "a platform's address"}[key]
	var steps []string
	for _, k := range []config.Key{config.APIKey, config.BaseURL} {
		if v := set.Get(k); v.Text != "" {
			steps = append(steps, v.Remove())
		}
	}
	return &Hint{
		Err: fmt.Errorf("%s is configured (%s, from %s): the cloud profile comes in a later version, and abx does not run sandboxes on this machine unasked",
			what, key, set.Get(key).From()),
		Next: "to run sandboxes on this machine: " + strings.Join(steps, "; and "),
		Code: CodeUnsupported,
	}
}

// untilSignal returns a context that ends with the signals that stop abx, and
// keeps a broken output from killing the process before its sandboxes.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	// Caught, not ignored: that would be inherited by what runs in sandboxes.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return signal.NotifyContext(ctx, signals...)
}

func hostOptions(set *config.Settings, log *slog.Logger) HostOptions {
	o := HostOptions{
		Isolation: set.Text(config.Isolation, "auto"), Domain: set.Text(config.Domain, embeddedDomain),
		Template: set.Text(config.Template, startTemplate), PoolSize: -1, MaxSandboxes: int(set.Number(config.MaxSandboxes)),
		MemoryBytes: set.Number(config.MemoryLimit), DiskBytes: set.Number(config.DiskLimit),
		Processes: set.Number(config.ProcessLimit), OpenFiles: set.Number(config.FileLimit), Logger: log,
	}
	if set.Get(config.PoolSize).Set {
		o.PoolSize = int(set.Number(config.PoolSize))
	}
	return o
}

// embedded is what holds for all sandboxes of the embedded host; clients are
// told before it is there.
var embedded = tool.Place{Network: "none", Languages: []string{"python", "shell"}, Local: true}

// embeddedDomain is that of sandboxes on this machine: names below localhost
// lead here and nowhere else.
const embeddedDomain = "sandbox.localhost"

func newServer(env *Env, set *config.Settings, o *mcpStart, host *startingHost, log *slog.Logger) (*mcp.Server, error) {
	const local = "http://embedded.localhost"
	client, err := sandbox.NewClient(sandbox.Config{
		BaseURL: local, SandboxURL: local, Domain: set.Text(config.Domain, embeddedDomain),
		Transport: host, UserAgent: "abx/" + env.Version,
	})
	if err != nil {
		return nil, &Hint{Err: err, Code: CodeConfig}
	}
	return mcp.New(mcp.Options{
		Client: client, Template: set.Text(config.Template, startTemplate), Version: env.Version, Logger: log,
		MaxMessage: int(set.Number(config.MaxMessage)),
		Tools: tool.Options{
			Isolation: set.Text(config.Isolation, ""),
			Place:     embedded,
			Lifetime:  time.Duration(o.lifetime) * time.Second,
			Notes: []string{"The ports of this sandbox can be reached from inside it only (as by run_command `curl localhost:PORT`): this server opens none of them to the machine. " +
				"url and url_template are the names that they would have; nothing answers there."},
			Limits: tool.Limits{
				Head: int(set.Number(config.OutputHead)), Tail: int(set.Number(config.OutputTail)), Image: int(set.Number(config.MaxImage)),
				Read: int(set.Number(config.MaxRead)), Entries: int(set.Number(config.MaxEntries)),
			},
		},
	})
}

// startNotes tell a person what is served, and how to stop it.
func startNotes(env *Env, set *config.Settings) {
	versions := mcp.Versions()
	template := set.Get(config.Template)
	lines := [][2]string{
		{"server", mcp.Name + " " + env.Version},
		{"transport", "stdio: one JSON-RPC message a line, nothing else on stdout"},
		{"protocol", fmt.Sprintf("%s, or what the client asks for up to %s", mcp.StdioVersion, slices.Max(versions))},
		{"template", strconv.Quote(set.Text(config.Template, startTemplate)) + " (from " + template.From() + ")"},
		{"API key", "not configured: sandboxes run on this machine"},
		{"network", "none: nothing can be downloaded in a sandbox"},
		{"tools", strings.Join(tool.Names(), ", ")},
		{"stop", "Ctrl-C, SIGTERM, or the end of input"},
	}
	var b strings.Builder
	b.WriteString("abx waits for an MCP client on standard input.\n")
	for _, l := range lines {
		fmt.Fprintf(&b, "  %-10s %s\n", l[0], l[1])
	}
	for _, w := range set.Warnings {
		fmt.Fprintf(&b, "  %-10s %s\n", "warning", w)
	}
	env.note("%s", strings.TrimSuffix(b.String(), "\n"))
}

// hostNotes tell which isolation is in force when that is known, and, quiet or
// not, when there is none.
func hostNotes(ctx context.Context, env *Env, host *startingHost, quiet bool) {
	select {
	case <-host.ready:
	case <-ctx.Done():
		if !host.started() {
			return
		}
	}
	if host.err != nil {
		_, next := explain(host.err)
		env.note("abx: %v\n  %s", host.err, next)
		return
	}
	if quiet {
		return
	}
	env.note("  %-10s %s", "isolation", host.host.Isolation)
	for _, n := range host.host.Notes {
		env.note("  %-10s %s", "note", n)
	}
}
