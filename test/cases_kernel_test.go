package test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/agent-sandbox/abx/test/stdio"
)

// C6: kernels.
var kernelRows = []row{
	{"C6-62", stateIsKept},
	{"C6-66", interruptKeepsState},
	{"C6-68", wheelIsInstalled},
	{"C6-70", hostileCode},
}

func stateIsKept(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	b.code(t, "x=1").want(t, "0 exit", "")
	if o := b.code(t, "x+1"); o.Result != "2" {
		t.Errorf("x+1 is %q: %s", o.Result, o.text)
	}
	b.code(t, "import math\ndef f(): return math.floor(7.9)\nimport os; os.chdir('/tmp')\nclass C: y = 5").wantEnd(t, "0 exit")
	b.code(t, "1/0").wantEnd(t, "1 exit") // an error changes nothing
	b.code(t, "x = = 2").wantEnd(t, "1 exit")
	b.code(t, "print(x, f(), os.getcwd(), C.y)").want(t, "0 exit", "1 7 /tmp 5\n")
	sh := stdio.Arguments{"language": "shell"}
	b.codeWith(t, "y=3; f() { echo f$y; }; cd /var/tmp; export Z=z", sh).wantEnd(t, "0 exit")
	b.codeWith(t, "f; pwd; sh -c 'echo $Z'; false", sh).want(t, "1 exit", "f3\n/var/tmp\nz\n")
	for _, death := range []string{"import os; os._exit(1)", "import os; os.kill(os.getpid(), 9)", "import os; os.abort()", "import ctypes; ctypes.string_at(0)"} {
		b.code(t, "x = 1").wantEnd(t, "0 exit")
		o := b.code(t, death)
		if o.ExitCode == 0 || !o.StateLost {
			t.Errorf("%s: %s, state lost %v", death, o.end(), o.StateLost)
		}
		wantWords(t, death, o.text, "from before are gone")
		o = b.code(t, "x")
		o.wantEnd(t, "1 exit")
		wantWords(t, "x after "+death, o.Stderr, "NameError")
		if o.StateLost {
			t.Errorf("%s: the loss is told twice", death)
		}
	}
	o := b.codeWith(t, "kill -9 $$", sh)
	if !o.StateLost {
		t.Errorf("shell: %s", o.text)
	}
	b.codeWith(t, "echo again", sh).want(t, "0 exit", "again\n")
	// One that dies between two calls.
	o = b.code(t, "x = 1; import os; print(os.getpid())")
	b.run(t, "kill -9 "+strings.TrimSpace(o.Stdout)+" && while kill -0 "+strings.TrimSpace(o.Stdout)+" 2>/dev/null; do sleep .02; done").wantEnd(t, "0 exit")
	o = b.code(t, "print('lives')")
	if !o.StateLost || !strings.Contains(o.Stdout, "lives") && o.ExitCode == 0 {
		t.Errorf("after a death between calls: %s, %q, state lost %v", o.end(), o.Stdout, o.StateLost)
	}
	b.usable(t)
}

func interruptKeepsState(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	b.code(t, "kept = 41").wantEnd(t, "0 exit")
	for _, code := range []string{
		"while True: pass",
		"import time; time.sleep(603)",
		"import subprocess; subprocess.run(['sleep', '603'])",
		"import os; os.system('sleep 603')",
		"import threading; threading.Event().wait()",
		"import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
		"import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); s.accept()",
		"import asyncio; asyncio.run(asyncio.sleep(603))",
		"while True:\n    try:\n        while True: pass\n    except ValueError: pass",
	} {
		o := b.codeWith(t, "print('begun')\n"+code, stdio.Arguments{"timeout": 1})
		if o.Reason != "timeout" || o.ExitCode == 0 || o.Stdout != "begun\n" || o.StateLost {
			t.Errorf("%s: %s, %q, state lost %v", code, o.end(), o.Stdout, o.StateLost)
		}
		if !strings.Contains(code, "os.system") { // which takes the interrupt itself
			wantWords(t, code, o.Stderr, "KeyboardInterrupt")
		}
		wantWords(t, code, o.text, "timeout", "1 s", "variables are kept")
		b.code(t, "print(kept + 1)").want(t, "0 exit", "42\n")
	}
	sh := stdio.Arguments{"language": "shell"}
	b.codeWith(t, "kept=yes", sh).wantEnd(t, "0 exit")
	o := b.codeWith(t, "echo begun; sleep 603", stdio.Arguments{"language": "shell", "timeout": 1})
	if o.Reason != "timeout" || o.Stdout != "begun\n" {
		t.Errorf("shell: %s, %q", o.end(), o.Stdout)
	}
	if kept := b.codeWith(t, "echo $kept", sh); o.StateLost != (kept.Stdout == "\n") {
		t.Errorf("shell: state lost %v, and then %q", o.StateLost, kept.Stdout)
	}
	b.none(t, "sleep 603")
	// Code that will not be interrupted is ended, which is said.
	o = b.codeWith(t, "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [2])\nwhile True: pass", stdio.Arguments{"timeout": 1})
	if o.Reason != "timeout" || !o.StateLost || strings.Contains(o.text, "variables are kept") {
		t.Errorf("deaf code: %s, state lost %v: %s", o.end(), o.StateLost, o.text)
	}
	wantWords(t, "deaf code", o.text, "from before are gone")
	b.usable(t)
}

// wheel makes a package of one module that can be installed without a network.
func wheel(t *testing.T, name string) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	info := name + "-1.0.dist-info/"
	for _, f := range []struct{ name, text string }{
		{name + "/__init__.py", "answer = 42\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", name + "/__init__.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n"},
	} {
		w, err := z.Create(f.name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func wheelIsInstalled(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	o := b.code(t, "import sys; sys.executable; print(sys.executable)")
	python := strings.TrimSpace(o.Stdout)
	for i, install := range []func(file string) outcome{
		func(file string) outcome { return b.run(t, "pip install --no-index "+file) },
		func(file string) outcome { return b.run(t, "python3 -m pip install --no-index "+file) },
		func(file string) outcome {
			return b.code(t, "import subprocess, sys; r = subprocess.run([sys.executable, '-m', 'pip', 'install', '--no-index', '"+file+"'], capture_output=True, text=True); print(r.stderr); sys.exit(r.returncode)")
		},
		func(file string) outcome {
			return b.codeWith(t, "pip install --no-index "+file, stdio.Arguments{"language": "shell"})
		},
	} {
		name := fmt.Sprintf("abxwheel%d", i)
		b.code(t, "try: import "+name+"\nexcept ImportError: print('not there')").want(t, "0 exit", "not there\n")
		file := "/tmp/" + name + "-1.0-py3-none-any.whl"
		b.writeBytes(t, file, wheel(t, name))
		if o := install(file); o.end() != "0 exit" {
			t.Errorf("install %d by %s: %s", i, python, o.text)
			continue
		}
		b.code(t, "import "+name+"; print("+name+".answer)").want(t, "0 exit", "42\n") // the same kernel
		b.run(t, "python3 -c 'import "+name+"; print("+name+".answer)'").want(t, "0 exit", "42\n")
	}
	// What needs the network says that there is none.
	o = b.runWith(t, "pip install --retries 1 abx-no-such-package", stdio.Arguments{"timeout": 100})
	if o.ExitCode == 0 {
		t.Error("a package was installed from a network")
	}
	wantWords(t, "pip without a network", o.text, "no network")
}

func hostileCode(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	o := b.code(t, "input()")
	o.wantEnd(t, "1 exit")
	wantWords(t, "input()", o.Stderr, "EOFError")
	wantWords(t, "input()", o.text, "nothing to read")
	o = b.code(t, "import os, sys\npid = os.fork()\nif pid == 0:\n    print('child', flush=True); os._exit(0)\n_ = os.waitpid(pid, 0)\nprint('parent')")
	o.want(t, "0 exit", "child\nparent\n")
	b.code(t, "import os\nif os.fork() == 0:\n    x = 'child'\nelse:\n    x = 'parent'; os.wait()").wantEnd(t, "0 exit") // the child goes to the end of the cell
	b.code(t, "print(x)").want(t, "0 exit", "parent\n")
	b.code(t, "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as p: print(p.map(abs, [-1, -2]))").want(t, "0 exit", "[1, 2]\n")
	o = b.code(t, "class Big:\n    def __repr__(self): return 'r' * 10_000_000\nBig()")
	o.wantEnd(t, "0 exit")
	if len(o.text) > 200<<10 || !strings.Contains(o.text, "left out") {
		t.Errorf("a repr of 10 MB is %d bytes of text", len(o.text))
	}
	for code, end := range map[string]string{
		"import os; os._exit(1)":             "1 exit",
		"exit()":                             "0 exit",
		"quit(4)":                            "4 exit",
		"import sys; sys.exit('words')":      "1 exit",
		"import os; os.close(1); print('x')": "",
		"import sys; sys.stdout.close()":     "",
		"import sys; sys.stdout = None; 5":   "",
		"def f(): f()\nf()":                  "1 exit",
		"class E(Exception):\n    def __str__(self): 1/0\nraise E":       "1 exit",
		"class R:\n    def __repr__(self): 1/0\nR()":                     "",
		"import os; os.execvp('true', ['true'])":                         "",
		"import signal, os; os.kill(os.getpid(), signal.SIGTERM)":        "",
		"import os; os.closerange(3, 1000)":                              "",
		"import sys; sys.modules.clear()":                                "",
		"import builtins; del builtins.print":                            "",
		"raise KeyboardInterrupt":                                        "",
		"import os; [os.kill(p, 9) for p in (os.getppid(),) if p > 1]":   "",
		"while True: raise StopIteration":                                "1 exit",
		"import threading; threading.Thread(target=lambda: 1/0).start()": "0 exit",
	} {
		o := b.code(t, code)
		if end != "" {
			o.wantEnd(t, end)
		}
		if o.Reason == "" || o.ExitCode != 0 && o.Stderr == "" && !o.StateLost && o.Reason == "exit" && !strings.Contains(code, "quit") {
			t.Errorf("%s: no reason is given: %s", code, o.text)
		}
		if o = b.code(t, "print('next')"); !strings.Contains(o.Stdout+o.Stderr, "next") && !o.StateLost && !strings.Contains(code, "std") && !strings.Contains(code, "print") && !strings.Contains(code, "modules") {
			t.Errorf("after %s: %s", code, o.text)
		}
		// Whatever it broke, a kernel that cannot go on is replaced by ending it.
		if o.ExitCode != 0 || o.Stdout != "next\n" {
			b.code(t, "import os; os._exit(0)")
		}
		b.code(t, "print('fine')").want(t, "0 exit", "fine\n")
	}
	b.usable(t)
}
