//go:build linux

package interpreter

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// want is what a step of a table must give. Empty texts must be empty; those
// that begin with ~ must only contain the rest.
type want struct {
	Stdout, Stderr, Main, Error, Value string
	Exit                               int
	Lost                               bool
}

func (w want) check(t *testing.T, code string, o outcome) {
	t.Helper()
	got := want{Stdout: o.stdout, Stderr: o.stderr, Main: o.main(), Exit: o.end.ExitCode, Lost: o.end.StateLost}
	if o.err != nil {
		got.Error, got.Value = o.err.Name, o.err.Value
	}
	for _, f := range []struct{ got, want *string }{
		{&got.Stdout, &w.Stdout}, {&got.Stderr, &w.Stderr}, {&got.Main, &w.Main}, {&got.Error, &w.Error}, {&got.Value, &w.Value},
	} {
		if part, ok := strings.CutPrefix(*f.want, "~"); ok && strings.Contains(*f.got, part) {
			*f.got = *f.want
		}
	}
	if d := cmp.Diff(w, got); d != "" {
		t.Errorf("%s\n(-want +got)\n%s", code, clipTest(d))
	}
}

func clipTest(s string) string {
	if len(s) > 3000 {
		return s[:3000] + "..."
	}
	return s
}

type step struct {
	code string
	want
}

// asUsers runs a test with kernels as this user and, as root, as uid 1000.
func asUsers(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Run("self", func(t *testing.T) { f(t, newBench(t, false)) })
	if os.Getuid() == 0 {
		t.Run("user", func(t *testing.T) { f(t, newBench(t, true)) })
	}
}

var pythonSteps = map[string][]step{
	"state": {
		{"x = 1\nimport json\ndef f(a): return a + x", want{}},
		{"x+1", want{Main: "2"}},
		{"f(10), json.dumps({'a': 1})", want{Main: `(11, '{"a": 1}')`}},
		{"_", want{Main: `(11, '{"a": 1}')`}},
	},
	"last expression": {
		{"1\n2", want{Main: "2"}},
		{"5;", want{}},
		{"5; # quiet", want{}},
		{"';'", want{Main: ";"}},
		{"'it''s'", want{Main: "its"}},
		{"None", want{}},
		{"a = 3", want{}},
		{"print('x') or 7", want{Stdout: "x\n", Main: "7"}},
		{"", want{}},
		{"# nothing", want{}},
		{"if True:\n    9", want{}},
		{"\"\"\"doc\"\"\"", want{Main: "doc"}},
		{"x = 1\r\nx;\r\n", want{}},
	},
	"dedent": {
		{"    a = 1\n    if a:\n        b = 2\n    b", want{Main: "2"}},
		{"\n\n    c = '''x\n  y'''\n    len(c)", want{Main: "~"}},
	},
	"errors": {
		{"def g():\n    return 1/0\n\ng()", want{Error: "ZeroDivisionError", Value: "division by zero", Exit: 1}},
		{"raise ValueError()", want{Error: "ValueError", Exit: 1}},
		{"x = (", want{Error: "SyntaxError", Value: "~line 1", Exit: 1}},
		{"class E(Exception):\n    def __str__(self): raise TypeError('no')\nraise E", want{Error: "E", Value: "~its str raised TypeError", Exit: 1}},
		{"raise BaseException('b')", want{Error: "BaseException", Value: "b", Exit: 1}},
		{"def r(): return r()\nr()", want{Error: "RecursionError", Value: "~maximum recursion", Exit: 1}},
		{"a\x00b", want{Error: "~Error", Value: "~null bytes", Exit: 1}},
		{"raise KeyboardInterrupt", want{Error: "KeyboardInterrupt", Exit: 130}},
		{"raise Exception('x' * 10**6)", want{Error: "Exception", Value: "~characters left out", Exit: 1}},
		{"bytearray(1 << 60)", want{Error: "MemoryError", Value: "out of memory: a limit of the sandbox or of the interpreter was reached", Exit: 1}},
	},
	"exit keeps state": {
		{"v = 4\nexit()", want{}},
		{"v", want{Main: "4"}},
		{"exit(3)", want{Error: "SystemExit", Value: "3", Exit: 3}},
		{"import sys; sys.exit('bad')", want{Error: "SystemExit", Value: "bad", Stderr: "bad\n", Exit: 1}},
		{"quit", want{Main: "~quit()"}},
		{"raise SystemExit", want{}},
		{"sys.exit(True)", want{Error: "SystemExit", Value: "True", Exit: 1}},
		{"v", want{Main: "4"}},
	},
	"input": {
		{"input('name? ')", want{Stdout: "name? \n", Error: "EOFError", Value: "~put the value into the code", Exit: 1}},
		{"import sys; sys.stdin.read()", want{}},
	},
	"asyncio": {
		{"import asyncio\nasync def f(n):\n    await asyncio.sleep(0)\n    return n\nawait f(3)", want{Main: "3"}},
		{"asyncio.run(f(4))", want{Main: "4"}},
		{"await f(5)", want{Main: "5"}},
		{"x = await f(6)\nx", want{Main: "6"}},
		{"[await f(i) for i in range(3)]", want{Main: "[0, 1, 2]"}},
		{"async with asyncio.Lock(): print('in')", want{Stdout: "in\n"}},
		{"t = asyncio.create_task(f(8))\nNone", want{}},
		{"await t", want{Main: "8"}},
		{"async def bad(): raise KeyError('k')\nawait bad()", want{Error: "KeyError", Value: "'k'", Exit: 1}},
		{"def main():\n    asyncio.run(f(1))\n    print('ran')\nmain()", want{Stdout: "ran\n"}},
		{"import asyncio\nasync def m():\n    t = asyncio.create_task(f(2))\n    return await t\nasyncio.run(m())", want{Main: "2"}},
	},
	"magics": {
		{"!echo hi", want{Stdout: "hi\n"}},
		{"x = 5\n!echo {x} $x $HOME_NOT $$ | tr -d '0-9' | head -c 2", want{Stdout: "~ "}},
		{"out = !printf 'a\\nb\\n'\nout", want{Main: "['a', 'b']"}},
		{"if x:\n    !echo inside\nprint('after')", want{Stdout: "inside\nafter\n"}},
		{"%%bash\nv=1\necho $v; pwd >/dev/null", want{Stdout: "1\n"}},
		{"%%bash\nexit 3", want{Error: "CalledProcessError", Value: "~3", Exit: 1}},
		{"%cd /", want{Stdout: "/\n"}},
		{"%pwd", want{Main: "/"}},
		{"%tim x", want{Error: "UsageError", Value: "~did you mean %time?", Exit: 1}},
		{"%time x + 1", want{Stdout: "~wall time", Main: "6"}},
		{"%%time\ny = 2\ny", want{Stdout: "~wall time", Main: "2"}},
		{"%matplotlib inline", want{}},
		{"a = 7 % 4\na", want{Main: "3"}},
		{"s = '''\n!not a command\n%nor magic\n'''\nlen(s)", want{Main: "27"}},
		{"!false\n_exit_code", want{Main: "1"}},
		{"%env ABX_T=1\n!echo $ABX_T", want{Stdout: "env: ABX_T=1\n1\n"}},
		{"%%capture c\nprint('kept')", want{}},
		{"print(c.stdout, end='')", want{Stdout: "kept\n"}},
		{"!echo a \\\n  b\n1", want{Stdout: "a b\n", Main: "1"}},
		{"len?", want{Stdout: "~number of items"}},
		{"x = = 1", want{Error: "SyntaxError", Value: "~invalid syntax", Exit: 1}},
		{"%%writefile /tmp/abx-magic-test.py\nz = 44\n", want{Stdout: "Wrote /tmp/abx-magic-test.py\n"}},
		{"%run /tmp/abx-magic-test.py\nz", want{Main: "44"}},
		{"!rm /tmp/abx-magic-test.py", want{}},
		{"%%html\n<b>x</b>", want{}},
	},
	"order of C-level output": {
		{"import os, subprocess\nprint('a')\nos.write(1, b'b\\n')\nsubprocess.run('echo c', shell=True)\nprint('d', end='')", want{Stdout: "a\nb\nc\nd"}},
		{"import ctypes\nctypes.pythonapi.puts(b'from C')\nNone", want{Stdout: "from C\n"}},
	},
	"bytes and surrogates": {
		{"print('\\udc80\\ud800')", want{Stdout: "\\udc80\\ud800\n"}},
		{"'\\udc80'", want{Main: `\udc80`}},
		{"import sys; sys.stdout.buffer.write(b'\\xff\\xfe\\n'); sys.stdout.flush()", want{Stdout: "\xff\xfe\n"}},
		{"'é😀'", want{Main: "é😀"}},
		{"print('\\0')", want{Stdout: "\x00\n"}},
		{"raise ValueError('\\ud800')", want{Error: "ValueError", Value: `\ud800`, Exit: 1}},
	},
	"repaired": {
		{"import sys, os; sys.stdout.close()", want{}},
		{"print('back')", want{Stdout: "back\n"}},
		{"os.close(1); os.close(2)", want{}},
		{"print('again'); print('err', file=sys.stderr)", want{Stdout: "again\n", Stderr: "err\n"}},
		{"f = open('/dev/null', 'w'); os.dup2(f.fileno(), 1); print('lost')", want{}},
		{"print('shown')", want{Stdout: "shown\n"}},
		{"sys.stdout = None; sys.stderr = None", want{}},
		{"print('x')", want{Stdout: "x\n"}},
		{"os.set_blocking(1, False)", want{}},
		{"print('y' * 1000000)", want{Stdout: strings.Repeat("y", 1000000) + "\n"}},
		{"import tempfile, shutil; d = tempfile.mkdtemp(); os.chdir(d); shutil.rmtree(d)", want{}},
		{"os.getcwd()", want{Main: "/tmp", Stderr: "~is gone; now in /tmp\n"}},
		{"os.close(0)", want{}},
		{"os.fstat(0) is not None", want{Main: "True"}},
		{"os.closerange(3, 256); 1", want{Main: "1"}},
		{"2", want{Main: "2"}},
	},
	"fork": {
		{"import os\nkeep = 1\nif os.fork() == 0:\n    print('child')\nelse:\n    os.wait()\n    print('parent')", want{Stdout: "child\nparent\n"}},
		{"pid = os.fork()\nif pid == 0: raise ValueError('in child')\nos.waitpid(pid, 0)[1] >> 8", want{Main: "1", Stderr: "~in child"}},
		{"pid = os.fork()\nif pid == 0: import sys; sys.exit(7)\nos.waitpid(pid, 0)[1] >> 8", want{Main: "7"}},
		{"keep", want{Main: "1"}},
	},
	"multiprocessing and pickle": {
		{"class P:\n    v = 3\ndef sq(x): return x * x", want{}},
		{"import pickle; pickle.loads(pickle.dumps(P())).v, pickle.loads(pickle.dumps(sq))(3)", want{Main: "(3, 9)"}},
		{"import multiprocessing as mp\nwith mp.get_context('fork').Pool(2) as p: r = p.map(sq, range(4))\nr", want{Main: "[0, 1, 4, 9]"}},
		{"__name__, P.__module__", want{Main: "('__main__', '__main__')"}},
	},
	"source": {
		{"def h(x):\n    return x + 1", want{}},
		{"import inspect; print(inspect.getsource(h))", want{Stdout: "def h(x):\n    return x + 1\n\n"}},
		{"import linecache; linecache.checkcache(); print(inspect.getsource(h))", want{Stdout: "def h(x):\n    return x + 1\n\n"}},
		{"import traceback\ntry:\n    h('a')\nexcept TypeError:\n    traceback.print_exc()", want{Stderr: "~return x + 1"}},
	},
	"repr": {
		{"list(range(2000))", want{Main: "~... 1,000 more items]"}},
		{"class R:\n    def __repr__(self): raise ValueError('boom')\nR()", want{Main: "<R object: its repr raised ValueError: boom>"}},
		{"class L:\n    def __repr__(self): return 5\nL()", want{Main: "~its repr raised TypeError"}},
		{"class S(str):\n    def __getitem__(self, i): raise RuntimeError\n    def __len__(self): return 0\nclass T:\n    def __repr__(self): return S('sub')\nT()", want{Main: "sub"}},
		{"a = [1]; a.append(a); a", want{Main: "[1, [...]]"}},
		{"(1,), set(), {1: {2}}, frozenset({3}), {}, ()", want{Main: "((1,), set(), {1: {2}}, frozenset({3}), {}, ())"}},
		{"10**5000", want{Main: "~repr raised ValueError"}},
		{"[R()]", want{Main: "~its repr raised ValueError: boom"}},
		{"from unittest.mock import MagicMock; MagicMock()", want{Main: "~MagicMock"}},
		{"x = {}\nfor _ in range(500): x = {1: x}\nx", want{Main: "~{1: {1:"}},
	},
	"warnings and futures": {
		{"from __future__ import annotations", want{}},
		{"def f(x: undefined_name): pass\nf.__annotations__", want{Main: "{'x': 'undefined_name'}"}},
	},
	"argv and path": {
		{"import sys; sys.argv, sys.path[0]", want{Main: "([''], '')"}},
		{"import argparse; argparse.ArgumentParser().parse_args()", want{Main: "Namespace()"}},
		{"[p for p in sys.path if 'driver' in p]", want{Main: "[]"}},
	},
	"threads": {
		{"import threading, time\ndef w():\n    time.sleep(.05)\n    print('late')\nt = threading.Thread(target=w); t.start()", want{}},
		{"t.join()", want{Stdout: "late\n"}},
	},
}

func TestPythonCells(t *testing.T) {
	asUsers(t, func(t *testing.T, b *bench) {
		for name, steps := range pythonSteps {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				_, body := b.get("POST", "/contexts", `{"language":"py"}`)
				c := contextID(t, body)
				for _, s := range steps {
					o := b.run(call{Execute: e2b.Execute{Code: s.code, ContextID: c}})
					s.check(t, s.code, o)
				}
			})
		}
	})
}

func contextID(t *testing.T, body string) string {
	t.Helper()
	_, rest, ok := strings.Cut(body, `"id":"`)
	if !ok {
		t.Fatalf("no context: %s", body)
	}
	id, _, _ := strings.Cut(rest, `"`)
	return id
}

func TestTracebackShowsTheCellOnly(t *testing.T) {
	b := newBench(t, false)
	b.python("def f(x):\n    return 1/x")
	o := b.python("try:\n    f(0)\nexcept ZeroDivisionError as e:\n    raise RuntimeError('outer') from e")
	for _, part := range []string{"return 1/x", `"<cell 1>", line 2`, `"<cell 2>", line 4`, "direct cause", "\x1b[31m", "outer"} {
		if !strings.Contains(o.err.Traceback, part) {
			t.Errorf("traceback lacks %q:\n%s", part, o.err.Traceback)
		}
	}
	o = b.python("import asyncio\nasync def g():\n    await asyncio.sleep(0)\n    f(0)\nawait g()")
	for _, bad := range []string{"kernel.py", "run_until_complete"} {
		if strings.Contains(o.err.Traceback, bad) {
			t.Errorf("traceback has %q:\n%s", bad, o.err.Traceback)
		}
	}
	o = b.python("import json\njson.loads('{')")
	if !strings.Contains(o.err.Traceback, "json/decoder.py") || strings.Contains(o.err.Traceback, "kernel.py") {
		t.Errorf("traceback:\n%s", o.err.Traceback)
	}
}

// Case 66: a loop without end is interrupted and variables are kept.
func TestTimeoutKeepsState(t *testing.T) {
	for name, code := range map[string]string{
		"loop": "while True: pass", "sleep": "import time; time.sleep(600)", "child": "import subprocess; subprocess.run(['sleep', '600'])",
		"system": "import os; os.system('sleep 600')", "async": "import asyncio; await asyncio.sleep(600)",
		"regex": "import re; sum(1 for _ in iter(int, 1))", "lock": "import threading; threading.Lock().acquire() and (l := threading.Lock()).acquire() and l.acquire()",
		"repr":   "class H:\n    def __repr__(self):\n        while True: pass\nH()",
		"thread": "import threading, time\nt = threading.Thread(target=time.sleep, args=(600,), daemon=True); t.start(); t.join()",
		"caught": "try:\n    while True: pass\nexcept KeyboardInterrupt: print('caught')",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, true)
			b.python("x = 41")
			o := b.run(call{Execute: e2b.Execute{Code: code}, timeout: 300 * time.Millisecond})
			if o.end.Reason != e2b.ReasonTimeout || o.end.ExitCode != exitTimeout || o.end.StateLost {
				t.Errorf("end %+v", o.end)
			}
			if name != "caught" && name != "system" && (o.err == nil || o.err.Name != "KeyboardInterrupt" || !strings.Contains(o.err.Value, "variables are kept")) {
				t.Errorf("error %+v", o.err)
			}
			want{Main: "42"}.check(t, "x + 1", b.python("x + 1"))
		})
	}
}

func TestTimeoutLosesState(t *testing.T) {
	for name, code := range map[string]string{
		"ignored": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
		"C loop":  "sum(range(10**14))",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, true)
			b.python("x = 41")
			o := b.run(call{Execute: e2b.Execute{Code: code}, timeout: 200 * time.Millisecond})
			if o.end.Reason != e2b.ReasonTimeout || o.end.ExitCode != exitTimeout || !o.end.StateLost {
				t.Errorf("end %+v", o.end)
			}
			if o.err == nil || o.err.Name != "ContextRestarting" {
				t.Errorf("error %+v", o.err)
			}
			want{Error: "NameError", Value: "name 'x' is not defined", Exit: 1}.check(t, "x", b.python("x"))
		})
	}
}

func TestKernelDeath(t *testing.T) {
	for name, test := range map[string]struct {
		code, reason, stderr string
		exit                 int
	}{
		"os._exit":   {"import os; os._exit(1)", e2b.ReasonExit, "", 1},
		"os._exit 0": {"import os; os._exit(0)", e2b.ReasonExit, "", 0},
		"segfault":   {"import ctypes\nctypes.string_at(0)", e2b.ReasonSignal, `"<cell 2>", line 2`, 128 + 11},
		"abort":      {"import os; os.abort()", e2b.ReasonSignal, "Aborted", 128 + 6},
		"kill":       {"import os; os.kill(os.getpid(), 9)", e2b.ReasonSignal, "", 128 + 9},
		"closed":     {"import os, time; os.closerange(3, 4096); time.sleep(100)", e2b.ReasonSignal, "", 128 + 9},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, true)
			b.python("x = 1")
			o := b.python(test.code)
			if o.end.Reason != test.reason || o.end.ExitCode != test.exit || !o.end.StateLost || o.end.Detail == "" {
				t.Errorf("end %+v", o.end)
			}
			if o.err == nil || o.err.Name != "ContextRestarting" || !strings.Contains(o.err.Value, "variables are lost") {
				t.Errorf("error %+v", o.err)
			}
			if !strings.Contains(o.stderr, test.stderr) {
				t.Errorf("stderr %q lacks %q", o.stderr, test.stderr)
			}
			o = b.python("1+1")
			want{Main: "2"}.check(t, "1+1", o)
			if o.count != 1 {
				t.Errorf("count %d after a new start", o.count)
			}
		})
	}
}

// A kernel that dies between two calls is told of in the second.
func TestDeathBetweenCells(t *testing.T) {
	b := newBench(t, true)
	b.python("import threading, os, time\ndef die():\n    time.sleep(.3)\n    os._exit(5)\nthreading.Thread(target=die).start()")
	c := must1(b.defaultContext(python))
	<-c.kernel.process.Done()
	o := b.python("'os' in globals()")
	want{Main: "False", Lost: true}.check(t, "os", o)
	if !strings.Contains(o.end.Detail, "died") {
		t.Errorf("end %+v", o.end)
	}
	want{Main: "1"}.check(t, "1", b.python("1"))
}

func TestEnvironment(t *testing.T) {
	version := int64(1)
	b := newBench(t, true, func(o *Options) { o.EnvVersion = func() int64 { return version } })
	b.env["A"], b.env["B"] = "1", "b"
	get := "import os; [os.environ.get(k) for k in 'ABC']"
	env := map[string]string{"A": "call", "C": "c 'q'"}
	for _, s := range []struct{ language, code, a, want string }{
		{"python", get, "", "['1', 'b', None]"},
		{"python", get, "env", `['call', 'b', "c 'q'"]`},
		{"python", get, "", "['1', 'b', None]"},
		{"python", "os.environ['B'] = 'mine'; " + get, "", "['1', 'mine', None]"},
		{"bash", "printenv A B C", "", "1\nb\n"},
		{"bash", "printenv A B C", "env", "call\nb\nc 'q'\n"},
		{"bash", "printenv A B C", "", "1\nb\n"},
	} {
		e := e2b.Execute{Code: s.code, Language: s.language}
		if s.a != "" {
			e.EnvVars = env
		}
		o := b.run(call{Execute: e})
		if got := o.main() + o.stdout; got != s.want {
			t.Errorf("%s with %v: got %q, want %q", s.code, e.EnvVars, got, s.want)
		}
	}
	b.env["A"], b.env["D"] = "2", "new"
	delete(b.env, "B")
	version++
	want{Main: "['2', None, None]"}.check(t, get, b.python(get))
	want{Stdout: "2\nnew\n", Exit: 1}.check(t, "printenv", b.shell("printenv A B D"))
}

// TestImports: the folder, the user's packages, and what is installed in the kernel's life.
func TestImports(t *testing.T) {
	b := newBench(t, true)
	b.env["PYTHONPATH"] = filepath.Join(b.home, "lib")
	b.python("import os, importlib.metadata")
	b.python("os.makedirs('lib'); open('here.py', 'w').write('v = 1'); open('lib/there.py', 'w').write('v = 2')")
	want{Main: "(1, 2)"}.check(t, "import", b.python("import here, there; here.v, there.v"))
	install := "import site; d = site.getusersitepackages(); os.makedirs(d); open(d + '/fresh.py', 'w').write('v = 3'); " +
		"os.makedirs('src'); open('src/editable.py', 'w').write('v = 4'); open(d + '/e.pth', 'w').write(os.path.abspath('src'))"
	b.shell("python3 -c \"import os; " + install + "\"")
	want{Main: "(3, 4)"}.check(t, "import", b.python("import fresh, editable; fresh.v, editable.v"))
	order := "import sys; s = [p for p in sys.path if p.endswith('-packages')]; s[0] == fresh.__file__.rsplit('/', 1)[0]"
	want{Main: "True"}.check(t, "order", b.python(order))
	want{Main: "True"}.check(t, "root's", b.python("any(p.startswith('/root/.local/lib/python3') for p in s)"))
}

func TestTasksGoOnWhileIdle(t *testing.T) {
	b := newBench(t, true)
	b.python("import asyncio\nasync def later():\n    await asyncio.sleep(0.02)\n    open('done', 'w').close()\ntask = asyncio.create_task(later())")
	o := b.shell("until [ -e done ]; do sleep .01; done; echo ran")
	want{Stdout: "ran\n"}.check(t, "wait", o)
	want{Main: "True"}.check(t, "task", b.python("task.done()"))
}

func TestAccountMissing(t *testing.T) {
	b := newBench(t, false, func(o *Options) { o.User = func() string { return "nosuchuser" } })
	status, text := b.get("POST", "/execute", `{"code":"1"}`)
	if status != 500 || !strings.Contains(text, "unknown user") {
		t.Errorf("%d %s", status, text)
	}
}
