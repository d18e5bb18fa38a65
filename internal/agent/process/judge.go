//go:build linux

package process

import (
	"bytes"
	"fmt"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// fullBytes is how little free space counts as a full disk: a program that
// writes in blocks may leave less than one.
const fullBytes = 64 << 10

// Counters reads what the kernel counts for the sandbox. ok is false where
// this machine counts no such thing.
type Counters interface {
	OOMKills() (n int64, ok bool)
	PidsRefused() (n int64, ok bool)
	MemoryPeak() (bytes int64, ok bool)
}

// Judge decides why a call ended. The zero value, and a nil Judge, tell what
// the wait status tells. Safe for concurrent use.
//
// The counters are those of the whole sandbox: of two calls that run at once
// and both end badly, both are told of a limit that one of them met.
type Judge struct {
	Counters Counters
	Limits   e2b.Limits
	Disk     string // a path on the disk that is limited; empty: not looked at
}

// Mark is what was counted before a call.
type Mark struct {
	oom, pids int64
}

// Before is called when a call begins, for After.
func (j *Judge) Before() Mark {
	var m Mark
	if j != nil && j.Counters != nil {
		m.oom, _ = j.Counters.OOMKills()
		m.pids, _ = j.Counters.PidsRefused()
	}
	return m
}

// After names the reason (one of e2b.Reason*) for the end of a call that began
// at m, and in detail, for people, the limit that was met; detail may be
// empty. stderrTail is the end of what the call wrote to its standard error.
func (j *Judge) After(m Mark, ws syscall.WaitStatus, timedOut bool, stderrTail []byte) (reason, detail string) {
	if j == nil {
		j = &Judge{}
	}
	switch bad := !ws.Exited() || ws.ExitStatus() != 0; {
	case timedOut:
		return e2b.ReasonTimeout, ""
	case bad && j.outOfMemory(m, stderrTail):
		return e2b.ReasonOOM, j.memoryDetail()
	case bad && j.diskFull(stderrTail):
		return e2b.ReasonDiskFull, limitDetail("disk", size(j.Limits.DiskBytes), j.Limits.DiskBytes > 0, "no space left on the disk")
	case bad && j.pidsRefused(m, stderrTail):
		n := j.Limits.Processes
		return e2b.ReasonPidsLimit, limitDetail("process", strconv.FormatInt(n, 10), n > 0, "no more processes")
	case ws.Signaled():
		return e2b.ReasonSignal, fmt.Sprintf("killed by %s (%v)", unix.SignalName(ws.Signal()), ws.Signal())
	}
	return e2b.ReasonExit, ""
}

func (j *Judge) outOfMemory(m Mark, stderr []byte) bool {
	if j.Counters != nil {
		if n, ok := j.Counters.OOMKills(); ok {
			return n > m.oom
		}
	}
	// Where a limit is held without counters, programs see allocations fail.
	return j.Limits.MemoryBytes > 0 && names(stderr, "MemoryError", "Cannot allocate memory", "std::bad_alloc")
}

func (j *Judge) pidsRefused(m Mark, stderr []byte) bool {
	if j.Counters != nil {
		if n, ok := j.Counters.PidsRefused(); ok {
			return n > m.pids
		}
	}
	return names(stderr, "Resource temporarily unavailable", "can't fork", "Cannot fork", "can't start new thread")
}

func (j *Judge) diskFull(stderr []byte) bool {
	if names(stderr, "No space left on device", "ENOSPC", "Disk quota exceeded", "EDQUOT") {
		return true
	}
	if j.Disk == "" {
		return false
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(j.Disk, &fs); err != nil {
		return false
	}
	noBytes := fs.Blocks > 0 && fs.Bavail*uint64(fs.Bsize) < fullBytes
	noNames := fs.Files > 0 && fs.Ffree == 0
	return noBytes || noNames
}

func (j *Judge) memoryDetail() string {
	detail := limitDetail("memory", size(j.Limits.MemoryBytes), j.Limits.MemoryBytes > 0, "out of memory")
	if j.Counters != nil {
		if peak, ok := j.Counters.MemoryPeak(); ok {
			detail += fmt.Sprintf(" (peak %.1f %s)", scaled(peak), unit(peak))
		}
	}
	return detail
}

func limitDetail(what, limit string, known bool, otherwise string) string {
	if !known {
		return otherwise
	}
	return what + " limit " + limit + " reached"
}

func names(text []byte, words ...string) bool {
	for _, w := range words {
		if bytes.Contains(text, []byte(w)) {
			return true
		}
	}
	return false
}

// size writes bytes as people do: "2 GiB", "1.5 GiB", "100 B".
func size(n int64) string {
	return strconv.FormatFloat(float64(int64(scaled(n)*100))/100, 'f', -1, 64) + " " + unit(n)
}

func exponent(n int64) int {
	e := 0
	for n >= 1024 && e < 4 {
		n >>= 10
		e++
	}
	return e
}

func scaled(n int64) float64 { return float64(n) / float64(int64(1)<<(10*exponent(n))) }

func unit(n int64) string { return [...]string{"B", "KiB", "MiB", "GiB", "TiB"}[exponent(n)] }
