//go:build linux

package filesystem

import (
	"fmt"
	"net/http"
	"os"
	"path"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/agent-sandbox/abx/internal/e2b/filesystem"
)

func (b *bench) mkdir(t *testing.T, p string) (*pb.EntryInfo, error) {
	t.Helper()
	r, err := b.rpc.MakeDir(t.Context(), connect.NewRequest(&pb.MakeDirRequest{Path: p}))
	if err != nil {
		return nil, err
	}
	return r.Msg.Entry, nil
}

func (b *bench) mv(t *testing.T, from, to string) (*pb.EntryInfo, error) {
	t.Helper()
	r, err := b.rpc.Move(t.Context(), connect.NewRequest(&pb.MoveRequest{Source: from, Destination: to}))
	if err != nil {
		return nil, err
	}
	return r.Msg.Entry, nil
}

func TestStat(t *testing.T) {
	b := newBench(t)
	b.put(t, "f", []byte("12345"))
	when := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	must(t, os.Chtimes(b.real("home/user/f"), when, when))
	must(t, os.Chmod(b.real("home/user/f"), 0o640|os.ModeSetuid))
	must(t, os.Symlink("f", b.real("home/user/link")))
	must(t, os.Symlink("/home/user/none", b.real("home/user/dangling")))
	must(t, os.Symlink("loop", b.real("home/user/loop")))
	must(t, os.Symlink("../../../../../../etc", b.real("home/user/up")))
	must(t, syscall.Mkfifo(b.real("home/user/fifo"), 0o600))
	uid := fmt.Sprint(os.Geteuid())
	if os.Geteuid() == 0 {
		uid = "root"
	} else {
		uid = "user"
	}
	gid := map[bool]string{true: "root", false: "user"}[os.Geteuid() == 0]
	file, unknown := pb.FileType_FILE_TYPE_FILE, pb.FileType_FILE_TYPE_UNSPECIFIED
	link := func(name, target string, kind pb.FileType, mode uint32, size int64) *pb.EntryInfo {
		return &pb.EntryInfo{Name: name, Path: "/home/user/" + name, Type: kind, Mode: mode, Size: size, Permissions: "Lrwxrwxrwx", Owner: uid, Group: gid, SymlinkTarget: &target}
	}
	for _, tt := range []struct {
		path string
		want *pb.EntryInfo
	}{
		{"f", &pb.EntryInfo{Name: "f", Path: "/home/user/f", Type: file, Size: 5, Mode: 0o640, Permissions: "urw-r-----", Owner: "user", Group: "user", ModifiedTime: timestamppb.New(when)}},
		{"fifo", &pb.EntryInfo{Name: "fifo", Path: "/home/user/fifo", Type: unknown, Mode: 0o600, Permissions: "prw-------", Owner: uid, Group: gid}},
		{"link", link("link", "/home/user/f", file, 0o640, 1)},
		{"dangling", link("dangling", "/home/user/none", unknown, 0, 15)},
		{"loop", link("loop", "/home/user/loop", unknown, 0, 4)},
		{"up", link("up", "/etc", unknown, 0, 21)},
	} {
		got, err := b.stat(t, tt.path)
		if err != nil {
			t.Errorf("Stat(%q): %v", tt.path, err)
			continue
		}
		opts := []cmp.Option{protocmp.Transform()}
		if tt.want.ModifiedTime == nil {
			opts = append(opts, protocmp.IgnoreFields(&pb.EntryInfo{}, "modified_time"))
		}
		if diff := cmp.Diff(tt.want, got, opts...); diff != "" {
			t.Errorf("Stat(%q):\n%s", tt.path, diff)
		}
	}
	if e, err := b.stat(t, "/"); err != nil || e.Name != "/" || e.Path != "/" || e.Type != pb.FileType_FILE_TYPE_DIRECTORY {
		t.Errorf("Stat(/) = %v, %v", e, err)
	}
	for _, p := range []string{"none", "f/none", "dangling/x"} {
		_, err := b.stat(t, p)
		wantCode(t, err, connect.CodeNotFound)
	}
	for _, p := range []string{"~root", "a\x00b", "loop/x", strings.Repeat("n", 256)} {
		_, err := b.stat(t, p)
		wantCode(t, err, connect.CodeInvalidArgument)
	}
}

func TestUserOfRPC(t *testing.T) {
	b := newBench(t)
	b.put(t, "f", nil)
	call := func(authorization string) error {
		r := connect.NewRequest(&pb.StatRequest{Path: "f"})
		if authorization != "" {
			r.Header().Set("Authorization", authorization)
		}
		_, err := b.rpc.Stat(t.Context(), r)
		return err
	}
	basic := func(user string) string {
		r := &http.Request{Header: http.Header{}}
		r.SetBasicAuth(user, "")
		return r.Header.Get("Authorization")
	}
	for _, good := range []string{"", basic(""), basic("user"), basic(fmt.Sprint(b.uid))} {
		must(t, call(good))
	}
	wantCode(t, call(basic("root")), connect.CodeNotFound) // root's home has no f
	for _, bad := range []string{basic("nobody"), basic("990"), "Bearer x", "Basic !"} {
		wantCode(t, call(bad), connect.CodeUnauthenticated)
	}
}

func TestMakeDir(t *testing.T) {
	b := newBench(t)
	e, err := b.mkdir(t, "a/b/c")
	if err != nil || e.Path != "/home/user/a/b/c" || e.Type != pb.FileType_FILE_TYPE_DIRECTORY {
		t.Fatalf("MakeDir = %v, %v", e, err)
	}
	for _, p := range []string{"a", "a/b", "a/b/c"} {
		b.wantOwned(t, "home/user/"+p, 0o755)
	}
	b.put(t, "f", nil)
	must(t, os.Symlink("a", b.real("home/user/link")))
	for p, want := range map[string]connect.Code{
		"a": connect.CodeAlreadyExists, "/": connect.CodeAlreadyExists, "link": connect.CodeAlreadyExists, "": connect.CodeAlreadyExists,
		"f": connect.CodeInvalidArgument, "f/x": connect.CodeInvalidArgument,
	} {
		_, err := b.mkdir(t, p)
		wantCode(t, err, want)
	}
	if _, err := b.mkdir(t, "link/inside"); err != nil {
		t.Error(err)
	}
	b.wantOwned(t, "home/user/a/inside", 0o755)
}

func TestMove(t *testing.T) {
	b := newBench(t)
	b.put(t, "d/f", []byte("x"))
	b.put(t, "other", []byte("y"))
	must(t, os.Symlink("other", b.real("home/user/link")))
	e, err := b.mv(t, "d", "/tmp/p/q/d2")
	if err != nil || e.Path != "/tmp/p/q/d2" || read(t, b.real("tmp/p/q/d2/f")) != "x" {
		t.Fatalf("Move = %v, %v", e, err)
	}
	b.wantOwned(t, "tmp/p", 0o755)
	if _, err := b.mv(t, "link", "link2"); err != nil {
		t.Error(err)
	}
	if target, err := os.Readlink(b.real("home/user/link2")); err != nil || target != "other" {
		t.Errorf("a link must be moved itself: %q, %v", target, err)
	}
	if _, err := b.mv(t, "other", "/tmp/p/q/d2/f"); err != nil || read(t, b.real("tmp/p/q/d2/f")) != "y" {
		t.Errorf("a file must replace a file: %v", err)
	}
	b.put(t, "g", nil)
	for _, tt := range []struct {
		from, to string
		want     connect.Code
	}{
		{"none", "made/for/nothing", connect.CodeNotFound},
		{"g/x", "y", connect.CodeNotFound},
		{"/", "/tmp/x", connect.CodeInvalidArgument},
		{"g", "/", connect.CodeInvalidArgument},
		{"/tmp/p", "/tmp/p/q/r", connect.CodeInvalidArgument},
		{"g", "/tmp/p", connect.CodeInvalidArgument},
		{"/tmp/p", "g", connect.CodeInvalidArgument},
	} {
		_, err := b.mv(t, tt.from, tt.to)
		t.Run(tt.from+" to "+tt.to, func(t *testing.T) { wantCode(t, err, tt.want) })
	}
	if _, err := os.Stat(b.real("home/user/made")); err == nil {
		t.Error("parents were made for a source that is not there")
	}
}

func TestListDir(t *testing.T) {
	b := newBench(t)
	for _, f := range []string{"b/2", "b/c/3", "b/c/d/4", "a", "z"} {
		b.put(t, "/tmp/"+f, nil)
	}
	must(t, os.Symlink("b", b.real("tmp/link")))
	must(t, os.Symlink("/tmp", b.real("tmp/b/loop")))
	for _, tt := range []struct {
		path  string
		depth uint32
		limit uint32
		want  []string
		total uint64
	}{
		{"/tmp", 0, 0, []string{"/tmp/a", "/tmp/b", "/tmp/link", "/tmp/z"}, 0},
		{"/tmp", 2, 0, []string{"/tmp/a", "/tmp/b", "/tmp/b/2", "/tmp/b/c", "/tmp/b/loop", "/tmp/link", "/tmp/z"}, 0},
		{"/tmp/link", 1, 0, []string{"/tmp/link/2", "/tmp/link/c", "/tmp/link/loop"}, 0},
		{"/tmp", 1, 4, []string{"/tmp/a", "/tmp/b", "/tmp/link", "/tmp/z"}, 0},
		{"/tmp", 1, 2, []string{"/tmp/a", "/tmp/b"}, 4},
		{"/tmp", 9, 3, []string{"/tmp/a", "/tmp/b", "/tmp/b/2"}, 10},
		{"/tmp", 1<<32 - 1, 1<<32 - 1, []string{"/tmp/a", "/tmp/b", "/tmp/b/2", "/tmp/b/c", "/tmp/b/c/3", "/tmp/b/c/d", "/tmp/b/c/d/4", "/tmp/b/loop", "/tmp/link", "/tmp/z"}, 0},
		{"", 1, 0, nil, 0},
	} {
		got, err := b.list(t.Context(), &pb.ListDirRequest{Path: tt.path, Depth: tt.depth, AbxLimit: tt.limit})
		if err != nil {
			t.Errorf("ListDir(%q): %v", tt.path, err)
			continue
		}
		if diff := cmp.Diff(tt.want, paths(got.Entries)); diff != "" || got.AbxTotal != tt.total {
			t.Errorf("ListDir(%q, %d, %d): total %d, want %d\n%s", tt.path, tt.depth, tt.limit, got.AbxTotal, tt.total, diff)
		}
	}
	for p, want := range map[string]connect.Code{"/tmp/a": connect.CodeInvalidArgument, "/tmp/none": connect.CodeNotFound} {
		_, err := b.list(t.Context(), &pb.ListDirRequest{Path: p})
		wantCode(t, err, want)
	}
}

// Case 52.
func TestListManyEntries(t *testing.T) {
	b := newBench(t)
	const many = 20_000
	for i := range many {
		write(t, b.real(fmt.Sprintf("tmp/%05d", i)), "")
	}
	got, err := b.list(t.Context(), &pb.ListDirRequest{Path: "/tmp", AbxLimit: 100})
	if err != nil || len(got.Entries) != 100 || got.AbxTotal != many || got.Entries[99].Name != "00099" {
		t.Errorf("with a limit: %d entries of %d, %v", len(got.GetEntries()), got.GetAbxTotal(), err)
	}
	got, err = b.list(t.Context(), &pb.ListDirRequest{Path: "/tmp"})
	if err != nil || len(got.Entries) != many || got.AbxTotal != 0 {
		t.Errorf("without a limit: %d entries of %d, %v", len(got.GetEntries()), got.GetAbxTotal(), err)
	}
	must(t, b.rm(t, "/tmp"))
	if _, err := os.Stat(b.real("tmp")); err == nil {
		t.Error("still there")
	}
}

func TestListNamesThatAreNotText(t *testing.T) {
	b := newBench(t)
	for _, name := range []string{"\xff\xfe", "a\nb", "ok", strings.Repeat("n", 255)} {
		write(t, b.real("tmp/"+name), "")
	}
	must(t, os.Symlink("\xff", b.real("tmp/link")))
	got, err := b.list(t.Context(), &pb.ListDirRequest{Path: "/tmp"})
	if err != nil || len(got.Entries) != 5 {
		t.Fatalf("%d entries, %v", len(got.GetEntries()), err)
	}
	for _, e := range got.Entries {
		if !utf8.ValidString(e.Name + e.Path + e.GetSymlinkTarget()) {
			t.Errorf("entry %q is not UTF-8", e.Name)
		}
	}
	resp, body := b.do(t, "GET", "/files?path=/tmp/%FF%FE", nil)
	if resp.StatusCode != 200 {
		t.Errorf("by its bytes: %s %s", resp.Status, body)
	}
}

func TestRemove(t *testing.T) {
	b := newBench(t)
	for i := range 50 {
		b.put(t, fmt.Sprintf("t/%d/a/b", i), nil)
		b.put(t, fmt.Sprintf("t/%d/f", i), nil)
	}
	b.put(t, "outside/f", []byte("x"))
	must(t, os.Symlink("../outside", b.real("home/user/t/link")))
	must(t, os.Symlink("t", b.real("home/user/l")))
	must(t, syscall.Mkfifo(b.real("home/user/t/fifo"), 0o600))
	for _, p := range []string{"none", "none/none", "outside/f/none", "l", "t"} {
		if err := b.rm(t, p); err != nil {
			t.Errorf("Remove(%q): %v", p, err)
		}
		if p == "l" {
			if _, err := os.Stat(b.real("home/user/t/0/f")); err != nil {
				t.Errorf("a link was followed: %v", err)
			}
		}
	}
	if _, err := os.Lstat(b.real("home/user/t")); err == nil {
		t.Error("t is still there")
	}
	if read(t, b.real("home/user/outside/f")) != "x" {
		t.Error("what a link led to is gone")
	}
}

func TestRemoveRefuses(t *testing.T) {
	b := newBench(t)
	for _, p := range []string{"proc/x", "sys/x", "dev/x"} {
		must(t, os.MkdirAll(b.real(p), 0o755))
	}
	must(t, os.Symlink("/", b.real("tmp/root")))
	for _, p := range []string{"/", "/..", "/proc", "/sys/", "/tmp/root/dev", "/tmp/../proc"} {
		wantCode(t, b.rm(t, p), connect.CodeInvalidArgument)
	}
	for _, p := range []string{"proc/x", "sys/x", "dev/x", "tmp/root"} {
		if _, err := os.Lstat(b.real(p)); err != nil {
			t.Error(err)
		}
	}
}

// deepTree makes a directory of n levels below dir and returns its first.
func deepTree(t *testing.T, dir string, n int) string {
	t.Helper()
	fd, err := syscall.Open(dir, syscall.O_DIRECTORY, 0)
	must(t, err)
	for range n {
		must(t, syscall.Mkdirat(fd, "d", 0o755))
		next, err := syscall.Openat(fd, "d", syscall.O_DIRECTORY, 0)
		must(t, err)
		syscall.Close(fd)
		fd = next
	}
	syscall.Close(fd)
	return path.Join(dir, "d")
}

// A tree deeper than PATH_MAX and than the process may hold files open.
func TestDeepTree(t *testing.T) {
	b := newBench(t)
	var first string
	asOwner(t, b.real("tmp"), func() error {
		first = deepTree(t, b.real("tmp"), 5000)
		return nil
	})
	_, err := b.list(t.Context(), &pb.ListDirRequest{Path: "/tmp", Depth: 6000})
	wantCode(t, err, connect.CodeResourceExhausted)
	if got, err := b.list(t.Context(), &pb.ListDirRequest{Path: "/tmp", Depth: 100}); err != nil || len(got.Entries) != 100 {
		t.Errorf("100 levels: %d entries, %v", len(got.GetEntries()), err)
	}
	var limit, small syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	small = limit
	small.Cur = 64
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &small))
	err = b.rm(t, "/tmp/d")
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	if err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(first); err == nil {
		t.Error("still there")
	}
}
