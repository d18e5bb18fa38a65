// Package reexec starts this program, or the agent that it carries, again in
// another role, and lends it files. It owns descriptor numbers: the n-th file
// given to Start is descriptor 3+n in the child. It knows no roles itself;
// cmd/abx maps them.
//
// A role is argv[0] of the child ("abx-janitor"), so that process lists show it.
package reexec

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// File is a file passed to a child.
type File struct {
	f     *os.File
	given bool
}

// Lend passes f; the caller goes on owning it and closes it.
func Lend(f *os.File) File { return File{f: f} }

// Give passes f; Start closes it in this process, whether it succeeds or not.
func Give(f *os.File) File { return File{f: f, given: true} }

// Command says what to start.
type Command struct {
	Binary string // path of the program; /proc/self/fd/N for a sealed copy
	Role   string // argv[0]
	Args   []string
	Env    []string // nil means an empty environment
	Stderr *os.File // lent; nil means /dev/null
	Attr   *syscall.SysProcAttr
	Files  []File
}

// Start starts c and returns when its program runs. Standard input and output
// are /dev/null. The caller waits for the process.
func Start(c Command) (*os.Process, error) {
	defer func() {
		for _, f := range c.Files {
			if f.given {
				f.f.Close()
			}
		}
	}()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Role, err)
	}
	defer null.Close()
	stderr := c.Stderr
	if stderr == nil {
		stderr = null
	}
	files := []*os.File{null, null, stderr}
	for _, f := range c.Files {
		files = append(files, f.f)
	}
	env := c.Env
	if env == nil {
		env = []string{} // a nil Env would hand over ours
	}
	p, err := os.StartProcess(c.Binary, append([]string{c.Role}, c.Args...), &os.ProcAttr{
		Env: env, Files: files, Sys: c.Attr,
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Role, err)
	}
	return p, nil
}

// Threads starts children from OS threads that never end. A parent-death
// signal is tied to the thread that forked, not to the process: from a thread
// that the Go runtime retires, it would kill the child of a healthy parent.
type Threads struct {
	jobs chan func()
	done chan struct{}
}

// NewThreads starts n threads; n is at least 1. They live until Close.
func NewThreads(n int) *Threads {
	t := &Threads{jobs: make(chan func()), done: make(chan struct{})}
	for range max(n, 1) {
		go func() {
			// Never unlocked while children live: see Close.
			runtime.LockOSThread()
			for {
				select {
				case job := <-t.jobs:
					job()
				case <-t.done:
					return
				}
			}
		}()
	}
	return t
}

// ErrClosed is returned by Threads.Start after Close.
var ErrClosed = errors.New("closed")

// Start is Start on one of the threads.
func (t *Threads) Start(c Command) (p *os.Process, err error) {
	ready := make(chan struct{})
	job := func() {
		defer close(ready)
		p, err = Start(c)
	}
	select {
	case t.jobs <- job:
		<-ready
		return p, err
	case <-t.done:
		return nil, ErrClosed
	}
}

// Close ends the threads, and with them every child that asked for a
// parent-death signal. Call it once, last.
func (t *Threads) Close() { close(t.done) }
