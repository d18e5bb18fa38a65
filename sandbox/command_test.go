package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/agent-sandbox/abx/internal/e2b/process"
	"github.com/agent-sandbox/abx/sandbox"
)

func output(out, err string) sandbox.Output {
	o := sandbox.Output{StdoutHead: len(out), StderrHead: len(err), StdoutTotal: int64(len(out)), StderrTotal: int64(len(err))}
	if out != "" {
		o.Stdout = []byte(out)
	}
	if err != "" {
		o.Stderr = []byte(err)
	}
	return o
}

func TestRunResults(t *testing.T) {
	deadline := func(_ context.Context, _ *connect.Request[process.StartRequest], send func(*process.ProcessEvent) error) error {
		_ = send(started(7))
		_ = send(stdout("part"))
		return connect.NewError(connect.CodeDeadlineExceeded, errors.New("context deadline exceeded"))
	}
	for _, tt := range []struct {
		name string
		run  program
		want sandbox.Result
	}{
		{"exit 0", exits(0, "out", "err"), sandbox.Result{Output: output("out", "err"), Reason: "exit"}},
		{"exit 3 is no error", exits(3, "", "no"), sandbox.Result{Output: output("", "no"), ExitCode: 3, Reason: "exit"}},
		{"pieces and keepalives", says(started(7), keepalive("", 0), stdout("a"), stderr("x"), stdout("b"), started(7), &process.ProcessEvent{}, ended(0)),
			sandbox.Result{Output: output("ab", "x"), Reason: "exit"}},
		{"killed, as E2B says it", says(started(7), end(&process.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: killed"})),
			sandbox.Result{ExitCode: 137, Reason: "signal", Detail: "killed"}},
		{"core dumped", says(started(7), end(&process.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: segmentation fault (core dumped)"})),
			sandbox.Result{ExitCode: 139, Reason: "signal", Detail: "segmentation fault (core dumped)"}},
		{"unknown signal", says(started(7), end(&process.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: new"})),
			sandbox.Result{ExitCode: -1, Reason: "signal", Detail: "new"}},
		{"deadline, as E2B says it", deadline, sandbox.Result{Output: output("part", ""), ExitCode: 137, Reason: "timeout", Detail: "timeout of 1m0s reached"}},
		{"ours: oom", says(started(7), end(&process.ProcessEvent_EndEvent{
			ExitCode: -1, Status: "signal: killed", AbxReason: "oom", AbxDetail: "memory limit 2 GiB reached", AbxShellCode: 137,
			AbxBackground: []uint32{8, 9}, AbxStdoutBytes: 5, AbxStdoutFile: "/tmp/.abx/o",
		})), sandbox.Result{
			Output: sandbox.Output{StdoutTotal: 5, StdoutFile: "/tmp/.abx/o"}, ExitCode: 137, Reason: "oom",
			Detail: "memory limit 2 GiB reached", Background: []int{8, 9},
		}},
		{"a count that is a lie", says(started(7), stdout("a"), end(&process.ProcessEvent_EndEvent{AbxReason: "exit", AbxStdoutBytes: 1<<64 - 1})),
			sandbox.Result{Output: output("a", ""), Reason: "exit"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlatform()
			p.program["x"] = tt.run
			got, err := p.sandbox(t).Commands.Run(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRunSends(t *testing.T) {
	dir, no := "/app", false
	for _, tt := range []struct {
		name   string
		line   string
		opts   []sandbox.RunOption
		want   *process.StartRequest
		header map[string]string // empty value: absent
	}{
		{"defaults", "ls", nil,
			&process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-l", "-c", "ls"}}, Stdin: &no},
			map[string]string{"Connect-Timeout-Ms": "60000", "Keepalive-Ping-Interval": "50", "Abx-Foreground": "1", "Abx-Window": "", "Authorization": "", "Content-Type": "application/connect+json", "Content-Encoding": "", "Connect-Content-Encoding": ""}},
		{"sh", "ls", []sandbox.RunOption{sandbox.Shell("sh")},
			&process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", "ls"}}, Stdin: &no}, nil},
		{"own shell", "ls", []sandbox.RunOption{sandbox.Shell("/opt/fish")},
			&process.StartRequest{Process: &process.ProcessConfig{Cmd: "/opt/fish", Args: []string{"-c", "ls"}}, Stdin: &no}, nil},
		{"no shell", "ls", []sandbox.RunOption{sandbox.Args("-l", "a b")},
			&process.StartRequest{Process: &process.ProcessConfig{Cmd: "ls", Args: []string{"-l", "a b"}}, Stdin: &no}, nil},
		{"all", "ls", []sandbox.RunOption{
			sandbox.Cwd("/app"), sandbox.Env(map[string]string{"A": "1"}), sandbox.User("root"), sandbox.Timeout(1500 * time.Microsecond),
			sandbox.Window(10, 20), sandbox.OnProgress(func(sandbox.Progress) {}), sandbox.OpenStdin(),
		}, &process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-l", "-c", "ls"}, Cwd: &dir, Envs: map[string]string{"A": "1"}}, Stdin: &no},
			map[string]string{"Connect-Timeout-Ms": "2", "Keepalive-Ping-Interval": "2", "Abx-Window": "10,20", "Authorization": "Basic cm9vdDo="}},
		{"no timeout", "ls", []sandbox.RunOption{sandbox.Timeout(0)},
			&process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-l", "-c", "ls"}}, Stdin: &no},
			map[string]string{"Connect-Timeout-Ms": ""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlatform()
			var got *process.StartRequest
			run := func(_ context.Context, r *connect.Request[process.StartRequest], send func(*process.ProcessEvent) error) error {
				got = proto.CloneOf(r.Msg)
				return says(started(7), ended(0))(t.Context(), r, send)
			}
			p.program["ls"], p.program["a b"] = run, run
			// A deadline of the caller's is no timeout of the command's.
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			if _, err := p.sandbox(t).Commands.Run(ctx, tt.line, tt.opts...); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
			h := p.last(t, "/process.Process/Start").Header
			for key, want := range tt.header {
				if v := h.Get(key); v != want || len(h.Values(key)) > 1 {
					t.Errorf("header %s: %q, want %q", key, h.Values(key), want)
				}
			}
		})
	}
}

func TestRunRefuses(t *testing.T) {
	sb := newPlatform().sandbox(t)
	for name, f := range map[string]func() error{
		"empty":           func() error { _, err := sb.Commands.Run(t.Context(), ""); return err },
		"NUL":             func() error { _, err := sb.Commands.Run(t.Context(), "a\x00b"); return err },
		"window":          func() error { _, err := sb.Commands.Run(t.Context(), "x", sandbox.Window(0, 0)); return err },
		"negative window": func() error { _, err := sb.Commands.Run(t.Context(), "x", sandbox.Window(-1, 5)); return err },
		"huge window":     func() error { _, err := sb.Commands.Run(t.Context(), "x", sandbox.Window(1<<40, 5)); return err },
		"maximum":         func() error { _, err := sb.Commands.Run(t.Context(), "x", sandbox.MaxOutput(-1)); return err },
		"terminal":        func() error { _, err := sb.Commands.Start(t.Context(), "x", sandbox.Terminal(0, 5)); return err },
		"code": func() error {
			_, err := sb.RunCode(t.Context(), "x", sandbox.InContext("c"), sandbox.Language("r"))
			return err
		},
	} {
		if err := f(); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A stream that ends before the command gives what came until then, and ErrLost.
func TestRunLost(t *testing.T) {
	abort := func(_ context.Context, _ *connect.Request[process.StartRequest], send func(*process.ProcessEvent) error) error {
		_ = send(started(7))
		_ = send(stdout("part"))
		panic(http.ErrAbortHandler)
	}
	for name, run := range map[string]program{
		"cut":             abort,
		"no end":          says(started(7), stdout("part")),
		"unavailable":     fails(connect.CodeUnavailable),
		"an error of its": fails(connect.CodeInternal),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlatform()
			p.program["x"] = run
			sb := p.sandbox(t)
			want := &sandbox.Result{Output: output("part", ""), ExitCode: -1, Reason: "sandbox-lost"}
			got, err := sb.Commands.Run(t.Context(), "x")
			wantOnly(t, err, sandbox.ErrLost)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			ps, err := sb.Commands.Start(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			got, err = ps.Wait(t.Context())
			wantOnly(t, err, sandbox.ErrLost)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	for name, run := range map[string]program{"empty": says(), "no start": says(stdout("x"), ended(0))} {
		p := newPlatform()
		p.program["x"] = run
		if res, err := p.sandbox(t).Commands.Run(t.Context(), "x"); err == nil || res != nil {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}
}

// fails sends a start and some output, then code.
func fails(code connect.Code) program {
	return func(_ context.Context, _ *connect.Request[process.StartRequest], send func(*process.ProcessEvent) error) error {
		_ = send(started(7))
		_ = send(stdout("part"))
		return connect.NewError(code, errors.New("no"))
	}
}

// waits sends a start and some output, then waits for its client to go.
func waits(gone chan<- struct{}) program {
	return func(ctx context.Context, _ *connect.Request[process.StartRequest], send func(*process.ProcessEvent) error) error {
		_ = send(started(7))
		_ = send(stdout("part"))
		<-ctx.Done()
		close(gone)
		return ctx.Err()
	}
}

// Cancelling ends the foreground command: ours sees the connection go, others
// are sent a signal.
func TestRunCancel(t *testing.T) {
	for _, ours := range []bool{true, false} {
		t.Run(fmt.Sprintf("ours=%t", ours), func(t *testing.T) {
			p := newPlatform()
			p.ours = ours
			gone := make(chan struct{})
			p.program["x"] = waits(gone)
			ctx, cancel := context.WithCancel(t.Context())
			got, err := p.sandbox(t).Commands.Run(ctx, "x", sandbox.OnStdout(func([]byte) { cancel() }))
			wantOnly(t, err, context.Canceled)
			if diff := cmp.Diff(&sandbox.Result{Output: output("part", ""), ExitCode: -1}, got); diff != "" {
				t.Error(diff)
			}
			<-gone
			want := []process.Signal{process.Signal_SIGNAL_SIGKILL}
			if ours {
				want = nil
			}
			if diff := cmp.Diff(want, p.signals); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Over a real connection, too, the handler sees its client go at once.
func TestRunCancelOverTCP(t *testing.T) {
	p := newPlatform()
	gone := make(chan struct{})
	p.program["x"] = waits(gone)
	srv := httptest.NewServer(p)
	defer srv.Close()
	c, err := sandbox.NewClient(sandbox.Config{BaseURL: srv.URL, APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sb, err := c.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = sb.Commands.Run(ctx, "x", sandbox.OnStdout(func([]byte) { cancel() }))
	wantOnly(t, err, context.Canceled)
	<-gone
}

// The client leaves a server the time to say that the command ran out of time,
// and no more.
func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlatform()
		gone := make(chan struct{})
		p.program["x"] = waits(gone)
		p.agent["POST /process.Process/Start"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Connect-Timeout-Ms") // or the service would heed it
			p.serveAgent(w, r)
		})
		sb := p.sandbox(t)
		start := time.Now()
		got, err := sb.Commands.Run(t.Context(), "x", sandbox.Timeout(30*time.Second))
		wantOnly(t, err, sandbox.ErrLost)
		if d := time.Since(start); d != 40*time.Second {
			t.Errorf("after %s", d)
		}
		if got == nil || got.Reason != sandbox.ReasonSandboxLost || string(got.Stdout) != "part" {
			t.Errorf("%+v", got)
		}
		<-gone
	})
}

// A server that ends the command but not the stream holds nobody up.
func TestEndIsTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlatform()
		p.program["x"] = func(ctx context.Context, r *connect.Request[process.StartRequest], send func(*process.ProcessEvent) error) error {
			_ = exits(0, "out", "")(ctx, r, send)
			<-ctx.Done()
			return nil
		}
		start := time.Now()
		got, err := p.sandbox(t).Commands.Run(t.Context(), "x", sandbox.Timeout(0))
		if err != nil || string(got.Stdout) != "out" || time.Since(start) > 10*time.Second {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// However much comes, a result is no larger than its window.
func TestHugeOutput(t *testing.T) {
	const pieces, size = 400, 32 << 10
	flood := func(ctx context.Context, r *connect.Request[process.StartRequest], send func(*process.ProcessEvent) error) error {
		_ = send(started(7))
		for i := range pieces {
			if err := send(stdout(strings.Repeat(string(rune('a'+i%26)), size))); err != nil {
				return err
			}
		}
		return send(ended(0))
	}
	p := newPlatform()
	p.program["x"] = flood
	sb := p.sandbox(t)
	for _, tt := range []struct {
		name       string
		opt        sandbox.RunOption
		head, tail int
	}{
		{"window", sandbox.Window(1000, 2000), 1000, 2000},
		{"head only", sandbox.Window(1000, 0), 1000, 0},
		{"tail only", sandbox.Window(0, size+1), 0, size + 1},
		{"maximum", sandbox.MaxOutput(1001), 501, 500},
		{"nothing", sandbox.MaxOutput(0), 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var whole int64
			got, err := sb.Commands.Run(t.Context(), "x", tt.opt, sandbox.OnStdout(func(p []byte) { whole += int64(len(p)) }))
			if err != nil {
				t.Fatal(err)
			}
			tail := strings.Repeat(string(rune('a'+(pieces-2)%26)), size) + strings.Repeat(string(rune('a'+(pieces-1)%26)), size)
			want := strings.Repeat("a", tt.head) + tail[len(tail)-tt.tail:]
			if string(got.Stdout) != want || got.StdoutHead != tt.head || got.StdoutTotal != pieces*size || whole != pieces*size {
				t.Errorf("%d bytes kept, head %d, total %d, seen %d", len(got.Stdout), got.StdoutHead, got.StdoutTotal, whole)
			}
		})
	}
}

// A window that the server kept itself reads the same.
func TestServerWindow(t *testing.T) {
	p := newPlatform()
	p.program["x"] = says(started(7), stdout("head"), stdout("the tail"), end(&process.ProcessEvent_EndEvent{AbxReason: "exit", AbxStdoutBytes: 1 << 30, AbxStdoutFile: "/tmp/o"}))
	got, err := p.sandbox(t).Commands.Run(t.Context(), "x", sandbox.Window(4, 8))
	if err != nil {
		t.Fatal(err)
	}
	want := &sandbox.Result{Reason: "exit", Output: sandbox.Output{Stdout: []byte("headthe tail"), StdoutHead: 4, StdoutTotal: 1 << 30, StdoutFile: "/tmp/o"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCallbacks(t *testing.T) {
	p := newPlatform()
	p.program["x"] = says(started(7), stdout("a"), stderr("b"), stdout("c"), keepalive("newest\x1b[0m", 99), keepalive("", 0), ended(0))
	var out, errs bytes.Buffer
	var said []sandbox.Progress
	_, err := p.sandbox(t).Commands.Run(t.Context(), "x", sandbox.MaxOutput(0),
		sandbox.OnStdout(func(p []byte) { out.Write(p) }), sandbox.OnStderr(func(p []byte) { errs.Write(p) }),
		sandbox.OnProgress(func(p sandbox.Progress) { p.Elapsed = 0; said = append(said, p) }))
	if err != nil || out.String() != "ac" || errs.String() != "b" {
		t.Errorf("%q, %q, %v", &out, &errs, err)
	}
	want := []sandbox.Progress{{NewestLine: "newest[0m", StdoutBytes: 99, StderrBytes: 1}, {NewestLine: "c", StdoutBytes: 2, StderrBytes: 1}}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Error(diff)
	}
}

// A server without a window sends no keepalive while there is output.
func TestProgressFromOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlatform()
		p.program["x"] = func(_ context.Context, _ *connect.Request[process.StartRequest], send func(*process.ProcessEvent) error) error {
			_ = send(started(7))
			for i := range 8 {
				time.Sleep(time.Second)
				_ = send(stdout(fmt.Sprintf("line %d\n\n", i)))
			}
			return send(ended(0))
		}
		var lines []string
		_, err := p.sandbox(t).Commands.Run(t.Context(), "x", sandbox.OnProgress(func(p sandbox.Progress) { lines = append(lines, p.NewestLine) }))
		if diff := cmp.Diff([]string{"line 1", "line 3", "line 5", "line 7"}, lines); diff != "" || err != nil {
			t.Error(diff, err)
		}
	})
}

func TestOldAgent(t *testing.T) {
	p := newPlatform()
	p.version = "0.3.9"
	p.program["true"] = exits(0, "", "")
	sb := p.sandbox(t)
	if _, err := sb.Commands.Run(t.Context(), "true"); err != nil {
		t.Fatal(err)
	}
	if got := p.last(t, "/process.Process/Start").Header.Get("Authorization"); got != "Basic dXNlcjo=" {
		t.Errorf("authorization %q", got)
	}
	if err := sb.Files.Write(t.Context(), "/tmp/ä \"b\".txt", []byte("old")); err != nil {
		t.Fatal(err)
	}
	r := p.last(t, "/files")
	if got := string(p.files["/tmp/ä \"b\".txt"]); got != "old" || r.Length <= 0 || !strings.Contains(r.Query, "username=user") {
		t.Errorf("written %q, length %d, query %s", got, r.Length, r.Query)
	}
}

func BenchmarkRun(b *testing.B) {
	p := newPlatform()
	p.program["true"] = exits(0, "x", "")
	sb := p.sandbox(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := sb.Commands.Run(b.Context(), "true"); err != nil {
			b.Fatal(err)
		}
		p.requests = p.requests[:0]
	}
}
