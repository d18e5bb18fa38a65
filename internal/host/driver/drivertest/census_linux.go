package drivertest

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// census is what this process has at one time and must have again later.
type census struct {
	kernel     bool
	inner      bool // descriptors and goroutines, too
	children   map[int]string
	mounts     map[string]int
	files      map[string]int
	goroutines int
}

func takeCensus(kernel, inner bool) *census {
	c := &census{kernel: kernel, inner: inner}
	if kernel {
		c.children = descendants()
		c.mounts = mounts()
	}
	if inner {
		c.files = files()
		c.goroutines = runtime.NumGoroutine()
	}
	return c
}

// compare reports what there is more of than when c was taken. The kernel may
// need a moment.
func (c *census) compare(t *testing.T, when string) {
	t.Helper()
	eventually(t, func() string {
		if what := c.more(); what != "" {
			return when + ": " + what
		}
		return ""
	})
}

func (c *census) more() string {
	if c.kernel {
		for pid, name := range descendants() {
			if _, ok := c.children[pid]; !ok {
				return fmt.Sprintf("process %d (%s) is left", pid, name)
			}
		}
		if pid := inObservedNamespace(); pid != 0 {
			return fmt.Sprintf("process %d is left in a sandbox's PID namespace", pid)
		}
		if what := surplus(mounts(), c.mounts); what != "" {
			return "mount is left: " + what
		}
	}
	if !c.inner {
		return ""
	}
	if what := surplus(files(), c.files); what != "" {
		return "descriptor is left: " + what
	}
	if n := runtime.NumGoroutine(); n > c.goroutines {
		var stacks bytes.Buffer
		pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		return fmt.Sprintf("%d goroutines, %d before\n%s", n, c.goroutines, &stacks)
	}
	return ""
}

func surplus(now, before map[string]int) string {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if now[name] > before[name] {
			return fmt.Sprintf("%s (%d, %d before)", name, now[name], before[name])
		}
	}
	return ""
}

func mounts() map[string]int {
	data, _ := os.ReadFile("/proc/self/mountinfo")
	out := map[string]int{}
	for line := range strings.Lines(string(data)) {
		out[strings.TrimSpace(line)]++
	}
	return out
}

// files counts this process's descriptors by what they are.
func files() map[string]int {
	entries, _ := os.ReadDir("/proc/self/fd")
	out := map[string]int{}
	for _, e := range entries {
		link, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || strings.HasPrefix(link, "/proc/") {
			continue // the one that reads the folder, and the kind
		}
		kind, _, numbered := strings.Cut(link, ":[")
		if numbered {
			link = kind // socket, pipe: their numbers say nothing
		}
		out[link]++
	}
	return out
}

// status is what /proc/PID/status says of interest.
type status struct {
	name   string
	parent int
	inner  int // its PID in its own namespace
	depth  int // how many namespaces of PIDs know it
	zombie bool
}

func readStatus(pid int) (status, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return status{}, false
	}
	var s status
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		switch key {
		case "Name":
			s.name = fields[0]
		case "State":
			s.zombie = fields[0] == "Z"
		case "PPid":
			s.parent, _ = strconv.Atoi(fields[0])
		case "NSpid":
			s.depth = len(fields)
			s.inner, _ = strconv.Atoi(fields[len(fields)-1])
		}
	}
	return s, true
}

func pids() []int {
	entries, _ := filepath.Glob("/proc/[0-9]*")
	var out []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(filepath.Base(e)); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// tree is the status of every process below this one.
func tree() map[int]status {
	all := map[int]status{}
	for _, pid := range pids() {
		if s, ok := readStatus(pid); ok {
			all[pid] = s
		}
	}
	self := os.Getpid()
	out := map[int]status{}
	for pid, s := range all {
		for up := s.parent; up > 0; up = all[up].parent {
			if up == self {
				out[pid] = s
				break
			}
		}
	}
	return out
}

// descendants names the processes below this one. Zombies count: nobody else
// will reap them.
func descendants() map[int]string {
	out := map[int]string{}
	for pid, s := range tree() {
		out[pid] = s.name
	}
	return out
}

// initPIDs lists the first processes of PID namespaces below this process.
func initPIDs(kernel bool) map[int]bool {
	if !kernel {
		return nil
	}
	own, _ := readStatus(os.Getpid())
	out := map[int]bool{}
	for pid, s := range tree() {
		if s.depth > own.depth && s.inner == 1 {
			out[pid] = true
		}
	}
	return out
}

// killNewInit kills the one that is not among before.
func killNewInit(before map[int]bool) error {
	var found []int
	for pid := range initPIDs(true) {
		if !before[pid] {
			found = append(found, pid)
		}
	}
	if len(found) != 1 {
		return fmt.Errorf("looked for one new PID 1 below this process, found %v", found)
	}
	return syscall.Kill(found[0], syscall.SIGKILL)
}

// observed holds the PID namespaces that were seen below this process: a
// process that fled to another parent is still in one of them.
var observed struct {
	sync.Mutex
	namespaces map[string]bool
}

// observe looks at the sandboxes that run now.
func observe(kernel bool) {
	if !kernel {
		return
	}
	own, _ := os.Readlink("/proc/self/ns/pid")
	observed.Lock()
	defer observed.Unlock()
	if observed.namespaces == nil {
		observed.namespaces = map[string]bool{}
	}
	for pid := range tree() {
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err == nil && ns != own {
			observed.namespaces[ns] = true
		}
	}
}

// inObservedNamespace finds a process that is left in one of them, or 0.
func inObservedNamespace() int {
	observed.Lock()
	defer observed.Unlock()
	for _, pid := range pids() {
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		if err == nil && observed.namespaces[ns] {
			return pid
		}
	}
	return 0
}
