package tool

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/agent-sandbox/abx/internal/mcp/wire"
	"github.com/agent-sandbox/abx/sandbox"
)

func runCode(o Options) definition {
	fields := outcomeFields()
	fields = append(fields[:len(fields)-1], []field{
		{name: "output_files", kind: "array", doc: "files that the code made or changed", always: true, items: outputFileItems},
		{name: "output_files_total", kind: "integer", doc: "how many there are, when the list was cut"},
		{name: "result", kind: "string", doc: "the value of the last expression as text"},
		{name: "error", kind: "string", doc: "the error that the code raised, in one line"},
		{name: "state_lost", kind: "boolean", doc: "true when variables and imports from before are gone"},
		{name: "background", kind: "integer", doc: "threads and processes of the code that go on"},
	}...)
	return definition{
		Tool: Tool{
			Name:  "run_code",
			Title: "Run code",
			Description: o.Place.warn("Runs code in a sandbox by a code interpreter that keeps variables, imports and the working folder between the calls of one language. " +
				"Returns stdout, stderr (with the traceback of an error), the value of the last expression, pictures that were drawn, and the files that the code wrote. " +
				"There is no standard input. At its timeout the code is interrupted. Leave sandbox_id out to use the default sandbox." + o.Place.languages()),
			Output:      outputSchema(append(fields, reportFields...)),
			Destructive: true, OpenWorld: o.Place.Network != noNetwork,
		},
		params: []param{
			{name: "code", kind: kindText, required: true, aka: []string{"source", "script", "python", "program"}, doc: "the code to run"},
			{name: "language", kind: kindText, text: "python", enum: []string{"python", "javascript", "shell", "typescript", "r"}, aka: []string{"lang", "kernel", "runtime"},
				aliases: map[string]string{"py": "python", "python3": "python", "ipython": "python", "js": "javascript", "node": "javascript", "nodejs": "javascript",
					"ts": "typescript", "bash": "shell", "sh": "shell", "zsh": "shell", "rscript": "r"},
				doc: "the language of the code"},
			sandboxID,
			{name: "timeout", kind: kindWhole, whole: 30, least: 1, most: Longest, aka: akaTimeout, doc: "seconds after which the code is interrupted"},
		},
		run: (*Set).runCode,
	}
}

var outputFileItems = outputSchema([]field{
	{name: "name", kind: "string", always: true},
	{name: "path", kind: "string", always: true},
	{name: "size", kind: "integer", doc: "bytes", always: true},
})

func (s *Set) runCode(ctx context.Context, a arguments, r Request) (*Result, error) {
	timeout := time.Duration(a.whole("timeout")) * time.Second
	tick := startTicker(r, s.o.Limits.Progress)
	defer tick.Stop()
	lease, rep, err := s.use(ctx, a, r, timeout)
	if err != nil {
		return nil, err
	}
	defer lease.Release()
	sb, lang := lease.Sandbox, a.text("language")
	if sb.Info().Isolation == "" { // a platform that does not know FirstDir
		if err := sb.prepare(ctx, lang); err != nil {
			return nil, noLanguage(lang, err)
		}
	}
	opts := []sandbox.CodeOption{
		sandbox.FirstDir(workDir), sandbox.MaxOutput(maxResults),
		sandbox.Language(wireLanguage(lang)), sandbox.Timeout(timeout), sandbox.OutputFiles(),
		sandbox.Window(s.o.Limits.Head, s.o.Limits.Tail),
	}
	if tick != nil {
		opts = append(opts, tick.listen())
	}
	ex, err := sb.RunCode(ctx, a.text("code"), opts...)
	if err != nil && ex == nil {
		return nil, noLanguage(lang, err)
	}
	if ex.StateLost {
		sb.forget(lang)
	}
	s.codeReport(rep, ex, lang, a.whole("timeout"), sb.Info())
	return rep.result(), err
}

// maxResults bounds what the results of one call may hold of the server's
// memory, in bytes, before they are cut for the model.
const maxResults = 16 << 20

// wireLanguage is the interpreter's name of a language.
func wireLanguage(lang string) string {
	if lang == "shell" {
		return "bash"
	}
	return lang
}

// noLanguage says what is missing when the interpreter refuses a language.
func noLanguage(lang string, err error) error {
	if lang == "python" || lang == "shell" || !errors.Is(err, sandbox.ErrUnsupported) && !errors.Is(err, sandbox.ErrInvalid) && !errors.Is(err, sandbox.ErrNotFound) {
		return err
	}
	next := `Use "python" or "shell", or write the code to a file and start it by run_command if the sandbox has the program for it.`
	var e *sandbox.Error
	if errors.As(err, &e) && strings.Contains(e.Message, "run_command") { // our interpreter says it itself
		return problemf(err, "", "%s", e.Message)
	}
	return problemf(err, next, "language %q is not available in this sandbox: %v", lang, err)
}

// enter is code that makes /app the working folder, where it is there, and does
// nothing else: no output, no new name.
var enter = map[string]string{
	"python":     `exec("import os\ntry: os.chdir('` + workDir + `')\nexcept OSError: pass", {})`,
	"shell":      `cd ` + workDir + ` 2>/dev/null || :`,
	"r":          `invisible(try(setwd("` + workDir + `"), silent = TRUE))`,
	"javascript": `try { process.chdir("` + workDir + `") } catch {}`,
	"typescript": `try { process.chdir("` + workDir + `") } catch {}`,
}

// prepare makes the first code of a language start in the working folder. It
// uses the language's default context, whose kernel a pool keeps warm; a
// context of our own would cost the start of another.
func (h *handle) prepare(ctx context.Context, lang string) error {
	h.mu.Lock()
	ready := h.ready[lang]
	h.mu.Unlock()
	if ready {
		return nil
	}
	if _, err := h.RunCode(ctx, enter[lang], sandbox.Language(wireLanguage(lang)), sandbox.Timeout(prepareTime)); err != nil {
		return err
	}
	h.mu.Lock()
	h.ready[lang] = true
	h.mu.Unlock()
	return nil
}

// prepareTime is for the start of a kernel.
const prepareTime = 60 * time.Second

// forget notes that the kernel of a language was replaced.
func (h *handle) forget(lang string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready[lang] = false
}

func (s *Set) codeReport(rep *report, ex *sandbox.Execution, lang string, seconds int64, info sandbox.Info) {
	if lang == "python" {
		readable(ex.Results)
	}
	o := outcome{Output: ex.Output, exitCode: ex.ExitCode, reason: ex.Reason, detail: ex.Detail, shown: len(ex.Results) > 0, broken: ex.Reason == "" || ex.Reason == sandbox.ReasonSandboxLost}
	if ex.Error != nil {
		o.more = s.traceback(ex)
	}
	o.cut = s.cutsValue(rep, ex)
	missed := o.report(rep, info)
	d := &rep.data
	d.Raw("output_files", outputFiles(rep, ex))
	if ex.OutputFilesTotal > len(ex.OutputFiles) {
		d.Int("output_files_total", int64(ex.OutputFilesTotal))
	}
	if ex.Error != nil {
		d.String("error", clipText(clean([]byte(ex.Error.Name+": "+ex.Error.Value))))
	}
	s.results(rep, ex)
	if ex.StateLost {
		d.Bool("state_lost", true)
		rep.note("The %s interpreter had to be started anew: variables, imports and functions from before are gone; files are not.", lang)
	}
	if ex.Background > 0 {
		d.Int("background", int64(ex.Background))
		rep.note("Still running in the background: %s.", count(ex.Background, "thread or process", "threads or processes"))
	}
	if ex.Reason == sandbox.ReasonTimeout {
		kept, next := "; variables are kept", "Give a larger timeout, or run long work in the background by run_command."
		if ex.StateLost {
			kept = ""
		}
		if missed {
			next = "It waited for the network; a larger timeout would not help."
		}
		rep.note("Interrupted at its timeout of %d s%s. %s", seconds, kept, next)
	}
}

// traceback is the error that the code raised as a terminal would show it.
func (s *Set) traceback(ex *sandbox.Execution) string {
	text := ex.Error.Traceback
	if strings.TrimSpace(text) == "" {
		text = ex.Error.Name + ": " + ex.Error.Value
	}
	text = s.shorten(text)
	if plain := strings.TrimSpace(text); plain != "" && strings.Contains(clean(ex.Stderr), plain) {
		return ""
	}
	return strings.TrimRight(text, "\n") + "\n"
}

// cutsValue reports whether a text of what the code displayed is too long to be
// shown whole, and notes how to get the rest.
func (s *Set) cutsValue(rep *report, ex *sandbox.Execution) bool {
	most := s.o.Limits.Head + s.o.Limits.Tail
	for _, r := range ex.Results {
		n := max(len(r.Text), len(r.Markdown), len(r.HTML), len(r.JSON), len(r.LaTeX), len(r.SVG), len(r.JavaScript))
		if n <= most {
			continue
		}
		if r.IsMain {
			rep.note("The value has %s of text, of which begin and end are shown: print a part of it (in Python it is still in `_`), or write it to a file and read that in parts.", byteCount(n))
		} else {
			rep.note("A displayed value has %s of text, of which begin and end are shown: display a part of it, or write it to a file and read that in parts.", byteCount(n))
		}
		return true
	}
	return false
}

// shorten cleans a text of the interpreter and cuts it as a stream is cut.
func (s *Set) shorten(text string) string {
	head, tail := s.o.Limits.Head, s.o.Limits.Tail
	if len(text) <= head+tail {
		return clean([]byte(text))
	}
	kept := text[:head] + text[len(text)-tail:]
	return strings.Replace(stream{kept: []byte(kept), head: head, total: int64(len(text))}.text(), "; the whole could not be kept", "", 1)
}

func outputFiles(rep *report, ex *sandbox.Execution) []byte {
	list := []byte("[")
	var lines []string
	for i, f := range ex.OutputFiles {
		var b wire.Builder
		b.String("name", f.Name)
		b.String("path", f.Path)
		b.Int("size", f.Size)
		if i > 0 {
			list = append(list, ',')
		}
		list = append(list, b.JSON()...)
		if i < 20 {
			lines = append(lines, fmt.Sprintf("%s (%s)", f.Path, byteCount(f.Size)))
		}
	}
	if more := max(ex.OutputFilesTotal, len(ex.OutputFiles)) - len(lines); len(lines) > 0 && more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	if len(lines) > 0 {
		rep.text = append(rep.text, "[files written] "+strings.Join(lines, ", "))
	}
	return append(list, ']')
}

// placeholder is the text of an object that says nothing about it.
var placeholder = regexp.MustCompile(`^<[^\n]*( object( at 0x[0-9a-f]+)?| with \d+ Axes| at 0x[0-9a-f]+)>$`)

// results adds what the code displayed and its last value.
func (s *Set) results(rep *report, ex *sandbox.Execution) {
	room := s.o.Limits.Images
	for _, r := range ex.Results {
		pictures := 0
		for _, p := range [2]Content{{MIMEType: "image/png", Data: r.PNG}, {MIMEType: "image/jpeg", Data: r.JPEG}} {
			if len(p.Data) == 0 || pictures > 0 {
				continue
			}
			pictures++
			if len(p.Data) > s.o.Limits.Image || len(p.Data) > room {
				rep.note("A picture (%s, %s) is over the limit and was left out: save it to a file, or draw it smaller (at most %s each, %s together).",
					p.MIMEType, byteCount(len(p.Data)), byteCount(s.o.Limits.Image), byteCount(s.o.Limits.Images))
				continue
			}
			room -= len(p.Data)
			rep.media = append(rep.media, p)
		}
		s.forms(rep, r, pictures > 0)
	}
	if ex.ResultsOmitted > 0 {
		rep.note("%s left out: there were too many.", count(ex.ResultsOmitted, "displayed value was", "displayed values were"))
	}
}

// forms adds the forms of a value that are text. The last value of the code
// comes in its plain form where that says something; what the code displays,
// in all its forms.
func (s *Set) forms(rep *report, r sandbox.CodeResult, pictured bool) {
	telling := r.Text != "" && !placeholder.MatchString(r.Text)
	if r.IsMain && r.Text != "" {
		rep.data.String("result", s.shorten(r.Text))
	}
	if telling && !pictured {
		label := ""
		if r.IsMain {
			label = "[result]\n"
		}
		rep.media = append(rep.media, Content{Text: label + s.shorten(r.Text)})
		if r.IsMain {
			return
		}
	}
	for _, f := range [...]struct{ name, text string }{
		{"markdown", r.Markdown}, {"html", r.HTML}, {"json", string(r.JSON)}, {"latex", r.LaTeX}, {"svg", r.SVG}, {"javascript", r.JavaScript},
	} {
		if f.text != "" && !(pictured && f.name == "svg") {
			rep.media = append(rep.media, Content{Text: "[" + f.name + "]\n" + s.shorten(f.text)})
		}
	}
	if len(r.PDF) > 0 {
		rep.note("The code displayed a PDF of %s, which cannot be shown: save it to a file.", byteCount(len(r.PDF)))
	}
}
