package test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/agent-sandbox/abx/test/stdio"
)

// TestBadCalls: each gets an answer that says what is wrong, and the server
// serves on.
func TestBadCalls(t *testing.T) {
	c := serve(t)
	b := newBox(t, c)
	b.run(t, "mkdir /tmp/dir; ln -s /tmp/dir /tmp/link; ln -s /tmp/none /tmp/dangling; echo hello > /tmp/dir/f; head -c 3000 /bin/true > /tmp/elf").wantEnd(t, "0 exit")
	foreign := newBox(t, serve(t))

	err := c.Call(t.Context(), "tools/call", map[string]any{"name": "no_such_tool", "arguments": map[string]any{}}, &struct{}{})
	if err == nil {
		t.Error("an unknown tool was called")
	} else {
		wantWords(t, "unknown tool", err.Error(), "-32602", "no_such_tool")
	}
	for _, r := range []struct {
		tool  string
		args  stdio.Arguments
		words []string
	}{
		{"run_command", nil, []string{`"command"`, "missing"}},
		{"run_code", nil, []string{`"code"`, "missing"}},
		{"read_file", nil, []string{`"path"`, "missing"}},
		{"write_file", stdio.Arguments{"path": "/tmp/x"}, []string{`"content"`, "missing"}},
		{"write_file", stdio.Arguments{"content": "x"}, []string{`"path"`, "missing"}},
		{"run_command", stdio.Arguments{"command": 5}, []string{`"command"`, "string", "5"}},
		{"run_command", stdio.Arguments{"command": []string{"ls", "-l"}}, []string{`"command"`, "string"}},
		{"run_command", stdio.Arguments{"command": nil}, []string{`"command"`, "missing"}},
		{"run_command", stdio.Arguments{"command": "   "}, []string{`"command"`, "empty"}},
		{"run_command", stdio.Arguments{"command": "a\x00b"}, []string{`"command"`, "NUL"}},
		{"run_command", stdio.Arguments{"cmd": "ls"}, []string{`"cmd"`, "did you mean"}},
		{"run_command", stdio.Arguments{"command": "ls", "cwd": "src"}, []string{`"cwd"`, "relative", "/app/src"}},
		{"run_command", stdio.Arguments{"command": "ls", "cwd": "/tmp/dir/f"}, []string{"/tmp/dir/f"}},
		{"run_command", stdio.Arguments{"command": "ls", "timeout": "60"}, []string{`"timeout"`, "whole number"}},
		{"run_command", stdio.Arguments{"command": "ls", "timeout": -1}, []string{`"timeout"`, "at least 1"}},
		{"run_command", stdio.Arguments{"command": "ls", "timeout": 0}, []string{`"timeout"`, "at least 1"}},
		{"run_code", stdio.Arguments{"code": "1", "timeout": 0}, []string{`"timeout"`, "at least 1"}},
		{"run_code", stdio.Arguments{"code": "1", "timeout": -7}, []string{`"timeout"`, "at least 1"}},
		{"create_sandbox", stdio.Arguments{"timeout": 0}, []string{`"timeout"`, "at least 1"}},
		{"create_sandbox", stdio.Arguments{"timeout": -300}, []string{`"timeout"`, "at least 1"}},
		{"create_sandbox", stdio.Arguments{"template": "no-such-template"}, []string{"no-such-template"}},
		{"create_sandbox", stdio.Arguments{"envs": "A=1"}, []string{`"envs"`, "object"}},
		{"create_sandbox", stdio.Arguments{"envs": map[string]any{"A": 1}}, []string{`"envs"`, `"A"`, "string"}},
		{"run_code", stdio.Arguments{"code": "1", "language": "cobol"}, []string{`"language"`, "cobol", "python"}},
		{"run_code", stdio.Arguments{"code": "1", "language": "py"}, []string{`"language"`, `did you mean "python"`}},
		{"run_code", stdio.Arguments{"code": "1", "language": ""}, []string{`"language"`, "python"}},
		{"run_code", stdio.Arguments{"code": "1", "language": "javascript"}, []string{"javascript", "run_command"}},
		{"run_code", stdio.Arguments{"code": "1", "language": "typescript"}, []string{"typescript", "run_command"}},
		{"run_code", stdio.Arguments{"code": "1", "language": "r"}, []string{"run_command"}},
		{"read_file", stdio.Arguments{"path": "data.csv"}, []string{`"path"`, "relative", "/app/data.csv"}},
		{"read_file", stdio.Arguments{"path": "./x"}, []string{`"path"`, "relative", "/app/x"}},
		{"read_file", stdio.Arguments{"path": "~/x"}, []string{`"path"`, "/home/user/x"}},
		{"read_file", stdio.Arguments{"path": ""}, []string{`"path"`, "empty"}},
		{"read_file", stdio.Arguments{"path": `C:\x`}, []string{`"path"`, "relative"}},
		{"write_file", stdio.Arguments{"path": "x", "content": ""}, []string{`"path"`, "relative", "/app/x"}},
		{"list_files", stdio.Arguments{"path": "."}, []string{`"path"`, "relative", "/app"}},
		{"read_file", stdio.Arguments{"path": "/tmp/dir"}, []string{"/tmp/dir", "folder", "list_files"}},
		{"read_file", stdio.Arguments{"path": "/tmp/link"}, []string{"/tmp/link", "folder", "list_files"}},
		{"read_file", stdio.Arguments{"path": "/tmp/dangling"}, []string{"/tmp/dangling", "no file"}},
		{"read_file", stdio.Arguments{"path": "/tmp/none"}, []string{"/tmp/none", "no file", "list_files"}},
		{"read_file", stdio.Arguments{"path": "/tmp/dir/f/g"}, []string{"/tmp/dir/f/g"}},
		{"read_file", stdio.Arguments{"path": "/tmp/elf"}, []string{"/tmp/elf", "base64", "3,000 bytes"}},
		{"read_file", stdio.Arguments{"path": "/tmp/dir/f", "encoding": "klingon"}, []string{`"encoding"`, "klingon", "base64"}},
		{"read_file", stdio.Arguments{"path": "/tmp/dir/f", "offset": -1}, []string{`"offset"`, "-1"}},
		{"read_file", stdio.Arguments{"path": "/tmp/dir/f", "limit": 0}, []string{`"limit"`, "at least 1"}},
		{"write_file", stdio.Arguments{"path": "/tmp/dir", "content": ""}, []string{"/tmp/dir", "folder"}},
		{"write_file", stdio.Arguments{"path": "/tmp/x", "content": "%%%", "encoding": "base64"}, []string{`"content"`, "base64"}},
		{"list_files", stdio.Arguments{"path": "/tmp/dir/f"}, []string{"/tmp/dir/f", "read_file"}},
		{"list_files", stdio.Arguments{"path": "/tmp/none"}, []string{"/tmp/none", "no folder"}},
	} {
		args := r.args
		if r.tool != "create_sandbox" {
			args = b.args(args)
		}
		refused(t, c, r.tool, args, r.words...)
		if err := c.Call(t.Context(), "ping", map[string]any{}, &struct{}{}); err != nil {
			t.Fatalf("after %s(%v): %v", r.tool, r.args, err)
		}
	}
	// A path through a link is an ordinary path.
	if got := b.read(t, "/tmp/link/f"); got != "hello\n" {
		t.Errorf("through a link: %q", got)
	}
	b.runWith(t, "cat f", stdio.Arguments{"cwd": "/tmp/link"}).want(t, "0 exit", "hello\n")
	strangers(t, c, foreign.id)
	foreign.usable(t)
	b.usable(t)
}

// strangers: an id of another session answers exactly like one that never was.
func strangers(t *testing.T, c *stdio.Client, foreign string) {
	t.Helper()
	for tool, args := range map[string]stdio.Arguments{
		"run_command": {"command": "ls"}, "run_code": {"code": "1"}, "read_file": {"path": "/x"},
		"write_file": {"path": "/x", "content": ""}, "list_files": {}, "kill_sandbox": {},
	} {
		args["sandbox_id"] = foreign
		said := refused(t, c, tool, args, foreign, "unknown sandbox", "create_sandbox")
		for _, unknown := range []string{"i00000000000000000000"[:len(foreign)], "../" + foreign[3:], strings.Repeat("i", len(foreign))} {
			args["sandbox_id"] = unknown
			if got := refused(t, c, tool, args, "unknown sandbox"); strings.ReplaceAll(got, unknown, foreign) != said {
				t.Errorf("%s: %q for an unknown id, %q for another session's", tool, got, said)
			}
		}
		args["sandbox_id"] = 5
		refused(t, c, tool, args, `"sandbox_id"`, "string")
	}
}

// TestBadLines: what is no message gets an error, and the server serves on.
func TestBadLines(t *testing.T) {
	r := raw(t)
	for i, c := range []struct {
		line  string
		words []string
	}{
		{"not json", []string{"-32700", `"id":null`}},
		{`{"jsonrpc":"2.0","id":1,"method":"ping"`, []string{"-32700"}},
		{`{"jsonrpc":"2.0","id":1,"method":"ping"}}`, []string{"-32700"}},
		{"\x00\x01\x02", []string{"-32700"}},
		{"\xff\xfe", []string{"-32700"}},
		{`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + "\x01" + `"}}`, []string{"-32700"}},
		{"Content-Length: 10", []string{"-32700"}},
		{`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"ping"}]`, []string{"-32600", "batch"}},
		{`[]`, []string{"-32600", "batch"}},
		{`5`, []string{"-32600"}},
		{`null`, []string{"-32600"}},
		{`{}`, []string{"-32600"}},
		{`{"jsonrpc":"2.0","id":null,"method":"ping"}`, []string{"-32600", "id"}},
		{`{"jsonrpc":"1.0","id":3,"method":"ping"}`, []string{"-32600", `"id":3`, "2.0"}},
		{`{"jsonrpc":"2.0","id":4,"method":"no/such"}`, []string{"-32601", `"id":4`, "no/such"}},
		{`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":[1]}`, []string{"-32602", `"id":5`}},
		{`{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"no_such_tool"}}`, []string{"-32602", "no_such_tool"}},
		{`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"run_code","arguments":[1]}}`, []string{`"id":7`, "JSON object"}},
		{`{"jsonrpc":"2.0","id":8,"method":"initialize","params":{}}`, []string{`"id":8`, "-32600"}},
		{strings.Repeat("x", 9<<20), []string{"-32600", "8388608"}},
		{`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("x", 9<<20) + `"}}`, []string{"-32600", "8388608", "parts"}},
		{strings.Repeat("[", 1<<20), []string{"-327"}},
		{`{"jsonrpc":"2.0","id":9,"method":"ping","params":{"x":` + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20) + `}}`, []string{"error"}},
	} {
		r.say(t, c.line)
		wantWords(t, fmt.Sprintf("%.60q", c.line), r.hear(t), append(c.words, "rror")...)
		r.say(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, 1000+i))
		wantWords(t, fmt.Sprintf("ping after %.60q", c.line), r.hear(t), fmt.Sprintf(`"id":%d`, 1000+i), "result")
	}
	for _, silent := range []string{"", "   ", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77}}`, `{"jsonrpc":"2.0","method":"notifications/no_such"}`, `{"jsonrpc":"2.0","id":99,"result":{}}`} {
		r.say(t, silent)
	}
	r.call(t, 2000, "run_command", stdio.Arguments{"command": "echo fine"})
	wantWords(t, "a call after all that", r.hear(t), `"id":2000`, `fine\n`)
	r.stdin.Close()
	if code := r.end(t, "after bad lines"); code != 0 {
		t.Errorf("ended with code %d", code)
	}
}

// TestEndInMidCall: when input ends during a call, what can still be answered
// is, and the server leaves with all that ran.
func TestEndInMidCall(t *testing.T) {
	for name, c := range map[string]struct {
		tool     string
		args     stdio.Arguments
		answered string
	}{
		"quick command": {"run_command", stdio.Arguments{"command": "echo quick"}, `quick\n`},
		"long command":  {"run_command", stdio.Arguments{"command": "touch /tmp/x; sleep 605"}, ""},
		"deaf command":  {"run_command", stdio.Arguments{"command": "trap '' TERM INT HUP; sleep 605; sleep 605"}, ""},
		"code":          {"run_code", stdio.Arguments{"code": "while True: pass"}, ""},
		"deaf code":     {"run_code", stdio.Arguments{"code": "while True:\n    try:\n        while True: pass\n    except BaseException: pass"}, ""},
		"large file":    {"write_file", stdio.Arguments{"path": "/tmp/f", "content": strings.Repeat("x", 7<<20)}, "7340032"},
	} {
		r := raw(t)
		r.call(t, 1, "run_command", stdio.Arguments{"command": "echo ready"})
		wantWords(t, name, r.hear(t), `ready\n`)
		r.call(t, 2, c.tool, c.args)
		r.stdin.Close()
		var heard []string
		for {
			line, err := r.lines.ReadString('\n')
			if err != nil {
				break
			}
			if !json.Valid([]byte(line)) {
				t.Errorf("%s: %q", name, line)
			}
			heard = append(heard, line)
		}
		if code := r.end(t, name); code != 0 {
			t.Errorf("%s: ended with code %d", name, code)
		}
		if len(heard) != 1 {
			t.Errorf("%s: %d answers, want one: %.500q", name, len(heard), heard)
			continue
		}
		wantWords(t, name, heard[0], `"id":2`)
		if c.answered != "" {
			wantWords(t, name, heard[0], c.answered)
		} else {
			wantWords(t, name, heard[0], `"isError":true`, "cancelled")
		}
	}
}
