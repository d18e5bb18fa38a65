package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// GuardOptions say who may use the control plane.
type GuardOptions struct {
	// Keys that are accepted in X-API-Key or as a bearer token. With none,
	// everybody who reaches the listener may: only for loopback and unix
	// sockets, and then only for programs, not for web pages.
	Keys []string
	// Domain whose names are ours too, beside localhost and IP addresses, when
	// there are no keys.
	Domain string
}

// Guard stands before a control plane that is reached over a network. GET
// /health is open. It must not stand before the gateway, where each sandbox's
// agent asks for its own token.
func Guard(next http.Handler, opts GuardOptions) http.Handler {
	sums := make([][sha256.Size]byte, len(opts.Keys))
	for i, key := range opts.Keys {
		sums[i] = sha256.Sum256([]byte(key))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/health":
		case len(sums) > 0 && !known(sums, presented(r)):
			writeError(w, http.StatusUnauthorized, "unknown or missing API key; send it as "+e2b.HeaderAPIKey)
			return
		case len(sums) == 0 && !local(r, opts.Domain):
			writeError(w, http.StatusForbidden, "this host has no API keys, so it takes no requests from web pages or for other host names")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func presented(r *http.Request) string {
	if key := r.Header.Get(e2b.HeaderAPIKey); key != "" {
		return key
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(token)
	}
	return ""
}

// known compares with all keys, in a time that tells nothing of them.
func known(sums [][sha256.Size]byte, key string) bool {
	got := sha256.Sum256([]byte(key))
	found := 0
	for _, sum := range sums {
		found |= subtle.ConstantTimeCompare(got[:], sum[:])
	}
	return found == 1 && key != ""
}

// local reports whether r is from a program that meant this host: a web page
// is told by its Origin (also one that a sandbox serves under our domain), one
// that rebound a name of its own by its Host.
func local(r *http.Request, domain string) bool {
	if !ours(r.Host, domain) {
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && u.Host == r.Host
}

func ours(host, domain string) bool {
	name := hostname(host)
	if name == "" || name == "localhost" || strings.HasSuffix(name, ".localhost") || net.ParseIP(name) != nil {
		return true
	}
	domain = hostname(domain)
	return domain != "" && (name == domain || strings.HasSuffix(name, "."+domain))
}

// hostname is host without a port and brackets, in small letters.
func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}
