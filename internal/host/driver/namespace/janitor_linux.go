package namespace

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/agent-sandbox/abx/internal/reexec"
)

// Janitor is the role RoleJanitor: it waits until the host that started it is
// gone, however it went, and then removes what that host had. args is the path
// of the host's record. It runs in a session of its own, so that a signal to
// the host's terminal does not end it first.
func Janitor(args []string) error {
	if len(args) != 1 {
		return errors.New("janitor: want the path of a record")
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	pipe, err := reexec.Inherited(0, "host")
	if err != nil {
		return err
	}
	defer pipe.Close()
	// Nothing is ever written: the read ends when the host does.
	if _, err := io.Copy(io.Discard, pipe); err != nil {
		return fmt.Errorf("janitor: %w", err)
	}
	r, err := readRecord(args[0])
	if errors.Is(err, os.ErrNotExist) {
		return nil // the host cleaned up itself
	}
	if err != nil {
		return fmt.Errorf("janitor: %w", err)
	}
	// A closed pipe is not yet an ended process.
	for i := 0; r.alive() && i < 500; i++ {
		time.Sleep(10 * time.Millisecond)
	}
	if r.alive() {
		return fmt.Errorf("janitor: host %d closed its pipe and still runs", r.PID)
	}
	return r.cleanup(args[0])
}

// janitor keeps one janitor process running for as long as the host lives.
type janitor struct {
	binary string
	record string
	log    *slog.Logger

	mu     sync.Mutex
	closed bool
	pipe   *os.File    // our end; its close tells the janitor to clean up
	proc   *os.Process // nil when none runs
	wait   chan struct{}
}

// Restarts of a janitor that died are this far apart at least.
const janitorPause = time.Second

// janitorLeave bounds how long a janitor that has nothing left to do may take
// to see that.
const janitorLeave = 5 * time.Second

func startJanitor(binary, record string, log *slog.Logger) (*janitor, error) {
	j := &janitor{binary: binary, record: record, log: log}
	if err := j.start(); err != nil {
		return nil, err
	}
	return j, nil
}

func (j *janitor) start() error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("janitor: %w", err)
	}
	p, err := reexec.Start(reexec.Command{
		Binary: j.binary, Role: RoleJanitor, Args: []string{j.record},
		Attr:  &syscall.SysProcAttr{Setsid: true},
		Files: []reexec.File{reexec.Give(r)},
	})
	if err != nil {
		w.Close()
		return err
	}
	j.pipe, j.proc, j.wait = w, p, make(chan struct{})
	go j.watch(p, j.wait)
	return nil
}

// watch starts another janitor when this one ends before its host.
func (j *janitor) watch(p *os.Process, done chan struct{}) {
	began := time.Now()
	state, err := p.Wait()
	close(done)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return
	}
	j.log.Warn("janitor ended, starting another", "state", state, "error", err)
	j.pipe.Close()
	j.proc = nil
	time.AfterFunc(max(0, janitorPause-time.Since(began)), func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.closed {
			return
		}
		if err := j.start(); err != nil {
			j.log.Error("no janitor: what this host leaves behind if it is killed, the next one sweeps", "error", err)
		}
	})
}

// close lets the janitor go and waits for it. The host has removed its record
// by then if all is clean; otherwise the janitor does what is left.
func (j *janitor) close() {
	j.mu.Lock()
	j.closed = true
	proc, wait := j.proc, j.wait
	if proc != nil {
		j.pipe.Close()
	}
	j.mu.Unlock()
	if proc == nil {
		return
	}
	select {
	case <-wait:
	case <-time.After(janitorLeave):
		j.log.Warn("janitor does not leave, ending it")
		_ = proc.Kill() // it may have left just now
		<-wait
	}
}
