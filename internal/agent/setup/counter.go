//go:build linux

package setup

import (
	"bytes"
	"os"
	"strconv"
)

// Counters reads what the host's cgroups counted, from files that it opened:
// no cgroup is visible inside. Its zero value knows nothing, and says so.
type Counters struct {
	OOM, Pids, Peak *os.File // nil where the kernel has none
}

// OOMKills returns how many processes of the workload the kernel killed for
// want of memory.
func (c Counters) OOMKills() (int64, bool) { return field(c.OOM, "oom_kill") }

// PidsRefused returns how often a fork was refused by the process limit.
func (c Counters) PidsRefused() (int64, bool) { return field(c.Pids, "max") }

// MemoryPeak returns the most memory that the sandbox ever used, its files in
// memory included, in bytes.
func (c Counters) MemoryPeak() (int64, bool) { return field(c.Peak, "") }

// field reads "NAME NUMBER" lines, or with no name a file of one number.
func field(f *os.File, name string) (int64, bool) {
	if f == nil {
		return 0, false
	}
	var buf [1024]byte
	n, _ := f.ReadAt(buf[:], 0) // EOF is the rule
	for line := range bytes.Lines(buf[:n]) {
		line = bytes.TrimSpace(line)
		if name != "" {
			var ok bool
			if line, ok = bytes.CutPrefix(line, []byte(name+" ")); !ok {
				continue
			}
		}
		v, err := strconv.ParseInt(string(line), 10, 64)
		return v, err == nil
	}
	return 0, false
}
