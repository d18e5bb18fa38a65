package sandbox

import (
	"fmt"
	"strings"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/e2b/process"
)

// How a command or piece of code ended.
const (
	ReasonExit        = e2b.ReasonExit        // by itself, with ExitCode
	ReasonSignal      = e2b.ReasonSignal      // killed by a signal; ExitCode is 128 + signal
	ReasonTimeout     = e2b.ReasonTimeout     // killed or interrupted at its Timeout
	ReasonOOM         = e2b.ReasonOOM         // met the memory limit
	ReasonDiskFull    = e2b.ReasonDiskFull    // met the disk limit
	ReasonPidsLimit   = e2b.ReasonPidsLimit   // met the limit of processes
	ReasonSandboxLost = e2b.ReasonSandboxLost // the connection was cut; only beside ErrLost
)

// Output is what a command or piece of code wrote.
type Output struct {
	// Stdout and Stderr are what was kept of each stream: all of it, or its
	// first and last bytes (see [Window] and [MaxOutput]).
	Stdout, Stderr []byte
	// StdoutHead and StderrHead are how many bytes of Stdout and Stderr come
	// before what was left out: their length when nothing was.
	StdoutHead, StderrHead int
	// StdoutTotal and StderrTotal are the bytes written in all.
	StdoutTotal, StderrTotal int64
	// StdoutFile and StderrFile are the paths in the sandbox of the whole of a
	// stream that a window cut; empty when nothing was cut or nothing kept.
	StdoutFile, StderrFile string
}

// A Result is how a command ended. A code other than 0 is a result like any
// other.
type Result struct {
	Output
	ExitCode   int    // as a shell gives it: 128 + signal for a killed command; -1: unknown
	Reason     string // Reason*; empty only beside an error other than ErrLost
	Detail     string // for people: the limit that was met; may be empty
	Background []int  // processes of the command that still run, at most 16; kill PID in a command ends one
}

func (o *Output) set(stdout, stderr *capture, outTotal, errTotal int64) {
	o.Stdout, o.StdoutHead, o.StdoutTotal = stdout.result(outTotal)
	o.Stderr, o.StderrHead, o.StderrTotal = stderr.result(errTotal)
}

// count is a server's count as a number of ours; a lie too big for one is 0.
func count(n uint64) int64 { return max(0, int64(n)) }

// ended fills r from the end event, also where the server is not ours.
func (r *Result) ended(e *process.ProcessEvent_EndEvent) {
	r.ExitCode, r.Reason, r.Detail = int(e.GetExitCode()), oneLine(e.GetAbxReason()), oneLine(e.GetAbxDetail())
	r.StdoutFile, r.StderrFile = e.GetAbxStdoutFile(), e.GetAbxStderrFile()
	for _, pid := range e.GetAbxBackground() {
		r.Background = append(r.Background, int(pid))
	}
	if r.Reason != "" {
		if e.GetAbxShellCode() != 0 {
			r.ExitCode = int(e.GetAbxShellCode())
		}
		return
	}
	r.Reason = ReasonExit
	if signal, ok := strings.CutPrefix(e.GetStatus(), "signal: "); ok || !e.GetExited() && r.ExitCode < 0 {
		r.Reason, r.Detail = ReasonSignal, oneLine(signal)
		r.ExitCode = -1
		if n, ok := signals[strings.TrimSuffix(signal, " (core dumped)")]; ok {
			r.ExitCode = 128 + n
		}
	}
}

// signals are the names that Linux agents written in Go give in their status.
var signals = map[string]int{
	"hangup": 1, "interrupt": 2, "quit": 3, "illegal instruction": 4, "trace/breakpoint trap": 5,
	"aborted": 6, "bus error": 7, "floating point exception": 8, "killed": 9, "user defined signal 1": 10,
	"segmentation fault": 11, "user defined signal 2": 12, "broken pipe": 13, "alarm clock": 14, "terminated": 15,
	"CPU time limit exceeded": 24, "file size limit exceeded": 25, "bad system call": 31,
}

// timedOut fills r when a server that is not ours reports the deadline only.
func (r *Result) timedOut(detail string) {
	r.ExitCode, r.Reason, r.Detail = 128+9, ReasonTimeout, detail
}

func timeoutDetail(s *callSettings) string {
	if s.timeout == 0 {
		return "time limit of the platform reached"
	}
	return fmt.Sprintf("timeout of %s reached", s.timeout)
}
