package test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agent-sandbox/abx/test/stdio"
)

// A row is one case that hurt users of such systems: docs/cases.md lists them
// all, with the tests below the tools that prove those which are not here.
type row struct {
	name string
	run  func(t *testing.T, w *world)
}

// The world of the rows: servers that they share. Each row has sandboxes of its
// own there; a row that needs a server for itself starts one.
type world struct {
	plain *stdio.Client
	tight *stdio.Client // its sandboxes have small limits
}

// Limits of the tight server.
const (
	tightMemory    = 256 << 20
	tightDisk      = 48 << 20
	tightProcesses = 100
)

// TestCases has a subtest for each row, C1-01 for row 1 of section C1.
func TestCases(t *testing.T) {
	w := &world{
		plain: serve(t),
		tight: serveWith(t, fmt.Sprintf("ABX_LIMIT_MEMORY=%d", tightMemory), fmt.Sprintf("ABX_LIMIT_DISK=%d", tightDisk),
			fmt.Sprintf("ABX_LIMIT_PROCESSES=%d", tightProcesses), "ABX_POOL_SIZE=0"),
	}
	for _, r := range slices.Concat(commandRows, endRows, outputRows, fileRows, kernelRows, lifeRows) {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			r.run(t, w)
		})
	}
}

// serveWith is serve with settings of the test's own.
func serveWith(t *testing.T, env ...string) *stdio.Client {
	t.Helper()
	c, err := stdio.Start(context.Background(), stdio.Options{
		Path: program(t, "abx"), Env: append(stdio.Embedded(os.Environ()), env...), Stderr: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := c.Initialize(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// A box is one sandbox of a row. Its methods end the test when a call fails
// that should not.
type box struct {
	c     *stdio.Client
	id    string
	notes []string // of create_sandbox
}

func newBox(t *testing.T, c *stdio.Client) *box {
	t.Helper()
	var got struct {
		ID    string `json:"sandbox_id"`
		Notes []string
	}
	if _, err := c.Tool(t.Context(), "create_sandbox", nil, &got); err != nil {
		t.Fatal(err)
	}
	b := &box{c: c, id: got.ID, notes: got.Notes}
	t.Cleanup(func() { // also what a test leaves that hangs: it has its own context
		if _, err := c.Tool(context.Background(), "kill_sandbox", stdio.Arguments{"sandbox_id": b.id}, nil); err != nil && !strings.Contains(err.Error(), "gone") {
			t.Errorf("the row's sandbox could not be killed: %v", err)
		}
	})
	return b
}

// perProcess reports whether limits hold for each process only, because this
// machine gives no cgroups here.
func (b *box) perProcess() bool {
	return slices.ContainsFunc(b.notes, func(n string) bool { return strings.Contains(n, "each process") })
}

// An outcome is what run_command and run_code tell.
type outcome struct {
	Stdout, Stderr string
	ExitCode       int `json:"exit_code"`
	Reason, Detail string
	Truncated      bool
	StdoutBytes    int64  `json:"stdout_bytes"`
	StderrBytes    int64  `json:"stderr_bytes"`
	StdoutFile     string `json:"stdout_file"`
	StderrFile     string `json:"stderr_file"`
	Background     []int  `json:"background_pids"`
	Result, Error  string
	StateLost      bool `json:"state_lost"`
	Notes          []string
	text           string // for a model
}

// end is exit code and reason.
func (o outcome) end() string { return fmt.Sprintf("%d %s", o.ExitCode, o.Reason) }

// wantEnd checks how o ended.
func (o outcome) wantEnd(t *testing.T, want string) {
	t.Helper()
	if o.end() != want {
		t.Errorf("ended with %q, want %q: stdout %.300q, stderr %.2000q, detail %q", o.end(), want, o.Stdout, o.Stderr, o.Detail)
	}
}

// want checks how o ended and its standard output.
func (o outcome) want(t *testing.T, end, stdout string) {
	t.Helper()
	o.wantEnd(t, end)
	if o.Stdout != stdout {
		t.Errorf("standard output is %.300q, want %.300q", o.Stdout, stdout)
	}
}

func (b *box) args(args stdio.Arguments) stdio.Arguments {
	all := stdio.Arguments{"sandbox_id": b.id}
	for k, v := range args {
		all[k] = v
	}
	return all
}

// tool calls a tool that must not fail.
func (b *box) tool(t *testing.T, name string, args stdio.Arguments, out any) stdio.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*guard) // calls have limits of their own
	defer cancel()
	res, err := b.c.Tool(ctx, name, b.args(args), out)
	if err != nil {
		t.Fatalf("%.200v: %v", args, err)
	}
	return res
}

// refused calls a tool that must fail, saying words, and returns what it said.
func (b *box) refused(t *testing.T, name string, args stdio.Arguments, words ...string) string {
	t.Helper()
	return refused(t, b.c, name, b.args(args), words...)
}

func refused(t *testing.T, c *stdio.Client, name string, args stdio.Arguments, words ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	defer cancel()
	res, err := c.Tool(ctx, name, args, nil)
	switch {
	case err == nil:
		t.Errorf("%s(%.200v) was taken: %.300s", name, args, res.Text())
		return ""
	case !res.IsError:
		t.Errorf("%s(%.200v): %v is no result of the tool", name, args, err)
		return err.Error()
	}
	wantWords(t, fmt.Sprintf("%s(%.200v)", name, args), res.Text(), words...)
	return res.Text()
}

// wantWords checks that text says all of words.
func wantWords(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s: %q is not in %.1000q", what, w, text)
		}
	}
}

// run runs a command.
func (b *box) run(t *testing.T, command string) outcome {
	t.Helper()
	return b.runWith(t, command, nil)
}

func (b *box) runWith(t *testing.T, command string, args stdio.Arguments) outcome {
	t.Helper()
	args = b.args(args)
	args["command"] = command
	var o outcome
	o.text = b.tool(t, "run_command", args, &o).Text()
	return o
}

// code runs Python code.
func (b *box) code(t *testing.T, code string) outcome {
	t.Helper()
	return b.codeWith(t, code, nil)
}

func (b *box) codeWith(t *testing.T, code string, args stdio.Arguments) outcome {
	t.Helper()
	args = b.args(args)
	args["code"] = code
	var o outcome
	o.text = b.tool(t, "run_code", args, &o).Text()
	return o
}

// await waits, inside, until a shell condition holds: nobody tells us of it.
func (b *box) await(t *testing.T, condition string) {
	t.Helper()
	o := b.runWith(t, fmt.Sprintf("n=0; until %s; do n=$((n+1)); [ $n -lt 3000 ] || exit 99; sleep .02; done", condition), stdio.Arguments{"timeout": 300})
	o.wantEnd(t, "0 exit")
}

// running is a shell command that prints the processes of a name or with a word
// in their command line, one a line, without those that only wait to be reaped.
func running(word string) string {
	return `for d in /proc/[0-9]*; do
  line=$(tr '\0' ' ' < $d/cmdline) || continue
  case $line in *'for d in'*) ;; *"` + word + `"*) echo "${d#/proc/} $line" ;; esac
done 2>/dev/null; true`
}

// none checks that no process with word in its command line is left.
func (b *box) none(t *testing.T, word string) {
	t.Helper()
	if o := b.run(t, running(word)); o.Stdout != "" {
		t.Errorf("still running:\n%s", o.Stdout)
	}
}

// usable checks that the sandbox still does its work.
func (b *box) usable(t *testing.T) {
	t.Helper()
	b.run(t, "echo fine").want(t, "0 exit", "fine\n")
	o := b.code(t, "print('fine')")
	o.want(t, "0 exit", "fine\n")
}

// read reads a file as text.
func (b *box) read(t *testing.T, path string) string {
	t.Helper()
	var got struct{ Content string }
	b.tool(t, "read_file", stdio.Arguments{"path": path}, &got)
	return got.Content
}

func (b *box) write(t *testing.T, path, content string) {
	t.Helper()
	b.tool(t, "write_file", stdio.Arguments{"path": path, "content": content}, nil)
}
