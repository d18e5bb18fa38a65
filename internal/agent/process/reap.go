//go:build linux

package process

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// reapAll is the one reaper of a table that adopts orphans. It looks for a
// dead child without taking it, and takes it under the table's lock: a child
// that dies while it is being registered waits for that.
func (t *Table) reapAll() {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT|unix.WALL, nil)
		switch err {
		case nil:
			t.collect(-1)
		case unix.EINTR:
		default: // ECHILD: nobody is left
			select {
			case <-t.born:
			case <-t.closing:
				return
			}
		}
	}
}

// reapOne waits for one child of a table that leaves others alone.
func (t *Table) reapOne(pid int) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		t.collect(pid)
		return
	}
}

// collect reaps pid, or with -1 every child that is dead.
func (t *Table) collect(pid int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(pid, &status, unix.WNOHANG|unix.WALL, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil && pid > 0 {
			// Somebody else reaped it: how it ended is lost, that it ended is not.
			t.opts.Logger.Error("child was reaped by another", "pid", pid, "error", err)
			got = pid
		}
		if got <= 0 {
			return
		}
		if p := t.known[got]; p != nil {
			delete(t.known, got)
			p.status = syscall.WaitStatus(status)
			close(p.done)
		}
		if pid > 0 {
			return
		}
	}
}
