package server_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/engine"
	"github.com/agent-sandbox/abx/internal/host/server"
)

// refusal is a request and its error. ID in it stands for a running sandbox.
type refusal struct {
	method, target, body string
	status               int
	message              string
}

var createRefusals = []refusal{
	{"POST", "/sandboxes", ``, 400, "the request body is empty; want a JSON object"},
	{"POST", "/sandboxes", `{`, 400, "the request body is not JSON: unexpected EOF"},
	{"POST", "/sandboxes", `[]`, 400, "the request body must be a JSON object, not array"},
	{"POST", "/sandboxes", `{"templateID":"base"} {}`, 400, "the request body holds more than one JSON value"},
	{"POST", "/sandboxes", strings.Repeat("x", 1<<20+1), 413, "the request body is over 1048576 bytes"},
	{"POST", "/sandboxes", `{}`, 400, "field templateID is required"},
	{"POST", "/sandboxes", `{"templateID":7}`, 400, "field templateID: want a string, got number"},
	{"POST", "/sandboxes", `{"templateID":"base","timeout":"5"}`, 400, "field timeout: want an integer, got string"},
	{"POST", "/sandboxes", `{"templateID":"base","timeout":1.5}`, 400, "field timeout: want an integer, got number 1.5"},
	{"POST", "/sandboxes", `{"templateID":"base","timeout":1e30}`, 400, "field timeout: want an integer, got number 1e30"},
	{"POST", "/sandboxes", `{"templateID":"base","envVars":{"A":1}}`, 400, "field envVars: want a string, got number"},
	{"POST", "/sandboxes", `{"templateID":"base","network":{"allowOut":"x"}}`, 400, "field network.allowOut: want an array, got string"},
	{"POST", "/sandboxes", `{"templateID":"base","timeout":0}`, 400, "Timeout must be greater than 0 seconds"},
	{"POST", "/sandboxes", `{"templateID":"base","timeout":-1}`, 400, "Timeout must be greater than 0 seconds"},
	{"POST", "/v2/sandboxes", `{"templateID":"base","timeout":86401}`, 400, "Timeout cannot be greater than 24 hours"},
	{"POST", "/sandboxes", `{"templateID":"base","timeout":9223372036854775807}`, 400, "Timeout cannot be greater than 24 hours"},
	{"POST", "/sandboxes", `{"templateID":"nope"}`, 404, `template "nope" was not found; this host has base, code-interpreter-v1`},
	{"POST", "/sandboxes", `{"templateID":"base","abx":{"isolation":"gvisor"}}`, 501, `isolation "gvisor" is not supported by this host, which has "namespace"`},
	{"POST", "/sandboxes", `{"templateID":"base","abx":{"isolation":"x"}}`, 400, `isolation "x" is none of auto, namespace, gvisor`},
	{"POST", "/sandboxes", `{"templateID":"base","autoPause":true}`, 501, "pausing sandboxes (autoPause) is not supported by this host"},
	{"POST", "/sandboxes", `{"templateID":"base","autoResume":{"enabled":true}}`, 501, "resuming sandboxes (autoResume) is not supported by this host"},
	{"POST", "/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"v","path":"/v"}]}`, 501, "volumes (volumeMounts) are not supported by this host"},
	{"POST", "/sandboxes", `{"templateID":"base","mcp":{"x":{}}}`, 501, "an MCP gateway (mcp) is not supported by this host"},
	{"POST", "/sandboxes", `{"templateID":"base","iam":{"tokens":{}}}`, 501, "identities (iam) are not supported by this host"},
	{"POST", "/sandboxes", `{"templateID":"base","network":{"rules":{"a":[]}}}`, 501, "network rules (network.rules) are not supported by this host"},
	{"POST", "/sandboxes", `{"templateID":"base","network":{"egressProxy":{"address":"x"}}}`, 501, "an egress proxy (network.egressProxy) is not supported by this host"},
	{"POST", "/sandboxes", `{"templateID":"base","network":{"allowOut":["example.com"]}}`, 501, "network access for sandboxes (network.allowOut) is not supported by this host"},
	{"POST", "/sandboxes", `{"templateID":"base","network":{"maskRequestHost":"a b"}}`, 400, `field network.maskRequestHost: "a b" is not a host`},
	{"POST", "/sandboxes", `{"templateID":"base","envVars":{"":"x"}}`, 400, `environment variable "": a name cannot be empty or hold '=', and neither name nor value a NUL`},
}

var lifeRefusals = []refusal{
	{"POST", "/sandboxes/ID/timeout", ``, 400, "the request body is empty; want a JSON object"},
	{"POST", "/sandboxes/ID/timeout", `{}`, 400, "field timeout is required (seconds)"},
	{"POST", "/sandboxes/ID/timeout", `{"timeout":-5}`, 400, "Timeout must be greater than 0 seconds"},
	{"POST", "/sandboxes/ID/timeout", `{"timeout":99999}`, 400, "Timeout cannot be greater than 24 hours"},
	{"POST", "/sandboxes/ID/connect", `{}`, 400, "field timeout is required (seconds)"},
	{"POST", "/v2/sandboxes/ID/connect", `{"timeout":"x"}`, 400, "field timeout: want an integer, got string"},
	{"POST", "/sandboxes/ID/refreshes", `{"duration":3601}`, 400, "field duration: 3601 is not in 0 to 3600 seconds"},
	{"POST", "/sandboxes/inone/timeout", `{"timeout":5}`, 404, `sandbox "inone" was not found`},
	{"POST", "/sandboxes/inone/connect", `{"timeout":5}`, 404, `sandbox "inone" was not found`},
	{"POST", "/sandboxes/inone/refreshes", ``, 404, `sandbox "inone" was not found`},
	{"GET", "/sandboxes/inone", ``, 404, `sandbox "inone" was not found`},
	{"DELETE", "/sandboxes/..%2fx", ``, 404, `sandbox "../x" was not found`},
}

var listRefusals = []refusal{
	{"GET", "/v2/sandboxes?order=up", ``, 400, `query order: "up" is neither asc nor desc`},
	{"GET", "/v2/sandboxes?limit=0", ``, 400, `query limit: "0" is not in 1 to 100`},
	{"GET", "/v2/sandboxes?limit=101", ``, 400, `query limit: "101" is not in 1 to 100`},
	{"GET", "/v2/sandboxes?state=dead", ``, 400, `query state: "dead" is neither running nor paused`},
	{"GET", "/v2/sandboxes?nextToken=%21", ``, 400, `query nextToken: "!" is not one of ours`},
	{"GET", "/v2/sandboxes?nextToken=IS55", ``, 400, `query nextToken: "IS55" is not one of ours`},
	{"GET", "/v2/sandboxes?startedAfter=now", ``, 400, `query startedAfter: "now" is not a time (RFC 3339)`},
	{"GET", "/sandboxes?metadata=a%3D%2525zz", ``, 400, `query metadata: "a=%25zz" is not a list like key=value&key2=value2, encoded`},
}

var missing = []refusal{
	{"POST", "/sandboxes/ID/pause", ``, 501, "pausing sandboxes is not supported by this host"},
	{"POST", "/sandboxes/ID/resume", ``, 501, "resuming sandboxes is not supported by this host"},
	{"POST", "/sandboxes/ID/fork", ``, 501, "forking sandboxes is not supported by this host"},
	{"POST", "/sandboxes/ID/snapshots", ``, 501, "snapshots of sandboxes are not supported by this host"},
	{"GET", "/snapshots", ``, 501, "snapshots of sandboxes are not supported by this host"},
	{"PUT", "/sandboxes/ID/network", ``, 501, "changing the network of a sandbox is not supported by this host"},
	{"GET", "/sandboxes/ID/metrics", ``, 501, "metrics over the control plane are not supported by this host"},
	{"GET", "/sandboxes/metrics", ``, 501, "metrics over the control plane are not supported by this host"},
	{"GET", "/v2/sandboxes/ID/logs", ``, 501, "logs of sandboxes are not supported by this host"},
	{"POST", "/v3/templates", ``, 501, "building templates is not supported by this host"},
	{"GET", "/templates/aliases/base", ``, 501, "managing templates is not supported by this host"},
	{"DELETE", "/templates/x", ``, 501, "managing templates is not supported by this host"},
	{"GET", "/volumes", ``, 501, "volumes are not supported by this host"},
	{"GET", "/teams", ``, 501, "teams are not supported by this host"},
}

var strangers = []refusal{
	{"GET", "/nope", ``, 404, "no such route: GET /nope"},
	{"GET", "/", ``, 404, "no such route: GET /"},
	{"POST", "/v2/sandboxes/ID/nope", ``, 404, "no such route: POST /v2/sandboxes/ID/nope"},
	{"PUT", "/sandboxes", ``, 405, "method PUT is not allowed for /sandboxes; allowed: GET, HEAD, POST"},
	{"GET", "/sandboxes/ID/pause", ``, 405, "method GET is not allowed for /sandboxes/ID/pause; allowed: POST"},
	{"POST", "/sandboxes/ID", ``, 405, "method POST is not allowed for /sandboxes/ID; allowed: DELETE, GET, HEAD"},
}

// TestRefusals: every error has the status in its body and names the trouble.
func TestRefusals(t *testing.T) {
	r := newRig(t, engine.Options{}, server.Options{})
	id := r.create(`{"templateID":"base","timeout":3600}`).SandboxID
	for name, group := range map[string][]refusal{
		"create": createRefusals, "life": lifeRefusals, "list": listRefusals, "missing": missing, "strangers": strangers,
	} {
		for _, tt := range group {
			t.Run(name+" "+tt.method+tt.target, func(t *testing.T) {
				rec := r.do(tt.method, strings.ReplaceAll(tt.target, "ID", id), tt.body)
				want := e2b.Error{Code: tt.status, Message: strings.ReplaceAll(tt.message, "/ID", "/"+id)}
				if diff := cmp.Diff(want, read[e2b.Error](t, rec)); diff != "" || rec.Code != tt.status {
					t.Errorf("%d (-want +got)\n%s", rec.Code, diff)
				}
				if ct := rec.Header().Get("Content-Type"); ct != "application/json" {
					t.Errorf("content type %q", ct)
				}
				if (rec.Header().Get("Allow") != "") != (tt.status == 405) {
					t.Errorf("allow %q", rec.Header().Get("Allow"))
				}
			})
		}
	}
	if n := r.fake.Started(); n != 1 {
		t.Errorf("%d sandboxes were started", n)
	}
}
