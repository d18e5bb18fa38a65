package test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agent-sandbox/abx/test/proc"
	"github.com/agent-sandbox/abx/test/stdio"
)

// C7: life of servers and sandboxes.
var lifeRows = []row{
	{"C7-71", killedBesideAnother},
	{"C7-72", clientsLeave},
	{"C7-74", firstCallsMakeOne},
	{"C7-75", createFails},
}

// mounts lists what is mounted here, as seen from outside of all sandboxes.
func mounts(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// networks lists the network namespaces of processes.
func networks(all []proc.Process) []string {
	var found []string
	for _, p := range all {
		if name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.PID)); err == nil {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// listening counts the sockets of a process that wait for connections.
func listening(t *testing.T, pid int) int {
	t.Helper()
	open := map[string]bool{}
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // a valid pattern
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil {
			open[to] = true
		}
	}
	n := 0
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			continue // no IPv6 here
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && open["socket:["+f[9]+"]"] {
				n++
			}
		}
	}
	return n
}

// killedBesideAnother kills one of two servers, and starts a third: nothing of
// the first is left and nothing of the second is touched.
func killedBesideAnother(t *testing.T, _ *world) {
	other := serve(t)
	b := newBox(t, other)
	b.write(t, "/tmp/keep", "kept")
	b.run(t, "sleep 70001 &").wantEnd(t, "0 exit")
	before := mounts(t)
	c := serve(t)
	all := sandboxes(t, c, 5)
	nets := networks(all)
	if n := listening(t, c.PID()); n != 0 {
		t.Errorf("the server listens on %d ports", n)
	}
	if added := slices.DeleteFunc(mounts(t), func(m string) bool { return slices.Contains(before, m) }); len(added) > 0 {
		t.Errorf("mounts outside of the sandboxes: %v", added)
	}
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return len(alive(all)) == 0 }, func() string { return fmt.Sprint(alive(all)) })
	everybody := proc.Descendants(1)
	for _, n := range networks(everybody) {
		own, _ := os.Readlink("/proc/self/ns/net")
		if n != own && slices.Contains(nets, n) {
			t.Errorf("network namespace %s is left", n)
		}
	}
	next := serve(t) // sweeps, if there is anything to sweep
	newBox(t, next).usable(t)
	if got := b.read(t, "/tmp/keep"); got != "kept" {
		t.Errorf("another server's file holds %q", got)
	}
	if o := b.run(t, running("sleep 70001")); !strings.Contains(o.Stdout, "70001") {
		t.Error("another server's process is gone")
	}
	b.usable(t)
}

// A rawServer is a server whose pipes the test holds itself.
type rawServer struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.ReadCloser
	lines  *bufio.Reader
}

func raw(t *testing.T) *rawServer {
	t.Helper()
	r := &rawServer{cmd: exec.CommandContext(context.Background(), program(t, "abx"), "mcp", "start", "--quiet")}
	r.cmd.Env = stdio.Embedded(os.Environ())
	r.cmd.Stderr = os.Stderr
	var err1, err2 error
	r.stdin, err1 = r.cmd.StdinPipe()
	r.stdout, err2 = r.cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.lines = bufio.NewReaderSize(r.stdout, 1<<20)
	t.Cleanup(func() {
		if r.cmd.ProcessState == nil {
			r.cmd.Process.Kill()
			r.cmd.Wait()
		}
	})
	r.say(t, `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	r.say(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	wantWords(t, "initialize", r.hear(t), `"init"`, "agent-sandbox")
	return r
}

func (r *rawServer) say(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(r.stdin, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

// hear reads one line.
func (r *rawServer) hear(t *testing.T) string {
	t.Helper()
	line, err := r.lines.ReadString('\n')
	if err != nil {
		t.Fatalf("after %q: %v", line, err)
	}
	if !json.Valid([]byte(line)) {
		t.Errorf("no JSON: %q", line)
	}
	return line
}

func (r *rawServer) call(t *testing.T, id int, tool string, args stdio.Arguments) {
	t.Helper()
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": map[string]any{"name": tool, "arguments": args}})
	if err != nil {
		t.Fatal(err)
	}
	r.say(t, string(line))
}

// end waits until the server has left by itself, without having kept a
// processor busy, and returns its exit code.
func (r *rawServer) end(t *testing.T, what string) int {
	t.Helper()
	stop := time.AfterFunc(guard, func() { r.cmd.Process.Kill() })
	defer stop.Stop()
	_ = r.cmd.Wait() // the code tells
	state := r.cmd.ProcessState
	if used := state.UserTime() + state.SystemTime(); used > 20*time.Second {
		t.Errorf("%s: the server used %v of a processor", what, used)
	}
	return state.ExitCode()
}

func clientsLeave(t *testing.T, _ *world) {
	for name, leave := range map[string]func(t *testing.T, r *rawServer){
		"closes its input": func(_ *testing.T, r *rawServer) { r.stdin.Close() },
		"dies":             func(_ *testing.T, r *rawServer) { r.stdout.Close(); r.stdin.Close() },
		"leaves in a line": func(_ *testing.T, r *rawServer) {
			io.WriteString(r.stdin, `{"jsonrpc":"2.0","id":9,"me`)
			r.stdin.Close()
		},
		"hears no more": func(t *testing.T, r *rawServer) {
			r.stdout.Close()
			r.say(t, `{"jsonrpc":"2.0","id":9,"method":"ping"}`)
		},
		"does not hear": deaf,
		"in a call": func(t *testing.T, r *rawServer) {
			r.call(t, 9, "run_command", stdio.Arguments{"command": "sleep 604"})
			r.stdin.Close()
		},
		"dies in a call": func(t *testing.T, r *rawServer) {
			r.call(t, 9, "run_code", stdio.Arguments{"code": "while True: pass"})
			r.stdout.Close()
			r.stdin.Close()
		},
		"in the first call": func(t *testing.T, r *rawServer) { r.call(t, 9, "create_sandbox", nil); r.stdin.Close() },
		"sends SIGTERM":     func(_ *testing.T, r *rawServer) { r.cmd.Process.Signal(syscall.SIGTERM) },
		"sends SIGINT":      func(_ *testing.T, r *rawServer) { r.cmd.Process.Signal(os.Interrupt) },
		"sends SIGHUP":      func(_ *testing.T, r *rawServer) { r.cmd.Process.Signal(syscall.SIGHUP) },
	} {
		r := raw(t)
		r.call(t, 1, "run_command", stdio.Arguments{"command": "sleep 100000 & setsid -f sleep 100000; echo here"})
		wantWords(t, name, r.hear(t), `here\n`)
		all := proc.Descendants(r.cmd.Process.Pid)
		leave(t, r)
		if code := r.end(t, name); code != 0 && name != "does not hear" { // nobody is there to be told
			t.Errorf("%s: the server ended with code %d", name, code)
		}
		eventually(t, func() bool { return len(alive(all)) == 0 }, func() string { return name + ": " + fmt.Sprint(alive(all)) })
	}
}

// deaf asks for more than a pipe holds, reads nothing, and closes its input.
func deaf(t *testing.T, r *rawServer) {
	for i := range 40 {
		r.call(t, 100+i, "run_command", stdio.Arguments{"command": "seq 100000"})
	}
	r.stdin.Close()
}

func firstCallsMakeOne(t *testing.T, _ *world) {
	c := serveWith(t, "ABX_POOL_SIZE=0")
	calls := []struct {
		tool string
		args stdio.Arguments
	}{
		{"run_command", stdio.Arguments{"command": "echo x >> /tmp/all"}},
		{"run_code", stdio.Arguments{"code": "_ = open('/tmp/all', 'a').write('x\\n')"}},
		{"run_code", stdio.Arguments{"code": "echo x >> /tmp/all", "language": "shell"}},
		{"write_file", stdio.Arguments{"path": "/tmp/w", "content": "x"}},
		{"list_files", stdio.Arguments{"path": "/tmp"}},
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	ids := map[string]int{}
	for i := range 50 {
		all.Go(func() {
			var got struct {
				ID string `json:"sandbox_id"`
			}
			one := calls[i%len(calls)]
			if _, err := c.Tool(t.Context(), one.tool, one.args, &got); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			ids[got.ID]++
		})
	}
	all.Wait()
	delete(ids, "") // those who found it
	if len(ids) != 1 {
		t.Errorf("calls tell of sandboxes %v, want one", ids)
	}
	var o outcome
	if _, err := c.Tool(t.Context(), "run_command", stdio.Arguments{"command": "wc -l < /tmp/all; ls /tmp/w"}, &o); err != nil {
		t.Fatal(err)
	}
	o.want(t, "0 exit", "30\n/tmp/w\n")
	// Agents and janitor: one of each.
	var names []string
	for _, p := range proc.Descendants(c.PID()) {
		if p.Parent == c.PID() {
			names = append(names, p.Name)
		}
	}
	if len(names) > 2 {
		t.Errorf("below the server: %v", names)
	}
	refused(t, c, "kill_sandbox", stdio.Arguments{"sandbox_id": "i0"}, "unknown")
	for id := range ids {
		if _, err := c.Tool(t.Context(), "kill_sandbox", stdio.Arguments{"sandbox_id": id}, nil); err != nil {
			t.Error(err)
		}
		refused(t, c, "run_command", stdio.Arguments{"command": "true", "sandbox_id": id}, id, "gone", "create_sandbox")
	}
	refused(t, c, "kill_sandbox", nil, "no default sandbox", "sandbox_id")
}

func createFails(t *testing.T, _ *world) {
	for _, c := range []struct {
		name  string
		env   []string
		args  stdio.Arguments
		words []string
	}{
		{"no such template", nil, stdio.Arguments{"template": "nosuch"}, []string{"nosuch", "code-interpreter-v1"}},
		{"no disk", []string{"ABX_LIMIT_DISK=4096"}, nil, []string{"ABX_LIMIT_DISK", "at least"}},
		{"no memory", []string{"ABX_LIMIT_MEMORY=100000"}, nil, []string{"ABX_LIMIT_MEMORY", "at least"}},
		{"no open files", []string{"ABX_LIMIT_OPEN_FILES=3"}, nil, []string{"ABX_LIMIT_OPEN_FILES", "at least"}},
		{"no place for records", []string{"HOME=/proc"}, nil, []string{"/proc"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, err := stdio.Start(context.Background(), stdio.Options{
				Path: program(t, "abx"), Env: append(stdio.Embedded(os.Environ()), append(c.env, "ABX_POOL_SIZE=0")...), Stderr: io.Discard,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close() })
			if _, err := client.Initialize(t.Context()); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if said := refused(t, client, "create_sandbox", c.args, c.words...); strings.Contains(said, "internal error") {
					t.Errorf("the cause is not told: %s", said)
				}
			}
			below := func() []proc.Process { // what may stay is the janitor
				return slices.DeleteFunc(proc.Descendants(client.PID()), func(p proc.Process) bool { return !p.Alive() })
			}
			eventually(t, func() bool { return len(below()) <= 1 }, func() string { return fmt.Sprint(below()) })
			if err := client.Call(t.Context(), "ping", map[string]any{}, &struct{}{}); err != nil {
				t.Error(err)
			}
			refused(t, client, "kill_sandbox", nil, "no default sandbox")
			if c.env == nil { // the next, good one works
				b := newBox(t, client)
				b.usable(t)
			}
		})
	}
	full := serveWith(t, "ABX_MAX_SANDBOXES=2", "ABX_POOL_SIZE=0")
	one := newBox(t, full)
	newBox(t, full)
	refused(t, full, "create_sandbox", nil, "max_sandboxes", "kill_sandbox")
	one.usable(t)
	one.tool(t, "kill_sandbox", nil, nil)
	newBox(t, full).usable(t)
}
