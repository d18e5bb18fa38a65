package namespace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/agent-sandbox/abx/internal/control"
	"github.com/agent-sandbox/abx/internal/host/cgroup"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// sandbox fills engine.Sandbox.
type sandbox struct {
	id      string
	driver  *Driver
	proc    *os.Process
	control *control.Conn
	group   *cgroup.Group

	send sync.Mutex // one Dial at a time on the control socket

	done  chan struct{} // closed when the agent was reaped
	heard chan struct{} // closed when its log is read to the end
	state *os.ProcessState

	mu     sync.Mutex
	closed bool
	last   string // the agent's last words

	closeOnce sync.Once
	closeErr  error
}

// watch waits for the agent. When it has ended, the kernel has killed all
// that was in its PID namespace.
func (s *sandbox) watch() {
	s.state, _ = s.proc.Wait()
	close(s.done)
}

func (s *sandbox) kill() {
	// Its processes are killed by the kernel before Wait returns.
	_ = s.proc.Kill()
}

// maxLog bounds what an agent, whose words are hostile input, may log.
const maxLog = 64 << 10

func (s *sandbox) logPipe() (w, r *os.File, err error) {
	r, w, err = os.Pipe()
	return w, r, err
}

// readLog passes the agent's own log on, bounded, and then drains.
func (s *sandbox) readLog(r *os.File, log *slog.Logger) {
	defer close(s.heard)
	defer r.Close()
	lines := bufio.NewScanner(io.LimitReader(r, maxLog))
	lines.Buffer(make([]byte, 0, 4096), 16<<10)
	for lines.Scan() {
		text := fmt.Sprintf("%.1000q", lines.Text())
		s.mu.Lock()
		s.last = text
		s.mu.Unlock()
		log.Warn("agent", "sandbox", s.id, "line", text)
	}
	_, _ = io.Copy(io.Discard, r)
}

// ended says how the agent's process went.
func (s *sandbox) ended() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := "no state"
	if s.state != nil {
		text = s.state.String()
		if ws, ok := s.state.Sys().(syscall.WaitStatus); ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL {
			text = "killed"
		}
	}
	if s.last != "" {
		text += "; it said " + s.last
	}
	return text
}

// Dial implements engine.Sandbox.
func (s *sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	ours, theirs, err := control.Pair()
	if err != nil {
		return nil, err
	}
	answer, err := control.NewConn(ours)
	if err != nil {
		ours.Close()
		theirs.Close()
		return nil, err
	}
	defer answer.Close()
	s.send.Lock()
	err = s.control.Send(control.Dial{Port: port}, theirs)
	s.send.Unlock()
	theirs.Close()
	if err != nil {
		return nil, s.lost(err)
	}
	// The other end closes when the agent dies, so only ctx needs help.
	stop := context.AfterFunc(ctx, func() { answer.Close() })
	defer stop()
	var a control.Answer
	files, err := answer.Receive(&a)
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, s.lost(err)
	case a.Closed:
		return nil, fmt.Errorf("port %d: %w", port, engine.ErrPortClosed)
	case a.Error != "" || len(files) != 1:
		return nil, fmt.Errorf("port %d: agent: %.200q", port, a.Error)
	}
	return net.FileConn(files[0])
}

func (s *sandbox) lost(err error) error {
	select {
	case <-s.done:
		return fmt.Errorf("%w: agent %s", engine.ErrLost, s.ended())
	default:
		return fmt.Errorf("%w: %w", engine.ErrLost, err)
	}
}

// Done implements engine.Sandbox.
func (s *sandbox) Done() <-chan struct{} { return s.done }

// Err implements engine.Sandbox.
func (s *sandbox) Err() error {
	select {
	case <-s.done:
	default:
		return nil
	}
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return nil
	}
	return fmt.Errorf("%w: agent %s", engine.ErrLost, s.ended())
}

// Close implements engine.Sandbox.
func (s *sandbox) Close() error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		if s.proc != nil {
			s.kill()
			<-s.done
			<-s.heard // nobody holds the other end any more
		}
		if s.control != nil {
			s.closeErr = s.control.Close()
		}
		if s.group != nil {
			s.closeErr = errors.Join(s.closeErr, s.group.Remove())
		}
	})
	return s.closeErr
}
