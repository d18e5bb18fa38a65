//go:build linux

package filesystem

import (
	"compress/gzip"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/account"
	"github.com/agent-sandbox/abx/internal/e2b"
)

// maxParts is how many files one request may carry.
const maxParts = 10_000

// An upload is one POST /files.
type upload struct {
	*Service
	user     account.Account
	metadata map[string]string
	path     string // of the query; empty: each part names its own
	body     io.Reader
	length   int64 // of the body when it is the file as it is, else -1
	done     []e2b.FileInfo
	written  map[string]bool // by path, links resolved
}

// upload answers POST /files.
func (s *Service) upload(w http.ResponseWriter, r *http.Request) error {
	a, q, err := s.admit(r, OpWrite)
	if err != nil {
		return err
	}
	u := &upload{Service: s, user: a, path: q.Get("path"), body: r.Body, length: -1, written: map[string]bool{}}
	if u.metadata, err = metadataOf(r.Header); err != nil {
		return err
	}
	plain, err := u.decode(r.Header.Values("Content-Encoding"))
	if err != nil {
		return err
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case err == nil && kind == "multipart/form-data" && params["boundary"] != "":
		err = u.parts(multipart.NewReader(u.body, params["boundary"]))
	case err == nil && kind == "application/octet-stream" && u.path == "":
		err = faultf(kindInvalid, "a body of type application/octet-stream needs the query path")
	case err == nil && kind == "application/octet-stream":
		if plain {
			u.length = r.ContentLength
		}
		err = u.write(u.path, u.body)
	default:
		err = faultf(kindInvalid, "header Content-Type: %s; send multipart/form-data, or application/octet-stream with the query path", show(r.Header.Get("Content-Type")))
	}
	if err != nil {
		return err
	}
	return answer(w, u.done)
}

// decode undoes the Content-Encoding of the body; plain when there is none.
func (u *upload) decode(values []string) (plain bool, err error) {
	switch coding := strings.ToLower(strings.TrimSpace(strings.Join(values, ","))); coding {
	case "", "identity":
		return true, nil
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(u.body)
		if err != nil {
			return false, &fault{kind: kindInvalid, text: "the body is not gzip, as header Content-Encoding says: " + err.Error(), err: err}
		}
		u.body = z
		return false, nil
	default:
		return false, faultf(kindInvalid, "header Content-Encoding: %s is not known; send gzip or nothing", show(coding))
	}
}

// parts writes every part named "file".
func (u *upload) parts(m *multipart.Reader) error {
	for {
		part, err := m.NextRawPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return bodyFault(err)
		}
		name, file := partNames(part.Header.Get("Content-Disposition"))
		if name != "file" {
			continue
		}
		if len(u.done) >= maxParts {
			return faultf(kindInvalid, "more than %d files in one request", maxParts)
		}
		if u.path != "" {
			file = u.path
		}
		if file == "" {
			return faultf(kindInvalid, "a part has no file name and the query no path")
		}
		if err := u.write(file, part); err != nil {
			return err
		}
	}
	if len(u.done) == 0 {
		return faultf(kindInvalid, "the body has no part named file")
	}
	return nil
}

// partNames returns form name and whole file name of a part. Package multipart
// would take the directories off. Browsers and httpx write three characters as
// the HTML standard's section "Multipart form data" says; they are put back.
func partNames(header string) (name, file string) {
	_, params, err := mime.ParseMediaType(header)
	if err != nil {
		return "", ""
	}
	return params["name"], formText.Replace(params["filename"])
}

var formText = strings.NewReplacer("%0A", "\n", "%0D", "\r", "%22", `"`)

// write makes body the content of the file named p.
func (u *upload) write(p string, body io.Reader) error {
	p, err := u.resolve(p, u.user)
	if err != nil {
		return err
	}
	f, err := as(u.Service, u.user, func() (*opened, error) { return u.tree.openWrite(p) })
	if err != nil {
		return err
	}
	defer f.Close()
	if u.written[f.at.full()] {
		return faultf(kindInvalid, "path %s comes twice in one request", show(p))
	}
	u.written[f.at.full()] = true
	if err := u.room(f, p); err != nil {
		return u.undo(f, u.user, err)
	}
	if err := u.fill(f, p, body); err != nil {
		return u.undo(f, u.user, err)
	}
	u.done = append(u.done, e2b.FileInfo{
		Path:     valid(p),
		Name:     valid(path.Base(p)),
		Type:     "file",
		Metadata: u.setMetadata(f.fd, u.metadata, u.user),
	})
	return nil
}

// room refuses a body that cannot fit before anything is lost.
func (u *upload) room(f *opened, p string) error {
	if u.opts.MaxFile > 0 && u.length > u.opts.MaxFile {
		return tooLarge(p, u.opts.MaxFile)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(f.fd, &st); err != nil || st.Blocks == 0 {
		return nil // not every file system knows its size
	}
	if free := int64(st.Bavail)*st.Bsize + f.stat.Blocks*512; u.length > free {
		return at(p, unix.ENOSPC)
	}
	return nil
}

func tooLarge(p string, limit int64) error {
	return faultf(kindTooLarge, "path %s: the file is larger than the limit of %d bytes", show(p), limit)
}

// fill replaces the content of f by body.
func (s *Service) fill(f *opened, p string, body io.Reader) error {
	if err := unix.Ftruncate(f.fd, 0); err != nil {
		return at(p, err)
	}
	if s.opts.MaxFile > 0 {
		body = io.LimitReader(body, s.opts.MaxFile+1)
	}
	n, err := copyBody(f, body, p)
	if err == nil && s.opts.MaxFile > 0 && n > s.opts.MaxFile {
		err = tooLarge(p, s.opts.MaxFile)
	}
	return err
}

// copyBody copies body to f with one buffer and says on whose side it failed.
func copyBody(f io.Writer, body io.Reader, p string) (n int64, err error) {
	from := &reading{r: body}
	n, err = io.CopyBuffer(struct{ io.Writer }{f}, from, make([]byte, copyBuffer))
	if from.err != nil {
		return n, bodyFault(from.err)
	}
	return n, at(p, err)
}

// reading remembers how a reader failed.
type reading struct {
	r   io.Reader
	err error
}

func (r *reading) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

func bodyFault(err error) error {
	return &fault{kind: kindInvalid, text: "the body of the request ends early or is malformed: " + err.Error(), err: err}
}

// undo takes a file away that could not be written, when it was made for this,
// and passes err on. It frees the disk that a half upload would hold.
func (s *Service) undo(f *opened, a account.Account, err error) error {
	if !f.made {
		return err
	}
	_ = s.as(a, func() error { // err is what to tell
		f.unmake()
		return nil
	})
	return err
}

// unmake removes o if its name is still its own.
func (o *opened) unmake() {
	if st, err := o.at.lstat(); err == nil && st.Dev == o.stat.Dev && st.Ino == o.stat.Ino {
		_ = unlink(o.at.fd, o.at.name, 0) // what may not be removed stays
	}
}
