//go:build linux

package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/agent/account"
	pb "github.com/agent-sandbox/abx/internal/e2b/process"
	"github.com/agent-sandbox/abx/internal/e2b/process/processconnect"
)

const (
	defaultKillGrace = 2 * time.Second
	defaultKeepEnded = 30 * time.Second
	// maxEnded bounds how many ended jobs are kept.
	maxEnded = 1024
)

// Options of a Service. Table is required.
type Options struct {
	Table *Table
	Book  account.Book
	// Env is the environment of a process before the request's own: PATH, HOME,
	// USER, LOGNAME and the sandbox's variables. nil: a plain PATH and those of
	// the account.
	Env func(account.Account) []string
	// DefaultUser runs what names no user. nil: account.UserName.
	DefaultUser func() string
	// DefaultDir is the folder of what names none. nil: the account's home.
	DefaultDir func(account.Account) string
	Judge      *Judge
	KillGrace  time.Duration // from SIGTERM to SIGKILL; 0: 2 s
	KeepEnded  time.Duration // how long an end is told to latecomers; 0: 30 s
	// LogDir is where the whole of cut output goes; see output.Options.Dir.
	LogDir string
	Logger *slog.Logger // nil: discard
}

// Service is process.Process. Safe for concurrent use.
type Service struct {
	opts Options
	wg   sync.WaitGroup

	mu     sync.Mutex
	jobs   map[int]*job // by pid; running, and ended ones that are kept
	ended  []*job       // the oldest first
	open   map[*job]struct{}
	closed bool
}

var _ processconnect.ProcessHandler = (*Service)(nil)

// NewService returns a Service over o.Table. Close ends it.
func NewService(o Options) *Service {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Env == nil {
		o.Env = plainEnv
	}
	if o.DefaultUser == nil {
		o.DefaultUser = func() string { return account.UserName }
	}
	if o.DefaultDir == nil {
		o.DefaultDir = func(a account.Account) string { return a.Home }
	}
	o.KillGrace = cmp.Or(o.KillGrace, defaultKillGrace)
	o.KeepEnded = cmp.Or(o.KeepEnded, defaultKeepEnded)
	return &Service{opts: o, jobs: make(map[int]*job), open: make(map[*job]struct{})}
}

func plainEnv(a account.Account) []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + a.Home, "USER=" + a.Name, "LOGNAME=" + a.Name,
	}
}

// Handler serves the service at path, in the Connect protocol with JSON or
// protobuf messages.
func (s *Service) Handler() (path string, h http.Handler) {
	path, h = processconnect.NewProcessHandler(s, connect.WithReadMaxBytes(maxRequest))
	return path, wrap(h)
}

// Close kills every session that it started, ends all streams and waits. The
// table stays open. Safe to call twice.
func (s *Service) Close() error {
	s.mu.Lock()
	s.closed = true
	left := make([]*job, 0, len(s.open))
	for j := range s.open {
		left = append(left, j)
	}
	s.mu.Unlock()
	for _, j := range left {
		j.abandon()
	}
	s.wg.Wait()
	return nil
}

// adopt registers a job and follows it to its end. The caller has attached the
// first watcher.
func (s *Service) adopt(j *job) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	pid := j.process.PID()
	s.forget()
	s.jobs[pid] = j // a kept one with the same pid is gone with it
	s.open[j] = struct{}{}
	s.wg.Go(func() {
		var readers sync.WaitGroup
		j.run(func(f func()) { readers.Go(f) })
		s.mu.Lock()
		s.ended = append(s.ended, j)
		j.config = nil // may be large
		s.mu.Unlock()
		readers.Wait()
		s.mu.Lock()
		delete(s.open, j)
		s.mu.Unlock()
	})
	return nil
}

// forget drops ended jobs that are too old or too many. s.mu is held.
func (s *Service) forget() {
	for len(s.ended) > 0 && (len(s.ended) > maxEnded || s.stale(s.ended[0])) {
		j := s.ended[0]
		s.ended = slices.Delete(s.ended, 0, 1)
		if pid := j.process.PID(); s.jobs[pid] == j {
			delete(s.jobs, pid)
		}
	}
}

func (s *Service) stale(j *job) bool { return time.Since(j.endedAt) > s.opts.KeepEnded }

// find returns the job that a selector means: of several with one tag a
// running one, else the latest to end.
func (s *Service) find(sel *pb.ProcessSelector) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget()
	switch by := sel.GetSelector().(type) {
	case *pb.ProcessSelector_Pid:
		if j := s.jobs[int(by.Pid)]; j != nil && !(j.isEnded() && s.stale(j)) {
			return j, nil
		}
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with pid %d not found; list shows those that run", by.Pid))
	case *pb.ProcessSelector_Tag:
		var best *job
		for _, j := range s.jobs {
			if j.tag != nil && *j.tag == by.Tag && (best == nil || newer(j, best)) {
				best = j
			}
		}
		if best != nil {
			return best, nil
		}
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with tag %q not found; list shows those that run", by.Tag))
	}
	return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("process selector is empty: name a pid or a tag"))
}

func newer(a, b *job) bool {
	if !a.isEnded() || !b.isEnded() {
		return b.isEnded()
	}
	return a.endedAt.After(b.endedAt)
}

// findRunning is find for what makes sense with a live process only.
func (s *Service) findRunning(sel *pb.ProcessSelector) (*job, error) {
	j, err := s.find(sel)
	if err != nil {
		return nil, err
	}
	if j.isEnded() {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process %d ended with code %d (%s)", j.process.PID(), j.end.GetAbxShellCode(), j.end.GetStatus()))
	}
	return j, nil
}

// List implements process.Process.
func (s *Service) List(context.Context, *connect.Request[pb.ListRequest]) (*connect.Response[pb.ListResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all pb.ListResponse
	for pid, j := range s.jobs {
		if !j.isEnded() {
			all.Processes = append(all.Processes, &pb.ProcessInfo{Config: j.config, Pid: uint32(pid), Tag: j.tag})
		}
	}
	slices.SortFunc(all.Processes, func(a, b *pb.ProcessInfo) int { return cmp.Compare(a.Pid, b.Pid) })
	return connect.NewResponse(&all), nil
}

// Update implements process.Process.
func (s *Service) Update(_ context.Context, r *connect.Request[pb.UpdateRequest]) (*connect.Response[pb.UpdateResponse], error) {
	j, err := s.findRunning(r.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if r.Msg.GetPty() == nil {
		return connect.NewResponse(&pb.UpdateResponse{}), nil
	}
	if j.tty == nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("process %d has no terminal to resize; start it with pty", j.process.PID()))
	}
	cols, rows, err := ttySize(r.Msg.GetPty())
	if err != nil {
		return nil, err
	}
	if err := resize(j.tty, cols, rows); err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return connect.NewResponse(&pb.UpdateResponse{}), nil
}

// SendInput implements process.Process.
func (s *Service) SendInput(ctx context.Context, r *connect.Request[pb.SendInputRequest]) (*connect.Response[pb.SendInputResponse], error) {
	j, err := s.findRunning(r.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if err := j.send(ctx, r.Msg.GetInput()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.SendInputResponse{}), nil
}

// StreamInput implements process.Process.
func (s *Service) StreamInput(ctx context.Context, stream *connect.ClientStream[pb.StreamInputRequest]) (*connect.Response[pb.StreamInputResponse], error) {
	var to *job
	for stream.Receive() {
		switch ev := stream.Msg().GetEvent().(type) {
		case *pb.StreamInputRequest_Start:
			j, err := s.findRunning(ev.Start.GetProcess())
			if err != nil {
				return nil, err
			}
			to = j
		case *pb.StreamInputRequest_Data:
			if to == nil {
				return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("input stream: data before start; the first message names the process"))
			}
			if err := to.send(ctx, ev.Data.GetInput()); err != nil {
				return nil, err
			}
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.StreamInputResponse{}), nil
}

// send writes one piece of input. Its kind must be that of the process.
func (j *job) send(ctx context.Context, in *pb.ProcessInput) error {
	var p []byte
	pid := j.process.PID()
	switch kind := in.GetInput().(type) {
	case *pb.ProcessInput_Stdin:
		if j.tty != nil {
			return connect.NewError(connect.CodeInternal, fmt.Errorf("process %d has a terminal: send pty, not stdin", pid))
		}
		p = kind.Stdin
	case *pb.ProcessInput_Pty:
		if j.tty == nil {
			return connect.NewError(connect.CodeInternal, fmt.Errorf("process %d has no terminal: send stdin, not pty", pid))
		}
		p = kind.Pty
	default:
		return connect.NewError(connect.CodeInvalidArgument, errors.New("input is empty: send stdin or pty"))
	}
	if j.input == nil {
		return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("process %d was started without stdin; start it with stdin true", pid))
	}
	switch err := j.input.write(ctx, p); {
	case errors.Is(err, errInputClosed):
		return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("process %d: %w", pid, err))
	case err != nil && ctx.Err() == nil:
		return connect.NewError(connect.CodeInternal, fmt.Errorf("process %d: %w", pid, err))
	default:
		return err
	}
}

// CloseStdin implements process.Process.
func (s *Service) CloseStdin(_ context.Context, r *connect.Request[pb.CloseStdinRequest]) (*connect.Response[pb.CloseStdinResponse], error) {
	j, err := s.findRunning(r.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if j.tty != nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("process %d has a terminal, whose input does not close; send Ctrl-D (0x04)", j.process.PID()))
	}
	if j.input != nil {
		j.input.close()
	}
	return connect.NewResponse(&pb.CloseStdinResponse{}), nil
}

// SendSignal implements process.Process. The whole session gets the signal.
func (s *Service) SendSignal(_ context.Context, r *connect.Request[pb.SendSignalRequest]) (*connect.Response[pb.SendSignalResponse], error) {
	sig := r.Msg.GetSignal()
	switch sig {
	case pb.Signal_SIGNAL_SIGKILL, pb.Signal_SIGNAL_SIGTERM, pb.Signal_SIGNAL_ABX_SIGINT:
	default:
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("signal %v: want SIGNAL_SIGKILL, SIGNAL_SIGTERM or SIGNAL_ABX_SIGINT", sig))
	}
	j, err := s.findRunning(r.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	switch err := j.process.Signal(syscall.Signal(sig)); {
	case errors.Is(err, syscall.ESRCH):
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process %d has just ended", j.process.PID()))
	case err != nil:
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return connect.NewResponse(&pb.SendSignalResponse{}), nil
}
