package test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/test/proc"
	"github.com/agent-sandbox/abx/test/stdio"
)

// guard is ten times and more what a loaded machine needs for anything here:
// only what never comes fails.
const guard = 2 * time.Minute

// eventually waits for a state of the kernel, of which nobody tells us.
func eventually(t *testing.T, ok func() bool, what func() string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(guard); !ok(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("after %v still %s", guard, what())
		}
	}
}

func serve(t *testing.T, args ...string) *stdio.Client {
	t.Helper()
	return serveAt(t, os.Getenv("HOME"), args...)
}

// serveAt starts a server with a home folder of its own, whose records are then
// its alone.
func serveAt(t *testing.T, home string, args ...string) *stdio.Client {
	t.Helper()
	c, err := stdio.Start(context.Background(), stdio.Options{
		Path: program(t, "abx"), Args: args, Env: append(stdio.Embedded(os.Environ()), "HOME="+home), Stderr: os.Stderr,
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

// TestPipe is the guide's example: params are empty, nobody says "initialized",
// and the input ends at once.
func TestPipe(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), program(t, "abx"), "mcp", "start")
	cmd.Env = stdio.Embedded(os.Environ())
	cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}` + "\n" +
		`{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}` + "\n")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	type reply struct {
		JSONRPC string
		ID      int
		Result  struct {
			ProtocolVersion string
			Tools           []struct{ Name string }
		}
	}
	var got []reply
	for line := range strings.Lines(stdout.String()) {
		var r reply
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("standard output has %q: %v", line, err)
		}
		got = append(got, r)
	}
	if len(got) != 2 || got[0].ID != 1 || got[1].ID != 2 {
		t.Fatalf("standard output: %s", stdout.String())
	}
	if v := got[0].Result.ProtocolVersion; v != "2024-11-05" {
		t.Errorf("protocol version %q", v)
	}
	if n := len(got[1].Result.Tools); n != 7 {
		t.Errorf("%d tools", n)
	}
}

// sandboxes makes n with something running in each, and returns the processes
// below the server.
func sandboxes(t *testing.T, c *stdio.Client, n int) []proc.Process {
	t.Helper()
	for range n {
		if _, err := c.Tool(t.Context(), "create_sandbox", nil, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Tool(t.Context(), "run_command", stdio.Arguments{"command": "sleep 100000 & setsid -f sleep 100000"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	all := proc.Descendants(c.PID())
	if len(all) < 2*n {
		t.Fatalf("only %d processes for %d sandboxes: %v", len(all), n, all)
	}
	return all
}

func alive(all []proc.Process) []proc.Process {
	return slices.DeleteFunc(slices.Clone(all), func(p proc.Process) bool { return !p.Alive() })
}

// records lists what servers noted of themselves.
func records(home string) []string {
	found, _ := filepath.Glob(filepath.Join(home, ".abx", "run", "hosts", "*")) // a constant pattern
	return found
}

// TestKilledServerLeavesNothing is for the IDE that crashes and the user who
// does not wait: nobody gets to clean up.
func TestKilledServerLeavesNothing(t *testing.T) {
	home := t.TempDir()
	c := serveAt(t, home)
	all := sandboxes(t, c, 5)
	groups := proc.Groups(home)
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	gone := func() bool { return len(alive(all)) == 0 && len(proc.Standing(groups)) == 0 && len(records(home)) == 0 }
	eventually(t, gone, func() string {
		return cmp.Diff([]proc.Process{}, alive(all)) + cmp.Diff([]string{}, proc.Standing(groups)) + cmp.Diff([]string{}, records(home))
	})
}

// TestEndOfInput: when the client closes its end, the server leaves with all
// that it had.
func TestEndOfInput(t *testing.T) {
	home := t.TempDir()
	c := serveAt(t, home)
	all := sandboxes(t, c, 3)
	groups := proc.Groups(home)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if left := alive(all); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if left := slices.Concat(proc.Standing(groups), records(home)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestLargeOutput: what a command writes does not grow the server.
func TestLargeOutput(t *testing.T) {
	c := serve(t)
	var r struct {
		Stdout   string `json:"stdout"`
		ExitCode int    `json:"exit_code"`
	}
	res, err := c.Tool(t.Context(), "run_command", stdio.Arguments{"command": "yes 0123456789 | head -c 300000000", "timeout": 300}, &r)
	if err != nil {
		t.Fatal(err)
	}
	if r.ExitCode != 0 || len(r.Stdout) > 64<<10 || !strings.HasPrefix(r.Stdout, "0123456789\n") || !strings.HasSuffix(r.Stdout, "0123456789\n012") {
		t.Errorf("code %d, %d bytes of output that end with %q", r.ExitCode, len(r.Stdout), r.Stdout[max(0, len(r.Stdout)-40):])
	}
	if !strings.Contains(res.Text(), "left out") {
		t.Errorf("the text does not say that something was left out: %.200q", res.Text())
	}
}

// TestLongLine: a message over the limit is answered and the server goes on.
func TestLongLine(t *testing.T) {
	c := serve(t)
	long, err := c.PrepareTool("write_file", stdio.Arguments{"path": "/app/x", "content": strings.Repeat("x", 9<<20)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		line, err := c.Send(ctx, long)
		if err == nil {
			err = stdio.Decode(line, &struct{}{})
		}
		answered <- err
	}()
	// The server cannot always know the id of a line that it did not keep; that
	// it goes on is what counts.
	if err := c.Call(t.Context(), "ping", map[string]any{}, &struct{}{}); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-answered; err == nil {
		t.Error("a message over the limit was taken")
	}
}
