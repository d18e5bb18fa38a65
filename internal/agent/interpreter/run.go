//go:build linux

package interpreter

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/process"
	"github.com/agent-sandbox/abx/internal/e2b"
)

// Exit codes of cells that did not end by themselves; see the package comment.
const (
	exitTimeout     = 124
	exitInterrupted = 130
)

// interrupts is how many SIGINTs a cell gets before its kernel is killed.
const interrupts = 4

// cause is why a cell was stopped.
type cause int

const (
	causeNone cause = iota
	causeTimeout
	causeGone      // the client went away, or the service closes
	causeNotReady  // the kernel did not come up
	causeRestarted // the context was restarted or deleted
)

// run is one cell on one kernel.
type run struct {
	service *Service
	kernel  *kernel
	cell    cell
	out     [2]*outlet
	emit    *emitter
	timeout time.Duration   // 0: none
	report  bool            // keepalives tell how far the output is
	stop    <-chan struct{} // closed when the context is restarted or deleted
	done    chan event
	mark    process.Mark

	cause cause
	sent  int // interrupts
	timer <-chan time.Time
	next  *time.Ticker // of interrupts; nil before the first
}

// ending is how a run ended.
type ending struct {
	abx   e2b.LineAbx
	error *failure
	lost  bool // the kernel is gone
}

// display passes a result on, after the output that came before it.
func (r *run) display(e event) {
	for _, s := range r.kernel.streams {
		s.drain()
	}
	if len(e.Data) > 0 {
		r.emit.line(true, func(b []byte) []byte { return appendResult(b, e.Main, e.Data) })
	}
}

// do runs the cell to its end, one way or another.
func (r *run) do(ctx context.Context) ending {
	defer func() {
		if r.next != nil {
			r.next.Stop()
		}
	}()
	r.mark = r.service.opts.Judge.Before()
	r.emit.line(false, func(b []byte) []byte {
		return appendLine(b, e2b.Line{Type: e2b.LineExecutions, ExecutionCount: r.cell.ID})
	})
	r.kernel.begin(r)
	e, ok := r.wait(ctx)
	if ok && r.cause != causeNone {
		r.kernel.killFresh()
	}
	r.kernel.finish()
	if !ok {
		return r.died()
	}
	return r.ended(e)
}

// wait returns the kernel's last word on the cell; ok is false when it died.
// It never waits for the client.
func (r *run) wait(ctx context.Context) (e event, ok bool) {
	alive := time.NewTicker(r.service.keepalive(r.report))
	defer alive.Stop()
	early := time.NewTimer(flushAfter)
	defer early.Stop()
	guard := time.NewTimer(startLimit)
	defer guard.Stop()
	ready, gone, closing, stop := r.kernel.ready, ctx.Done(), r.service.closing, r.stop
	for {
		var interrupt <-chan time.Time
		if r.next != nil {
			interrupt = r.next.C
		}
		select {
		case e = <-r.done:
			return e, true
		case <-r.kernel.process.Done():
			return r.lastWord()
		case <-ready:
			ready = nil
			guard.Stop()
			if r.timeout > 0 {
				r.timer = time.After(r.timeout)
			}
			if r.cause != causeNone {
				r.interrupt()
			}
		case <-guard.C:
			r.halt(causeNotReady, true)
		case <-r.timer:
			r.halt(causeTimeout, true)
		case <-gone:
			gone = nil
			r.halt(causeGone, ready == nil)
		case <-closing:
			closing = nil
			r.halt(causeRestarted, true)
		case <-stop:
			stop = nil
			r.halt(causeRestarted, true)
		case <-interrupt:
			r.interrupt()
		case <-alive.C:
			r.emit.tryLine(r.progress)
		case <-early.C:
			r.emit.tryFlush()
		}
	}
}

// halt begins to stop the cell. A kernel that is not ready yet gets its first
// interrupt when it is.
func (r *run) halt(why cause, ready bool) {
	if r.cause != causeNone && why != causeRestarted {
		return
	}
	r.cause = why
	switch {
	case why == causeNotReady || why == causeRestarted:
		r.kernel.kill()
	case ready:
		r.interrupt()
	}
}

func (r *run) interrupt() {
	if r.next == nil {
		r.next = time.NewTicker(r.service.interruptEvery)
	}
	if r.sent++; r.sent > interrupts {
		r.kernel.kill()
		return
	}
	r.kernel.interrupt()
}

// lastWord gives the message of a kernel that ended right after it a moment to
// arrive.
func (r *run) lastWord() (event, bool) {
	guard := time.NewTimer(lastWordWait)
	defer guard.Stop()
	select {
	case e := <-r.done:
		return e, true
	case <-r.kernel.ended:
	case <-guard.C:
	}
	select {
	case e := <-r.done:
		return e, true
	default:
		return event{}, false
	}
}

// progress is a keepalive line.
func (r *run) progress(b []byte) []byte {
	l := e2b.Line{Type: e2b.LineKeepalive}
	if r.report {
		l.Abx = &e2b.LineAbx{
			StdoutBytes: r.out[0].window.Total(), StderrBytes: r.out[1].window.Total(),
			NewestLine: r.newest(),
		}
	}
	return appendLine(b, l)
}

func (r *run) newest() string {
	if s := r.out[0].window.NewestLine(); s != "" {
		return s
	}
	return r.out[1].window.NewestLine()
}

// ended tells how a cell ended whose kernel lives on.
func (r *run) ended(e event) ending {
	e.ExitCode &= 0xff
	e.Threads = min(max(e.Threads, 0), 1<<20)
	if len(e.CWD) > unix.PathMax {
		e.CWD = ""
	}
	end := ending{error: e.Error, abx: e2b.LineAbx{ExitCode: e.ExitCode, Reason: e2b.ReasonExit, CWD: e.CWD}}
	if !r.kernel.dead() {
		end.abx.Background = e.Threads + r.kernel.count()
	}
	if e.ExitCode != 0 {
		tail := r.out[1].tail
		if e.Error != nil {
			tail = append(tail, "\n"+e.Error.Name+": "+clip(e.Error.Value)...)
		}
		end.abx.Reason, end.abx.Detail = r.service.opts.Judge.After(r.mark, syscall.WaitStatus(e.ExitCode&0xff)<<8, false, tail)
	}
	switch r.cause {
	case causeTimeout:
		end.abx.ExitCode, end.abx.Reason = exitTimeout, e2b.ReasonTimeout
		end.abx.Detail = fmt.Sprintf("interrupted after %v, the time limit of this call; variables are kept", r.timeout)
		if e.Error != nil && e.Error.Value == "" {
			e.Error.Value = end.abx.Detail
		}
	case causeGone:
		end.abx.ExitCode = exitInterrupted
	}
	return end
}

// died tells how a kernel died in the cell.
func (r *run) died() ending {
	ws := r.kernel.process.Status()
	end := ending{lost: true, abx: e2b.LineAbx{StateLost: true, ExitCode: ws.ExitStatus()}}
	if ws.Signaled() {
		end.abx.ExitCode = 128 + int(ws.Signal())
	}
	end.abx.Reason, end.abx.Detail = r.service.opts.Judge.After(r.mark, ws, r.cause == causeTimeout, r.out[1].tail)
	text := howDied(ws, end.abx)
	switch broken := r.kernel.failure(); {
	case r.cause == causeTimeout:
		end.abx.ExitCode, end.abx.Reason = exitTimeout, e2b.ReasonTimeout
		text = fmt.Sprintf("the cell ran longer than %v, the time limit of this call, and did not react to interrupts, so its kernel was killed", r.timeout)
		end.abx.Detail = text
	case r.cause == causeRestarted:
		text = "the context was restarted or deleted"
	case r.cause == causeNotReady:
		text = fmt.Sprintf("the kernel did not start within %v", startLimit)
		end.abx.Detail = text
	case broken != nil:
		text = "the kernel broke its protocol and was killed: " + broken.Error()
		end.abx.Detail = text
	}
	if end.abx.Detail == "" {
		end.abx.Detail = text
	}
	end.error = &failure{Name: "ContextRestarting", Value: text + "; all variables are lost, the next call gets a new kernel"}
	return end
}

func howDied(ws syscall.WaitStatus, abx e2b.LineAbx) string {
	switch {
	case abx.Reason == e2b.ReasonOOM:
		return "the kernel was killed for lack of memory: " + abx.Detail
	case ws.Signaled():
		return fmt.Sprintf("the kernel was killed by signal %d (%s)", ws.Signal(), ws.Signal())
	}
	return fmt.Sprintf("the code ended the kernel's process with exit code %d", ws.ExitStatus())
}
