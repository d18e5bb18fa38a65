//go:build linux

package filesystem

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/account"
	"github.com/agent-sandbox/abx/internal/e2b"
	pb "github.com/agent-sandbox/abx/internal/e2b/filesystem"
	"github.com/agent-sandbox/abx/internal/e2b/filesystem/filesystemconnect"
)

// TestMain gives the process the umask that it has in a sandbox.
func TestMain(m *testing.M) {
	syscall.Umask(0o022)
	os.Exit(m.Run())
}

// A bench is a Service on a tree of its own, served over HTTP.
type bench struct {
	*Service
	root string // of the tree, outside
	url  string
	rpc  filesystemconnect.FilesystemClient
	uid  int // of "user"
	gid  int
}

// newBench serves a tree that holds /home/user and /tmp. As root "user" is
// 1000, as anyone else it is the one who runs the test.
func newBench(t *testing.T, change ...func(*Options)) *bench {
	t.Helper()
	uid := account.UserID
	if os.Geteuid() != 0 {
		uid = os.Getuid()
	}
	return newBenchFor(t, uid, change...)
}

// newBench1 is newBench where a single id is mapped.
func newBench1(t *testing.T, change ...func(*Options)) *bench {
	return newBenchFor(t, os.Getuid(), change...)
}

func newBenchFor(t *testing.T, id int, change ...func(*Options)) *bench {
	t.Helper()
	b := &bench{root: tempDir(t), uid: id, gid: id}
	etc := tempDir(t)
	write(t, filepath.Join(etc, "passwd"), fmt.Sprintf("root:x:0:0::/root:/bin/sh\nuser:x:%d:%d::/home/user:/bin/sh\n", b.uid, b.gid))
	write(t, filepath.Join(etc, "group"), fmt.Sprintf("root:x:0:\nuser:x:%d:\n", b.gid))
	for _, d := range []string{"", "home", "home/user", "tmp"} {
		p := filepath.Join(b.root, d)
		must(t, os.MkdirAll(p, 0o755))
		if os.Geteuid() == 0 {
			must(t, os.Chown(p, b.uid, b.gid))
		}
	}
	opts := Options{
		Book: account.Book{Passwd: filepath.Join(etc, "passwd"), Group: filepath.Join(etc, "group")},
		Root: b.root,
	}
	for _, f := range change {
		f(&opts)
	}
	b.Service = New(opts)
	mux := http.NewServeMux()
	mux.Handle(b.Handler())
	mux.Handle("/files", b.Files())
	mux.Handle("/files/compose", b.Files())
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	b.url = srv.URL
	b.rpc = filesystemconnect.NewFilesystemClient(http.DefaultClient, srv.URL, connect.WithProtoJSON())
	return b
}

func (b *bench) account(t *testing.T) account.Account {
	t.Helper()
	a, err := b.user("")
	must(t, err)
	return a
}

// real is where p of the tree is outside.
func (b *bench) real(p string) string { return filepath.Join(b.root, p) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tempDir is a temporary directory that every user can come to.
func tempDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	return dir
}

// tempDir is a temporary directory outside the tree that rights would not keep
// the user from.
func (b *bench) tempDir(t *testing.T) string {
	t.Helper()
	dir := tempDir(t)
	if os.Geteuid() == 0 {
		must(t, os.Chown(dir, b.uid, b.gid))
	}
	return dir
}

// write writes a file, as the one would whose directory it is in.
func write(t *testing.T, p, content string) {
	t.Helper()
	asOwner(t, filepath.Dir(p), func() error { return os.WriteFile(p, []byte(content), 0o644) })
}

// asOwner runs do as the owner of dir, where the test can.
func asOwner(t *testing.T, dir string, do func() error) {
	t.Helper()
	st, err := os.Stat(dir)
	must(t, err)
	sys := st.Sys().(*syscall.Stat_t)
	if os.Geteuid() != 0 || sys.Uid == 0 {
		must(t, do())
		return
	}
	must(t, newRights(false, slog.Default()).as(account.Account{UID: sys.Uid, GID: sys.Gid}, do))
}

func read(t *testing.T, p string) string {
	t.Helper()
	b, err := os.ReadFile(p)
	must(t, err)
	return string(b)
}

func query(p string) string { return "path=" + url.QueryEscape(p) }

// do sends a request and returns the answer, its body read.
func (b *bench) do(t *testing.T, method, where string, body io.Reader, header ...string) (*http.Response, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, b.url+where, body)
	must(t, err)
	r.Header.Set("Accept-Encoding", "identity")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	must(t, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp, got
}

func (b *bench) get(t *testing.T, p string, header ...string) (*http.Response, []byte) {
	t.Helper()
	return b.do(t, "GET", "/files?"+query(p), nil, header...)
}

// put uploads by octet-stream and wants success.
func (b *bench) put(t *testing.T, p string, content []byte, header ...string) []e2b.FileInfo {
	t.Helper()
	resp, got := b.do(t, "POST", "/files?"+query(p), bytes.NewReader(content), append([]string{"Content-Type", "application/octet-stream"}, header...)...)
	var infos []e2b.FileInfo
	if err := json.Unmarshal(got, &infos); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("POST %q: %s %s (%v)", clip(p), resp.Status, got, err)
	}
	return infos
}

// wantError checks an answer's status and that it is in our form.
func wantError(t *testing.T, resp *http.Response, body []byte, status int, text string) {
	t.Helper()
	var e e2b.Error
	if err := json.Unmarshal(body, &e); err != nil || resp.StatusCode != status || e.Code != status || !strings.Contains(e.Message, text) {
		t.Errorf("answer %s %s (%v), want %d with %q", resp.Status, body, err, status, text)
	}
}

func wantCode(t *testing.T, err error, want connect.Code) {
	t.Helper()
	if err == nil || connect.CodeOf(err) != want {
		t.Errorf("error %v, want code %v", err, want)
	}
}

func (b *bench) stat(t *testing.T, p string) (*pb.EntryInfo, error) {
	t.Helper()
	r, err := b.rpc.Stat(t.Context(), connect.NewRequest(&pb.StatRequest{Path: p}))
	if err != nil {
		return nil, err
	}
	return r.Msg.Entry, nil
}

func (b *bench) list(ctx context.Context, r *pb.ListDirRequest) (*pb.ListDirResponse, error) {
	a, err := b.rpc.ListDir(ctx, connect.NewRequest(r))
	if err != nil {
		return nil, err
	}
	return a.Msg, nil
}

func (b *bench) rm(t *testing.T, p string) error {
	t.Helper()
	_, err := b.rpc.Remove(t.Context(), connect.NewRequest(&pb.RemoveRequest{Path: p}))
	return err
}

func paths(entries []*pb.EntryInfo) []string {
	var n []string
	for _, e := range entries {
		n = append(n, e.Path)
	}
	return n
}

// exchange swaps two names at once.
func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}
