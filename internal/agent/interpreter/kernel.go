//go:build linux

package interpreter

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agent-sandbox/abx/internal/agent/process"
)

// A kernel that closes its control channel may be about to end: it is given
// so long to say how, before it counts as broken.
const endGrace = time.Second

// kernel is one running interpreter. One run at a time uses it.
type kernel struct {
	process *process.Process
	table   *process.Table
	link    link
	dir     string
	streams [2]*stream // stdout, stderr
	ready   chan struct{}
	ended   chan struct{} // no more messages
	wg      sync.WaitGroup

	generation int             // of its context's kernels
	stale      <-chan struct{} // closed when the context is restarted or deleted

	env     []string // the sandbox's, as the kernel has it
	version int64
	cells   int          // how many it has got
	placed  bool         // a cell asked for its first folder
	known   map[int]bool // processes that cells before this one left

	mu      sync.Mutex
	run     *run  // that gets messages now
	broken  error // why it was killed by us
	closing bool
}

// startKernel starts an interpreter. The folder o.dir is the kernel's from then on.
func startKernel(t *process.Table, d driver, o place, env []string, cwd string) (_ *kernel, err error) {
	l, err := d.open(o)
	if err != nil {
		return nil, err
	}
	k := &kernel{
		table: t, link: l, dir: o.dir, env: env, known: map[int]bool{},
		ready: make(chan struct{}), ended: make(chan struct{}),
	}
	defer func() {
		closeAll(l.lent)
		if err != nil {
			closeAll(append(l.files, l.stdout, l.stderr))
			_ = os.RemoveAll(o.dir)
		}
	}()
	for i, f := range []*os.File{l.stdout, l.stderr} {
		if k.streams[i], err = newStream(f); err != nil {
			return nil, err
		}
	}
	c := l.command
	c.Env, c.Dir, c.Account = env, folder(cwd), o.account
	if k.process, err = t.Start(c); err != nil {
		return nil, err
	}
	for _, s := range k.streams {
		k.wg.Go(s.pump)
	}
	k.wg.Go(k.listen)
	return k, nil
}

// folder is path, or the nearest folder above it that exists.
func folder(path string) string {
	for path != "/" && path != "." && path != "" {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return path
		}
		path = path[:max(1, strings.LastIndexByte(path, '/'))]
	}
	return "/"
}

// listen takes the kernel's messages until they end, or until one is not what
// the protocol allows: then the kernel is killed.
func (k *kernel) listen() {
	defer close(k.ended)
	for ready := false; ; {
		e, err := k.link.next()
		if err == nil {
			err = k.handle(e, &ready)
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrClosed) {
			select {
			case <-k.process.Done():
				return
			case <-time.After(endGrace):
				err = errors.New("it closed its control channel")
			}
		}
		k.fail(err)
		return
	}
}

func (k *kernel) handle(e event, ready *bool) error {
	if e.Type == "ready" {
		if *ready {
			return errors.New("it said twice that it is ready")
		}
		*ready = true
		close(k.ready)
		return nil
	}
	k.mu.Lock()
	r := k.run
	k.mu.Unlock()
	switch {
	case e.Type == "display" && r != nil:
		r.display(e)
		return nil
	case e.Type == "display":
		return nil // by a thread, between two cells: nobody to show it to
	case e.Type != "done":
		return fmt.Errorf("message of unknown type %.40q", e.Type)
	case r == nil || e.ID != r.cell.ID:
		return fmt.Errorf("it said that cell %d is done, which does not run", e.ID)
	}
	select {
	case r.done <- e:
		return nil
	default:
		return fmt.Errorf("it said twice that cell %d is done", e.ID)
	}
}

// fail kills a kernel that cannot be used any more.
func (k *kernel) fail(err error) {
	k.mu.Lock()
	first := k.broken == nil && !k.closing
	if first {
		k.broken = err
	}
	k.mu.Unlock()
	if first {
		k.kill()
	}
}

func (k *kernel) failure() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.broken
}

// begin hands a cell to the kernel and directs its messages to r.
func (k *kernel) begin(r *run) {
	k.mu.Lock()
	k.run = r
	k.mu.Unlock()
	for i, s := range k.streams {
		s.attach(r.out[i])
	}
	k.wg.Go(func() {
		if err := k.link.send(r.cell); err != nil && !errors.Is(err, syscall.EPIPE) {
			k.fail(fmt.Errorf("cell could not be handed over: %w", err))
		}
	})
}

// finish takes what is left of the output and ends the direction to the run.
func (k *kernel) finish() {
	for _, s := range k.streams {
		s.drain()
		s.detach()
	}
	k.mu.Lock()
	k.run = nil
	k.mu.Unlock()
}

// dead reports whether the process has ended.
func (k *kernel) dead() bool {
	select {
	case <-k.process.Done():
		return true
	default:
		return false
	}
}

// interrupt sends SIGINT to the kernel and to what its cell started, and to
// nothing that cells before it left running.
func (k *kernel) interrupt() {
	if k.dead() {
		return
	}
	for _, pid := range append([]int{k.process.PID()}, k.fresh()...) {
		_ = syscall.Kill(pid, syscall.SIGINT)
	}
}

// fresh lists the processes that the running cell started and that are still
// there: members of the kernel's session and its descendants.
func (k *kernel) fresh() []int {
	var pids []int
	for _, pid := range append(k.table.Session(k.process.PID()), descendants(k.process.PID(), k.known)...) {
		if pid != k.process.PID() && pid > 1 && pid != os.Getpid() && !k.known[pid] && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killFresh ends what a stopped cell left.
func (k *kernel) killFresh() {
	for range 20 { // more may be forked meanwhile
		pids := k.fresh()
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(time.Millisecond) // the killed need the processor to die
	}
}

// count notes which processes run after a cell, and tells how many are new.
func (k *kernel) count() int {
	now := map[int]bool{}
	n := 0
	for _, pid := range append(k.table.Session(k.process.PID()), children(k.process.PID())...) {
		if pid == k.process.PID() || now[pid] {
			continue
		}
		now[pid] = true
		if !k.known[pid] {
			n++
		}
	}
	k.known = now
	return n
}

// kill ends the kernel and all processes of its session and family.
func (k *kernel) kill() {
	family := descendants(k.process.PID(), nil)
	_ = k.process.Signal(syscall.SIGKILL)
	for _, pid := range family {
		if pid > 1 && pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// close kills what is left, and returns when nothing of the kernel remains.
func (k *kernel) close() {
	k.mu.Lock()
	k.closing = true
	k.mu.Unlock()
	k.kill()
	<-k.process.Done()
	closeAll(append(k.link.files, k.link.stdout, k.link.stderr))
	k.wg.Wait()
	_ = os.RemoveAll(k.dir)
}
