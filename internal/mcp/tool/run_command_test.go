package tool

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/mcp/mcptest"
)

func commands(f func(line string) mcptest.End) *mcptest.Platform {
	return &mcptest.Platform{Command: func(_ *mcptest.Sandbox, c *mcptest.Command) mcptest.End { return f(c.Line()) }}
}

func TestRunCommand(t *testing.T) {
	for _, c := range []struct {
		name string
		abx  *e2b.SandboxAbx
		end  mcptest.End
		data object // must be in the result
		text []string
	}{
		{"both streams", nil, mcptest.End{Stdout: "out\n", Stderr: "err\n"},
			object{"stdout": "out\n", "stderr": "err\n", "exit_code": 0., "reason": "exit", "truncated": false},
			[]string{"out\n[stderr]\nerr\n[exit code 0]"}},
		{"no output", nil, mcptest.End{}, object{"stdout": "", "stderr": "", "exit_code": 0.}, []string{"(no output)\n[exit code 0]"}},
		{"code 1 is a result", nil, mcptest.End{Code: 1}, object{"exit_code": 1., "reason": "exit"}, []string{"[exit code 1]"}},
		{"timeout", nil, mcptest.End{Stdout: "a\n", Code: 137, Reason: "timeout"},
			object{"stdout": "a\n", "exit_code": 137., "reason": "timeout"}, []string{"a\n", "[exit code 137, timeout]", "timeout of 60 s", "nohup"}},
		{"oom", nil, mcptest.End{Code: 137, Reason: "oom", Detail: "memory limit 2 GiB reached (peak 2.0 GiB)"},
			object{"reason": "oom", "detail": "memory limit 2 GiB reached (peak 2.0 GiB)"}, []string{"oom: memory limit 2 GiB"}},
		{"background", nil, mcptest.End{Stdout: "ok\n", Background: []int{7, 9}},
			object{"background_pids": []any{7., 9.}}, []string{"Still running in the background: processes 7, 9. Stop them by `kill`."}},
		{"bash in dash", nil, mcptest.End{Stderr: "/bin/sh: 1: Syntax error: \"(\" unexpected\n", Code: 2}, nil, []string{"`sh` is not bash here"}},
		{"source in dash", nil, mcptest.End{Stderr: "/bin/sh: 1: source: not found\n", Code: 127}, nil, []string{"`sh` is not bash here"}},
		{"pipefail in dash", nil, mcptest.End{Stderr: "/bin/sh: 1: set: Illegal option -o pipefail\n", Code: 2}, nil, []string{"bash -c"}},
		{"substitution in dash", nil, mcptest.End{Stderr: "sh: 1: Bad substitution\n", Code: 2}, nil, []string{"bash -c"}},
		{"no bash meant", nil, mcptest.End{Stderr: "/bin/sh: 1: Syntax error: end of file unexpected\n/bin/sh: 1: go: not found\n", Code: 2}, object{"notes": nil}, nil},
		{"no password", nil, mcptest.End{Stderr: "Password: Traceback (most recent call last):\nEOFError\n", Code: 1}, nil, []string{"waited for input"}},
		{"no more of a pickle", nil, mcptest.End{Stderr: "EOFError: Ran out of input\n", Code: 1}, object{"notes": nil}, nil},
		{"no input", nil, mcptest.End{Stderr: "EOFError: EOF when reading a line\n", Code: 1}, nil, []string{"waited for input"}},
		{"no network", &e2b.SandboxAbx{Network: "none"}, mcptest.End{Stderr: "curl: (6) Could not resolve host: example.com\n", Code: 6}, nil, []string{"This sandbox has no network"}},
		{"a missing module where there is a network", &e2b.SandboxAbx{Network: "open"}, mcptest.End{Stderr: "ModuleNotFoundError: No module named 'x'\n", Code: 1},
			object{"notes": nil}, nil},
		{"one in the background", nil, mcptest.End{Background: []int{7}}, nil, []string{"background: process 7. Stop it by `kill`."}},
		{"many in the background", nil, mcptest.End{Background: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}}, nil,
			[]string{"16 processes or more, the first are 1, 2, 3", "15, 16. `ps -e` lists all"}},
		{"too many processes", nil, mcptest.End{Code: 2, Reason: "pids-limit", Detail: "process limit 512 reached", Background: []int{7}}, nil,
			[]string{"`kill -9 -1`, which the shell does itself", "os.kill(-1, 9)", "kill_sandbox"}},
		{"unknown network", nil, mcptest.End{Stderr: "Temporary failure in name resolution\n", Code: 1}, nil, []string{"may have no network"}},
		{"colours and progress", nil, mcptest.End{Stdout: "\x1b[01;34mdir\x1b[0m\n 10%\r 50%\r100%\ndone\r\n"}, object{"stdout": "dir\n100%\ndone\n"}, nil},
		{"not UTF-8", nil, mcptest.End{Stdout: "a\xff\xfeb\n"}, object{"stdout": "a\uFFFDb\n"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := commands(func(string) mcptest.End { return c.end })
			p.Abx = c.abx
			r := good(t, start(t, p, Options{}), "run_command", object{"command": "x"})
			for k, v := range c.data {
				if d := cmp.Diff(v, r.Data[k]); d != "" {
					t.Errorf("%s (-want +got):\n%s", k, d)
				}
			}
			for _, w := range c.text {
				if !strings.Contains(r.text(), w) {
					t.Errorf("%q is not in\n%s", w, r.text())
				}
			}
		})
	}
}

func TestRunCommandGoesThroughSh(t *testing.T) {
	var got *mcptest.Command
	p := &mcptest.Platform{Command: func(_ *mcptest.Sandbox, c *mcptest.Command) mcptest.End { got = c; return mcptest.End{} }}
	s := start(t, p, Options{})
	good(t, s, "run_command", object{"command": "echo $HOME", "timeout": 7})
	if d := cmp.Diff([]string{"/bin/sh", "-c", "echo $HOME"}, append([]string{got.Path}, got.Args...)); d != "" {
		t.Errorf("argv (-want +got):\n%s", d)
	}
	if got.Timeout != 7*time.Second || got.Cwd != "/app" {
		t.Errorf("timeout %s, cwd %q", got.Timeout, got.Cwd)
	}
}

func TestWorkingFolder(t *testing.T) {
	cwd := "none"
	p := &mcptest.Platform{NoWork: true, Command: func(_ *mcptest.Sandbox, c *mcptest.Command) mcptest.End { cwd = c.Cwd; return mcptest.End{} }}
	s := start(t, p, Options{})
	for _, args := range []string{`{"command":"pwd"}`, `{"command":"pwd","cwd":"/app"}`} {
		good(t, s, "run_command", args)
		if cwd != "" {
			t.Errorf("%s: without /app the folder is %q, want the sandbox's own", args, cwd)
		}
	}
	if r := good(t, s, "list_files", `{}`); r.Data["path"] != "/home/user" {
		t.Errorf("list_files: %v", r.Data["path"])
	}
	good(t, s, "run_command", object{"command": "pwd", "cwd": "/tmp"})
	if cwd != "/tmp" {
		t.Errorf("cwd %q", cwd)
	}
	r := call(t, s, "run_command", object{"command": "pwd", "cwd": "/nope"})
	if !r.IsError || !strings.Contains(r.text(), `argument "cwd": "/nope" does not exist`) {
		t.Errorf("missing folder: %s", r.text())
	}
}

func TestLongOutputIsCut(t *testing.T) {
	// Two-byte characters at odd places: every cut falls within one.
	whole := "x" + strings.Repeat("é", 500_000)
	p := commands(func(string) mcptest.End {
		return mcptest.End{Stdout: whole[:12<<10] + whole[len(whole)-20<<10:], StdoutBytes: int64(len(whole)), StdoutFile: "/tmp/.abx/out"}
	})
	r := good(t, start(t, p, Options{}), "run_command", object{"command": "x"})
	out := r.Data["stdout"].(string)
	if !utf8.ValidString(out) || strings.ContainsRune(out, utf8.RuneError) {
		t.Error("a character was cut in two")
	}
	head, rest, _ := strings.Cut(out, "\n[... ")
	marker, tail, _ := strings.Cut(rest, " ...]\n")
	left := len(whole) - len(head) - len(tail)
	if want := fmt.Sprintf("%s bytes left out; the whole is in /tmp/.abx/out", thousands(int64(left))); marker != want {
		t.Errorf("marker %q, want %q", marker, want)
	}
	if !strings.HasPrefix(whole, head) || !strings.HasSuffix(whole, tail) || len(head) < 12<<10-4 || len(tail) < 20<<10-4 {
		t.Errorf("head of %d, tail of %d bytes", len(head), len(tail))
	}
	if r.Data["truncated"] != true || r.Data["stdout_bytes"] != float64(len(whole)) || r.Data["stdout_file"] != "/tmp/.abx/out" {
		t.Errorf("got %v, %v, %v", r.Data["truncated"], r.Data["stdout_bytes"], r.Data["stdout_file"])
	}
}

// TestCutFallsAtTheEndOfALine holds that no half of a line reads like data.
func TestCutFallsAtTheEndOfALine(t *testing.T) {
	lines := strings.Repeat("197075\n", 100_000)
	far := strings.Repeat("x", 2<<10) // no line ends near the cut
	for _, c := range []struct {
		name, whole string
		head, tail  string // where they end and begin
	}{
		{"lines", lines, "197075", "197075\n"},
		{"a long line each side", "a\n" + strings.Repeat(far, 20) + "\nb\n", "xxx", "xxx"},
		{"a long line before", strings.Repeat(far, 20) + "\n" + lines, "xxx", "197075\n"},
		{"an empty line at the cut", strings.Repeat("y\n\n", 50_000), "y", "y\n\n"},
	} {
		p := commands(func(string) mcptest.End {
			return mcptest.End{Stdout: c.whole[:12<<10] + c.whole[len(c.whole)-20<<10:], StdoutBytes: int64(len(c.whole)), StdoutFile: "/tmp/.abx/out"}
		})
		out := good(t, start(t, p, Options{}), "run_command", object{"command": "x"}).Data["stdout"].(string)
		head, rest, _ := strings.Cut(out, "\n[... ")
		marker, tail, _ := strings.Cut(rest, " ...]\n")
		if left := len(c.whole) - len(head) - len(tail); !strings.HasPrefix(marker, thousands(int64(left))+" bytes left out") {
			t.Errorf("%s: %q, but %d bytes are", c.name, marker, left)
		}
		if !strings.HasPrefix(c.whole, head) || !strings.HasSuffix(c.whole, tail) || len(head) < 11<<10 || len(tail) < 19<<10 {
			t.Errorf("%s: head of %d, tail of %d bytes", c.name, len(head), len(tail))
		}
		if !strings.HasSuffix(strings.TrimRight(head, "\n"), c.head) || !strings.HasPrefix(strings.TrimLeft(tail, "\n"), c.tail) {
			t.Errorf("%s: ...%q, %q...", c.name, head[len(head)-10:], tail[:10])
		}
	}
}

func TestCancelEndsTheCommand(t *testing.T) {
	started, ended := make(chan struct{}), make(chan struct{})
	p := &mcptest.Platform{Abx: &e2b.SandboxAbx{}, Command: func(_ *mcptest.Sandbox, c *mcptest.Command) mcptest.End {
		if c.Line() != "sleep 600" {
			return mcptest.End{Stdout: "ok"}
		}
		close(started)
		<-c.Ctx.Done()
		close(ended)
		return mcptest.End{}
	}}
	s := start(t, p, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	res := make(chan *Result, 1)
	go func() { res <- s.Call(ctx, "run_command", Request{Arguments: []byte(`{"command":"sleep 600"}`)}) }()
	<-started
	cancel()
	<-ended
	if r := <-res; !r.IsError || !strings.Contains(r.Content[0].Text, "cancelled") {
		t.Errorf("got %+v", r)
	}
	if r := good(t, s, "run_command", object{"command": "echo ok"}); r.Data["stdout"] != "ok" {
		t.Error("the sandbox is not usable any more")
	}
}

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &mcptest.Platform{Abx: &e2b.SandboxAbx{}, Command: func(_ *mcptest.Sandbox, c *mcptest.Command) mcptest.End {
			c.Stdout("step 1\n")
			time.Sleep(3 * time.Second)
			c.Stdout("\x1b[1mstep 2\x1b[0m\n")
			time.Sleep(4 * time.Second)
			return mcptest.End{}
		}}
		p.Code = func(*mcptest.Sandbox, *mcptest.Code) e2b.LineAbx { return e2b.LineAbx{} }
		s := New(Options{Client: p.Client(t)})
		var got []string
		r := callWith(t, s, "run_command", object{"command": "x"}, Request{Progress: func(p Progress) { got = append(got, p.Message) }})
		if r.IsError {
			t.Fatal(r.text())
		}
		want := []string{"running for 2 s", "running for 4 s: step 2", "running for 6 s: step 2"}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("progress (-want +got):\n%s", d)
		}
		if err := s.End(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

func TestLostSandboxKeepsWhatCame(t *testing.T) {
	p := &mcptest.Platform{Abx: &e2b.SandboxAbx{}}
	p.Command = func(s *mcptest.Sandbox, c *mcptest.Command) mcptest.End {
		if c.Line() == "die" {
			c.Stdout("last words\n")
			s.Expire()
			panic(http.ErrAbortHandler) // the connection is cut
		}
		return mcptest.End{}
	}
	s := start(t, p, Options{})
	r := call(t, s, "run_command", object{"command": "die"})
	if !r.IsError || !strings.Contains(r.text(), "last words") || !strings.Contains(r.text(), "next call") {
		t.Errorf("got %s", r.text())
	}
	r = good(t, s, "run_command", object{"command": "again"})
	if !strings.Contains(r.text(), "new, empty one") || r.Data["sandbox_id"] != p.Alive()[0] {
		t.Errorf("the replacement is not told: %s %v", r.text(), r.Data)
	}
	if r = good(t, s, "run_command", object{"command": "again"}); r.Data["notes"] != nil || r.Data["sandbox_id"] != nil {
		t.Errorf("told twice: %s", r.text())
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain":                                 "plain",
		"\x1b]0;title\a$ ls":                    "$ ls",
		"\x1b]8;;http://x\x1b\\l\x1b]8;;\x1b\\": "l",
		"\x1b[?25l\x1b[2K\x1b(Bx\x1b7\x1b8":     "x",
		"end\x1b[3":                             "end",
		"end\x1b":                               "end",
		"a\r\nb\r\r\nc\r":                       "a\nb\nc",
		"12\b\b34":                              "34",
		"é\bx":                                  "x",
		"\b\bx\n\by":                            "x\ny",
		"\x1b]no end\nnext":                     "no end\nnext",
	} {
		if got := clean([]byte(in)); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add([]byte("\x1b[31mred\x1b[0m\r\n\b"))
	f.Fuzz(func(t *testing.T, p []byte) {
		if out := clean(p); !utf8.ValidString(out) || len(out) > 3*len(p) {
			t.Errorf("%q", out)
		}
		s := stream{kept: p, head: len(p) / 2, total: int64(len(p)) + 1}
		if !utf8.ValidString(s.text()) {
			t.Errorf("%q", s.text())
		}
	})
}
