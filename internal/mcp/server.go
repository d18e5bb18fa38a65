// Package mcp is the server of the Model Context Protocol: it takes JSON-RPC
// from a client, hands tool calls to package tool, and answers. The protocol's
// methods are the library's (modelcontextprotocol/go-sdk); the transport is
// ours. It knows no sandbox but by the tools.
//
// Its one invariant: what is written to a client is one JSON-RPC message a
// line and nothing else, and no line that a client sends ends the server.
package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agent-sandbox/abx/internal/mcp/tool"
	"github.com/agent-sandbox/abx/sandbox"
)

// Name is the server's name in the protocol.
const Name = "agent-sandbox"

// Protocol versions.
const (
	StdioVersion      = "2024-11-05" // answered on STDIO when the client asks for none that we have
	structuredVersion = "2025-06-18" // the first with structured results
	statelessVersion  = "2026-07-28" // the first without sessions
)

// Defaults of Options.
const (
	DefaultMaxMessage = 8 << 20
	DefaultGrace      = 800 * time.Millisecond
	DefaultFinish     = 200 * time.Millisecond
	DefaultEndTime    = 400 * time.Millisecond
)

// Options of a server. Client is required; the rest works when zero.
type Options struct {
	Client   *sandbox.Client
	Template string // default "base"
	Version  string // of the program; default "dev"

	// MaxMessage is the most bytes of one message of a client.
	MaxMessage int
	// Grace is how long running calls may go on after the client has closed its
	// end, Finish how long they then have to stop and answer, EndTime how long
	// the session's sandboxes have to be killed.
	Grace, Finish, EndTime time.Duration

	Tools  tool.Options // Client and Template are set from above
	Logger *slog.Logger // nil discards
}

// A Server serves clients, each with a session of its own. It is safe for
// concurrent use and holds nothing to close.
type Server struct{ o Options }

// New checks the options and returns a server.
func New(o Options) (*Server, error) {
	if o.Client == nil {
		return nil, errors.New("MCP server: no sandbox client given")
	}
	if o.Version == "" {
		o.Version = "dev"
	}
	if o.MaxMessage <= 0 {
		o.MaxMessage = DefaultMaxMessage
	}
	for v, def := range map[*time.Duration]time.Duration{&o.Grace: DefaultGrace, &o.Finish: DefaultFinish, &o.EndTime: DefaultEndTime} {
		if *v <= 0 {
			*v = def
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Template == "" {
		o.Template = sandbox.DefaultTemplate
	}
	o.Tools.Client, o.Tools.Template, o.Tools.Logger = o.Client, o.Template, o.Logger
	return &Server{o: o}, nil
}

// instructions tell a model how the tools go together.
const instructions = "Runs code and commands in isolated Linux sandboxes. Most calls need no sandbox_id: the first one makes a default sandbox, " +
	"later ones use it, and its files and running processes stay until it is killed or the session ends. run_code keeps variables and imports between calls. " +
	"Give absolute paths; /app is the working folder."

// ServeStdio serves one client that writes messages to in and reads them from
// out, one a line, until in ends, out breaks, or ctx ends. It returns when the
// client's sandboxes are gone, at the latest Grace + 2 Finish + EndTime after
// that: sandboxes that take longer to end are in the log. The error is nil when
// the client left.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	set := tool.New(s.o.Tools)
	conn := connect(ctx, in, out, s.o)
	session, err := s.library(set).Connect(ctx, conn, nil)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- session.Wait() }()
	select {
	case err = <-done:
	case <-conn.drained:
		select {
		case err = <-done:
		case <-time.After(s.o.Finish):
			s.o.Logger.Warn("a tool call did not stop when it was cancelled")
		}
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.o.EndTime)
	defer cancel()
	ended := set.End(end)
	if errors.Is(ended, context.DeadlineExceeded) { // whoever runs them ends them, and their lifetime
		s.o.Logger.Warn("sandboxes were still ending when the server had to go", "error", ended)
		ended = nil
	}
	return errors.Join(err, ended)
}

// library makes the library's server for one session.
func (s *Server) library(set *tool.Set) *sdk.Server {
	srv := sdk.NewServer(&sdk.Implementation{Name: Name, Title: "Agent Sandbox", Version: s.o.Version}, &sdk.ServerOptions{
		Instructions: strings.TrimSuffix(instructions+" "+s.o.Tools.Place.Warning(), " "),
		Logger:       slog.New(slog.DiscardHandler), // it logs bad input as errors
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}},
	})
	srv.AddReceivingMiddleware(fallBackTo(StdioVersion), inOrder)
	for _, t := range set.Tools() {
		srv.AddTool(definition(t), handler(set, t.Name))
	}
	return srv
}

// Versions are the protocol versions with sessions that a client may ask for.
func Versions() []string {
	return slices.DeleteFunc(sdk.SupportedProtocolVersions(), func(v string) bool { return v >= statelessVersion })
}

// fallBackTo answers initialize with version when the client asks for none
// that has sessions and that we have.
func fallBackTo(version string) sdk.Middleware {
	known := Versions()
	return func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			if p, ok := req.GetParams().(*sdk.InitializeParams); ok && p != nil && !slices.Contains(known, p.ProtocolVersion) {
				p.ProtocolVersion = version
			}
			return next(ctx, method, req)
		}
	}
}

// inOrder lists the tools in our order; the library sorts them by name.
func inOrder(next sdk.MethodHandler) sdk.MethodHandler {
	names := tool.Names()
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		res, err := next(ctx, method, req)
		if l, ok := res.(*sdk.ListToolsResult); ok && l != nil {
			slices.SortFunc(l.Tools, func(a, b *sdk.Tool) int { return slices.Index(names, a.Name) - slices.Index(names, b.Name) })
		}
		return res, err
	}
}

func definition(t tool.Tool) *sdk.Tool {
	return &sdk.Tool{
		Name: t.Name, Title: t.Title, Description: t.Description,
		InputSchema: json.RawMessage(t.Input), OutputSchema: json.RawMessage(t.Output),
		Annotations: &sdk.ToolAnnotations{
			ReadOnlyHint: t.ReadOnly, DestructiveHint: &t.Destructive, IdempotentHint: t.Idempotent, OpenWorldHint: &t.OpenWorld,
		},
	}
}

// handler lets the library call a tool. Over STDIO the arguments and the
// result go by the call, around the library; else through it.
func handler(set *tool.Set, name string) sdk.ToolHandler {
	return func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		version := req.ProtocolVersion()
		r := tool.Request{
			Arguments: req.Params.Arguments,
			Fresh:     version >= statelessVersion,
			TextOnly:  version < structuredVersion,
		}
		call := callOf(req.Extra)
		if call != nil {
			r.Arguments = call.arguments
			var cancel context.CancelCauseFunc
			ctx, cancel = context.WithCancelCause(ctx)
			defer cancel(nil)
			defer context.AfterFunc(call.ctx, func() { cancel(context.Cause(call.ctx)) })()
		}
		if token := req.Params.GetProgressToken(); token != nil {
			r.Progress = func(p tool.Progress) {
				_ = req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
					ProgressToken: token, Progress: p.Elapsed.Seconds(), Message: p.Message,
				})
			}
		}
		res := set.Call(ctx, name, r)
		if call != nil {
			call.result = res.AppendMembers(nil)
			return &sdk.CallToolResult{}, nil
		}
		return throughLibrary(res), nil
	}
}

// throughLibrary is a result for transports where nothing goes around.
func throughLibrary(r *tool.Result) *sdk.CallToolResult {
	res := &sdk.CallToolResult{IsError: r.IsError}
	for _, c := range r.Content {
		if c.MIMEType != "" {
			res.Content = append(res.Content, &sdk.ImageContent{Data: c.Data, MIMEType: c.MIMEType})
		} else {
			res.Content = append(res.Content, &sdk.TextContent{Text: c.Text})
		}
	}
	if len(r.Structured) > 0 {
		res.StructuredContent = json.RawMessage(r.Structured)
	}
	return res
}
