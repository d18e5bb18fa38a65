package engine

import (
	"errors"
	"fmt"
	"time"
)

// The closed set of errors that the engine and its drivers return, wrapped
// with what the caller does not know. internal/host/server/error.go maps them
// to statuses.
var (
	ErrNotFound    = errors.New("sandbox not found")
	ErrExpired     = errors.New("sandbox expired")
	ErrCapacity    = errors.New("no capacity for another sandbox")
	ErrInvalid     = errors.New("invalid request")
	ErrUnsupported = errors.New("not supported here")
	ErrPortClosed  = errors.New("nothing listens on that port")
	ErrLost        = errors.New("sandbox lost")
)

// Errorf makes an error of one kind of the set whose text is its own: the
// kind is found by errors.Is and does not stand in the message.
func Errorf(kind error, format string, args ...any) error {
	return &told{kind: kind, text: fmt.Sprintf(format, args...)}
}

type told struct {
	kind error
	text string
}

func (t *told) Error() string { return t.text }
func (t *told) Unwrap() error { return t.kind }

// CheckLifetime refuses a lifetime that is not above zero or is over most,
// in the words that E2B's server has for it.
func CheckLifetime(d, most time.Duration) error {
	if d > most {
		return Errorf(ErrInvalid, "Timeout cannot be greater than %g hours", most.Hours())
	}
	if d <= 0 {
		return Errorf(ErrInvalid, "Timeout must be greater than 0 seconds")
	}
	return nil
}

// Reason is the value of e2b.HeaderReason for an error of Get, Find and their
// kind; empty when there is nothing to tell.
func Reason(err error) string {
	switch {
	case errors.Is(err, ErrExpired):
		return "expired"
	case errors.Is(err, ErrLost):
		return "lost"
	case errors.Is(err, errKilled):
		return "killed"
	}
	return ""
}

// errKilled is the end of a sandbox that somebody asked for. To callers it is
// an ErrNotFound.
var errKilled = fmt.Errorf("%w: killed", ErrNotFound)

// startError tells why a sandbox did not start. A loss there is the host's
// trouble and not an answer about a sandbox that the caller named, so its kind
// is dropped.
func startError(id string, err error) error {
	if errors.Is(err, ErrLost) || errors.Is(err, ErrPortClosed) {
		return fmt.Errorf("start sandbox %s: %v", id, err)
	}
	return fmt.Errorf("start sandbox %s: %w", id, err)
}
