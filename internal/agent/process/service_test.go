//go:build linux

package process

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/agent-sandbox/abx/internal/e2b"
	pb "github.com/agent-sandbox/abx/internal/e2b/process"
)

func TestStartEnds(t *testing.T) {
	script := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(script, []byte("echo hi\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, script   string
		stdout, stderr string // "~text": contains
		end            *pb.ProcessEvent_EndEvent
	}{
		{"ok", "echo hi", "hi\n", "", ended(0)},
		{"silent", "true", "", "", ended(0)},
		{"code 3", "echo a; echo b >&2; exit 3", "a\n", "b\n", ended(3)},
		{"no input", "cat", "", "", ended(0)},
		{"no command", "nosuchcmd_x", "", "~nosuchcmd_x", ended(127)},
		{"not executable", script, "", "~ermission denied", ended(126)},
		{"grep finds nothing", "grep x /dev/null", "", "", ended(1)},
		{"killed", "kill -9 $$", "", "", signaled("signal: killed", 137, "killed by SIGKILL (killed)")},
		{"terminated", "kill $$", "", "", signaled("signal: terminated", 143, "killed by SIGTERM (terminated)")},
		{"closes its streams early", "exec >&- 2>&-; exit 4", "", "", ended(4)},
		{"half a character at a time", `printf '\360\237'; printf '\230\200'`, "\xf0\x9f\x98\x80", "", ended(0)},
		{"no text at all", `printf '\377\376\000\200'`, "\xff\xfe\x00\x80", "", ended(0)},
	}
	for _, codec := range []struct {
		name string
		opts []connect.ClientOption
	}{{"proto", nil}, {"json", []connect.ClientOption{connect.WithProtoJSON()}}} {
		h := newHarness(t, nil, codec.opts...)
		for _, header := range []string{"", window} {
			for _, tt := range tests {
				t.Run(codec.name+" "+header+" "+tt.name, func(t *testing.T) {
					o := h.run(t, shell(tt.script, e2b.HeaderWindow, header))
					if o.err != nil {
						t.Fatal(o.err)
					}
					same(t, "stdout", string(o.stdout), tt.stdout)
					same(t, "stderr", string(o.stderr), tt.stderr)
					want := &pb.ProcessEvent_EndEvent{AbxStdoutBytes: uint64(len(o.stdout)), AbxStderrBytes: uint64(len(o.stderr))}
					merge(want, tt.end)
					if diff := cmp.Diff(want, o.end, protocmp.Transform()); diff != "" {
						t.Errorf("end (-want +got):\n%s", diff)
					}
					if o.kinds[0] != 's' || !strings.HasSuffix(o.kinds, "x") || o.pid == 0 {
						t.Errorf("events %q with pid %d: want start first and end last", o.kinds, o.pid)
					}
				})
			}
		}
	}
}

func ended(code int32) *pb.ProcessEvent_EndEvent {
	e := &pb.ProcessEvent_EndEvent{ExitCode: code, Exited: true, Status: fmt.Sprintf("exit status %d", code), AbxReason: e2b.ReasonExit, AbxShellCode: code}
	if code != 0 {
		e.Error = &e.Status
	}
	return e
}

func signaled(status string, shell int32, detail string) *pb.ProcessEvent_EndEvent {
	return &pb.ProcessEvent_EndEvent{ExitCode: -1, Status: status, Error: &status, AbxReason: e2b.ReasonSignal, AbxDetail: detail, AbxShellCode: shell}
}

func merge(to, from *pb.ProcessEvent_EndEvent) {
	to.ExitCode, to.Exited, to.Status, to.Error = from.ExitCode, from.Exited, from.Status, from.Error
	to.AbxReason, to.AbxDetail, to.AbxShellCode = from.AbxReason, from.AbxDetail, from.AbxShellCode
}

func same(t *testing.T, what, got, want string) {
	t.Helper()
	if part, ok := strings.CutPrefix(want, "~"); ok {
		if !strings.Contains(got, part) {
			t.Errorf("%s %q lacks %q", what, got, part)
		}
		return
	}
	if got != want {
		t.Errorf("%s %q, want %q", what, got, want)
	}
}

func TestStartRefuses(t *testing.T) {
	h := newHarness(t, nil)
	file := filepath.Join(h.home, "file")
	if err := os.WriteFile(file, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(h.home, "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	lost := filepath.Join(h.home, "lost")
	if err := os.WriteFile(lost, []byte("#!/nonexistent/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	config := func(c *pb.ProcessConfig) *pb.StartRequest { return &pb.StartRequest{Process: c} }
	cwd := func(dir string) *pb.StartRequest {
		return config(&pb.ProcessConfig{Cmd: "/bin/true", Cwd: &dir})
	}
	env := func(name, value string) *pb.StartRequest {
		return config(&pb.ProcessConfig{Cmd: "/bin/true", Envs: map[string]string{name: value}})
	}
	for _, tt := range []struct {
		name    string
		message *pb.StartRequest
		header  [2]string
		code    connect.Code
		text    string
	}{
		{"nothing", &pb.StartRequest{}, [2]string{}, connect.CodeInvalidArgument, "no command"},
		{"no such cwd", cwd("/no/such"), [2]string{}, connect.CodeInvalidArgument, "cwd '/no/such' does not exist"},
		{"cwd is a file", cwd(file), [2]string{}, connect.CodeInvalidArgument, "is not a directory"},
		{"another's home", cwd("~root"), [2]string{}, connect.CodeInvalidArgument, "cwd '~root'"},
		{"no such command", config(&pb.ProcessConfig{Cmd: "nosuchcmd_x"}), [2]string{}, connect.CodeInvalidArgument, "command 'nosuchcmd_x' not found in PATH"},
		{"no such path", config(&pb.ProcessConfig{Cmd: "/no/such"}), [2]string{}, connect.CodeInvalidArgument, "command '/no/such' does not exist"},
		{"not executable", config(&pb.ProcessConfig{Cmd: plain}), [2]string{}, connect.CodePermissionDenied, "may not run"},
		{"a folder", config(&pb.ProcessConfig{Cmd: "/etc"}), [2]string{}, connect.CodePermissionDenied, "'/etc'"},
		{"no program", config(&pb.ProcessConfig{Cmd: file}), [2]string{}, connect.CodeInvalidArgument, "is no program"},
		{"no interpreter", config(&pb.ProcessConfig{Cmd: lost}), [2]string{}, connect.CodeInvalidArgument, "interpreter"},
		{"NUL in an argument", config(&pb.ProcessConfig{Cmd: "/bin/true", Args: []string{"a\x00b"}}), [2]string{}, connect.CodeInvalidArgument, "NUL"},
		{"long argument", config(&pb.ProcessConfig{Cmd: "/bin/true", Args: []string{strings.Repeat("x", maxArgument)}}), [2]string{}, connect.CodeInvalidArgument, "too long"},
		{"= in a name", env("A=B", "c"), [2]string{}, connect.CodeInvalidArgument, `"A=B"`},
		{"NUL in a name", env("A\x00B", "c"), [2]string{}, connect.CodeInvalidArgument, "NUL"},
		{"NUL in a value", env("A", "\x00"), [2]string{}, connect.CodeInvalidArgument, "NUL"},
		{"empty name", env("", "c"), [2]string{}, connect.CodeInvalidArgument, "without a name"},
		{"unknown user", cwd("/"), [2]string{"Authorization", basic("nobody_x")}, connect.CodeUnauthenticated, "nobody_x"},
		{"negative timeout", cwd("/"), [2]string{e2b.HeaderTimeout, "-5"}, connect.CodeInvalidArgument, "-5"},
		{"timeout is no number", cwd("/"), [2]string{e2b.HeaderTimeout, "soon"}, connect.CodeInvalidArgument, "soon"},
		{"bad window", cwd("/"), [2]string{e2b.HeaderWindow, "5"}, connect.CodeInvalidArgument, "HEAD,TAIL"},
		{"large terminal", &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/true"}, Pty: &pb.PTY{Size: &pb.PTY_Size{Cols: 70000, Rows: 1}}}, [2]string{}, connect.CodeInvalidArgument, "70000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := connect.NewRequest(tt.message)
			if tt.header[0] != "" {
				r.Header().Set(tt.header[0], tt.header[1])
			}
			o := h.run(t, r)
			code(t, o.err, tt.code, tt.text)
			if o.events != 0 {
				t.Errorf("got events %q", o.kinds)
			}
		})
	}
	if left, err := h.List(testContext(t), connect.NewRequest(&pb.ListRequest{})); err != nil || len(left.Msg.Processes) > 0 {
		t.Errorf("list after refusals: %v, %v", left, err)
	}
}

func TestEnvironment(t *testing.T) {
	h := newHarness(t, nil)
	dir := filepath.Join(h.home, "sub")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	rel := "sub"
	r := shell(`pwd; echo "$HOME,$USER,$LOGNAME,$A,$PATH"`)
	r.Msg.Process.Cwd = &rel
	r.Msg.Process.Envs = map[string]string{"A": "x=y z", "LOGNAME": "me"}
	o := h.run(t, r)
	want := fmt.Sprintf("%s\n%s,user,me,x=y z,/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n", dir, h.home)
	if string(o.stdout) != want {
		t.Errorf("got %q, want %q", o.stdout, want)
	}
	r = connect.NewRequest(&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "tool", Envs: map[string]string{"PATH": "/nonexistent:."}}})
	if err := os.WriteFile(filepath.Join(h.home, "tool"), []byte("#!/bin/sh\npwd\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if o = h.run(t, r); string(o.stdout) != h.home+"\n" {
		t.Errorf("a command in its own PATH: %q, %v", o.stdout, o.err)
	}
}

func TestUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root starts processes as others")
	}
	h := newHarness(t, nil)
	root := "/"
	r := shell("id -u; id -G", "Authorization", basic("other"))
	r.Msg.Process.Cwd = &root
	if o := h.run(t, r); string(o.stdout) != "4711\n4712 4713\n" {
		t.Errorf("got %q %q %v", o.stdout, o.stderr, o.err)
	}
	closed := filepath.Join(h.home, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	r.Msg.Process.Cwd = &closed
	code(t, h.run(t, r).err, connect.CodePermissionDenied, "user 'other' may not run command '/bin/sh' in '"+closed)
}

func TestKeepaliveValues(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"": defaultKeepalive, "50": 50 * time.Second, "0.5": 500 * time.Millisecond, "0": defaultKeepalive,
		"-3": defaultKeepalive, "x": defaultKeepalive, "NaN": defaultKeepalive, "1e-9": minKeepalive, "1e30": defaultKeepalive,
	} {
		if got := parseKeepalive(in); got != want {
			t.Errorf("%q: %v, want %v", in, got, want)
		}
	}
}

func TestHereDocument(t *testing.T) {
	h := newHarness(t, nil)
	for _, width := range []int{10, 200} { // 50 KB, and more than one argument holds
		var text strings.Builder
		for i := range 5000 {
			fmt.Fprintf(&text, "%5d %s '\"$x\\ ende\n", i, strings.Repeat("y", width))
		}
		script := "cat > f <<'EOF'\n" + text.String() + "EOF\necho $? \"$0\"; ls /proc/self/fd"
		o := h.run(t, shell(script))
		if got := string(o.stdout); got != "0 /bin/sh\n0\n1\n2\n3\n" || o.end.GetExitCode() != 0 {
			t.Errorf("width %d: %q %q, end %v, %v", width, got, o.stderr, o.end, o.err)
		}
		if sha256.Sum256([]byte(readAll(t, filepath.Join(h.home, "f")))) != sha256.Sum256([]byte(text.String())) {
			t.Errorf("width %d: the file differs", width)
		}
	}
}

func TestHTTP(t *testing.T) {
	h := newHarness(t, nil)
	// As E2B's SDKs send it: enveloped JSON, gzip accepted, unknown fields.
	body := `{"process":{"cmd":"/bin/sh","args":["-c","echo hi"]},"stdin":false,"new":1}`
	envelope := append([]byte{0, 0, 0, 0, byte(len(body))}, body...)
	r, err := http.NewRequestWithContext(testContext(t), http.MethodPost, h.url+"/process.Process/Start", bytes.NewReader(envelope))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1",
		"Connect-Accept-Encoding": "gzip", "Connect-Timeout-Ms": "60000",
	} {
		r.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got bytes.Buffer
	if _, err := got.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`{"event":{"start":{"pid":`, `{"event":{"data":{"stdout":"aGkK"}}}`, `"exited":true`, `"status":"exit status 0"`} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("%q lacks %s", got.String(), want)
		}
	}
	if resp.StatusCode != 200 || resp.Header.Get("Connect-Content-Encoding") != "" {
		t.Errorf("status %d, headers %v", resp.StatusCode, resp.Header)
	}
}

func TestLargeRequest(t *testing.T) {
	h := newHarness(t, nil)
	code(t, h.run(t, shell("true #"+strings.Repeat("x", maxRequest))).err, connect.CodeResourceExhausted, "larger than")
}
