//go:build unix

package drivertest_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b/process"
	"github.com/agent-sandbox/abx/internal/e2b/process/processconnect"
	"github.com/agent-sandbox/abx/internal/host/driver/drivertest"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// TestFake: the fake keeps the promises that drivers make, and the suite can be
// passed. Its processes run on this machine, unconfined, for the suite's sake.
func TestFake(t *testing.T) {
	drivertest.Run(t, func(*testing.T) engine.Driver {
		mux := http.NewServeMux()
		mux.Handle(processconnect.NewProcessHandler(runner{}))
		return &drivertest.Fake{Agent: mux}
	}, drivertest.Abilities{
		Processes: true,
		Kill: func(_ *testing.T, s engine.Sandbox) {
			s.(*drivertest.FakeSandbox).Die(errors.New("shot"))
		},
	})
}

// runner starts processes as an agent does, as far as the suite looks.
type runner struct {
	processconnect.UnimplementedProcessHandler
}

func (runner) Start(ctx context.Context, req *connect.Request[process.StartRequest], stream *connect.ServerStream[process.StartResponse]) error {
	config := req.Msg.GetProcess()
	cmd := exec.CommandContext(ctx, config.GetCmd(), config.GetArgs()...)
	var mu sync.Mutex
	send := func(e *process.ProcessEvent) error {
		mu.Lock()
		defer mu.Unlock()
		return stream.Send(&process.StartResponse{Event: e})
	}
	cmd.Stdout = writer(func(p []byte) error {
		return send(&process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: &process.ProcessEvent_DataEvent{
			Output: &process.ProcessEvent_DataEvent_Stdout{Stdout: bytes.Clone(p)}}}})
	})
	cmd.Stderr = writer(func(p []byte) error {
		return send(&process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: &process.ProcessEvent_DataEvent{
			Output: &process.ProcessEvent_DataEvent_Stderr{Stderr: bytes.Clone(p)}}}})
	})
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		return connect.NewError(connect.CodeInvalidArgument, err)
	}
	err := cmd.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err
	}
	return send(&process.ProcessEvent{Event: &process.ProcessEvent_End{End: &process.ProcessEvent_EndEvent{
		ExitCode: int32(cmd.ProcessState.ExitCode()), Exited: cmd.ProcessState.Exited(),
	}}})
}

type writer func(p []byte) error

func (w writer) Write(p []byte) (int, error) { return len(p), w(p) }

func TestFakePorts(t *testing.T) {
	f := &drivertest.Fake{}
	box, err := f.Start(t.Context(), engine.Spec{ID: "i1"})
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	b := f.Find("i1")
	b.HandleConn(22, func(c net.Conn) { c.Write([]byte("SSH")) })
	conn, err := box.Dial(t.Context(), 22)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var got [3]byte
	if _, err := conn.Read(got[:]); err != nil || string(got[:]) != "SSH" {
		t.Errorf("%q, %v", got, err)
	}
}
