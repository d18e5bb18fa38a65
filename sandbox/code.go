package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
)

const (
	maxLine      = 64 << 20 // one line of an execution
	maxResultNum = 10_000
	// alive is within which time a server of ours that is not lost sends a
	// line: it owes one every 5 s.
	alive = 15 * time.Second
)

type codeSettings struct {
	callSettings
	language    string
	contextID   string
	outputFiles bool
	firstDir    string
	onResult    func(CodeResult)
}

// InContext runs code in a context made by [Sandbox.CreateContext] instead of
// the default one of its language. It excludes [Language].
func InContext(id string) CodeOption {
	return codeFunc(func(s *codeSettings) { s.contextID = id })
}

// OutputFiles asks for the files that the code makes or changes. Only servers
// of ours tell.
func OutputFiles() CodeOption {
	return codeFunc(func(s *codeSettings) { s.outputFiles = true })
}

// FirstDir is the folder, absolute, in which a language's first code runs when
// it is there; later code goes on where code left. Only servers of ours heed it
// (see [Info.Isolation]).
func FirstDir(dir string) CodeOption {
	return codeFunc(func(s *codeSettings) { s.firstDir = dir })
}

// OnResult is called with each result as it comes, in turn with [OnStdout].
func OnResult(f func(CodeResult)) CodeOption {
	return codeFunc(func(s *codeSettings) { s.onResult = f })
}

// An Execution is how a piece of code ended. Code that raised an error is an
// execution like any other.
type Execution struct {
	Output
	Results        []CodeResult // what the code displayed, and its last value
	ResultsOmitted int          // results that were dropped: more than 10,000, or over 128 MiB
	Error          *CodeError   // what the code raised; nil: nothing
	Count          int          // of executions in the context; 0: not told
	ExitCode       int          // 0, or 1 when the code raised an error; other codes where it ended its process
	Reason         string       // Reason*, as in Result
	Detail         string       // for people: the limit that was met; may be empty
	StateLost      bool         // the context's variables are gone: its process was replaced
	CWD            string       // working folder after the code; empty: not told
	Background     int          // threads and processes of the code that still run

	OutputFiles      []OutputFile // see [OutputFiles]
	OutputFilesTotal int          // how many there are, also when the list was cut
}

// A CodeResult is one value in the forms in which it was displayed. Forms that
// it does not have are zero.
type CodeResult struct {
	IsMain     bool // the value of the last expression, not displayed by the code
	Text       string
	HTML       string
	Markdown   string
	SVG        string
	LaTeX      string
	JavaScript string
	PNG        []byte
	JPEG       []byte
	PDF        []byte
	JSON       json.RawMessage
	Data       json.RawMessage // a table, by columns
	Chart      json.RawMessage // a chart's data
	Extra      json.RawMessage // other forms, by MIME type
}

// A CodeError is an error that code raised.
type CodeError struct {
	Name      string // as ZeroDivisionError
	Value     string
	Traceback string // may hold terminal colours
}

// An OutputFile is a file that code made or changed.
type OutputFile struct {
	Name string
	Path string
	Size int64 // bytes
}

// RunCode runs code in a context of the sandbox's code interpreter, which keeps
// variables from one call to the next, and returns when the code has ended.
// Calls in one context wait for each other. An error in the code and a timeout
// are an Execution with a nil error; at its timeout the code is interrupted and
// the state stays unless StateLost is set.
//
// When ctx ends the code is interrupted. When the call fails after the answer
// has begun, the error comes with an Execution of what came until then. A
// template without a code interpreter is ErrUnsupported.
//
// Options: [Language], [InContext], [Timeout] (default 60 s), [Env], [Window],
// [MaxOutput], [OutputFiles], [FirstDir], [OnStdout], [OnStderr], [OnResult], [OnProgress].
func (s *Sandbox) RunCode(ctx context.Context, code string, opts ...CodeOption) (*Execution, error) {
	const op = "run code"
	set := &codeSettings{callSettings: callSettings{timeout: DefaultTimeout, maxOutput: DefaultMaxOutput}}
	for _, o := range opts {
		o.applyCode(set)
	}
	if err := set.check(op); err != nil {
		return nil, err
	}
	if set.language != "" && set.contextID != "" {
		return nil, invalid(op, "a language and a context were given: a context has its own language")
	}
	body, err := json.Marshal(e2b.Execute{Code: code, ContextID: set.contextID, Language: set.language, EnvVars: set.env})
	if err != nil {
		return nil, &Error{Op: op, Message: "encode request", cause: err}
	}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	wait := time.Duration(math.MaxInt64)
	if set.timeout > 0 {
		wait = set.timeout
		if s.ours {
			wait += grace
		}
	}
	dog := time.AfterFunc(wait, func() { cancel(errSilent) })
	defer dog.Stop()
	r := s.request(inner, http.MethodPost, e2b.PortInterpreter, "/execute", "", bytes.NewReader(body), int64(len(body)))
	set.headers(r.Header)
	ex := newExecution(set)
	resp, err := s.send(r, e2b.PortInterpreter)
	if err != nil {
		return s.broken(ctx, inner, op, ex, false, err)
	}
	defer drain(resp.Body)
	err = ex.read(resp.Body)
	if err == nil && !ex.ended && (s.ours || inner.Err() != nil) {
		err = &Error{Message: "the answer ended before the code did", kinds: [2]error{ErrLost}}
	}
	if err != nil {
		return s.broken(ctx, inner, op, ex, true, err)
	}
	dog.Reset(restTime)
	return ex.finish(), nil
}

func (s *codeSettings) headers(h http.Header) {
	h["Content-Type"] = jsonType
	s.window(h)
	if s.onProgress != nil {
		h[e2b.HeaderKeepalive] = []string{keepaliveProgress}
	}
	if s.timeout > 0 {
		h[e2b.HeaderTimeoutMS] = []string{millis(s.timeout)}
	}
	if s.outputFiles {
		h[e2b.HeaderOutputFiles] = []string{"1"}
	}
	if s.firstDir != "" {
		h[e2b.HeaderDir] = []string{s.firstDir}
	}
}

// broken is the outcome of a call whose answer did not come to its end.
func (s *Sandbox) broken(ctx, inner context.Context, op string, ex *execution, begun bool, err error) (*Execution, error) {
	if !begun {
		ex.heard = ex.note.began
	}
	silent := errors.Is(context.Cause(inner), errSilent) && ctx.Err() == nil
	if silent && (!s.ours || begun && time.Since(ex.heard) < alive) {
		out := ex.finish()
		out.ExitCode, out.Reason, out.Detail = 128+2, ReasonTimeout, timeoutDetail(&ex.set.callSettings)
		return out, nil
	}
	e := s.client.explain(ctx, op, s.info.ID, err)
	if silent {
		e = &Error{Op: op, SandboxID: s.info.ID, kinds: [2]error{ErrLost},
			Message: fmt.Sprintf("no answer for %s after the timeout of %s", grace, ex.set.timeout)}
	}
	if begun && ctx.Err() == nil && e.kinds[0] == nil {
		e.kinds[0] = ErrLost
	}
	_ = s.redact(e)
	if !begun {
		return nil, e
	}
	out := ex.finish()
	out.ExitCode, out.Reason = -1, ""
	if errors.Is(e.kinds[0], ErrLost) {
		out.Reason = ReasonSandboxLost
	}
	return out, e
}

// An execution gathers the lines of an answer.
type execution struct {
	Execution
	set            *codeSettings
	stdout, stderr capture
	note           progressNote
	heard          time.Time // when the last line came
	ended          bool
	last           e2b.LineAbx
	size           int // of the results
}

func newExecution(set *codeSettings) *execution {
	x := &execution{set: set, stdout: newCapture(&set.callSettings), stderr: newCapture(&set.callSettings)}
	x.note.began = time.Now()
	return x
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 32<<10) }}

// read takes lines until the last one, or to the end of the body: not every
// platform sends a last line (a body that was cut off is an unexpected EOF).
func (x *execution) read(body io.Reader) error {
	br := readers.Get().(*bufio.Reader)
	br.Reset(body)
	defer func() {
		br.Reset(nil)
		readers.Put(br)
	}()
	var long []byte
	for !x.ended {
		line, err := readLine(br, &long, maxLine)
		if len(bytes.TrimSpace(line)) > 0 {
			if err := x.line(line); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return &Error{Message: "read the answer: " + oneLine(err.Error()), kinds: [2]error{ErrLost}, cause: err}
		}
	}
	return nil
}

// readLine returns the next line, at most most bytes; it is valid until the
// next call. *long is a buffer for lines longer than br's, kept between calls
// while it is small.
func readLine(br *bufio.Reader, long *[]byte, most int) ([]byte, error) {
	line, err := br.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	if cap(*long) > 1<<20 {
		*long = nil
	}
	buf := (*long)[:0]
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(buf)+len(line) > most {
			return nil, fmt.Errorf("a line is longer than %d MiB", most>>20)
		}
		buf = append(buf, line...)
		line, err = br.ReadSlice('\n')
	}
	buf = append(buf, line...)
	*long = buf
	return buf, err
}

func (x *execution) line(data []byte) error {
	var l e2b.Line
	if err := json.Unmarshal(data, &l); err != nil {
		return &Error{Message: "a line of the answer is not the JSON of this protocol", cause: err}
	}
	x.heard = time.Now()
	switch l.Type {
	case e2b.LineExecutions:
		x.Count = l.ExecutionCount
	case e2b.LineStdout:
		x.output(&x.stdout, x.set.onStdout, outputOf(&l))
	case e2b.LineStderr:
		x.output(&x.stderr, x.set.onStderr, outputOf(&l))
	case e2b.LineResult:
		x.result(&l, len(data))
	case e2b.LineError:
		x.Error = &CodeError{Name: l.Name, Value: l.Value, Traceback: l.Traceback}
		x.StateLost = x.StateLost || l.Name == "ContextRestarting"
	case e2b.LineKeepalive:
		var a e2b.LineAbx
		if l.Abx != nil {
			a = *l.Abx
		}
		x.note.tell(&x.set.callSettings, a.NewestLine, max(x.stdout.total, a.StdoutBytes), max(x.stderr.total, a.StderrBytes))
	case e2b.LineEnd:
		x.ended = true
		if l.Abx != nil {
			x.last = *l.Abx
		}
	}
	return nil
}

func (x *execution) output(to *capture, say func([]byte), p []byte) {
	if len(p) == 0 {
		return
	}
	to.write(p)
	if say != nil {
		say(p)
	}
	if x.set.onProgress != nil {
		x.note.saw(p)
		if time.Since(x.note.told) >= progressEvery {
			x.note.tell(&x.set.callSettings, "", x.stdout.total, x.stderr.total)
		}
	}
}

// outputOf is what an output line carries: our server adds the bytes where they
// are no text.
func outputOf(l *e2b.Line) []byte {
	if l.Abx != nil && len(l.Abx.Bytes) > 0 {
		return l.Abx.Bytes
	}
	return []byte(l.Text)
}

func (x *execution) result(l *e2b.Line, size int) {
	r := CodeResult{
		IsMain: l.IsMainResult, Text: l.Text, HTML: l.HTML, Markdown: l.Markdown, SVG: l.SVG, LaTeX: l.LaTeX,
		JavaScript: l.JavaScript, PNG: unbase64(l.PNG), JPEG: unbase64(l.JPEG), PDF: unbase64(l.PDF),
		JSON: l.JSON, Data: l.Data, Chart: l.Chart, Extra: l.Extra,
	}
	if x.set.onResult != nil {
		x.set.onResult(r)
	}
	if len(x.Results) >= maxResultNum || x.size+size > x.set.maxOutput {
		x.ResultsOmitted++
		return
	}
	x.size += size
	x.Results = append(x.Results, r)
}

// finish fills the Execution from the lines that came.
func (x *execution) finish() *Execution {
	a := &x.last
	x.Output.set(&x.stdout, &x.stderr, a.StdoutBytes, a.StderrBytes)
	x.ExitCode, x.Reason, x.Detail = a.ExitCode, oneLine(a.Reason), oneLine(a.Detail)
	x.StateLost = x.StateLost || a.StateLost
	x.CWD, x.Background = a.CWD, a.Background
	x.StdoutFile, x.StderrFile = a.StdoutFile, a.StderrFile
	x.OutputFilesTotal = max(a.OutputFilesTotal, len(a.OutputFiles))
	for _, f := range a.OutputFiles {
		x.OutputFiles = append(x.OutputFiles, OutputFile(f))
	}
	if x.Reason == "" {
		x.Reason = ReasonExit
		if x.Error != nil && x.ExitCode == 0 {
			x.ExitCode = 1
		}
	}
	return &x.Execution
}

// unbase64 decodes a picture; kernels break its lines. What is not base64 is nil.
func unbase64(s string) []byte {
	if s == "" {
		return nil
	}
	data, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil
	}
	return data
}
