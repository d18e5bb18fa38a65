package sandbox

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b/process"
)

const codeDeadline = connect.CodeDeadlineExceeded

// A Signal is sent to a process and its group.
type Signal int

// The signals that a sandbox takes.
const (
	SignalInterrupt Signal = 2 // as Ctrl-C; only where the agent is ours
	SignalKill      Signal = 9
	SignalTerminate Signal = 15
)

// A Process is a handle for a process in a sandbox. It is safe for concurrent
// use. Its output is read all the time, into the callbacks and the result, so
// the process never waits for a slow caller. The reading ends with the process
// or by [Process.Disconnect]: call one of Wait, Kill or Disconnect.
type Process struct {
	st     *stream
	done   chan struct{}
	result *Result // set before done is closed
	err    error
}

// newProcess takes st over and frees it from ctx, which bounded the start.
func newProcess(ctx context.Context, st *stream) (*Process, error) {
	if !st.detach() {
		st.close()
		return nil, st.sb.client.explain(ctx, st.op, st.sb.info.ID, ctx.Err())
	}
	p := &Process{st: st, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		defer st.close()
		p.result, p.err = st.follow(context.WithoutCancel(st.ctx))
	}()
	return p, nil
}

// PID is the process's number in the sandbox.
func (p *Process) PID() int { return p.st.pid }

// Done is closed when the process has ended or its stream is broken or
// disconnected. [Process.Wait] then returns at once.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait returns how the process ended, as [Commands.Run] does. It waits as long
// as ctx allows; the process is not touched when ctx ends first. Every caller
// gets the same Result.
func (p *Process) Wait(ctx context.Context) (*Result, error) {
	select {
	case <-p.done:
		return p.result, p.err
	default:
	}
	select {
	case <-p.done:
		return p.result, p.err
	case <-ctx.Done():
		return nil, p.st.sb.client.explain(ctx, "wait for process", p.st.sb.info.ID, ctx.Err())
	}
}

// Disconnect stops reading and waits until the last callback has returned; a
// callback must not call it. The process goes on. It may be called twice.
func (p *Process) Disconnect() {
	p.st.cancel(errClosed)
	<-p.done
}

// SendInput writes data to the process's standard input or terminal, in order,
// and returns when the agent has taken it. The process must have been started
// with [OpenStdin] or [Terminal].
func (p *Process) SendInput(ctx context.Context, data []byte) error {
	const piece = 64 << 10
	for len(data) > 0 {
		n := min(piece, len(data))
		in := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: data[:n]}}
		if p.st.set.pty != nil {
			in.Input = &process.ProcessInput_Pty{Pty: data[:n]}
		}
		sb := p.st.sb
		if _, err := unary(ctx, sb, "send input", "", false, sb.processes().SendInput,
			&process.SendInputRequest{Process: selector(p.st.pid), Input: in}); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// CloseStdin ends the process's standard input. A terminal has none to close:
// send it "\x04" instead.
func (p *Process) CloseStdin(ctx context.Context) error {
	sb := p.st.sb
	if !sb.atLeast(0, 5, 2) {
		return &Error{Op: "close standard input", SandboxID: sb.info.ID, kinds: [2]error{ErrUnsupported},
			Message: fmt.Sprintf("agent %s cannot close standard input; it needs 0.5.2", oneLine(sb.info.AgentVersion))}
	}
	_, err := unary(ctx, sb, "close standard input", "", false, sb.processes().CloseStdin,
		&process.CloseStdinRequest{Process: selector(p.st.pid)})
	return err
}

// Signal sends sig to the process and its group. A process that has ended is
// ErrNotFound, a signal that the agent does not take ErrUnsupported.
func (p *Process) Signal(ctx context.Context, sig Signal) error {
	return p.st.sb.signal(ctx, p.st.pid, sig)
}

// Kill is Signal with [SignalKill].
func (p *Process) Kill(ctx context.Context) error { return p.Signal(ctx, SignalKill) }

// Resize sets the size of the process's terminal, at least 1 by 1.
func (p *Process) Resize(ctx context.Context, columns, rows int) error {
	const op = "resize terminal"
	if columns < 1 || rows < 1 || columns > 65535 || rows > 65535 {
		return invalid(op, fmt.Sprintf("terminal of %d by %d: want 1 to 65535 each", columns, rows))
	}
	sb := p.st.sb
	_, err := unary(ctx, sb, op, "", true, sb.processes().Update,
		&process.UpdateRequest{Process: selector(p.st.pid), Pty: ptySize(columns, rows)})
	return err
}

func (s *Sandbox) signal(ctx context.Context, pid int, sig Signal) error {
	const op = "signal process"
	if err := checkPID(op, pid); err != nil {
		return err
	}
	wire := process.Signal(sig)
	switch sig {
	case SignalKill, SignalTerminate:
	case SignalInterrupt:
		if !s.ours {
			return &Error{Op: op, SandboxID: s.info.ID, kinds: [2]error{ErrUnsupported},
				Message: `this platform takes SIGTERM and SIGKILL only; to interrupt a process on a terminal send it "\x03"`}
		}
	default:
		return invalid(op, fmt.Sprintf("signal %d: want SignalInterrupt, SignalTerminate or SignalKill", sig))
	}
	_, err := unary(ctx, s, op, "", false, s.processes().SendSignal,
		&process.SendSignalRequest{Process: selector(pid), Signal: wire})
	return err
}
