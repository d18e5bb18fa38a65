package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/mcp/mcptest"
)

var update = flag.Bool("update", false, "write testdata/*.json anew")

// start makes a set on a platform of the test's.
func start(t *testing.T, p *mcptest.Platform, o Options) *Set {
	t.Helper()
	if p.Command == nil {
		p.Command = func(*mcptest.Sandbox, *mcptest.Command) mcptest.End { return mcptest.End{} }
	}
	if p.Code == nil {
		p.Code = func(*mcptest.Sandbox, *mcptest.Code) e2b.LineAbx { return e2b.LineAbx{} }
	}
	o.Client = p.Client(t)
	s := New(o)
	t.Cleanup(func() {
		if err := s.End(context.Background()); err != nil {
			t.Errorf("end: %v", err)
		}
		if left := p.Alive(); len(left) > 0 {
			t.Errorf("alive after the end: %v", left)
		}
	})
	return s
}

// reply is a result as a client reads it.
type reply struct {
	Content []struct{ Type, Text, MIMEType, Data string }
	Data    map[string]any `json:"structuredContent"`
	IsError bool
}

func (r reply) text() string {
	var all []string
	for _, c := range r.Content {
		if c.Type == "text" {
			all = append(all, c.Text)
		}
	}
	return strings.Join(all, "\n")
}

func call(t *testing.T, s *Set, name string, args any) reply {
	t.Helper()
	return callWith(t, s, name, args, Request{})
}

func callWith(t *testing.T, s *Set, name string, args any, r Request) reply {
	t.Helper()
	raw, ok := args.(string)
	if !ok {
		data, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		raw = string(data)
	}
	r.Arguments = []byte(raw)
	res := s.Call(t.Context(), name, r)
	line := append(res.AppendMembers([]byte("{")), '}')
	var out reply
	if err := json.Unmarshal(line, &out); err != nil {
		t.Fatalf("%s: the result is no JSON: %v\n%s", name, err, line)
	}
	if out.IsError != (out.Data == nil) {
		t.Errorf("%s: isError %v, structured content %v", name, out.IsError, out.Data)
	}
	if len(out.Content) == 0 {
		t.Errorf("%s: no content", name)
	}
	return out
}

func good(t *testing.T, s *Set, name string, args any) reply {
	t.Helper()
	r := call(t, s, name, args)
	if r.IsError {
		t.Fatalf("%s(%v): %s", name, args, r.text())
	}
	return r
}

type object = map[string]any

// embedded is the place of abx mcp start without a key.
var embedded = Place{Network: "none", Languages: []string{"python", "shell"}, Local: true}

// TestWhatIsKnownIsTold holds that clients learn of a missing network before
// they run into it, and that nothing is said of a place that is not known.
func TestWhatIsKnownIsTold(t *testing.T) {
	about := func(p Place) map[string]Tool {
		tools := map[string]Tool{}
		for _, tool := range New(Options{Place: p}).Tools() {
			tools[tool.Name] = tool
		}
		return tools
	}
	for name, tool := range about(embedded) {
		told := strings.Contains(tool.Description, "no network")
		if want := name == "create_sandbox" || name == "run_code" || name == "run_command"; told != want {
			t.Errorf("%s tells of the network: %v", name, told)
		}
		if tool.OpenWorld {
			t.Errorf("%s is open to the world that it cannot reach", name)
		}
	}
	if d := about(embedded)["run_code"].Description; !strings.Contains(d, "python and shell") {
		t.Errorf("run_code does not say which languages are there: %s", d)
	}
	for name, tool := range about(Place{}) {
		if strings.Contains(tool.Description, "network") || strings.Contains(tool.Description, "Of its languages") {
			t.Errorf("%s says more than is known: %s", name, tool.Description)
		}
		if want := name == "create_sandbox" || strings.HasPrefix(name, "run_"); tool.OpenWorld != want {
			t.Errorf("%s: open world %v", name, tool.OpenWorld)
		}
	}
}

func TestSchemas(t *testing.T) {
	s := New(Options{Template: "code-interpreter-v1", Place: embedded})
	for _, tool := range s.Tools() {
		t.Run(tool.Name, func(t *testing.T) {
			raw, err := json.Marshal(object{
				"name": tool.Name, "title": tool.Title, "description": tool.Description,
				"inputSchema": json.RawMessage(tool.Input), "outputSchema": json.RawMessage(tool.Output),
				"readOnly": tool.ReadOnly, "destructive": tool.Destructive, "idempotent": tool.Idempotent, "openWorld": tool.OpenWorld,
			})
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := json.Indent(&got, raw, "", "  "); err != nil {
				t.Fatal(err)
			}
			got.WriteByte('\n')
			file := filepath.Join("testdata", tool.Name+".json")
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v: run with -update", err)
			}
			if d := cmp.Diff(string(want), got.String()); d != "" {
				t.Errorf("%s (-want +got):\n%s", file, d)
			}
			for _, banned := range []string{`"$ref"`, `"oneOf"`, `"anyOf"`, `"$schema"`, `"additionalProperties":false`} {
				if bytes.Contains(raw, []byte(banned)) {
					t.Errorf("strict clients do not take %s", banned)
				}
			}
		})
	}
}

// TestInputSchemasAreTheSpecified holds names, types, enums and defaults of
// the seed, apart from the golden files that -update writes.
func TestInputSchemasAreTheSpecified(t *testing.T) {
	type schema struct {
		Properties map[string]struct {
			Type    string
			Default any
			Enum    []string
			Minimum *int
			Maximum *int
		}
		Required []string
	}
	want := map[string]string{
		"create_sandbox": "template:string timeout:integer=300>=1<=86400 envs:object",
		"run_code":       "code!:string language:string=python(python,javascript,shell,typescript,r) sandbox_id:string timeout:integer=30>=1<=86400",
		"run_command":    "command!:string sandbox_id:string cwd:string=/app timeout:integer=60>=1<=86400",
		"read_file":      "path!:string sandbox_id:string encoding:string=utf-8 offset:integer>=0 limit:integer>=1",
		"write_file":     "path!:string content!:string sandbox_id:string encoding:string=utf-8",
		"list_files":     "path:string=/app sandbox_id:string",
		"kill_sandbox":   "sandbox_id:string",
	}
	for _, tool := range New(Options{}).Tools() {
		var s schema
		if err := json.Unmarshal(tool.Input, &s); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, w := range strings.Fields(want[tool.Name]) {
			name, rest, _ := strings.Cut(w, ":")
			name, required := strings.CutSuffix(name, "!")
			p, ok := s.Properties[name]
			n++
			got := p.Type
			if p.Default != nil {
				d, _ := json.Marshal(p.Default)
				got += "=" + strings.Trim(string(d), `"`)
			}
			if p.Enum != nil {
				got += "(" + strings.Join(p.Enum, ",") + ")"
			}
			if p.Minimum != nil {
				m, _ := json.Marshal(p.Minimum)
				got += ">=" + string(m)
			}
			if p.Maximum != nil {
				m, _ := json.Marshal(p.Maximum)
				got += "<=" + string(m)
			}
			isRequired := strings.Contains(" "+strings.Join(s.Required, " ")+" ", " "+name+" ")
			if !ok || got != rest || required != isRequired {
				t.Errorf("%s.%s: got %s, required %v; want %s, required %v", tool.Name, name, got, isRequired, rest, required)
			}
		}
		if n != len(s.Properties) {
			t.Errorf("%s has %d parameters, want %d", tool.Name, len(s.Properties), n)
		}
	}
}

func TestBadArguments(t *testing.T) {
	s := start(t, &mcptest.Platform{}, Options{})
	for _, c := range []struct {
		tool, args string
		want       []string // in the text
	}{
		{"run_code", `{}`, []string{`"code" is missing`}},
		{"run_code", ``, []string{`"code" is missing`}},
		{"run_code", `null`, []string{`"code" is missing`}},
		{"run_code", `{"code":null}`, []string{`"code" is missing`}},
		{"run_code", `[1]`, []string{"JSON object"}},
		{"run_code", `{"code":5}`, []string{`"code"`, "string", "5"}},
		{"run_code", `{"code":"1","language":"js"}`, []string{`"language"`, `"js"`, `did you mean "javascript"`}},
		{"run_code", `{"code":"1","language":"Pyton"}`, []string{`"Pyton"`, `did you mean "python"`}},
		{"run_code", `{"code":"1","language":"cobol"}`, []string{`"cobol"`, "python, javascript, shell, typescript, r"}},
		{"run_code", `{"code":"1","timeout":0}`, []string{`"timeout"`, "0", "at least 1"}},
		{"run_code", `{"code":"1","timeout":-5}`, []string{`"timeout"`, "-5", "at least 1"}},
		{"run_code", `{"code":"1","timeout":"60"}`, []string{`"timeout"`, "whole number", `"60"`}},
		{"run_code", `{"code":"1","timeout":1.5}`, []string{`"timeout"`, "whole number", "1.5"}},
		{"run_code", `{"code":"1","timeout":true}`, []string{`"timeout"`, "whole number", "true"}},
		{"run_code", `{"code":"1","timeout":1e30}`, []string{`"timeout"`, "too large"}},
		{"run_code", `{"code":"1","timeout":86401}`, []string{`"timeout": 86401 is too large: give at most 86400`}},
		{"run_command", `{"command":"ls","timeout":100000}`, []string{`"timeout": 100000 is too large: give at most 86400`}},
		{"create_sandbox", `{"timeout":1000000}`, []string{`"timeout": 1000000 is too large: give at most 86400`}},
		{"run_code", `{"code":"1","timeout":1e999}`, []string{`"timeout"`, "too large"}},
		{"run_code", `{"cod":"1"}`, []string{`"cod"`, `did you mean "code"`}},
		{"run_command", `{"command":"ls","Timeout":5}`, []string{`"Timeout"`, `did you mean "timeout"`}},
		{"run_command", `{"command":"ls","sandboxId":"x"}`, []string{`"sandboxId"`, `did you mean "sandbox_id"`}},
		{"run_command", `{"cmd":"ls"}`, []string{`"cmd" is not known: did you mean "command"`}},
		{"run_command", `{"script":"ls","cwd":"/tmp"}`, []string{`"script" is not known: did you mean "command"`}},
		{"run_command", `{"command":"ls","working_dir":"/tmp"}`, []string{`did you mean "cwd"`}},
		{"run_command", `{"command":"ls","timeout_ms":5}`, []string{`did you mean "timeout"`}},
		{"run_command", `{"x":1,"y":2}`, []string{`"command" is missing: give the shell command line to run (not known: "x", "y")`}},
		{"run_code", `{"lang":"shell","code":"1"}`, []string{`"lang" is not known: did you mean "language"`}},
		{"run_code", `{"source":"1"}`, []string{`did you mean "code"`}},
		{"read_file", `{"file_path":"/a"}`, []string{`did you mean "path"`}},
		{"write_file", `{"path":"/a","contents":"x"}`, []string{`"contents" is not known: did you mean "content"`}},
		{"write_file", `{"path":"/a","mode":"w"}`, []string{`"content" is missing`, `(not known: "mode")`}},
		{"write_file", `{"path":"/a","content":"x","mode":"append"}`, []string{`"mode" is not known`, "replaces the whole file", "cat >>"}},
		{"write_file", `{"path":"/a","content":"x","append":true}`, []string{`"append" is not known`, "replaces the whole file"}},
		{"list_files", `{"directory":"/tmp"}`, []string{`"directory" is not known: did you mean "path"`}},
		{"run_command", `{"command":" "}`, []string{`"command"`, "empty"}},
		{"run_command", `{"command":"a\u0000b"}`, []string{`"command"`, "NUL"}},
		{"run_command", `{"command":"ls","cwd":"src"}`, []string{`"cwd"`, "relative", `"/app/src"`}},
		{"read_file", `{"path":"data.csv"}`, []string{`"path"`, `"data.csv" is relative`, `"/app/data.csv"`}},
		{"read_file", `{"path":"~/x"}`, []string{`"path"`, `"/home/user/x"`}},
		{"read_file", `{"path":"$HOME/x"}`, []string{`"path"`, "variables are not known here", `"/home/user/`}},
		{"read_file", `{"path":""}`, []string{`"path"`, "empty"}},
		{"read_file", `{"path":"/a","encoding":"klingon"}`, []string{`"encoding"`, `"klingon"`, "base64"}},
		{"read_file", `{"path":"/a","encoding":"binary"}`, []string{`"encoding"`, "base64"}},
		{"read_file", `{"path":"/a","offset":-1}`, []string{`"offset"`, "-1"}},
		{"read_file", `{"path":"/a","limit":0}`, []string{`"limit"`, "at least 1"}},
		{"read_file", `{"path":"/a","limit":99999999}`, []string{`"limit"`, "8388608"}},
		{"write_file", `{"path":"x\\y.txt","content":""}`, []string{`"path"`, "relative", `"/app/x/y.txt"`}},
		{"write_file", `{"path":"/app/x"}`, []string{`"content" is missing`}},
		{"write_file", `{"path":"/app/","content":"x"}`, []string{`"path"`, "folder"}},
		{"write_file", `{"path":"/app/x","content":"%%","encoding":"base64"}`, []string{`"content"`, "base64"}},
		{"write_file", `{"path":"/app/x","content":"€","encoding":"koi8-r"}`, []string{`"content"`, "koi8-r"}},
		{"write_file", `{"path":"/app/x","content":"a世","encoding":"Latin1"}`, []string{`"content": latin1 does not have the character '世' (U+4E16)`}},
		{"write_file", `{"path":"/app/x","content":"\u0000\u0000","encoding":"iso-2022-kr"}`, []string{`"encoding"`, "base64"}},
		{"list_files", `{"path":"."}`, []string{`"path"`, "relative", `"/app"`}},
		{"create_sandbox", `{"envs":{"A":5}}`, []string{`"envs"`, `"A"`, "string", "5"}},
		{"create_sandbox", `{"envs":["A"]}`, []string{`"envs"`, "object"}},
		{"create_sandbox", `{"envs":{"":"x"}}`, []string{`"envs"`}},
		{"create_sandbox", `{"env":{"A":"5"}}`, []string{`"env"`, `did you mean "envs"`}},
		{"kill_sandbox", `{}`, []string{"no default sandbox", "sandbox_id"}},
		{"kill_sandbox", `{"sandbox_id":"i1"}`, []string{"unknown sandbox: i1", "create_sandbox"}},
	} {
		r := call(t, s, c.tool, c.args)
		if !r.IsError {
			t.Errorf("%s(%s): accepted", c.tool, c.args)
		}
		for _, w := range c.want {
			if !strings.Contains(r.text(), w) {
				t.Errorf("%s(%s): %q is not in %q", c.tool, c.args, w, r.text())
			}
		}
	}
}

func TestToleratedArguments(t *testing.T) {
	p := &mcptest.Platform{}
	s := start(t, p, Options{})
	good(t, s, "run_command", `{"command":"ls","timeout":5.0,"sandbox_id":null,"explanation":null}`)
	good(t, s, "run_command", `{"command":"ls","timeout":1e2}`)
	good(t, s, "run_command", `{"command":"ls","timeout":86400}`)
}

// TestUnknownArgumentsAreTold holds that an argument that has no effect is
// named in every result, also in one that failed.
func TestUnknownArgumentsAreTold(t *testing.T) {
	s := start(t, &mcptest.Platform{}, Options{})
	for _, c := range []struct {
		tool, args string
		want       string
	}{
		{"create_sandbox", `{"metadata":{"a":1}}`, `create_sandbox does not know this argument: "metadata". It takes template, timeout, envs.`},
		{"run_command", `{"command":"ls","env":{"X":1},"_meta":{}}`, `run_command does not know these arguments: "env", "_meta". It takes command, sandbox_id, cwd, timeout.`},
		{"run_code", `{"code":"1","explanation":"why"}`, `run_code does not know this argument: "explanation".`},
		{"write_file", `{"path":"/app/f","content":"x","mode":"0644","append":false}`, `write_file does not know these arguments: "mode", "append".`},
		{"list_files", `{"a1":1,"b2":1,"c3":1,"d4":1,"e5":1,"f6":1,"g7":1}`, `"e5", and 2 more`},
		{"read_file", `{"path":"/app/none","mode":"r"}`, `read_file does not know this argument: "mode".`}, // an error
		{"kill_sandbox", `{"force":true}`, `kill_sandbox does not know this argument: "force".`},
	} {
		if r := call(t, s, c.tool, c.args); !strings.Contains(r.text(), c.want) {
			t.Errorf("%s(%s): %q is not in %q", c.tool, c.args, c.want, r.text())
		}
	}
}

func TestSchemaOfArgumentsMatchesTheCheck(t *testing.T) {
	for _, d := range definitions(Options{}) {
		names := map[string]bool{}
		for _, p := range d.params {
			if names[p.name] || p.doc == "" {
				t.Errorf("%s.%s: twice, or without a description", d.Name, p.name)
			}
			names[p.name] = true
			if p.kind == kindWhole && p.whole != 0 && p.whole < p.least {
				t.Errorf("%s.%s: the default is below the least", d.Name, p.name)
			}
		}
	}
}

func TestNames(t *testing.T) {
	want := []string{"create_sandbox", "run_code", "run_command", "read_file", "write_file", "list_files", "kill_sandbox"}
	if d := cmp.Diff(want, Names()); d != "" {
		t.Errorf("names (-want +got):\n%s", d)
	}
}
