package stdio

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMain is also the server of the tests, which start this program again.
func TestMain(m *testing.M) {
	if os.Getenv("STDIO_TEST_SERVER") != "" {
		serve()
		return
	}
	m.Run()
}

// serve answers: "hold" is answered after the call that follows it, "end" ends
// the server, everything else returns its params.
func serve() {
	lines := bufio.NewReader(os.Stdin)
	var held string
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		var call struct {
			ID     int
			Method string
			Params json.RawMessage
		}
		if err := json.Unmarshal([]byte(line), &call); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		reply := fmt.Sprintf(`{"result":%s,"jsonrpc":"2.0","id":%d}`, call.Params, call.ID)
		switch call.Method {
		case "end":
			return
		case "hold":
			held = reply
			continue
		case "refuse":
			reply = fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"error":{"code":-32601,"message":"no such method"}}`, call.ID)
		}
		fmt.Println(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"id":1}}`)
		fmt.Println(reply)
		if held != "" {
			fmt.Println(held)
			held = ""
		}
	}
}

func start(t *testing.T) *Client {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Start(t.Context(), Options{Path: self, Env: append(os.Environ(), "STDIO_TEST_SERVER=1"), Stderr: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestRepliesFindTheirCalls(t *testing.T) {
	c := start(t)
	held, err := c.Prepare("hold", map[string]any{"n": "held"})
	if err != nil {
		t.Fatal(err)
	}
	type reply struct {
		line []byte
		err  error
	}
	first := make(chan reply, 1)
	go func() {
		line, err := c.Send(t.Context(), held)
		first <- reply{line, err}
	}()
	// Whichever the server reads first, the held one is answered last or alone.
	var second map[string]string
	for {
		if err := c.Call(t.Context(), "echo", map[string]any{"n": "second"}, &second); err != nil {
			t.Fatal(err)
		}
		select {
		case r := <-first:
			if r.err != nil {
				t.Fatal(r.err)
			}
			var got map[string]string
			if err := Decode(r.line, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"held", "second"}, []string{got["n"], second["n"]}); diff != "" {
				t.Error(diff)
			}
			return
		default:
		}
	}
}

func TestErrors(t *testing.T) {
	c := start(t)
	err := c.Call(t.Context(), "refuse", map[string]any{}, nil)
	if err == nil || !strings.Contains(err.Error(), "no such method") {
		t.Errorf("refuse: %v, want the server's words", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Call(ctx, "hold", map[string]any{}, nil); err == nil {
		t.Error("a cancelled call succeeded")
	}
	if err := c.Call(t.Context(), "end", map[string]any{}, nil); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("end: %v, want that the server ended", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}
