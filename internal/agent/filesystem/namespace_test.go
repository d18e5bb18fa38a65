//go:build linux

package filesystem

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/account"
	pb "github.com/agent-sandbox/abx/internal/e2b/filesystem"
)

// inside marks the run of the test binary within namespaces of its own, where
// it is what the agent is with a single id: uid 1000, with capabilities.
const inside = "-test.run=^TestMounts$/^inside$"

// TestMounts needs mounts, so it runs once more in a user and a mount namespace.
func TestMounts(t *testing.T) {
	if os.Getpid() == 1 {
		t.Run("inside", func(t *testing.T) {
			t.Run("full disk", testFullDisk)
			t.Run("remove", testRemoveAtMounts)
			t.Run("read-only", testReadOnlyMount)
			t.Run("move", testMoveAcrossMounts)
			t.Run("own process", testProcessOne)
			t.Run("capabilities", testNoCapabilities)
		})
		return
	}
	cmd := exec.Command("/proc/self/exe", inside, "-test.v")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: account.UserID, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: account.UserID, HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_KILL},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EACCES) {
		t.Skipf("this machine gives no user namespace: %v", err)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: TestMounts/inside") {
		t.Errorf("%v\n%s", err, out)
	} else {
		t.Logf("%s", out)
	}
}

// newMountBench is a bench whose /tmp is a tmpfs of 1 MiB. One id is mapped, so
// nothing can be given away.
func newMountBench(t *testing.T) *bench {
	b := newBench1(t, func(o *Options) { o.Book.Single = true })
	must(t, syscall.Mount("tmpfs", b.real("tmp"), "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { syscall.Unmount(b.real("tmp"), syscall.MNT_DETACH) })
	return b
}

func testFullDisk(t *testing.T) {
	b := newMountBench(t)
	b.put(t, "/tmp/old", []byte("old"))
	big := string(noise(2 << 20))
	body, kind := form(t, "/tmp/new", big)
	resp, got := b.do(t, "POST", "/files", body, "Content-Type", kind)
	wantError(t, resp, got, http.StatusInsufficientStorage, "no space")
	if _, err := os.Stat(b.real("tmp/new")); err == nil {
		t.Error("half an upload holds the disk")
	}
	for _, p := range []string{"/tmp/new2", "/tmp/old"} {
		resp, got = b.do(t, "POST", "/files?path="+p, strings.NewReader(big), "Content-Type", "application/octet-stream")
		wantError(t, resp, got, http.StatusInsufficientStorage, "no space")
	}
	if read(t, b.real("tmp/old")) != "old" {
		t.Error("an upload that cannot fit destroyed the old file")
	}
	b.put(t, "/tmp/a", noise(600<<10))
	resp, got = b.do(t, "POST", "/files/compose", strings.NewReader(`{"source_paths":["/tmp/a"],"destination":"/tmp/b"}`))
	wantError(t, resp, got, http.StatusInsufficientStorage, "no space")
	if st, err := os.Stat(b.real("tmp/a")); err != nil || st.Size() != 600<<10 {
		t.Errorf("a compose that failed lost its source: %v, %v", st, err)
	}
	b.put(t, "/tmp/a", noise(700<<10)) // its own blocks count as free
	must(t, b.rm(t, "/tmp/a"))
	b.put(t, "/tmp/m", []byte("x"), "X-Metadata-K", strings.Repeat("v", 4000))
}

func testRemoveAtMounts(t *testing.T) {
	b := newMountBench(t)
	host := t.TempDir()
	write(t, filepath.Join(host, "precious"), "x")
	must(t, os.MkdirAll(b.real("home/user/t/a b/host"), 0o755))
	write(t, b.real("home/user/t/0"), "x")
	must(t, syscall.Mount(host, b.real("home/user/t/a b/host"), "", syscall.MS_BIND, ""))
	t.Cleanup(func() { syscall.Unmount(b.real("home/user/t/a b/host"), syscall.MNT_DETACH) })
	for _, p := range []string{"/tmp", "t", "t/a b", "t/a b/host", "/home"} {
		wantCode(t, b.rm(t, p), connect.CodeFailedPrecondition)
	}
	for _, p := range []string{filepath.Join(host, "precious"), b.real("home/user/t/0")} {
		if read(t, p) != "x" {
			t.Errorf("%s changed", p)
		}
	}
	// Should the check before be fooled, the walk itself stops at a mount.
	pl, err := b.tree.locate("/home/user/t", route{})
	must(t, err)
	defer pl.close()
	r := &remover{tree: b.tree, cur: pl.dir}
	if err := r.run(t.Context(), pl.name); kindOf(at("t", err)) != kindBusy {
		t.Errorf("remove over a bind mount: %v", err)
	}
	r.end(pl.dir)
	if read(t, filepath.Join(host, "precious")) != "x" {
		t.Error("a file of the host is gone")
	}
	must(t, b.rm(t, "t/a b/host/precious"))
}

func testReadOnlyMount(t *testing.T) {
	b := newMountBench(t)
	must(t, os.Mkdir(b.real("tmp/d"), 0o755))
	must(t, syscall.Mount("", b.real("tmp"), "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	resp, got := b.do(t, "POST", "/files?path=/tmp/x/f", strings.NewReader("x"), "Content-Type", "application/octet-stream")
	wantError(t, resp, got, http.StatusForbidden, "read-only")
	_, err := b.mkdir(t, "/tmp/x")
	wantCode(t, err, connect.CodePermissionDenied)
	wantCode(t, b.rm(t, "/tmp/d"), connect.CodePermissionDenied)
}

func testMoveAcrossMounts(t *testing.T) {
	b := newMountBench(t)
	b.put(t, "f", []byte("x"))
	_, err := b.mv(t, "f", "/tmp/f")
	wantCode(t, err, connect.CodeFailedPrecondition)
	if read(t, b.real("home/user/f")) != "x" {
		t.Error("the source is gone")
	}
}

// What a file's mode denies its owner is denied, whatever the agent could do.
func testNoCapabilities(t *testing.T) {
	b := newBench1(t, func(o *Options) { o.Book.Single = true })
	secret, closed := b.real("tmp/secret"), b.real("tmp/closed")
	write(t, secret, "x")
	must(t, os.Mkdir(closed, 0o755))
	must(t, errors.Join(os.Chmod(secret, 0), os.Chmod(closed, 0)))
	if _, err := os.ReadFile(secret); err != nil {
		t.Fatalf("the test has no capabilities: %v", err)
	}
	resp, got := b.get(t, "/tmp/secret")
	wantError(t, resp, got, http.StatusForbidden, `path "/tmp/secret": permission denied for user "user"; use a path below /home/user, or change the mode`)
	resp, got = b.do(t, "POST", "/files?path=/tmp/secret", strings.NewReader("y"), "Content-Type", "application/octet-stream")
	wantError(t, resp, got, http.StatusForbidden, "permission denied")
	_, err := b.list(t.Context(), &pb.ListDirRequest{Path: "/tmp/closed"})
	wantCode(t, err, connect.CodePermissionDenied)
	_, err = b.mkdir(t, "/tmp/closed/d")
	wantCode(t, err, connect.CodePermissionDenied)
	if _, err := os.ReadFile(secret); err != nil {
		t.Errorf("the agent lost its capabilities: %v", err)
	}
}

// As in a sandbox, the agent is process 1 of its own procfs.
func testProcessOne(t *testing.T) {
	must(t, syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	must(t, syscall.Mount("proc", "/proc", "proc", 0, ""))
	b := newBench1(t, func(o *Options) { o.Root, o.Book.Single = "/", true })
	for _, p := range []string{"/proc/1/environ", "/proc/1/mem", "/proc/self/environ", fmt.Sprintf("/proc/%d/environ", syscall.Gettid()), "/proc/1/root/etc/passwd"} {
		resp, got := b.get(t, p)
		wantError(t, resp, got, 403, "")
	}
	resp, got := b.get(t, "/proc/meminfo")
	if resp.StatusCode != 200 || !strings.HasPrefix(string(got), "MemTotal:") {
		t.Errorf("/proc/meminfo: %s %q", resp.Status, got)
	}
	cmd := exec.Command("sleep", "600")
	must(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	resp, got = b.get(t, fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if resp.StatusCode != 200 || !strings.Contains(string(got), "Name:") {
		t.Errorf("another process's status: %s %q", resp.Status, got)
	}
	_, err := b.list(t.Context(), &pb.ListDirRequest{Path: "/proc/1"})
	wantCode(t, err, connect.CodePermissionDenied)
}
