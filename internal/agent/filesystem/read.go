//go:build linux

package filesystem

import (
	"compress/gzip"
	"io"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"github.com/agent-sandbox/abx/internal/agent/account"
)

// download answers GET and HEAD /files. Once it has begun to answer it returns
// nil; a read that fails then cuts the connection, so that the client does not
// take a part for the whole.
func (s *Service) download(w http.ResponseWriter, r *http.Request) error {
	h := w.Header()
	h.Add("Vary", "Accept-Encoding")
	a, q, err := s.admit(r, OpRead)
	if err != nil {
		return err
	}
	p, err := s.resolve(q.Get("path"), a)
	if err != nil {
		return err
	}
	f, err := s.openRead(p, a)
	if err != nil {
		return err
	}
	defer f.Close()
	coding := accepted(r.Header.Values("Accept-Encoding"))
	if coding == codingNone {
		return faultf(kindNotAcceptable, "header Accept-Encoding: files come as identity or gzip, and it forbids both")
	}
	h.Set("Content-Disposition", disposition(path.Base(p)))
	h.Set("Content-Type", contentType(p, f))
	switch {
	case coding == codingGzip || coding == codingPreferGzip && f.stat.Size > 0 && !partial(r):
		h.Set("Content-Encoding", "gzip")
		h.Set("Last-Modified", modified(f).UTC().Format(http.TimeFormat))
		s.sendGzip(w, r, s.source(f, a))
	case f.kernel:
		s.send(w, r, s.source(f, a)) // its size is not known, so it goes in chunks
	default:
		if f.stat.Size == 0 {
			h.Set("Content-Length", "0") // E2B's JavaScript SDK looks for it
		}
		http.ServeContent(&plainErrors{ResponseWriter: w}, r, "", modified(f), f.File)
	}
	return nil
}

func modified(f *opened) time.Time { return time.Unix(f.stat.Mtim.Unix()) }

// partial reports whether r asks for a part of a file or sets a condition.
// Both speak of the bytes of the file, so it is then sent as it is.
func partial(r *http.Request) bool {
	for _, k := range []string{"Range", "If-Range", "If-Modified-Since", "If-Unmodified-Since", "If-Match", "If-None-Match"} {
		if r.Header.Get(k) != "" {
			return true
		}
	}
	return false
}

// copyBuffer is how much of a file is in memory during a transfer, in bytes.
const copyBuffer = 128 << 10

func (s *Service) send(w http.ResponseWriter, r *http.Request, src io.Reader) {
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	if _, err := io.CopyBuffer(w, src, make([]byte, copyBuffer)); err != nil {
		panic(http.ErrAbortHandler) // net/http's way to cut the connection
	}
}

// source reads all of f: as far as it was when opened, since a file that grows
// must come to an end.
func (s *Service) source(f *opened, a account.Account) io.Reader {
	if f.kernel {
		return rawReader{s, a, f.fd}
	}
	return io.LimitReader(f.File, f.stat.Size)
}

func (s *Service) sendGzip(w http.ResponseWriter, r *http.Request, src io.Reader) {
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err == nil {
		_, err = io.CopyBuffer(z, struct{ io.Reader }{src}, make([]byte, copyBuffer))
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		panic(http.ErrAbortHandler) // net/http's way to cut the connection
	}
}

// plainErrors gives the errors of http.ServeContent, such as an unsatisfiable
// range, our form.
type plainErrors struct {
	http.ResponseWriter
	failed bool
}

func (w *plainErrors) WriteHeader(status int) {
	if status < 400 {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.failed = true
	text := strings.ToLower(http.StatusText(status))
	if status == http.StatusRequestedRangeNotSatisfiable {
		text = "the Range header asks for bytes that the file does not have"
	}
	denyWith(w.ResponseWriter, status, text)
}

func (w *plainErrors) Write(b []byte) (int, error) {
	if w.failed {
		return len(b), nil
	}
	return w.ResponseWriter.Write(b)
}

// ReadFrom keeps the way open by which the kernel copies a file to a socket.
func (w *plainErrors) ReadFrom(r io.Reader) (int64, error) {
	if to, ok := w.ResponseWriter.(io.ReaderFrom); ok && !w.failed {
		return to.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{w}, r)
}

// contentTypes are those that sniffing takes for something else. The tables of
// the system are not asked: in a sandbox anyone may have written them.
var contentTypes = map[string]string{
	".css":  "text/css; charset=utf-8",
	".csv":  "text/csv; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".json": "application/json",
	".md":   "text/markdown; charset=utf-8",
	".mjs":  "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".xml":  "text/xml; charset=utf-8",
}

// sniffed is how much of a file http.DetectContentType looks at.
const sniffed = 512

func contentType(p string, f *opened) string {
	if t, ok := contentTypes[strings.ToLower(path.Ext(p))]; ok {
		return t
	}
	if f.kernel {
		return "text/plain; charset=utf-8"
	}
	return sniff(f.File)
}

func sniff(f *os.File) string {
	head := make([]byte, sniffed)
	n, err := f.ReadAt(head, 0)
	if n == 0 && err != nil {
		return "application/octet-stream"
	}
	return http.DetectContentType(head[:n])
}
