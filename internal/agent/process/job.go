//go:build linux

package process

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/output"
	"github.com/agent-sandbox/abx/internal/e2b"
	pb "github.com/agent-sandbox/abx/internal/e2b/process"
)

const (
	// maxBackground bounds abx_background.
	maxBackground = 16
	// tailBytes of standard error are kept for the Judge.
	tailBytes = 4 << 10
)

// job is one process of a client. Its end is told to whoever watches then, and
// kept for a while.
type job struct {
	process *Process
	config  *pb.ProcessConfig
	tag     *string
	judge   *Judge
	mark    Mark
	timeout time.Duration // 0: none
	grace   time.Duration

	input *input   // nil: reads /dev/null
	tty   *os.File // nil: pipes

	sources []*source
	totals  [2]atomic.Int64
	errTail *output.Window
	drained sync.WaitGroup // one for each source: what the process wrote has passed

	timer    *time.Timer // nil without a timeout
	expired  chan struct{}
	timedOut bool // written before expired is closed

	ended   chan struct{} // closed when end is set
	end     *pb.ProcessEvent_EndEvent
	endedAt time.Time

	mu       sync.Mutex
	watchers []*watcher // replaced, never changed in place
}

// attach adds a watcher, which gets everything from now on.
func (j *job) attach(w *watcher) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.watchers = append(slices.Clone(j.watchers), w)
}

func (j *job) detach(w *watcher) {
	w.leave()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.watchers = slices.DeleteFunc(slices.Clone(j.watchers), func(o *watcher) bool { return o == w })
}

// run follows the process to its end and returns when the end is set. start
// starts a goroutine that its caller waits for; each source gets one.
func (j *job) run(start func(func())) {
	j.drained.Add(len(j.sources))
	for i, s := range j.sources {
		stream := i
		if s.tty {
			stream = streamTTY
		}
		start(func() { j.read(s, stream) })
	}
	<-j.process.Done()
	if j.timer != nil && !j.timer.Stop() {
		<-j.expired
	}
	for _, s := range j.sources {
		s.interrupt()
	}
	if j.input != nil && j.tty == nil {
		j.input.close()
	}
	j.drained.Wait()
	j.setEnd()
	close(j.ended)
}

// read passes a stream on until the process has ended, then drops what others
// write to it, until they are gone too.
func (j *job) read(s *source, stream int) {
	pass := func(p []byte) { j.pass(stream, p) }
	free := s.buffer()
	ended := s.until(pass)
	if !ended {
		s.backlog(pass)
	}
	free()
	j.drained.Done()
	if !ended {
		s.discard()
	}
	_ = s.file.Close()
}

func (j *job) pass(stream int, p []byte) {
	j.totals[stream%streamTTY].Add(int64(len(p)))
	if stream != streamOut {
		j.errTail.Write(p)
	}
	j.mu.Lock()
	watchers := j.watchers
	j.mu.Unlock()
	for _, w := range watchers {
		w.put(stream, p)
	}
}

// expire is what the timer calls: it kills the session. A process that ended
// by itself just before has not timed out.
func (j *job) expire() {
	defer close(j.expired)
	select {
	case <-j.process.Done():
	default:
		j.timedOut = true
		j.process.Terminate(j.grace)
	}
}

func (j *job) setEnd() {
	ws := j.process.Status()
	reason, detail := j.judge.After(j.mark, ws, j.timedOut, j.errTail.Finish())
	if reason == e2b.ReasonTimeout {
		detail = fmt.Sprintf("time limit %v reached", j.timeout)
	}
	code, shell, status := describe(ws)
	j.end = &pb.ProcessEvent_EndEvent{
		ExitCode:       code,
		Exited:         ws.Exited(),
		Status:         status,
		AbxReason:      reason,
		AbxDetail:      detail,
		AbxStdoutBytes: uint64(j.totals[streamOut].Load()),
		AbxStderrBytes: uint64(j.totals[streamErr].Load()),
		AbxShellCode:   shell,
	}
	if status != "exit status 0" {
		j.end.Error = &status
	}
	for _, pid := range j.process.table.Session(j.process.PID()) {
		if len(j.end.AbxBackground) < maxBackground && pid != j.process.PID() {
			j.end.AbxBackground = append(j.end.AbxBackground, uint32(pid))
		}
	}
	j.endedAt = time.Now()
}

// isEnded reports whether end and endedAt may be read.
func (j *job) isEnded() bool {
	select {
	case <-j.ended:
		return true
	default:
		return false
	}
}

// describe gives an end as envd does, and the code as a shell does.
func describe(ws syscall.WaitStatus) (code, shell int32, status string) {
	if ws.Exited() {
		n := int32(ws.ExitStatus())
		return n, n, fmt.Sprintf("exit status %d", n)
	}
	status = "signal: " + ws.Signal().String()
	if ws.CoreDump() {
		status += " (core dumped)"
	}
	return -1, 128 + int32(ws.Signal()), status
}

// abandon kills the session and lets go of the streams, whoever holds them.
func (j *job) abandon() {
	_ = j.process.Signal(unix.SIGKILL)
	j.mu.Lock()
	watchers := j.watchers
	j.mu.Unlock()
	for _, w := range watchers {
		w.leave()
	}
	for _, s := range j.sources {
		_ = s.file.Close()
	}
}
