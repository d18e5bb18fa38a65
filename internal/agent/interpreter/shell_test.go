//go:build linux

package interpreter

import (
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
)

var shellSteps = map[string][]step{
	"state": {
		{"x=5; f() { echo f $x; }; alias hi='echo hello'; arr=(1 2 '3 4'); declare -A m=([k]=v); export E=env; mkdir -p d; cd d", want{}},
		{"hi; f; echo ${arr[2]} ${m[k]} $E ${PWD##*/} $(printenv E)", want{Stdout: "hello\nf 5\n3 4 v env d env\n"}},
		{"(exit 7)", want{Exit: 7}},
		{"nosuchcmd_x", want{Stderr: "~nosuchcmd_x: command not found", Exit: 127}},
		{"f", want{Stdout: "f 5\n"}},
	},
	"exit keeps state": {
		{"x=5; f() { echo f $x; }; alias hi='echo hello'; arr=(1 2 '3 4'); export E=env; g() { exit 4; }", want{}},
		{"exit 3", want{Exit: 3}},
		{"hi; f; echo ${arr[2]} $(printenv E); declare -p E", want{Stdout: "hello\nf 5\n3 4 env\ndeclare -x E=\"env\"\n"}},
		{"g; echo no", want{Exit: 4}},
		{"set -e; false; echo no", want{Exit: 1}},
		{"false; echo yes; f", want{Stdout: "yes\nf 5\n"}},
		{"set -u; echo $nope_x", want{Stderr: "~unbound variable", Exit: 1}},
		{"echo ok$nope_x", want{Stdout: "ok\n"}},
		{"set -eu -o pipefail\nfalse | true\necho no", want{Exit: 1}},
		{"readonly RO=1; exit", want{}},
		{"echo $RO; IFS=,; exit 0", want{Stdout: "1\n"}},
		{"v=a,b; set -- $v; echo $1; unset IFS", want{Stdout: "a\n"}},
		{"set -o posix; exit 5", want{Exit: 5}},
		{"f; [[ -o posix ]] || echo plain", want{Stdout: "f 5\nplain\n"}},
		{"set -C; set -f; exit 1", want{Exit: 1}},
		{"f", want{Stdout: "f 5\n"}},
	},
	"flow": {
		{"break; echo after", want{}},
		{"continue", want{}},
		{"return 4", want{Exit: 4}},
		{"for", want{Stderr: "~syntax error", Exit: 2}},
		{"if true; then\n  echo a\nfi\ncat <<X\nhere $((1+1))\nX", want{Stdout: "a\nhere 2\n"}},
		{"set -- a b", want{}},
		{"echo $1 $2", want{Stdout: "a b\n"}},
		{"", want{}},
		{"# nothing", want{}},
		{"false", want{Exit: 1}},
		{"read v; echo got $?", want{Stdout: "got 1\n"}},
		{"set -x; echo hi", want{Stdout: "hi\n", Stderr: "~echo hi\n"}},
		{"echo quiet", want{Stdout: "quiet\n"}},
	},
	"traps": {
		{"trap 'echo bye' EXIT; echo a", want{Stdout: "a\n"}},
		{"exit 2", want{Stdout: "bye\n", Exit: 2}},
		{"exit 1", want{Exit: 1}},
		{"trap 'echo err' ERR; false; trap - ERR", want{Stdout: "err\n"}},
		{"trap 'echo usr' USR1; kill -USR1 $$", want{Stdout: "usr\n"}},
		{"(trap 'echo sub' EXIT)", want{Stdout: "sub\n"}},
		{"trap - EXIT; exit 0", want{}},
	},
	"repaired": {
		{"exec >/dev/null; echo hidden", want{}},
		{"echo visible; exec 2>&- 1>&- 0<&-", want{Stdout: "visible\n"}},
		{"nosuch_x", want{Stderr: "~not found", Exit: 127}},
		{"mkdir gone; cd gone; rmdir ../gone", want{}},
		{"[ -d . ] && echo ok", want{Stdout: "ok\n", Stderr: "~/gone is gone; now in /"}},
		{"ls -l /proc/self/fd | grep -c 'kernel-.*/\\(in\\|out\\)$'", want{Stdout: "0\n", Exit: 1}},
	},
	"ends": {
		{"a=1; exec true", want{Error: "ContextRestarting", Value: "~exit code 0", Lost: true}},
		{"echo ${a-none}; a=2", want{Stdout: "none\n"}},
		{"kill -9 $$", want{Error: "ContextRestarting", Value: "~killed by signal 9", Exit: 137, Lost: true}},
		{"echo ${a-none}", want{Stdout: "none\n"}},
	},
}

func TestShellCells(t *testing.T) {
	asUsers(t, func(t *testing.T, b *bench) {
		for name, steps := range shellSteps {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				_, body := b.get("POST", "/contexts", `{"language":"Shell"}`)
				c := contextID(t, body)
				for _, s := range steps {
					o := b.run(call{Execute: e2b.Execute{Code: s.code, ContextID: c}})
					s.check(t, s.code, o)
				}
			})
		}
	})
}

func TestShellTimeout(t *testing.T) {
	for name, test := range map[string]struct {
		code string
		lost bool
	}{
		"child":    {"sleep 600; echo not", false},
		"loop":     {"while :; do :; done", false},
		"script":   {"for i in 1 2 3; do sleep 600; done; echo no", false},
		"pipe":     {"sleep 600 | cat", false},
		"subst":    {"y=$(sleep 600)", false},
		"wait":     {"sleep 600 & wait", false},
		"jobs":     {"set -m; sleep 600", false},
		"subshell": {"(sleep 600; echo no)", false},
		"ignored":  {"trap '' INT; sleep 600; while :; do :; done", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, true)
			b.shell("x=41; f() { echo f; }")
			o := b.run(call{Execute: e2b.Execute{Code: test.code, Language: "sh"}, timeout: 300 * time.Millisecond})
			if o.end.Reason != e2b.ReasonTimeout || o.end.ExitCode != exitTimeout || o.end.StateLost != test.lost || o.stdout != "" {
				t.Errorf("end %+v, stdout %q", o.end, o.stdout)
			}
			if !test.lost {
				want{Stdout: "41\nf\n"}.check(t, "state", b.shell("echo $x; f"))
			}
		})
	}
}

// What a cell that ran out of time started is killed, what earlier cells left is not.
func TestTimeoutKillsChildren(t *testing.T) {
	for _, test := range []struct{ language, before, cell, check string }{
		{"bash", "sleep 601 & echo $!", "sleep 602 & setsid sleep 603 & echo $!; nohup sleep 604 >/dev/null 2>&1 & sleep 600", "kill -0 %s && ! kill -0 $! 2>/dev/null && ps -o args= | grep -c 'sleep 60[0234]'"},
		{"python", "import subprocess as s\np = s.Popen(['sleep', '601']); p.pid", "q = s.Popen(['sleep', '602'], start_new_session=True); s.run(['sleep', '600'])", "p.poll() is None, q.wait() < 0"},
	} {
		t.Run(test.language, func(t *testing.T) {
			b := newBench(t, true)
			run := func(code string, limit time.Duration) outcome {
				return b.run(call{Execute: e2b.Execute{Code: code, Language: test.language}, timeout: limit})
			}
			o := run(test.before, 0)
			if o.end.Background != 1 {
				t.Errorf("background %d, want 1", o.end.Background)
			}
			kept := strings.TrimSpace(o.stdout + o.main())
			o = run(test.cell, 300*time.Millisecond)
			if o.end.Reason != e2b.ReasonTimeout || o.end.StateLost || o.end.Background != 0 {
				t.Errorf("end %+v", o.end)
			}
			if test.language == "python" {
				want{Main: "(True, True)"}.check(t, test.check, run(test.check, 0))
				return
			}
			want{Stdout: "alive\n"}.check(t, "kept", run("kill -0 "+kept+" && echo alive", 0))
			want{Exit: 1, Stderr: "~No such process"}.check(t, "killed", run("kill -0 "+strings.TrimSpace(o.stdout), 0))
		})
	}
}

// A background process holds the output and never the call.
func TestBackgroundIsNotWaitedFor(t *testing.T) {
	b := newBench(t, true)
	o := b.shell("sleep 600 & echo ok")
	if o.stdout != "ok\n" || o.end.Background != 1 || o.end.ExitCode != 0 {
		t.Errorf("%q %+v", o.stdout, o.end)
	}
	o = b.python("import threading, subprocess\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\nsubprocess.Popen(['sleep', '600'])\nprint('ok')")
	if o.stdout != "ok\n" || o.end.Background != 2 {
		t.Errorf("%q %+v", o.stdout, o.end)
	}
	if o = b.python("1"); o.end.Background != 0 {
		t.Errorf("background of the next cell: %+v", o.end)
	}
}

// Bytes that come between two cells are the next one's first.
func TestLateOutput(t *testing.T) {
	b := newBench(t, true)
	b.shell("(until [ -e go ]; do sleep .01; done; echo late; touch went) & true")
	o := b.python("open('go', 'w').close()\nimport os, time\nwhile not os.path.exists('went'): time.sleep(.01)")
	if o.stdout != "" {
		t.Errorf("python got %q", o.stdout)
	}
	want{Stdout: "late\nnow\n"}.check(t, "echo", b.shell("echo now"))
}
