package tool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agent-sandbox/abx/sandbox"
)

func runCommand(o Options) definition {
	return definition{
		Tool: Tool{
			Name:  "run_command",
			Title: "Run a shell command",
			Description: o.Place.warn("Runs a command line by `sh -c` in a sandbox and returns stdout, stderr and the exit code (an exit code other than 0 is an ordinary result). " +
				"Each call is a new shell: cd and variables do not stay (those of run_code with language shell do), and sh may be another than bash. " +
				"There is no standard input. The call returns when the command ends; a process started with `&` goes on in the background. " +
				"Of long output the begin and the end are returned, and the whole is kept in a file that the result names. " +
				"Leave sandbox_id out to use the default sandbox."),
			Output:      outputSchema(append(outcomeFields(), reportFields...)),
			Destructive: true, OpenWorld: o.Place.Network != noNetwork,
		},
		params: []param{
			{name: "command", kind: kindText, required: true, aka: []string{"cmd", "command_line", "commands", "script", "shell", "bash"}, doc: "the shell command line to run"},
			sandboxID,
			{name: "cwd", kind: kindText, text: workDir, absolute: true, aka: slices.Concat(akaFolder, []string{"path"}), doc: "the working folder, absolute; left out: /app, or the template's own folder where there is no /app"},
			{name: "timeout", kind: kindWhole, whole: 60, least: 1, most: Longest, aka: akaTimeout, doc: "seconds after which the command is killed"},
		},
		run: (*Set).runCommand,
	}
}

// outcomeFields are what a command and a piece of code end with.
func outcomeFields() []field {
	return []field{
		{name: "stdout", kind: "string", doc: "standard output, without terminal codes", always: true},
		{name: "stderr", kind: "string", doc: "standard error, without terminal codes", always: true},
		{name: "exit_code", kind: "integer", doc: "0 is success; 128 + n is an end by signal n", always: true},
		{name: "reason", kind: "string", doc: "how it ended: exit, signal, timeout, oom, disk-full, pids-limit, sandbox-lost", always: true},
		{name: "detail", kind: "string", doc: "the limit that was met"},
		{name: "truncated", kind: "boolean", doc: "true when a part of the output was left out", always: true},
		{name: "stdout_bytes", kind: "integer", doc: "the length of the whole standard output, when a part was left out"},
		{name: "stderr_bytes", kind: "integer", doc: "the length of the whole standard error, when a part was left out"},
		{name: "stdout_file", kind: "string", doc: "the file in the sandbox with the whole standard output, when a part was left out"},
		{name: "stderr_file", kind: "string", doc: "the file in the sandbox with the whole standard error, when a part was left out"},
		{name: "background_pids", kind: "array", doc: "processes that go on in the background", items: []byte(`{"type":"integer"}`)},
	}
}

func (s *Set) runCommand(ctx context.Context, a arguments, r Request) (*Result, error) {
	timeout := time.Duration(a.whole("timeout")) * time.Second
	if strings.TrimSpace(a.text("command")) == "" {
		return nil, bad("command", "is empty: give the shell command line to run")
	}
	if strings.ContainsRune(a.text("command"), 0) {
		return nil, bad("command", "holds a NUL byte, which no command line has")
	}
	tick := startTicker(r, s.o.Limits.Progress)
	defer tick.Stop()
	lease, rep, err := s.use(ctx, a, r, timeout)
	if err != nil {
		return nil, err
	}
	defer lease.Release()
	sb := lease.Sandbox
	dir := a.text("cwd")
	if dir == workDir { // left out, or filled in by the client from the schema
		if dir, err = sb.workdir(ctx); err != nil {
			return nil, err
		}
	}
	opts := []sandbox.RunOption{
		sandbox.Shell("sh"), sandbox.Cwd(dir), sandbox.Timeout(timeout), // no folder is the sandbox's own
		sandbox.Window(s.o.Limits.Head, s.o.Limits.Tail),
	}
	if tick != nil {
		opts = append(opts, tick.listen())
	}
	res, err := sb.Commands.Run(ctx, a.text("command"), opts...)
	if err != nil && dir != workDir && dir != "" && errors.Is(err, sandbox.ErrInvalid) {
		if there, lookErr := sb.Files.Exists(ctx, dir); lookErr == nil && !there {
			return nil, bad("cwd", "%s does not exist in the sandbox: make it by run_command with \"mkdir -p\", or leave cwd out", quote(dir))
		}
	}
	if err != nil && res == nil {
		return nil, err
	}
	o := outcome{Output: res.Output, exitCode: res.ExitCode, reason: res.Reason, detail: res.Detail, pids: res.Background, broken: err != nil}
	missed := o.report(rep, sb.Info())
	if res.Reason == sandbox.ReasonTimeout {
		next := " Give a larger timeout, or run it in the background: `nohup COMMAND > /tmp/out.log 2>&1 &`, and look into the file later."
		if missed {
			next = " It waited for the network; a larger timeout would not help."
		}
		rep.note("Stopped at its timeout of %d s.%s", a.whole("timeout"), next)
	}
	return rep.result(), err
}

// An outcome is how a command or a piece of code ended.
type outcome struct {
	sandbox.Output
	exitCode       int
	reason, detail string
	pids           []int
	more           string // to stand at the end of stderr
	shown          bool   // there is more to see than the streams
	cut            bool   // something beside the streams was left out
	broken         bool   // the call failed: how it ended is not known
}

// report writes o as data and as text. It reports whether a network was missed.
func (o *outcome) report(rep *report, info sandbox.Info) (missed bool) {
	streams := [2]stream{
		{o.Stdout, o.StdoutHead, o.StdoutTotal, o.StdoutFile},
		{o.Stderr, o.StderrHead, o.StderrTotal, o.StderrFile},
	}
	stdout, stderr := streams[0].text(), streams[1].text()
	if o.more != "" && stderr != "" && !strings.HasSuffix(stderr, "\n") {
		stderr += "\n"
	}
	stderr += o.more
	reason := o.reason
	if reason == "" {
		reason = sandbox.ReasonSandboxLost
	}
	d := &rep.data
	d.Grow(len(stdout) + len(stderr) + 512)
	d.String("stdout", stdout)
	d.String("stderr", stderr)
	d.Int("exit_code", int64(o.exitCode))
	d.String("reason", reason)
	if o.detail != "" {
		d.String("detail", o.detail)
	}
	d.Bool("truncated", streams[0].cut() || streams[1].cut() || o.cut)
	for i, name := range [2]string{"stdout", "stderr"} {
		if streams[i].cut() {
			d.Int(name+"_bytes", streams[i].total)
			if streams[i].file != "" {
				d.String(name+"_file", streams[i].file)
			}
		}
	}
	if len(o.pids) > 0 {
		d.Raw("background_pids", []byte(strings.ReplaceAll(fmt.Sprint(o.pids), " ", ",")))
		rep.note("%s", o.background())
	}
	shown := paragraphs(stdout, stderr)
	if len(shown) == 0 && !o.shown && !o.broken {
		shown = []string{"(no output)"}
	}
	rep.text = append(rep.text, shown...)
	if !o.broken {
		rep.text = append(rep.text, o.status(reason))
	}
	if reason == sandbox.ReasonPidsLimit {
		rep.note("No process can be started above the limit: end those that are not needed by `kill PID`; `kill -9 -1`, which the shell does itself, ends all, the interpreters of run_code too. %s", endProcesses)
	}
	return rep.hints(stdout+"\n"+stderr, o, info.Network)
}

// mostPIDs is how many background processes the SDK names.
const mostPIDs = 16

// background says which processes go on.
func (o *outcome) background() string {
	pids := strings.ReplaceAll(strings.Trim(fmt.Sprint(o.pids), "[]"), " ", ", ")
	switch n := len(o.pids); {
	case n == 1:
		return "Still running in the background: process " + pids + ". Stop it by `kill`."
	case n < mostPIDs:
		return "Still running in the background: processes " + pids + ". Stop them by `kill`."
	}
	return fmt.Sprintf("Still running in the background: %d processes or more, the first are %s. `ps -e` lists all; `kill` stops one, `pkill NAME` those of a name.", len(o.pids), pids)
}

// paragraphs shows both streams, the second under a heading.
func paragraphs(stdout, stderr string) []string {
	var all []string
	if s := strings.TrimRight(stdout, "\n"); s != "" {
		all = append(all, s)
	}
	if s := strings.TrimRight(stderr, "\n"); s != "" {
		all = append(all, "[stderr]\n"+s)
	}
	return all
}

func (o *outcome) status(reason string) string {
	s := fmt.Sprintf("[exit code %d", o.exitCode)
	if reason != sandbox.ReasonExit {
		s += ", " + reason
	}
	if o.detail != "" {
		s += ": " + o.detail
	}
	return s + "]"
}
