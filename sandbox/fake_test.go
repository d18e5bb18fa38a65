package sandbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/e2b/filesystem"
	"github.com/agent-sandbox/abx/internal/e2b/filesystem/filesystemconnect"
	"github.com/agent-sandbox/abx/internal/e2b/process"
	"github.com/agent-sandbox/abx/internal/e2b/process/processconnect"
	"github.com/agent-sandbox/abx/sandbox"
)

const (
	testKey   = "e2b_0123456789abcdef"
	testToken = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"
	testID    = "itest0000000000000001"
)

// A platform is a control plane and one sandbox in memory. Its fields are set
// before it is used.
type platform struct {
	ours    bool                    // sends our own fields
	version string                  // of the agent
	token   string                  // of the sandbox; empty: unsecured
	domain  string                  // in the answer to create
	program map[string]program      // by command line
	code    map[string]codeFunc     // by code
	files   map[string][]byte       // by path
	control map[string]http.Handler // by "METHOD /path", before the built-in ones
	agent   map[string]http.Handler // the same for the agent and the interpreter
	watch   []*filesystem.FilesystemEvent

	mux      *http.ServeMux // the RPCs of the agent
	mu       sync.Mutex
	requests []recorded
	input    []string
	signals  []process.Signal
	size     string // of the terminal
}

// A recorded request, its body read by nobody.
type recorded struct {
	Method, Host, Path, Query string
	Port                      int // 0: control plane
	Header                    http.Header
	Length                    int64
}

type (
	program  func(ctx context.Context, r *connect.Request[process.StartRequest], send func(*process.ProcessEvent) error) error
	codeFunc func(w io.Writer, r *http.Request, in e2b.Execute)
)

func newPlatform() *platform {
	p := &platform{
		mux: http.NewServeMux(), ours: true, version: e2b.EnvdVersion, token: testToken, domain: "sbx.example.test",
		program: map[string]program{}, code: map[string]codeFunc{}, files: map[string][]byte{},
		control: map[string]http.Handler{}, agent: map[string]http.Handler{},
	}
	p.mux.Handle(processconnect.NewProcessHandler(processes{p: p}))
	p.mux.Handle(filesystemconnect.NewFilesystemHandler(folders{p: p}))
	return p
}

// client returns a client whose requests are answered by p without a network.
func (p *platform) client(t testing.TB, change ...func(*sandbox.Config)) *sandbox.Client {
	t.Helper()
	c, err := p.dial(change...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (p *platform) dial(change ...func(*sandbox.Config)) (*sandbox.Client, error) {
	cfg := sandbox.Config{BaseURL: "https://api.example.test", APIKey: testKey, Transport: memory{p}}
	for _, f := range change {
		f(&cfg)
	}
	return sandbox.NewClient(cfg)
}

// sandbox makes a client and a sandbox.
func (p *platform) sandbox(t testing.TB, change ...func(*sandbox.Config)) *sandbox.Sandbox {
	t.Helper()
	sb, err := p.client(t, change...).Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// seen returns the requests so far.
func (p *platform) seen() []recorded {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests)
}

// last returns the newest request for path.
func (p *platform) last(t testing.TB, path string) recorded {
	t.Helper()
	for _, r := range slices.Backward(p.seen()) {
		if r.Path == path {
			return r
		}
	}
	t.Fatalf("no request for %s", path)
	return recorded{}
}

func (p *platform) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a, data, err := e2b.ParseRequest(r)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	p.mu.Lock()
	p.requests = append(p.requests, recorded{r.Method, r.Host, r.URL.Path, r.URL.RawQuery, a.Port, r.Header.Clone(), r.ContentLength})
	p.mu.Unlock()
	special := p.control
	if data {
		special = p.agent
	}
	if h := special[r.Method+" "+r.URL.Path]; h != nil {
		h.ServeHTTP(w, r)
		return
	}
	switch {
	case !data:
		p.serveControl(w, r)
	case a.SandboxID != testID:
		fail502(w, a, e2b.MessageSandboxNotFound)
	case a.Port == e2b.PortInterpreter:
		p.serveInterpreter(w, r)
	default:
		p.serveAgent(w, r)
	}
}

func (p *platform) serveControl(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(e2b.HeaderAPIKey) != testKey {
		fail(w, http.StatusUnauthorized, "Invalid API key")
		return
	}
	sb := e2b.Sandbox{TemplateID: "tpl", SandboxID: testID, EnvdVersion: p.version, EnvdAccessToken: p.token, Domain: &p.domain}
	if p.ours {
		sb.Abx = &e2b.SandboxAbx{Isolation: "namespace", Network: "open", Notes: []string{"no cgroup"}, Limits: &e2b.Limits{MemoryBytes: 2 << 30}}
	}
	switch r.Method + " " + strings.Replace(r.URL.Path, testID, "ID", 1) {
	case "POST /sandboxes":
		reply(w, http.StatusCreated, sb)
	case "POST /sandboxes/ID/connect":
		reply(w, http.StatusOK, sb)
	case "GET /sandboxes/ID":
		reply(w, http.StatusOK, e2b.SandboxDetail{ListedSandbox: e2b.ListedSandbox{SandboxID: testID, TemplateID: "tpl", State: "running", CPUCount: 2}, Abx: sb.Abx})
	case "GET /v2/sandboxes":
		reply(w, http.StatusOK, []e2b.ListedSandbox{{SandboxID: testID, State: "running"}})
	case "DELETE /sandboxes/ID", "POST /sandboxes/ID/timeout", "POST /sandboxes/ID/pause":
		w.WriteHeader(http.StatusNoContent)
	default:
		fail(w, http.StatusNotFound, "sandbox not found")
	}
}

func (p *platform) serveAgent(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if p.token != "" && r.Header.Get(e2b.HeaderAccessToken) != p.token {
		fail(w, http.StatusUnauthorized, "bad token")
		return
	}
	switch {
	case r.URL.Path == "/files" && r.Method == http.MethodGet:
		data, ok := p.files[r.URL.Query().Get("path")]
		if !ok {
			fail(w, http.StatusNotFound, "path '"+r.URL.Query().Get("path")+"' does not exist")
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	case r.URL.Path == "/files":
		data, err := uploaded(r)
		if err != nil {
			fail(w, http.StatusBadRequest, err.Error())
			return
		}
		p.mu.Lock()
		p.files[r.URL.Query().Get("path")] = data
		p.mu.Unlock()
		reply(w, http.StatusOK, []e2b.FileInfo{{Path: r.URL.Query().Get("path"), Type: "file"}})
	default:
		p.mux.ServeHTTP(w, r)
	}
}

func uploaded(r *http.Request) ([]byte, error) {
	if r.Header.Get("Content-Type") == "application/octet-stream" {
		return io.ReadAll(r.Body)
	}
	form, err := r.MultipartReader()
	if err != nil {
		return nil, err
	}
	part, err := form.NextPart()
	if err != nil {
		return nil, err
	}
	if part.FormName() != "file" {
		return nil, fmt.Errorf("part %q", part.FormName())
	}
	return io.ReadAll(part)
}

func (p *platform) serveInterpreter(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/execute":
		var in e2b.Execute
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f, ok := p.code[in.Code]
		if !ok {
			http.Error(w, "Context "+in.ContextID+" not found", http.StatusNotFound)
			return
		}
		w.WriteHeader(http.StatusOK)
		f(w, r, in)
	case r.Method == http.MethodPost && r.URL.Path == "/contexts":
		var in e2b.NewContext
		_ = json.NewDecoder(r.Body).Decode(&in)
		reply(w, http.StatusOK, e2b.Context{ID: "c1", Language: in.Language, CWD: in.CWD})
	case r.URL.Path == "/contexts":
		reply(w, http.StatusOK, []e2b.Context{{ID: "py", Language: "python", CWD: "/home/user"}, {ID: "js", Language: "javascript"}})
	case r.URL.Path == "/contexts/c1" || r.URL.Path == "/contexts/c1/restart":
		reply(w, http.StatusOK, nil)
	default:
		http.Error(w, "Context not found", http.StatusNotFound)
	}
}

// processes is the process service. A command line without a program ends with 127.
type processes struct {
	processconnect.UnimplementedProcessHandler
	p *platform
}

func (s processes) Start(ctx context.Context, r *connect.Request[process.StartRequest], stream *connect.ServerStream[process.StartResponse]) error {
	send := func(e *process.ProcessEvent) error { return stream.Send(&process.StartResponse{Event: e}) }
	line := ""
	if args := r.Msg.GetProcess().GetArgs(); len(args) > 0 {
		line = args[len(args)-1]
	}
	run, ok := s.p.program[line]
	if !ok {
		run = exits(127, "", "not found: "+line)
	}
	return run(ctx, r, send)
}

func (s processes) Connect(_ context.Context, r *connect.Request[process.ConnectRequest], stream *connect.ServerStream[process.ConnectResponse]) error {
	if r.Msg.GetProcess().GetPid() != 7 {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("process with pid %d not found", r.Msg.GetProcess().GetPid()))
	}
	for _, e := range []*process.ProcessEvent{started(7), stdout("seen"), ended(0)} {
		if err := stream.Send(&process.ConnectResponse{Event: e}); err != nil {
			return err
		}
	}
	return nil
}

func (s processes) List(context.Context, *connect.Request[process.ListRequest]) (*connect.Response[process.ListResponse], error) {
	tag, dir := "web", "/app"
	return connect.NewResponse(&process.ListResponse{Processes: []*process.ProcessInfo{
		{Pid: 7, Tag: &tag, Config: &process.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-l"}, Cwd: &dir}},
	}}), nil
}

func (s processes) SendInput(_ context.Context, r *connect.Request[process.SendInputRequest]) (*connect.Response[process.SendInputResponse], error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if pty := r.Msg.GetInput().GetPty(); pty != nil {
		s.p.input = append(s.p.input, "pty:"+string(pty))
	} else {
		s.p.input = append(s.p.input, string(r.Msg.GetInput().GetStdin()))
	}
	return connect.NewResponse(&process.SendInputResponse{}), nil
}

func (s processes) CloseStdin(context.Context, *connect.Request[process.CloseStdinRequest]) (*connect.Response[process.CloseStdinResponse], error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.p.input = append(s.p.input, "EOF")
	return connect.NewResponse(&process.CloseStdinResponse{}), nil
}

func (s processes) SendSignal(_ context.Context, r *connect.Request[process.SendSignalRequest]) (*connect.Response[process.SendSignalResponse], error) {
	if r.Msg.GetProcess().GetPid() != 7 {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process not found"))
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.p.signals = append(s.p.signals, r.Msg.GetSignal())
	return connect.NewResponse(&process.SendSignalResponse{}), nil
}

func (s processes) Update(_ context.Context, r *connect.Request[process.UpdateRequest]) (*connect.Response[process.UpdateResponse], error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.p.size = fmt.Sprintf("%dx%d", r.Msg.GetPty().GetSize().GetCols(), r.Msg.GetPty().GetSize().GetRows())
	return connect.NewResponse(&process.UpdateResponse{}), nil
}

// folders is the filesystem service over platform.files, which it takes for flat.
type folders struct {
	filesystemconnect.UnimplementedFilesystemHandler
	p *platform
}

func (s folders) entry(path string) (*filesystem.EntryInfo, error) {
	if data, ok := s.p.files[path]; ok {
		return &filesystem.EntryInfo{Name: path[strings.LastIndex(path, "/")+1:], Path: path, Type: filesystem.FileType_FILE_TYPE_FILE, Size: int64(len(data)), Mode: 0o644, Owner: "user"}, nil
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("path '%s' does not exist", path))
}

func (s folders) Stat(_ context.Context, r *connect.Request[filesystem.StatRequest]) (*connect.Response[filesystem.StatResponse], error) {
	e, err := s.entry(r.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&filesystem.StatResponse{Entry: e}), nil
}

func (s folders) ListDir(_ context.Context, r *connect.Request[filesystem.ListDirRequest]) (*connect.Response[filesystem.ListDirResponse], error) {
	out := &filesystem.ListDirResponse{}
	for _, path := range slices.Sorted(maps.Keys(s.p.files)) {
		e, _ := s.entry(path)
		out.Entries = append(out.Entries, e)
	}
	if n := int(r.Msg.GetAbxLimit()); s.p.ours && n > 0 && n < len(out.Entries) {
		out.AbxTotal = uint64(len(out.Entries))
		out.Entries = out.Entries[:n]
	}
	return connect.NewResponse(out), nil
}

func (s folders) MakeDir(_ context.Context, r *connect.Request[filesystem.MakeDirRequest]) (*connect.Response[filesystem.MakeDirResponse], error) {
	if r.Msg.GetPath() == "/exists" {
		return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("directory already exists"))
	}
	return connect.NewResponse(&filesystem.MakeDirResponse{}), nil
}

func (s folders) Move(_ context.Context, r *connect.Request[filesystem.MoveRequest]) (*connect.Response[filesystem.MoveResponse], error) {
	if _, err := s.entry(r.Msg.GetSource()); err != nil {
		return nil, err
	}
	s.p.files[r.Msg.GetDestination()] = s.p.files[r.Msg.GetSource()]
	delete(s.p.files, r.Msg.GetSource())
	return connect.NewResponse(&filesystem.MoveResponse{}), nil
}

func (s folders) Remove(_ context.Context, r *connect.Request[filesystem.RemoveRequest]) (*connect.Response[filesystem.RemoveResponse], error) {
	delete(s.p.files, r.Msg.GetPath())
	return connect.NewResponse(&filesystem.RemoveResponse{}), nil
}

func (s folders) WatchDir(ctx context.Context, r *connect.Request[filesystem.WatchDirRequest], stream *connect.ServerStream[filesystem.WatchDirResponse]) error {
	if r.Msg.GetPath() == "/missing" {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("path /missing does not exist"))
	}
	_ = stream.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Start{Start: &filesystem.WatchDirResponse_StartEvent{}}})
	_ = stream.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Keepalive{Keepalive: &filesystem.WatchDirResponse_KeepAlive{}}})
	for _, e := range s.p.watch {
		_ = stream.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Filesystem{Filesystem: e}})
	}
	<-ctx.Done()
	return ctx.Err()
}

// Events of processes.

func started(pid uint32) *process.ProcessEvent {
	return &process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: &process.ProcessEvent_StartEvent{Pid: pid}}}
}

func stdout(s string) *process.ProcessEvent {
	return &process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stdout{Stdout: []byte(s)}}}}
}

func stderr(s string) *process.ProcessEvent {
	return &process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stderr{Stderr: []byte(s)}}}}
}

func keepalive(line string, bytes uint64) *process.ProcessEvent {
	return &process.ProcessEvent{Event: &process.ProcessEvent_Keepalive{Keepalive: &process.ProcessEvent_KeepAlive{AbxLine: line, AbxStdoutBytes: bytes}}}
}

// ended is an end as a server gives it that is not ours.
func ended(code int32) *process.ProcessEvent {
	return end(&process.ProcessEvent_EndEvent{ExitCode: code, Exited: true, Status: fmt.Sprintf("exit status %d", code)})
}

func end(e *process.ProcessEvent_EndEvent) *process.ProcessEvent {
	return &process.ProcessEvent{Event: &process.ProcessEvent_End{End: e}}
}

// says sends events as they are.
func says(events ...*process.ProcessEvent) program {
	return func(_ context.Context, _ *connect.Request[process.StartRequest], send func(*process.ProcessEvent) error) error {
		for _, e := range events {
			if err := send(e); err != nil {
				return err
			}
		}
		return nil
	}
}

func exits(code int32, out, err string) program {
	return says(started(7), stdout(out), stderr(err), ended(code))
}

// Answers.

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func fail(w http.ResponseWriter, status int, message string) {
	reply(w, status, e2b.Error{Code: status, Message: message})
}

func fail502(w http.ResponseWriter, a e2b.Address, message string) {
	reply(w, http.StatusBadGateway, e2b.PortClosedError{SandboxID: a.SandboxID, Message: message, Port: a.Port, Code: http.StatusBadGateway})
}

func failing(status int, message string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fail(w, status, message) })
}

// memory is a transport that calls a handler, whatever the host name.
type memory struct{ handler http.Handler }

func (m memory) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	r := req.Clone(ctx)
	if r.Body == nil {
		r.Body = http.NoBody
	}
	pr, pw := io.Pipe()
	w := &memoryWriter{header: http.Header{}, body: pw, ready: make(chan struct{})}
	context.AfterFunc(ctx, func() { _ = pw.CloseWithError(context.Cause(req.Context())) })
	go func() {
		defer func() {
			err := io.EOF
			if recover() != nil { // a handler breaks off by http.ErrAbortHandler
				err = io.ErrUnexpectedEOF
			}
			w.WriteHeader(http.StatusOK)
			_ = pw.CloseWithError(err)
			_ = r.Body.Close()
		}()
		m.handler.ServeHTTP(w, r)
	}()
	select {
	case <-w.ready:
	case <-ctx.Done():
		cancel()
		return nil, context.Cause(req.Context())
	}
	length, err := strconv.ParseInt(w.sent.Get("Content-Length"), 10, 64)
	if err != nil {
		length = -1
	}
	return &http.Response{
		StatusCode: w.status, Status: http.StatusText(w.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: memoryBody{pr, cancel}, ContentLength: length, Request: req,
	}, nil
}

type memoryBody struct {
	*io.PipeReader
	cancel func()
}

func (b memoryBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

type memoryWriter struct {
	header, sent http.Header
	body         io.Writer
	status       int
	once         sync.Once
	ready        chan struct{}
}

func (w *memoryWriter) Header() http.Header { return w.header }

func (w *memoryWriter) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.ready)
	})
}

func (w *memoryWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

func (w *memoryWriter) Flush() { w.WriteHeader(http.StatusOK) }
