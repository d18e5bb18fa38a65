//go:build linux

package namespace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/engine"
	"github.com/agent-sandbox/abx/internal/reexec"
)

// guard is how long a test waits for what takes a moment: far longer than it
// takes on a busy machine, so that only what never comes fails.
const guard = 60 * time.Second

// eventually waits until ok; it is for states of the kernel that nobody tells
// us of.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(guard); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not so after %v", what, guard)
		}
	}
}

type footprint struct{ mounts, files, cgroups, children int }

func measure(t *testing.T, d *Driver) footprint {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	f := footprint{mounts: strings.Count(string(b), "\n"), files: len(fds), children: len(children(os.Getpid()))}
	if d.cgroups != nil {
		for _, dir := range d.cgroups.Folders(d.cgroupName()) {
			entries, _ := os.ReadDir(dir) // not there before the first sandbox
			for _, e := range entries {
				if e.IsDir() {
					f.cgroups++
				}
			}
		}
	}
	return f
}

func backTo(t *testing.T, d *Driver, before footprint) {
	t.Helper()
	var now footprint
	defer func() {
		if t.Failed() {
			t.Logf("before %+v, now %+v", before, now)
		}
	}()
	eventually(t, "back to the start", func() bool { now = measure(t, d); return now == before })
}

// children lists the processes that have this parent, zombies too.
func children(pid int) []int {
	var out []int
	found, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range found {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) > 1 && f[1] == strconv.Itoa(pid) {
			n, _ := strconv.Atoi(strings.Split(path, "/")[2])
			out = append(out, n)
		}
	}
	return out
}

func TestNothingIsLeft(t *testing.T) {
	d := testDriver(t, nil)
	startSandbox(t, d, "iwarm", smallLimits).Close()
	before := measure(t, d)
	for i := range 20 {
		s := startSandbox(t, d, fmt.Sprintf("ileft%d", i), smallLimits)
		run(t, s, "user", "sleep 600 & echo x > /tmp/f")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("closing twice: %v", err)
		}
		if _, err := s.Dial(t.Context(), e2b.PortAgent); !errors.Is(err, engine.ErrLost) {
			t.Errorf("dial after close: %v", err)
		}
	}
	backTo(t, d, before)
}

func TestManyAtOnce(t *testing.T) {
	d := testDriver(t, nil)
	var wg sync.WaitGroup
	sandboxes := make([]engine.Sandbox, 20)
	for i := range sandboxes {
		wg.Go(func() {
			s, err := d.Start(t.Context(), engine.Spec{ID: fmt.Sprintf("imany%d", i), Limits: smallLimits})
			if err != nil {
				t.Error(err)
				return
			}
			sandboxes[i] = s
			if e, err := tryRun(t.Context(), s, "user", "hostname"); err != nil || e.stdout != fmt.Sprintf("imany%d\n", i) {
				t.Errorf("%q %v", e.stdout, err)
			}
		})
	}
	wg.Wait()
	for _, s := range sandboxes {
		if s != nil {
			s.Close()
		}
	}
}

func TestDeathOfTheAgent(t *testing.T) {
	d := testDriver(t, nil)
	s := startSandbox(t, d, "ideath", smallLimits)
	if s.Err() != nil {
		t.Errorf("before: %v", s.Err())
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := tryRun(t.Context(), s, "user", "echo started; sleep 600"); err == nil {
			t.Error("a call survived its sandbox")
		}
	})
	if err := s.(*sandbox).proc.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	wg.Wait()
	if !errors.Is(s.Err(), engine.ErrLost) {
		t.Errorf("after: %v", s.Err())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestStartCancelled(t *testing.T) {
	d := testDriver(t, nil)
	startSandbox(t, d, "iwarm", smallLimits).Close()
	before := measure(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Start(ctx, engine.Spec{ID: "icancel", Limits: smallLimits}); !errors.Is(err, context.Canceled) {
		t.Errorf("start after cancel: %v", err)
	}
	backTo(t, d, before)
}

// A start that runs while the driver closes leaves nothing either, and none
// begins after.
func TestStartWhileClosing(t *testing.T) {
	for range 5 {
		d := testDriver(t, nil)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				s, err := d.Start(t.Context(), engine.Spec{ID: fmt.Sprintf("iclosing%d", i), Limits: smallLimits})
				if err == nil {
					err = s.Close()
				}
				if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, reexec.ErrClosed) {
					t.Error(err)
				}
			})
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if _, err := d.Start(t.Context(), engine.Spec{ID: "iclosed", Limits: smallLimits}); !errors.Is(err, reexec.ErrClosed) {
			t.Errorf("start after close: %v", err)
		}
		if d.cgroups == nil {
			continue
		}
		for _, dir := range d.cgroups.Folders(d.cgroupName()) {
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is left: %v", dir, err)
			}
		}
	}
}

// A step that fails inside names itself, and leaves nothing.
func TestStartFails(t *testing.T) {
	d := testDriver(t, nil)
	startSandbox(t, d, "iwarm", smallLimits).Close()
	before := measure(t, d)
	d.setup.Trees = append(d.setup.Trees, d.setup.Trees[0])
	d.setup.Trees[len(d.setup.Trees)-1].Source = "/no/such/folder"
	_, err := d.Start(t.Context(), engine.Spec{ID: "ifails", Limits: smallLimits})
	if err == nil || !strings.Contains(err.Error(), "/no/such/folder") || !strings.Contains(err.Error(), "open host folders") {
		t.Errorf("start: %v", err)
	}
	d.setup.Build = "other"
	if _, err := d.Start(t.Context(), engine.Spec{ID: "ibuild", Limits: smallLimits}); err == nil || !strings.Contains(err.Error(), "build") {
		t.Errorf("agent of another build: %v", err)
	}
	backTo(t, d, before)
}

func TestDialClosedPort(t *testing.T) {
	s := startSandbox(t, testDriver(t, nil), "iport", smallLimits)
	if _, err := s.Dial(t.Context(), 8080); !errors.Is(err, engine.ErrPortClosed) {
		t.Errorf("closed port: %v", err)
	}
	run(t, s, "user", `python3 -c '
import os, socket
s = socket.create_server(("127.0.0.1", 8080))
if os.fork() == 0:
    c, _ = s.accept(); c.sendall(b"hello"); c.close()
'`)
	c, err := s.Dial(t.Context(), 8080)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if b, err := io.ReadAll(c); string(b) != "hello" {
		t.Errorf("%q %v", b, err)
	}
}

// hostToKill is a host of n busy sandboxes that prints its record, its
// janitor and its sandboxes' processes, and then waits to be killed.
func hostToKill(args []string) error {
	agent, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	agentBinary = agent
	d, err := New(Options{StateDir: args[0], Build: "test", Path: "/usr/bin:/bin", Home: "/nonexistent"})
	if err != nil {
		return err
	}
	for i := range 5 {
		s, err := d.Start(context.Background(), engine.Spec{ID: fmt.Sprintf("ikill%d", i), Limits: smallLimits})
		if err != nil {
			return err
		}
		go tryRun(context.Background(), s, "user", "while :; do :; done & setsid sleep 600 & sleep 600")
		fmt.Println("agent", s.(*sandbox).proc.Pid)
	}
	if d.cgroups != nil {
		for _, dir := range d.cgroups.Folders(d.cgroupName()) {
			fmt.Println("cgroup", dir)
		}
	}
	fmt.Println("janitor", d.janitor.proc.Pid)
	fmt.Println("ready")
	select {}
}

func startHost(t *testing.T) (cmd *exec.Cmd, facts map[string][]string, state string) {
	t.Helper()
	state = t.TempDir()
	agent := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(agent, agentBinary, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd = &exec.Cmd{Path: "/proc/self/exe", Args: []string{roleHost, state, agent}, Stderr: os.Stderr}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	facts = map[string][]string{}
	for s := bufio.NewScanner(out); s.Scan(); {
		name, value, _ := strings.Cut(s.Text(), " ")
		facts[name] = append(facts[name], value)
		if name == "ready" {
			return cmd, facts, state
		}
	}
	t.Fatal("the host did not get ready")
	return nil, nil, ""
}

func gone(t *testing.T, facts map[string][]string, state string) {
	t.Helper()
	for _, pid := range slices.Concat(facts["agent"], facts["janitor"]) {
		n, _ := strconv.Atoi(pid)
		eventually(t, "process "+pid+" gone", func() bool { return startTime(n) == 0 })
	}
	for _, dir := range facts["cgroup"] {
		eventually(t, "cgroup "+dir+" gone", func() bool { _, err := os.Stat(dir); return errors.Is(err, os.ErrNotExist) })
	}
	eventually(t, "record gone", func() bool { e, err := os.ReadDir(state); return err == nil && len(e) == 0 })
}

func TestKillOfTheHost(t *testing.T) {
	cmd, facts, state := startHost(t)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	gone(t, facts, state)
}

// With the janitor killed first, the host starts another; with both killed at
// once, the next host sweeps.
func TestDeathOfTheJanitor(t *testing.T) {
	cmd, facts, state := startHost(t)
	old, _ := strconv.Atoi(facts["janitor"][0])
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	isJanitor := func(pid int) bool {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return strings.HasPrefix(string(b), RoleJanitor)
	}
	var next int
	eventually(t, "another janitor", func() bool {
		for _, pid := range children(cmd.Process.Pid) {
			if pid != old && isJanitor(pid) {
				next = pid
			}
		}
		return next != 0
	})
	if err := errors.Join(syscall.Kill(cmd.Process.Pid, syscall.SIGSTOP), syscall.Kill(next, syscall.SIGKILL), cmd.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	facts["janitor"] = []string{strconv.Itoa(next)}
	d, err := New(Options{StateDir: state, Build: "test", Path: "/usr/bin:/bin", Home: "/nonexistent"})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	gone(t, facts, state)
}

// A janitor that hangs does not hold up its host's end.
func TestHungJanitor(t *testing.T) {
	d := testDriver(t, nil)
	if err := d.janitor.proc.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(d.record); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the record is left: %v", err)
	}
}

// What a record names is only touched if it is a dead host's and carries our
// name.
func TestSweepTouchesNothingForeign(t *testing.T) {
	state := t.TempDir()
	foreign := filepath.Join(t.TempDir(), "foreign")
	if err := os.Mkdir(foreign, 0o700); err != nil {
		t.Fatal(err)
	}
	dead := record{Version: recordVersion, PID: 1 << 22, Start: 1, Boot: bootID(), Cgroups: []string{foreign}}
	living := newRecord()
	strange := record{Version: recordVersion + 1, PID: 1 << 22, Boot: bootID()}
	for name, r := range map[string]record{"dead": dead, "living": living, "strange": strange} {
		if err := r.write(filepath.Join(state, name+".json")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(state, "broken.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := sweep(state); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("a folder that is not ours: %v", err)
	}
	entries, err := os.ReadDir(state)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{"broken.json", "living.json", "strange.json"}; !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
}

// A pid that was given to another process is not the host.
func TestRecordKnowsItsHost(t *testing.T) {
	r := newRecord()
	if !r.alive() {
		t.Error("this process is taken for dead")
	}
	r.Start++
	if r.alive() {
		t.Error("another process with the same pid is taken for the host")
	}
	r = newRecord()
	r.Boot = "another"
	if r.alive() {
		t.Error("a process before the last boot is taken for alive")
	}
}
