package server

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// statuses is the one table from the engine's errors to HTTP. The first that
// fits counts. A sandbox that expired or was lost is a 404, as E2B's SDKs need
// it; the header e2b.HeaderReason tells the difference.
var statuses = []struct {
	err    error
	status int
}{
	{errTooLarge, http.StatusRequestEntityTooLarge},
	{engine.ErrInvalid, http.StatusBadRequest},
	{engine.ErrNotFound, http.StatusNotFound},
	{engine.ErrExpired, http.StatusNotFound},
	{engine.ErrLost, http.StatusNotFound},
	{engine.ErrCapacity, http.StatusTooManyRequests},
	{engine.ErrUnsupported, http.StatusNotImplemented},
	{engine.ErrPortClosed, http.StatusBadGateway},
	{context.DeadlineExceeded, http.StatusGatewayTimeout},
	{context.Canceled, http.StatusServiceUnavailable}, // the client is gone and reads nothing
}

// errTooLarge is a body over maxBody.
var errTooLarge = errors.New("request body too large")

// fail answers with err. One that is not in the table is logged under an id,
// and the id is all that the client gets.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	for _, row := range statuses {
		if errors.Is(err, row.err) {
			if reason := engine.Reason(err); reason != "" {
				w.Header().Set(e2b.HeaderReason, reason)
			}
			writeError(w, row.status, err.Error())
			return
		}
	}
	id := strings.ToLower(rand.Text()[:12])
	s.log.Error("internal error", slog.String("id", id), slog.String("method", r.Method),
		slog.String("path", clip(r.URL.Path)), slog.Any("error", err))
	writeError(w, http.StatusInternalServerError, "internal error (id "+id+" in the log)")
}

func writeError(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, e2b.Error{Code: status, Message: message})
}
