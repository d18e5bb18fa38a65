//go:build linux

package filesystem

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path"

	"github.com/agent-sandbox/abx/internal/agent/account"
	"github.com/agent-sandbox/abx/internal/e2b"
)

const (
	maxSources = 10_000
	maxCompose = 4 << 20 // bytes of the request
)

// composition is the body of POST /files/compose.
type composition struct {
	Sources     []string `json:"source_paths"`
	Destination string   `json:"destination"`
	Username    string   `json:"username"`
}

// fileID is a file whatever its name.
type fileID struct{ dev, ino uint64 }

// compose answers POST /files/compose: it makes one file of many and then
// removes them. When it fails the sources are all still there.
func (s *Service) compose(w http.ResponseWriter, r *http.Request) error {
	a, _, err := s.admit(r, OpWrite)
	if err != nil {
		return err
	}
	var c composition
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxCompose)).Decode(&c); err != nil {
		return &fault{kind: kindInvalid, text: "the body is not the JSON object expected: " + err.Error(), err: err}
	}
	if c.Username != "" {
		if a, err = s.user(c.Username); err != nil {
			return err
		}
	}
	dst, err := s.join(c, a)
	if err != nil {
		return err
	}
	return answer(w, e2b.FileInfo{Path: valid(dst), Name: valid(path.Base(dst)), Type: "file"})
}

// join writes the sources of c one after the other to its destination, whose
// path it returns.
func (s *Service) join(c composition, a account.Account) (string, error) {
	if len(c.Sources) == 0 || len(c.Sources) > maxSources || c.Destination == "" {
		return "", faultf(kindInvalid, "destination and 1 to %d source_paths are needed", maxSources)
	}
	dst, err := s.resolve(c.Destination, a)
	if err != nil {
		return "", err
	}
	var paths []string
	var ids map[fileID]bool
	f, err := as(s, a, func() (f *opened, err error) {
		if paths, ids, err = s.sources(c.Sources, a); err != nil {
			return nil, err
		}
		return s.tree.openWrite(dst)
	})
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, ok := ids[fileID{f.stat.Dev, f.stat.Ino}]; ok {
		return "", faultf(kindInvalid, "destination %s is one of the sources", show(dst))
	}
	body := &sourceReader{service: s, user: a, paths: paths, ids: ids}
	defer body.close()
	err = s.fill(f, dst, body)
	if body.err != nil {
		err = body.err // says which source
	}
	if err != nil {
		return "", s.undo(f, a, err)
	}
	return dst, s.as(a, func() error {
		for i, p := range paths {
			err := s.tree.unlinkFile(p)
			if err != nil && i == 0 && f.made { // nothing is lost yet
				f.unmake()
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// sources looks at all of them before anything is changed.
func (s *Service) sources(given []string, a account.Account) ([]string, map[fileID]bool, error) {
	var paths []string
	ids := map[fileID]bool{}
	for _, p := range given {
		p, err := s.resolve(p, a)
		if err != nil {
			return nil, nil, err
		}
		f, err := s.tree.openRead(p)
		if err != nil {
			return nil, nil, err
		}
		id := fileID{f.stat.Dev, f.stat.Ino}
		kernel := f.kernel
		f.Close()
		if kernel {
			return nil, nil, readOnlyKernel(p)
		}
		if ids[id] {
			return nil, nil, faultf(kindInvalid, "source %s is the same file as one before", show(p))
		}
		ids[id] = true
		paths = append(paths, p)
	}
	return paths, ids, nil
}

// unlinkFile removes the file p is, not one that a link at p leads to.
func (t *tree) unlinkFile(p string) error {
	pl, err := t.locate(p, route{})
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer pl.close()
	return at(p, unlink(pl.fd, pl.name, 0))
}

// A sourceReader reads files one after the other, one open at a time. A file
// that grows is read as far as it was when it was opened.
type sourceReader struct {
	service *Service
	user    account.Account
	paths   []string
	ids     map[fileID]bool // files looked at; another in their place is refused
	cur     *opened
	left    int64
	err     error
}

func (r *sourceReader) Read(b []byte) (int, error) {
	for {
		if r.cur == nil {
			if len(r.paths) == 0 {
				return 0, io.EOF
			}
			if r.err = r.open(r.paths[0]); r.err != nil {
				return 0, r.err
			}
			r.paths = r.paths[1:]
		}
		n, err := r.cur.Read(b[:min(int64(len(b)), r.left)])
		r.left -= int64(n)
		if errors.Is(err, io.EOF) { // left > 0: it shrank
			err = racing(r.cur.at.full())
		}
		if err != nil {
			r.err = at(r.cur.at.full(), err)
			return n, r.err
		}
		if r.left == 0 {
			r.close()
		}
		if n > 0 {
			return n, nil
		}
	}
}

func (r *sourceReader) open(p string) error {
	f, err := r.service.openRead(p, r.user)
	if err != nil {
		return err
	}
	if !r.ids[fileID{f.stat.Dev, f.stat.Ino}] {
		f.Close()
		return racing(p)
	}
	r.cur, r.left = f, f.stat.Size
	return nil
}

func (r *sourceReader) close() {
	if r.cur != nil {
		r.cur.Close()
		r.cur = nil
	}
}
