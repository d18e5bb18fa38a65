//go:build linux

package interpreter

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/account"
	"github.com/agent-sandbox/abx/internal/agent/process"
	"github.com/agent-sandbox/abx/internal/e2b"
)

func TestRefusals(t *testing.T) {
	b := newBench(t, false)
	for _, test := range []struct {
		method, path, body string
		status             int
		text               string
	}{
		{"GET", "/health", "", 200, `"OK"`},
		{"POST", "/execute", "", 400, "code is missing"},
		{"POST", "/execute", "{", 400, "not the JSON"},
		{"POST", "/execute", `{"code":5}`, 400, "not the JSON"},
		{"POST", "/execute", `{"code":"1","language":"python","context_id":"x"}`, 400, "exclude each other"},
		{"POST", "/execute", `{"code":"1","context_id":"x"}`, 404, `context "x" not found`},
		{"POST", "/execute", `{"code":"1","language":"JavaScript"}`, 400, "run_command and `node`"},
		{"POST", "/execute", `{"code":"1","language":"ts"}`, 400, "TypeScript"},
		{"POST", "/execute", `{"code":"1","language":"r"}`, 400, "Rscript"},
		{"POST", "/execute", `{"code":"1","language":"java"}`, 400, "Java"},
		{"POST", "/execute", `{"code":"1","language":"pyhton"}`, 400, `did you mean "python"?`},
		{"POST", "/execute", `{"code":"1","language":"javascrpt"}`, 400, `did you mean "javascript"?`},
		{"POST", "/execute", `{"code":"1","language":"cobol"}`, 400, "kernels for python and shell"},
		{"POST", "/execute", `{"code":"1","env_vars":{"a=b":"c"}}`, 400, "name of a variable"},
		{"POST", "/execute", `{"code":"` + strings.Repeat("x", maxBody) + `"}`, 413, "16 MiB"},
		{"POST", "/contexts", `{"cwd":"/nonexistent"}`, 400, "not a folder"},
		{"POST", "/contexts", `{"language":"R"}`, 400, "Rscript"},
		{"POST", "/contexts/none/restart", "", 404, "not found"},
		{"DELETE", "/contexts/none", "", 404, "not found"},
		{"GET", "/execute", "", 405, ""},
	} {
		status, text := b.get(test.method, test.path, test.body)
		if status != test.status || !strings.Contains(text, test.text) {
			t.Errorf("%s %s %.60s: got %d %q, want %d %q", test.method, test.path, test.body, status, text, test.status, test.text)
		}
	}
	for header, value := range map[string]string{e2b.HeaderTimeoutMS: "-1", e2b.HeaderWindow: "5"} {
		r := must1(http.NewRequest("POST", b.url+"/execute", strings.NewReader(`{"code":"1"}`)))
		r.Header.Set(header, value)
		resp := must1(http.DefaultClient.Do(r))
		resp.Body.Close()
		if resp.StatusCode != 400 {
			t.Errorf("%s %s: status %d", header, value, resp.StatusCode)
		}
	}
}

func TestNoInterpreter(t *testing.T) {
	b := newBench(t, false, func(o *Options) {
		o.Env = func(account.Account) []string { return []string{"PATH=/nonexistent:relative"} }
	})
	for _, l := range []string{"python", "bash"} {
		status, text := b.get("POST", "/execute", `{"code":"1","language":"`+l+`"}`)
		if status != 400 || !strings.Contains(text, "not installed") || !strings.Contains(text, "/nonexistent") {
			t.Errorf("%s: %d %s", l, status, text)
		}
	}
}

func TestContexts(t *testing.T) {
	b := newBench(t, false)
	_, text := b.get("GET", "/contexts", "")
	var all []e2b.Context
	must(t, json.Unmarshal([]byte(text), &all))
	if len(all) != 1 || all[0].Language != "python" || all[0].CWD != b.home {
		t.Fatalf("contexts %s", text)
	}
	if c := must1(b.defaultContext(python)); c.kernel != nil {
		t.Error("the list started a kernel")
	}
	b.python("x = 1")
	want{Main: "1"}.check(t, "x", b.run(call{Execute: e2b.Execute{Code: "x", ContextID: all[0].ID}}))
	must(t, os.Mkdir(filepath.Join(b.home, "sub"), 0o755))
	status, text := b.get("POST", "/contexts", `{"language":"BASH","cwd":"`+b.home+`/sub"}`)
	var made e2b.Context
	must(t, json.Unmarshal([]byte(text), &made))
	if status != 200 || made.Language != "bash" || made.CWD != b.home+"/sub" {
		t.Errorf("%d %s", status, text)
	}
	o := b.run(call{Execute: e2b.Execute{Code: "pwd; y=2", ContextID: made.ID}})
	want{Stdout: made.CWD + "\n"}.check(t, "pwd", o)
	if status, text := b.get("POST", "/contexts/"+made.ID+"/restart", ""); status != 200 || text != "null" {
		t.Errorf("restart: %d %s", status, text)
	}
	o = b.run(call{Execute: e2b.Execute{Code: "echo ${y-gone}", ContextID: made.ID}})
	want{Stdout: "gone\n"}.check(t, "y", o)
	if o.count != 1 {
		t.Errorf("count %d after a restart", o.count)
	}
	if status, text := b.get("DELETE", "/contexts/"+made.ID, ""); status != 200 || text != "null" {
		t.Errorf("delete: %d %s", status, text)
	}
	if status, _ := b.get("POST", "/execute", `{"code":"1","context_id":"`+made.ID+`"}`); status != 404 {
		t.Errorf("execute after delete: %d", status)
	}
	b.get("DELETE", "/contexts/"+all[0].ID, "")
	want{Error: "NameError", Value: "name 'x' is not defined", Exit: 1}.check(t, "x", b.python("x"))
	_, text = b.get("GET", "/contexts", "")
	must(t, json.Unmarshal([]byte(text), &all))
	if len(all) != 1 || all[0].ID == "" {
		t.Errorf("contexts %s", text)
	}
	for range maxContexts {
		status, text = b.get("POST", "/contexts", "")
	}
	if status != 429 || !strings.Contains(text, "delete one") {
		t.Errorf("too many contexts: %d %s", status, text)
	}
}

// Cells of one context are serial, in order; contexts are not.
func TestQueue(t *testing.T) {
	b := newBench(t, false)
	b.python("log = []")
	first := make(chan outcome)
	started := make(chan struct{})
	go func() {
		first <- b.run(call{
			Execute: e2b.Execute{Code: "import os, time\nprint('in', flush=True)\nwhile not os.path.exists('go'): time.sleep(.01)\nlog.append('first')"},
			onLine: func(l line) {
				if l.Type == e2b.LineStdout {
					close(started)
				}
			},
		})
	}()
	<-started
	second := make(chan outcome)
	go func() { second <- b.python("log.append('second'); log") }()
	c := must1(b.defaultContext(python))
	waitFor(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.waiting == 2 })
	_, text := b.get("POST", "/contexts", "")
	o := b.run(call{Execute: e2b.Execute{Code: "open('go', 'w').close(); 'side'", ContextID: contextID(t, text)}})
	want{Main: "side"}.check(t, "side", o)
	want{Stdout: "in\n"}.check(t, "first", <-first)
	want{Main: "['first', 'second']"}.check(t, "second", <-second)
}

// waitFor polls what cannot be waited for.
func waitFor(t *testing.T, ready func() bool) {
	t.Helper()
	for end := time.Now().Add(guard); !ready(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("it does not happen")
		}
	}
}

// A client that goes away interrupts its cell, and the state is kept.
func TestClientGone(t *testing.T) {
	for language, code := range map[string][3]string{
		"python": {"x = 1", "import time\nprint('in')\ntime.sleep(600)", "print(x)"},
		"bash":   {"x=1", "echo in; sleep 600", "echo $x"},
	} {
		t.Run(language, func(t *testing.T) {
			b := newBench(t, true)
			run := func(code string) outcome { return b.run(call{Execute: e2b.Execute{Code: code, Language: language}}) }
			run(code[0])
			ctx, cancel := context.WithCancel(context.Background())
			resp := must1(b.post(call{Execute: e2b.Execute{Code: code[1], Language: language}, ctx: ctx}))
			buf := make([]byte, 1<<10)
			for text := ""; !strings.Contains(text, `"in\n"`); {
				n, err := resp.Body.Read(buf)
				must(t, err)
				text += string(buf[:n])
			}
			cancel()
			resp.Body.Close()
			want{Stdout: "1\n"}.check(t, code[2], run(code[2]))
		})
	}
}

func TestRestartEndsTheRunningCell(t *testing.T) {
	for _, method := range []string{"restart", "delete", "close"} {
		t.Run(method, func(t *testing.T) {
			b := newBench(t, true)
			_, text := b.get("POST", "/contexts", "")
			id := contextID(t, text)
			b.run(call{
				Execute: e2b.Execute{Code: "print('in')\nwhile True:\n    try:\n        while True: pass\n    except BaseException: pass", ContextID: id},
				onLine: func(l line) {
					switch {
					case l.Type == e2b.LineStdout && method == "restart":
						b.get("POST", "/contexts/"+id+"/restart", "")
					case l.Type == e2b.LineStdout && method == "delete":
						b.get("DELETE", "/contexts/"+id, "")
					case l.Type == e2b.LineError && (l.Name != "ContextRestarting" || l.Value == ""):
						t.Errorf("error %+v", l)
					case l.Type == e2b.LineStdout:
						must(t, b.Close())
					}
				},
			})
			if method == "restart" {
				o := b.run(call{Execute: e2b.Execute{Code: "1+1", ContextID: id}})
				want{Main: "2"}.check(t, "1+1", o)
			}
		})
	}
}

// Case 31: 50 MB pass through a window; memory does not grow with them.
func TestWindow(t *testing.T) {
	b := newBench(t, true)
	b.python("1")
	const n = 50 << 20
	before := heap()
	o := b.run(call{Execute: e2b.Execute{Code: "import sys\nfor i in range(50 << 10): sys.stdout.write('x' * 1023 + '\\n')\nprint('last', end='')"}, window: "12288,20480"})
	if grown := heap() - before; grown > 20<<20 {
		t.Errorf("heap grew by %d", grown)
	}
	if o.end.StdoutBytes != n+4 || len(o.stdout) != 12288+20480 || !strings.HasSuffix(o.stdout, "x\nlast") || o.end.ExitCode != 0 {
		t.Errorf("%d bytes sent, end %+v", len(o.stdout), o.end)
	}
	info, err := os.Stat(o.end.StdoutFile)
	if err != nil || info.Size() != n+4 || info.Mode().Perm() != 0o644 {
		t.Errorf("file %q: %v %v", o.end.StdoutFile, info, err)
	}
	if o.end.StderrFile != "" {
		t.Errorf("stderr file %q", o.end.StderrFile)
	}
	o = b.run(call{Execute: e2b.Execute{Code: "for _ in range(20000): print('é' * 50)"}, window: "1001,1001"})
	if strings.Contains(o.stdout, "\uFFFD") || !strings.HasSuffix(o.stdout, "é\n") {
		t.Errorf("a character was cut: %q", o.stdout)
	}
	o = b.run(call{Execute: e2b.Execute{Code: "print('short')"}, window: "1000,1000"})
	if o.stdout != "short\n" || o.end.StdoutFile != "" || o.end.StdoutBytes != 6 {
		t.Errorf("short: %q %+v", o.stdout, o.end)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// Without a window everything passes.
func TestAllOutput(t *testing.T) {
	b := newBench(t, true)
	o := b.shell("head -c 20000000 /dev/zero | tr '\\0' x; head -c 1000000 /dev/zero >&2")
	if len(o.stdout) != 20000000 || len(o.stderr) != 1000000 || o.end.StdoutBytes != 20000000 {
		t.Errorf("%d %d %+v", len(o.stdout), len(o.stderr), o.end)
	}
}

// A client that does not read holds its cell back, and nobody else.
func TestStalledClient(t *testing.T) {
	b := newBench(t, true)
	resp := must1(b.post(call{Execute: e2b.Execute{Code: "while True: print('x' * 10000)"}}))
	defer resp.Body.Close()
	want{Stdout: "ok\n"}.check(t, "echo", b.shell("echo ok"))
	c := must1(b.defaultContext(python))
	status, _ := b.get("POST", "/contexts/"+c.info.ID+"/restart", "")
	want{Main: "2"}.check(t, "1+1", b.python("1+1"))
	if status != 200 {
		t.Errorf("restart: %d", status)
	}
}

// Cases 34 and 36.
func TestCharactersAndBytes(t *testing.T) {
	b := newBench(t, true)
	o := b.shell(`printf '\xf0\x9f'; sleep .2; printf '\x98\x80'`)
	for _, l := range o.lines {
		if l.Type == e2b.LineStdout && l.Text != "😀" {
			t.Errorf("line %q", l.Text)
		}
	}
	o = b.shell("head -c 4096 /dev/urandom | tee bytes")
	if raw := must1(os.ReadFile(filepath.Join(b.home, "bytes"))); string(raw) != o.stdout {
		t.Errorf("%d bytes differ from %d", len(o.stdout), len(raw))
	}
	o = b.shell(`printf 'a\xf0\x9f'`)
	if o.stdout != "a\xf0\x9f" || !strings.Contains(o.lines[len(o.lines)-2].Text, "\uFFFD") {
		t.Errorf("%q", o.stdout)
	}
}

func TestKeepalive(t *testing.T) {
	b := newBench(t, true)
	b.progressEvery, b.aliveEvery = 20*time.Millisecond, 20*time.Millisecond
	seen := make(chan line, 1000)
	o := b.run(call{
		Execute: e2b.Execute{Code: "import os, time\nprint('first\\nnewest')\nwhile not os.path.exists('go'): time.sleep(.01)"}, window: "100,100",
		onLine: func(l line) {
			if l.Type == e2b.LineKeepalive && l.Abx != nil && l.Abx.NewestLine == "newest" {
				seen <- l
				_ = os.WriteFile(filepath.Join(b.home, "go"), nil, 0o644)
			}
		},
	})
	if l := <-seen; l.Abx.StdoutBytes != 13 || o.end.ExitCode != 0 {
		t.Errorf("%+v", l.Abx)
	}
	o = b.shell("sleep .2")
	if l := o.lines[1]; l.Type != e2b.LineKeepalive || l.Abx != nil {
		t.Errorf("%+v", l)
	}
}

func TestOutputFiles(t *testing.T) {
	b := newBench(t, true)
	must(t, os.WriteFile(filepath.Join(b.home, "old"), []byte("x"), 0o666))
	must(t, os.Chmod(filepath.Join(b.home, "old"), 0o666))
	files := func(code, language string) []string {
		o := b.run(call{Execute: e2b.Execute{Code: code, Language: language}, files: true})
		var got []string
		for _, f := range o.end.OutputFiles {
			if f.Name != filepath.Base(f.Path) {
				t.Errorf("name %q of %q", f.Name, f.Path)
			}
			got = append(got, strings.TrimPrefix(f.Path, b.home+"/")+" "+strconv.FormatInt(f.Size, 10))
		}
		if o.end.OutputFilesTotal != 0 {
			got = append(got, fmt.Sprint(o.end.OutputFilesTotal))
		}
		return got
	}
	for _, test := range []struct {
		code, language string
		want           []string
	}{
		{"1", "python", nil},
		{"open('a.txt', 'w').write('hi')", "python", []string{"a.txt 2"}},
		{"1", "python", nil},
		{"mkdir -p d/e __pycache__ .cache/x lib/site-packages; touch d/e/f __pycache__/p .cache/x/y lib/site-packages/z; ln -s /etc/passwd link; mkfifo ff", "bash", []string{"d/e/f 0"}},
		{"echo more >> old; touch -d '2001-01-01' old a.txt", "bash", []string{"a.txt 2", "old 6"}},
		{"mv d/e/f g; rm a.txt", "bash", []string{"g 0"}},
		{"cat old >/dev/null", "bash", nil},
		{"open('caf\\u00e9 \\n.csv', 'w').close()", "python", []string{"café \n.csv 0"}},
	} {
		if d := cmp.Diff(test.want, files(test.code, test.language)); d != "" {
			t.Errorf("%s\n%s", test.code, d)
		}
	}
	got := files("mkdir many; for i in $(seq 150); do : > many/$i; done; : > top", "bash")
	if len(got) != 101 || got[100] != "151" || got[99] != "top 0" {
		t.Errorf("%d: %v", len(got), got)
	}
	got = files("import os\nfor d in range(3):\n    os.mkdir(f'd{d}')\n    for i in range(1000): open(f'd{d}/{i}', 'w').close()", "python")
	if len(got) != 101 || got[100] != "3000" {
		t.Errorf("%v", got[len(got)-1])
	}
	if got = files("1", "python"); got != nil {
		t.Errorf("nothing made, got %v", got)
	}
	o := b.run(call{Execute: e2b.Execute{Code: "open('b.txt', 'w').close()\nraise ValueError"}, files: true})
	if len(o.end.OutputFiles) != 1 {
		t.Errorf("after an error: %+v", o.end)
	}
}

// What a kernel says is not believed.
func TestHostileKernel(t *testing.T) {
	const find = "import os, json, sys\nk = sys.modules['_abx_kernel']\ndef raw(b): os.write(k.K.fd_out, b)\ndef frame(o):\n    b = json.dumps(o).encode()\n    raw(len(b).to_bytes(4, 'big') + b)\n"
	for name, test := range map[string]struct{ code, text string }{
		"long":    {"raw(b'\\xff\\xff\\xff\\xff')", "message of 4294967295 bytes"},
		"no JSON": {"raw(b'\\0\\0\\0\\3abc')", "not ours"},
		"type":    {"frame({'type': 'x'})", "unknown type"},
		"id":      {"frame({'type': 'done', 'id': 99})", "cell 99 is done"},
		"ready":   {"frame({'type': 'ready'})", "twice that it is ready"},
		"wrong":   {"frame({'type': 'done', 'id': 'x'})", "not ours"},
		"deep":    {"b = b'{\"type\":\"display\",\"data\":{\"application/json\":' + b'[' * 100000 + b']' * 100000 + b'}}'\nraw(len(b).to_bytes(4, 'big') + b)", "not ours"},
		"list":    {"frame([])", "not ours"},
		"half":    {"raw(b'\\0\\0')\nos._exit(3)", "exit code 3"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, true)
			o := b.python(find + test.code + "\nimport time; time.sleep(600)")
			if !o.end.StateLost || o.err == nil || !strings.Contains(o.err.Value, test.text) {
				t.Errorf("end %+v, error %+v", o.end, o.err)
			}
			want{Main: "2"}.check(t, "1+1", b.python("1+1"))
		})
	}
	t.Run("early done", func(t *testing.T) {
		b := newBench(t, true)
		o := b.python(find + "frame({'type': 'done', 'id': k.K.id, 'exit_code': 1 << 40, 'threads': -5, 'cwd': 'x' * 100000})\n")
		if o.end.Background < 0 {
			t.Errorf("end %+v", o.end)
		}
		o = b.python("1+1") // the kernel says done once more, for nothing that runs, or dies of it here
		if o.main() != "2" && !o.end.StateLost {
			t.Errorf("end %+v", o.end)
		}
		want{Main: "2"}.check(t, "1+1", b.python("1+1"))
	})
	t.Run("kinds", func(t *testing.T) {
		b := newBench(t, true)
		o := b.python(find + "frame({'type': 'display', 'data': {'text/plain': {'a': 1}, 'image/png': [1], 'text/html': 'h', 'application/json': 's', 'x/\"y': None}})")
		if r := o.results[0]; r.Text != "" || r.PNG != "" || r.HTML != "h" || string(r.JSON) != `"s"` || string(r.Extra) != `{"x/\"y":null}` {
			t.Errorf("%+v", r)
		}
	})
	t.Run("shell", func(t *testing.T) {
		b := newBench(t, true)
		for code, text := range map[string]string{
			`printf 'done 99 0 /\0' > "$__abx_dir/out"; sleep 600`:               "cell 99",
			`printf 'nonsense\0' > "$__abx_dir/out"; sleep 600`:                  "not ours",
			`head -c 100000 /dev/zero | tr '\0' x > "$__abx_dir/out"; sleep 600`: "more than 8192",
			`printf 'done 1 999 /\0' > "$__abx_dir/out"; sleep 600`:              "not ours",
		} {
			o := b.shell(code)
			if !o.end.StateLost || o.err == nil || !strings.Contains(o.err.Value, text) {
				t.Errorf("%s: end %+v, error %+v", code, o.end, o.err)
			}
		}
		want{Stdout: "ok\n"}.check(t, "echo", b.shell("echo ok"))
	})
}

// counters say that memory ran out once.
type counters struct{ oom int64 }

func (c *counters) OOMKills() (int64, bool)    { c.oom++; return c.oom, true }
func (c *counters) PidsRefused() (int64, bool) { return 0, true }
func (c *counters) MemoryPeak() (int64, bool)  { return 2 << 30, true }

func TestReasons(t *testing.T) {
	b := newBench(t, true, func(o *Options) {
		o.Judge = &process.Judge{Counters: &counters{}, Limits: e2b.Limits{MemoryBytes: 2 << 30}}
	})
	o := b.python("import os; os.kill(os.getpid(), 9)")
	if o.end.Reason != e2b.ReasonOOM || o.end.Detail != "memory limit 2 GiB reached (peak 2.0 GiB)" || !strings.Contains(o.err.Value, "lack of memory") {
		t.Errorf("end %+v, error %+v", o.end, o.err)
	}
	b = newBench(t, true)
	o = b.python("raise OSError(28, 'No space left on device')")
	if o.end.Reason != e2b.ReasonDiskFull || o.end.ExitCode != 1 || o.end.StateLost {
		t.Errorf("end %+v", o.end)
	}
}

// Nothing is left of a service that was closed.
func TestCloseLeavesNothing(t *testing.T) {
	b := newBench(t, true)
	b.python("import subprocess\np = subprocess.Popen(['sleep', '600'], start_new_session=True)")
	o := b.shell("sleep 600 & echo $! $$")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			resp := must1(b.post(call{Execute: e2b.Execute{Code: "sleep 600", Language: "bash"}}))
			defer resp.Body.Close()
			text := must1(io.ReadAll(resp.Body))
			if !strings.Contains(string(text), "deleted") {
				t.Errorf("call %d: %d %s", i, resp.StatusCode, text)
			}
		})
	}
	c := must1(b.defaultContext(bash))
	waitFor(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.waiting == 4 })
	must(t, b.Close())
	must(t, b.Close())
	wg.Wait()
	for _, f := range strings.Fields(o.stdout) {
		pid := must1(strconv.Atoi(f))
		if err := syscall.Kill(pid, 0); err == nil && !zombie(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
	left, _ := filepath.Glob(filepath.Join(b.opts.RunDir, "kernel-*"))
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if status, _ := b.get("POST", "/execute", `{"code":"1"}`); status != 503 {
		t.Errorf("status %d after Close", status)
	}
}

func TestDescriptorsDoNotGrow(t *testing.T) {
	b := newBench(t, false)
	cycle := func() {
		_, text := b.get("POST", "/contexts", `{"language":"bash"}`)
		id := contextID(t, text)
		b.run(call{Execute: e2b.Execute{Code: "exec true", ContextID: id}})
		b.run(call{Execute: e2b.Execute{Code: "true", ContextID: id}})
		c := must1(b.find(id))
		b.get("DELETE", "/contexts/"+id, "")
		c.wait()
		b.python("import os; os._exit(0)")
	}
	cycle()
	before := descriptors(t)
	for range 10 {
		cycle()
	}
	if after := descriptors(t); after > before+3 {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

func descriptors(t *testing.T) int {
	return len(must1(os.ReadDir("/proc/self/fd")))
}

// TestAsOrdinaryUser runs the tests again as uid 1000, where root runs them.
func TestAsOrdinaryUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("is one already")
	}
	if testing.Short() {
		t.Skip("runs the whole again")
	}
	exe := filepath.Join(t.TempDir(), "test")
	must(t, os.Link(must1(os.Executable()), exe))
	for p := filepath.Dir(exe); p != "/tmp" && p != "/"; p = filepath.Dir(p) {
		must(t, os.Chmod(p, 0o755))
	}
	cmd := exec.Command(exe, "-test.short", "-test.run", "Cells|Timeout|Death|Files|Window|Contexts")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: account.UserID, Gid: account.UserID}, Pdeathsig: unix.SIGKILL}
	cmd.Env, cmd.Dir = []string{"HOME=/tmp", "PATH=/usr/bin:/bin"}, "/tmp"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, clipTest(string(out)))
	}
}
