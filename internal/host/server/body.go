package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/agent-sandbox/abx/internal/host/engine"
)

// maxBody of a request to the control plane.
const maxBody = 1 << 20

// readBody reads a body that is at most maxBody long.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var over *http.MaxBytesError
	if errors.As(err, &over) {
		return nil, engine.Errorf(errTooLarge, "the request body is over %d bytes", over.Limit)
	}
	if err != nil {
		return nil, engine.Errorf(engine.ErrInvalid, "the request body could not be read")
	}
	return data, nil
}

// decode reads one JSON object into each of targets. Unknown fields are
// ignored, as E2B's server does; a known one of another type is refused by
// name.
func decode(data []byte, targets ...any) error {
	for _, target := range targets {
		dec := json.NewDecoder(bytes.NewReader(data))
		if err := dec.Decode(target); err != nil {
			return badJSON(err)
		}
		if _, err := dec.Token(); err != io.EOF {
			return engine.Errorf(engine.ErrInvalid, "the request body holds more than one JSON value")
		}
	}
	return nil
}

func badJSON(err error) error {
	var mistyped *json.UnmarshalTypeError
	switch {
	case errors.As(err, &mistyped) && mistyped.Field != "":
		return engine.Errorf(engine.ErrInvalid, "field %s: want %s, got %s", mistyped.Field, kind(mistyped.Type), mistyped.Value)
	case errors.As(err, &mistyped):
		return engine.Errorf(engine.ErrInvalid, "the request body must be a JSON object, not %s", mistyped.Value)
	case err == io.EOF:
		return engine.Errorf(engine.ErrInvalid, "the request body is empty; want a JSON object")
	}
	return engine.Errorf(engine.ErrInvalid, "the request body is not JSON: %s", strings.TrimPrefix(err.Error(), "json: "))
}

// kind names a Go type in JSON's words.
func kind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "a boolean"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Pointer:
		return kind(t.Elem())
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "an integer"
}

// seconds is a time in whole seconds, checked against the longest lifetime
// before it can overflow.
func (s *Server) seconds(n int) (time.Duration, error) {
	most := s.engine.MaxLifetime()
	if n > 0 && int64(n) > int64(most/time.Second) {
		return 0, engine.CheckLifetime(most+1, most)
	}
	if n < 0 {
		return 0, engine.CheckLifetime(-1, most)
	}
	return time.Duration(n) * time.Second, nil
}
