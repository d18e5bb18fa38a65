//go:build linux

package namespace

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/e2b/process"
	"github.com/agent-sandbox/abx/internal/e2b/process/processconnect"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// agentVariable names a file with a ready agent of build "test", for machines
// where the tests run and nothing can be compiled.
const agentVariable = "ABX_TEST_AGENT"

// roleHost is this test binary as a host to be killed.
const roleHost = "abx-test-host"

// The driver starts the test binary again as its janitor. The agent is a
// program of its own, as in a build by make: a test binary with the race
// detector has cgo in it and cannot be one.
func TestMain(m *testing.M) {
	switch os.Args[0] {
	case RoleJanitor:
		exit(Janitor(os.Args[1:]))
	case roleHost:
		exit(hostToKill(os.Args[1:]))
	}
	var err error
	if agentBinary, err = buildAgent(); err != nil {
		exit(err)
	}
	os.Exit(m.Run())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func buildAgent() ([]byte, error) {
	if path := os.Getenv(agentVariable); path != "" {
		return os.ReadFile(path)
	}
	dir, err := os.MkdirTemp("", "abx-agent-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "agent")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w -X main.build=test", "-o", path,
		"github.com/agent-sandbox/abx/cmd/abx-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the agent: %w\n%s", err, out)
	}
	return os.ReadFile(path)
}

func testDriver(t testing.TB, change func(*Options)) *Driver {
	t.Helper()
	o := Options{
		StateDir: t.TempDir(), Build: "test", Path: os.Getenv("PATH"), Env: os.Environ(), Home: os.Getenv("HOME"),
	}
	if change != nil {
		change(&o)
	}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func startSandbox(t testing.TB, d *Driver, id string, l engine.Limits) engine.Sandbox {
	t.Helper()
	s, err := d.Start(t.Context(), engine.Spec{ID: id, Template: "base", Limits: l})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

var smallLimits = engine.Limits{MemoryBytes: 256 << 20, DiskBytes: 32 << 20, Processes: 64, OpenFiles: 256}

type ended struct {
	stdout, stderr string
	end            *process.ProcessEvent_EndEvent
}

// run runs a shell command as user, through the wire.
func run(t testing.TB, s engine.Sandbox, user, command string) ended {
	t.Helper()
	e, err := tryRun(t.Context(), s, user, command)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return e
}

func tryRun(ctx context.Context, s engine.Sandbox, user, command string) (ended, error) {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return s.Dial(ctx, e2b.PortAgent)
	}}
	defer tr.CloseIdleConnections()
	client := processconnect.NewProcessClient(&http.Client{Transport: tr}, "http://agent", connect.WithProtoJSON())
	no := false
	req := connect.NewRequest(&process.StartRequest{
		Process: &process.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", command}}, Stdin: &no,
	})
	r, _ := http.NewRequest("GET", "http://x", nil)
	r.SetBasicAuth(user, "")
	req.Header().Set("Authorization", r.Header.Get("Authorization"))
	stream, err := client.Start(ctx, req)
	if err != nil {
		return ended{}, err
	}
	defer stream.Close()
	var e ended
	for stream.Receive() {
		ev := stream.Msg().GetEvent()
		e.stdout += string(ev.GetData().GetStdout())
		e.stderr += string(ev.GetData().GetStderr())
		if end := ev.GetEnd(); end != nil {
			e.end = end
		}
	}
	return e, stream.Err()
}
