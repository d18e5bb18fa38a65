//go:build linux

package filesystem

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/abx/internal/e2b/filesystem"
)

// newHostBench serves the real root, for what only procfs and /dev can show.
func newHostBench(t *testing.T) *bench {
	return newBench1(t, func(o *Options) { o.Root = "/" })
}

// None of these may hang, and none may give content.
func TestWhatIsNotARegularFile(t *testing.T) {
	b := newBench(t)
	must(t, syscall.Mkfifo(b.real("tmp/fifo"), 0o666))
	l, err := net.Listen("unix", b.real("tmp/sock"))
	must(t, err)
	defer l.Close()
	must(t, os.Symlink("fifo", b.real("tmp/to-fifo")))
	for _, name := range []string{"fifo", "to-fifo", "sock"} {
		resp, got := b.get(t, "/tmp/"+name)
		wantError(t, resp, got, 400, "not a regular file")
		resp, got = b.do(t, "POST", "/files?path=/tmp/"+name, strings.NewReader("x"), "Content-Type", "application/octet-stream")
		wantError(t, resp, got, 400, "not a regular file")
	}
	host := newHostBench(t)
	for _, p := range []string{"/dev/null", "/dev/zero", "/dev/tty", "/dev/ptmx"} {
		if _, err := os.Stat(p); err != nil {
			continue
		}
		resp, got := host.get(t, p)
		wantError(t, resp, got, 400, "not a regular file")
		resp, got = host.do(t, "POST", "/files?path="+p, strings.NewReader("x"), "Content-Type", "application/octet-stream")
		if resp.StatusCode != 400 && resp.StatusCode != 403 {
			t.Errorf("POST %s: %s %s", p, resp.Status, got)
		}
	}
}

// The agent's own process must not be reached, by whatever path.
func TestOwnProcessIsHidden(t *testing.T) {
	b := newHostBench(t)
	dir := t.TempDir()
	secret := "abx-secret-in-environ"
	f, err := os.Create(filepath.Join(dir, "open"))
	must(t, err)
	defer f.Close()
	io.WriteString(f, secret)
	self := fmt.Sprintf("/proc/%d", os.Getpid())
	thread := fmt.Sprintf("/proc/%d", syscall.Gettid())
	tries := []string{
		self + "/environ", self + "/mem", self + "/maps", self + "/cmdline", self + "/auxv", self + "/status",
		"/proc/self/environ", "/proc/self/mem", "/proc/thread-self/environ", "/proc/self/task/" + filepath.Base(thread) + "/environ",
		thread + "/environ", "/proc/../proc/self/environ", "/proc/self/root/etc/passwd", "/proc/self/cwd", "/proc/self/exe",
		fmt.Sprintf("%s/fd/%d", self, f.Fd()), fmt.Sprintf("/proc/self/fd/%d", f.Fd()), "/dev/fd/" + fmt.Sprint(f.Fd()), "/proc/mounts", "/proc/net/tcp",
	}
	for i, p := range tries {
		link := filepath.Join(dir, fmt.Sprint(i))
		must(t, os.Symlink(p, link))
		for _, p := range []string{p, link} {
			resp, got := b.get(t, p)
			wantError(t, resp, got, 403, "")
			resp, got = b.do(t, "POST", "/files?path="+p, strings.NewReader("x"), "Content-Type", "application/octet-stream")
			wantError(t, resp, got, 403, "")
		}
	}
	must(t, os.Symlink(self, filepath.Join(dir, "proc-self")))
	must(t, os.Symlink("/proc/self/fd", filepath.Join(dir, "proc-fd")))
	for _, p := range []string{"/proc/self", self, thread, self + "/fd", self + "/task", filepath.Join(dir, "proc-self"), filepath.Join(dir, "proc-fd")} {
		_, err := b.list(t.Context(), &pb.ListDirRequest{Path: p})
		wantCode(t, err, connect.CodePermissionDenied)
		_, err = b.rpc.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: p}))
		wantCode(t, err, connect.CodePermissionDenied)
	}
	if read(t, f.Name()) != secret {
		t.Error("the file behind a descriptor was written")
	}
}

func TestListingAroundOwnProcess(t *testing.T) {
	b := newHostBench(t)
	got, err := b.list(t.Context(), &pb.ListDirRequest{Path: "/proc", Depth: 2})
	must(t, err)
	self, inside := fmt.Sprintf("/proc/%d", os.Getpid()), 0
	for _, e := range got.Entries {
		if strings.HasPrefix(e.Path, self+"/") {
			inside++
		}
		if e.Path == "/proc/self" && e.Type != pb.FileType_FILE_TYPE_UNSPECIFIED {
			t.Errorf("/proc/self is resolved: %v", e)
		}
	}
	if inside > 0 {
		t.Errorf("%d entries of the agent's own process are listed", inside)
	}
}

func TestKernelFilesAreRead(t *testing.T) {
	b := newHostBench(t)
	want, err := os.ReadFile("/proc/version")
	must(t, err)
	for _, coding := range []string{"identity", "gzip, identity;q=0"} {
		resp, got := b.get(t, "/proc/version", "Accept-Encoding", coding)
		if resp.StatusCode != 200 || resp.ContentLength >= 0 && resp.ContentLength != int64(len(got)) || coding == "identity" && !bytes.Equal(got, want) {
			t.Errorf("%s: %s %v %q", coding, resp.Status, resp.Header, got)
		}
	}
	resp, got := b.do(t, "HEAD", "/files?path=/proc/version", nil)
	if resp.StatusCode != 200 || len(got) != 0 {
		t.Errorf("HEAD: %s", resp.Status)
	}
	resp, got = b.get(t, "/sys/kernel/uevent_seqnum") // sysfs says 4096 bytes and has fewer
	if resp.StatusCode != 200 && resp.StatusCode != 404 || resp.StatusCode == 200 && len(got) == 0 {
		t.Errorf("sysfs: %s %q", resp.Status, got)
	}
}

func TestKernelFilesAreNotChanged(t *testing.T) {
	b := newHostBench(t)
	for _, p := range []string{"/proc/sys/kernel/hostname", "/proc/new", "/proc/sysrq-trigger", "/sys/new", "/sys/kernel/new/x"} {
		resp, got := b.do(t, "POST", "/files?path="+p, strings.NewReader("x"), "Content-Type", "application/octet-stream")
		wantError(t, resp, got, 403, "kernel file system")
		_, err := b.mkdir(t, p+"dir")
		wantCode(t, err, connect.CodePermissionDenied)
		_, err = b.mv(t, t.TempDir(), p+"dir")
		wantCode(t, err, connect.CodePermissionDenied)
	}
	_, err := b.mv(t, "/proc/version", t.TempDir()+"/x")
	wantCode(t, err, connect.CodePermissionDenied)
	wantCode(t, b.rm(t, "/proc/version"), connect.CodePermissionDenied)
}

func TestRemoveKeepsMountPoints(t *testing.T) {
	real := newTree("/")
	for _, p := range []string{"/proc", "/", "/sys", "/dev"} {
		pl, err := real.locate(p, route{})
		must(t, err)
		if err := real.removable(pl, p); kindOf(err) != kindInvalid {
			t.Errorf("removable(%q) = %v", p, err)
		}
		pl.close()
	}
}

// Case 48: links stay in the tree.
func TestLinksStayInside(t *testing.T) {
	b := newBench(t)
	outside := b.tempDir(t)
	write(t, filepath.Join(outside, "shadow"), "host secret")
	must(t, os.MkdirAll(b.real("etc"), 0o755))
	write(t, b.real("etc/shadow"), "inside")
	up := strings.Repeat("../", 40)
	for i, target := range []string{"/etc/shadow", up + "etc/shadow", "../etc/shadow", "./..//../etc/./shadow", "/home/../etc/shadow"} {
		link := fmt.Sprintf("tmp/l%d", i)
		must(t, os.Symlink(target, b.real(link)))
		if resp, got := b.get(t, "/"+link); resp.StatusCode != 200 || string(got) != "inside" {
			t.Errorf("%s: %s %q", target, resp.Status, got)
		}
	}
	must(t, os.Symlink(filepath.Join(outside, "shadow"), b.real("tmp/out")))
	resp, got := b.get(t, "/tmp/out")
	wantError(t, resp, got, 404, "")
	b.put(t, "/tmp/out", []byte("new"))
	if read(t, filepath.Join(outside, "shadow")) != "host secret" {
		t.Error("a write left the tree")
	}
	if read(t, b.real(filepath.Join(outside, "shadow"))) != "new" {
		t.Error("a link to nothing must be written through, as open(2) does")
	}
}

func TestLinkLoops(t *testing.T) {
	b := newBench(t)
	must(t, os.Symlink("b", b.real("tmp/a")))
	must(t, os.Symlink("a", b.real("tmp/b")))
	must(t, os.Symlink("self/x", b.real("tmp/self")))
	for _, p := range []string{"/tmp/a", "/tmp/self", "/tmp/a/x"} {
		resp, got := b.get(t, p)
		wantError(t, resp, got, 400, "symbolic links")
		resp, got = b.do(t, "POST", "/files?path="+p, strings.NewReader("x"), "Content-Type", "application/octet-stream")
		wantError(t, resp, got, 400, "symbolic links")
	}
	_, err := b.list(t.Context(), &pb.ListDirRequest{Path: "/tmp/a"})
	wantCode(t, err, connect.CodeInvalidArgument)
}

// A program swaps a directory for a link out of the tree, and a file for a
// FIFO, while files are written and read below. Nothing may hang, and nothing
// may be written or given away outside.
func TestSwappedWhileInUse(t *testing.T) {
	b := newBench(t)
	outside := b.tempDir(t)
	victim := filepath.Join(outside, "f")
	write(t, victim, "victim")
	before, err := os.Lstat(outside)
	must(t, err)
	asOwner(t, b.real("tmp"), func() error { return os.Mkdir(b.real("tmp/d"), 0o755) })
	must(t, os.Symlink(outside, b.real("tmp/evil")))
	must(t, syscall.Mkfifo(b.real("tmp/fifo"), 0o666))
	d, err := os.Open(b.real("tmp/d")) // whatever name it has
	must(t, err)
	defer d.Close()
	in := procFD(int(d.Fd())) + "/"
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				exchange(b.real("tmp/d"), b.real("tmp/evil"))
				os.Rename(in+"f", in+"old")
				os.Link(b.real("tmp/fifo"), in+"f")
				os.Remove(in + "f")
			}
		}
	})
	for i := range 400 {
		resp, _ := b.do(t, "POST", "/files?path=/tmp/d/f", strings.NewReader("x"), "Content-Type", "application/octet-stream")
		if resp.StatusCode == 500 {
			t.Errorf("POST: %s", resp.Status)
		}
		b.get(t, "/tmp/d/f")
		b.mkdir(t, fmt.Sprintf("/tmp/d/n%d/m", i))
		b.rm(t, "/tmp/d/f")
	}
	close(done)
	wg.Wait()
	after, err := os.Lstat(outside)
	must(t, err)
	entries, err := os.ReadDir(outside)
	must(t, err)
	if len(entries) != 1 || read(t, victim) != "victim" || after.Sys().(*syscall.Stat_t).Uid != before.Sys().(*syscall.Stat_t).Uid {
		t.Errorf("outside the tree was changed: %v", entries)
	}
}

// A file that grows is sent as long as it was; one that shrinks cuts the
// connection rather than pass for whole.
func TestFileChangesWhileRead(t *testing.T) {
	b := newBench(t)
	const size = 64 << 20
	for _, tt := range []struct {
		name  string
		to    int64
		whole bool
	}{{"grows", 2 * size, true}, {"shrinks", 10, false}} {
		p := b.real("tmp/" + tt.name)
		write(t, p, "")
		must(t, os.Truncate(p, size))
		r, err := http.NewRequestWithContext(t.Context(), "GET", b.url+"/files?path=/tmp/"+tt.name, nil)
		must(t, err)
		r.Header.Set("Accept-Encoding", "identity")
		resp, err := http.DefaultTransport.RoundTrip(r)
		must(t, err)
		must(t, os.Truncate(p, tt.to))
		n, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if tt.whole && (err != nil || n != size) || !tt.whole && err == nil {
			t.Errorf("%s: %d of %d bytes, %v", tt.name, n, size, err)
		}
	}
}

// The files of names belong to the sandbox: a FIFO there must not stop a Stat.
func TestNamesFromAFIFO(t *testing.T) {
	p := filepath.Join(t.TempDir(), "group")
	must(t, syscall.Mkfifo(p, 0o666))
	if got := readNames(p, ""); len(got) != 0 {
		t.Errorf("names %v", got)
	}
}

// The agent makes itself undumpable, which closes much of its own procfs; what
// goes through its own descriptors must still work.
func TestUndumpable(t *testing.T) {
	must(t, unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
	defer unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	b := newBench(t)
	w := b.watchDir(t, &pb.WatchDirRequest{Path: "/tmp", Recursive: true, IncludeEntry: true})
	infos := b.put(t, "/tmp/d/f", []byte("x"), "X-Metadata-K", "v")
	w.until(event{"d/f", created})
	e, err := b.stat(t, "/tmp/d/f")
	if err != nil || len(e.Metadata) != len(infos[0].Metadata) {
		t.Errorf("entry %v, %v; upload told %v", e, err, infos)
	}
	must(t, b.rm(t, "/tmp/d"))
	resp, got := newHostBench(t).get(t, "/proc/self/status")
	wantError(t, resp, got, 403, "")
}
