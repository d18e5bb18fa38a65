//go:build linux

package process

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"time"

	"github.com/agent-sandbox/abx/internal/agent/account"
)

// ErrClosed is returned by Start after Close.
var ErrClosed = errors.New("process table is closed")

// closeWait bounds how long Close waits for killed processes to die. The
// kernel may hold one that waits for a device.
const closeWait = 10 * time.Second

// Command says what to start.
type Command struct {
	Path string   // of the program, absolute or relative to Dir; no search
	Args []string // without argv[0], which is Path
	Env  []string // "NAME=value"
	Dir  string   // empty: the agent's own
	// Account is who runs it, unless TableOptions.NoCredential is set.
	Account account.Account
	// Stdin, Stdout and Stderr are lent: the caller closes its copies after
	// Start, and must not use them itself (they are set to blocking). nil is
	// /dev/null.
	Stdin, Stdout, Stderr *os.File
	Extra                 []*os.File // descriptors 3 and up, lent too
	// TTY says that Stdin is a terminal; it becomes the controlling one.
	TTY bool
}

// TableOptions of a Table. The zero value starts processes as each Command's
// account and waits for these alone.
type TableOptions struct {
	Logger *slog.Logger // nil: discard
	// Prepare runs on the thread that forks, before the first start; an error
	// fails that start, and the next one tries again.
	Prepare func() error
	// NoCredential leaves user and groups as they are.
	NoCredential bool
	// CgroupFD > 0 is an open cgroup v2 folder in which processes start. The
	// caller closes it after Close.
	CgroupFD int
	// OpenFiles > 0 is the limit on open files of each process, for a Table whose
	// own process has a higher one and the same user id.
	OpenFiles uint64
	// Reap waits for every child, also adopted ones. Set it only in PID 1 or a
	// child subreaper, and start nothing there by other means.
	Reap bool
}

// Table starts processes and knows those that run. Safe for concurrent use.
type Table struct {
	opts    TableOptions
	starts  chan startRequest
	closing chan struct{}
	born    chan struct{} // tells the reaper that there is a child again
	null    *os.File
	wg      sync.WaitGroup

	// mu is held from before a fork until the child is in known, and while a
	// child is reaped: a pid is never reaped unknown, nor used again before it
	// is forgotten.
	mu     sync.Mutex
	known  map[int]*Process
	closed bool
}

type startRequest struct {
	command Command
	answer  chan startAnswer
}

type startAnswer struct {
	process *Process
	err     error
}

// NewTable returns an empty table. Close ends it.
func NewTable(o TableOptions) (*Table, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("process table: %w", err)
	}
	t := &Table{
		opts:    o,
		starts:  make(chan startRequest),
		closing: make(chan struct{}),
		born:    make(chan struct{}, 1),
		null:    null,
		known:   make(map[int]*Process),
	}
	t.wg.Go(t.spawner)
	if o.Reap {
		t.wg.Go(t.reapAll)
	}
	return t, nil
}

// Start starts c as the leader of a new session. The error wraps the errno of
// what the kernel refused: syscall.ENOENT for no such program, EACCES for one
// that may not be run, EAGAIN for the process limit.
func (t *Table) Start(c Command) (*Process, error) {
	r := startRequest{command: c, answer: make(chan startAnswer, 1)}
	select {
	case t.starts <- r:
	case <-t.closing:
		return nil, ErrClosed
	}
	a := <-r.answer
	return a.process, a.err
}

// spawner does every fork on one thread, so that children inherit what Prepare
// did to that thread, its cgroup for one. It never unlocks the thread: it ends
// with the goroutine and goes back to no other.
func (t *Table) spawner() {
	runtime.LockOSThread()
	prepared := t.opts.Prepare == nil
	for {
		var r startRequest
		select {
		case r = <-t.starts:
		case <-t.closing:
			return
		}
		if !prepared {
			if err := t.opts.Prepare(); err != nil {
				r.answer <- startAnswer{err: fmt.Errorf("prepare to start processes: %w", err)}
				continue
			}
			prepared = true
		}
		p, err := t.spawn(r.command)
		r.answer <- startAnswer{p, err}
	}
}

func (t *Table) spawn(c Command) (*Process, error) {
	attr := syscall.ProcAttr{
		Dir: c.Dir,
		Env: c.Env,
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: c.TTY},
	}
	for i, f := range append([]*os.File{c.Stdin, c.Stdout, c.Stderr}, c.Extra...) {
		if f == nil && i < 3 {
			f = t.null
		}
		attr.Files = append(attr.Files, f.Fd())
	}
	if !t.opts.NoCredential {
		attr.Sys.Credential = &syscall.Credential{Uid: c.Account.UID, Gid: c.Account.GID, Groups: c.Account.Groups}
	}
	if t.opts.CgroupFD > 0 {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, t.opts.CgroupFD
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	pid, err := t.fork(c, &attr)
	runtime.KeepAlive(c)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	p := &Process{table: t, pid: pid, done: make(chan struct{})}
	t.known[pid] = p
	if t.opts.Reap {
		select {
		case t.born <- struct{}{}:
		default:
		}
	} else {
		t.wg.Go(func() { t.reapOne(pid) })
	}
	return p, nil
}

// fork starts the process, with the limit on open files that it is to have. Its
// soft one is inherited, and so holds from the start; the hard one could not be
// raised again here, and is set just after.
func (t *Table) fork(c Command, attr *syscall.ProcAttr) (int, error) {
	args := append([]string{c.Path}, c.Args...)
	var own unix.Rlimit
	n := t.opts.OpenFiles
	if n == 0 || unix.Getrlimit(unix.RLIMIT_NOFILE, &own) != nil {
		return syscall.ForkExec(c.Path, args, attr)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: own.Max}); err != nil {
		return 0, fmt.Errorf("limit open files: %w", err)
	}
	pid, err := syscall.ForkExec(c.Path, args, attr)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		t.opts.Logger.Warn("own limit on open files stays low", slog.Any("error", err))
	}
	if err == nil {
		// One that has ended already needs none.
		_ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}, nil)
	}
	return pid, err
}

// Close kills what is left, waits for it, and ends the table. Safe to call
// twice.
func (t *Table) Close() error {
	t.mu.Lock()
	first := !t.closed
	t.closed = true
	t.mu.Unlock()
	if first {
		close(t.closing)
	}
	ended := make(chan struct{})
	go func() {
		t.wg.Wait()
		close(ended)
	}()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for guard := time.After(closeWait); ; {
		t.killAll()
		select {
		case <-ended:
			if first {
				return t.null.Close()
			}
			return nil
		case <-tick.C:
		case <-guard:
			return errors.New("close process table: killed processes do not end")
		}
	}
}

func (t *Table) killAll() {
	t.mu.Lock()
	left := make([]*Process, 0, len(t.known))
	for _, p := range t.known {
		left = append(left, p)
	}
	t.mu.Unlock()
	for _, p := range left {
		_ = p.Signal(syscall.SIGKILL)
	}
	if t.opts.Reap {
		killDescendants()
	}
}

// Process is one process that a Table started, and the leader of its session.
// Safe for concurrent use.
type Process struct {
	table  *Table
	pid    int
	status syscall.WaitStatus // written before done is closed
	done   chan struct{}
}

// PID is the process id, and the id of the session and of its first group.
func (p *Process) PID() int { return p.pid }

// Done is closed when the process has ended and is reaped. Other members of
// its session may still run.
func (p *Process) Done() <-chan struct{} { return p.done }

// Status says how it ended. It must not be called before Done is closed.
func (p *Process) Status() syscall.WaitStatus { return p.status }
