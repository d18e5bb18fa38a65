//go:build linux

package interpreter

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/abx/internal/agent/account"
	"github.com/agent-sandbox/abx/internal/agent/process"
	"github.com/agent-sandbox/abx/internal/e2b"
)

// guard bounds what must end by itself. It is no measure of speed.
const guard = 60 * time.Second

// path finds the interpreters; others than the system's can be put in front.
// Those may be out of another user's reach, so all kernels then run as this one.
var path = flag.String("path", systemPath, "PATH of the kernels")

const systemPath = "/usr/bin:/bin"

// bench is a service over HTTP, its kernels running as who the test asks for.
type bench struct {
	*Service
	url  string
	home string // cwd of default contexts, writable by the kernels
	env  map[string]string
	t    testing.TB
}

// newBench makes a service whose kernels are run by this process's user; as
// root, asUser makes them run as uid 1000.
func newBench(t testing.TB, asUser bool, change ...func(*Options)) *bench {
	t.Helper()
	for _, p := range []string{"/usr/bin/python3", "/bin/bash"} {
		if _, err := os.Stat(p); err != nil {
			t.Skipf("needs %s", p)
		}
	}
	root, err := os.MkdirTemp("", "interpreter")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	b := &bench{t: t, home: filepath.Join(root, "home"), env: map[string]string{}}
	a := account.Account{Name: "user", UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Home: b.home}
	if asUser = asUser && *path == systemPath; asUser {
		if os.Getuid() != 0 {
			t.Skip("needs root to run kernels as another user")
		}
		a.UID, a.GID = account.UserID, account.UserID
	}
	passwd := filepath.Join(root, "passwd")
	group := filepath.Join(root, "group")
	must(t, os.WriteFile(passwd, fmt.Appendf(nil, "user:x:%d:%d::%s:/bin/bash\n", a.UID, a.GID, b.home), 0o644))
	must(t, os.WriteFile(group, nil, 0o644))
	must(t, os.Chmod(root, 0o755))
	must(t, os.Mkdir(b.home, 0o755))
	must(t, os.Chown(b.home, int(a.UID), int(a.GID)))
	table, err := process.NewTable(process.TableOptions{NoCredential: !asUser})
	must(t, err)
	t.Cleanup(func() { must(t, table.Close()) })
	o := Options{
		Table: table, Book: account.Book{Passwd: passwd, Group: group},
		Env: func(a account.Account) []string {
			env := []string{"PATH=" + *path, "HOME=" + a.Home, "USER=" + a.Name, "LANG=C.UTF-8"}
			for k, v := range b.env {
				env = append(env, k+"="+v)
			}
			return env
		},
		DefaultDir: b.home, RunDir: filepath.Join(root, "run"), LogDir: filepath.Join(root, "log"), ScanDirs: []string{b.home},
	}
	for _, c := range change {
		c(&o)
	}
	b.Service = New(o)
	b.interruptEvery = 100 * time.Millisecond
	server := httptest.NewServer(b.Service)
	b.url = server.URL
	t.Cleanup(func() {
		must(t, b.Close())
		server.Close()
	})
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// call is a request of POST /execute.
type call struct {
	e2b.Execute
	timeout time.Duration
	window  string
	files   bool
	ctx     context.Context
	onLine  func(line)
	dir     string
}

// line is e2b.Line with what the tests need to see beside it.
type line struct {
	e2b.Line
	Abx *struct {
		e2b.LineAbx
		Bytes []byte `json:"bytes"`
	} `json:"abx"`
	raw map[string]json.RawMessage
}

// outcome is a whole answer.
type outcome struct {
	lines          []line
	stdout, stderr string // bytes
	results        []line
	err            *line
	end            e2b.LineAbx
	count          int
}

func (o outcome) main() string {
	for _, l := range o.results {
		if l.IsMainResult {
			return l.Text
		}
	}
	return ""
}

func (b *bench) post(c call) (*http.Response, error) {
	body, err := json.Marshal(c.Execute)
	must(b.t, err)
	ctx := c.ctx
	if ctx == nil {
		ctx = context.Background()
	}
	r, err := http.NewRequestWithContext(ctx, "POST", b.url+"/execute", bytes.NewReader(body))
	must(b.t, err)
	if c.timeout > 0 {
		r.Header.Set(e2b.HeaderTimeoutMS, fmt.Sprint(c.timeout.Milliseconds()))
	}
	if c.window != "" {
		r.Header.Set(e2b.HeaderWindow, c.window)
	}
	if c.files {
		r.Header.Set(e2b.HeaderOutputFiles, "1")
	}
	if c.dir != "" {
		r.Header.Set(e2b.HeaderDir, c.dir)
	}
	return http.DefaultClient.Do(r)
}

// run runs a cell to its end.
func (b *bench) run(c call) outcome {
	b.t.Helper()
	if c.ctx == nil {
		ctx, cancel := context.WithTimeout(context.Background(), guard)
		defer cancel()
		c.ctx = ctx
	}
	resp, err := b.post(c)
	must(b.t, err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		b.t.Fatalf("status %d: %s", resp.StatusCode, text)
	}
	o := b.read(resp.Body, c.onLine)
	return o
}

func (b *bench) read(r io.Reader, onLine func(line)) (o outcome) {
	b.t.Helper()
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		raw, err := in.ReadBytes('\n')
		if err == io.EOF && len(raw) == 0 {
			break
		}
		must(b.t, err)
		for _, c := range raw {
			if c >= 0x80 {
				b.t.Fatalf("line is not ASCII: %.200q", raw)
			}
		}
		var l line
		if err := json.Unmarshal(raw, &l); err != nil {
			b.t.Fatalf("line %.200q: %v", raw, err)
		}
		must(b.t, json.Unmarshal(raw, &l.raw))
		o.add(l)
		if onLine != nil {
			onLine(l)
		}
	}
	if n := len(o.lines); n == 0 || o.lines[n-1].Type != e2b.LineEnd {
		b.t.Fatalf("no end line: %+v", o.lines)
	}
	return o
}

func (o *outcome) add(l line) {
	o.lines = append(o.lines, l)
	text := l.Text
	if l.Abx != nil && l.Abx.Bytes != nil {
		text = string(l.Abx.Bytes)
	}
	switch l.Type {
	case e2b.LineStdout:
		o.stdout += text
	case e2b.LineStderr:
		o.stderr += text
	case e2b.LineResult:
		o.results = append(o.results, l)
	case e2b.LineError:
		o.err = &l
	case e2b.LineExecutions:
		o.count = l.ExecutionCount
	case e2b.LineEnd:
		if l.Abx != nil {
			o.end = l.Abx.LineAbx
		}
	}
}

func (b *bench) python(code string) outcome {
	b.t.Helper()
	return b.run(call{Execute: e2b.Execute{Code: code}})
}

func (b *bench) shell(code string) outcome {
	b.t.Helper()
	return b.run(call{Execute: e2b.Execute{Code: code, Language: "bash"}})
}

// get makes a request and returns status and body.
func (b *bench) get(method, path, body string) (int, string) {
	b.t.Helper()
	r, err := http.NewRequest(method, b.url+path, strings.NewReader(body))
	must(b.t, err)
	resp, err := http.DefaultClient.Do(r)
	must(b.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(b.t, err)
	return resp.StatusCode, string(text)
}

func must1[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
