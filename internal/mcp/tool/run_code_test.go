package tool

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/mcp/mcptest"
)

// cells answers every piece of code but those that enter the working folder.
func cells(log *[]string, f func(c *mcptest.Code) e2b.LineAbx) *mcptest.Platform {
	return &mcptest.Platform{Abx: &e2b.SandboxAbx{}, Code: func(_ *mcptest.Sandbox, c *mcptest.Code) e2b.LineAbx {
		if log != nil {
			*log = append(*log, c.Language+": "+c.Execute.Code)
		}
		if strings.Contains(c.Execute.Code, "/app") {
			return e2b.LineAbx{}
		}
		return f(c)
	}}
}

func TestRunCode(t *testing.T) {
	p := cells(nil, func(c *mcptest.Code) e2b.LineAbx {
		c.Send(e2b.Line{Type: e2b.LineStdout, Text: "hello\n"})
		c.Send(e2b.Line{Type: e2b.LineResult, IsMainResult: true, Text: "2"})
		return e2b.LineAbx{CWD: "/app", OutputFiles: []e2b.OutputFile{{Name: "a.csv", Path: "/app/a.csv", Size: 1234}}}
	})
	r := good(t, start(t, p, Options{}), "run_code", object{"code": "print('hello'); 1+1"})
	want := object{
		"stdout": "hello\n", "stderr": "", "exit_code": 0., "reason": "exit", "truncated": false, "result": "2",
		"output_files": []any{object{"name": "a.csv", "path": "/app/a.csv", "size": 1234.}}, "sandbox_id": p.Alive()[0],
	}
	if d := cmp.Diff(want, r.Data); d != "" {
		t.Errorf("result (-want +got):\n%s", d)
	}
	for _, w := range []string{"hello", "[result]\n2", "[files written] /app/a.csv (1,234 bytes)"} {
		if !strings.Contains(r.text(), w) {
			t.Errorf("%q is not in\n%s", w, r.text())
		}
	}
}

func TestRunCodeStartsInTheWorkingFolderOnce(t *testing.T) {
	var log []string
	p := cells(&log, func(c *mcptest.Code) e2b.LineAbx { return e2b.LineAbx{StateLost: c.Execute.Code == "die"} })
	s := start(t, p, Options{})
	for _, c := range []object{
		{"code": "1"}, {"code": "2"}, {"code": "3", "language": "shell"}, {"code": "die"}, {"code": "4"},
	} {
		good(t, s, "run_code", c)
	}
	want := []string{
		"python: " + enter["python"], "python: 1", "python: 2", "bash: " + enter["shell"], "bash: 3",
		"python: die", "python: " + enter["python"], "python: 4",
	}
	if d := cmp.Diff(want, log); d != "" {
		t.Errorf("cells (-want +got):\n%s", d)
	}
}

// TestEnter holds that code of every language starts in the working folder.
func TestEnter(t *testing.T) {
	for _, p := range runCode(Options{}).params {
		for _, lang := range p.enum {
			if enter[lang] == "" {
				t.Errorf("%s starts anywhere", lang)
			}
		}
	}
}

func TestRunCodeErrors(t *testing.T) {
	p := cells(nil, func(c *mcptest.Code) e2b.LineAbx {
		switch c.Execute.Code {
		case "1/0":
			c.Send(e2b.Line{Type: e2b.LineStderr, Text: "warning"})
			c.Send(e2b.Line{Type: e2b.LineError, Name: "ZeroDivisionError", Value: "division by zero", Traceback: "\x1b[31mTraceback\x1b[0m:\nZeroDivisionError: division by zero"})
			return e2b.LineAbx{ExitCode: 1}
		case "loop":
			return e2b.LineAbx{ExitCode: 130, Reason: e2b.ReasonTimeout}
		}
		return e2b.LineAbx{ExitCode: 1, StateLost: true, Reason: e2b.ReasonOOM, Detail: "memory limit 2 GiB reached"}
	})
	s := start(t, p, Options{})
	r := good(t, s, "run_code", object{"code": "1/0"})
	if got, want := r.Data["stderr"], "warning\nTraceback:\nZeroDivisionError: division by zero\n"; got != want {
		t.Errorf("stderr %q, want %q", got, want)
	}
	if r.Data["exit_code"] != 1. || r.Data["error"] != "ZeroDivisionError: division by zero" {
		t.Errorf("got %v", r.Data)
	}
	r = good(t, s, "run_code", object{"code": "loop", "timeout": 2})
	if r.Data["reason"] != "timeout" || !strings.Contains(r.text(), "timeout of 2 s; variables are kept") {
		t.Errorf("got %s", r.text())
	}
	r = good(t, s, "run_code", object{"code": "x=' '*10**12"})
	if r.Data["state_lost"] != true || !strings.Contains(r.text(), "variables, imports and functions from before are gone") {
		t.Errorf("got %s", r.text())
	}
}

func TestLanguagesThatAreNotThere(t *testing.T) {
	s := start(t, cells(nil, func(*mcptest.Code) e2b.LineAbx { return e2b.LineAbx{} }), Options{})
	for _, lang := range []string{"javascript", "typescript", "r"} {
		r := call(t, s, "run_code", object{"code": "1", "language": lang})
		if !r.IsError || !strings.Contains(r.text(), `"`+lang+`" is not available`) || !strings.Contains(r.text(), "run_command") {
			t.Errorf("%s: %s", lang, r.text())
		}
	}
}

func TestRichResults(t *testing.T) {
	png := append([]byte("\x89PNG\r\n\x1a\n"), bytes.Repeat([]byte{7}, 100)...)
	big := bytes.Repeat([]byte{9}, 4<<20)
	p := cells(nil, func(c *mcptest.Code) e2b.LineAbx {
		for _, l := range []e2b.Line{
			{PNG: base64.StdEncoding.EncodeToString(png), Text: "<Figure size 640x480 with 1 Axes>"},
			{HTML: "<b>hi</b>", Text: "<IPython.core.display.HTML object>"},
			{Markdown: "# hi", Text: "<IPython.core.display.Markdown object>"},
			{JSON: json.RawMessage(`{"a":1}`), Text: "<IPython.core.display.JSON object>"},
			{HTML: "<table></table>", Text: "   a\n0  1", IsMainResult: true},
			{PNG: base64.StdEncoding.EncodeToString(big)},
		} {
			l.Type = e2b.LineResult
			c.Send(l)
		}
		return e2b.LineAbx{}
	})
	r := good(t, start(t, p, Options{}), "run_code", object{"code": "plot()"})
	var got []string
	for _, c := range r.Content[1:] {
		if c.Type == "image" {
			data, err := base64.StdEncoding.DecodeString(c.Data)
			if err != nil || !bytes.Equal(data, png) {
				t.Errorf("the picture is another: %v", err)
			}
			c.Text = c.MIMEType
		}
		got = append(got, c.Text)
	}
	want := []string{"image/png", "[html]\n<b>hi</b>", "[markdown]\n# hi", "[json]\n{\"a\":1}", "[result]\n   a\n0  1"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("content (-want +got):\n%s", d)
	}
	if !strings.Contains(r.text(), "A picture (image/png, 4,194,304 bytes) is over the limit") {
		t.Errorf("the large picture is not told:\n%s", r.text())
	}
	if strings.Contains(r.text(), base64.StdEncoding.EncodeToString(png)[:40]) {
		t.Error("base64 in the text")
	}
}
