//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/agent/account"
	"github.com/agent-sandbox/abx/internal/agent/output"
	"github.com/agent-sandbox/abx/internal/e2b"
	pb "github.com/agent-sandbox/abx/internal/e2b/process"
)

// Start implements process.Process.
func (s *Service) Start(ctx context.Context, r *connect.Request[pb.StartRequest], stream *connect.ServerStream[pb.StartResponse]) error {
	c := callOf(ctx)
	if c.timeoutErr != nil {
		return connect.NewError(connect.CodeInvalidArgument, c.timeoutErr)
	}
	a, err := s.account(r.Header())
	if err != nil {
		return err
	}
	window, err := windowOf(r.Header())
	if err != nil {
		return err
	}
	j, err := s.start(r.Msg, a, c.timeout)
	if err != nil {
		return err
	}
	w := newWatcher(s.windows(window, j.process.PID(), a))
	j.attach(w)
	defer j.detach(w)
	if err := s.adopt(j); err != nil {
		j.abandon()
		return startError(err, Command{})
	}
	v := view{
		job: j, watcher: w, ours: window != nil, keepalive: parseKeepalive(r.Header().Get(e2b.HeaderKeepalive)), writer: c.writer,
		send: func(ev *pb.ProcessEvent) error { return stream.Send(&pb.StartResponse{Event: ev}) },
	}
	err = v.run(ctx)
	if err != nil && r.Header().Get(e2b.HeaderForeground) == "1" && !j.isEnded() {
		s.terminate(j)
	}
	return err
}

// Connect implements process.Process. Its timeout ends the stream only.
func (s *Service) Connect(ctx context.Context, r *connect.Request[pb.ConnectRequest], stream *connect.ServerStream[pb.ConnectResponse]) error {
	c := callOf(ctx)
	if c.timeoutErr != nil {
		return connect.NewError(connect.CodeInvalidArgument, c.timeoutErr)
	}
	a, err := s.account(r.Header())
	if err != nil {
		return err
	}
	window, err := windowOf(r.Header())
	if err != nil {
		return err
	}
	j, err := s.find(r.Msg.GetProcess())
	if err != nil {
		return err
	}
	w := newWatcher(s.windows(window, j.process.PID(), a))
	j.attach(w)
	defer j.detach(w)
	v := view{
		job: j, watcher: w, ours: window != nil, keepalive: parseKeepalive(r.Header().Get(e2b.HeaderKeepalive)), writer: c.writer,
		send: func(ev *pb.ProcessEvent) error { return stream.Send(&pb.ConnectResponse{Event: ev}) },
	}
	if c.timeout > 0 {
		timer := time.NewTimer(c.timeout)
		defer timer.Stop()
		v.deadline = timer.C
	}
	return v.run(ctx)
}

// terminate ends a job whose client is gone.
func (s *Service) terminate(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.wg.Go(func() { j.process.Terminate(s.opts.KillGrace) })
	}
}

func (s *Service) account(h http.Header) (account.Account, error) {
	user := userOf(h)
	if user == "" {
		user = s.opts.DefaultUser()
	}
	a, err := s.opts.Book.Lookup(user)
	switch {
	case errors.Is(err, account.ErrUnknown):
		return a, connect.NewError(connect.CodeUnauthenticated, err)
	case err != nil:
		return a, connect.NewError(connect.CodeInternal, err)
	}
	return a, nil
}

// windowSize is a wished window; nil is none.
type windowSize struct{ head, tail int }

func windowOf(h http.Header) (*windowSize, error) {
	if h.Get(e2b.HeaderWindow) == "" {
		return nil, nil
	}
	head, tail, err := output.ParseWindow(h.Get(e2b.HeaderWindow))
	if err != nil {
		return nil, invalid("header %s: %w", e2b.HeaderWindow, err)
	}
	return &windowSize{head, tail}, nil
}

// windows makes one for each stream. 0,0 asks for everything.
func (s *Service) windows(size *windowSize, pid int, owner account.Account) []*output.Window {
	if size == nil || (size.head == 0 && size.tail == 0) {
		return nil
	}
	var ws []*output.Window
	for _, name := range []string{"stdout", "stderr"} {
		ws = append(ws, output.New(output.Options{
			Head: size.head, Tail: size.tail, Dir: s.opts.LogDir, Name: fmt.Sprintf("%d-%s", pid, name), Owner: owner,
		}))
	}
	return ws
}

// start starts what the request describes. Nobody reads its output yet.
func (s *Service) start(r *pb.StartRequest, a account.Account, timeout time.Duration) (_ *job, err error) {
	cfg := r.GetProcess()
	dir, err := s.folder(cfg, a)
	if err != nil {
		return nil, err
	}
	env, err := environ(s.opts.Env(a), cfg.GetEnvs())
	if err != nil {
		return nil, err
	}
	path, err := program(cfg.GetCmd(), dir, env)
	if err != nil {
		return nil, err
	}
	args, script, err := arguments(path, cfg.GetArgs())
	if err != nil {
		return nil, err
	}
	cmd := Command{Path: path, Args: args, Env: env, Dir: dir, Account: a}
	if script != nil {
		defer script.Close()
		cmd.Extra = []*os.File{script}
	}
	j := &job{
		config: cfg, tag: r.Tag, judge: s.opts.Judge, timeout: timeout, grace: s.opts.KillGrace,
		ended: make(chan struct{}), expired: make(chan struct{}),
		errTail: output.New(output.Options{Tail: tailBytes}),
	}
	theirs, err := j.connect(&cmd, r, a)
	defer closeAll(theirs...)
	if err != nil {
		return nil, err
	}
	j.mark = j.judge.Before()
	j.process, err = s.opts.Table.Start(cmd)
	if err != nil {
		j.closeFiles()
		return nil, startError(err, cmd)
	}
	if timeout > 0 {
		j.timer = time.AfterFunc(timeout, j.expire)
	}
	return j, nil
}

// connect gives cmd its standard files and the job the other ends. theirs are
// to be closed after the start; on an error nothing else is open.
func (j *job) connect(cmd *Command, r *pb.StartRequest, a account.Account) (theirs []*os.File, err error) {
	if r.GetPty() != nil {
		cols, rows, err := ttySize(r.GetPty())
		if err != nil {
			return nil, err
		}
		ours, tty, err := openTTY(cols, rows, int(a.UID))
		if err != nil {
			return nil, connect.NewError(connect.CodeInternal, err)
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.TTY = tty, tty, tty, true
		j.tty, j.input, j.sources = ours, newInput(ours), []*source{{file: ours, tty: true}}
		return []*os.File{tty}, nil
	}
	defer func() {
		if err != nil {
			j.closeFiles()
			closeAll(theirs...)
			theirs, err = nil, connect.NewError(connect.CodeInternal, err)
		}
	}()
	for _, f := range []**os.File{&cmd.Stdout, &cmd.Stderr} {
		ours, end, err := newPipe(true)
		if err != nil {
			return theirs, err
		}
		*f, theirs, j.sources = end, append(theirs, end), append(j.sources, &source{file: ours})
	}
	if r.Stdin != nil && !r.GetStdin() {
		return theirs, nil
	}
	ours, end, err := newPipe(false)
	if err != nil {
		return theirs, err
	}
	cmd.Stdin, theirs, j.input = end, append(theirs, end), newInput(ours)
	return theirs, nil
}

// closeFiles closes our ends of a job that did not start.
func (j *job) closeFiles() {
	for _, s := range j.sources {
		_ = s.file.Close()
	}
	if j.input != nil {
		j.input.close()
	}
}

// ttySize reads a terminal's size; an absent one is 80 by 24.
func ttySize(p *pb.PTY) (cols, rows uint16, err error) {
	size := p.GetSize()
	if size == nil || (size.GetCols() == 0 && size.GetRows() == 0) {
		return 80, 24, nil
	}
	if size.GetCols() > math.MaxUint16 || size.GetRows() > math.MaxUint16 {
		return 0, 0, invalid("terminal of %d columns and %d rows: up to %d each", size.GetCols(), size.GetRows(), math.MaxUint16)
	}
	return uint16(size.GetCols()), uint16(size.GetRows()), nil
}
