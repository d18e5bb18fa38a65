//go:build linux

package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/account"
)

// roles are what a re-executed test binary does.
var roles = map[string]func() int{
	"reaper": reaperRole,
}

func newTable(t testing.TB, o TableOptions) *Table {
	t.Helper()
	table, err := NewTable(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
		if err := table.Close(); err != nil {
			t.Error("second Close:", err)
		}
	})
	return table
}

func sh(script string) Command {
	return Command{Path: "/bin/sh", Args: []string{"-c", script}, Env: os.Environ(), Dir: "/"}
}

func TestTableStatus(t *testing.T) {
	table := newTable(t, TableOptions{NoCredential: true})
	for _, tt := range []struct {
		script string
		want   string
	}{
		{"exit 0", "exit status 0"},
		{"exit 3", "exit status 3"},
		{"kill -9 $$", "signal: killed"},
		{"kill -TERM $$", "signal: terminated"},
	} {
		p, err := table.Start(sh(tt.script))
		if err != nil {
			t.Fatal(err)
		}
		<-p.Done()
		if _, _, got := describe(p.Status()); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.script, got, tt.want)
		}
	}
}

func TestTableStartErrors(t *testing.T) {
	table := newTable(t, TableOptions{NoCredential: true})
	for _, tt := range []struct {
		name string
		c    Command
		want error
	}{
		{"no program", Command{Path: "/nonexistent"}, syscall.ENOENT},
		{"no folder", Command{Path: "/bin/true", Dir: "/nonexistent"}, syscall.ENOENT},
		{"no program, no folder bit", Command{Path: "/etc"}, syscall.EACCES},
		{"long argument", Command{Path: "/bin/true", Args: []string{strings.Repeat("x", maxArgument)}}, syscall.E2BIG},
	} {
		if _, err := table.Start(tt.c); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestTablePrepareRunsOnTheForkingThread(t *testing.T) {
	var threads []int
	refuse := errors.New("refused")
	table := newTable(t, TableOptions{NoCredential: true, Prepare: func() error {
		threads = append(threads, unix.Gettid())
		if len(threads) == 1 {
			return refuse
		}
		return os.WriteFile(fmt.Sprintf("/proc/self/task/%d/comm", unix.Gettid()), []byte("abx-spawner"), 0)
	}})
	if _, err := table.Start(sh("true")); !errors.Is(err, refuse) {
		t.Errorf("first start: %v, want the error of Prepare", err)
	}
	for range 3 {
		p, err := table.Start(sh("true"))
		if err != nil {
			t.Fatal(err)
		}
		<-p.Done()
	}
	if len(threads) != 2 || threads[0] != threads[1] {
		t.Errorf("Prepare ran on threads %v, want twice on one", threads)
	}
	if got := readAll(t, fmt.Sprintf("/proc/self/task/%d/comm", threads[1])); got != "abx-spawner\n" {
		t.Errorf("the thread is %q", got)
	}
}

func TestTableFiles(t *testing.T) {
	table := newTable(t, TableOptions{NoCredential: true})
	ours, theirs, err := newPipe(true)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	c := sh("echo out; echo err >&2; echo extra >&3; echo $PPID; cat; ls -l /proc/self/fd | wc -l; grep flags /proc/self/fdinfo/1")
	c.Stdout, c.Stderr, c.Extra = theirs, theirs, []*os.File{theirs}
	p, err := table.Start(c)
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(ours)
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	got := strings.Split(strings.TrimSpace(string(b)), "\n")
	// 0 to 3 and the folder that ls reads, and the line "total".
	want := []string{"out", "err", "extra", fmt.Sprint(os.Getpid()), "6"}
	if len(got) != 6 || !cmp.Equal(want, got[:5]) {
		t.Errorf("got %q, want %q and flags", got, want)
	}
	if last := got[len(got)-1]; !strings.HasPrefix(last, "flags:") || strings.HasSuffix(last, "4001") {
		t.Errorf("standard output is non-blocking: %s", last)
	}
}

func TestTableCredential(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root starts processes as others")
	}
	table := newTable(t, TableOptions{})
	ours, theirs, err := newPipe(true)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	c := Command{Path: "/usr/bin/id", Stdout: theirs, Stderr: theirs, Dir: "/",
		Account: account.Account{UID: 4711, GID: 4712, Groups: []uint32{4713}}}
	p, err := table.Start(c)
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(ours)
	<-p.Done()
	if want := "uid=4711 gid=4712 groups=4712,4713\n"; string(b) != want {
		t.Errorf("id says %q, want %q", b, want)
	}
}

func TestTableCgroup(t *testing.T) {
	mount := "/sys/fs/cgroup"
	if _, err := os.Stat(mount + "/cgroup.procs"); err != nil {
		mount += "/unified"
	}
	dir, err := os.MkdirTemp(mount, "abx-test-")
	if err != nil {
		t.Skip("no cgroup v2 to write to:", err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	folder, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	table := newTable(t, TableOptions{NoCredential: true, CgroupFD: int(folder.Fd())})
	ours, theirs, err := newPipe(true)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	c := sh("grep '^0:' /proc/self/cgroup")
	c.Stdout = theirs
	p, err := table.Start(c)
	theirs.Close()
	if err != nil {
		t.Skip("cannot start in a cgroup:", err)
	}
	b, _ := io.ReadAll(ours)
	<-p.Done()
	if want := strings.TrimPrefix(dir, mount) + "\n"; !strings.HasSuffix(string(b), want) {
		t.Errorf("the child is in %q, want %q", b, want)
	}
}

// started starts a script and waits until it has printed a line of pids.
func started(t *testing.T, table *Table, script string) (*Process, []int) {
	t.Helper()
	ours, theirs, err := newPipe(true)
	if err != nil {
		t.Fatal(err)
	}
	c := sh(script)
	c.Stdout = theirs
	p, err := table.Start(c)
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	var line []byte
	for one := make([]byte, 1); !bytes.HasSuffix(line, []byte("\n")); line = append(line, one...) {
		if _, err := ours.Read(one); err != nil {
			t.Fatal(err)
		}
	}
	var pids []int
	for _, f := range strings.Fields(string(line)) {
		pids = append(pids, atoi(t, f))
	}
	return p, pids
}

func TestSessionAndSignal(t *testing.T) {
	table := newTable(t, TableOptions{NoCredential: true})
	// One in the group, one in a group of its own, one in a session of its own.
	script := `sleep 601 & a=$!; set -m; sleep 602 & b=$!; set +m; setsid sleep 603 & c=$!
		echo $$ $a $b $c; while :; do sleep 604; done`
	p, pids := started(t, table, script)
	defer syscall.Kill(pids[3], syscall.SIGKILL)
	for end := time.Now().Add(guard); time.Now().Before(end); <-time.After(time.Millisecond) {
		if s, err := unix.Getsid(pids[3]); err == nil && s == pids[3] {
			break
		}
	}
	got := table.Session(p.PID())
	for _, pid := range pids[:3] {
		if !slices.Contains(got, pid) {
			t.Errorf("session %v lacks %d", got, pid)
		}
	}
	if slices.Contains(got, pids[3]) {
		t.Errorf("session %v has %d, which left it", got, pids[3])
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if left := table.Session(p.PID()); len(left) > 0 {
		t.Errorf("%v are left after SIGKILL", left)
	}
	<-p.Done()
	if !alive(pids[3]) {
		t.Error("a process of another session was killed")
	}
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("signal to nobody: %v, want ESRCH", err)
	}
}

func TestSignalOutrunsForks(t *testing.T) {
	table := newTable(t, TableOptions{NoCredential: true})
	p, _ := started(t, table, `f() { while :; do sleep 0.001 & done; }; f & f & echo 1; f`)
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	<-p.Done()
	if left := table.Session(p.PID()); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

func TestTerminate(t *testing.T) {
	table := newTable(t, TableOptions{NoCredential: true})
	for _, tt := range []struct {
		name, script string
		grace        time.Duration
		want         string
	}{
		{"obeys", "sleep 600 & echo 1; sleep 600", guard, "signal: terminated"},
		// Short sleeps: a child that is signalled between its fork and its exec has
		// the shell's handler still, and loses the signal.
		{"cleans up", "trap 'exit 7' TERM; echo 1; while :; do sleep 0.05; done", guard, "exit status 7"},
		{"ignores", "trap '' TERM; echo 1; while :; do sleep 600; done", 50 * time.Millisecond, "signal: killed"},
		{"leader obeys, child ignores", "(trap '' TERM; echo 1; while :; do sleep 600; done) & wait", 50 * time.Millisecond, "signal: terminated"},
		{"stopped", "echo 1; kill -STOP $$; sleep 600", guard, "signal: terminated"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, _ := started(t, table, tt.script)
			p.Terminate(tt.grace)
			<-p.Done()
			if _, _, got := describe(p.Status()); got != tt.want {
				t.Errorf("leader: %s, want %s", got, tt.want)
			}
			if left := table.Session(p.PID()); len(left) > 0 {
				t.Errorf("%v are left", left)
			}
		})
	}
}

func TestParseStat(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want stat
		bad  bool
	}{
		{"12 (sh) S 3 12 11 0 -1", stat{'S', 3, 11}, false},
		{"12 (a b) Z 3 12 11 0", stat{'Z', 3, 11}, false},
		{"12 (a) R 1 2 (b)) R 3 12 -1 0", stat{'R', 3, -1}, false},
		{"12 (() D 0 0 0", stat{'D', 0, 0}, false},
		{"12 (sh) S 3", stat{}, true},
		{"", stat{}, true},
	} {
		got, err := parseStat([]byte(tt.in))
		if (err != nil) != tt.bad || got != tt.want {
			t.Errorf("%q: %v, %v; want %v", tt.in, got, err, tt.want)
		}
	}
}

func TestTableCloseKillsAndRefuses(t *testing.T) {
	table, err := NewTable(TableOptions{NoCredential: true})
	if err != nil {
		t.Fatal(err)
	}
	p, pids := started(t, table, "trap '' TERM; sleep 600 & echo $$ $!; wait")
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	for _, pid := range pids {
		gone(t, pid)
	}
	if _, err := table.Start(sh("true")); !errors.Is(err, ErrClosed) {
		t.Errorf("start after Close: %v, want ErrClosed", err)
	}
}

func TestReaper(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "ABX_TEST_ROLE=reaper")
	if testing.Short() {
		cmd.Env = append(cmd.Env, "ABX_TEST_SHORT=1")
	}
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "ok\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// reaperRole is a subreaper: it runs 10,000 short children, orphans among
// them, and looks for what is left of them.
func reaperRole() int {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Println("subreaper:", err)
		return 1
	}
	table, err := NewTable(TableOptions{NoCredential: true, Reap: true})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	n := 10000
	if os.Getenv("ABX_TEST_SHORT") != "" {
		n = 500
	}
	failures := make(chan error, 8)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range n / 4 {
				if err := reaperStep(table, w*n+i); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	wg.Wait()
	// A daemon in a session of its own, which Close must find too.
	p, err := table.Start(sh("setsid sleep 600 & exit 0"))
	if err != nil {
		failures <- err
	} else {
		<-p.Done()
	}
	if err := table.Close(); err != nil {
		failures <- err
	}
	var status unix.WaitStatus
	if pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil); err != unix.ECHILD {
		failures <- fmt.Errorf("child %d is left, %v", pid, err)
	}
	close(failures)
	for err := range failures {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ok")
	return 0
}

// reaperStep runs one child; some leave an orphan, some do not exist.
func reaperStep(table *Table, i int) error {
	c := Command{Path: "/bin/true", Dir: "/"}
	want := 0
	switch i % 10 {
	case 3:
		c, want = sh("true & exit 5"), 5
	case 7:
		if _, err := table.Start(Command{Path: "/nonexistent"}); !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("no program: %w", err)
		}
	}
	p, err := table.Start(c)
	if err != nil {
		return err
	}
	<-p.Done()
	if got := p.Status(); !got.Exited() || got.ExitStatus() != want {
		return fmt.Errorf("child %d: status %v, want exit %d", i, got, want)
	}
	return nil
}
