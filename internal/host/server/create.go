package server

import (
	"encoding/json"
	"net/http"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// Lifetimes in seconds when a client names none.
const (
	defaultTimeoutV1 = 15
	defaultTimeoutV2 = 300
)

// extras are fields of E2B's NewSandbox that this host cannot obey. They are
// looked for, so that nobody believes that they hold.
type extras struct {
	AutoPauseMemory *bool          `json:"autoPauseMemory"`
	IAM             map[string]any `json:"iam"`
	Network         *struct {
		Rules       map[string]json.RawMessage `json:"rules"`
		EgressProxy json.RawMessage            `json:"egressProxy"`
	} `json:"network"`
}

func (s *Server) createV1(w http.ResponseWriter, r *http.Request) (int, any, error) {
	return s.create(w, r, defaultTimeoutV1, false)
}

func (s *Server) createV2(w http.ResponseWriter, r *http.Request) (int, any, error) {
	return s.create(w, r, defaultTimeoutV2, true)
}

func (s *Server) create(w http.ResponseWriter, r *http.Request, timeout int, secure bool) (int, any, error) {
	data, err := readBody(w, r)
	if err != nil {
		return 0, nil, err
	}
	var wish e2b.NewSandbox
	var more extras
	if err := decode(data, &wish, &more); err != nil {
		return 0, nil, err
	}
	if err := s.refuse(wish, more); err != nil {
		return 0, nil, err
	}
	if wish.Timeout != nil {
		timeout = *wish.Timeout
	}
	lifetime, err := s.seconds(timeout)
	if err != nil {
		return 0, nil, err
	}
	if wish.Secure == nil {
		secure = secure || s.opts.Secure
	} else {
		secure = secure || *wish.Secure
	}
	req := engine.Request{
		Template: wish.TemplateID,
		Lifetime: lifetime,
		Metadata: wish.Metadata,
		Env:      wish.EnvVars,
		Secure:   secure,
	}
	if n := wish.Network; n != nil {
		req.PrivatePorts = n.AllowPublicTraffic != nil && !*n.AllowPublicTraffic
		req.MaskHost = n.MaskRequestHost
	}
	if wish.Abx != nil {
		req.Isolation = wish.Abx.Isolation
	}
	info, err := s.engine.Create(r.Context(), req)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, s.answer(info), nil
}

// refuse names the first wish that this host cannot fulfil.
func (s *Server) refuse(wish e2b.NewSandbox, more extras) error {
	if wish.TemplateID == "" {
		return engine.Errorf(engine.ErrInvalid, "field templateID is required")
	}
	if n := wish.Network; n != nil && !validHost(n.MaskRequestHost) {
		return engine.Errorf(engine.ErrInvalid, "field network.maskRequestHost: %.80q is not a host", n.MaskRequestHost)
	}
	network := s.engine.Isolation().Network
	closed := network == "" || network == "none"
	for _, c := range []struct {
		asked bool
		what  string
	}{
		{wish.AutoPause || more.AutoPauseMemory != nil && !*more.AutoPauseMemory, "pausing sandboxes (autoPause) is"},
		{wish.AutoResume != nil && wish.AutoResume.Enabled, "resuming sandboxes (autoResume) is"},
		{len(wish.VolumeMounts) > 0, "volumes (volumeMounts) are"},
		{len(wish.MCP) > 0, "an MCP gateway (mcp) is"},
		{len(more.IAM) > 0, "identities (iam) are"},
		{more.Network != nil && len(more.Network.Rules) > 0, "network rules (network.rules) are"},
		{more.Network != nil && set(more.Network.EgressProxy), "an egress proxy (network.egressProxy) is"},
		{wish.Network != nil && len(wish.Network.AllowOut) > 0 && closed, "network access for sandboxes (network.allowOut) is"},
	} {
		if c.asked {
			return engine.Errorf(engine.ErrUnsupported, "%s not supported by this host", c.what)
		}
	}
	return nil
}

// set reports whether raw is there and not null.
func set(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// validHost allows what a Host header may hold, with ${PORT} in it.
func validHost(host string) bool {
	if len(host) > 255 {
		return false
	}
	for _, c := range []byte(host) {
		if c <= ' ' || c >= 0x7f || c == '/' || c == '\\' || c == '?' || c == '#' || c == '@' {
			return false
		}
	}
	return true
}
