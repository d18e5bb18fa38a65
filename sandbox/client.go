package sandbox

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Config says where the platform is. BaseURL or Domain must be set.
type Config struct {
	// BaseURL is the control plane, http or https, maybe with a path; default
	// "https://api." + Domain.
	BaseURL string
	// SandboxURL, when set, takes all traffic to sandboxes, which are then told
	// apart by headers. The default is https://PORT-ID.DOMAIN; but when BaseURL
	// names an IP address or localhost and Domain is empty, it is BaseURL.
	SandboxURL string
	// Domain of the hosts of sandboxes, maybe with a port; default: what
	// follows "api." in BaseURL. A domain in the platform's answers goes before it.
	Domain string
	// APIKey is sent to the control plane only. Empty sends none: a platform
	// that wants one answers the first call with ErrUnauthorized.
	APIKey string
	// Transport carries every request; default: a pool of connections of the
	// client's own. It must heed the context of a request also while a body is
	// read, as [http.Transport] does.
	Transport http.RoundTripper
	// UserAgent of every request; default "abx-go".
	UserAgent string
	// RequestTimeout bounds every call that is answered at once, retries
	// included, and the time to the first answer of a stream; the rest of a
	// stream and the content of files are bounded by ctx alone. Default 60 s;
	// negative: no limit.
	RequestTimeout time.Duration
}

// String shows c without its key.
func (c Config) String() string {
	return fmt.Sprintf("{BaseURL:%q SandboxURL:%q Domain:%q APIKey:%t}",
		withoutPassword(c.BaseURL), withoutPassword(c.SandboxURL), c.Domain, c.APIKey != "")
}

func withoutPassword(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "not a URL"
	}
	u.RawQuery = ""
	return u.Redacted()
}

// GoString is String, so that %#v shows no key either.
func (c Config) GoString() string { return "sandbox.Config" + c.String() }

// LogValue shows c without its key.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// A Client makes and finds sandboxes of one platform. It is safe for
// concurrent use; one is enough for a program.
type Client struct {
	control    *url.URL // never changed
	data       *url.URL // nil: by host name
	domain     string
	key        string
	transport  http.RoundTripper
	own        *http.Transport // transport, when the client made it
	userAgent  []string
	timeout    time.Duration // 0: none
	keyHeaders []string
}

// NewClient returns a client for the platform of c. It sends nothing; a wrong
// c is ErrInvalid.
func NewClient(c Config) (*Client, error) {
	const op = "sandbox client"
	if c.BaseURL == "" {
		if c.Domain == "" {
			return nil, invalid(op, "set BaseURL or Domain")
		}
		c.BaseURL = "https://api." + c.Domain
	}
	control, err := parseBase("BaseURL", c.BaseURL)
	if err != nil {
		return nil, err
	}
	if c.Domain == "" && c.SandboxURL == "" && isLocal(control.Hostname()) {
		c.SandboxURL = c.BaseURL
	}
	if c.Domain == "" {
		c.Domain, _ = strings.CutPrefix(control.Host, "api.")
		if c.Domain == control.Host {
			c.Domain = ""
		}
	} else if !validDomain(c.Domain) {
		return nil, invalid(op, fmt.Sprintf("Domain %q is not a host name", c.Domain))
	}
	cl := &Client{control: control, domain: c.Domain, key: c.APIKey, transport: c.Transport, timeout: c.RequestTimeout}
	if c.SandboxURL != "" {
		if cl.data, err = parseBase("SandboxURL", c.SandboxURL); err != nil {
			return nil, err
		}
	}
	if strings.ContainsFunc(c.APIKey, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, invalid(op, "APIKey has a space or a character that no key has")
	}
	if c.UserAgent == "" {
		c.UserAgent = "abx-go"
	}
	cl.userAgent = []string{c.UserAgent}
	if c.APIKey != "" {
		cl.keyHeaders = []string{c.APIKey}
	}
	switch {
	case cl.timeout == 0:
		cl.timeout = 60 * time.Second
	case cl.timeout < 0:
		cl.timeout = 0
	}
	if cl.transport == nil {
		cl.own = newTransport()
		cl.transport = cl.own
	}
	return cl, nil
}

// Close drops the idle connections of a transport that the client made itself.
// Calls and streams that run are not touched. It is always nil and may be
// called twice.
func (c *Client) Close() error {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
	return nil
}

// String names the platform; it shows no key.
func (c *Client) String() string { return "sandbox client of " + c.control.Host }

// newTransport is the standard one with room for many streams to one host and
// without its own decompression, which would undo ranges and sizes.
func newTransport() *http.Transport {
	t := &http.Transport{}
	if d, ok := http.DefaultTransport.(*http.Transport); ok {
		t = d.Clone()
	}
	t.MaxIdleConns = 256
	t.MaxIdleConnsPerHost = 64
	t.DisableCompression = true
	return t
}

func parseBase(name, s string) (*url.URL, error) {
	const op = "sandbox client"
	u, err := url.Parse(s)
	switch {
	case err != nil: // not quoted: it may hold a password
		return nil, invalid(op, name+" is not a URL")
	case u.User != nil:
		return nil, invalid(op, name+" holds a user name: give the key as APIKey")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, invalid(op, fmt.Sprintf("%s %q: want http://HOST or https://HOST", name, s))
	case u.RawQuery != "" || u.Fragment != "":
		return nil, invalid(op, name+" has a query or a fragment")
	}
	u.Path = strings.TrimRight(u.Path, "/")
	u.RawPath = ""
	return u, nil
}

func isLocal(host string) bool { return host == "localhost" || net.ParseIP(host) != nil }

// validDomain reports whether s is a host name, maybe with a port: a domain
// that a server sends becomes part of a URL.
func validDomain(s string) bool {
	host, port, found := strings.Cut(s, ":")
	if found && !each(port, func(c byte) bool { return c >= '0' && c <= '9' }) {
		return false
	}
	return len(s) <= 255 && host[:min(1, len(host))] != "." && each(host, func(c byte) bool {
		return c == '-' || c == '.' || isAlphanumeric(c)
	})
}

// validID reports whether s can stand in a path, a header and a host name.
// Platforms use [a-z0-9]; a few more characters do no harm.
func validID(s string) bool {
	return len(s) <= 128 && each(s, func(c byte) bool { return c == '-' || c == '_' || isAlphanumeric(c) })
}

func isAlphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// each reports whether s is not empty and ok for all its bytes.
func each(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return s != ""
}
