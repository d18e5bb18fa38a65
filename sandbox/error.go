package sandbox

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// The closed set of errors. Every error of this package that has one of these
// causes matches it by [errors.Is]. A ctx that ended matches [context.Canceled]
// or [context.DeadlineExceeded]; a file that the user in the sandbox may not
// touch matches [io/fs.ErrPermission].
var (
	// ErrNotFound: what the call names (sandbox, template, file, process, code
	// context) is not there.
	ErrNotFound = errors.New("not found")
	// ErrExpired: the sandbox of this handle is gone: killed, or its lifetime is over.
	ErrExpired = errors.New("sandbox is gone")
	// ErrCapacity: no room: too many requests or sandboxes, or no space on the disk.
	ErrCapacity = errors.New("no capacity")
	// ErrUnauthorized: the API key or access token is missing, wrong, or not allowed this.
	ErrUnauthorized = errors.New("not authorized")
	// ErrInvalid: the request is wrong; sending it again gives the same answer.
	ErrInvalid = errors.New("invalid request")
	// ErrUnsupported: this platform, template or agent version cannot do it.
	ErrUnsupported = errors.New("not supported")
	// ErrConflict: the thing is in a state that excludes the call, as pausing twice.
	ErrConflict = errors.New("conflict")
	// ErrLost: the connection was cut while a call ran; how it ended is unknown.
	ErrLost = errors.New("connection to the sandbox lost")
)

// Error is an answer that refused a call, or the lack of one. Its text never
// holds a key or token.
type Error struct {
	Op         string        // what was tried, as "create sandbox"
	SandboxID  string        // empty when no sandbox is concerned
	Status     int           // HTTP status, or the code in the body; 0: there was no answer
	Code       string        // Connect code as "not_found", when the answer had one
	Message    string        // the server's words where it had some, on one line
	RetryAfter time.Duration // the server's wish on status 429 and 503; 0: none

	kinds [2]error // sentinels that it matches
	size  int64    // of the file, beside status 416; -1: not told
	cause error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.SandboxID != "" {
		b.WriteString(": sandbox ")
		b.WriteString(e.SandboxID)
	}
	b.WriteString(": ")
	switch {
	case e.Message != "":
		b.WriteString(e.Message)
	case e.kinds[0] != nil:
		b.WriteString(e.kinds[0].Error())
	case e.Status != 0:
		b.WriteString("HTTP status ")
		b.WriteString(strconv.Itoa(e.Status))
	default:
		b.WriteString("unknown error")
	}
	return b.String()
}

// Unwrap returns the sentinels that e matches and its cause.
func (e *Error) Unwrap() []error {
	all := make([]error, 0, 3)
	for _, err := range [...]error{e.kinds[0], e.kinds[1], e.cause} {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

// statusKinds is the table of HTTP statuses, for both planes. What it does not
// name (500 and its like) matches no sentinel.
var statusKinds = map[int]error{
	http.StatusBadRequest:            ErrInvalid,
	http.StatusUnauthorized:          ErrUnauthorized,
	http.StatusForbidden:             ErrUnauthorized,
	http.StatusNotFound:              ErrNotFound,
	http.StatusMethodNotAllowed:      ErrUnsupported,
	http.StatusNotAcceptable:         ErrUnsupported,
	http.StatusConflict:              ErrConflict,
	http.StatusGone:                  ErrExpired,
	http.StatusRequestEntityTooLarge: ErrInvalid,
	http.StatusUnsupportedMediaType:  ErrUnsupported,
	http.StatusUnprocessableEntity:   ErrInvalid,
	http.StatusTooManyRequests:       ErrCapacity,
	http.StatusNotImplemented:        ErrUnsupported,
	http.StatusServiceUnavailable:    ErrCapacity,
	http.StatusInsufficientStorage:   ErrCapacity,
}

// codeKinds is the table of Connect codes that a server sent.
var codeKinds = map[connect.Code]error{
	connect.CodeCanceled:           context.Canceled,
	connect.CodeInvalidArgument:    ErrInvalid,
	connect.CodeDeadlineExceeded:   context.DeadlineExceeded,
	connect.CodeNotFound:           ErrNotFound,
	connect.CodeAlreadyExists:      ErrConflict,
	connect.CodePermissionDenied:   fs.ErrPermission,
	connect.CodeResourceExhausted:  ErrCapacity,
	connect.CodeFailedPrecondition: ErrConflict,
	connect.CodeAborted:            ErrConflict,
	connect.CodeOutOfRange:         ErrInvalid,
	connect.CodeUnimplemented:      ErrUnsupported,
	connect.CodeUnavailable:        ErrLost,
	connect.CodeDataLoss:           ErrLost,
	connect.CodeUnauthenticated:    ErrUnauthorized,
}

// gatewayKind tells what the gateway's 502 means. A port that is closed on a
// living sandbox says so; every other 502 is a sandbox that is not there.
func gatewayKind(port int, message string) error {
	if message != e2b.MessagePortClosed {
		return ErrExpired
	}
	if port == e2b.PortInterpreter {
		return ErrUnsupported
	}
	return ErrLost
}

// invalid refuses a call before anything was sent.
func invalid(op, message string) *Error {
	return &Error{Op: op, Message: message, kinds: [2]error{ErrInvalid}}
}

// oneLine makes a server's text fit to be shown: no control characters (they
// could drive a terminal), no invalid UTF-8, at most 2,000 bytes.
func oneLine(s string) string {
	const most = 2000
	if len(s) > most {
		s = s[:most] + "..."
	}
	s = strings.ToValidUTF8(s, "")
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, s)
	return strings.TrimSpace(s)
}

// retryAfter reads the header Retry-After, seconds or a date. 0: none.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := h.Get("Retry-After")
	if v == "" {
		return 0
	}
	if n, err := strconv.ParseInt(v, 10, 32); err == nil {
		return max(0, time.Duration(n)*time.Second)
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}
