package tool

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/mcp/mcptest"
	"github.com/agent-sandbox/abx/sandbox"
)

func TestCreateSandbox(t *testing.T) {
	p := &mcptest.Platform{Abx: &e2b.SandboxAbx{
		Isolation: "namespace", Network: "none", Notes: []string{"No memory limit."}, Limits: &e2b.Limits{MemoryBytes: 2 << 30, Processes: 512},
	}}
	s := start(t, p, Options{Template: "code-interpreter-v1", Notes: []string{"Ports are not reachable from outside."}})
	r := good(t, s, "create_sandbox", object{"timeout": 77, "envs": object{"A": "1"}})
	id := p.Alive()[0]
	want := object{
		"sandbox_id": id, "status": "running", "url": "http://80-" + id + ".sandboxes.test", "url_template": "http://{port}-" + id + ".sandboxes.test",
		"template": "code-interpreter-v1", "timeout": 77., "isolation": "namespace", "network": "none",
		"limits": object{"memory_bytes": float64(2 << 30), "processes": 512.},
		"notes":  []any{"No memory limit.", "Ports are not reachable from outside."},
	}
	if d := cmp.Diff(want, r.Data); d != "" {
		t.Errorf("result (-want +got):\n%s", d)
	}
	made := p.Sandbox(id).Created
	if made.TemplateID != "code-interpreter-v1" || *made.Timeout != 77 || made.EnvVars["A"] != "1" {
		t.Errorf("asked for %+v", made)
	}
	good(t, s, "create_sandbox", object{"template": "other"})
	if got := p.Sandbox(p.Alive()[1]).Created.TemplateID; got != "other" {
		t.Errorf("template %q", got)
	}
}

// TestAddressesThatLeadNowhere holds that a model is not handed an address that
// its user could open in vain, while the data keeps the field that clients know.
func TestAddressesThatLeadNowhere(t *testing.T) {
	for _, c := range []struct {
		place Place
		shown bool
	}{{Place{}, true}, {embedded, false}} {
		r := good(t, start(t, &mcptest.Platform{}, Options{Place: c.place}), "create_sandbox", `{}`)
		if strings.Contains(r.text(), "http://") != c.shown || !strings.HasPrefix(r.Data["url"].(string), "http://80-") {
			t.Errorf("%+v: url %v, text %s", c.place, r.Data["url"], r.text())
		}
	}
}

// TestReplacementIsToldByErrorsToo: to read what was written before is the most
// likely call after the default sandbox has died.
func TestReplacementIsToldByErrorsToo(t *testing.T) {
	p := &mcptest.Platform{}
	s := start(t, p, Options{})
	good(t, s, "write_file", object{"path": "/app/f", "content": "x"})
	p.Sandbox(p.Alive()[0]).Expire()
	r := call(t, s, "read_file", object{"path": "/app/f"})
	for _, w := range []string{`no file "/app/f"`, "This is a new, empty one", "sandbox_id: " + p.Alive()[0]} {
		if !r.IsError || !strings.Contains(r.text(), w) {
			t.Errorf("%q is not in %q", w, r.text())
		}
	}
	if r = call(t, s, "read_file", object{"path": "/app/f"}); strings.Contains(r.text(), "new, empty") {
		t.Errorf("told twice: %s", r.text())
	}
	// An id that is new to the client is told also when the call failed.
	r = callWith(t, s, "read_file", object{"path": "/app/f"}, Request{Fresh: true})
	if !strings.Contains(r.text(), "sandbox_id: i") {
		t.Errorf("the sandbox of a failed call is not named: %s", r.text())
	}
}

// TestDeathThatThePlatformDoesNotKnowYet: a default sandbox is replaced also
// when only the call itself finds it dead.
func TestDeathThatThePlatformDoesNotKnowYet(t *testing.T) {
	asked := 0
	p := &mcptest.Platform{}
	p.Requests = func(_, path string) {
		if strings.HasSuffix(path, "/timeout") {
			asked++
		}
	}
	s := start(t, p, Options{})
	good(t, s, "write_file", object{"path": "/app/f", "content": "x"})
	id := p.Alive()[0]
	p.Sandbox(id).Vanish(3) // the control plane thinks it alive for three calls more
	r := good(t, s, "write_file", object{"path": "/app/f", "content": "x"})
	if !strings.Contains(r.text(), "This is a new, empty one") || asked < 4 {
		t.Errorf("after %d extensions: %s", asked, r.text())
	}
	// One that is named is not replaced.
	id = p.Alive()[0]
	p.Sandbox(id).Vanish(3)
	if r := call(t, s, "write_file", object{"path": "/app/f", "content": "x", "sandbox_id": id}); !r.IsError {
		t.Errorf("got %s", r.text())
	}
}

func TestSandboxThatLostItsUser(t *testing.T) {
	p := &mcptest.Platform{}
	s := start(t, p, Options{Place: embedded})
	good(t, s, "create_sandbox", `{}`)
	p.Sandbox(p.Alive()[0]).Forget(`unknown user: "user"`)
	for tool, args := range map[string]object{
		"run_command": {"command": "ls"}, "read_file": {"path": "/app/f"}, "write_file": {"path": "/app/f", "content": ""}, "list_files": {"path": "/tmp"},
	} {
		r := call(t, s, tool, args)
		if !r.IsError || strings.Contains(r.text(), "API_KEY") || strings.Contains(r.text(), "Write below") {
			t.Errorf("%s: %s", tool, r.text())
		}
		for _, w := range []string{`unknown user: "user"`, "/etc/passwd", "kill_sandbox"} {
			if !strings.Contains(r.text(), w) {
				t.Errorf("%s: %q is not in %q", tool, w, r.text())
			}
		}
	}
}

func TestProcessLimitOfASandbox(t *testing.T) {
	p := &mcptest.Platform{}
	s := start(t, p, Options{})
	good(t, s, "create_sandbox", `{}`)
	p.Sandbox(p.Alive()[0]).Full("command '/bin/sh': the sandbox's limit of processes is reached; end some first")
	r := call(t, s, "run_command", object{"command": "ls"})
	if !r.IsError || !strings.Contains(r.text(), "os.kill(-1, 9)") || strings.Contains(r.text(), "Kill a sandbox that is not needed") {
		t.Errorf("got %s", r.text())
	}
}

func TestDefaultSandboxIsSharedAndKilled(t *testing.T) {
	p := &mcptest.Platform{}
	s := start(t, p, Options{})
	r := good(t, s, "write_file", object{"path": "/app/a", "content": "x"})
	first := p.Alive()[0]
	if r.Data["sandbox_id"] != first {
		t.Errorf("the call that made the sandbox names %v", r.Data["sandbox_id"])
	}
	if r = good(t, s, "read_file", object{"path": "/app/a"}); r.Data["content"] != "x" || r.Data["sandbox_id"] != nil {
		t.Errorf("got %v", r.Data)
	}
	good(t, s, "create_sandbox", `{}`)
	if r = call(t, s, "read_file", object{"path": "/app/a"}); !r.IsError {
		t.Error("create_sandbox did not change the default")
	}
	good(t, s, "read_file", object{"path": "/app/a", "sandbox_id": first})
	if r = good(t, s, "kill_sandbox", object{"sandbox_id": first}); r.Data["success"] != true || r.Data["sandbox_id"] != first {
		t.Errorf("got %v", r.Data)
	}
	r = call(t, s, "read_file", object{"path": "/app/a", "sandbox_id": first})
	if !r.IsError || !strings.Contains(r.text(), "is gone: "+first) {
		t.Errorf("killed: %s", r.text())
	}
	good(t, s, "kill_sandbox", `{}`)
	if r = call(t, s, "kill_sandbox", `{}`); !r.IsError {
		t.Error("killed a default that is not there")
	}
}

func TestForeignAndUnknownIDsAnswerAlike(t *testing.T) {
	p := &mcptest.Platform{}
	a, b := start(t, p, Options{}), start(t, p, Options{})
	good(t, a, "create_sandbox", `{}`)
	theirs := p.Alive()[0]
	answers := map[string]string{}
	for _, id := range []string{theirs, "i9999999999999999999"} {
		answers[strings.ReplaceAll(call(t, b, "list_files", object{"sandbox_id": id}).text(), id, "ID")] = id
	}
	if len(answers) != 1 {
		t.Errorf("the answers differ: %v", answers)
	}
	if err := b.End(t.Context()); err != nil {
		t.Error(err)
	}
	if got := p.Alive(); len(got) != 1 {
		t.Errorf("alive: %v", got)
	}
	if err := a.End(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStatelessClients(t *testing.T) {
	p := &mcptest.Platform{}
	s := start(t, p, Options{})
	fresh := Request{Fresh: true}
	one := callWith(t, s, "write_file", object{"path": "/app/a", "content": "x"}, fresh).Data["sandbox_id"]
	two := callWith(t, s, "list_files", object{}, fresh).Data["sandbox_id"]
	if one == nil || two == nil || one == two {
		t.Errorf("sandboxes %v and %v", one, two)
	}
	r := callWith(t, s, "read_file", object{"path": "/app/a", "sandbox_id": one}, fresh)
	if r.Data["content"] != "x" {
		t.Errorf("got %s", r.text())
	}
}

func TestPlatformTroubles(t *testing.T) {
	for _, c := range []struct {
		status  int
		message string
		want    []string
	}{
		{http.StatusUnauthorized, "bad key", []string{"bad key", "ABX_SANDBOX_API_KEY"}},
		{http.StatusTooManyRequests, "256 sandboxes run (setting sandboxes)", []string{"256 sandboxes run", "kill_sandbox"}},
		{http.StatusNotFound, `template "x" was not found; this host has base`, []string{`argument "template": template "x" was not found; this host has base. Choose one`}},
		{http.StatusBadRequest, "Timeout cannot be greater than 1 hours", []string{`argument "timeout": 300 is too large: Timeout cannot be greater than 1 hours`}},
		{http.StatusInternalServerError, "boom", []string{"boom", "Try again"}},
	} {
		p := &mcptest.Platform{Refuse: func(method, path string) (int, string) {
			if path == "/sandboxes" {
				return c.status, c.message
			}
			return 0, ""
		}}
		r := call(t, start(t, p, Options{}), "create_sandbox", object{"template": "x"})
		if !r.IsError {
			t.Errorf("%d: no error", c.status)
		}
		for _, w := range c.want {
			if !strings.Contains(r.text(), w) {
				t.Errorf("%d: %q is not in %q", c.status, w, r.text())
			}
		}
	}
}

type brokenHost struct{}

func (brokenHost) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, hostError{errors.New("user namespaces are switched off")}
}

type hostError struct{ error }

func (hostError) Next() string { return "Run: sysctl kernel.unprivileged_userns_clone=1" }

func TestErrorsThatKnowTheirNextStep(t *testing.T) {
	c, err := sandbox.NewClient(sandbox.Config{BaseURL: "http://embedded.test", SandboxURL: "http://embedded.test", Transport: brokenHost{}})
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Client: c})
	r := call(t, s, "list_files", object{})
	for _, w := range []string{"user namespaces are switched off", "Run: sysctl"} {
		if !r.IsError || !strings.Contains(r.text(), w) {
			t.Errorf("%q is not in %q", w, r.text())
		}
	}
}

func TestIsolationIsAskedFor(t *testing.T) {
	p := &mcptest.Platform{Abx: &e2b.SandboxAbx{Isolation: "namespace"}}
	s := start(t, p, Options{Isolation: "namespace"})
	good(t, s, "create_sandbox", `{}`)
	if made := p.Sandbox(p.Alive()[0]).Created; made.Abx == nil || made.Abx.Isolation != "namespace" {
		t.Errorf("asked for %+v", made.Abx)
	}
}

// TestPanic holds that a fault of ours is a result, and that its trace stays
// in the log.
func TestPanic(t *testing.T) {
	s := start(t, &mcptest.Platform{}, Options{})
	broken := &Set{o: s.o, tools: s.tools} // no session: every use is a nil pointer
	res := broken.Call(t.Context(), "list_files", Request{})
	if !res.IsError || !strings.Contains(res.Content[0].Text, "internal error") || strings.Contains(res.Content[0].Text, "goroutine") {
		t.Errorf("got %+v", res)
	}
}

func TestServersOwnTemplateIsMissing(t *testing.T) {
	p := &mcptest.Platform{Refuse: func(_, path string) (int, string) {
		if path == "/sandboxes" {
			return http.StatusNotFound, `template "mine" was not found; this host has base`
		}
		return 0, ""
	}}
	for tool, args := range map[string]string{"list_files": `{}`, "create_sandbox": `{}`, "run_command": `{"command":"ls"}`} {
		r := call(t, start(t, p, Options{Template: "mine"}), tool, args)
		for _, w := range []string{"the server's template", "this host has base", "ABX_DEFAULT_TEMPLATE"} {
			if !r.IsError || !strings.Contains(r.text(), w) {
				t.Errorf("%s: %q is not in %q", tool, w, r.text())
			}
		}
	}
}

// TestTimeoutThatThePlatformRefuses: some platforms allow less than a day.
func TestTimeoutThatThePlatformRefuses(t *testing.T) {
	p := &mcptest.Platform{Refuse: func(_, path string) (int, string) {
		if strings.HasSuffix(path, "/timeout") {
			return http.StatusBadRequest, "Timeout cannot be greater than 1 hours"
		}
		return 0, ""
	}}
	r := call(t, start(t, p, Options{}), "run_command", `{"command":"ls","timeout":7200}`)
	if !r.IsError || !strings.Contains(r.text(), `argument "timeout": 7200 is too large: Timeout cannot be greater than 1 hours`) {
		t.Errorf("got %s", r.text())
	}
}
