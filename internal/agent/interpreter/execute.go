//go:build linux

package interpreter

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/abx/internal/agent/output"
	"github.com/agent-sandbox/abx/internal/e2b"
)

// request is a call of POST /execute, checked.
type request struct {
	context    *codeContext
	code       string
	env        map[string]string
	timeout    time.Duration
	windowed   bool
	head, tail int
	files      bool
	dir        string // of a kernel's first cell
}

func (s *Service) execute(w http.ResponseWriter, r *http.Request) {
	q, err := s.parse(w, r)
	if err == nil {
		err = q.context.enter()
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	c := q.context
	defer c.leave()
	emit := newEmitter(w)
	defer emit.finish()
	var k *kernel
	if c.take(r.Context(), func() { emit.tryLine(keepalive) }) {
		c.serve(emit)
		defer c.pass()
		k, err = c.ready()
	} else {
		err = refuse(http.StatusNotFound, "context %q was deleted while this call waited for those before it", c.info.ID)
	}
	switch {
	case r.Context().Err() != nil:
	case err != nil && !emit.hasStarted():
		s.fail(w, err)
	case err != nil:
		emit.refuse("KernelError", err.Error())
	default:
		s.runCell(r, q, k, emit)
	}
}

func keepalive(b []byte) []byte { return appendLine(b, e2b.Line{Type: e2b.LineKeepalive}) }

// runCell runs the cell and sends its lines. It needs the turn.
func (s *Service) runCell(r *http.Request, q request, k *kernel, emit *emitter) {
	c := q.context
	var before *scan
	if q.files {
		before = s.scanBefore()
	}
	k.cells++
	run := &run{
		service: s, kernel: k, emit: emit, timeout: q.timeout, report: q.windowed, stop: k.stale,
		cell: cell{ID: k.cells, Code: q.code, Env: q.env}, done: make(chan event, 1),
	}
	c.renew(k, &run.cell)
	if q.dir != "" && !k.placed {
		k.placed, run.cell.Dir = true, q.dir
	}
	for i, name := range []string{"stdout", "stderr"} {
		run.out[i] = s.outlet(name, q, k, emit)
	}
	end := run.do(r.Context())
	for _, o := range run.out {
		o.finish()
	}
	if end.error != nil {
		f := end.error
		emit.line(false, func(b []byte) []byte { return appendError(b, f.Name, f.Value, f.Traceback) })
	}
	if end.lost {
		c.drop()
		if r.Context().Err() != nil && run.cause != causeRestarted {
			c.lost = "the call before was interrupted, and its kernel had to be killed"
		}
	}
	abx := &end.abx
	if c.lost != "" && !end.lost {
		abx.StateLost = true
		abx.Detail = strings.TrimPrefix(abx.Detail+"; "+c.lost, "; ")
		c.lost = ""
	}
	if before != nil {
		abx.OutputFiles, abx.OutputFilesTotal = before.changed()
	}
	abx.StdoutBytes, abx.StdoutFile = run.out[0].window.Total(), run.out[0].window.File()
	abx.StderrBytes, abx.StderrFile = run.out[1].window.Total(), run.out[1].window.File()
	emit.line(true, func(b []byte) []byte { return appendLine(b, e2b.Line{Type: e2b.LineEnd, Abx: abx}) })
}

func (s *Service) outlet(name string, q request, k *kernel, emit *emitter) *outlet {
	o := output.Options{}
	if q.windowed {
		a, err := s.opts.Book.Lookup(s.opts.User())
		if err != nil {
			s.opts.Logger.Warn("owner of output file", "error", err)
		}
		o = output.Options{
			Head: q.head, Tail: q.tail, Dir: s.opts.LogDir, Owner: a,
			Name: fmt.Sprintf("%s-%d-%s", q.context.info.Language, k.cells, name),
		}
	}
	return &outlet{name: name, window: output.New(o), room: int64(o.Head) + int64(o.Tail), emit: emit}
}

// parse checks a call and finds its context.
func (s *Service) parse(w http.ResponseWriter, r *http.Request) (q request, err error) {
	var body struct {
		e2b.Execute
		Code *string `json:"code"`
	}
	if err := decode(w, r, &body); err != nil {
		return q, err
	}
	bad := func(format string, args ...any) (request, error) {
		return request{}, refuse(http.StatusBadRequest, format, args...)
	}
	if body.Code == nil {
		return bad("code is missing: the body is {\"code\": ..., \"language\": ...}")
	}
	q.code, q.env = *body.Code, body.EnvVars
	for name := range q.env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(q.env[name], "\x00") {
			return bad("env_vars: %q cannot be the name of a variable, or its value holds a zero byte", clip(name))
		}
	}
	if body.ContextID != "" && body.Language != "" {
		return bad("context_id and language exclude each other: a context has its language")
	}
	ms, err := parseMilliseconds(r.Header.Get(e2b.HeaderTimeoutMS))
	if err != nil {
		return bad("header %s: %v", e2b.HeaderTimeoutMS, err)
	}
	q.timeout = ms
	if q.windowed = r.Header.Get(e2b.HeaderWindow) != ""; q.windowed {
		if q.head, q.tail, err = output.ParseWindow(r.Header.Get(e2b.HeaderWindow)); err != nil {
			return bad("header %s: %v", e2b.HeaderWindow, err)
		}
	}
	q.files = r.Header.Get(e2b.HeaderOutputFiles) == "1"
	if q.dir = r.Header.Get(e2b.HeaderDir); q.dir != "" && !filepath.IsAbs(q.dir) {
		return bad("header %s: %q is not an absolute path", e2b.HeaderDir, clip(q.dir))
	}
	if body.ContextID != "" {
		q.context, err = s.find(body.ContextID)
		return q, err
	}
	language, err := parseLanguage(body.Language)
	if err != nil {
		return bad("%v", err)
	}
	q.context, err = s.defaultContext(language)
	return q, err
}

// parseMilliseconds reads a limit; 0 and "" are none.
func parseMilliseconds(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > int64(365*24*time.Hour/time.Millisecond) {
		return 0, fmt.Errorf("%q is not a number of milliseconds", clip(s))
	}
	return time.Duration(n) * time.Millisecond, nil
}
