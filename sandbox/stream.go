package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b/process"
)

// A stream reads the events of one process. Its context ends with the caller's
// (until detach), by close, or by the watchdog, which bounds first the wait for
// the start and then the command's timeout and grace.
type stream struct {
	sb     *Sandbox
	op     string
	set    *runSettings
	ctx    context.Context
	cancel context.CancelCauseFunc
	detach func() bool
	dog    *time.Timer

	next   func() (*process.ProcessEvent, error)
	closer io.Closer

	pid            int
	began          time.Time
	stdout, stderr capture
	note           progressNote
}

// errSilent is why the watchdog ended a stream.
var errSilent = errors.New("the sandbox does not answer")

// errClosed is why [Process.Disconnect] ended a stream.
var errClosed = errors.New("disconnected")

func (s *Sandbox) newStream(ctx context.Context, op string, set *runSettings) *stream {
	st := &stream{sb: s, op: op, set: set, began: time.Now()}
	// Without ctx's deadline: Connect would send it on as the command's timeout.
	st.ctx, st.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	st.detach = context.AfterFunc(ctx, func() { st.cancel(ctx.Err()) })
	wait := s.client.timeout
	if wait == 0 {
		wait = math.MaxInt64
	}
	st.dog = time.AfterFunc(wait, func() { st.cancel(errSilent) })
	st.stdout, st.stderr = newCapture(&set.callSettings), newCapture(&set.callSettings)
	st.note.began = st.began
	return st
}

// begin takes the opened stream, or the error of opening it, and reads the
// event that says that the process runs. After an error st is closed.
func (st *stream) begin(ctx context.Context, closer io.Closer, next func() (*process.ProcessEvent, error), err error) error {
	if err == nil {
		st.closer, st.next = closer, next
		var ev *process.ProcessEvent
		if ev, err = next(); err == nil && ev.GetStart() == nil {
			err = &Error{Message: "the answer does not begin with a start event"}
		}
		st.pid = int(ev.GetStart().GetPid())
	}
	if err != nil {
		silent := errors.Is(context.Cause(st.ctx), errSilent)
		st.close()
		if errors.Is(err, io.EOF) {
			err = &Error{Message: "the answer is empty", kinds: [2]error{ErrLost}}
		}
		if silent {
			err = context.DeadlineExceeded
		}
		return st.sb.redact(st.sb.client.explain(ctx, st.op, st.sb.info.ID, err))
	}
	if st.set.timeout > 0 {
		st.dog.Reset(st.set.timeout + grace)
	} else {
		st.dog.Stop()
	}
	return nil
}

// close ends the stream and its body. It may be called twice.
func (st *stream) close() {
	st.detach()
	st.dog.Stop()
	st.cancel(errClosed)
	if st.closer != nil {
		_ = st.closer.Close()
	}
}

// follow reads events to the end. ctx is the caller's; see [Commands.Run] for
// what it returns.
func (st *stream) follow(ctx context.Context) (*Result, error) {
	for {
		ev, err := st.next()
		if err != nil {
			return st.broken(ctx, err)
		}
		switch e := ev.GetEvent().(type) {
		case *process.ProcessEvent_Data:
			st.data(e.Data)
		case *process.ProcessEvent_Keepalive:
			k := e.Keepalive
			st.note.tell(&st.set.callSettings, k.GetAbxLine(),
				max(st.stdout.total, count(k.GetAbxStdoutBytes())), max(st.stderr.total, count(k.GetAbxStderrBytes())))
		case *process.ProcessEvent_End:
			r := &Result{}
			r.ended(e.End)
			r.set(&st.stdout, &st.stderr, count(e.End.GetAbxStdoutBytes()), count(e.End.GetAbxStderrBytes()))
			st.dog.Reset(restTime)
			_, _ = st.next() // the end of the stream: frees the connection
			return r, nil
		}
	}
}

// broken is the outcome of a stream that ended before its end event.
func (st *stream) broken(ctx context.Context, err error) (*Result, error) {
	r := &Result{ExitCode: -1}
	r.set(&st.stdout, &st.stderr, 0, 0)
	why := context.Cause(st.ctx)
	switch {
	case isCode(err, codeDeadline) && ctx.Err() == nil:
		r.timedOut(timeoutDetail(&st.set.callSettings))
		return r, nil
	case ctx.Err() != nil:
		st.killForeground(ctx)
		return r, st.sb.client.explain(ctx, st.op, st.sb.info.ID, err)
	case errors.Is(why, errClosed):
		return r, &Error{Op: st.op, SandboxID: st.sb.info.ID, Message: why.Error(), cause: context.Canceled}
	}
	e := &Error{}
	switch {
	case errors.Is(why, errSilent):
		st.killForeground(ctx)
		e.Message = fmt.Sprintf("no answer for %s after the timeout of %s", grace, st.set.timeout)
	case errors.Is(err, io.EOF):
		e.Message = "the stream ended before the command did"
	default:
		e = st.sb.client.explain(ctx, st.op, st.sb.info.ID, err)
	}
	e.Op, e.SandboxID = st.op, st.sb.info.ID
	if e.Code == "" || e.kinds[0] == nil {
		e.kinds = [2]error{ErrLost}
	}
	if errors.Is(e.kinds[0], ErrLost) {
		r.Reason = ReasonSandboxLost
	}
	return r, st.sb.redact(e)
}

// killForeground ends a command whose caller went away where the server does
// not do so by itself.
func (st *stream) killForeground(ctx context.Context) {
	if !st.set.foreground || st.sb.ours || st.pid == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	_ = st.sb.signal(ctx, st.pid, SignalKill)
}

func (st *stream) data(d *process.ProcessEvent_DataEvent) {
	var p []byte
	to, say := &st.stdout, st.set.onStdout
	switch o := d.GetOutput().(type) {
	case *process.ProcessEvent_DataEvent_Stdout:
		p = o.Stdout
	case *process.ProcessEvent_DataEvent_Pty:
		p = o.Pty
	case *process.ProcessEvent_DataEvent_Stderr:
		p, to, say = o.Stderr, &st.stderr, st.set.onStderr
	}
	if len(p) == 0 {
		return
	}
	to.write(p)
	if say != nil {
		say(p)
	}
	if st.set.onProgress != nil {
		st.note.saw(p)
		if time.Since(st.note.told) >= progressEvery {
			st.note.tell(&st.set.callSettings, "", st.stdout.total, st.stderr.total)
		}
	}
}

// A progressNote remembers what [OnProgress] is told where the server does not say.
type progressNote struct {
	began, told time.Time
	line        []byte
}

// saw remembers the newest line of p that is not blank.
func (n *progressNote) saw(p []byte) {
	const most = 300
	if n.told.IsZero() {
		n.told = n.began
	}
	p = bytes.TrimSpace(p[max(0, len(p)-8*most):])
	if len(p) == 0 {
		return
	}
	p = p[bytes.LastIndexAny(p, "\r\n")+1:]
	n.line = append(n.line[:0], p[:min(most, len(p))]...)
}

func (n *progressNote) tell(s *callSettings, line string, stdout, stderr int64) {
	if s.onProgress == nil {
		return
	}
	if line == "" {
		line = string(n.line)
	}
	n.told = time.Now()
	s.onProgress(Progress{Elapsed: n.told.Sub(n.began), NewestLine: oneLine(line), StdoutBytes: stdout, StderrBytes: stderr})
}
