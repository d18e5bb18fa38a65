package test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agent-sandbox/abx/test/stdio"
)

// C2: exit codes and reasons.
var endRows = []row{
	{"C2-21", unknownCommand},
	{"C2-22", notExecutable},
	{"C2-24", outOfMemory},
	{"C2-25", timeoutIsNoSignal},
	{"C2-27", codesAreResults},
	{"C2-28", diskFull},
	{"C2-29", tooManyProcesses},
}

func unknownCommand(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	for command, word := range map[string]string{
		"nosuchcmd_x":         "nosuchcmd_x",
		"nosuchcmd_x a b c":   "nosuchcmd_x",
		"/no/such/program":    "/no/such/program",
		"true | nosuchcmd_x":  "nosuchcmd_x",
		"PATH=; ls":           "ls",
		"exec nosuchcmd_x":    "nosuchcmd_x",
		"bash -c nosuchcmd_x": "nosuchcmd_x",
		"printf '#!/no/such\\n' > /tmp/s; chmod +x /tmp/s; /tmp/s": "/tmp/s",
		"env nosuchcmd_x":          "nosuchcmd_x",
		"cd /tmp && ./nosuchcmd_x": "nosuchcmd_x",
	} {
		o := b.run(t, command)
		o.wantEnd(t, "127 exit")
		wantWords(t, command, o.Stderr, word)
	}
	o := b.codeWith(t, "nosuchcmd_x", stdio.Arguments{"language": "shell"})
	o.wantEnd(t, "127 exit")
	wantWords(t, "shell code", o.Stderr, "nosuchcmd_x")
}

func notExecutable(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	b.write(t, "/tmp/x", "#!/bin/sh\necho ran\n")
	b.run(t, `printf '\177ELF broken' > /tmp/y; chmod +x /tmp/y; mkdir -m 0 /tmp/closed; printf '#!/tmp\n' > /tmp/z; chmod +x /tmp/z`).wantEnd(t, "0 exit")
	for command, word := range map[string]string{
		"/tmp/x":                     "ermission denied", // no execute bit
		"exec /tmp/x":                "ermission denied",
		"env /tmp/x":                 "ermission denied",
		"/tmp":                       "/tmp", // a folder
		"bash -c /tmp/x":             "ermission denied",
		"/tmp/z":                     "ermission denied", // interpreter is a folder
		"/tmp/y":                     "/tmp/y",           // no program
		"PATH=/tmp:$PATH; exec x; x": "ermission denied",
	} {
		o := b.run(t, command)
		o.wantEnd(t, "126 exit")
		wantWords(t, command, o.Stderr, word)
	}
	b.run(t, "chmod +x /tmp/x && /tmp/x").want(t, "0 exit", "ran\n")
	o := b.codeWith(t, "chmod -x /tmp/x; /tmp/x", stdio.Arguments{"language": "shell"})
	o.wantEnd(t, "126 exit")
	wantWords(t, "shell code", o.Stderr, "ermission denied")
}

func outOfMemory(t *testing.T, w *world) {
	b := newBox(t, w.tight)
	const hog = `x = b"x" * (1 << 30)`
	for name, command := range map[string]string{
		"one":       "python3 -c '" + hog + "'",
		"in pieces": `python3 -c 'a = []` + "\n" + `while True: a.append(bytearray(1 << 20))'`,
		"a child":   "(python3 -c '" + hog + "'; exit $?); exit $?",
		"waited":    "python3 -c '" + hog + "' & wait $!",
	} {
		o := b.run(t, command)
		if o.Reason != "oom" || o.ExitCode == 0 {
			t.Errorf("%s: %s, stderr %.300q", name, o.end(), o.Stderr)
		}
		words := []string{"256 MiB"}
		if !b.perProcess() {
			words = append(words, "peak")
		}
		wantWords(t, name, o.Detail, words...)
		wantWords(t, name, o.text, "oom", "256 MiB")
		b.run(t, "echo fine").want(t, "0 exit", "fine\n")
	}
	b.code(t, "kept = 1").wantEnd(t, "0 exit")
	o := b.code(t, hog)
	if o.Reason != "oom" || o.ExitCode == 0 {
		t.Errorf("run_code: %s, stderr %.300q", o.end(), o.Stderr)
	}
	wantWords(t, "run_code", o.Detail, "256 MiB")
	kept := b.code(t, "print(kept)")
	if o.StateLost == (kept.ExitCode == 0) {
		t.Errorf("state lost %v, and then %s", o.StateLost, kept.end())
	}
	if !b.perProcess() { // many together, and files in memory, count too
		o = b.run(t, `python3 -c '
import os, signal, sys
for i in range(8):
  if os.fork() == 0:
    x = b"x" * (60 << 20)
    signal.pause()
os.wait()
os.killpg(0, 9)'`)
		if o.Reason != "oom" {
			t.Errorf("many together: %s", o.end())
		}
	}
	b.usable(t)
}

func timeoutIsNoSignal(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	for _, c := range []struct{ command, want string }{
		{"trap '' TERM; sleep 602; sleep 602", "timeout"},
		{"sleep 602", "timeout"},
		{"trap 'exit 0' TERM; sleep 602 & wait", "timeout"},
		{"kill -9 $$", "137 signal"},
		{"kill -SEGV $$", "139 signal"},
		{"exit 137", "137 exit"},
		{"sh -c 'kill -9 $$'; exit $?", "137 exit"},
		{"timeout 1 sleep 602", "124 exit"},
		{"exit 124", "124 exit"},
	} {
		o := b.runWith(t, c.command, stdio.Arguments{"timeout": 2})
		if c.want != "timeout" {
			o.wantEnd(t, c.want)
			continue
		}
		if o.Reason != "timeout" {
			t.Errorf("%s: %s", c.command, o.end())
		}
		wantWords(t, c.command, o.text, "timeout", "2 s")
	}
	o := b.codeWith(t, "import time; time.sleep(600)", stdio.Arguments{"timeout": 1})
	if o.Reason != "timeout" || o.ExitCode == 0 {
		t.Errorf("run_code: %s", o.end())
	}
	b.code(t, "import os; os.kill(os.getpid(), 9)").wantEnd(t, "137 signal")
	b.code(t, "raise SystemExit(137)").wantEnd(t, "137 exit")
}

func codesAreResults(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	// tool and run fail the test when a result says that it is an error.
	b.run(t, "grep x /dev/null").want(t, "1 exit", "")
	b.run(t, "test -e /nosuch").want(t, "1 exit", "")
	b.run(t, "diff /etc/passwd /etc/group > /dev/null").want(t, "1 exit", "")
	for _, code := range []int{0, 1, 2, 42, 100, 126, 127, 128, 255} {
		end := fmt.Sprintf("%d exit", code)
		b.run(t, fmt.Sprintf("exit %d", code)).wantEnd(t, end)
		b.code(t, fmt.Sprintf("import sys; sys.exit(%d)", code)).wantEnd(t, end)
		b.codeWith(t, fmt.Sprintf("(exit %d)", code), stdio.Arguments{"language": "shell"}).wantEnd(t, end)
	}
	b.run(t, "exit 256").wantEnd(t, "0 exit")
	for code, word := range map[string]string{"1/0": "ZeroDivisionError", "x = = 1": "SyntaxError", "import nosuch": "ModuleNotFoundError", "raise SystemExit('gone')": "gone"} {
		o := b.code(t, code)
		o.wantEnd(t, "1 exit")
		wantWords(t, code, o.Stderr, word)
	}
	b.run(t, "if").wantEnd(t, "2 exit") // a syntax error of the shell
}

func diskFull(t *testing.T, w *world) {
	b := newBox(t, w.tight)
	for _, path := range []string{"/tmp/f", "/app/f", "/home/user/f", "/var/tmp/f"} {
		for name, command := range map[string]string{
			"dd":     "dd if=/dev/zero of=" + path + " bs=1M",
			"head":   "head -c 1000000000 /dev/zero > " + path,
			"python": `python3 -c 'open("` + path + `", "wb").write(bytes(64 << 20))'`,
		} {
			o := b.run(t, command)
			if o.Reason != "disk-full" || o.ExitCode == 0 {
				t.Errorf("%s %s: %s", name, path, o.end())
			}
			wantWords(t, name, o.Stderr, "No space left on device")
			wantWords(t, name, o.Detail, "48 MiB")
			b.run(t, "rm "+path).wantEnd(t, "0 exit")
		}
	}
	b.run(t, "head -c 1000000000 /dev/zero > /tmp/f")
	b.refused(t, "write_file", stdio.Arguments{"path": "/tmp/g", "content": strings.Repeat("x", 1<<20)}, "no space", "rm")
	o := b.code(t, "open('/tmp/h', 'wb').write(bytes(1 << 20))")
	if o.Reason != "disk-full" || o.ExitCode == 0 {
		t.Errorf("run_code: %s", o.end())
	}
	wantWords(t, "run_code", o.Stderr, "No space left on device")
	// Output that finds no place is counted all the same.
	o = b.run(t, "head -c 1000000 /dev/zero | tr '\\0' x")
	o.wantEnd(t, "0 exit")
	if o.StdoutBytes != 1000000 {
		t.Errorf("%d of 1000000 bytes of output were counted", o.StdoutBytes)
	}
	var list struct{ Files []struct{ Name string } }
	b.tool(t, "list_files", stdio.Arguments{"path": "/tmp"}, &list)
	b.run(t, "rm /tmp/f").wantEnd(t, "0 exit")
	b.write(t, "/tmp/g", strings.Repeat("x", 1<<20))
	b.run(t, "exit 3").wantEnd(t, "3 exit") // and nothing is put down to the disk
	b.usable(t)
}

func tooManyProcesses(t *testing.T, w *world) {
	const fork = `
import os, time
try:
  while True:
    if os.fork() == 0:
      time.sleep(60000)
except OSError as e:
  print(e.errno, flush=True)
  raise
`
	b := newBox(t, w.tight)
	b.write(t, "/tmp/fork.py", fork)
	o := b.run(t, "python3 /tmp/fork.py; code=$?; exec 2>&1; echo end; exit $code")
	if o.Reason != "pids-limit" || o.ExitCode == 0 {
		t.Errorf("fork: %s", o.end())
	}
	wantWords(t, "fork", o.Stdout, "11\n") // EAGAIN
	wantWords(t, "fork", o.Stderr, "Resource temporarily unavailable")
	wantWords(t, "fork", o.Detail, "100")
	// The host goes on, and so do other sandboxes.
	if err := w.tight.Call(t.Context(), "ping", map[string]any{}, &struct{}{}); err != nil {
		t.Error(err)
	}
	b.tool(t, "kill_sandbox", nil, nil)

	b = newBox(t, w.tight)
	for name, command := range map[string]string{
		"threads": `python3 -c '
import threading, time
for i in range(1000): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
'`,
		"shell": `i=0; while [ $i -lt 300 ]; do sleep 600 & i=$((i+1)); done`,
	} {
		o := b.runWith(t, command, stdio.Arguments{"timeout": 200})
		if o.Reason != "pids-limit" || o.ExitCode == 0 {
			t.Errorf("%s: %s, %.300q", name, o.end(), o.Stderr)
		}
		wantWords(t, name, o.Detail, "100")
		b.tool(t, "kill_sandbox", nil, nil)
		b = newBox(t, w.tight)
	}
	// The classic: it never ends by itself.
	b.run(t, "bash -c ':(){ :|:& };:'")
	b.tool(t, "kill_sandbox", nil, nil)
	b = newBox(t, w.tight)
	b.usable(t)
}
