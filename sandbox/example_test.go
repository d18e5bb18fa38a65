package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b/filesystem"
	"github.com/agent-sandbox/abx/internal/e2b/process"
	"github.com/agent-sandbox/abx/sandbox"
)

// client stands for a client of a real platform:
//
//	sandbox.NewClient(sandbox.Config{Domain: "e2b.app", APIKey: key})
var client = func() *sandbox.Client {
	p := newPlatform()
	p.files["/app/data.csv"] = []byte("a,b\n1,2\n3,4\n")
	p.watch = []*filesystem.FilesystemEvent{{Name: "new.txt", Type: filesystem.EventType_EVENT_TYPE_CREATE}}
	p.program["echo hello; echo oops >&2; exit 3"] = exits(3, "hello\n", "oops\n")
	p.program["sleep 600"] = says(started(7), end(&process.ProcessEvent_EndEvent{
		ExitCode: -1, AbxReason: "timeout", AbxDetail: "timeout of 2s reached", AbxShellCode: 137,
	}))
	p.program["seq 1000000"] = says(started(7), stdout("1\n2\n"), stdout("\n999999\n1000000\n"), end(&process.ProcessEvent_EndEvent{
		AbxReason: "exit", AbxStdoutBytes: 6888896, AbxStdoutFile: "/tmp/.abx/7-stdout",
	}))
	p.program["python3 -m http.server 8000"] = says(started(7), stdout("Serving HTTP on 0.0.0.0 port 8000\n"), ended(0))
	p.code["x = 20\nprint('x is', x)\nx + 1"] = lines(
		`{"type":"stdout","text":"x is 20\n"}`, `{"type":"result","is_main_result":true,"text":"21"}`, `{"type":"end_of_execution"}`)
	p.code["1/0"] = lines(`{"type":"error","name":"ZeroDivisionError","value":"division by zero","traceback":"..."}`, `{"type":"end_of_execution"}`)
	c, err := p.dial()
	if err != nil {
		log.Fatal(err)
	}
	return c
}()

func Example() {
	ctx := context.Background()
	sb, err := client.Create(ctx, sandbox.Template("code-interpreter-v1"), sandbox.Timeout(10*time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Kill(ctx)

	// A code other than 0 is data, not an error.
	res, err := sb.Commands.Run(ctx, "echo hello; echo oops >&2; exit 3", sandbox.Shell("sh"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%q %q %d %s\n", res.Stdout, res.Stderr, res.ExitCode, res.Reason)
	// Output: "hello\n" "oops\n" 3 exit
}

func ExampleCommands_Run_timeout() {
	ctx := context.Background()
	sb, _ := client.Create(ctx)
	res, err := sb.Commands.Run(ctx, "sleep 600", sandbox.Timeout(2*time.Second))
	fmt.Println(res.ExitCode, res.Reason, res.Detail, err)
	// Output: 137 timeout timeout of 2s reached <nil>
}

// Of much output the result keeps the first and the last bytes; the whole stays
// in the sandbox.
func ExampleWindow() {
	ctx := context.Background()
	sb, _ := client.Create(ctx)
	res, err := sb.Commands.Run(ctx, "seq 1000000", sandbox.Window(4, 16))
	if err != nil {
		log.Fatal(err)
	}
	head, tail := res.Stdout[:res.StdoutHead], res.Stdout[res.StdoutHead:]
	fmt.Printf("%q ... %q\n", head, tail)
	fmt.Println(res.StdoutTotal-int64(len(res.Stdout)), "bytes left out, see", res.StdoutFile)
	// Output:
	// "1\n2\n" ... "\n999999\n1000000\n"
	// 6888876 bytes left out, see /tmp/.abx/7-stdout
}

func ExampleCommands_Start() {
	ctx := context.Background()
	sb, _ := client.Create(ctx)
	p, err := sb.Commands.Start(ctx, "python3 -m http.server 8000", sandbox.OnStdout(func(p []byte) {
		fmt.Printf("%s", p)
	}))
	if err != nil {
		log.Fatal(err)
	}
	defer p.Disconnect()
	res, err := p.Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.PID(), res.ExitCode, sb.Host(8000))
	// Output:
	// Serving HTTP on 0.0.0.0 port 8000
	// 7 0 8000-itest0000000000000001.sbx.example.test
}

func ExampleSandbox_RunCode() {
	ctx := context.Background()
	sb, _ := client.Create(ctx, sandbox.Template("code-interpreter-v1"))
	ex, err := sb.RunCode(ctx, "x = 20\nprint('x is', x)\nx + 1")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s%s\n", ex.Stdout, ex.Results[0].Text)

	ex, err = sb.RunCode(ctx, "1/0")
	fmt.Println(ex.Error.Name, ex.Error.Value, ex.ExitCode, err)
	// Output:
	// x is 20
	// 21
	// ZeroDivisionError division by zero 1 <nil>
}

func ExampleFiles() {
	ctx := context.Background()
	sb, _ := client.Create(ctx)
	if err := sb.Files.Write(ctx, "/app/hello.txt", []byte("hello")); err != nil {
		log.Fatal(err)
	}
	data, _ := sb.Files.Read(ctx, "/app/data.csv", sandbox.Range(4, 3))
	fmt.Printf("%s\n", data)

	r, err := sb.Files.ReadStream(ctx, "/app/data.csv")
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	rest, _ := io.ReadAll(r)
	fmt.Println(r.Size, strings.Count(string(rest), "\n"))

	_, err = sb.Files.Read(ctx, "/app/none")
	fmt.Println(errors.Is(err, sandbox.ErrNotFound))
	// Output:
	// 1,2
	// 12 3
	// true
}

func ExampleFiles_Watch() {
	ctx := context.Background()
	sb, _ := client.Create(ctx)
	w, err := sb.Files.Watch(ctx, "/app", sandbox.Recursive())
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	ev, err := w.Next()
	fmt.Println(ev.Type, ev.Name, err)
	// Output: create new.txt <nil>
}

func ExampleClient_Connect() {
	ctx := context.Background()
	_, err := client.Connect(ctx, "igone")
	fmt.Println(errors.Is(err, sandbox.ErrNotFound))
	fmt.Println(err)
	// Output:
	// true
	// connect to sandbox: sandbox igone: sandbox not found
}
