package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// A CodeContext is a place in which code runs and keeps its variables.
type CodeContext struct {
	ID       string
	Language string
	Cwd      string
}

// CreateContext makes a code context. It lives until [Sandbox.DeleteContext] or
// the end of the sandbox.
//
// Options: [Language] (default python), [Cwd] (default /home/user).
func (s *Sandbox) CreateContext(ctx context.Context, opts ...ContextOption) (*CodeContext, error) {
	var body e2b.NewContext
	for _, o := range opts {
		o.applyContext(&body)
	}
	var answer e2b.Context
	if err := s.interpreter(ctx, "create code context", http.MethodPost, "/contexts", body, &answer, false); err != nil {
		return nil, err
	}
	return newContext(answer), nil
}

// ListContexts returns the code contexts of the sandbox, the default ones too.
func (s *Sandbox) ListContexts(ctx context.Context) ([]CodeContext, error) {
	var answer []e2b.Context
	if err := s.interpreter(ctx, "list code contexts", http.MethodGet, "/contexts", nil, &answer, true); err != nil {
		return nil, err
	}
	all := make([]CodeContext, 0, len(answer))
	for _, c := range answer {
		all = append(all, *newContext(c))
	}
	return all, nil
}

// RestartContext gives a code context a new process: its variables are gone and
// code that runs in it ends. An unknown id is ErrNotFound.
func (s *Sandbox) RestartContext(ctx context.Context, id string) error {
	const op = "restart code context"
	if err := checkContextID(op, id); err != nil {
		return err
	}
	return s.interpreter(ctx, op, http.MethodPost, "/contexts/"+id+"/restart", nil, nil, false)
}

// DeleteContext ends a code context. An unknown id is ErrNotFound.
func (s *Sandbox) DeleteContext(ctx context.Context, id string) error {
	const op = "delete code context"
	if err := checkContextID(op, id); err != nil {
		return err
	}
	return s.interpreter(ctx, op, http.MethodDelete, "/contexts/"+id, nil, nil, true)
}

func checkContextID(op, id string) error {
	if !validID(id) {
		return invalid(op, fmt.Sprintf("%q is not the id of a code context", oneLine(id)))
	}
	return nil
}

func newContext(c e2b.Context) *CodeContext {
	return &CodeContext{ID: c.ID, Language: c.Language, Cwd: c.CWD}
}

// interpreter makes one call to the code interpreter that is answered at once.
func (s *Sandbox) interpreter(ctx context.Context, op, method, path string, in, out any, again bool) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return &Error{Op: op, Message: "encode request", cause: err}
		}
	}
	return s.redact(s.client.bounded(ctx, op, s.info.ID, again, func(ctx context.Context) error {
		r := s.request(ctx, method, e2b.PortInterpreter, path, "", bytes.NewReader(body), int64(len(body)))
		if in != nil {
			r.Header["Content-Type"] = jsonType
		}
		resp, err := s.send(r, e2b.PortInterpreter)
		if err != nil {
			return err
		}
		defer drain(resp.Body)
		if out == nil {
			return nil
		}
		return decode(resp.Body, out)
	}))
}
