package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"path"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// isFileURL reports whether r is for the files of a sandbox that it does not
// name: a URL that an SDK made for a single host (E2B_SANDBOX_URL), where
// nothing but the signature tells whose it is.
func isFileURL(r *http.Request) bool {
	return path.Clean(r.URL.Path) == "/files"
}

// errUnsigned is a 401: a file URL whose sandbox cannot be told.
var errUnsigned = errors.New("unsigned")

// signer finds the sandbox whose token made the signature of r; the agent
// checks it again. A URL without a signature could be meant for a sandbox
// without a token, but then any web page could reach into it.
func (g *Gateway) signer(r *http.Request) (e2b.Address, error) {
	query := r.URL.Query()
	given := query.Get("signature")
	if given == "" {
		return e2b.Address{}, engine.Errorf(errUnsigned, "missing signature query parameter; or name the sandbox in %s and %s", e2b.HeaderSandboxID, e2b.HeaderSandboxPort)
	}
	ops := []string{"read"}
	switch r.Method {
	case http.MethodPost, http.MethodPut:
		ops = []string{"write"}
	case http.MethodOptions: // a browser asks before either
		ops = []string{"read", "write"}
	}
	for _, info := range g.engine.List() {
		for _, op := range ops {
			want := sign(query.Get("path"), op, query.Get("username"), info.AccessToken, query.Get("signature_expiration"))
			if info.AccessToken != "" && subtle.ConstantTimeCompare([]byte(given), []byte(want)) == 1 {
				return e2b.Address{SandboxID: info.ID, Port: e2b.PortAgent}, nil
			}
		}
	}
	return e2b.Address{}, engine.Errorf(errUnsigned, "invalid signature: it is of no sandbox that runs here")
}

// sign makes E2B's signature of a file URL. expiration is empty for none.
func sign(file, op, user, token, expiration string) string {
	text := file + ":" + op + ":" + user + ":" + token
	if expiration != "" {
		text += ":" + expiration
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// sealed is the writer of a reply under the host's own name: whatever it holds,
// a browser must give it no origin.
type sealed struct {
	http.ResponseWriter
	begun bool
}

// WriteHeader sends the header with what seals it.
func (s *sealed) WriteHeader(status int) {
	if !s.begun {
		s.begun = status >= 200
		s.Header().Set("Content-Security-Policy", "sandbox")
		s.Header().Set("X-Content-Type-Options", "nosniff")
	}
	s.ResponseWriter.WriteHeader(status)
}

// Unwrap gives http.ResponseController the rest.
func (s *sealed) Unwrap() http.ResponseWriter { return s.ResponseWriter }
