//go:build linux

package interpreter

import (
	"bytes"
	"os"
	"strconv"
)

// children lists the processes whose parent is pid's first thread.
func children(pid int) []int {
	p := strconv.Itoa(pid)
	raw, err := os.ReadFile("/proc/" + p + "/task/" + p + "/children")
	if err != nil {
		return nil
	}
	var pids []int
	for _, f := range bytes.Fields(raw) {
		if n, err := strconv.Atoi(string(f)); err == nil && !zombie(n) {
			pids = append(pids, n)
		}
	}
	return pids
}

func zombie(pid int) bool {
	_, state, ok := parent(pid)
	return !ok || state == 'Z' || state == 'X'
}

// descendants lists the live processes that come from pid, without those
// whose line leads through one in without.
func descendants(pid int, without map[int]bool) []int {
	folder, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return nil
	}
	below := map[int][]int{}
	for _, name := range names {
		n, err := strconv.Atoi(name)
		if err != nil || without[n] {
			continue
		}
		if up, state, ok := parent(n); ok && state != 'Z' && state != 'X' {
			below[up] = append(below[up], n)
		}
	}
	found := below[pid]
	for i := 0; i < len(found); i++ {
		found = append(found, below[found[i]]...)
	}
	return found
}

// parent reads "PID (NAME) STATE PPID ..."; the name may hold anything.
func parent(pid int) (up int, state byte, ok bool) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, false
	}
	f := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(f) < 2 || len(f[0]) != 1 {
		return 0, 0, false
	}
	up, err = strconv.Atoi(string(f[1]))
	return up, f[0][0], err == nil
}
