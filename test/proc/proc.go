// Package proc looks at this machine's processes and cgroups from outside, for
// tests and benchmarks that ask what the built program leaves behind. It looks
// only; it ends nothing.
package proc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Process is one process, by a line of /proc/PID/stat.
type Process struct {
	PID, Parent int
	Name        string
	Ticks       int64 // of CPU
	Start       uint64
}

// Alive reports whether p still runs: the same number, started at the same
// moment, and not only waiting to be reaped.
func (p Process) Alive() bool {
	now, zombie, ok := readStat(fmt.Sprintf("/proc/%d/stat", p.PID))
	return ok && !zombie && now.Start == p.Start
}

// Descendants lists the processes below pid, deepest last.
func Descendants(pid int) []Process {
	children := map[int][]Process{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // a constant, valid pattern
	for _, file := range stats {
		if p, _, ok := readStat(file); ok {
			children[p.Parent] = append(children[p.Parent], p)
		}
	}
	var all []Process
	for queue := children[pid]; len(queue) > 0; queue = queue[1:] {
		all = append(all, queue[0])
		queue = append(queue, children[queue[0].PID]...)
	}
	return all
}

func readStat(file string) (p Process, zombie, ok bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return p, false, false // ended meanwhile
	}
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < 0 {
		return p, false, false
	}
	p.PID, _ = strconv.Atoi(strings.TrimSpace(string(text[:open])))
	p.Name = string(text[open+1 : end])
	f := strings.Fields(string(text[end+1:]))
	if len(f) < 20 {
		return p, false, false
	}
	p.Parent, _ = strconv.Atoi(f[1])
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	p.Ticks = user + system
	p.Start, _ = strconv.ParseUint(f[19], 10, 64)
	return p, f[0] == "Z", true
}

// Groups lists the folders of the cgroups that the servers with this home
// folder made, by the records that each keeps of itself there.
func Groups(home string) []string {
	records, _ := filepath.Glob(filepath.Join(home, ".abx", "run", "hosts", "*.json")) // a constant pattern
	var all []string
	for _, path := range records {
		var r struct {
			Cgroups []string `json:"cgroups"`
		}
		b, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(b, &r) != nil {
			continue // just gone
		}
		for _, top := range r.Cgroups {
			_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					all = append(all, path)
				}
				return nil // what ends while we look is not there
			})
		}
	}
	return all
}

// Standing returns those of the folders that still are there.
func Standing(folders []string) []string {
	return slices.DeleteFunc(slices.Clone(folders), func(dir string) bool {
		_, err := os.Stat(dir)
		return errors.Is(err, fs.ErrNotExist)
	})
}
