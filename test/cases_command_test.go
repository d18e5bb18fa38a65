package test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/agent-sandbox/abx/test/stdio"
)

// C1: hanging, standard input, background, timeout.
var commandRows = []row{
	{"C1-01", backgroundDoesNotHold},
	{"C1-03", backgroundKeepsItsFolder},
	{"C1-04", noInputIsItsEnd},
	{"C1-06", inputIsHintedAt},
	{"C1-07", timeoutEndsTheTree},
	{"C1-08", timeoutEndsTheDeaf},
	{"C1-10", timeoutKeepsOutput},
	{"C1-11", backgroundHasNoLimit},
	{"C1-13", endedProcessIsTold},
	{"C1-14", timeoutValues},
	{"C1-15", hereDocuments},
	{"C1-17", cancelEndsTheForeground},
	{"C1-18", interruptReachesTheGroup},
	{"C1-20", orphansAreReaped},
}

func backgroundDoesNotHold(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	for i, c := range []struct {
		command string // %d is a number of seconds by which its process is known
		told    bool   // it stays in the command's session, so it is told of
	}{
		{"sleep %d & echo ok", true},
		{"nohup sleep %d & echo ok", true},
		{"nohup sleep %d > /tmp/log 2>&1 < /dev/null & echo ok", true},
		{"sleep %d 2>/dev/null & echo ok", true},
		{"(sleep %d &) ; echo ok", true},
		{"bash -c 'sleep %d & disown'; echo ok", true},
		{"sleep %d | cat & echo ok", true},
		{"setsid -f sleep %d; echo ok", false},
		{`python3 -c 'import subprocess; subprocess.Popen(["sleep", "%d"])'; echo ok`, true},
		{`python3 -c 'import subprocess; subprocess.Popen(["sleep", "%d"], start_new_session=True)'; echo ok`, false},
	} {
		seconds := 30000 + i
		o := b.runWith(t, fmt.Sprintf(c.command, seconds), stdio.Arguments{"timeout": 200})
		o.want(t, "0 exit", "ok\n")
		alive := b.run(t, running("sleep "+strconv.Itoa(seconds)))
		pid, _, _ := strings.Cut(alive.Stdout, " ")
		if pid == "" {
			t.Errorf("%s: the process does not go on", c.command)
			continue
		}
		if !c.told {
			continue
		}
		n, _ := strconv.Atoi(pid)
		if !slices.Contains(o.Background, n) {
			t.Errorf("%s: background processes %v, want %s", c.command, o.Background, pid)
		}
		wantWords(t, c.command, o.text, "background", pid)
	}
	// One call names one process.
	if o := b.run(t, "sleep 300 & echo ok"); len(o.Background) != 1 {
		t.Errorf("background processes %v, want one", o.Background)
	}
	if o := b.run(t, "echo ok"); len(o.Background) != 0 || strings.Contains(o.text, "background") {
		t.Errorf("another call tells of processes %v: %s", o.Background, o.text)
	}
}

func backgroundKeepsItsFolder(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	b.run(t, "mkdir /tmp/w").wantEnd(t, "0 exit")
	o := b.runWith(t, "nohup sh -c 'sleep 2; pwd > /tmp/p' & ", stdio.Arguments{"cwd": "/tmp/w"})
	o.wantEnd(t, "0 exit")
	b.await(t, "[ -s /tmp/p ]")
	if got := b.read(t, "/tmp/p"); got != "/tmp/w\n" {
		t.Errorf("/tmp/p holds %q", got)
	}
	// Errors of the start come back.
	b.refused(t, "run_command", stdio.Arguments{"command": "sleep 1 &", "cwd": "/tmp/none"}, `"cwd"`, "/tmp/none", "does not exist")
	b.refused(t, "run_command", stdio.Arguments{"command": "true", "cwd": "/etc/passwd"}, "/etc/passwd")
	o = b.run(t, "nohup nosuchcmd_x & wait $!")
	o.wantEnd(t, "127 exit")
	wantWords(t, "nohup", o.Stderr, "nosuchcmd_x")
}

func noInputIsItsEnd(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	for _, command := range []string{
		"cat", "sh", "bash", "head -c 1", "cat | cat", "cat & wait", "python3", "python3 -", "sort", "xargs -r echo", "cat < /dev/stdin", "cat -", "tee /tmp/x", "sh -s", "cat /proc/self/fd/0",
	} {
		b.run(t, command).want(t, "0 exit", "")
	}
	b.run(t, "read x; echo code $?").want(t, "0 exit", "code 1\n")
	// There is no terminal to ask, either.
	o := b.run(t, "cat < /dev/tty")
	if o.ExitCode == 0 || o.Reason != "exit" {
		t.Errorf("a terminal could be read: %s", o.text)
	}
	b.codeWith(t, "cat; read x; echo code $?", stdio.Arguments{"language": "shell"}).want(t, "0 exit", "code 1\n")
	b.code(t, "import subprocess\nprint(subprocess.run(['cat'], capture_output=True))").wantEnd(t, "0 exit")
	b.code(t, "import sys\nprint(repr(sys.stdin.read()))").want(t, "0 exit", "''\n")
}

func inputIsHintedAt(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	for _, command := range []string{
		`python3 -c "input()"`,
		`python3 -c "input('Name: ')"`,
		`python3 -c "import getpass; getpass.getpass()"`,
		`sh -c 'python3 -c "input()"'`,
	} {
		o := b.run(t, command)
		o.wantEnd(t, "1 exit")
		wantWords(t, command, o.Stderr, "EOFError")
		wantWords(t, command, o.text, "there is none", "pipe")
	}
	o := b.run(t, `printf 'Ann\n' | python3 -c "print(input())"`) // what the hint says works
	o.want(t, "0 exit", "Ann\n")
	if len(o.Notes) > 0 {
		t.Errorf("notes of a command that was fine: %v", o.Notes)
	}
}

func timeoutEndsTheTree(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	for _, command := range []string{
		"sh -c 'sleep 600 & sleep 600'",
		"sleep 600",
		"sleep 600 | sleep 600",
		"(sleep 600; echo never)",
		"bash -c 'set -m; sleep 600 & sleep 600'", // process groups of their own
		"nohup sleep 600",
		"sh -c 'kill -STOP $$'; sleep 600",
		`python3 -c 'import subprocess; subprocess.run(["sleep", "600"])'`,
		"while :; do sleep 600; done",
	} {
		o := b.runWith(t, command, stdio.Arguments{"timeout": 1})
		if o.Reason != "timeout" || o.ExitCode == 0 || strings.Contains(o.Stdout, "never") {
			t.Errorf("%s: %s, %q", command, o.end(), o.Stdout)
		}
		b.none(t, "sleep 600")
	}
	b.usable(t)
}

func timeoutEndsTheDeaf(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	for _, command := range []string{
		`trap '' TERM; while :; do sleep 601 & wait; done`,
		`trap '' TERM INT HUP QUIT; sleep 601; sleep 601`,
		`trap 'sleep 601' TERM; sleep 601 & wait`,
		`exec python3 -c "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 3, 15)]; time.sleep(601)"`,
	} {
		o := b.runWith(t, command, stdio.Arguments{"timeout": 1})
		if o.Reason != "timeout" {
			t.Errorf("%s: %s", command, o.end())
		}
		b.none(t, "601")
	}
	b.usable(t)
}

func timeoutKeepsOutput(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	for _, c := range []struct{ command, stdout, stderr string }{
		{"echo a; sleep 600", "a\n", ""},
		{"printf a; sleep 600", "a", ""},
		{"echo a >&2; sleep 600", "", "a\n"},
		{"echo a; trap 'echo cleaned; exit 3' TERM; sleep 600 & wait", "a\ncleaned\n", ""},
	} {
		o := b.runWith(t, c.command, stdio.Arguments{"timeout": 1})
		if o.Reason != "timeout" || o.Stdout != c.stdout || !strings.HasPrefix(o.Stderr, c.stderr) {
			t.Errorf("%s: %s, %q, %q", c.command, o.end(), o.Stdout, o.Stderr)
		}
		wantWords(t, c.command, o.text, "timeout", "1 s", "background", "nohup", "&")
	}
	// What the note says works.
	b.runWith(t, "nohup sh -c 'echo begun; exec sleep 600' > /tmp/out.log 2>&1 &", stdio.Arguments{"timeout": 1}).wantEnd(t, "0 exit")
	b.await(t, "grep -q begun /tmp/out.log")
}

// Nobody waits for 150 s here. A process in the background outlives the limit
// of the call that began it, and another limit that is met after that, which
// leaves none that could end it: those are the only clocks of a call. (That
// there is no other: TestTimeoutValues and TestBackgroundGoesOn of
// internal/agent/process.)
func backgroundHasNoLimit(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	b.runWith(t, "sleep 40001 & setsid -f sleep 40002; nohup sleep 40003 >/dev/null 2>&1 &", stdio.Arguments{"timeout": 1}).wantEnd(t, "0 exit")
	if o := b.runWith(t, "sleep 600", stdio.Arguments{"timeout": 2}); o.Reason != "timeout" {
		t.Errorf("ended by %s", o.Reason)
	}
	if o := b.codeWith(t, "import time; time.sleep(600)", stdio.Arguments{"timeout": 1}); o.Reason != "timeout" {
		t.Errorf("ended by %s", o.Reason)
	}
	o := b.run(t, running("sleep 4000"))
	if got := strings.Count(o.Stdout, "sleep 4000"); got != 3 {
		t.Errorf("%d of 3 processes are alive:\n%s", got, o.Stdout)
	}
}

func endedProcessIsTold(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	o := b.run(t, "sleep 300 &")
	if len(o.Background) != 1 {
		t.Fatalf("background processes %v", o.Background)
	}
	pid := o.Background[0]
	b.run(t, fmt.Sprintf("kill %d", pid)).wantEnd(t, "0 exit")
	b.await(t, fmt.Sprintf("! kill -0 %d 2>/dev/null", pid))
	o = b.run(t, fmt.Sprintf("kill -0 %d", pid))
	o.wantEnd(t, "1 exit")
	wantWords(t, "kill of one that is gone", o.Stderr, "No such process")
}

func timeoutValues(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	for tool, args := range map[string]stdio.Arguments{
		"run_command": {"command": "echo ok"},
		"run_code":    {"code": "print('ok')"},
	} {
		for _, good := range []any{nil, 1, 60, 5.0, 1e3, 86400} {
			args["timeout"] = good
			var o outcome
			b.tool(t, tool, args, &o)
			o.want(t, "0 exit", "ok\n")
		}
		delete(args, "timeout")
		b.tool(t, tool, args, nil)
		for bad, word := range badTimeouts {
			args["timeout"] = bad
			b.refused(t, tool, args, `"timeout"`, word)
		}
	}
	for bad, word := range badTimeouts {
		refused(t, w.plain, "create_sandbox", stdio.Arguments{"timeout": bad}, `"timeout"`, word)
	}
	b.usable(t)
}

// badTimeouts and what the refusal says of them. 0 means "none" on the wire;
// a tool has always a limit.
var badTimeouts = map[any]string{
	0: "at least 1", -1: "at least 1", -1e300: "at least 1", 0.5: "whole number", 1.5: "whole number",
	"5": "whole number", "": "whole number", true: "whole number", 86401: "too large", 1 << 31: "too large", 1e300: "too large",
}

func hereDocuments(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	for lines, line := range map[int]string{
		5000:  "line %d of a text with $HOME, `backticks`, \"quotes\", 'quotes' and \\ in it\n",
		30000: "%d \u00e9\u6570\U0001F600 and so on and so on\n",
		1:     "%d " + strings.Repeat("x", 1<<20) + "\n",
	} {
		var text strings.Builder
		for i := range lines {
			fmt.Fprintf(&text, line, i)
		}
		sum := sha256.Sum256([]byte(text.String()))
		o := b.run(t, "cat > /tmp/f <<'EOF'\n"+text.String()+"EOF\nsha256sum < /tmp/f")
		o.want(t, "0 exit", fmt.Sprintf("%x  -\n", sum))
		o = b.codeWith(t, "cat > /tmp/g <<'EOF'\n"+text.String()+"EOF\nsha256sum < /tmp/g", stdio.Arguments{"language": "shell"})
		o.want(t, "0 exit", fmt.Sprintf("%x  -\n", sum))
	}
	b.usable(t)
}

// started sends a call, waits until it has made the file /tmp/started, and
// returns how to cancel it.
func (b *box) started(t *testing.T, tool string, args stdio.Arguments) (cancel func()) {
	t.Helper()
	r, err := b.c.PrepareTool(tool, b.args(args))
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := b.c.Send(ctx, r)
		ended <- err
	}()
	b.await(t, "[ -e /tmp/started ]")
	b.run(t, "rm /tmp/started").wantEnd(t, "0 exit")
	return func() {
		t.Helper()
		end()
		if err := <-ended; err == nil {
			t.Error("the call was answered before it was cancelled")
		}
	}
}

func cancelEndsTheForeground(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	b.run(t, "sleep 50001 & nohup sleep 50002 >/dev/null 2>&1 &").wantEnd(t, "0 exit")
	b.code(t, "x = 41").wantEnd(t, "0 exit")
	for _, c := range []struct {
		tool string
		args stdio.Arguments
	}{
		{"run_command", stdio.Arguments{"command": "touch /tmp/started; sleep 60001"}},
		{"run_command", stdio.Arguments{"command": "sleep 60001 & touch /tmp/started; sleep 60001 | sleep 60001"}},
		{"run_command", stdio.Arguments{"command": "trap '' TERM; touch /tmp/started; sleep 60001; sleep 60001"}},
		{"run_code", stdio.Arguments{"code": "touch /tmp/started; sleep 60001", "language": "shell"}},
		{"run_code", stdio.Arguments{"code": "import subprocess; open('/tmp/started', 'w'); subprocess.run(['sleep', '60001'])"}},
		{"run_code", stdio.Arguments{"code": "open('/tmp/started', 'w')\nwhile True: pass"}},
	} {
		cancel := b.started(t, c.tool, c.args)
		cancel()
		b.await(t, `! grep -qsz '^6000[1]$' /proc/[0-9]*/cmdline`)
	}
	o := b.code(t, "print(x + 1)")
	o.want(t, "0 exit", "42\n")
	if o = b.run(t, running("sleep 5000")); strings.Count(o.Stdout, "sleep 5000") != 2 {
		t.Errorf("what was in the background before is not alive:\n%s", o.Stdout)
	}
	b.usable(t)
}

func interruptReachesTheGroup(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	for _, c := range []struct{ command, signal, end, stdout string }{
		{`trap 'echo bye; exit 130' INT; echo $$ > /tmp/pid; while :; do sleep .05; done`, "INT", "130 exit", "bye\n"},
		{`echo $$ > /tmp/pid; exec sleep 600`, "INT", "130 signal", ""},
		{`echo $$ > /tmp/pid; sleep 600 | cat`, "TERM", "143 signal", ""},
		{`echo $$ > /tmp/pid; exec sleep 600`, "KILL", "137 signal", ""},
		{"exec python3 -c 'import os, time, sys\ntry:\n  open(\"/tmp/pid\", \"w\").write(str(os.getpid()))\n  time.sleep(600)\nexcept KeyboardInterrupt: print(\"caught\"); sys.exit(130)'", "INT", "130 exit", "caught\n"},
	} {
		done := make(chan outcome, 1)
		go func() {
			var o outcome
			args := b.args(stdio.Arguments{"command": c.command, "timeout": 200})
			if _, err := b.c.Tool(t.Context(), "run_command", args, &o); err != nil {
				o.Reason = err.Error()
			}
			done <- o
		}()
		b.await(t, "[ -s /tmp/pid ]")
		b.run(t, "kill -"+c.signal+" -$(cat /tmp/pid) && rm /tmp/pid").wantEnd(t, "0 exit")
		(<-done).want(t, c.end, c.stdout)
	}
}

func orphansAreReaped(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	// 100 times 100 that end while their parents do, so that process 1 gets them.
	o := b.runWith(t, "i=0; while [ $i -lt 100 ]; do (j=0; while [ $j -lt 100 ]; do : & j=$((j+1)); done); i=$((i+1)); done", stdio.Arguments{"timeout": 300})
	o.wantEnd(t, "0 exit")
	if o.Stderr != "" {
		t.Errorf("standard error: %.300q", o.Stderr)
	}
	b.await(t, `[ -z "$(grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null)" ]`)
	b.usable(t)
}
