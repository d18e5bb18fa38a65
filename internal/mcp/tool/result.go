package tool

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agent-sandbox/abx/internal/mcp/session"
	"github.com/agent-sandbox/abx/internal/mcp/wire"
	"github.com/agent-sandbox/abx/sandbox"
)

// A Result is what a call gives: content for a model, and the same as data.
type Result struct {
	Content    []Content
	Structured []byte // a JSON object as the tool's Output says; nil with IsError
	IsError    bool
}

// Content is a text or, when MIMEType is set, a picture.
type Content struct {
	Text     string
	MIMEType string
	Data     []byte // the picture
}

// AppendMembers appends the members that a result of tools/call has by this
// one, `"content":[...]` and what belongs to it, without braces around.
func (r *Result) AppendMembers(dst []byte) []byte {
	dst = slices.Grow(dst, r.size())
	dst = append(dst, `"content":[`...)
	for i, c := range r.Content {
		if i > 0 {
			dst = append(dst, ',')
		}
		if c.MIMEType == "" {
			dst = append(dst, `{"type":"text","text":`...)
			dst = wire.AppendString(dst, c.Text)
			dst = append(dst, '}')
			continue
		}
		dst = append(dst, `{"type":"image","data":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, c.Data)
		dst = append(dst, `","mimeType":`...)
		dst = wire.AppendString(dst, c.MIMEType)
		dst = append(dst, '}')
	}
	dst = append(dst, ']')
	if r.Structured != nil {
		dst = append(dst, `,"structuredContent":`...)
		dst = append(dst, r.Structured...)
	}
	if r.IsError {
		dst = append(dst, `,"isError":true`...)
	}
	return dst
}

// size is about how long the result is as JSON.
func (r *Result) size() int {
	n := len(r.Structured) + 64
	for _, c := range r.Content {
		n += len(c.Text) + len(c.Text)/16 + base64.StdEncoding.EncodedLen(len(c.Data)) + 64
	}
	return n
}

// A report gathers the result of a call that used a sandbox.
type report struct {
	data    wire.Builder
	text    []string // paragraphs for the model
	media   []Content
	notes   []string
	sandbox string // to be named in the result
}

// note adds a sentence that the model should know, once.
func (p *report) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(p.notes, text) {
		p.notes = append(p.notes, text)
	}
}

// result closes the report.
func (p *report) result() *Result {
	if p.sandbox != "" {
		p.data.String("sandbox_id", p.sandbox)
		p.text = append(p.text, "sandbox_id: "+p.sandbox)
	}
	if len(p.notes) > 0 {
		p.data.Strings("notes", p.notes)
		for _, n := range p.notes {
			p.text = append(p.text, "Note: "+n)
		}
	}
	res := &Result{Structured: p.data.JSON()}
	if len(p.text) > 0 {
		res.Content = append(res.Content, Content{Text: strings.Join(p.text, "\n")})
	}
	res.Content = append(res.Content, p.media...)
	return res
}

// failure is the result of a call that failed, said in err's words.
func failure(err error) *Result {
	return &Result{Content: []Content{{Text: err.Error()}}, IsError: true}
}

// A problem is an error of a tool with what to do next.
type problem struct {
	err  error
	what string // instead of err's text, if set
	next string
}

func (p *problem) Error() string {
	what := p.what
	if what == "" && p.err != nil {
		what = p.err.Error()
	}
	if p.next == "" {
		return what
	}
	return strings.TrimSuffix(what, ".") + ". " + p.next
}

func (p *problem) Unwrap() error { return p.err }

func problemf(err error, next, format string, args ...any) error {
	return &problem{err: err, what: fmt.Sprintf(format, args...), next: next}
}

// failed turns the error of a tool into a result. partial, if not nil, is what
// came before the failure; else rep has what is to be told beside it. This is
// the one table from errors to words for a model.
func (s *Set) failed(tool string, err error, partial *Result, rep *report) *Result {
	res := failure(s.explain(tool, err))
	if partial == nil {
		rep.text = nil
		partial = rep.result()
	}
	res.Content = append(res.Content, partial.Content...)
	return res
}

const (
	tryAgain = "Try again; if it goes on, make a new sandbox by create_sandbox."
	startNew = "End the sandbox by kill_sandbox; the next call makes a new one."
)

// endProcesses says how to get below the limit of processes, where even a
// shell may not be started any more.
const endProcesses = "Code that runs already needs no new process: run_code `import os; os.kill(-1, 9)` ends all processes but Python itself; kill_sandbox ends the whole sandbox."

// steps says what to do next about the errors of the session and the SDK. The
// first that matches counts.
var steps = []struct {
	is   error
	next string
}{
	{session.ErrUnknown, "No such sandbox in this session: leave sandbox_id out to use the default sandbox, or make one by create_sandbox."},
	{session.ErrDead, "It was killed or its lifetime is over: leave sandbox_id out to use the default sandbox, or make a new one by create_sandbox."},
	{session.ErrNoDefault, "Give the sandbox_id of the sandbox to kill; sandboxes end with the session by themselves."},
	{session.ErrEnded, "The server is stopping: start it again."},
	{sandbox.ErrUnauthorized, "Check ABX_SANDBOX_API_KEY, or the line sandbox_api_key in ~/.abx/config."},
	{sandbox.ErrExpired, "The sandbox is gone, killed or at the end of its lifetime; call again without sandbox_id to get a new, empty one."},
	{sandbox.ErrLost, "How the call ended is unknown; the next call shows whether the sandbox still lives, and makes a new one if not."},
	{sandbox.ErrCapacity, "Kill a sandbox that is not needed by kill_sandbox, or try again later."},
	{sandbox.ErrUnsupported, "This sandbox cannot do that; another template may, see create_sandbox."},
	{sandbox.ErrInvalid, "Correct the call and try again."},
	{context.DeadlineExceeded, tryAgain},
}

// explain gives err its next step. An error that the sandbox's side did not
// cause is told by a number only, which the log has too.
func (s *Set) explain(tool string, err error) error {
	var arg *badArgument
	var known *problem
	if errors.As(err, &arg) || errors.As(err, &known) {
		return err
	}
	if errors.Is(err, context.Canceled) {
		return problemf(err, "", "%s was cancelled: what ran was stopped, the sandbox can be used", tool)
	}
	var own interface {
		error
		Next() string
	}
	if errors.As(err, &own) { // its words say all: where it was met is ours
		return problemf(err, own.Next(), "%s", own.Error())
	}
	if inside := s.inside(err); inside != nil {
		return inside
	}
	for _, s := range steps {
		if errors.Is(err, s.is) {
			return &problem{err: err, next: s.next}
		}
	}
	if errors.As(err, new(*sandbox.Error)) {
		return &problem{err: err, next: tryAgain}
	}
	number := rand.Text()[:8]
	s.o.Logger.Error("tool failed", "tool", tool, "number", number, "error", err)
	return problemf(err, tryAgain, "%s: internal error %s", tool, number)
}

// inside explains an error that a sandbox answered, where the table's words are
// about the platform; nil when they fit.
func (s *Set) inside(err error) error {
	var e *sandbox.Error
	if !errors.As(err, &e) || e.SandboxID == "" {
		return nil
	}
	switch {
	case lostUser(err):
		return problemf(err, startNew, "sandbox %s: %s: its /etc/passwd was overwritten, and without that user nothing can run in it or be written", e.SandboxID, e.Message)
	case errors.Is(err, sandbox.ErrUnauthorized) && s.o.Place.Local:
		return &problem{err: err, next: startNew}
	case errors.Is(err, sandbox.ErrCapacity) && strings.Contains(e.Message, "limit of processes"):
		return &problem{err: err, next: endProcesses}
	case errors.Is(err, sandbox.ErrCapacity):
		return &problem{err: err, next: "Try again when something in the sandbox has ended or was removed."}
	}
	return nil
}

// lostUser reports whether err says that the sandbox does not know its own user
// any more.
func lostUser(err error) bool {
	var e *sandbox.Error
	return errors.Is(err, sandbox.ErrUnauthorized) && errors.As(err, &e) && strings.HasPrefix(e.Message, "unknown user")
}

// longTimeout is err in words about the argument timeout, if it is a platform's
// that lets no sandbox live for so many seconds.
func longTimeout(err error, seconds int64) error {
	var e *sandbox.Error
	if errors.Is(err, sandbox.ErrInvalid) && errors.As(err, &e) && strings.Contains(strings.ToLower(e.Message), "timeout") {
		return bad("timeout", "%d is too large: %s", seconds, e.Message)
	}
	return err
}

// noTemplate is err, if it says that there is no such template, with what to do:
// name is the one that was asked for, "" for the server's own.
func (s *Set) noTemplate(err error, name string) error {
	var e *sandbox.Error
	if !errors.Is(err, sandbox.ErrNotFound) || !errors.As(err, &e) {
		return err
	}
	if name == "" {
		return problemf(err, "Give create_sandbox a template that is there; ABX_DEFAULT_TEMPLATE names the server's own.", "the server's template %s: %s", quote(s.o.Template), e.Message)
	}
	return problemf(err, "Choose one that is there, or leave template out.", "argument \"template\": %s", e.Message)
}
