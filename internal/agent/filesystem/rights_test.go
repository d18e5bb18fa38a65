//go:build linux

package filesystem

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/account"
	pb "github.com/agent-sandbox/abx/internal/e2b/filesystem"
)

func needsRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: others have one id and no capabilities")
	}
}

// A thread is what the kernel knows of the calling thread's rights.
type thread struct {
	uid, gid  uint32
	groups    []int
	effective uint32
}

func thisThread(t testing.TB) thread {
	t.Helper()
	var caps [2]unix.CapUserData
	groups, err := unix.Getgroups()
	err = errors.Join(err, unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]))
	if err != nil {
		t.Error(err)
	}
	return thread{fsID(unix.SYS_SETFSUID, unset), fsID(unix.SYS_SETFSGID, unset), groups, caps[0].Effective}
}

func wantThread(t testing.TB, what string, want thread) {
	t.Helper()
	if diff := cmp.Diff(want, thisThread(t), cmp.AllowUnexported(thread{})); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}

func TestRightsAreTakenAndGivenBack(t *testing.T) {
	needsRoot(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := thisThread(t)
	a := account.Account{Name: "user", UID: 1000, GID: 1001, Groups: []uint32{5, 7}}
	wrong := errors.New("wrong")
	r := newRights(false, slog.Default())
	err := r.as(a, func() error {
		wantThread(t, "within", thread{1000, 1001, []int{5, 7}, 0})
		return wrong
	})
	if !errors.Is(err, wrong) {
		t.Errorf("error %v", err)
	}
	wantThread(t, "after", before)
	func() {
		defer func() { recover() }()
		r.as(a, func() error { panic("x") })
	}()
	wantThread(t, "after a panic", before)
	for _, a := range []account.Account{{Name: "minus", UID: unset, GID: 1}, {UID: 1, GID: unset}} {
		err := r.as(a, func() error { t.Error("it ran"); return nil })
		if kindOf(err) != kindUser || !strings.Contains(err.Error(), "cannot act as") {
			t.Errorf("%v: %v", a, err)
		}
		wantThread(t, "after a refusal", before)
	}
	must(t, newRights(true, slog.Default()).as(a, func() error {
		want := before
		want.effective = 0
		wantThread(t, "with a single id", want)
		return nil
	}))
	wantThread(t, "after a single id", before)
}

// Threads with the rights of users and others run and end beside each other.
func TestRightsDoNotSpread(t *testing.T) {
	needsRoot(t)
	r := newRights(false, slog.Default())
	own := thisThread(t)
	var wg sync.WaitGroup
	for i := range 8 {
		a := account.Account{UID: uint32(2000 + i), GID: uint32(3000 + i), Groups: []uint32{uint32(4000 + i)}}
		wg.Go(func() {
			for range 200 {
				must(t, r.as(a, func() error {
					runtime.Gosched()
					wantThread(t, "within", thread{a.UID, a.GID, []int{int(a.Groups[0])}, 0})
					return nil
				}))
			}
		})
		wg.Go(func() {
			for range 200 {
				done := make(chan struct{})
				go func() {
					defer close(done)
					runtime.LockOSThread() // and end it, so that new ones are made
					wantThread(t, "beside", own)
				}()
				<-done
			}
		})
	}
	wg.Wait()
}

// spoiling are rights that cannot be given back.
func spoiling() *rights {
	r := newRights(true, slog.New(slog.DiscardHandler))
	r.drop = true
	r.caps[0] = unix.CapUserData{Effective: 1} // which is not permitted
	return r
}

// A thread that cannot get its rights back ends with its goroutine. The first
// thread of a process cannot end: the runtime parks it for good instead, and
// another is tried.
func TestSpoiledThreadEnds(t *testing.T) {
	tid := os.Getpid()
	for tid == os.Getpid() {
		recovered := make(chan any)
		go func() {
			defer func() { recovered <- recover() }()
			spoiling().as(account.Account{}, func() error { tid = unix.Gettid(); return nil })
		}()
		if p := <-recovered; p != http.ErrAbortHandler {
			t.Fatalf("panic %v", p)
		}
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(guard); ; {
		if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid)); errors.Is(err, os.ErrNotExist) {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("thread %d is there after %v", tid, guard)
		}
	}
}

// The reader of watches goes on when its thread had to end.
func TestWatchSurvivesSpoiledThread(t *testing.T) {
	b := newBench(t)
	w := b.watchDir(t, &pb.WatchDirRequest{Path: "/tmp", Recursive: true})
	b.hub.mu.Lock()
	b.hub.rights = spoiling()
	b.hub.mu.Unlock()
	for i := range 3 {
		dir := fmt.Sprint("d", i)
		must(t, os.Mkdir(b.real("tmp/"+dir), 0o755))
		w.until(event{dir, created})
		write(t, b.real("tmp/"+dir+"/f"), "")
		w.until(event{dir + "/f", created})
	}
}

// What the mode of a file denies the user is denied to the request, whatever
// name leads to it, and told with path, user and what to do, once.
func TestDenied(t *testing.T) {
	needsRoot(t)
	b := newBench(t)
	must(t, os.MkdirAll(b.real("etc/closed"), 0o755))
	must(t, os.WriteFile(b.real("etc/passwd"), []byte("kept"), 0o644))
	must(t, os.WriteFile(b.real("etc/shadow"), []byte("secret"), 0o600))
	must(t, errors.Join(
		os.Chmod(b.real("etc/closed"), 0o700), os.WriteFile(b.real("etc/closed/x"), nil, 0o644), os.Chown(b.real("etc"), 0, 0), os.Chown(b.root, 0, 0),
		os.Symlink("/etc/passwd", b.real("tmp/config.json")), os.Symlink("/etc", b.real("tmp/etc")), os.Symlink("/etc/shadow", b.real("tmp/peek")), os.Symlink("/etc/new", b.real("tmp/new")),
	))
	const next = ` for user "user"; use a path below /home/user, or make the request as root`
	for _, tt := range []struct{ method, path, text string }{
		{"POST", "/etc/passwd", `path "/etc/passwd": permission denied` + next},
		{"POST", "/tmp/config.json", `path "/tmp/config.json", which leads to "/etc/passwd": permission denied` + next},
		{"POST", "/tmp/new", `path "/tmp/new", which leads to "/etc/new": permission denied` + next},
		{"POST", "/tmp/etc/d/f", `path "/tmp/etc/d/f": permission denied` + next},
		{"POST", "/x/y", `path "/x/y": permission denied` + next},
		{"GET", "/etc/shadow", `path "/etc/shadow": permission denied` + next},
		{"GET", "/tmp/peek", `path "/tmp/peek", which leads to "/etc/shadow": permission denied` + next},
		{"GET", "/etc/closed/x", `path "/etc/closed/x": permission denied` + next},
	} {
		resp, got := b.do(t, tt.method, "/files?"+query(tt.path), strings.NewReader("x"), "Content-Type", "application/octet-stream")
		wantError(t, resp, got, http.StatusForbidden, tt.text)
	}
	for _, body := range []string{`{"source_paths":["/etc/passwd"],"destination":"/tmp/all"}`, `{"source_paths":["/tmp/mine"],"destination":"/etc/all"}`, `{"source_paths":["/etc/shadow"],"destination":"/tmp/all2"}`} {
		b.put(t, "/tmp/mine", []byte("x"))
		resp, got := b.do(t, "POST", "/files/compose", strings.NewReader(body), "Content-Type", "application/json")
		wantError(t, resp, got, http.StatusForbidden, next)
	}
	_, list := b.list(t.Context(), &pb.ListDirRequest{Path: "/etc/closed"})
	_, stat := b.stat(t, "/tmp/etc/closed/x")
	_, mkdir := b.mkdir(t, "/etc/d")
	_, from := b.mv(t, "/etc/passwd", "/tmp/moved")
	_, to := b.mv(t, "/tmp/mine", "/etc/passwd")
	_, watch := b.rpc.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: "/etc/closed"}))
	for what, err := range map[string]error{"list": list, "stat": stat, "mkdir": mkdir, "from": from, "to": to, "watch": watch, "remove": b.rm(t, "/etc/passwd")} {
		wantCode(t, err, connect.CodePermissionDenied)
		if !strings.HasSuffix(fmt.Sprint(err), next) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := os.Stat(b.real("tmp/all")); err == nil {
		t.Error("a compose that could not remove its source left its destination")
	}
	if got := read(t, b.real("etc/passwd")); got != "kept" {
		t.Errorf("/etc/passwd is %q", got)
	}
	entries, err := b.list(t.Context(), &pb.ListDirRequest{Path: "/etc", Depth: 3})
	must(t, err)
	if diff := cmp.Diff([]string{"/etc/closed", "/etc/passwd", "/etc/shadow"}, paths(entries.Entries)); diff != "" {
		t.Error(diff)
	}
}

// The user root inside has the rights of an owner, not a superuser's.
func TestRequestsOfRoot(t *testing.T) {
	needsRoot(t)
	b := newBench(t)
	must(t, errors.Join(os.Chown(b.root, 0, 0), os.Mkdir(b.real("etc"), 0o755)))
	b.put(t, "/tmp/mine", []byte("x"))
	must(t, os.Chmod(b.real("tmp/mine"), 0o600))
	post := func(p string) (*http.Response, []byte) {
		return b.do(t, "POST", "/files?username=root&"+query(p), strings.NewReader("x"), "Content-Type", "application/octet-stream")
	}
	if resp, got := post("/etc/x"); resp.StatusCode != http.StatusOK {
		t.Errorf("%s %s", resp.Status, got)
	}
	resp, got := post("/tmp/mine")
	wantError(t, resp, got, http.StatusForbidden, `path "/tmp/mine": permission denied for user "root"; use a path below /root, or as the owner`)
	st, err := os.Stat(b.real("etc/x"))
	if err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("/etc/x: %v %v", st, err)
	}
}

// In a directory as /tmp the kernel may be set not to follow links of others;
// the service does as it does.
func TestLinksOfOthersInSharedDirectories(t *testing.T) {
	needsRoot(t)
	b := newHostBench(t)
	dir := tempDir(t)
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "shared", "link")
	must(t, os.WriteFile(target, []byte("x"), 0o644))
	must(t, errors.Join(os.Mkdir(filepath.Dir(link), 0), os.Chmod(filepath.Dir(link), 0o777|os.ModeSticky)))
	must(t, errors.Join(os.Symlink(target, link), os.Lchown(link, 1000, 1000)))
	_, byKernel := os.ReadFile(link)
	resp, got := b.get(t, link)
	if (byKernel == nil) != (resp.StatusCode == http.StatusOK) {
		t.Errorf("open(2): %v; the service: %s %s", byKernel, resp.Status, got)
	}
	t.Logf("open(2): %v", byKernel)
}

func BenchmarkRights(b *testing.B) {
	needsRoot(b)
	for name, a := range map[string]account.Account{
		"user":            {UID: 1000, GID: 1000},
		"user and groups": {UID: 1000, GID: 1000, Groups: []uint32{5}},
	} {
		r := newRights(false, slog.Default())
		r.own.Groups, r.hide = nil, true // as in a sandbox; the process's differ, and are not looked at
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				r.as(a, func() error { return nil })
			}
		})
	}
	single := newRights(true, slog.Default())
	b.Run("single", func(b *testing.B) {
		for b.Loop() {
			single.as(account.Account{}, func() error { return nil })
		}
	})
}
