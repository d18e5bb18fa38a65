//go:build linux

package process

import (
	"context"
	"os"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b"
	pb "github.com/agent-sandbox/abx/internal/e2b/process"
)

func stdin(s string) *pb.ProcessInput {
	return &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: []byte(s)}}
}

func pty(s string) *pb.ProcessInput {
	return &pb.ProcessInput{Input: &pb.ProcessInput_Pty{Pty: []byte(s)}}
}

// withInput is shell with a pipe for input.
func withInput(script string) *connect.Request[pb.StartRequest] {
	r := shell(script)
	r.Msg.Stdin = nil
	return r
}

func TestStdin(t *testing.T) {
	h := newHarness(t, nil)
	ctx := testContext(t)
	o, s := h.begin(t, ctx, withInput("cat; echo over"))
	for _, p := range []string{"hello ", "world\n", ""} {
		if _, err := h.SendInput(ctx, connect.NewRequest(&pb.SendInputRequest{Process: pidOf(o.pid), Input: stdin(p)})); err != nil {
			t.Fatal(err)
		}
	}
	o.until(t, s, "hello world\n")
	_, err := h.SendInput(ctx, connect.NewRequest(&pb.SendInputRequest{Process: pidOf(o.pid), Input: pty("x")}))
	code(t, err, connect.CodeInternal, "no terminal")
	_, err = h.SendInput(ctx, connect.NewRequest(&pb.SendInputRequest{Process: pidOf(o.pid)}))
	code(t, err, connect.CodeInvalidArgument, "input is empty")
	_, err = h.Update(ctx, connect.NewRequest(&pb.UpdateRequest{Process: pidOf(o.pid), Pty: &pb.PTY{}}))
	code(t, err, connect.CodeInvalidArgument, "no terminal to resize")
	sleep, _ := h.begin(t, ctx, withInput("exec sleep 600"))
	for _, pid := range []int{sleep.pid, sleep.pid, o.pid} { // twice is no error
		if _, err := h.CloseStdin(ctx, connect.NewRequest(&pb.CloseStdinRequest{Process: pidOf(pid)})); err != nil {
			t.Error(err)
		}
	}
	if o.rest(s); string(o.stdout) != "hello world\nover\n" || o.end.GetExitCode() != 0 {
		t.Errorf("got %q, end %v, %v", o.stdout, o.end, o.err)
	}
}

func TestNoStdin(t *testing.T) {
	h := newHarness(t, nil)
	ctx := testContext(t)
	o, _ := h.begin(t, ctx, shell("exec sleep 600"))
	_, err := h.SendInput(ctx, connect.NewRequest(&pb.SendInputRequest{Process: pidOf(o.pid), Input: stdin("x")}))
	code(t, err, connect.CodeFailedPrecondition, "without stdin")
}

func TestInputThatNobodyReads(t *testing.T) {
	h := newHarness(t, nil)
	o, s := h.begin(t, testContext(t), withInput("exec 0<&-; echo closed; exec sleep 600"))
	o.until(t, s, "closed\n")
	_, err := h.SendInput(testContext(t), connect.NewRequest(&pb.SendInputRequest{Process: pidOf(o.pid), Input: stdin("x")}))
	code(t, err, connect.CodeFailedPrecondition, "input is closed")

	// More than a pipe holds waits; the client gives up, the next one goes on.
	o, s = h.begin(t, testContext(t), withInput("read gate; head -c 1000000 | wc -c"))
	ctx, cancel := context.WithCancel(testContext(t))
	started := make(chan struct{})
	go func() {
		<-started
		cancel()
	}()
	j, err := h.service.find(pidOf(o.pid))
	if err != nil {
		t.Fatal(err)
	}
	<-j.input.turn // the write below waits for its turn, and is given up
	close(started)
	_, err = h.SendInput(ctx, connect.NewRequest(&pb.SendInputRequest{Process: pidOf(o.pid), Input: stdin("x")}))
	code(t, err, connect.CodeCanceled, "")
	j.input.turn <- struct{}{}
	if _, err = h.SendInput(testContext(t), connect.NewRequest(&pb.SendInputRequest{Process: pidOf(o.pid), Input: stdin("\n" + strings.Repeat("y", 1_000_000))})); err != nil {
		t.Fatal(err)
	}
	if o.rest(s); strings.TrimSpace(string(o.stdout)) != "1000000" {
		t.Errorf("got %q, %v", o.stdout, o.err)
	}
}

func TestWriteIsGivenUp(t *testing.T) {
	ours, theirs, err := newPipe(false)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	in := newInput(ours)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() { result <- in.write(ctx, make([]byte, 1<<20)) }()
	one := make([]byte, 1)
	if _, err := theirs.Read(one); err != nil { // it is under way
		t.Fatal(err)
	}
	cancel()
	if err := <-result; err != context.Canceled {
		t.Errorf("write: %v, want canceled", err)
	}
	in.close()
	if err := in.write(t.Context(), one); err != errInputClosed {
		t.Errorf("write after close: %v", err)
	}
}

func TestStreamInput(t *testing.T) {
	h := newHarness(t, nil)
	ctx := testContext(t)
	o, s := h.begin(t, ctx, withInput("read a; read b; echo $b $a"))
	in := h.StreamInput(ctx)
	for _, m := range []*pb.StreamInputRequest{
		{Event: &pb.StreamInputRequest_Start{Start: &pb.StreamInputRequest_StartEvent{Process: pidOf(o.pid)}}},
		{Event: &pb.StreamInputRequest_Data{Data: &pb.StreamInputRequest_DataEvent{Input: stdin("one\n")}}},
		{Event: &pb.StreamInputRequest_Keepalive{}},
		{Event: &pb.StreamInputRequest_Data{Data: &pb.StreamInputRequest_DataEvent{Input: stdin("two\n")}}},
	} {
		if err := in.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := in.CloseAndReceive(); err != nil {
		t.Error(err)
	}
	if o.rest(s); string(o.stdout) != "two one\n" {
		t.Errorf("got %q, %v", o.stdout, o.err)
	}
	in = h.StreamInput(ctx)
	_ = in.Send(&pb.StreamInputRequest{Event: &pb.StreamInputRequest_Data{Data: &pb.StreamInputRequest_DataEvent{Input: stdin("x")}}})
	_, err := in.CloseAndReceive()
	code(t, err, connect.CodeInvalidArgument, "data before start")
}

func terminal(script string, headers ...string) *connect.Request[pb.StartRequest] {
	r := shell(script, headers...)
	r.Msg.Stdin = nil
	r.Msg.Pty = &pb.PTY{Size: &pb.PTY_Size{Cols: 100, Rows: 30}}
	return r
}

func TestTerminal(t *testing.T) {
	if _, err := os.Stat("/dev/ptmx"); err != nil {
		t.Skip("no terminals here:", err)
	}
	h := newHarness(t, nil)
	ctx := testContext(t)
	o, s := h.begin(t, ctx, terminal(`stty -echo; stty size; trap 'stty size; echo changed' WINCH; tty > /dev/null && echo tty; echo on > /dev/tty
		while ! read line; do :; done; echo "<$line>"; cat; exit 5`))
	o.until(t, s, "on\r\n")
	if string(o.tty) != "30 100\r\ntty\r\non\r\n" {
		t.Errorf("got %q", o.tty)
	}
	if _, err := h.Update(ctx, connect.NewRequest(&pb.UpdateRequest{Process: pidOf(o.pid), Pty: &pb.PTY{Size: &pb.PTY_Size{Cols: 90, Rows: 20}}})); err != nil {
		t.Error(err)
	}
	send := func(text string) {
		if _, err := h.SendInput(ctx, connect.NewRequest(&pb.SendInputRequest{Process: pidOf(o.pid), Input: pty(text)})); err != nil {
			t.Fatal(err)
		}
	}
	_, err := h.SendInput(ctx, connect.NewRequest(&pb.SendInputRequest{Process: pidOf(o.pid), Input: stdin("x")}))
	code(t, err, connect.CodeInternal, "send pty")
	_, err = h.CloseStdin(ctx, connect.NewRequest(&pb.CloseStdinRequest{Process: pidOf(o.pid)}))
	code(t, err, connect.CodeFailedPrecondition, "Ctrl-D")
	send("hello\n")
	o.until(t, s, "<hello>\r\n")
	if !strings.Contains(string(o.tty), "20 90\r\nchanged\r\n") {
		t.Errorf("not resized: %q", o.tty)
	}
	send("\x04")
	if o.rest(s); o.end.GetExitCode() != 5 || o.end.GetAbxStdoutBytes() != uint64(len(o.tty)) || !strings.Contains(o.kinds, "t") {
		t.Errorf("end %v, %v", o.end, o.err)
	}
}

func TestTerminalEndsWithItsShell(t *testing.T) {
	h := newHarness(t, nil)
	gate, done := h.fifo(t, "gate"), h.fifo(t, "done")
	o := h.run(t, terminal("trap '' HUP; (read x < "+gate+"; seq 1 50000; echo over > "+done+") & seq 1 2000; echo last"))
	if !strings.HasSuffix(string(o.tty), "last\r\n") || o.end.GetExitCode() != 0 || len(o.end.GetAbxBackground()) == 0 {
		t.Errorf("%d bytes, end %v, %v", len(o.tty), o.end, o.err)
	}
	if err := os.WriteFile(gate, []byte("\n"), 0); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, done); got != "over\n" {
		t.Errorf("got %q", got)
	}
	// Control-C reaches the foreground group through the terminal.
	ctx := testContext(t)
	o, s := h.begin(t, ctx, terminal("echo ready; exec sleep 600", e2b.HeaderWindow, window))
	o.until(t, s, "ready\r\n")
	if _, err := h.SendInput(ctx, connect.NewRequest(&pb.SendInputRequest{Process: pidOf(o.pid), Input: pty("\x03")})); err != nil {
		t.Fatal(err)
	}
	if o.rest(s); o.end.GetStatus() != "signal: interrupt" || o.end.GetAbxShellCode() != 130 {
		t.Errorf("end %v, %v", o.end, o.err)
	}
}
