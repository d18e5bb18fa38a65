package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/mcp/mcptest"
)

// TestMain lets scripts run abx, with a host in memory, as a process.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"abx": func() { os.Exit(runFake()) }})
}

func runFake() int {
	dir, _ := os.Getwd()
	return Run(context.Background(), &Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, LookupEnv: os.LookupEnv,
		Home: os.Getenv("HOME"), Dir: dir, Version: "1.2.3", Build: "abc", NewHost: fakeHost,
	}, os.Args[1:])
}

// fakeHost starts no sandboxes; FAKE_HOST makes it fail.
func fakeHost(_ context.Context, o HostOptions) (*Host, error) {
	switch os.Getenv("FAKE_HOST") {
	case "broken":
		return nil, brokenHost{errors.New("user namespaces are switched off")}
	case "closed":
		return nil, &fs.PathError{Op: "mkdir", Path: "/nowhere/.abx", Err: fs.ErrPermission}
	}
	p := &mcptest.Platform{
		Abx:     &e2b.SandboxAbx{Isolation: "namespace", Network: "none"},
		Command: func(_ *mcptest.Sandbox, c *mcptest.Command) mcptest.End { return mcptest.End{Stdout: c.Line() + "\n"} },
		Code:    func(*mcptest.Sandbox, *mcptest.Code) e2b.LineAbx { return e2b.LineAbx{} },
	}
	tier := o.Isolation
	if tier == "auto" {
		tier = "namespace"
	}
	return &Host{
		Transport: p.Transport(), Isolation: tier, Notes: []string{"No memory limit: no cgroup was delegated."},
		Close: func() error { return nil },
	}, nil
}

type brokenHost struct{ error }

func (brokenHost) Next() string { return "run: sysctl kernel.unprivileged_userns_clone=1" }

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir+"/home")
			return os.MkdirAll(e.WorkDir+"/home", 0o700)
		},
	})
}

// guard is ten times longer than anything here takes.
const guard = 30 * time.Second

// start runs abx mcp start on pipes.
func start(t *testing.T, newHost func(context.Context, HostOptions) (*Host, error)) (in *io.PipeWriter, out *bufio.Reader, code chan int, notes *bytes.Buffer) {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	code, notes = make(chan int, 1), &bytes.Buffer{}
	go func() {
		code <- Run(t.Context(), &Env{Stdin: inR, Stdout: outW, Stderr: notes, NewHost: newHost}, []string{"mcp", "start"})
		_ = outW.Close()
	}()
	t.Cleanup(func() { _ = inW.Close(); _ = outR.Close() })
	return inW, bufio.NewReader(outR), code, notes
}

func ended(t *testing.T, code chan int) int {
	t.Helper()
	select {
	case c := <-code:
		return c
	case <-time.After(guard):
		t.Fatal("abx does not end")
		return 0
	}
}

// TestServerAnswersBeforeTheHostIsThere has a host that waits for the answer
// to initialize.
func TestServerAnswersBeforeTheHostIsThere(t *testing.T) {
	answered := make(chan struct{})
	var closed atomic.Bool
	in, out, code, notes := start(t, func(ctx context.Context, o HostOptions) (*Host, error) {
		<-answered
		h, err := fakeHost(ctx, o)
		h.Close = func() error { closed.Store(true); return nil }
		return h, err
	})
	ask := func(line string) string {
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			t.Fatal(err)
		}
		got, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := ask(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`); !strings.Contains(got, "2024-11-05") {
		t.Errorf("initialize: %s", got)
	}
	close(answered)
	got := ask(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_command","arguments":{"command":"x"}}}`)
	var m struct {
		Result struct{ StructuredContent struct{ Stdout string } }
	}
	if err := json.Unmarshal([]byte(got), &m); err != nil || m.Result.StructuredContent.Stdout != "x\n" {
		t.Errorf("call: %s", got)
	}
	_ = in.Close()
	if c := ended(t, code); c != 0 {
		t.Errorf("exit code %d", c)
	}
	if !closed.Load() {
		t.Error("the host was not closed")
	}
	for _, w := range []string{"isolation  namespace", "No memory limit"} {
		if !strings.Contains(notes.String(), w) {
			t.Errorf("%q is not in the notes:\n%s", w, notes)
		}
	}
}

// TestEndDuringTheStartOfTheHost has a host that never comes up.
func TestEndDuringTheStartOfTheHost(t *testing.T) {
	in, _, code, _ := start(t, func(ctx context.Context, _ HostOptions) (*Host, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	_ = in.Close()
	if c := ended(t, code); c != 0 {
		t.Errorf("exit code %d", c)
	}
}

func TestHostOptions(t *testing.T) {
	var got HostOptions
	env := map[string]string{"ABX_LIMIT_MEMORY": "512MiB", "ABX_LIMIT_DISK": "1GiB", "ABX_LIMIT_PROCESSES": "99", "ABX_LIMIT_OPEN_FILES": "100", "ABX_MAX_SANDBOXES": "7", "ABX_POOL_SIZE": "0", "ABX_SANDBOX_DOMAIN": "d.test"}
	code := Run(t.Context(), &Env{
		Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard,
		LookupEnv: func(n string) (string, bool) { v, ok := env[n]; return v, ok },
		NewHost: func(ctx context.Context, o HostOptions) (*Host, error) {
			got = o
			return &Host{Transport: http.DefaultTransport}, nil
		},
	}, []string{"mcp", "start", "--template", "base", "--isolation", "namespace"})
	got.Logger = nil
	want := HostOptions{Isolation: "namespace", Domain: "d.test", Template: "base", PoolSize: 0, MaxSandboxes: 7, MemoryBytes: 512 << 20, DiskBytes: 1 << 30, Processes: 99, OpenFiles: 100}
	if code != 0 || got != want {
		t.Errorf("code %d, got %+v, want %+v", code, got, want)
	}
}
