package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/mcp/mcptest"
)

var update = flag.Bool("update", false, "write testdata/*.txtar anew")

func jsonValid(b []byte) bool { return json.Valid(b) }

// platform answers commands and code with what they are.
func platform() *mcptest.Platform {
	return &mcptest.Platform{
		Abx:     &e2b.SandboxAbx{Isolation: "namespace", Network: "none"},
		Command: func(_ *mcptest.Sandbox, c *mcptest.Command) mcptest.End { return mcptest.End{Stdout: c.Line() + "\n"} },
		Code: func(_ *mcptest.Sandbox, c *mcptest.Code) e2b.LineAbx {
			c.Send(e2b.Line{Type: e2b.LineStdout, Text: c.Execute.Code + "\n"})
			return e2b.LineAbx{}
		},
	}
}

// guard is ten times longer than anything here takes.
const guard = 30 * time.Second

// A peer is a client at the other ends of a server's streams.
type peer struct {
	t    *testing.T
	in   *io.PipeWriter
	out  *bufio.Reader
	read *io.PipeReader
	stop context.CancelFunc
	done chan error
}

// dial starts a server and returns its client.
func dial(t *testing.T, p *mcptest.Platform, o Options) *peer {
	t.Helper()
	o.Client = p.Client(t)
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	c := &peer{t: t, in: inW, out: bufio.NewReaderSize(outR, 1<<20), read: outR, stop: stop, done: make(chan error, 1)}
	go func() {
		err := s.ServeStdio(ctx, inR, outW)
		_ = outW.Close()
		_ = inR.Close()
		c.done <- err
	}()
	t.Cleanup(func() {
		stop()
		_ = inW.Close()
		_ = outR.Close()
	})
	return c
}

func (c *peer) send(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatalf("send %.80s: %v", line, err)
	}
}

// recv returns the next line of the server, "" at its end.
func (c *peer) recv() string {
	c.t.Helper()
	got := make(chan string, 1)
	go func() {
		l, _ := c.out.ReadString('\n')
		got <- strings.TrimSuffix(l, "\n")
	}()
	select {
	case l := <-got:
		return l
	case <-time.After(guard):
		c.t.Fatal("no answer")
		return ""
	}
}

// ask sends a line and returns the answer to it.
func (c *peer) ask(line string) string {
	c.t.Helper()
	c.send(line)
	return c.recv()
}

// wait returns what the server ended with.
func (c *peer) wait() error {
	c.t.Helper()
	select {
	case err := <-c.done:
		return err
	case <-time.After(guard):
		c.t.Fatal("the server does not end")
		return nil
	}
}

var toolsList = regexp.MustCompile(`"tools":\[.*\]`)

// tidy makes an answer fit for a transcript: of tools/list the names only.
func tidy(line string) string {
	var l struct {
		Result struct{ Tools []struct{ Name string } }
	}
	if json.Unmarshal([]byte(line), &l) != nil || l.Result.Tools == nil {
		return line
	}
	var names []string
	for _, t := range l.Result.Tools {
		names = append(names, t.Name)
	}
	return toolsList.ReplaceAllString(line, `"tools":"`+strings.Join(names, " ")+`"`)
}

// TestTranscripts plays testdata/*.txtar: each line of the file "client" is
// sent, and an answer waited for unless the line is a notification; the
// answers are the file "server". Lines of "client" that begin with # are
// comments, and <xN:TEXT> stands for N times TEXT.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txtar"), func(t *testing.T) { play(t, f) })
	}
}

func play(t *testing.T, file string) {
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var client string
	server := -1
	for i, f := range a.Files {
		switch f.Name {
		case "client":
			client = string(f.Data)
		case "server":
			server = i
		}
	}
	if client == "" || server < 0 {
		t.Fatal("want the files client and server")
	}
	c := dial(t, platform(), Options{Version: "1.2.3", Template: "code-interpreter-v1", MaxMessage: 1000})
	var got bytes.Buffer
	for line := range strings.Lines(client) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		line = expand(line)
		c.send(line)
		if answered(line) {
			got.WriteString(tidy(c.recv()) + "\n")
		}
	}
	_ = c.in.Close()
	if rest := c.recv(); rest != "" {
		t.Errorf("more than was waited for: %s", rest)
	}
	if err := c.wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if *update {
		a.Files[server].Data = got.Bytes()
		if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(string(a.Files[server].Data), got.String()); d != "" {
		t.Errorf("answers (-want +got):\n%s", d)
	}
}

var repeated = regexp.MustCompile(`<x(\d+):([^>]*)>`)

func expand(line string) string {
	return repeated.ReplaceAllStringFunc(line, func(m string) string {
		var n int
		p := repeated.FindStringSubmatch(m)
		_ = json.Unmarshal([]byte(p[1]), &n)
		return strings.Repeat(p[2], n)
	})
}

// answered reports whether the server owes something for line.
func answered(line string) bool {
	var m map[string]json.RawMessage
	if strings.TrimSpace(line) == "" {
		return false
	}
	if json.Unmarshal([]byte(line), &m) != nil || len(line) > 1000 {
		return true
	}
	_, id := m["id"]
	_, result := m["result"]
	_, method := m["method"]
	return (id || !method) && !result
}
