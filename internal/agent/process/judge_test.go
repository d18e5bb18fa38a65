//go:build linux

package process

import (
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// counters is what a kernel would count; negative means not at all.
type counters struct{ oom, pids, peak int64 }

func (c *counters) OOMKills() (int64, bool)    { return c.oom, c.oom >= 0 }
func (c *counters) PidsRefused() (int64, bool) { return c.pids, c.pids >= 0 }
func (c *counters) MemoryPeak() (int64, bool)  { return c.peak, c.peak >= 0 }

const (
	exit0 = syscall.WaitStatus(0)
	exit1 = syscall.WaitStatus(1 << 8)
	kill9 = syscall.WaitStatus(9)
	segv  = syscall.WaitStatus(11 | 0x80)
)

func TestJudge(t *testing.T) {
	limits := e2b.Limits{MemoryBytes: 2 << 30, DiskBytes: 1<<30 + 1<<29, Processes: 512}
	none := counters{-1, -1, -1}
	for _, tt := range []struct {
		name           string
		before, after  counters
		limits         e2b.Limits
		ws             syscall.WaitStatus
		timedOut       bool
		stderr         string
		reason, detail string
	}{
		{"fine", counters{}, counters{}, limits, exit0, false, "", e2b.ReasonExit, ""},
		{"plain failure", counters{}, counters{}, limits, exit1, false, "No such file", e2b.ReasonExit, ""},
		{"signal", counters{}, counters{}, limits, kill9, false, "", e2b.ReasonSignal, "killed by SIGKILL (killed)"},
		{"core", counters{}, counters{}, limits, segv, false, "", e2b.ReasonSignal, "killed by SIGSEGV (segmentation fault)"},
		{"timeout", counters{}, counters{oom: 1}, limits, kill9, true, "", e2b.ReasonTimeout, ""},
		{"oom", counters{oom: 3}, counters{oom: 4, peak: 2 << 30}, limits, kill9, false, "", e2b.ReasonOOM, "memory limit 2 GiB reached (peak 2.0 GiB)"},
		{"oom of a child", counters{}, counters{oom: 1, peak: 3 << 29}, limits, exit1, false, "", e2b.ReasonOOM, "memory limit 2 GiB reached (peak 1.5 GiB)"},
		{"oom without a known limit", counters{}, counters{1, 0, -1}, e2b.Limits{}, kill9, false, "", e2b.ReasonOOM, "out of memory"},
		{"oom that the call survived", counters{}, counters{oom: 1}, limits, exit0, false, "", e2b.ReasonExit, ""},
		{"uncounted oom", none, none, limits, exit1, false, "MemoryError\n", e2b.ReasonOOM, "memory limit 2 GiB reached"},
		{"the word alone", counters{}, counters{}, limits, exit1, false, "MemoryError\n", e2b.ReasonExit, ""},
		{"disk", counters{}, counters{}, limits, exit1, false, "write error: No space left on device", e2b.ReasonDiskFull, "disk limit 1.5 GiB reached"},
		{"disk without a known limit", counters{}, counters{}, e2b.Limits{}, exit1, false, "ENOSPC: x", e2b.ReasonDiskFull, "no space left on the disk"},
		{"disk, survived", counters{}, counters{}, limits, exit0, false, "No space left on device", e2b.ReasonExit, ""},
		{"pids", counters{}, counters{pids: 1}, limits, exit1, false, "", e2b.ReasonPidsLimit, "process limit 512 reached"},
		{"pids, survived", counters{}, counters{pids: 1}, limits, exit0, false, "", e2b.ReasonExit, ""},
		{"uncounted pids", none, none, limits, exit1, false, "fork: Resource temporarily unavailable", e2b.ReasonPidsLimit, "process limit 512 reached"},
		{"uncounted pids, dash", none, none, e2b.Limits{}, exit1, false, "sh: 1: Cannot fork", e2b.ReasonPidsLimit, "no more processes"},
		{"counted, the word alone", counters{}, counters{}, limits, exit1, false, "Resource temporarily unavailable", e2b.ReasonExit, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.before
			j := &Judge{Counters: &c, Limits: tt.limits}
			m := j.Before()
			c = tt.after
			reason, detail := j.After(m, tt.ws, tt.timedOut, []byte(tt.stderr))
			if reason != tt.reason || detail != tt.detail {
				t.Errorf("%s, %q; want %s, %q", reason, detail, tt.reason, tt.detail)
			}
		})
	}
	var nobody *Judge
	if reason, _ := nobody.After(nobody.Before(), kill9, false, nil); reason != e2b.ReasonSignal {
		t.Errorf("without a judge: %s", reason)
	}
}

func TestJudgeLooksAtTheDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root mounts a small disk")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("cannot mount:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	j := &Judge{Limits: e2b.Limits{DiskBytes: 1 << 20}, Disk: dir}
	if reason, _ := j.After(j.Before(), exit1, false, nil); reason != e2b.ReasonExit {
		t.Errorf("empty disk: %s", reason)
	}
	h := newHarness(t, func(o *Options) { o.Judge = j })
	o := h.run(t, shell("head -c 2000000 /dev/zero > "+dir+"/f 2>/dev/null"))
	if o.end.GetAbxReason() != e2b.ReasonDiskFull || o.end.GetAbxDetail() != "disk limit 1 MiB reached" {
		t.Errorf("end %v", o.end)
	}
	if o = h.run(t, shell("rm "+dir+"/f && echo ok; false")); string(o.stdout) != "ok\n" || o.end.GetAbxReason() != e2b.ReasonExit {
		t.Errorf("after the file is deleted: %q, end %v", o.stdout, o.end)
	}
}

// A log that fills the disk makes room again, and its command goes on.
func TestLogFillsTheDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root mounts a small disk")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skip("cannot mount:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	h := newHarness(t, func(o *Options) {
		o.Judge, o.LogDir = &Judge{Disk: dir}, dir+"/logs"
	})
	o := h.run(t, shell("head -c 9000000 /dev/zero; exit 1", e2b.HeaderWindow, "10,10"))
	file := o.end.GetAbxStdoutFile()
	info, err := os.Stat(file)
	if err != nil || info.Size() < 2<<20 || info.Size() > 3<<20 {
		t.Errorf("file %v, %v", info, err)
	}
	if o.outCount != 20 || o.end.GetAbxStdoutBytes() != 9_000_000 || o.end.GetAbxReason() != e2b.ReasonExit ||
		o.end.GetAbxDetail() != "the disk was full: "+file+" lacks the end of the output" {
		t.Errorf("got %d bytes, end %v, %v", o.outCount, o.end, o.err)
	}
}
