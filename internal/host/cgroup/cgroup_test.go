//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func root(t *testing.T) *Root {
	t.Helper()
	r, err := Detect()
	if errors.Is(err, ErrNone) && os.Geteuid() != 0 {
		// An ordinary user without a delegated group has none: that answer is
		// what there is to test.
		t.Log("no cgroups for this user:", err)
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestGroupLimitsAndRemove(t *testing.T) {
	r := root(t)
	if r == nil {
		return
	}
	name := "abx-test-" + filepath.Base(t.TempDir())
	g, err := r.Create(name, Limits{MemoryBytes: 64 << 20, Processes: 10}, -1)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	supervisor, err := g.Supervisor()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range supervisor {
		if _, err := fmt.Fprint(f, cmd.Process.Pid); err != nil {
			t.Error(err)
		}
		f.Close()
	}
	work, err := g.Work()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range work {
		f.Close()
	}
	oom, pids, peak := g.Counters()
	for name, f := range map[string]*os.File{"oom": oom, "pids": pids, "peak": peak} {
		if f == nil {
			t.Errorf("no counter %s", name)
			continue
		}
		f.Close()
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process in the group outlived it")
	}
	for _, dir := range r.Folders(name) {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", dir, err)
		}
	}
	if err := g.Remove(); err != nil {
		t.Errorf("removing twice: %v", err)
	}
}

func TestNestedRemove(t *testing.T) {
	r := root(t)
	if r == nil {
		return
	}
	name := "abx-test-" + filepath.Base(t.TempDir())
	for _, sub := range []string{"/a", "/b"} {
		if _, err := r.Create(name+sub, Limits{}, -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := Remove(r.Folders(name)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range r.Folders(name) {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there", dir)
		}
	}
}

// Version 2 without controllers: folders, placement and removal can be tried
// wherever a unified hierarchy is mounted and may be written.
func TestVersion2Mechanics(t *testing.T) {
	mounts, err := readMounts("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var dir string
	for _, m := range mounts {
		if m.kind == "cgroup2" && try(m.path) == nil {
			dir = m.path
		}
	}
	if dir == "" {
		t.Log("no unified hierarchy that this user may write: nothing to try")
		return
	}
	r := &Root{v2: dir}
	g, err := r.Create("abx-test-"+filepath.Base(t.TempDir())+"/one", Limits{}, 12345)
	if err != nil {
		t.Fatal(err)
	}
	folder, err := g.Supervisor()
	if err != nil {
		t.Fatal(err)
	}
	defer folder[0].Close()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(folder[0].Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.Remove(), Remove([]string{filepath.Dir(r.Folders(g.name)[0])})); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process in the group outlived it")
	}
}

func TestMountsAndOwnGroup(t *testing.T) {
	const info = `25 1 0:22 / /sys/fs/cgroup ro - tmpfs tmpfs ro
26 25 0:23 /docker/ab /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
27 25 0:24 / /sys/fs/cgroup/pids rw shared:9 - cgroup cgroup rw,pids
28 25 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
`
	path := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(path, []byte(info), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readMounts(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []mount{
		{"cgroup", "rw,memory", "/docker/ab", "/sys/fs/cgroup/memory"},
		{"cgroup", "rw,pids", "/", "/sys/fs/cgroup/pids"},
		{"cgroup2", "rw", "/", "/sys/fs/cgroup/unified"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(mount{})); diff != "" {
		t.Error(diff)
	}
	for group, want := range map[string]string{
		"/docker/ab":   "/sys/fs/cgroup/memory",
		"/docker/ab/c": "/sys/fs/cgroup/memory/c",
		"/elsewhere":   "/sys/fs/cgroup/memory",
	} {
		if got := got[0].below(group); got != want {
			t.Errorf("below(%s) = %s, want %s", group, got, want)
		}
	}
	if !strings.HasPrefix(got[1].below("/x"), "/sys/fs/cgroup/pids/") {
		t.Error("group of pids")
	}
}
