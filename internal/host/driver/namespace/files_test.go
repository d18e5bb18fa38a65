//go:build linux

package namespace

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/e2b/filesystem"
	"github.com/agent-sandbox/abx/internal/e2b/filesystem/filesystemconnect"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// A filer uses the files of a sandbox as one user, through the wire.
type filer struct {
	t    *testing.T
	user string
	http *http.Client
	rpc  filesystemconnect.FilesystemClient
}

func filesAs(t *testing.T, s engine.Sandbox, user string) *filer {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return s.Dial(ctx, e2b.PortAgent)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	f := &filer{t: t, user: user, http: &http.Client{Transport: tr}}
	as := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			basic, _ := http.NewRequest("GET", "http://agent", nil)
			basic.SetBasicAuth(user, "")
			r.Header().Set("Authorization", basic.Header.Get("Authorization"))
			return next(ctx, r)
		}
	})
	f.rpc = filesystemconnect.NewFilesystemClient(f.http, "http://agent", connect.WithProtoJSON(), connect.WithInterceptors(as))
	return f
}

func (f *filer) do(method, path, body string) (int, string) {
	f.t.Helper()
	q := url.Values{"path": {path}, "username": {f.user}}
	r, err := http.NewRequestWithContext(f.t.Context(), method, "http://agent/files?"+q.Encode(), strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/octet-stream")
	resp, err := f.http.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.StatusCode, string(got)
}

func (f *filer) put(path, body string) (int, string) { f.t.Helper(); return f.do("POST", path, body) }
func (f *filer) get(path string) (int, string)       { f.t.Helper(); return f.do("GET", path, "") }

func (f *filer) list(path string) error {
	_, err := f.rpc.ListDir(f.t.Context(), connect.NewRequest(&filesystem.ListDirRequest{Path: path}))
	return err
}

// startKernel lets the agent write the driver of its interpreter.
func startKernel(t *testing.T, s engine.Sandbox) {
	t.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return s.Dial(ctx, e2b.PortInterpreter)
	}}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Post("http://agent/execute", "application/json", strings.NewReader(`{"code":"None","language":"python"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("execute: %s %s %v", resp.Status, got, err)
	}
}

// plant is what a hostile workload leaves for the file service to trip over.
const plant = `ln -s /etc/passwd /app/config.json; ln -s /run/abx /app/run; ln -s /etc/planted /tmp/dangling
ls -d /run/abx/*/kernel.py`

// The file service can do what a command of the same user can, and no more.
func TestFilesWithTheRightsOfTheUser(t *testing.T) {
	const passwd = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n"
	for kind, change := range kinds(t) {
		t.Run(kind, func(t *testing.T) {
			s := startSandbox(t, testDriver(t, change), "ifiles", smallLimits)
			startKernel(t, s)
			kernel := strings.TrimSpace(run(t, s, "user", plant).stdout)
			if kernel == "" {
				t.Fatal("the interpreter has no driver")
			}
			f := filesAs(t, s, "user")
			theirs := []string{"/etc/passwd", "/etc/hosts", "/etc/new", "/app/config.json", "/app/run/x", "/tmp/dangling", kernel,
				"/run/abx/x", "/var/log/abx/x", "/root/x", "/usr/x", "/new/x"}
			for _, p := range append(theirs, "/app/ok", "/tmp/ok", "/home/user/ok") {
				byCommand := run(t, s, "user", "[ -e "+p+" ] || mkdir -p ${p%/*}; : >> "+p).end.GetExitCode() == 0
				if p == "/new/x" {
					byCommand = run(t, s, "user", "mkdir /new").end.GetExitCode() == 0
				}
				if kind != "single" && byCommand != strings.HasSuffix(p, "/ok") {
					t.Fatalf("a command could write %s: %v", p, byCommand)
				}
				status, text := f.put(p, passwd)
				if (status == http.StatusOK) != byCommand {
					t.Errorf("write %s: a command could: %v; the file service: %d %s", p, byCommand, status, text)
				}
				if status != http.StatusOK && (status != http.StatusForbidden || strings.Count(text, p) != 1) {
					t.Errorf("write %s: %d %s; want 403 and the path once", p, status, text)
				}
			}
			e := run(t, s, "user", "mkdir -p /tmp/p/closed; echo secret > /tmp/p/secret; chmod 0 /tmp/p/secret /tmp/p/closed")
			if e.stderr != "" {
				t.Fatal(e.stderr)
			}
			if status, text := f.get("/tmp/p/secret"); status != http.StatusForbidden || !strings.Contains(text, `user`) {
				t.Errorf("read a file of mode 0: %d %s", status, text)
			}
			if err := f.list("/tmp/p/closed"); connect.CodeOf(err) != connect.CodePermissionDenied {
				t.Errorf("list a folder of mode 0: %v", err)
			}
			if status, text := f.put("/app/made/deep/f", "x"); status != http.StatusOK {
				t.Errorf("%d %s", status, text)
			}
			e = run(t, s, "user", "stat -c '%n %U %G %a' /app/made /app/made/deep /app/made/deep/f")
			want := "/app/made user user 755\n/app/made/deep user user 755\n/app/made/deep/f user user 644\n"
			if diff := cmp.Diff(want, e.stdout); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Where there is a root inside, its files are its own.
func TestFilesOfRoot(t *testing.T) {
	for kind, change := range kinds(t) {
		if kind == "single" {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			s := startSandbox(t, testDriver(t, change), "irootfiles", smallLimits)
			e := run(t, s, "root", "cd /root; echo secret > secret; mkdir closed; touch closed/x; chmod 600 secret; chmod 700 closed; ln -s /root/secret /tmp/peek; mkdir -m 1777 /srv/t; touch /srv/t/root")
			if e.stderr != "" {
				t.Fatal(e.stderr)
			}
			user, root := filesAs(t, s, "user"), filesAs(t, s, "root")
			for _, p := range []string{"/root/secret", "/tmp/peek"} {
				if status, text := user.get(p); status != http.StatusForbidden || strings.Contains(text, "secret\n") {
					t.Errorf("user reads %s: %d %s", p, status, text)
				}
			}
			if status, text := root.get("/root/secret"); status != http.StatusOK || text != "secret\n" {
				t.Errorf("root reads its file: %d %s", status, text)
			}
			ctx := t.Context()
			denied := map[string]error{"list": user.list("/root/closed")}
			_, denied["stat"] = user.rpc.Stat(ctx, connect.NewRequest(&filesystem.StatRequest{Path: "/root/closed/x"}))
			_, denied["mkdir"] = user.rpc.MakeDir(ctx, connect.NewRequest(&filesystem.MakeDirRequest{Path: "/etc/d"}))
			_, denied["move from"] = user.rpc.Move(ctx, connect.NewRequest(&filesystem.MoveRequest{Source: "/etc/hosts", Destination: "/tmp/hosts"}))
			_, denied["move to"] = user.rpc.Move(ctx, connect.NewRequest(&filesystem.MoveRequest{Source: "/tmp/peek", Destination: "/etc/hosts"}))
			_, denied["remove"] = user.rpc.Remove(ctx, connect.NewRequest(&filesystem.RemoveRequest{Path: "/etc/hosts"}))
			_, denied["remove, sticky"] = user.rpc.Remove(ctx, connect.NewRequest(&filesystem.RemoveRequest{Path: "/srv/t/root"}))
			_, denied["watch"] = user.rpc.CreateWatcher(ctx, connect.NewRequest(&filesystem.CreateWatcherRequest{Path: "/root/closed"}))
			for what, err := range denied {
				if connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(fmt.Sprint(err), `user "user"`) {
					t.Errorf("%s: %v; want permission_denied that names the user", what, err)
				}
			}
			if status, text := root.put("/etc/x", "x"); status != http.StatusOK {
				t.Errorf("root writes /etc/x: %d %s", status, text)
			}
			if status, text := root.put("/run/abx/x", "x"); status != http.StatusForbidden {
				t.Errorf("root writes among the agent's files: %d %s", status, text)
			}
			if err := root.list("/root/closed"); err != nil {
				t.Errorf("root lists its folder: %v", err)
			}
			e = run(t, s, "root", "stat -c '%U %G %a' /etc/x /etc/hosts; chmod 700 /home/user; ls /etc | grep -c '^d$'")
			if want := "root root 644\nroot root 644\n0\n"; !strings.HasPrefix(e.stdout, want) {
				t.Errorf("owners: %q %s", e.stdout, e.stderr)
			}
			// Root inside has no capabilities, and its files do not get them.
			run(t, s, "user", "chmod 700 /home/user; echo mine > /home/user/f; chmod 600 /home/user/f")
			if status, text := root.get("/home/user/f"); status != http.StatusForbidden {
				t.Errorf("root reads a file that is the user's alone: %d %s", status, text)
			}
		})
	}
}
