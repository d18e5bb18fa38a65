package sandbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/sandbox"
)

// lines answers with lines.
func lines(lines ...string) codeFunc {
	return func(w io.Writer, _ *http.Request, _ e2b.Execute) {
		_, _ = io.WriteString(w, strings.Join(lines, "\n")+"\n")
	}
}

func TestCodeResults(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lines []string
		want  sandbox.Execution
	}{
		{"as E2B sends it", []string{
			`{"type":"number_of_executions","execution_count":3}`, `{"type":"stdout","text":"h\u00e9","timestamp":"x"}`,
			`{"type":"stderr","text":"warn"}`, `{"type":"keepalive"}`, ``, `{"type":"new kind"}`,
			`{"type":"result","is_main_result":true,"text":"1","html":"<p>","png":"aGkh\n","json":{"a":1},"chart":{"type":"line"},"extra":{"x":1}}`,
			`{"type":"end_of_execution"}`, `not read`,
		}, sandbox.Execution{
			Output: output("hé", "warn"), Count: 3, Reason: "exit",
			Results: []sandbox.CodeResult{{
				IsMain: true, Text: "1", HTML: "<p>", PNG: []byte("hi!"), JSON: json.RawMessage(`{"a":1}`),
				Chart: json.RawMessage(`{"type":"line"}`), Extra: json.RawMessage(`{"x":1}`),
			}},
		}},
		{"an error is no error", []string{`{"type":"error","name":"ValueError","value":"no","traceback":"tb"}`, `{"type":"end_of_execution"}`},
			sandbox.Execution{Error: &sandbox.CodeError{Name: "ValueError", Value: "no", Traceback: "tb"}, ExitCode: 1, Reason: "exit"}},
		{"the kernel died, as E2B says it", []string{`{"type":"error","name":"ContextRestarting","value":"v"}`, `{"type":"end_of_execution"}`},
			sandbox.Execution{Error: &sandbox.CodeError{Name: "ContextRestarting", Value: "v"}, ExitCode: 1, Reason: "exit", StateLost: true}},
		{"bytes that are no text", []string{`{"type":"stdout","text":"\ufffd","abx":{"exitCode":0,"bytes":"/wA="}}`, `{"type":"end_of_execution"}`},
			sandbox.Execution{Output: output("\xff\x00", ""), Reason: "exit"}},
		{"bad base64", []string{`{"type":"result","png":"!"}`, `{"type":"end_of_execution"}`},
			sandbox.Execution{Results: []sandbox.CodeResult{{}}, Reason: "exit"}},
		{"ours", []string{`{"type":"end_of_execution","abx":{"exitCode":130,"reason":"timeout","detail":"d","stateLost":true,"cwd":"/app","background":2,` +
			`"stdoutBytes":9,"stdoutFile":"/tmp/o","outputFiles":[{"name":"a","path":"/app/a","size":1}],"outputFilesTotal":7}}`},
			sandbox.Execution{
				Output: sandbox.Output{StdoutTotal: 9, StdoutFile: "/tmp/o"}, ExitCode: 130, Reason: "timeout", Detail: "d", StateLost: true,
				CWD: "/app", Background: 2, OutputFiles: []sandbox.OutputFile{{Name: "a", Path: "/app/a", Size: 1}}, OutputFilesTotal: 7,
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlatform()
			p.code["x"] = lines(tt.lines...)
			got, err := p.sandbox(t).RunCode(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Not every platform sends a last line; ours does, so that without it the
// answer was cut.
func TestCodeWithoutLastLine(t *testing.T) {
	p := newPlatform()
	p.code["x"] = func(w io.Writer, _ *http.Request, _ e2b.Execute) {
		_, _ = io.WriteString(w, `{"type":"stdout","text":"x"}`)
	}
	_, err := p.sandbox(t).RunCode(t.Context(), "x")
	wantOnly(t, err, sandbox.ErrLost)
	p.ours = false
	got, err := p.sandbox(t).RunCode(t.Context(), "x")
	if diff := cmp.Diff(&sandbox.Execution{Output: output("x", ""), Reason: "exit"}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func TestCodeSends(t *testing.T) {
	p := newPlatform()
	var in e2b.Execute
	p.code["x"] = func(w io.Writer, r *http.Request, got e2b.Execute) {
		in = got
		lines(`{"type":"keepalive","abx":{"newestLine":"n","stdoutBytes":5}}`, `{"type":"result","text":"r"}`, `{"type":"end_of_execution"}`)(w, r, got)
	}
	var said []sandbox.Progress
	var results []string
	_, err := p.sandbox(t).RunCode(t.Context(), "x", sandbox.Language("r"), sandbox.Env(map[string]string{"A": "1"}), sandbox.Timeout(time.Second),
		sandbox.Window(1, 2), sandbox.OutputFiles(), sandbox.OnResult(func(r sandbox.CodeResult) { results = append(results, r.Text) }),
		sandbox.OnProgress(func(p sandbox.Progress) { p.Elapsed = 0; said = append(said, p) }))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(e2b.Execute{Code: "x", Language: "r", EnvVars: map[string]string{"A": "1"}}, in); diff != "" {
		t.Error(diff)
	}
	h := p.last(t, "/execute").Header
	for key, want := range map[string]string{"Abx-Timeout-Ms": "1000", "Abx-Window": "1,2", "Abx-Output-Files": "1", "Content-Type": "application/json", "E2b-Sandbox-Port": "49999"} {
		if h.Get(key) != want {
			t.Errorf("header %s: %q, want %q", key, h.Get(key), want)
		}
	}
	if diff := cmp.Diff([]sandbox.Progress{{NewestLine: "n", StdoutBytes: 5}}, said); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"r"}, results); diff != "" {
		t.Error(diff)
	}
}

func TestLongLines(t *testing.T) {
	long := strings.Repeat("x", 20<<20)
	p := newPlatform()
	p.code["long"] = lines(`{"type":"result","text":"`+long+`"}`, `{"type":"result","text":"short"}`, `{"type":"end_of_execution"}`)
	p.code["endless"] = func(w io.Writer, _ *http.Request, _ e2b.Execute) {
		for {
			if _, err := io.WriteString(w, long[:1<<20]); err != nil {
				return
			}
		}
	}
	sb := p.sandbox(t)
	got, err := sb.RunCode(t.Context(), "long")
	if err != nil || len(got.Results) != 2 || got.Results[0].Text != long || got.Results[1].Text != "short" {
		t.Errorf("%v", err)
	}
	_, err = sb.RunCode(t.Context(), "endless")
	if wantOnly(t, err, sandbox.ErrLost); err == nil || !strings.Contains(err.Error(), "longer than 64 MiB") {
		t.Error(err)
	}
}

func TestResultsAreBounded(t *testing.T) {
	p := newPlatform()
	p.code["x"] = lines(strings.Repeat(`{"type":"result","text":"x"}`+"\n", 10_003), `{"type":"end_of_execution"}`)
	got, err := p.sandbox(t).RunCode(t.Context(), "x")
	if err != nil || len(got.Results) != 10_000 || got.ResultsOmitted != 3 {
		t.Errorf("%d results, %d omitted, %v", len(got.Results), got.ResultsOmitted, err)
	}
}

// TestCodeResultsAreBounded: what a cell displays does not grow its caller.
func TestCodeResultsAreBounded(t *testing.T) {
	p := newPlatform()
	one := `{"type":"result","text":"` + strings.Repeat("x", 1000) + `"}`
	p.code["x"] = lines(one, one, one, `{"type":"end_of_execution"}`)
	got, err := p.sandbox(t).RunCode(t.Context(), "x", sandbox.MaxOutput(2500))
	if err != nil || len(got.Results) != 2 || got.ResultsOmitted != 1 {
		t.Errorf("%d results, %d omitted, %v", len(got.Results), got.ResultsOmitted, err)
	}
}

func TestCodeLost(t *testing.T) {
	p := newPlatform()
	p.code["cut"] = func(w io.Writer, _ *http.Request, _ e2b.Execute) {
		_, _ = io.WriteString(w, `{"type":"stdout","text":"part"}`+"\n")
		panic(http.ErrAbortHandler)
	}
	p.code["garbage"] = lines(`{"type":"stdout","text":"part"}`, `<html>`)
	sb := p.sandbox(t)
	for _, code := range []string{"cut", "garbage"} {
		got, err := sb.RunCode(t.Context(), code)
		wantOnly(t, err, sandbox.ErrLost)
		if diff := cmp.Diff(&sandbox.Execution{Output: output("part", ""), ExitCode: -1, Reason: "sandbox-lost"}, got); diff != "" {
			t.Errorf("%s: %s", code, diff)
		}
	}
	if _, err := sb.RunCode(t.Context(), "unknown", sandbox.InContext("c9")); !errors.Is(err, sandbox.ErrNotFound) || !strings.Contains(err.Error(), "c9") {
		t.Error(err)
	}
}

// hangs sends some output and a keepalive every beat until its client goes.
func hangs(beat time.Duration, gone chan<- struct{}) codeFunc {
	return func(w io.Writer, r *http.Request, _ e2b.Execute) {
		defer close(gone)
		_, _ = io.WriteString(w, `{"type":"stdout","text":"part"}`+"\n")
		for {
			select {
			case <-r.Context().Done():
				return
			case <-time.After(beat):
				_, _ = io.WriteString(w, `{"type":"keepalive"}`+"\n")
			}
		}
	}
}

func TestCodeTimeout(t *testing.T) {
	for _, tt := range []struct {
		name  string
		ours  bool
		beat  time.Duration
		after time.Duration
		lost  bool
	}{
		{"others leave it to the client", false, 5 * time.Second, 30 * time.Second, false},
		{"ours is busy", true, 5 * time.Second, 40 * time.Second, false},
		{"ours is silent", true, time.Hour, 40 * time.Second, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlatform()
				p.ours = tt.ours
				gone := make(chan struct{})
				p.code["x"] = hangs(tt.beat, gone)
				sb := p.sandbox(t)
				start := time.Now()
				got, err := sb.RunCode(t.Context(), "x", sandbox.Timeout(30*time.Second))
				want := &sandbox.Execution{Output: output("part", ""), ExitCode: 130, Reason: "timeout", Detail: "timeout of 30s reached"}
				if tt.lost {
					wantOnly(t, err, sandbox.ErrLost)
					want = &sandbox.Execution{Output: output("part", ""), ExitCode: -1, Reason: "sandbox-lost"}
				} else if err != nil {
					t.Error(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
				if d := time.Since(start); d != tt.after {
					t.Errorf("after %s, want %s", d, tt.after)
				}
				<-gone
			})
		})
	}
}

func TestCodeCancel(t *testing.T) {
	p := newPlatform()
	gone := make(chan struct{})
	p.code["x"] = hangs(time.Hour, gone)
	ctx, cancel := context.WithCancel(t.Context())
	got, err := p.sandbox(t).RunCode(ctx, "x", sandbox.OnStdout(func([]byte) { cancel() }))
	wantOnly(t, err, context.Canceled)
	if got == nil || string(got.Stdout) != "part" || got.Reason != "" {
		t.Errorf("%+v", got)
	}
	<-gone
}

func TestContexts(t *testing.T) {
	p := newPlatform()
	sb, ctx := p.sandbox(t), t.Context()
	c, err := sb.CreateContext(ctx, sandbox.Language("javascript"), sandbox.Cwd("/app"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&sandbox.CodeContext{ID: "c1", Language: "javascript", Cwd: "/app"}, c); diff != "" {
		t.Error(diff)
	}
	if all, err := sb.ListContexts(ctx); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
	for _, f := range []func(context.Context, string) error{sb.RestartContext, sb.DeleteContext} {
		if err := f(ctx, "c1"); err != nil {
			t.Error(err)
		}
		if err := f(ctx, "c2"); !errors.Is(err, sandbox.ErrNotFound) {
			t.Error(err)
		}
		if err := f(ctx, "../x"); !errors.Is(err, sandbox.ErrInvalid) {
			t.Error(err)
		}
	}
}
