package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// What an E2B client expects where it names no user and no folder.
const (
	defaultUser    = "user"
	defaultWorkdir = "/home/user"
)

// Paths of the agent: where it takes a sandbox's identity, and where it starts
// a process (process.Process of the Connect services).
const (
	initPath  = "/init"
	startPath = "/process.Process/Start"
)

const (
	// agentSlack is how much longer than the engine the agent lets a sandbox
	// live: it is the second net, for a host that hangs.
	agentSlack = 30 * time.Second
	// callTimeout bounds a call that the agent answers at once, on a machine
	// under any load; one that does not is lost.
	callTimeout = 30 * time.Second
	// warmTimeout bounds the first cell of a pool entry.
	warmTimeout = 30 * time.Second
)

// configure hands a started sandbox its identity.
func configure(ctx context.Context, box Sandbox, req Request, token string, lifetime time.Duration) error {
	now := time.Now()
	init := e2b.Init{
		EnvVars:        req.Env,
		Timestamp:      &now,
		DefaultUser:    defaultUser,
		DefaultWorkdir: defaultWorkdir,
		Abx:            &e2b.InitAbx{LifetimeMS: lifetime.Milliseconds()},
	}
	if token != "" {
		init.AccessToken = &token
	}
	return post(ctx, box, e2b.PortAgent, initPath, init)
}

// prolong moves the agent's own deadline, and nothing else.
func prolong(ctx context.Context, box Sandbox, lifetime time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// 0 would leave the deadline as it is.
	ms := max(lifetime.Milliseconds(), 1)
	return post(ctx, box, e2b.PortAgent, initPath, e2b.Init{Abx: &e2b.InitAbx{LifetimeMS: ms}})
}

// warm runs one cell and one command, so that the Python kernel is up and the
// agent's own code is in memory before the sandbox is claimed.
func warm(ctx context.Context, box Sandbox) error {
	if err := post(ctx, box, e2b.PortInterpreter, "/execute", e2b.Execute{Code: "None", Language: "python"}); err != nil {
		return err
	}
	start := []byte(`{"process":{"cmd":"/bin/sh","args":["-c","true"]},"stdin":false}`)
	// One message of a Connect stream: a byte of flags and the length before it.
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(start)))
	return send(ctx, box, e2b.PortAgent, startPath, "application/connect+json", append(frame, start...))
}

// statusError is an answer of the agent that is not a success.
type statusError struct {
	path   string
	status int
	text   []byte
}

func (e *statusError) Error() string {
	return fmt.Sprintf("agent answers %d to %s: %q", e.status, e.path, e.text)
}

func post(ctx context.Context, box Sandbox, port int, path string, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return send(ctx, box, port, path, "application/json", data)
}

// send makes one call to the agent and reads its answer to the end. The agent
// is trusted with nothing: what it sends is bounded and not looked at.
func send(ctx context.Context, box Sandbox, port int, path, kind string, data []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent"+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return box.Dial(ctx, port)
		},
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("agent's %s: %w", path, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return &statusError{path: path, status: resp.StatusCode, text: text}
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)); err != nil {
		return fmt.Errorf("agent's %s: %w", path, err)
	}
	return nil
}
