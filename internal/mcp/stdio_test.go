package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agent-sandbox/abx/internal/mcp/mcptest"
)

const initialize = `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// callLine is a call of run_command.
func callLine(id int, command string) string {
	c, _ := json.Marshal(command)
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"run_command","arguments":{"command":%s}}}`, id, c)
}

// blocking answers "block" when released or cancelled, all else at once.
func blocking() (p *mcptest.Platform, started chan string, release, cancelled chan struct{}) {
	p = platform()
	started, release, cancelled = make(chan string, 100), make(chan struct{}), make(chan struct{}, 100)
	p.Command = func(_ *mcptest.Sandbox, c *mcptest.Command) mcptest.End {
		if !strings.HasPrefix(c.Line(), "block") {
			return mcptest.End{Stdout: c.Line()}
		}
		started <- c.Line()
		select {
		case <-release:
			return mcptest.End{Stdout: "released"}
		case <-c.Ctx.Done():
			cancelled <- struct{}{}
			return mcptest.End{}
		}
	}
	return p, started, release, cancelled
}

// stopped waits until n commands have been cancelled.
func stopped(t *testing.T, cancelled chan struct{}, n int) {
	t.Helper()
	for range n {
		select {
		case <-cancelled:
		case <-time.After(guard):
			t.Fatal("a command was not stopped")
		}
	}
}

func TestPingDuringACall(t *testing.T) {
	p, started, release, _ := blocking()
	c := dial(t, p, Options{})
	c.ask(initialize)
	c.send(callLine(1, "block"))
	<-started
	if got, want := c.ask(`{"jsonrpc":"2.0","id":2,"method":"ping"}`), `{"jsonrpc":"2.0","id":2,"result":{}}`; got != want {
		t.Errorf("ping: %s", got)
	}
	if got := c.ask(callLine(3, "quick")); !strings.Contains(got, `"id":3`) {
		t.Errorf("a second call waits for the first: %s", got)
	}
	if got := c.ask(callLine(1, "again")); !strings.Contains(got, "-32600") || !strings.Contains(got, `"id":null`) {
		t.Errorf("id in use: %s", got)
	}
	close(release)
	if got := c.recv(); !strings.Contains(got, `"id":1,`) || !strings.Contains(got, "released") {
		t.Errorf("first call: %s", got)
	}
}

func TestCancelledNotification(t *testing.T) {
	for _, id := range []string{"5", `"five"`, "18446744073709551615"} {
		p, started, _, cancelled := blocking()
		c := dial(t, p, Options{})
		c.ask(initialize)
		c.send(strings.Replace(callLine(0, "block"), `"id":0`, `"id":`+id, 1))
		<-started
		c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `,"reason":"enough"}}`)
		// No answer to the cancelled call: the next is that of another.
		if got := c.ask(callLine(6, "after")); !strings.Contains(got, `"id":6`) || !strings.Contains(got, "after") {
			t.Errorf("id %s: %s", id, got)
		}
		_ = c.in.Close()
		if err := c.wait(); err != nil {
			t.Error(err)
		}
		stopped(t, cancelled, 1)
	}
}

func TestFirstCallsAtOnceMakeOneSandbox(t *testing.T) {
	p := platform()
	var created atomic.Int32
	p.Requests = func(method, path string) {
		if method == "POST" && path == "/sandboxes" {
			created.Add(1)
		}
	}
	c := dial(t, p, Options{})
	c.ask(initialize)
	const calls = 50
	go func() {
		for i := range calls {
			c.send(callLine(i, fmt.Sprintf("echo %d", i)))
		}
	}()
	seen := map[string]bool{}
	for range calls {
		var m struct {
			ID     json.Number
			Result struct{ StructuredContent struct{ Stdout string } }
		}
		line := c.recv()
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		if want := "echo " + m.ID.String() + "\n"; m.Result.StructuredContent.Stdout != want {
			t.Errorf("call %s: %s", m.ID, line)
		}
		seen[m.ID.String()] = true
	}
	if n := created.Load(); n != 1 || len(seen) != calls {
		t.Errorf("%d sandboxes, %d answers", n, len(seen))
	}
}

func TestEndOfInputAnswersWhatIsOwed(t *testing.T) {
	c := dial(t, platform(), Options{})
	go func() {
		_, _ = io.WriteString(c.in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`+"\n"+callLine(2, "work")+"\n"+`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`) // no line end
		_ = c.in.Close()
	}()
	got := map[string]bool{}
	for {
		line := c.recv()
		if line == "" {
			break
		}
		var m struct {
			ID     json.Number
			Result json.RawMessage
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.Result == nil {
			t.Errorf("%s: %v", line, err)
		}
		got[m.ID.String()] = true
	}
	if d := cmp.Diff(map[string]bool{"1": true, "2": true, "3": true}, got); d != "" {
		t.Errorf("answers (-want +got):\n%s", d)
	}
	if err := c.wait(); err != nil {
		t.Error(err)
	}
}

// TestEnds has a command that runs for ever, and each way in which a client or
// the server goes.
// TestCallThatTheClientLeft holds that a call says why it was cancelled when its
// client closed the input and still reads.
func TestCallThatTheClientLeft(t *testing.T) {
	p, started, _, cancelled := blocking()
	c := dial(t, p, Options{Grace: time.Millisecond, Finish: guard})
	c.ask(initialize)
	c.send(callLine(1, "block"))
	<-started
	_ = c.in.Close()
	if got := c.recv(); !strings.Contains(got, "run_command was cancelled: the client closed the server's input") || !strings.Contains(got, "Keep the server's input open") {
		t.Errorf("got %s", got)
	}
	stopped(t, cancelled, 1)
	if err := c.wait(); err != nil {
		t.Error(err)
	}
}

func TestEnds(t *testing.T) {
	for name, end := range map[string]func(c *peer){
		"end of input":  func(c *peer) { _ = c.in.Close() },
		"signal":        func(c *peer) { c.stop() },
		"broken output": func(c *peer) { _ = c.read.CloseWithError(syscall.EPIPE); c.send(callLine(3, "speak")) },
	} {
		t.Run(name, func(t *testing.T) {
			p, started, _, cancelled := blocking()
			c := dial(t, p, Options{Grace: time.Millisecond})
			c.ask(initialize)
			c.send(callLine(1, "block 1"))
			c.send(callLine(2, "block 2"))
			<-started
			<-started
			end(c)
			err := c.wait()
			if name == "broken output" != errors.Is(err, syscall.EPIPE) {
				t.Errorf("ended with %v", err)
			}
			stopped(t, cancelled, 2)
			if left := p.Alive(); len(left) > 0 {
				t.Errorf("sandboxes alive: %v", left)
			}
		})
	}
}

// TestEndTakesNoLongerThanItMay has a platform that never answers.
func TestEndTakesNoLongerThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		p := platform()
		p.Refuse = func(string, string) (int, string) { <-hang; return 503, "stopped" }
		o := Options{Client: p.Client(t)}
		s, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		in, out := io.Pipe()
		go func() {
			_, _ = io.WriteString(out, initialize+"\n"+callLine(1, "x")+"\n")
			_ = out.Close()
		}()
		start := time.Now()
		if err := s.ServeStdio(context.Background(), in, io.Discard); err != nil {
			t.Errorf("a client that left is no error: %v", err)
		}
		if took, most := time.Since(start), 2*time.Second; took > most {
			t.Errorf("took %s, at most %s", took, most)
		}
		close(hang)
		time.Sleep(time.Hour)
	})
}

func TestVersions(t *testing.T) {
	for asked, want := range map[string]string{
		"2024-11-05": "2024-11-05", "2025-03-26": "2025-03-26", "2025-06-18": "2025-06-18", "2025-11-25": "2025-11-25",
		"2026-07-28": "2024-11-05", "1999-01-01": "2024-11-05", "": "2024-11-05", "2099-01-01": "2024-11-05",
	} {
		c := dial(t, platform(), Options{})
		got := c.ask(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, asked))
		if !strings.Contains(got, fmt.Sprintf(`"protocolVersion":%q`, want)) {
			t.Errorf("asked %q: %s", asked, got)
		}
	}
}

func TestProgressNotifications(t *testing.T) {
	p, started, release, _ := blocking()
	o := Options{}
	o.Tools.Limits.Progress = time.Millisecond
	c := dial(t, p, o)
	c.ask(initialize)
	c.send(strings.Replace(callLine(1, "block"), `"arguments"`, `"_meta":{"progressToken":"tok"},"arguments"`, 1))
	<-started
	got := c.recv()
	var m struct {
		Method string
		Params struct {
			ProgressToken string
			Progress      float64
			Message       string
		}
	}
	if err := json.Unmarshal([]byte(got), &m); err != nil {
		t.Fatal(err)
	}
	if m.Method != "notifications/progress" || m.Params.ProgressToken != "tok" || !strings.HasPrefix(m.Params.Message, "running for") {
		t.Errorf("got %s", got)
	}
	close(release)
	for !strings.Contains(got, `"id":1`) {
		got = c.recv()
	}
}

// TestLibraryClient talks to the server by the library's own client, over our
// transport and through the library's.
func TestLibraryClient(t *testing.T) {
	p := platform()
	s, err := New(Options{Client: p.Client(t)})
	if err != nil {
		t.Fatal(err)
	}
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- s.ServeStdio(t.Context(), inR, outW) }()
	client := sdk.NewClient(&sdk.Implementation{Name: "t", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &sdk.IOTransport{Reader: outR, Writer: inW}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tools, err := session.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != 7 || tools.Tools[0].Name != "create_sandbox" {
		t.Errorf("tools: %v, %v", tools, err)
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			want := fmt.Sprintf("echo %d", i)
			res, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "run_command", Arguments: map[string]any{"command": want}})
			if err != nil || res.IsError {
				t.Errorf("%v %v", res, err)
				return
			}
			if got := res.StructuredContent.(map[string]any)["stdout"]; got != want+"\n" {
				t.Errorf("got %q", got)
			}
		})
	}
	wg.Wait()
	if _, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "nope"}); err == nil {
		t.Error("an unknown tool was called")
	}
	if err := session.Close(); err != nil {
		t.Error(err)
	}
	_ = inW.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestLargeMessages moves a file of nearly 8 MiB both ways, and one byte more
// than a message may have.
func TestLargeMessages(t *testing.T) {
	content := strings.Repeat("0123456789abcdef \"quoted\" é\n", 1)
	content = strings.Repeat(content, (8<<20-2000)/(len(content)+4))
	quoted, _ := json.Marshal(content)
	c := dial(t, platform(), Options{})
	c.ask(initialize)
	got := c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"write_file","arguments":{"path":"/app/big","content":` + string(quoted) + `}}}`)
	if !strings.Contains(got, fmt.Sprintf(`"bytes_written":%d`, len(content))) {
		t.Fatalf("write: %.300s", got)
	}
	got = c.ask(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"/app/big"}}}`)
	var m struct {
		Result struct{ StructuredContent struct{ Content string } }
	}
	if err := json.Unmarshal([]byte(got), &m); err != nil || m.Result.StructuredContent.Content != content {
		t.Errorf("read: %d bytes, want %d: %v", len(m.Result.StructuredContent.Content), len(content), err)
	}
	head := `{"jsonrpc":"2.0","id":3,"method":"ping","params":{"x":"`
	fit := head + strings.Repeat("y", 8<<20-len(head)-3) + `"}}`
	if got := c.ask(fit); !strings.Contains(got, `"id":3,"result"`) {
		t.Errorf("a message of 8 MiB: %.200s", got)
	}
	if got := c.ask(fit + " "); !strings.Contains(got, "-32600") {
		t.Errorf("one byte more: %.200s", got)
	}
	if got := c.ask(`{"jsonrpc":"2.0","id":4,"method":"ping"}`); !strings.Contains(got, `"id":4,"result"`) {
		t.Errorf("after it: %s", got)
	}
}

func benchmarkLarge(b *testing.B, line func(i int) string) {
	p := platform()
	s, err := New(Options{Client: p.Client(b)})
	if err != nil {
		b.Fatal(err)
	}
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	go func() { _ = s.ServeStdio(context.Background(), inR, outW) }()
	defer inW.Close()
	buf := newLineReader(outR, 64<<20)
	ask := func(l string) {
		_, _ = io.WriteString(inW, l+"\n")
		if got, err := buf.next(); err != nil || strings.Contains(string(got[:min(len(got), 500)]), "isError") {
			b.Fatalf("%.200s %v", got, err)
		}
	}
	ask(initialize)
	ask(line(0))
	b.ResetTimer()
	for i := range b.N {
		ask(line(i + 1))
	}
}

func BenchmarkWriteFile8MiB(b *testing.B) {
	content, _ := json.Marshal(strings.Repeat("the quick brown fox jumps over it\n", (8<<20-1000)/36))
	benchmarkLarge(b, func(i int) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"write_file","arguments":{"path":"/app/big","content":%s}}}`, i, content)
	})
}

func BenchmarkReadFile8MiB(b *testing.B) {
	content, _ := json.Marshal(strings.Repeat("the quick brown fox jumps over it\n", (8<<20-1000)/36))
	benchmarkLarge(b, func(i int) string {
		if i == 0 {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"tools/call","params":{"name":"write_file","arguments":{"path":"/app/big","content":%s}}}`, content)
		}
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"/app/big"}}}`, i)
	})
}

func BenchmarkRunCommand(b *testing.B) {
	benchmarkLarge(b, func(i int) string { return callLine(i, "true") })
}
