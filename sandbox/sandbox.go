package sandbox

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/e2b/filesystem/filesystemconnect"
	"github.com/agent-sandbox/abx/internal/e2b/process/processconnect"
)

// A Sandbox is a handle for one sandbox. It is safe for concurrent use and
// needs no closing: letting go of it leaves the sandbox alone.
type Sandbox struct {
	Commands *Commands
	Files    *Files

	client   *Client
	info     Info
	ours     bool   // the server sends our own fields
	domain   string // of its hosts; may be empty
	token    string
	traffic  string
	id       []string // header values, shared by all requests
	tokens   []string
	traffics []string

	stubs sync.Once
	proc  processconnect.ProcessClient
	fs    filesystemconnect.FilesystemClient
}

// handle makes the handle for a sandbox that the platform described.
func (c *Client) handle(op string, s *e2b.Sandbox, template string) (*Sandbox, error) {
	if !validID(s.SandboxID) {
		return nil, &Error{Op: op, Message: fmt.Sprintf("the answer names no sandbox (id %q): check the address", oneLine(s.SandboxID))}
	}
	sb := &Sandbox{client: c, info: newInfo(s, template), ours: s.Abx != nil, domain: c.domain, token: s.EnvdAccessToken}
	if d := sb.info.Domain; d != "" {
		if !validDomain(d) {
			return nil, &Error{Op: op, SandboxID: s.SandboxID, Message: fmt.Sprintf("the answer's domain %q is not a host name", oneLine(d))}
		}
		sb.domain = d
	}
	sb.info.Domain = sb.domain
	if c.data == nil && sb.domain == "" {
		return nil, invalid(op, "the hosts of sandboxes are unknown: set Domain or SandboxURL")
	}
	sb.id = []string{s.SandboxID}
	if sb.token != "" {
		sb.tokens = []string{sb.token}
	}
	if s.TrafficAccessToken != nil && *s.TrafficAccessToken != "" {
		sb.traffic = *s.TrafficAccessToken
		sb.traffics = []string{sb.traffic}
	}
	sb.Commands, sb.Files = &Commands{sb}, &Files{sb}
	return sb, nil
}

// ID is the sandbox's id.
func (s *Sandbox) ID() string { return s.info.ID }

// Template is the id of the sandbox's template.
func (s *Sandbox) Template() string { return s.info.Template }

// Info is what the platform told when the handle was made; [Client.Get] asks anew.
func (s *Sandbox) Info() Info { return s.info }

// String names the sandbox; it shows no token.
func (s *Sandbox) String() string { return "sandbox " + s.info.ID }

// Host is the public host name of a port in the sandbox, PORT-ID.DOMAIN. It is
// empty when the platform told no domain.
func (s *Sandbox) Host(port int) string {
	if s.domain == "" {
		return ""
	}
	return e2b.Address{SandboxID: s.info.ID, Port: port}.Host(s.domain)
}

// URL is [Sandbox.Host] with its scheme: https, or that of SandboxURL.
func (s *Sandbox) URL(port int) string {
	host := s.Host(port)
	switch {
	case host == "":
		return ""
	case s.client.data != nil:
		return s.client.data.Scheme + "://" + host
	}
	return "https://" + host
}

// SetTimeout sets the sandbox's lifetime to d from now on, longer or shorter
// than before, rounded up to whole seconds; 0 ends it now. A sandbox that is
// gone is ErrExpired.
func (s *Sandbox) SetTimeout(ctx context.Context, d time.Duration) error {
	return gone(s.client.SetTimeout(ctx, s.info.ID, d))
}

// Kill ends the sandbox and all that is in it. One that is gone already is
// ErrExpired.
func (s *Sandbox) Kill(ctx context.Context) error { return gone(s.client.Kill(ctx, s.info.ID)) }

// Pause stops the sandbox and keeps its files and memory until
// [Client.Connect]. See [Client.Pause] for its errors.
func (s *Sandbox) Pause(ctx context.Context) error { return gone(s.client.Pause(ctx, s.info.ID)) }

// gone adds to a control plane's "not found" that the handle's sandbox is gone.
func gone(err error) error {
	var e *Error
	if errors.As(err, &e) && errors.Is(e.kinds[0], ErrNotFound) {
		e.kinds[1] = ErrExpired
	}
	return err
}

// IsRunning reports whether the sandbox's agent answers. False means that the
// sandbox is gone or paused; an error that this could not be found out.
func (s *Sandbox) IsRunning(ctx context.Context) (bool, error) {
	err := s.client.bounded(ctx, "check sandbox", s.info.ID, true, func(ctx context.Context) error {
		resp, err := s.send(s.request(ctx, http.MethodGet, e2b.PortAgent, "/health", "", nil, 0), e2b.PortAgent)
		if err != nil {
			return err
		}
		drain(resp.Body)
		return nil
	})
	var e *Error
	if errors.As(err, &e) && e.Status == http.StatusBadGateway {
		return false, nil
	}
	return err == nil, err
}

// base is the address of a port in the sandbox.
func (s *Sandbox) base(port int) *url.URL {
	if s.client.data != nil {
		return s.client.data
	}
	return &url.URL{Scheme: "https", Host: s.Host(port)}
}

// request builds a request to a port in the sandbox.
func (s *Sandbox) request(ctx context.Context, method string, port int, path, query string, body io.Reader, size int64) *http.Request {
	r := s.client.request(ctx, method, s.base(port), path, query, body, size)
	s.dress(r.Header, port)
	return r
}

// dress sets the headers that every request to a sandbox has. The API key is
// none of them.
func (s *Sandbox) dress(h http.Header, port int) {
	h[e2b.HeaderSandboxID] = s.id
	h[e2b.HeaderSandboxPort] = portHeader(port)
	if s.tokens != nil {
		h[e2b.HeaderAccessToken] = s.tokens
	}
	if s.traffics != nil {
		h[e2b.HeaderTraffic] = s.traffics
	}
}

var agentPort, interpreterPort = []string{strconv.Itoa(e2b.PortAgent)}, []string{strconv.Itoa(e2b.PortInterpreter)}

func portHeader(port int) []string {
	if port == e2b.PortInterpreter {
		return interpreterPort
	}
	return agentPort
}

// send sends a request and makes every answer other than 2xx an error. The
// caller closes the body.
func (s *Sandbox) send(r *http.Request, port int) (*http.Response, error) {
	resp, err := s.client.transport.RoundTrip(r)
	if err != nil {
		return nil, s.redact(s.client.transportError(r.URL.Host, err))
	}
	if resp.StatusCode >= 200 && resp.StatusCode <= 299 {
		return resp, nil
	}
	defer drain(resp.Body)
	return nil, s.redact(s.client.answerError(resp, port))
}

// redact takes the sandbox's tokens out of an error's text.
func (s *Sandbox) redact(err error) error {
	var e *Error
	if errors.As(err, &e) {
		for _, secret := range [...]string{s.token, s.traffic} {
			if len(secret) >= 4 {
				e.Message = strings.ReplaceAll(e.Message, secret, "[redacted]")
			}
		}
	}
	return err
}

// agentClient is what Connect sends by: it sets the sandbox's headers and
// reads errors that Connect would reduce to a status.
type agentClient struct{ *Sandbox }

func (a agentClient) Do(r *http.Request) (*http.Response, error) {
	a.dress(r.Header, e2b.PortAgent)
	r.Header["User-Agent"] = a.client.userAgent
	return a.send(r, e2b.PortAgent)
}

// connectStubs makes the RPC clients on first use.
func (s *Sandbox) connectStubs() {
	s.stubs.Do(func() {
		options := []connect.ClientOption{
			connect.WithProtoJSON(),
			connect.WithReadMaxBytes(maxJSON),
			connect.WithAcceptCompression("gzip", nil, nil), // none
		}
		base := strings.TrimRight(s.base(e2b.PortAgent).String(), "/")
		s.proc = processconnect.NewProcessClient(agentClient{s}, base, options...)
		s.fs = filesystemconnect.NewFilesystemClient(agentClient{s}, base, options...)
	})
}

func (s *Sandbox) processes() processconnect.ProcessClient {
	s.connectStubs()
	return s.proc
}

func (s *Sandbox) filesystem() filesystemconnect.FilesystemClient {
	s.connectStubs()
	return s.fs
}

// unary makes one RPC to the agent as user.
func unary[Req, Res any](ctx context.Context, s *Sandbox, op, user string, again bool,
	f func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error), in *Req) (*Res, error) {
	var out *Res
	err := s.client.bounded(ctx, op, s.info.ID, again, func(ctx context.Context) error {
		r := connect.NewRequest(in)
		s.actAs(r.Header(), user)
		resp, err := f(ctx, r)
		if err == nil {
			out = resp.Msg
		}
		return err
	})
	if err != nil {
		return nil, s.redact(err)
	}
	return out, nil
}

// actAs names the user of an RPC. Agents before 0.4.0 have no default user.
func (s *Sandbox) actAs(h http.Header, user string) {
	if user = s.username(user); user != "" {
		h["Authorization"] = []string{"Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"))}
	}
}

func (s *Sandbox) username(user string) string {
	if user == "" && !s.atLeast(0, 4, 0) {
		return "user"
	}
	return user
}

// atLeast reports whether the agent is of this version or newer. One that does
// not say is taken for new.
func (s *Sandbox) atLeast(want ...int) bool {
	for i, part := range strings.SplitN(s.info.AgentVersion, ".", len(want)) {
		n, err := strconv.Atoi(part)
		if err != nil || n > want[i] {
			return true
		}
		if n < want[i] {
			return false
		}
	}
	return true
}
