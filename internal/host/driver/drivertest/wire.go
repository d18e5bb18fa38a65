package drivertest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/e2b/process"
	"github.com/agent-sandbox/abx/internal/e2b/process/processconnect"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// client speaks HTTP with one port of box, a connection a request.
func client(box engine.Sandbox, port int) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return box.Dial(ctx, port)
		},
		DisableKeepAlives:  true,
		DisableCompression: true,
	}}
}

// get is the status of a GET, or 0.
func (s *suite) get(box engine.Sandbox, port int, path string) int {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), guard)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		s.Error(err)
		return 0
	}
	resp, err := client(box, port).Do(req)
	if err != nil {
		s.Errorf("GET %s on %d: %v", path, port, err)
		return 0
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// init configures the agent of box.
func (s *suite) init(box engine.Sandbox, in e2b.Init) {
	s.Helper()
	data, err := json.Marshal(in)
	if err != nil {
		s.Fatal(err)
	}
	req, err := http.NewRequestWithContext(s.Context(), http.MethodPost, "http://agent/init", bytes.NewReader(data))
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client(box, e2b.PortAgent).Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		s.Fatalf("POST /init: %d", resp.StatusCode)
	}
}

// ready starts a sandbox and tells it what the engine would.
func (s *suite) ready() engine.Sandbox {
	s.Helper()
	box := s.start(s.Context())
	s.init(box, e2b.Init{DefaultUser: "user", DefaultWorkdir: "/home/user", Abx: &e2b.InitAbx{LifetimeMS: 10 * guard.Milliseconds()}})
	return box
}

// ran is what a command did.
type ran struct {
	stdout, stderr bytes.Buffer
	end            *process.ProcessEvent_EndEvent // nil when the stream ended before
}

// command starts a command and calls started, if any, after its first output.
func (s *suite) command(box engine.Sandbox, started func(), path string, args ...string) (*ran, error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), guard)
	defer cancel()
	rpc := processconnect.NewProcessClient(client(box, e2b.PortAgent), "http://agent", connect.WithProtoJSON())
	no := false
	cwd := "/"
	stream, err := rpc.Start(ctx, connect.NewRequest(&process.StartRequest{
		Process: &process.ProcessConfig{Cmd: path, Args: args, Cwd: &cwd},
		Stdin:   &no,
	}))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	var r ran
	for stream.Receive() {
		event := stream.Msg().GetEvent()
		r.stdout.Write(event.GetData().GetStdout())
		r.stderr.Write(event.GetData().GetStderr())
		if started != nil && r.stdout.Len() > 0 {
			started()
			started = nil
		}
		if end := event.GetEnd(); end != nil {
			r.end = end
		}
	}
	return &r, stream.Err()
}

func testProcess(s *suite) {
	box := s.ready()
	defer s.end(box)
	r, err := s.command(box, nil, "/bin/sh", "-c", "echo out; echo err >&2; exit 3")
	if err != nil {
		s.Fatal(err)
	}
	if r.stdout.String() != "out\n" || r.stderr.String() != "err\n" || r.end.GetExitCode() != 3 || !r.end.GetExited() {
		s.Errorf("stdout %q, stderr %q, end %v", &r.stdout, &r.stderr, r.end)
	}
}

func testBigOutput(s *suite) {
	box := s.ready()
	defer s.end(box)
	r, err := s.command(box, nil, "/bin/sh", "-c", "head -c 8388608 /dev/zero")
	if err != nil {
		s.Fatal(err)
	}
	if r.stdout.Len() != 8<<20 || r.end.GetExitCode() != 0 {
		s.Errorf("%d bytes, end %v", r.stdout.Len(), r.end)
	}
}

func testCloseEndsProcesses(s *suite) {
	box := s.ready()
	r, err := s.command(box, func() { s.end(box) }, "/bin/sh", "-c", "trap '' TERM; echo up; sleep 3600 & sleep 3600")
	if err == nil {
		s.Errorf("a clean end: %v", r.end)
	}
	s.end(box)
}

func testHostName(s *suite) {
	spec := s.spec()
	box, err := s.driver.Start(s.Context(), spec)
	if err != nil {
		s.Fatal(err)
	}
	observe(s.can.Kernel)
	defer s.end(box)
	s.init(box, e2b.Init{DefaultUser: "user"})
	r, err := s.command(box, nil, "/bin/sh", "-c", "cat /proc/sys/kernel/hostname")
	if err != nil {
		s.Fatal(err)
	}
	if got := strings.TrimSpace(r.stdout.String()); got != spec.ID {
		s.Errorf("host name %q, id %q; stderr %q", got, spec.ID, &r.stderr)
	}
}

// serverInside answers "hello " and what it is sent, on one address and then on
// the other.
const serverInside = `
import socket
for host, port in (("127.0.0.1", 8123), ("0.0.0.0", 8124)):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((host, port))
    s.listen()
    if port == 8123:
        first = s
print("up", flush=True)
for s in (first, s):
    c, _ = s.accept()
    c.sendall(b"hello " + c.recv(5))
    c.close()
`

func testServerInside(s *suite) {
	box := s.ready()
	defer s.end(box)
	ask := func(port int) {
		conn, err := box.Dial(s.Context(), port)
		if err != nil {
			s.Errorf("dial %d: %v", port, err)
			return
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(guard))
		if _, err := io.WriteString(conn, "world"); err != nil {
			s.Error(err)
		}
		got, err := bufio.NewReader(conn).ReadString(0)
		if got != "hello world" || !errors.Is(err, io.EOF) {
			s.Errorf("port %d: %q, %v", port, got, err)
		}
	}
	r, err := s.command(box, func() { ask(8123); ask(8124) }, "python3", "-c", serverInside)
	if err != nil {
		s.Fatal(err)
	}
	if r.end.GetExitCode() != 0 {
		s.Errorf("end %v, stderr %s", r.end, &r.stderr)
	}
}
