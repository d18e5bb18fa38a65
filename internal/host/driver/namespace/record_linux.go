package namespace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/agent-sandbox/abx/internal/host/cgroup"
)

// recordVersion is of the format below; another is left alone.
const recordVersion = 1

// record is what a host leaves on disk so that its janitor, or a later host,
// can remove what it had: a file HOSTID.json in Options.StateDir.
type record struct {
	Version int      `json:"version"`
	PID     int      `json:"pid"`
	Start   uint64   `json:"start"` // of the process, in clock ticks since boot
	Boot    string   `json:"boot"`  // boot id
	Cgroups []string `json:"cgroups,omitempty"`
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// startTime is field 22 of /proc/PID/stat; 0 when there is no such process. The
// second field may hold spaces and parentheses.
func startTime(pid int) uint64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	rest := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(rest) < 20 || rest[0] == "Z" || rest[0] == "X" {
		return 0
	}
	n, _ := strconv.ParseUint(rest[19], 10, 64)
	return n
}

func newRecord() record {
	pid := os.Getpid()
	return record{Version: recordVersion, PID: pid, Start: startTime(pid), Boot: bootID()}
}

// alive reports whether the process that wrote the record still runs: the same
// pid, of the same boot, started at the same moment.
func (r record) alive() bool {
	return r.Boot == bootID() && r.PID > 0 && r.Start != 0 && startTime(r.PID) == r.Start
}

func (r record) write(path string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func readRecord(path string) (record, error) {
	var r record
	b, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, err
	}
	if r.Version != recordVersion {
		return r, fmt.Errorf("record version %d", r.Version)
	}
	return r, nil
}

// cleanup removes what the record's dead host had, and then the record.
func (r record) cleanup(path string) error {
	var err error
	// Cgroups of another boot are gone; folders of those names are not ours.
	if r.Boot == bootID() {
		for _, dir := range r.Cgroups {
			// The names are ours, but the file might not be: touch nothing else.
			if !strings.HasPrefix(filepath.Base(dir), cgroupPrefix) {
				continue
			}
			err = errors.Join(err, cgroup.Remove([]string{dir}))
		}
	}
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// cgroupPrefix begins the name of every cgroup that a host makes.
const cgroupPrefix = "abx-"

// sweep removes what hosts that died, and whose janitor died too, left behind.
func sweep(stateDir string) error {
	found, err := filepath.Glob(filepath.Join(stateDir, "*.json"))
	if err != nil {
		return err
	}
	var all error
	for _, path := range found {
		r, err := readRecord(path)
		if err != nil {
			continue // another version's, or just gone
		}
		if !r.alive() {
			all = errors.Join(all, r.cleanup(path))
		}
	}
	return all
}
