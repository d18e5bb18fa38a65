package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/abx/test/proc"
)

// settle waits until the server's sandboxes have nothing left to do, its pool
// filled again: nothing below it started, ended or used the CPU for a while.
func settle(ctx context.Context, pid int) error {
	var before string
	for quiet := 0; quiet < 4; {
		var now strings.Builder
		for _, p := range proc.Descendants(pid) {
			fmt.Fprintln(&now, p.PID, p.Ticks)
		}
		if now.String() == before {
			quiet++
		} else {
			before, quiet = now.String(), 0
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(30 * time.Millisecond):
		}
	}
	return nil
}

// warm waits until the server's pool is filled: a Python runs below it that
// waits for code.
func warm(ctx context.Context, pid int) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, p := range proc.Descendants(pid) {
			if strings.HasPrefix(p.Name, "python") {
				return settle(ctx, pid)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// field reads a "NAME: N kB" line of a file of /proc, in bytes.
func field(file, name string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), name+":"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, name)
}

// pss is the proportional set size of everything in the sandboxes of a server:
// the processes below it that live in another PID namespace.
func pss(server int) (int64, error) {
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, p := range proc.Descendants(server) {
		dir := fmt.Sprintf("/proc/%d/", p.PID)
		ns, err := os.Readlink(dir + "ns/pid")
		if err != nil {
			return 0, fmt.Errorf("%w (a sandbox's memory can be read by root alone)", err)
		}
		if ns == own {
			continue
		}
		n, err := field(dir+"smaps_rollup", "Pss")
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// trace is what a server holds on the machine.
type trace struct {
	processes, files, mounts, groups, state int
}

func traceOf(server int, home string) trace {
	return trace{
		processes: len(proc.Descendants(server)),
		files:     count(fmt.Sprintf("/proc/%d/fd/*", server)),
		mounts:    lines("/proc/self/mountinfo"),
		groups:    len(proc.Groups(home)),
		state:     below(filepath.Join(home, ".abx")),
	}
}

func (t trace) String() string {
	return fmt.Sprintf("%d processes, %d descriptors, %d mounts, %d cgroups, %d state files", t.processes, t.files, t.mounts, t.groups, t.state)
}

func count(pattern string) int {
	found, _ := filepath.Glob(pattern) // constant but for a number
	return len(found)
}

func lines(file string) int {
	text, _ := os.ReadFile(file) // none: zero lines
	return bytes.Count(text, []byte("\n"))
}

// below counts what lies below root; what ends meanwhile, or is not there at
// all, counts as nothing.
func below(root string) int {
	n := 0
	_ = filepath.WalkDir(root, func(_ string, _ fs.DirEntry, err error) error {
		if err == nil {
			n++
		}
		return nil
	})
	return n
}
