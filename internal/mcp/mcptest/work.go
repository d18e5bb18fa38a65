package mcptest

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/e2b/process"
	"github.com/agent-sandbox/abx/internal/e2b/process/processconnect"
)

// A Command is a process that a client started.
type Command struct {
	Ctx            context.Context // ends at its timeout, or when the client goes
	Path           string
	Args           []string
	Cwd            string
	Env            map[string]string
	Timeout        time.Duration // 0: none
	Stdout, Stderr func(string)  // say something now
}

// Line is the command line given to the shell.
func (c *Command) Line() string { return c.Args[len(c.Args)-1] }

// An End is how a command ended. What stands in Stdout and Stderr is said
// before. The totals and files are those of a window that cut.
type End struct {
	Stdout, Stderr         string
	Code                   int
	Reason, Detail         string
	Background             []int
	StdoutBytes            int64
	StdoutFile, StderrFile string
}

type processes struct {
	processconnect.UnimplementedProcessHandler
	s *Sandbox
}

func (p processes) Start(ctx context.Context, r *connect.Request[process.StartRequest], out *connect.ServerStream[process.StartResponse]) error {
	if odd, ok := p.s.refusal(processKey); ok {
		return connect.NewError(odd.code, &missing{odd.message})
	}
	config := r.Msg.GetProcess()
	c := &Command{Path: config.GetCmd(), Args: config.GetArgs(), Cwd: config.GetCwd(), Env: config.GetEnvs()}
	if !p.s.isDir(c.Cwd) && c.Cwd != "" {
		return connect.NewError(connect.CodeInvalidArgument, &missing{"cwd '" + c.Cwd + "' does not exist"})
	}
	if ms, err := strconv.Atoi(r.Header().Get(e2b.HeaderTimeout)); err == nil {
		c.Timeout = time.Duration(ms) * time.Millisecond
	}
	send := func(e *process.ProcessEvent) { _ = out.Send(&process.StartResponse{Event: e}) }
	send(&process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: &process.ProcessEvent_StartEvent{Pid: 42}}})
	c.Stdout = func(s string) { send(outputEvent(s, false)) }
	c.Stderr = func(s string) { send(outputEvent(s, true)) }
	c.Ctx = ctx
	end := p.s.p.Command(p.s, c)
	if end.Stdout != "" {
		c.Stdout(end.Stdout)
	}
	if end.Stderr != "" {
		c.Stderr(end.Stderr)
	}
	if end.Reason == "" {
		end.Reason = e2b.ReasonExit
	}
	e := &process.ProcessEvent_EndEvent{
		ExitCode: int32(end.Code), Exited: true, AbxShellCode: int32(end.Code), AbxReason: end.Reason, AbxDetail: end.Detail,
		AbxStdoutBytes: uint64(end.StdoutBytes), AbxStdoutFile: end.StdoutFile, AbxStderrFile: end.StderrFile,
	}
	for _, pid := range end.Background {
		e.AbxBackground = append(e.AbxBackground, uint32(pid))
	}
	send(&process.ProcessEvent{Event: &process.ProcessEvent_End{End: e}})
	return nil
}

type missing struct{ text string }

func (m *missing) Error() string { return m.text }

func outputEvent(s string, stderr bool) *process.ProcessEvent {
	d := &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stdout{Stdout: []byte(s)}}
	if stderr {
		d.Output = &process.ProcessEvent_DataEvent_Stderr{Stderr: []byte(s)}
	}
	return &process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: d}}
}

// Code is a piece of code that a client runs.
type Code struct {
	e2b.Execute
	Ctx     context.Context
	Timeout time.Duration
	Send    func(e2b.Line) // a line of the answer
}

func (s *Sandbox) execute(w http.ResponseWriter, r *http.Request) {
	c := &Code{Ctx: r.Context()}
	if err := json.NewDecoder(r.Body).Decode(&c.Execute); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch strings.ToLower(c.Language) {
	case "", "python", "bash":
	default:
		http.Error(w, "this sandbox has no "+c.Language, http.StatusNotImplemented)
		return
	}
	if ms, err := strconv.Atoi(r.Header.Get(e2b.HeaderTimeoutMS)); err == nil {
		c.Timeout = time.Duration(ms) * time.Millisecond
	}
	out := json.NewEncoder(w)
	c.Send = func(l e2b.Line) {
		_ = out.Encode(l)
		w.(http.Flusher).Flush()
	}
	end := s.p.Code(s, c)
	if end.Reason == "" {
		end.Reason = e2b.ReasonExit
	}
	c.Send(e2b.Line{Type: e2b.LineEnd, Abx: &end})
}
