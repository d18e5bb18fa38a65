package tool

import (
	"strings"
	"testing"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/mcp/mcptest"
)

// withoutNetwork is what programs write in a sandbox that has none.
var withoutNetwork = map[string]string{
	"curl":         "curl: (6) Could not resolve host: example.com",
	"curl, ip":     "curl: (7) Failed to connect to 1.1.1.1 port 80: Network is unreachable",
	"wget":         "wget: unable to resolve host address 'example.com'",
	"busybox":      "wget: bad address 'example.com'",
	"npm":          "npm error code EAI_AGAIN\nnpm error syscall getaddrinfo",
	"npm offline":  "npm error code ENOTCACHED",
	"npm, old":     "npm ERR! code ENOTFOUND",
	"node":         "TypeError: fetch failed\n  [cause]: Error: connect ENETUNREACH 1.1.1.1:443",
	"pnpm":         " WARN  GET https://registry.example.org/left-pad error (EAI_AGAIN). Will retry in 10 seconds.",
	"apt update":   "Err:1 http://deb.example.org/debian bookworm InRelease\n  Temporary failure resolving 'deb.example.org'",
	"apt install":  "E: Unable to locate package cowsay",
	"apt, lock":    "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (2: No such file or directory)",
	"apt, lists":   "E: List directory /var/lib/apt/lists/partial is missing. - Acquire (2: No such file or directory)",
	"pip":          "ERROR: Could not find a version that satisfies the requirement x (from versions: none)\nERROR: No matching distribution found for x",
	"pip, verbose": "NewConnectionError('<pip...>: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')",
	"git":          "fatal: unable to access 'https://github.com/a/b/': Could not resolve host: github.com",
	"git, ssh":     "ssh: Could not resolve hostname github.com: Temporary failure in name resolution",
	"go":           "go: github.com/pkg/errors@v0.9.1: Get \"https://proxy.example.org/\": dial tcp: lookup proxy.example.org on [::1]:53: read udp [::1]:1: connection refused",
	"cargo":        "failed to lookup address information: Temporary failure in name resolution",
	"python":       "urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>",
	"requests":     "(Caused by NameResolutionError(\"<urllib3...>\"))",
	"java":         "java.net.UnknownHostException: repo1.maven.org",
	"ping":         "ping: connect: Network is unreachable",
}

func TestMissingNetworkIsTold(t *testing.T) {
	for name, said := range withoutNetwork {
		for how, end := range map[string]mcptest.End{
			"failed":          {Stderr: said + "\n", Code: 1},
			"end of a pipe":   {Stdout: said + "\n"},
			"ran out of time": {Stderr: said + "\n", Code: 137, Reason: "timeout"},
		} {
			p := commands(func(string) mcptest.End { return end })
			p.Abx = &e2b.SandboxAbx{Network: "none"}
			r := good(t, start(t, p, Options{}), "run_command", object{"command": "x"})
			if !strings.Contains(r.text(), "This sandbox has no network") {
				t.Errorf("%s, %s: %s", name, how, r.text())
			}
			if strings.Contains(r.text(), "Give a larger timeout") {
				t.Errorf("%s, %s: a larger timeout helps nothing: %s", name, how, r.text())
			}
		}
	}
}

func TestCodeThatWaitsForTheNetwork(t *testing.T) {
	p := cells(nil, func(c *mcptest.Code) e2b.LineAbx {
		c.Send(e2b.Line{Type: e2b.LineStderr, Text: withoutNetwork["pip, verbose"]})
		return e2b.LineAbx{ExitCode: 130, Reason: e2b.ReasonTimeout}
	})
	p.Abx.Network = "none"
	r := good(t, start(t, p, Options{}), "run_code", object{"code": "x"})
	if !strings.Contains(r.text(), "This sandbox has no network") || strings.Contains(r.text(), "Give a larger timeout") {
		t.Errorf("got %s", r.text())
	}
}

func TestMissingPackages(t *testing.T) {
	for said, want := range map[string]string{
		"ModuleNotFoundError: No module named 'pandas'":                "`pip list`",
		"ImportError: No module named pandas":                          "`pip list`",
		"Error: Cannot find module 'express'\nRequire stack:":          "`npm ls -g`",
		"Error [ERR_MODULE_NOT_FOUND]: Cannot find package '@a/b' imp": "`npm ls -g`",
		"Error: Cannot find module './own.js'":                         "",
		"Error: Cannot find module '/app/own.js'":                      "",
		"AssertionError: network":                                      "",
	} {
		p := commands(func(string) mcptest.End { return mcptest.End{Stderr: said, Code: 1} })
		p.Abx = &e2b.SandboxAbx{Network: "none"}
		r := good(t, start(t, p, Options{}), "run_command", object{"command": "x"})
		notes, _ := r.Data["notes"].([]any)
		if want == "" && len(notes) > 0 || want != "" && !strings.Contains(r.text(), want+" shows what is there") {
			t.Errorf("%q: %s", said, r.text())
		}
	}
}

// TestOutputOfNoTrouble holds that words alone are no trouble.
func TestOutputOfNoTrouble(t *testing.T) {
	for _, said := range []string{"resolved 3 hosts", "dial tone", "network: none", "No module named x was asked for", "found 0 vulnerabilities"} {
		p := commands(func(string) mcptest.End { return mcptest.End{Stdout: said, Code: 1} })
		p.Abx = &e2b.SandboxAbx{Network: "none"}
		if r := good(t, start(t, p, Options{}), "run_command", object{"command": "x"}); r.Data["notes"] != nil {
			t.Errorf("%q: %s", said, r.text())
		}
	}
}
