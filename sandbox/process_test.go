package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b/process"
	"github.com/agent-sandbox/abx/sandbox"
)

// until sends a start and some output, waits for release, and ends with 0.
func until(release <-chan struct{}) program {
	return func(ctx context.Context, _ *connect.Request[process.StartRequest], send func(*process.ProcessEvent) error) error {
		_ = send(started(7))
		_ = send(stdout("a"))
		select {
		case <-release:
		case <-ctx.Done():
			return ctx.Err()
		}
		_ = send(stdout("b"))
		return send(ended(0))
	}
}

func TestStart(t *testing.T) {
	p := newPlatform()
	release := make(chan struct{})
	p.program["serve"] = until(release)
	sb := p.sandbox(t)
	ctx, cancel := context.WithCancel(t.Context())
	var seen bytes.Buffer
	ps, err := sb.Commands.Start(ctx, "serve", sandbox.OpenStdin(), sandbox.Tag("web"), sandbox.OnStdout(func(p []byte) { seen.Write(p) }))
	if err != nil {
		t.Fatal(err)
	}
	cancel() // bounded the start only
	h := p.last(t, "/process.Process/Start").Header
	if ps.PID() != 7 || h.Get("Abx-Foreground") != "" || h.Get("Connect-Timeout-Ms") != "" {
		t.Errorf("pid %d, headers %v", ps.PID(), h)
	}
	if _, err := ps.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("wait with an ended context: %v", err)
	}
	big := strings.Repeat("x", 100_000)
	for _, f := range []func(context.Context) error{
		func(ctx context.Context) error { return ps.SendInput(ctx, []byte(big)) },
		ps.CloseStdin,
		func(ctx context.Context) error { return ps.Signal(ctx, sandbox.SignalInterrupt) },
		ps.Kill,
	} {
		if err := f(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if got := strings.Join(p.input, ""); got != big+"EOF" || len(p.input) < 3 {
		t.Errorf("input of %d bytes in %d pieces", len(got), len(p.input))
	}
	if diff := cmp.Diff([]process.Signal{2, 9}, p.signals); diff != "" {
		t.Error(diff)
	}
	if err := ps.Signal(t.Context(), 1); !errors.Is(err, sandbox.ErrInvalid) {
		t.Error(err)
	}
	close(release)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			got, err := ps.Wait(t.Context())
			if diff := cmp.Diff(&sandbox.Result{Output: output("ab", ""), Reason: "exit"}, got); diff != "" || err != nil {
				t.Error(diff, err)
			}
		})
	}
	wg.Wait()
	ps.Disconnect()
	ps.Disconnect()
	if seen.String() != "ab" {
		t.Errorf("seen %q", &seen)
	}
}

func TestDisconnect(t *testing.T) {
	p := newPlatform()
	gone := make(chan struct{})
	p.program["serve"] = waits(gone)
	got := make(chan struct{})
	ps, err := p.sandbox(t).Commands.Start(t.Context(), "serve", sandbox.OnStdout(func([]byte) { close(got) }))
	if err != nil {
		t.Fatal(err)
	}
	<-got
	ps.Disconnect()
	<-ps.Done()
	<-gone
	res, err := ps.Wait(t.Context())
	if wantOnly(t, err, context.Canceled); res == nil || string(res.Stdout) != "part" || res.Reason != "" {
		t.Errorf("%+v", res)
	}
	if len(p.signals) != 0 {
		t.Errorf("the process was sent %v", p.signals)
	}
}

func TestTerminal(t *testing.T) {
	p := newPlatform()
	var got *process.StartRequest
	p.program["-l"] = func(ctx context.Context, r *connect.Request[process.StartRequest], send func(*process.ProcessEvent) error) error {
		got = r.Msg
		pty := &process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Pty{Pty: []byte("$ ")}}}}
		return says(started(7), pty, ended(0))(ctx, r, send)
	}
	ps, err := p.sandbox(t).Commands.Start(t.Context(), "", sandbox.Terminal(80, 24), sandbox.Env(map[string]string{"TERM": "dumb"}))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(ps.SendInput(t.Context(), []byte("ls\n")), ps.Resize(t.Context(), 100, 30)); err != nil {
		t.Error(err)
	}
	if err := ps.Resize(t.Context(), 0, 30); !errors.Is(err, sandbox.ErrInvalid) {
		t.Error(err)
	}
	res, err := ps.Wait(t.Context())
	if err != nil || string(res.Stdout) != "$ " || p.size != "100x30" || p.input[0] != "pty:ls\n" {
		t.Errorf("%+v, %v, size %s, input %q", res, err, p.size, p.input)
	}
	c := got.GetProcess()
	if c.GetCmd() != "/bin/bash" || strings.Join(c.GetArgs(), " ") != "-i -l" || c.GetEnvs()["TERM"] != "dumb" || c.GetEnvs()["LANG"] != "C.UTF-8" ||
		got.GetPty().GetSize().GetCols() != 80 || got.Stdin != nil {
		t.Errorf("%v", got)
	}
}

func TestConnectProcess(t *testing.T) {
	p := newPlatform()
	sb := p.sandbox(t)
	ps, err := sb.Commands.Connect(t.Context(), 7)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := ps.Wait(t.Context()); err != nil || string(res.Stdout) != "seen" {
		t.Errorf("%+v, %v", res, err)
	}
	for _, call := range []func() error{
		func() error { _, err := sb.Commands.Connect(t.Context(), 8); return err },
		func() error { return sb.Commands.Kill(t.Context(), 8) },
	} {
		wantOnly(t, call(), sandbox.ErrNotFound)
	}
	for _, pid := range []int{0, -1, 1 << 40} {
		_, err := sb.Commands.Connect(t.Context(), pid)
		wantOnly(t, err, sandbox.ErrInvalid)
		wantOnly(t, sb.Commands.Kill(t.Context(), pid), sandbox.ErrInvalid)
	}
	all, err := sb.Commands.List(t.Context())
	want := []sandbox.ProcessInfo{{PID: 7, Tag: "web", Cmd: "/bin/bash", Args: []string{"-l"}, Cwd: "/app"}}
	if diff := cmp.Diff(want, all); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

// What a platform of others cannot do is said, not tried.
func TestOthersCannot(t *testing.T) {
	p := newPlatform()
	p.ours, p.version = false, "0.5.1"
	release := make(chan struct{})
	p.program["serve"] = until(release)
	ps, err := p.sandbox(t).Commands.Start(t.Context(), "serve")
	if err != nil {
		t.Fatal(err)
	}
	wantOnly(t, ps.Signal(t.Context(), sandbox.SignalInterrupt), sandbox.ErrUnsupported)
	wantOnly(t, ps.CloseStdin(t.Context()), sandbox.ErrUnsupported)
	close(release)
	<-ps.Done()
}
