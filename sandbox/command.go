package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/e2b/process"
)

const (
	// grace is how much longer than a timeout the client waits for the server,
	// which enforces it, to say so.
	grace = 10 * time.Second
	// restTime is how long the client waits, after the end, for the connection
	// to become free.
	restTime = time.Second

	keepalive         = "50" // seconds
	keepaliveProgress = "2"
	progressEvery     = 2 * time.Second
)

// Commands runs processes in a sandbox.
type Commands struct{ sb *Sandbox }

type runSettings struct {
	callSettings
	shell      string
	args       []string
	direct     bool // args instead of a shell
	user, cwd  string
	stdin      bool
	tag        string
	pty        *process.PTY
	foreground bool
}

// Shell runs the command line as NAME -c LINE, with a path or the name of a
// program in /bin. The default is a login shell: /bin/bash -l -c LINE.
func Shell(name string) RunOption {
	return runFunc(func(s *runSettings) { s.shell = name })
}

// Args runs the program that stands in place of the command line, by path or
// by name, with these arguments and without a shell.
func Args(args ...string) RunOption {
	return runFunc(func(s *runSettings) { s.args, s.direct = args, true })
}

// OpenStdin gives a process a standard input that [Process.SendInput] writes
// to. Without it (and always in [Commands.Run]) standard input is at its end.
func OpenStdin() RunOption {
	return runFunc(func(s *runSettings) { s.stdin = true })
}

// Terminal gives a process a terminal of this size, at least 1 by 1. All
// output then comes as standard output. With an empty command line the process
// is an interactive login shell. [Commands.Connect] needs it to send input to
// a process that has a terminal.
func Terminal(columns, rows int) RunOption {
	return runFunc(func(s *runSettings) {
		if columns < 1 || rows < 1 || columns > 65535 || rows > 65535 {
			s.bad = fmt.Sprintf("terminal of %d by %d: want 1 to 65535 each", columns, rows)
			return
		}
		s.pty = ptySize(columns, rows)
	})
}

// Tag labels a process; [Commands.List] shows it.
func Tag(name string) RunOption {
	return runFunc(func(s *runSettings) { s.tag = name })
}

func ptySize(columns, rows int) *process.PTY {
	return &process.PTY{Size: &process.PTY_Size{Cols: uint32(columns), Rows: uint32(rows)}}
}

func newRunSettings(op string, timeout time.Duration, opts []RunOption) (*runSettings, error) {
	set := &runSettings{callSettings: callSettings{timeout: timeout, maxOutput: DefaultMaxOutput}}
	for _, o := range opts {
		o.applyRun(set)
	}
	return set, set.check(op)
}

// Run runs a command line to its end and returns what it wrote and how it
// ended. A code other than 0, a signal and a timeout are a Result with a nil
// error.
//
// When ctx ends the command is killed. When the call fails after the command's
// start, the error comes with a Result of what was written until then.
//
// Options: [Timeout] (default 60 s), [Shell], [Args], [User], [Cwd], [Env],
// [Window], [MaxOutput], [OnStdout], [OnStderr], [OnProgress], [Terminal], [Tag].
func (c *Commands) Run(ctx context.Context, line string, opts ...RunOption) (*Result, error) {
	const op = "run command"
	set, err := newRunSettings(op, DefaultTimeout, opts)
	if err != nil {
		return nil, err
	}
	set.stdin, set.foreground = false, true
	st, err := c.sb.start(ctx, op, line, set)
	if err != nil {
		return nil, err
	}
	defer st.close()
	return st.follow(ctx)
}

// Start starts a command line and returns when it runs. ctx bounds the start
// only: the process goes on until it ends, is killed, or its [Timeout] (by
// default none) is over, and also when the client goes away.
//
// The options are those of [Commands.Run] and [OpenStdin]. Output goes to
// [OnStdout] and [OnStderr], called from a goroutine of the handle, and into
// the result of [Process.Wait].
func (c *Commands) Start(ctx context.Context, line string, opts ...RunOption) (*Process, error) {
	const op = "start command"
	set, err := newRunSettings(op, 0, opts)
	if err != nil {
		return nil, err
	}
	st, err := c.sb.start(ctx, op, line, set)
	if err != nil {
		return nil, err
	}
	return newProcess(ctx, st)
}

// Connect returns a handle for a process that runs, by its PID in the sandbox.
// What it wrote before is not seen. One that is unknown, or ended some time
// ago, is ErrNotFound. ctx bounds the connecting only.
//
// Options: [OnStdout], [OnStderr], [OnProgress], [Window], [MaxOutput], and
// [Terminal] when the process has one.
func (c *Commands) Connect(ctx context.Context, pid int, opts ...RunOption) (*Process, error) {
	const op = "connect to process"
	set, err := newRunSettings(op, 0, opts)
	if err == nil {
		err = checkPID(op, pid)
	}
	if err != nil {
		return nil, err
	}
	st := c.sb.newStream(ctx, op, set)
	r := connect.NewRequest(&process.ConnectRequest{Process: selector(pid)})
	c.sb.streamHeaders(r.Header(), set)
	s, err := c.sb.processes().Connect(st.ctx, r)
	if err := st.begin(ctx, s, eventsOf(s, (*process.ConnectResponse).GetEvent), err); err != nil {
		return nil, err
	}
	return newProcess(ctx, st)
}

// ProcessInfo is a process that was started through [Commands] and runs.
type ProcessInfo struct {
	PID  int
	Tag  string
	Cmd  string
	Args []string
	Env  map[string]string
	Cwd  string
}

// List returns the processes that were started by any client and still run.
func (c *Commands) List(ctx context.Context) ([]ProcessInfo, error) {
	out, err := unary(ctx, c.sb, "list processes", "", true, c.sb.processes().List, &process.ListRequest{})
	if err != nil {
		return nil, err
	}
	all := make([]ProcessInfo, 0, len(out.GetProcesses()))
	for _, p := range out.GetProcesses() {
		all = append(all, ProcessInfo{
			PID: int(p.GetPid()), Tag: p.GetTag(), Cmd: p.GetConfig().GetCmd(), Args: p.GetConfig().GetArgs(),
			Env: p.GetConfig().GetEnvs(), Cwd: p.GetConfig().GetCwd(),
		})
	}
	return all, nil
}

// Kill kills a process and its group by PID. An unknown one is ErrNotFound.
func (c *Commands) Kill(ctx context.Context, pid int) error {
	return c.sb.signal(ctx, pid, SignalKill)
}

func checkPID(op string, pid int) error {
	if pid < 1 || pid > math.MaxInt32 {
		return invalid(op, fmt.Sprintf("%d is not the number of a process", pid))
	}
	return nil
}

func selector(pid int) *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: uint32(pid)}}
}

// start sends Process/Start and reads its first event.
func (s *Sandbox) start(ctx context.Context, op, line string, set *runSettings) (*stream, error) {
	config, err := set.config(op, line)
	if err != nil {
		return nil, err
	}
	in := &process.StartRequest{Process: config, Pty: set.pty, Stdin: &set.stdin}
	if set.pty != nil {
		in.Stdin = nil
	}
	if set.tag != "" {
		in.Tag = &set.tag
	}
	st := s.newStream(ctx, op, set)
	r := connect.NewRequest(in)
	h := r.Header()
	s.streamHeaders(h, set)
	s.actAs(h, set.user)
	if set.timeout > 0 {
		h[e2b.HeaderTimeout] = []string{millis(set.timeout)}
	}
	if set.foreground {
		h[e2b.HeaderForeground] = []string{"1"}
	}
	callStream, err := s.processes().Start(st.ctx, r)
	if err := st.begin(ctx, callStream, eventsOf(callStream, (*process.StartResponse).GetEvent), err); err != nil {
		return nil, err
	}
	return st, nil
}

// config is the process that runs line.
func (s *runSettings) config(op, line string) (*process.ProcessConfig, error) {
	c := &process.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-l", "-c", line}, Envs: s.env}
	switch {
	case strings.ContainsRune(line, 0):
		return nil, invalid(op, "the command holds a NUL byte")
	case line == "" && s.pty == nil:
		return nil, invalid(op, "the command is empty")
	case line == "":
		c.Args = []string{"-i", "-l"}
		c.Envs = merge(map[string]string{"TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}, s.env)
	case s.direct:
		c.Cmd, c.Args = line, s.args
	case s.shell != "":
		c.Cmd, c.Args = s.shell, c.Args[1:]
		if !path.IsAbs(s.shell) {
			c.Cmd = "/bin/" + s.shell
		}
	}
	if s.cwd != "" {
		c.Cwd = &s.cwd
	}
	return c, nil
}

func (s *Sandbox) streamHeaders(h map[string][]string, set *runSettings) {
	h[e2b.HeaderKeepalive] = []string{keepalive}
	if set.onProgress != nil {
		h[e2b.HeaderKeepalive] = []string{keepaliveProgress}
	}
	set.window(h)
}

// window sets the header by which a server of ours leaves output out itself.
func (s *callSettings) window(h map[string][]string) {
	if s.head+s.tail > 0 {
		h[e2b.HeaderWindow] = []string{strconv.Itoa(s.head) + "," + strconv.Itoa(s.tail)}
	}
}

func millis(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}

// eventsOf reads the events of either kind of stream; io.EOF is its proper end.
func eventsOf[T any](s *connect.ServerStreamForClient[T], event func(*T) *process.ProcessEvent) func() (*process.ProcessEvent, error) {
	return func() (*process.ProcessEvent, error) {
		if s.Receive() {
			return event(s.Msg()), nil
		}
		if err := s.Err(); err != nil {
			return nil, err
		}
		return nil, io.EOF
	}
}

// isCode reports whether the server itself ended a stream with code.
func isCode(err error, code connect.Code) bool {
	var e *Error
	if errors.As(err, &e) {
		return e.Code == code.String()
	}
	return connect.IsWireError(err) && connect.CodeOf(err) == code
}
