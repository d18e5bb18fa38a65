package e2b

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// Ports inside a sandbox that the agent itself answers.
const (
	PortAgent       = 49983 // envd: processes, files
	PortInterpreter = 49999 // code interpreter
)

// Headers of the wire.
const (
	HeaderAPIKey      = "X-Api-Key"
	HeaderAccessToken = "X-Access-Token"
	HeaderSandboxID   = "E2b-Sandbox-Id"
	HeaderSandboxPort = "E2b-Sandbox-Port"
	HeaderTraffic     = "E2b-Traffic-Access-Token"
	HeaderKeepalive   = "Keepalive-Ping-Interval" // seconds
	HeaderTimeout     = "Connect-Timeout-Ms"      // milliseconds; absent: none
)

// Headers of ours.
const (
	// HeaderTimeoutMS on POST /execute: interrupt the cell after so many
	// milliseconds and say so in the last line. Absent or 0: no limit.
	HeaderTimeoutMS = "Abx-Timeout-Ms"
	// HeaderWindow on Process/Start and POST /execute: "HEAD,TAIL" in bytes.
	// Of each output stream the first HEAD bytes are sent as they come, the
	// last TAIL when the call ends; what lies between is kept in a file in the
	// sandbox, named in the last event. Absent: everything is sent.
	HeaderWindow = "Abx-Window"
	// HeaderOutputFiles on POST /execute: "1" asks for output_files in the last line.
	HeaderOutputFiles = "Abx-Output-Files"
	// HeaderDir on POST /execute: the folder in which the first cell of a kernel
	// that asks for one runs, if it is there; later cells stay where code left.
	HeaderDir = "Abx-Dir"
	// HeaderForeground on Process/Start: "1" ends the process when the client
	// goes away. Absent: it goes on, as E2B's clients expect.
	HeaderForeground = "Abx-Foreground"
	// HeaderReason tells, beside an answer about a sandbox that is no more, why:
	// expired, killed or lost.
	HeaderReason = "Abx-Reason"
)

// Address is a port inside a sandbox.
type Address struct {
	SandboxID string
	Port      int
}

// Host returns the host name of a, "PORT-ID.DOMAIN".
func (a Address) Host(domain string) string {
	return strconv.Itoa(a.Port) + "-" + a.SandboxID + "." + domain
}

// ValidID reports whether id can name a sandbox: 1 to 64 of [a-z0-9]. SDKs and
// host names take no other characters.
func ValidID(id string) bool {
	if len(id) == 0 || len(id) > 64 {
		return false
	}
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// ParseHost reads the leftmost label of host, "PORT-ID" or "PORT-ID-ANYTHING"
// (an old form; the rest is ignored). ok is false when host names no sandbox;
// the caller then treats the request as control plane.
func ParseHost(host string) (a Address, ok bool) {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	label, _, found := strings.Cut(host, ".")
	if !found {
		return Address{}, false
	}
	parts := strings.SplitN(label, "-", 3)
	if len(parts) < 2 {
		return Address{}, false
	}
	port, err := parsePort(parts[0])
	id := strings.ToLower(parts[1])
	if err != nil || !ValidID(id) {
		return Address{}, false
	}
	return Address{SandboxID: id, Port: port}, true
}

// ParseRequest finds the sandbox that r is for, by its headers first, then by
// its Host. ok is false for a control-plane request; err is set when the
// request means a sandbox but says so wrongly (one header without the other, a
// bad port), which is a 400.
func ParseRequest(r *http.Request) (a Address, ok bool, err error) {
	id, port := r.Header.Get(HeaderSandboxID), r.Header.Get(HeaderSandboxPort)
	if id == "" && port == "" {
		a, ok = ParseHost(r.Host)
		return a, ok, nil
	}
	if id == "" || port == "" {
		return Address{}, true, fmt.Errorf("headers %s and %s go together; one is missing", HeaderSandboxID, HeaderSandboxPort)
	}
	if !ValidID(id) {
		return Address{}, true, fmt.Errorf("header %s: %q is not a sandbox id", HeaderSandboxID, clip(id))
	}
	n, err := parsePort(port)
	if err != nil {
		return Address{}, true, fmt.Errorf("header %s: %w", HeaderSandboxPort, err)
	}
	return Address{SandboxID: id, Port: n}, true, nil
}

func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a port (1 to 65535)", clip(s))
	}
	return int(n), nil
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}
