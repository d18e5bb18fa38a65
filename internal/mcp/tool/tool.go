// Package tool holds the seven tools of the MCP server, one file each: what a
// tool takes (its schema), the check of its arguments, the call, and its
// result as data and as text for a model. It knows sandboxes by the SDK only
// and nothing of JSON-RPC or transports.
//
// To add a tool: write NAME.go with a definition and a function of the type
// run, name it in definitions, and run the tests with -update for its schema.
//
// Its one invariant: a call always gives a Result. What fails, with what the
// client sent or with the sandbox, is a Result with IsError that says what to
// do next.
package tool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/abx/internal/mcp/session"
	"github.com/agent-sandbox/abx/sandbox"
)

// Limits of what reaches a client. Zero means the default.
type Limits struct {
	// Head and Tail are the bytes kept of the begin and the end of each output
	// stream. Default 12 KiB and 20 KiB.
	Head, Tail int
	// Image is the largest picture that is sent, in bytes; Images all pictures
	// of one result together. Default 3 MiB and 6 MiB.
	Image, Images int
	// Read is the most bytes of content that one read_file returns, Write the
	// most that one write_file takes after decoding. Default 8 MiB each.
	Read, Write int
	// ReadText is up to which size the text for the model repeats the content
	// of a file that structuredContent holds. Default 1 MiB.
	ReadText int
	// Entries is the most entries that list_files returns. Default 1000.
	Entries int
	// Progress is the time between two progress notes. Default 2 s.
	Progress time.Duration
}

func (l Limits) withDefaults() Limits {
	for v, def := range map[*int]int{
		&l.Head: 12 << 10, &l.Tail: 20 << 10, &l.Image: 3 << 20, &l.Images: 6 << 20,
		&l.Read: 8 << 20, &l.Write: 8 << 20, &l.ReadText: 1 << 20, &l.Entries: 1000,
	} {
		if *v <= 0 {
			*v = def
		}
	}
	if l.Progress <= 0 {
		l.Progress = 2 * time.Second
	}
	return l
}

// Options of a Set. Client is required.
type Options struct {
	Client   *sandbox.Client
	Template string // of sandboxes for which none is named; default "base"
	// Isolation is the least isolation of every sandbox: "" or "auto" is what
	// the platform gives.
	Isolation string
	Place     Place
	// Lifetime of sandboxes for which no timeout is named; default 300 s.
	Lifetime time.Duration
	// Notes are added to the result of every create_sandbox.
	Notes  []string
	Limits Limits
	Logger *slog.Logger // nil discards
}

// A Place is what holds for every sandbox of a server, as far as that is known
// before one is made: clients are told of it in advance. The zero value knows
// nothing.
type Place struct {
	Network   string   // "none": no sandbox has one
	Languages []string // of run_code; none: those that its schema names
	// Local: sandboxes run on this machine. They need no key, and none of their
	// ports is opened to it.
	Local bool
}

// noNetwork is the Network of a sandbox that reaches nothing but itself.
const noNetwork = "none"

// Warning says what is missing, as a sentence for a model; "" when nothing is
// known to be.
func (p Place) Warning() string {
	if p.Network != noNetwork {
		return ""
	}
	return "Sandboxes have no network: nothing can be downloaded or installed from outside; use the programs and packages that are there (`pip list`), and bring files in by write_file."
}

// warn adds the warning to a tool's description.
func (p Place) warn(description string) string {
	return strings.TrimSuffix(description+" "+p.Warning(), " ")
}

// languages says which of run_code's languages are there, where not all are.
func (p Place) languages() string {
	if len(p.Languages) == 0 {
		return ""
	}
	return fmt.Sprintf(" Of its languages %s are there, the others are refused: run them by run_command, as `node FILE`, where their programs are installed.", strings.Join(p.Languages, " and "))
}

// A Tool is what a client is told about a tool.
type Tool struct {
	Name, Title, Description string
	Input, Output            []byte // JSON schemas

	ReadOnly, Destructive, Idempotent, OpenWorld bool
}

// A Request is one call of a tool.
type Request struct {
	Arguments []byte // a JSON object; nil or empty: none
	// Fresh: the client's protocol has no sessions. A call that names no
	// sandbox gets a new one, whose id the result carries.
	Fresh bool
	// TextOnly: the client's protocol has no structured results, so that the
	// text must hold everything.
	TextOnly bool
	// Progress, if set, is told now and then how a long call goes.
	Progress func(Progress)

	report *report // of the call; also what an error is told with
}

// Progress says how far a call is.
type Progress struct {
	Elapsed time.Duration
	Message string // elapsed time and newest output, one line
}

// A Set is the tools of one client, with the sandboxes that it made. It is
// safe for concurrent use. End it.
type Set struct {
	o       Options
	tools   []definition
	session *session.Session[*handle]
}

// run makes a call; a is checked against the tool's parameters.
type run func(s *Set, ctx context.Context, a arguments, r Request) (*Result, error)

// A definition is a tool with all that belongs to it.
type definition struct {
	Tool
	params []param
	run    run
}

// definitions are the tools in the order in which a client sees them.
func definitions(o Options) []definition {
	return []definition{
		createSandbox(o), runCode(o), runCommand(o), readFile(o), writeFile(o), listFiles(o), killSandbox(o),
	}
}

// Names are the names of all tools, in order.
func Names() []string {
	var names []string
	for _, d := range definitions(Options{}) {
		names = append(names, d.Name)
	}
	return names
}

// New makes the tools of one client. Nothing is created before the first call.
func New(o Options) *Set {
	o.Limits = o.Limits.withDefaults()
	if o.Template == "" {
		o.Template = sandbox.DefaultTemplate
	}
	if o.Lifetime <= 0 {
		o.Lifetime = defaultLifetime * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Set{o: o, tools: definitions(o)}
	s.session = session.New(s.create, session.Options{
		Template: o.Template,
		Timeout:  o.Lifetime,
		Gone:     func(err error) bool { return errors.Is(err, sandbox.ErrExpired) },
		Logger:   o.Logger,
	})
	return s
}

// Tools lists the tools.
func (s *Set) Tools() []Tool {
	var all []Tool
	for _, d := range s.tools {
		d.Input = inputSchema(d.params)
		all = append(all, d.Tool)
	}
	return all
}

// Call runs the tool of that name, which must be one of Tools. ctx ends the
// code or command that runs.
func (s *Set) Call(ctx context.Context, name string, r Request) (res *Result) {
	r.report = &report{}
	defer func() {
		if v := recover(); v != nil { // a fault of ours must not end the client's session
			res = s.failed(name, fmt.Errorf("panic: %v\n%s", v, debug.Stack()), nil, r.report)
		}
	}()
	for _, d := range s.tools {
		if d.Name != name {
			continue
		}
		args, err := parse(d.params, r.Arguments)
		if err != nil {
			return failure(err)
		}
		r.report.ignored(name, args, d.params)
		res, err := s.run(ctx, d, args, r)
		if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrLeft) {
			err = problemf(err, "Keep the server's input open until the answer is there.", "%s was cancelled: %v", name, cause)
		}
		if err != nil {
			return s.failed(name, err, res, r.report)
		}
		return res
	}
	return failure(errors.New("unknown tool " + quote(name)))
}

// ErrLeft is the cause of the context of a call that ends since its client went.
var ErrLeft = errors.New("the client closed the server's input, and its sandboxes end with it")

// Waits before a call is made again whose default sandbox proved dead before
// anything had begun: the platform takes a moment to know it.
var again = []time.Duration{20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond, time.Second}

// run makes the call, in a new default sandbox if the one before has died.
func (s *Set) run(ctx context.Context, d definition, a arguments, r Request) (*Result, error) {
	for i := 0; ; i++ {
		res, err := d.run(s, ctx, a, r)
		if res != nil || i == len(again) || a.has("sandbox_id") || r.Fresh || !errors.Is(err, sandbox.ErrExpired) {
			return res, err
		}
		wait := time.NewTimer(again[i])
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return res, err
		}
	}
}

// End kills every sandbox of the set; ctx bounds that. Safe to call twice.
func (s *Set) End(ctx context.Context) error { return s.session.End(ctx) }

// A handle is a sandbox with what the tools know about it.
type handle struct {
	*sandbox.Sandbox

	mu     sync.Mutex
	looked bool            // whether /app is there
	work   bool            // it is
	ready  map[string]bool // languages whose code starts in the working folder
}

func (s *Set) create(ctx context.Context, spec session.Spec) (*handle, error) {
	opts := []sandbox.CreateOption{sandbox.Template(spec.Template), sandbox.Timeout(spec.Timeout)}
	if len(spec.Envs) > 0 {
		opts = append(opts, sandbox.Env(spec.Envs))
	}
	if s.o.Isolation != "" && s.o.Isolation != "auto" {
		opts = append(opts, sandbox.Isolation(s.o.Isolation))
	}
	sb, err := s.o.Client.Create(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return &handle{Sandbox: sb, ready: map[string]bool{}}, nil
}

// The working folder of a call that names none, and the home folder, which is
// a sandbox's own in E2B's templates.
const (
	workDir = "/app"
	homeDir = "/home/user"
)

// workdir is /app if the sandbox has it, else "" for the template's own folder.
func (h *handle) workdir(ctx context.Context) (string, error) {
	h.mu.Lock()
	looked, work := h.looked, h.work
	h.mu.Unlock()
	if !looked {
		var err error
		if work, err = h.Files.Exists(ctx, workDir); err != nil {
			return "", err
		}
		h.mu.Lock()
		h.looked, h.work = true, work
		h.mu.Unlock()
	}
	if work {
		return workDir, nil
	}
	return "", nil
}

// use finds or makes the sandbox of a call, with what to tell about it.
func (s *Set) use(ctx context.Context, a arguments, r Request, timeout time.Duration) (*session.Lease[*handle], *report, error) {
	lease, err := s.session.Use(ctx, session.Ask{ID: a.text("sandbox_id"), Call: timeout, Fresh: r.Fresh})
	switch {
	case err != nil && timeout > s.o.Lifetime:
		return nil, nil, longTimeout(err, a.whole("timeout"))
	case err != nil && errors.Is(err, sandbox.ErrNotFound): // the default's template
		return nil, nil, s.noTemplate(err, "")
	case err != nil:
		return nil, nil, err
	}
	rep := r.report
	switch {
	case lease.Replaced:
		rep.note("The default sandbox had ended (killed from outside, or its lifetime was over). This is a new, empty one: files, processes and variables from before are gone.")
		rep.sandbox = lease.Sandbox.ID()
	case lease.Created && r.Fresh:
		rep.note("A new sandbox was made for this call: give its sandbox_id to use it again. It ends with its lifetime.")
		rep.sandbox = lease.Sandbox.ID()
	case lease.Created:
		rep.sandbox = lease.Sandbox.ID()
	}
	return lease, rep, nil
}
