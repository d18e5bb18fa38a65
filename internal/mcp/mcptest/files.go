package mcptest

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/e2b/filesystem"
	"github.com/agent-sandbox/abx/internal/e2b/filesystem/filesystemconnect"
)

// Put makes a file and its parents.
func (s *Sandbox) Put(name string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[name] = data
	for d := path.Dir(name); !s.dirs[d]; d = path.Dir(d) {
		s.dirs[d] = true
	}
}

// Get returns a file's content, nil when it is not there.
func (s *Sandbox) Get(name string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files[name]
}

func (s *Sandbox) isDir(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dirs[name]
}

// A refusal is how a sandbox answers for a path that cannot be used.
type refusal struct {
	code    connect.Code
	status  int
	message string
}

// Special puts something at name that is neither a file nor a folder, as a
// pipe; message is what reading or writing it answers.
func (s *Sandbox) Special(name, message string) {
	s.refuse(name, refusal{connect.CodeInvalidArgument, http.StatusBadRequest, message})
}

// Missing makes name, which Stat knows, a link to nothing.
func (s *Sandbox) Missing(name, message string) {
	s.refuse(name, refusal{connect.CodeNotFound, http.StatusNotFound, message})
}

// Close makes name one that the sandbox's user may not use.
func (s *Sandbox) Close(name, message string) {
	s.refuse(name, refusal{connect.CodePermissionDenied, http.StatusForbidden, message})
}

// Full makes the sandbox start no more processes.
func (s *Sandbox) Full(message string) {
	s.refuse(processKey, refusal{connect.CodeResourceExhausted, http.StatusTooManyRequests, message})
}

// processKey stands for the start of a process among the paths, none of which
// is relative.
const processKey = "process"

// Forget makes the sandbox lose its user: files and processes are refused.
func (s *Sandbox) Forget(message string) {
	s.refuse("", refusal{connect.CodeUnauthenticated, http.StatusUnauthorized, message})
}

func (s *Sandbox) refuse(name string, r refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.odd == nil {
		s.odd = map[string]refusal{}
	}
	s.odd[name] = r
}

func (s *Sandbox) refusal(name string) (refusal, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.odd[""]; ok {
		return r, true
	}
	r, ok := s.odd[name]
	return r, ok
}

// refused answers for a path that cannot be used.
func (s *Sandbox) refused(w http.ResponseWriter, name string) bool {
	r, ok := s.refusal(name)
	if ok {
		answer(w, r.status, e2b.Error{Code: r.status, Message: r.message})
	}
	return ok
}

func (s *Sandbox) getFile(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("path")
	if s.refused(w, name) {
		return
	}
	data := s.Get(name)
	switch {
	case s.isDir(name):
		answer(w, http.StatusBadRequest, e2b.Error{Code: 400, Message: "path is a directory"})
	case data == nil:
		answer(w, http.StatusNotFound, e2b.Error{Code: 404, Message: "file not found"})
	default:
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}
}

func (s *Sandbox) putFile(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("path")
	if s.refused(w, name) {
		return
	}
	if s.isDir(name) {
		answer(w, http.StatusBadRequest, e2b.Error{Code: 400, Message: "path is a directory"})
		return
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		answer(w, http.StatusInternalServerError, e2b.Error{Code: 500, Message: err.Error()})
		return
	}
	if data == nil {
		data = []byte{}
	}
	s.Put(name, data)
	answer(w, http.StatusOK, []e2b.FileInfo{{Path: name, Name: path.Base(name), Type: "file"}})
}

type files struct {
	filesystemconnect.UnimplementedFilesystemHandler
	s *Sandbox
}

func (f files) entry(name string) *filesystem.EntryInfo {
	e := &filesystem.EntryInfo{Name: path.Base(name), Path: name, Type: filesystem.FileType_FILE_TYPE_FILE}
	if f.s.isDir(name) {
		e.Type = filesystem.FileType_FILE_TYPE_DIRECTORY
		return e
	}
	data := f.s.Get(name)
	if data == nil {
		return nil
	}
	e.Size = int64(len(data))
	if target, ok := strings.CutPrefix(string(data), "-> "); ok { // how a test writes a link
		e.SymlinkTarget = &target
	}
	return e
}

func (f files) Stat(_ context.Context, r *connect.Request[filesystem.StatRequest]) (*connect.Response[filesystem.StatResponse], error) {
	name := r.Msg.GetPath()
	if odd, ok := f.s.refusal(name); ok {
		if odd.code != connect.CodeInvalidArgument && odd.code != connect.CodeNotFound {
			return nil, connect.NewError(odd.code, &missing{odd.message})
		}
		e := &filesystem.EntryInfo{Name: path.Base(name), Path: name}
		if target, ok := strings.CutPrefix(string(f.s.Get(name)), "-> "); ok {
			e.SymlinkTarget = &target
		}
		return connect.NewResponse(&filesystem.StatResponse{Entry: e}), nil
	}
	e := f.entry(name)
	if e == nil {
		return nil, connect.NewError(connect.CodeNotFound, &missing{"file not found"})
	}
	return connect.NewResponse(&filesystem.StatResponse{Entry: e}), nil
}

func (f files) ListDir(_ context.Context, r *connect.Request[filesystem.ListDirRequest]) (*connect.Response[filesystem.ListDirResponse], error) {
	dir := r.Msg.GetPath()
	if !path.IsAbs(dir) {
		dir = path.Join("/home/user", dir)
	}
	dir = path.Clean(dir)
	if odd, ok := f.s.refusal(dir); ok {
		return nil, connect.NewError(odd.code, &missing{odd.message})
	}
	switch e := f.entry(dir); {
	case e == nil:
		return nil, connect.NewError(connect.CodeNotFound, &missing{"directory not found"})
	case e.GetType() != filesystem.FileType_FILE_TYPE_DIRECTORY:
		return nil, connect.NewError(connect.CodeInvalidArgument, &missing{"path is not a directory"})
	}
	f.s.mu.Lock()
	names := []string{}
	for n := range f.s.files {
		names = append(names, n)
	}
	for n, there := range f.s.dirs {
		if there {
			names = append(names, n)
		}
	}
	f.s.mu.Unlock()
	names = slices.DeleteFunc(names, func(n string) bool { return n == dir || path.Dir(n) != dir })
	slices.Sort(names)
	out := &filesystem.ListDirResponse{}
	if most := int(r.Msg.GetAbxLimit()); most > 0 && len(names) > most {
		out.AbxTotal = uint64(len(names))
		names = names[:most]
	}
	for _, n := range names {
		out.Entries = append(out.Entries, f.entry(n))
	}
	return connect.NewResponse(out), nil
}
