//go:build linux

package filesystem

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/agent-sandbox/abx/internal/agent/account"
)

// serveFiles routes the HTTP half of the service.
func (s *Service) serveFiles(w http.ResponseWriter, r *http.Request) {
	compose := strings.HasSuffix(strings.TrimSuffix(r.URL.Path, "/"), "/compose")
	var err error
	switch {
	case compose && r.Method == http.MethodPost:
		err = s.compose(w, r)
	case !compose && r.Method == http.MethodPost:
		err = s.upload(w, r)
	case !compose && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		err = s.download(w, r)
	default:
		w.Header().Set("Allow", map[bool]string{true: "POST", false: "GET, HEAD, POST"}[compose])
		err = faultf(kindMethod, "method %s is not served here", r.Method)
	}
	if err == nil {
		return
	}
	if r.Method == http.MethodPost && r.Header.Get("Expect") == "" {
		// Many clients see an answer only after they have sent all of the body.
		_, _ = io.CopyN(io.Discard, r.Body, maxDrain)
	}
	s.deny(w, err)
}

// maxDrain is how much of a refused upload is read for the client to hear why.
const maxDrain = 64 << 20

// admit checks the right to op and finds the user of a request to /files.
func (s *Service) admit(r *http.Request, op string) (account.Account, url.Values, error) {
	if s.opts.Signature != nil {
		if err := s.opts.Signature(r, op); err != nil {
			return account.Account{}, nil, &fault{kind: kindUser, text: err.Error(), err: err}
		}
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return account.Account{}, nil, &fault{kind: kindInvalid, text: "the query of the URL is malformed: " + err.Error(), err: err}
	}
	a, err := s.user(q.Get("username"))
	return a, q, err
}

func answer(w http.ResponseWriter, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(b) // the client may be gone; nothing is left to do then
	return nil
}
