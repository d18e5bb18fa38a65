package server

import (
	"bytes"
	"net/http"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// maxRefresh is the longest that the old keep-alive route takes, in seconds.
const maxRefresh = 3600

func (s *Server) setTimeout(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var body e2b.SetTimeout
	d, err := s.readTimeout(w, r, &body, nil)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, s.engine.SetTimeout(r.Context(), r.PathValue("id"), d)
}

// connectV1 needs a timeout; connectV2 has a default, and its body is optional.
func (s *Server) connectV1(w http.ResponseWriter, r *http.Request) (int, any, error) {
	return s.connect(w, r, nil)
}

func (s *Server) connectV2(w http.ResponseWriter, r *http.Request) (int, any, error) {
	timeout := defaultTimeoutV2
	return s.connect(w, r, &timeout)
}

func (s *Server) connect(w http.ResponseWriter, r *http.Request, timeout *int) (int, any, error) {
	var body e2b.SetTimeout
	d, err := s.readTimeout(w, r, &body, timeout)
	if err != nil {
		return 0, nil, err
	}
	info, err := s.engine.Extend(r.Context(), r.PathValue("id"), d)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, s.answer(info), nil
}

// readTimeout reads a body with a timeout. preset stands in for a missing one;
// without it the field is required.
func (s *Server) readTimeout(w http.ResponseWriter, r *http.Request, body *e2b.SetTimeout, preset *int) (time.Duration, error) {
	data, err := readBody(w, r)
	if err != nil {
		return 0, err
	}
	if preset == nil || len(bytes.TrimSpace(data)) > 0 {
		if err := decode(data, body); err != nil {
			return 0, err
		}
	}
	switch {
	case body.Timeout != nil:
		return s.seconds(*body.Timeout)
	case preset != nil:
		return min(time.Duration(*preset)*time.Second, s.engine.MaxLifetime()), nil
	}
	return 0, engine.Errorf(engine.ErrInvalid, "field timeout is required (seconds)")
}

func (s *Server) refresh(w http.ResponseWriter, r *http.Request) (int, any, error) {
	data, err := readBody(w, r)
	if err != nil {
		return 0, nil, err
	}
	body := struct {
		Duration *int `json:"duration"`
	}{}
	if len(bytes.TrimSpace(data)) > 0 {
		if err := decode(data, &body); err != nil {
			return 0, nil, err
		}
	}
	seconds := defaultTimeoutV1
	if body.Duration != nil {
		seconds = *body.Duration
	}
	if seconds < 0 || seconds > maxRefresh {
		return 0, nil, engine.Errorf(engine.ErrInvalid, "field duration: %d is not in 0 to %d seconds", seconds, maxRefresh)
	}
	d := min(time.Duration(seconds)*time.Second, s.engine.MaxLifetime())
	_, err = s.engine.Extend(r.Context(), r.PathValue("id"), d)
	return http.StatusNoContent, nil, err
}
