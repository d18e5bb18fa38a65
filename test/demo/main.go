// Command demo walks through one sandbox the way an IDE does: it starts
// `abx mcp start`, speaks MCP over STDIO, calls the seven tools one after the
// other, checks each answer and prints what went back and forth. It ends with
// code 1 at the first answer that is not as it should be.
//
//	demo [-v] PATH-TO-ABX
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/agent-sandbox/abx/test/stdio"
)

func main() {
	verbose := flag.Bool("v", false, "print results whole")
	flag.Usage = func() { fmt.Fprintln(flag.CommandLine.Output(), "usage: demo [-v] PATH-TO-ABX") }
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, flag.Arg(0), *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		stop()
		os.Exit(1)
	}
}

// run walks the steps. It bounds the whole: a sandbox that hangs must not hang
// whoever looks at it.
func run(ctx context.Context, out io.Writer, abx string, verbose bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	abx, err = filepath.Abs(abx)
	if err != nil {
		return err
	}
	client, err := stdio.Start(ctx, stdio.Options{Path: abx, Env: stdio.Embedded(os.Environ()), Stderr: os.Stderr})
	if err != nil {
		return err
	}
	w := &walk{client: client, out: out, verbose: verbose}
	fmt.Fprintf(out, "%s mcp start, over STDIO, as uid %d\n\n", abx, os.Getuid())
	for _, step := range []func(context.Context) error{
		w.initialize, w.list, w.create, w.write, w.code, w.command, w.files, w.isolation, w.kill,
	} {
		if err := step(ctx); err != nil {
			return errors.Join(err, client.Close())
		}
	}
	began := time.Now()
	if err := client.Close(); err != nil {
		return fmt.Errorf("the server's end: %w", err)
	}
	w.print("end of input", "", began, "the server has left")
	fmt.Fprintf(out, "\nall %d steps as they should be\n", w.steps)
	return nil
}

type walk struct {
	client  *stdio.Client
	out     io.Writer
	verbose bool
	steps   int
	id      string // of the sandbox
}

const width = 100 // of what is shown of a call and of its result

func (w *walk) print(call, args string, began time.Time, result string) {
	w.steps++
	took := time.Since(began)
	if !w.verbose {
		args, result = clip(args, width-len(call)), clip(result, width)
	}
	fmt.Fprintf(w.out, "%2d  %-8s  %s %s\n              -> %s\n", w.steps, milliseconds(took), call, args, result)
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n]) + "..."
	}
	return s
}

// tool calls one, shows it and checks it.
func (w *walk) tool(ctx context.Context, name string, args stdio.Arguments, check func(got map[string]any) error) error {
	shown, err := json.Marshal(args)
	if err != nil {
		return err
	}
	began := time.Now()
	var got map[string]any
	if _, err := w.client.Tool(ctx, name, args, &got); err != nil {
		return err
	}
	result, err := json.Marshal(got)
	if err != nil {
		return err
	}
	w.print(name, string(shown), began, string(result))
	if err := check(got); err != nil {
		return fmt.Errorf("%s: %w in %s", name, err, result)
	}
	return nil
}

// is checks fields, by their JSON.
func is(want map[string]any) func(map[string]any) error {
	return func(got map[string]any) error {
		for field, v := range want {
			if fmt.Sprint(got[field]) != fmt.Sprint(v) {
				return fmt.Errorf("%s is not %q", field, fmt.Sprint(v))
			}
		}
		return nil
	}
}

func (w *walk) initialize(ctx context.Context) error {
	began := time.Now()
	s, err := w.client.Initialize(ctx)
	if err != nil {
		return err
	}
	w.print("initialize", "", began, fmt.Sprintf("%s %s, protocol %s", s.ServerInfo.Name, s.ServerInfo.Version, s.ProtocolVersion))
	if s.ServerInfo.Name != "agent-sandbox" {
		return fmt.Errorf("initialize: the server's name is %q", s.ServerInfo.Name)
	}
	return nil
}

func (w *walk) list(ctx context.Context) error {
	began := time.Now()
	var list struct{ Tools []struct{ Name string } }
	if err := w.client.Call(ctx, "tools/list", map[string]any{}, &list); err != nil {
		return err
	}
	var names []string
	for _, t := range list.Tools {
		names = append(names, t.Name)
	}
	w.print("tools/list", "", began, strings.Join(names, ", "))
	if len(names) != 7 {
		return fmt.Errorf("tools/list: %d tools, not 7", len(names))
	}
	return nil
}

func (w *walk) create(ctx context.Context) error {
	return w.tool(ctx, "create_sandbox", stdio.Arguments{"timeout": 120, "envs": map[string]string{"GREETING": "hello"}}, func(got map[string]any) error {
		w.id, _ = got["sandbox_id"].(string)
		if w.id == "" {
			return errors.New("no sandbox_id")
		}
		w.tell(got)
		return nil
	})
}

// tell prints what keeps the sandbox apart.
func (w *walk) tell(got map[string]any) {
	for _, field := range []string{"isolation", "network", "limits"} {
		if v, ok := got[field]; ok {
			text, _ := json.Marshal(v) // came from JSON
			fmt.Fprintf(w.out, "              %s: %s\n", field, strings.Trim(string(text), `"`))
		}
	}
	notes, _ := got["notes"].([]any)
	for _, n := range notes {
		fmt.Fprintf(w.out, "              note: %v\n", n)
	}
}

const script = "import sys\nprint('sum', sum(map(int, sys.argv[1:])))\n"

func (w *walk) write(ctx context.Context) error {
	return w.tool(ctx, "write_file", stdio.Arguments{"path": "/app/sum.py", "content": script},
		is(map[string]any{"success": true, "bytes_written": len(script)}))
}

// code shows that variables stay between calls.
func (w *walk) code(ctx context.Context) error {
	err := w.tool(ctx, "run_code", stdio.Arguments{"code": "import math\nradius = 3\nprint('ready')"},
		is(map[string]any{"stdout": "ready\n", "exit_code": 0}))
	if err != nil {
		return err
	}
	return w.tool(ctx, "run_code", stdio.Arguments{"code": "print(round(math.pi * radius ** 2, 2))"},
		is(map[string]any{"stdout": "28.27\n", "exit_code": 0}))
}

func (w *walk) command(ctx context.Context) error {
	err := w.tool(ctx, "run_command", stdio.Arguments{"command": `echo "$GREETING from $(id -un) in $PWD"; python3 sum.py 40 2 | tee result.txt`},
		is(map[string]any{"stdout": "hello from user in /app\nsum 42\n", "exit_code": 0}))
	if err != nil {
		return err
	}
	return w.tool(ctx, "run_command", stdio.Arguments{"command": "grep nothing result.txt"},
		is(map[string]any{"exit_code": 1}))
}

func (w *walk) files(ctx context.Context) error {
	err := w.tool(ctx, "list_files", stdio.Arguments{}, func(got map[string]any) error {
		var names []string
		files, _ := got["files"].([]any)
		for _, f := range files {
			entry, _ := f.(map[string]any)
			names = append(names, fmt.Sprint(entry["path"]))
		}
		for _, want := range []string{"/app/result.txt", "/app/sum.py"} {
			if !slices.Contains(names, want) {
				return fmt.Errorf("%s is missing", want)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return w.tool(ctx, "read_file", stdio.Arguments{"path": "/app/result.txt"}, is(map[string]any{"content": "sum 42\n"}))
}

// isolation looks for what must not be seen from inside: a file of the host,
// other processes, a way to the network.
func (w *walk) isolation(ctx context.Context) error {
	secret, err := os.CreateTemp("", "abx-demo-*")
	if err != nil {
		return err
	}
	defer os.Remove(secret.Name())
	if _, err := secret.WriteString("a file of the host\n"); err != nil {
		return err
	}
	secret.Close()
	// No program but the shell runs while it looks for others.
	look := `echo "interfaces:" $(tail -n +3 /proc/net/dev | cut -d: -f1)
seen=$(for p in /proc/[0-9]*; do read -r name < $p/comm && case $p:$name in /proc/1:*|*:sh) ;; *) echo "process: $name" ;; esac; done 2>/dev/null)
[ -z "$seen" ] || echo "$seen"
cat ` + secret.Name() + ` /etc/shadow 2>/dev/null; touch /usr/x 2>/dev/null && echo "usr: written"; true`
	return w.tool(ctx, "run_command", stdio.Arguments{"command": look}, func(got map[string]any) error {
		seen, _ := got["stdout"].(string)
		for _, line := range strings.Split(strings.TrimSpace(seen), "\n") {
			if line != "interfaces: lo" && !strings.HasPrefix(line, "process: python") {
				return fmt.Errorf("%q should not be", line)
			}
		}
		return nil
	})
}

func (w *walk) kill(ctx context.Context) error {
	return w.tool(ctx, "kill_sandbox", stdio.Arguments{"sandbox_id": w.id}, is(map[string]any{"success": true}))
}
