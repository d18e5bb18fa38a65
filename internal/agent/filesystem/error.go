//go:build linux

package filesystem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/account"
	"github.com/agent-sandbox/abx/internal/e2b"
)

// kind is what went wrong, as far as a client can act on it.
type kind int

const (
	kindInternal kind = iota
	kindInvalid
	kindMissing
	kindExists
	kindDenied
	kindUser
	kindSpace
	kindTooLarge
	kindBusy
	kindLimit
	kindCrossing
	kindGone
	kindCanceled
	kindDeadline
	kindNotAcceptable
	kindMethod
)

// answers is the one table from kinds to the wire. Connect knows no code for a
// full disk but resource_exhausted, and gRPC's description of it names the case.
var answers = [...]struct {
	code   connect.Code
	status int
}{
	kindInternal:      {connect.CodeInternal, http.StatusInternalServerError},
	kindInvalid:       {connect.CodeInvalidArgument, http.StatusBadRequest},
	kindMissing:       {connect.CodeNotFound, http.StatusNotFound},
	kindExists:        {connect.CodeAlreadyExists, http.StatusConflict},
	kindDenied:        {connect.CodePermissionDenied, http.StatusForbidden},
	kindUser:          {connect.CodeUnauthenticated, http.StatusUnauthorized},
	kindSpace:         {connect.CodeResourceExhausted, http.StatusInsufficientStorage},
	kindTooLarge:      {connect.CodeInvalidArgument, http.StatusRequestEntityTooLarge},
	kindBusy:          {connect.CodeFailedPrecondition, http.StatusConflict},
	kindLimit:         {connect.CodeResourceExhausted, http.StatusTooManyRequests},
	kindCrossing:      {connect.CodeFailedPrecondition, http.StatusBadRequest},
	kindGone:          {connect.CodeUnavailable, http.StatusServiceUnavailable},
	kindCanceled:      {connect.CodeCanceled, 499}, // nobody is there to read it
	kindDeadline:      {connect.CodeDeadlineExceeded, http.StatusGatewayTimeout},
	kindNotAcceptable: {connect.CodeInvalidArgument, http.StatusNotAcceptable},
	kindMethod:        {connect.CodeUnimplemented, http.StatusMethodNotAllowed},
}

// fault is an error whose text is for the client.
type fault struct {
	kind kind
	text string
	err  error // the cause, may be nil
}

func (f *fault) Error() string { return f.text }
func (f *fault) Unwrap() error { return f.err }

func faultf(k kind, format string, args ...any) error {
	return &fault{kind: k, text: fmt.Sprintf(format, args...)}
}

// errnos says what a system call's error means to a client.
var errnos = map[unix.Errno]struct {
	kind kind
	text string
}{
	unix.ENOENT:       {kindMissing, "does not exist"},
	unix.ENOTDIR:      {kindInvalid, "leads through something that is not a directory"},
	unix.EISDIR:       {kindInvalid, "is a directory"},
	unix.EINVAL:       {kindInvalid, "cannot be used for this"},
	unix.ELOOP:        {kindInvalid, "goes through too many symbolic links"},
	unix.ENAMETOOLONG: {kindInvalid, "holds a name longer than 255 bytes"},
	unix.EEXIST:       {kindExists, "already exists"},
	unix.ENOTEMPTY:    {kindExists, "is a directory that is not empty"},
	unix.EACCES:       {kindDenied, "permission denied"},
	unix.EPERM:        {kindDenied, "operation not permitted"},
	unix.EROFS:        {kindDenied, "is on a read-only file system"},
	unix.ENOSPC:       {kindSpace, "no space left on the disk of the sandbox; remove files and try again"},
	unix.EDQUOT:       {kindSpace, "disk quota of the sandbox used up; remove files and try again"},
	unix.EFBIG:        {kindTooLarge, "would be larger than the file system allows"},
	unix.EBUSY:        {kindBusy, "is in use, or a mount point"},
	unix.ETXTBSY:      {kindBusy, "is a program that runs; stop it, or remove the file first"},
	unix.EAGAIN:       {kindBusy, "is locked by a program of the sandbox"},
	unix.ENXIO:        {kindInvalid, "is not a regular file"},
	unix.EXDEV:        {kindCrossing, "source and destination are on different file systems; copy and then remove, as the command mv does"},
}

// at says which path err is about. A fault passes unchanged.
func at(p string, err error) error {
	var f *fault
	if err == nil || errors.As(err, &f) {
		return err
	}
	var no unix.Errno
	if !errors.As(err, &no) {
		return fmt.Errorf("path %s: %w", show(p), err)
	}
	if known, ok := errnos[no]; ok {
		return &fault{kind: known.kind, text: "path " + show(p) + ": " + known.text, err: err}
	}
	return &fault{kind: kindInternal, text: "path " + show(p) + ": " + no.Error(), err: err}
}

// atEnd is at for a path whose links led to another, real, that err is about.
func atEnd(p, real string, err error) error {
	var f *fault
	var no unix.Errno
	if p == real || errors.As(err, &f) || !errors.As(err, &no) || !denied(no) {
		return at(p, err)
	}
	return &fault{kind: kindDenied, text: "path " + show(p) + ", which leads to " + show(real) + ": " + errnos[no].text, err: err}
}

// denied reports whether the kernel refused for want of rights.
func denied(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }

// refused completes the error of something that was done for a: what the
// kernel denies, it denies to a user, and there is something to do about it.
func (s *Service) refused(a account.Account, err error) error {
	var f *fault
	if !errors.As(err, &f) || f.kind != kindDenied || !denied(f) {
		return err
	}
	next := "or make the request as root"
	switch {
	case a.UID == 0:
		next = "or as the owner; root has no special rights in the sandbox"
	case s.opts.Book.Single:
		next = "or change the mode"
	}
	text := fmt.Sprintf("%s for user %s; use a path below %s, %s", f.text, show(a.Name), path.Join("/", a.Home), next)
	return &fault{kind: f.kind, text: text, err: f.err}
}

func kindOf(err error) kind {
	var f *fault
	switch {
	case errors.As(err, &f):
		return f.kind
	case errors.Is(err, context.Canceled):
		return kindCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return kindDeadline
	}
	return kindInternal
}

// missing reports whether err says that there is nothing at the path.
func missing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
}

// told returns what the client is told about err. What is not a fault stays in
// the log.
func (s *Service) told(err error) (kind, string) {
	var f *fault
	k := kindOf(err)
	if errors.As(err, &f) || k != kindInternal {
		return k, err.Error()
	}
	s.log.Error("files", slog.Any("error", err))
	return k, "internal error; the agent's log says more"
}

// wire turns err into an error of the Connect service.
func (s *Service) wire(err error) error {
	if err == nil {
		return nil
	}
	k, text := s.told(err)
	return connect.NewError(answers[k].code, errors.New(text))
}

// deny answers an HTTP request with err.
func (s *Service) deny(w http.ResponseWriter, err error) {
	k, text := s.told(err)
	denyWith(w, answers[k].status, text)
}

func denyWith(w http.ResponseWriter, status int, text string) {
	b, err := json.Marshal(e2b.Error{Code: status, Message: text})
	if err != nil {
		b = []byte("{}") // cannot be: two plain fields
	}
	h := w.Header()
	for _, k := range []string{"Content-Encoding", "Content-Disposition", "Last-Modified", "Accept-Ranges"} {
		h.Del(k)
	}
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	w.Write(b) // the client may be gone; nothing is left to do then
}

// show quotes a path for a message.
func show(p string) string { return strconv.Quote(clip(p)) }

func clip(p string) string {
	const most = 300
	p = strings.ToValidUTF8(p, "\uFFFD")
	if len(p) <= most {
		return p
	}
	return strings.ToValidUTF8(p[:most], "") + "..."
}
