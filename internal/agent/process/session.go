//go:build linux

package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pollInterval is between two looks at a session whose members, being no
// children of ours, cannot be waited for.
const pollInterval = 10 * time.Millisecond

// Passes over a session while its members fork.
const (
	killPasses   = 500
	signalPasses = 20
)

// Session returns the live pids of a session in ascending order; zombies are
// left out.
func (t *Table) Session(sid int) []int {
	var live []int
	for _, pid := range members(sid) {
		if s, err := readStat(pid); err == nil && s.session == sid && !s.dead() {
			live = append(live, pid)
		}
	}
	return live
}

// Signal sends sig to every member of the process's session, in whatever group
// it is. SIGKILL is repeated until no member is left, any other signal until
// all that were forked meanwhile have got it too. A session without live
// members is an error that wraps syscall.ESRCH.
func (p *Process) Signal(sig syscall.Signal) error {
	passes := signalPasses
	if sig == syscall.SIGKILL {
		passes = killPasses
	}
	seen := map[int]bool{}
	for pass := range passes {
		if pass > 0 && sig == syscall.SIGKILL {
			time.Sleep(pollInterval / 10) // the killed need the processor to die
			clear(seen)
		}
		_, fresh, err := p.signalOthers(sig, seen)
		if err != nil {
			return err
		}
		if fresh == 0 && pass == 0 {
			return fmt.Errorf("signal process %d: %w", p.pid, syscall.ESRCH)
		}
		if fresh == 0 {
			break
		}
	}
	return nil
}

// signalOthers sends sig to the members of the session that are not in seen,
// and puts them there. It returns how many members there are.
func (p *Process) signalOthers(sig syscall.Signal, seen map[int]bool) (live, fresh int, err error) {
	if p.superseded() {
		return 0, 0, nil
	}
	for _, pid := range p.table.Session(p.pid) {
		if pid <= 1 || pid == os.Getpid() {
			continue
		}
		live++
		if seen[pid] {
			continue
		}
		fresh++
		seen[pid] = true
		if e := syscall.Kill(pid, sig); e != nil && !errors.Is(e, syscall.ESRCH) {
			err = fmt.Errorf("signal process %d: %w", pid, e)
		}
	}
	return live, fresh, err
}

// superseded reports whether the pid belongs to a later process of the table;
// then no member of the old session can be left.
func (p *Process) superseded() bool {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	now := p.table.known[p.pid]
	return now != nil && now != p
}

// Terminate ends the whole session: SIGTERM, also for those that are forked
// meanwhile, and SIGKILL for those that are left after grace. It returns when
// nobody is left, except for processes that the kernel will not let die.
func (p *Process) Terminate(grace time.Duration) {
	seen := map[int]bool{}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for guard := time.After(grace); ; {
		live, fresh, _ := p.signalOthers(syscall.SIGTERM, seen)
		if live == 0 {
			return
		}
		if fresh > 0 {
			_, _, _ = p.signalOthers(syscall.SIGCONT, map[int]bool{}) // a stopped one takes SIGTERM when it goes on
		}
		select {
		case <-tick.C:
		case <-guard:
			_ = p.Signal(syscall.SIGKILL)
			return
		}
	}
}

// members lists the pids whose session is sid, dead ones too. getsid answers
// without a look into /proc/PID/stat, which costs a hundred times as much.
func members(sid int) []int {
	return slices.DeleteFunc(pids(), func(pid int) bool {
		got, err := unix.Getsid(pid)
		return err != nil || got != sid
	})
}

// pids lists the processes of this pid namespace in ascending order.
func pids() []int {
	// Bare calls: every command pays for this at its end.
	fd, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var all []int
	var names []string
	for buf := make([]byte, 8<<10); ; {
		n, err := ignoringEINTR(func() (int, error) { return unix.Getdents(fd, buf) })
		if n <= 0 || err != nil {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil {
				all = append(all, pid)
			}
		}
	}
	slices.Sort(all)
	return all
}

// stat is what we use of /proc/PID/stat.
type stat struct {
	state           byte
	parent, session int
}

func (s stat) dead() bool { return s.state == 'Z' || s.state == 'X' || s.state == 'x' }

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	return parseStat(b)
}

// parseStat reads "PID (COMM) STATE PPID PGRP SESSION ...". The name may hold
// blanks and parentheses, so the fields begin after the last one that closes.
func parseStat(b []byte) (stat, error) {
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 4 || len(f[0]) != 1 {
		return stat{}, fmt.Errorf("process status %.40q: unknown form", b)
	}
	parent, err1 := strconv.Atoi(string(f[1]))
	session, err2 := strconv.Atoi(string(f[3]))
	return stat{f[0][0], parent, session}, errors.Join(err1, err2)
}

// killDescendants kills all processes that come from this one, in whatever
// session they are.
func killDescendants() {
	children := map[int][]int{}
	for _, pid := range pids() {
		if s, err := readStat(pid); err == nil {
			children[s.parent] = append(children[s.parent], pid)
		}
	}
	for next := children[os.Getpid()]; len(next) > 0; next = next[1:] {
		_ = syscall.Kill(next[0], syscall.SIGKILL)
		next = append(next, children[next[0]]...)
	}
}
