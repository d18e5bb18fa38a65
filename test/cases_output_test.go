package test

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agent-sandbox/abx/test/stdio"
)

// C3: output.
var outputRows = []row{
	{"C3-31", largeOutput},
	{"C3-32", cutOutputIsKept},
	{"C3-34", charactersStayWhole},
	{"C3-36", outputThatIsNoText},
	{"C3-37", terminalCodes},
	{"C3-38", streamsStayApart},
}

// peak is the most memory that a process had, in bytes.
func peak(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmHWM:" {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

func largeOutput(t *testing.T, _ *world) {
	c := serve(t) // its memory is looked at
	b := newBox(t, c)
	b.usable(t)
	before := peak(t, c.PID())
	const n = 50_000_000
	for name, command := range map[string]string{
		"lines":    "yes 0123456789 | head -c 50000000",
		"one line": "head -c 50000000 /dev/zero | tr '\\0' x",
		"NUL":      "head -c 50000000 /dev/zero",
		"bytes":    "yes $(printf '\\377\\376') | head -c 50000000",
	} {
		o := b.runWith(t, command, stdio.Arguments{"timeout": 300})
		o.wantEnd(t, "0 exit")
		if o.StdoutBytes != n || o.StderrBytes != 0 {
			t.Errorf("%s: %d and %d bytes counted", name, o.StdoutBytes, o.StderrBytes)
		}
	}
	o := b.runWith(t, "yes | head -c 50000000 >&2; yes | head -c 50000000", stdio.Arguments{"timeout": 300})
	o.wantEnd(t, "0 exit")
	if o.StdoutBytes != n || o.StderrBytes != n {
		t.Errorf("both: %d and %d bytes counted", o.StdoutBytes, o.StderrBytes)
	}
	o = b.codeWith(t, "for i in range(50): print('x' * 999999)", stdio.Arguments{"timeout": 300})
	o.wantEnd(t, "0 exit")
	if o.StdoutBytes != n {
		t.Errorf("run_code: %d bytes counted", o.StdoutBytes)
	}
	if grown := peak(t, c.PID()) - before; grown > 20<<20 {
		t.Errorf("the server grew by %d MiB", grown>>20)
	}
	b.usable(t)
}

func cutOutputIsKept(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	const head, tail = 12 << 10, 20 << 10
	// Exactly what is shown is not cut; one byte more is.
	o := b.run(t, fmt.Sprintf("yes | head -c %d", head+tail))
	if o.Truncated || len(o.Stdout) != head+tail || o.StdoutFile != "" {
		t.Errorf("at the limit: truncated %v, %d bytes, file %q", o.Truncated, len(o.Stdout), o.StdoutFile)
	}
	const write = `seq 200000 | head -c 1000000`
	want := seq(1_000_000)
	for name, c := range map[string]struct {
		o      func() outcome
		stderr bool
	}{
		"command": {func() outcome { return b.run(t, write) }, false},
		"stderr":  {func() outcome { return b.run(t, write+" >&2") }, true},
		"timeout": {func() outcome { return b.runWith(t, write+"; sleep 600", stdio.Arguments{"timeout": 2}) }, false},
		"shell":   {func() outcome { return b.codeWith(t, write, stdio.Arguments{"language": "shell"}) }, false},
		"python": {func() outcome {
			return b.code(t, "import sys\nsys.stdout.write(''.join(f'{i}\\n' for i in range(1, 200001))[:1000000])\nNone")
		}, false},
	} {
		o := c.o()
		shown, file, total := o.Stdout, o.StdoutFile, o.StdoutBytes
		if c.stderr {
			shown, file, total = o.Stderr, o.StderrFile, o.StderrBytes
		}
		if !o.Truncated || total != 1_000_000 || file == "" || !utf8.ValidString(shown) {
			t.Errorf("%s: truncated %v, %d bytes, file %q", name, o.Truncated, total, file)
			continue
		}
		begin, rest, _ := strings.Cut(shown, "\n[... ")
		note, end, _ := strings.Cut(rest, " ...]\n")
		left := 1_000_000 - len(begin) - len(end)
		if !strings.HasPrefix(want, begin) || !strings.HasSuffix(want, end) || len(begin) > head || len(end) > tail || len(begin) < head-4 || len(end) < tail-4 {
			t.Errorf("%s: begin of %d bytes, end of %d", name, len(begin), len(end))
		}
		wantWords(t, name, note, strconv.Itoa(left/1000)+","+fmt.Sprintf("%03d", left%1000)+" bytes left out", file)
		wantWords(t, name, o.text, file, "left out")
		if got := b.read(t, file); got != want {
			t.Errorf("%s: the file holds %d bytes, or others", name, len(got))
		}
	}
	// Cut between characters of several bytes.
	for shift := range 4 {
		o := b.run(t, fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; yes \U0001F600 | tr -d '\\n' | head -c 400000", shift))
		if !o.Truncated || strings.ContainsRune(o.Stdout, utf8.RuneError) || !utf8.ValidString(o.Stdout) {
			t.Errorf("shifted by %d: a character was cut", shift)
		}
	}
}

// seq is what seq writes, up to n bytes.
func seq(n int) string {
	var b bytes.Buffer
	for i := 1; b.Len() < n; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()[:n]
}

func charactersStayWhole(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	for _, command := range []string{
		`printf '\360\237'; sleep .2; printf '\230\200'`,
		`printf '\360'; sleep .1; printf '\237'; sleep .1; printf '\230'; sleep .1; printf '\200'`,
		`sh -c "printf '\360\237'; sleep .1"; printf '\230\200'`, // of two processes
	} {
		b.run(t, command).want(t, "0 exit", "\U0001F600")
		o := b.run(t, "{ "+command+"; } >&2")
		if o.Stderr != "\U0001F600" {
			t.Errorf("standard error is %q", o.Stderr)
		}
		b.codeWith(t, command, stdio.Arguments{"language": "shell"}).want(t, "0 exit", "\U0001F600")
	}
	o := b.code(t, `import sys, time
for byte in '\U0001F600'.encode():
    sys.stdout.buffer.write(bytes([byte])); sys.stdout.flush(); time.sleep(.05)
None`)
	o.want(t, "0 exit", "\U0001F600")
	b.run(t, `printf '\303\251 e\314\201 \342\200\215 \342\200\250'`).want(t, "0 exit", "\u00e9 e\u0301 \u200d \u2028")
}

func outputThatIsNoText(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	for name, run := range map[string]func() outcome{
		"command": func() outcome { return b.run(t, "head -c 4096 /dev/urandom") },
		"stderr":  func() outcome { return b.run(t, "head -c 4096 /dev/urandom >&2") },
		"shell": func() outcome {
			return b.codeWith(t, "head -c 4096 /dev/urandom", stdio.Arguments{"language": "shell"})
		},
		"python": func() outcome { return b.code(t, "import os, sys\n_ = sys.stdout.buffer.write(os.urandom(4096))") },
		"much":   func() outcome { return b.run(t, "head -c 1000000 /dev/urandom") },
	} {
		o := run()
		o.wantEnd(t, "0 exit")
		if text := o.Stdout + o.Stderr; !utf8.ValidString(text) || !strings.ContainsRune(text, utf8.RuneError) {
			t.Errorf("%s: what is no text is not marked", name)
		}
	}
	b.run(t, `printf 'a\377b\000c\200'`).want(t, "0 exit", "a\uFFFDb\x00c\uFFFD")
	// Whole and as it was, in the file.
	o := b.run(t, "head -c 1000000 /dev/urandom | tee /tmp/random")
	b.run(t, "cmp /tmp/random "+o.StdoutFile).want(t, "0 exit", "")
	b.usable(t)
}

func terminalCodes(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	b.run(t, "mkdir -p /tmp/d/sub; touch /tmp/d/file; ln -s file /tmp/d/link").wantEnd(t, "0 exit")
	b.run(t, "ls --color=always /tmp/d").want(t, "0 exit", "file\nlink\nsub\n")
	for _, c := range []struct{ format, want string }{
		{`\033[1;31mred\033[0m and \033[38;5;200mpink\033[m\n`, "red and pink\n"},
		{`  1%%\r 50%%\r100%%\ndone\n`, "100%\ndone\n"},
		{`\033[2K\r[##  ]\033[2K\r[####]\n`, "[####]\n"},
		{`\033]0;title\007text\n`, "text\n"},
		{`\033]8;;http://x\033\\link\033]8;;\033\\\n`, "link\n"},
		{`a\r\nb\r\n`, "a\nb\n"},
		{`abc\b\bX\n`, "aX\n"},
		{`\033[?25lhidden cursor\033[?25h\n`, "hidden cursor\n"},
		{`\033(Bcharset\n`, "charset\n"},
	} {
		o := b.run(t, "printf '"+c.format+"'")
		o.want(t, "0 exit", c.want)
		if strings.ContainsAny(o.text, "\x1b\b\r") {
			t.Errorf("%s: the text has %q", c.format, o.text)
		}
		o = b.run(t, "printf '"+c.format+"' >&2")
		if o.Stderr != c.want {
			t.Errorf("%s: standard error is %q", c.format, o.Stderr)
		}
	}
	o := b.code(t, `import sys
for i in range(1, 1001):
    sys.stdout.write(f'\r{i / 10:.1f}%|{"#" * (i // 100)}')
    sys.stdout.flush()
print('\n\x1b[32mok\x1b[0m')`)
	o.want(t, "0 exit", "100.0%|##########\nok\n")
	// Raw in the file where the whole is.
	o = b.run(t, `i=0; while [ $i -lt 5000 ]; do printf '\033[31m%d\033[0m\r' $i; i=$((i+1)); done | tee /tmp/raw`)
	b.run(t, "cmp /tmp/raw "+o.StdoutFile).want(t, "0 exit", "")
}

func streamsStayApart(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	var out, errs strings.Builder
	for i := 1; i <= 2000; i++ {
		fmt.Fprintf(&out, "o%d\n", i)
		fmt.Fprintf(&errs, "e%d\n", i)
	}
	for name, o := range map[string]outcome{
		"command": b.run(t, "i=1; while [ $i -le 2000 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done"),
		"shell":   b.codeWith(t, "i=1; while [ $i -le 2000 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done", stdio.Arguments{"language": "shell"}),
		"python":  b.code(t, "import sys\nfor i in range(1, 2001):\n    print(f'o{i}')\n    print(f'e{i}', file=sys.stderr)"),
	} {
		o.want(t, "0 exit", out.String())
		if o.Stderr != errs.String() {
			t.Errorf("%s: standard error is %d bytes that begin %.60q", name, len(o.Stderr), o.Stderr)
		}
	}
	// What begins with the mark of the other stream stays where it is.
	o := b.run(t, "echo '[stderr]'; echo out; echo err >&2")
	if o.Stdout != "[stderr]\nout\n" || o.Stderr != "err\n" {
		t.Errorf("%q, %q", o.Stdout, o.Stderr)
	}
}
