//go:build linux

package filesystem

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/agent/account"
	"github.com/agent-sandbox/abx/internal/e2b"
)

// noise is n bytes that do not compress, the same for each n.
func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

// form is a multipart body of the parts name -> content, in pairs.
func form(t *testing.T, pairs ...string) (body *bytes.Buffer, contentType string) {
	t.Helper()
	body = &bytes.Buffer{}
	m := multipart.NewWriter(body)
	for i := 0; i < len(pairs); i += 2 {
		h := textproto.MIMEHeader{"Content-Disposition": {`form-data; name="file"; filename="` + pairs[i] + `"`}}
		w, err := m.CreatePart(h)
		must(t, err)
		io.WriteString(w, pairs[i+1])
	}
	must(t, m.Close())
	return body, m.FormDataContentType()
}

// Case 41.
func TestSizes(t *testing.T) {
	b := newBench(t)
	sizes := []int{0, 1, 18 << 10, 19 << 10, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1 << 20, 8<<20 - 1, 8 << 20, 8<<20 + 1, 100 << 20}
	if testing.Short() {
		sizes = sizes[:len(sizes)-1]
	}
	for _, n := range sizes {
		content := noise(n)
		want := sha256.Sum256(content)
		b.put(t, "octets", content)
		body, kind := form(t, "parts", string(content))
		if resp, got := b.do(t, "POST", "/files", body, "Content-Type", kind); resp.StatusCode != 200 {
			t.Fatalf("%d bytes as multipart: %s %s", n, resp.Status, got)
		}
		for _, name := range []string{"octets", "parts"} {
			resp, got := b.get(t, name)
			if resp.StatusCode != 200 || resp.ContentLength != int64(n) || resp.Header.Get("Content-Length") != strconv.Itoa(n) || sha256.Sum256(got) != want {
				t.Errorf("%s of %d bytes: %s, Content-Length %q, %d bytes, or another hash", name, n, resp.Status, resp.Header.Get("Content-Length"), len(got))
			}
		}
	}
}

// Case 41, above a limit.
func TestMaxFile(t *testing.T) {
	b := newBench(t, func(o *Options) { o.MaxFile = 1000 })
	b.put(t, "f", noise(1000))
	resp, got := b.do(t, "POST", "/files?path=f", bytes.NewReader(noise(1001)), "Content-Type", "application/octet-stream")
	wantError(t, resp, got, http.StatusRequestEntityTooLarge, "1000 bytes")
	if read(t, b.real("home/user/f")) != string(noise(1000)) {
		t.Error("a refusal known beforehand must leave the old content")
	}
	body, kind := form(t, "new", string(noise(1001)))
	resp, got = b.do(t, "POST", "/files", body, "Content-Type", kind)
	wantError(t, resp, got, http.StatusRequestEntityTooLarge, "1000 bytes")
	if _, err := os.Stat(b.real("home/user/new")); err == nil {
		t.Error("half a new file was left")
	}
}

// Case 42.
func TestAllByteValues(t *testing.T) {
	b := newBench(t)
	var all []byte
	for i := range 256 {
		all = append(all, byte(i), byte(255-i))
	}
	body, kind := form(t, "parts", string(all))
	b.do(t, "POST", "/files", body, "Content-Type", kind)
	b.put(t, "octets", all)
	for _, name := range []string{"octets", "parts"} {
		if _, got := b.get(t, name); !bytes.Equal(got, all) {
			t.Errorf("%s: bytes differ", name)
		}
	}
}

// Cases 44 and 45.
func TestNames(t *testing.T) {
	b := newBench(t)
	long := strings.Repeat("文", 85)
	for _, name := range []string{"a b.txt", "数据.csv", "\u00e9", "e\u0301", "'q'.txt", `"q"`, `b\s`, "-rf", "new\nline", long, "文件.txt", "%41", "+", "#?&=;", "..."} {
		content := "content of " + name
		infos := b.put(t, "/tmp/n/"+name, []byte(content))
		if want := []e2b.FileInfo{{Path: "/tmp/n/" + name, Name: name, Type: "file"}}; !cmp.Equal(want, infos) {
			t.Errorf("%q: answer %v", clip(name), infos)
		}
		resp, got := b.get(t, "/tmp/n/"+name)
		_, params, err := mime.ParseMediaType(resp.Header.Get("Content-Disposition"))
		if resp.StatusCode != 200 || string(got) != content || err != nil || params["filename"] != name {
			t.Errorf("%q: %s, %q, Content-Disposition %q", clip(name), resp.Status, got, resp.Header.Get("Content-Disposition"))
		}
		if e, err := b.stat(t, "/tmp/n/"+name); err != nil || e.Name != name {
			t.Errorf("%q: Stat %v, %v", clip(name), e, err)
		}
		must(t, b.rm(t, "/tmp/n/"+name))
		if _, err := os.Lstat(b.real("/tmp/n/" + name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%q is still there: %v", clip(name), err)
		}
	}
	resp, got := b.do(t, "POST", "/files?"+query("/tmp/"+strings.Repeat("x", 256)), strings.NewReader("x"), "Content-Type", "application/octet-stream")
	wantError(t, resp, got, http.StatusBadRequest, "255 bytes")
}

// Case 46.
func TestParentsAreMade(t *testing.T) {
	b := newBench(t)
	b.put(t, "/tmp/x/y/z.txt", []byte("z"))
	for p, mode := range map[string]os.FileMode{"tmp/x": 0o755, "tmp/x/y": 0o755, "tmp/x/y/z.txt": 0o644} {
		b.wantOwned(t, p, mode)
	}
	resp, got := b.do(t, "POST", "/files?"+query("/tmp/x/y/z.txt/w"), strings.NewReader("x"), "Content-Type", "application/octet-stream")
	wantError(t, resp, got, http.StatusBadRequest, "not a directory")
}

func (b *bench) wantOwned(t *testing.T, p string, mode os.FileMode) {
	t.Helper()
	st, err := os.Lstat(b.real(p))
	must(t, err)
	sys := st.Sys().(*syscall.Stat_t)
	if st.Mode().Perm() != mode || int(sys.Uid) != b.uid || int(sys.Gid) != b.gid {
		t.Errorf("%s: mode %v, owner %d:%d; want %v, %d:%d", p, st.Mode(), sys.Uid, sys.Gid, mode, b.uid, b.gid)
	}
}

func TestSingleGivesNothingAway(t *testing.T) {
	b := newBenchFor(t, account.UserID, func(o *Options) { o.Book.Single = true })
	must(t, os.Chown(b.real("tmp"), os.Geteuid(), -1))
	b.put(t, "/tmp/x/f", nil)
	for _, p := range []string{"tmp/x", "tmp/x/f"} {
		st, err := os.Lstat(b.real(p))
		must(t, err)
		if got := int(st.Sys().(*syscall.Stat_t).Uid); got != os.Geteuid() {
			t.Errorf("%s belongs to %d", p, got)
		}
	}
}

func TestOverwriteKeepsModeAndTruncates(t *testing.T) {
	b := newBench(t)
	write(t, b.real("tmp/f"), "long content")
	must(t, os.Chmod(b.real("tmp/f"), 0o640))
	b.put(t, "/tmp/f", []byte("s"))
	if got := read(t, b.real("tmp/f")); got != "s" {
		t.Errorf("content %q", got)
	}
	b.wantOwned(t, "tmp/f", 0o640)
}

func TestManyFilesInOneForm(t *testing.T) {
	b := newBench(t)
	body, kind := form(t, "/tmp/a/1", "one", "b/2", "two", "~/3", "three", "q%22%0A", "four")
	resp, got := b.do(t, "POST", "/files", body, "Content-Type", kind)
	if resp.StatusCode != 200 {
		t.Fatalf("%s %s", resp.Status, got)
	}
	for p, want := range map[string]string{"tmp/a/1": "one", "home/user/b/2": "two", "home/user/3": "three", "home/user/q\"\n": "four"} {
		if got := read(t, b.real(p)); got != want {
			t.Errorf("%s = %q, want %q", p, got, want)
		}
	}
}

func TestBadUploads(t *testing.T) {
	b := newBench(t)
	must(t, os.Mkdir(b.real("tmp/d"), 0o755))
	twice, twiceKind := form(t, "f", "1", "./f", "2")
	unnamed, unnamedKind := form(t, "", "1")
	pathTwice, pathTwiceKind := form(t, "f", "1", "g", "2")
	cut, cutKind := form(t, "cut", "1234567890")
	cut.Truncate(cut.Len() - 40)
	empty, emptyKind := form(t)
	octets := "application/octet-stream"
	for _, tt := range []struct {
		name, query, kind string
		body              io.Reader
		header            []string
		status            int
		text              string
	}{
		{"twice", "", twiceKind, twice, nil, 400, "twice"},
		{"twice by query", "path=z", pathTwiceKind, pathTwice, nil, 400, "twice"},
		{"no name", "", unnamedKind, unnamed, nil, 400, "no file name"},
		{"no part", "", emptyKind, empty, nil, 400, ""},
		{"cut", "", cutKind, cut, nil, 400, "ends early"},
		{"directory", "path=/tmp/d", octets, strings.NewReader("x"), nil, 400, "is a directory"},
		{"root", "path=/", octets, strings.NewReader("x"), nil, 400, "is a directory"},
		{"no path", "", octets, strings.NewReader("x"), nil, 400, "path"},
		{"type", "path=f", "text/plain", strings.NewReader("x"), nil, 400, "Content-Type"},
		{"no boundary", "", "multipart/form-data", strings.NewReader("x"), nil, 400, "Content-Type"},
		{"coding", "path=f", octets, strings.NewReader("x"), []string{"Content-Encoding", "br"}, 400, "gzip"},
		{"not gzip", "path=f", octets, strings.NewReader("x"), []string{"Content-Encoding", "gzip"}, 400, "gzip"},
		{"NUL", "path=%00", octets, strings.NewReader("x"), nil, 400, "NUL"},
		{"tilde", "path=~root/x", octets, strings.NewReader("x"), nil, 400, "~"},
		{"query", "path=%zz", octets, strings.NewReader("x"), nil, 400, "query"},
		{"user", "path=f&username=nobody", octets, strings.NewReader("x"), nil, 401, "unknown user"},
		{"metadata", "path=f", octets, strings.NewReader("x"), []string{"X-Metadata-K", "\x80"}, 400, "printable"},
	} {
		resp, got := b.do(t, "POST", "/files?"+tt.query, tt.body, append([]string{"Content-Type", tt.kind}, tt.header...)...)
		t.Run(tt.name, func(t *testing.T) { wantError(t, resp, got, tt.status, tt.text) })
	}
	if _, err := os.Stat(b.real("home/user/cut")); err == nil {
		t.Error("a cut upload left its file")
	}
}

func TestGzipUpload(t *testing.T) {
	b := newBench(t)
	content := noise(1 << 20)
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write(content)
	must(t, w.Close())
	b.put(t, "f", z.Bytes(), "Content-Encoding", "gzip")
	if read(t, b.real("home/user/f")) != string(content) {
		t.Error("content differs")
	}
}

func TestGzipDownload(t *testing.T) {
	b := newBench(t)
	content := strings.Repeat("compressible ", 10_000)
	b.put(t, "f", []byte(content))
	b.put(t, "empty", nil)
	resp, got := b.get(t, "f", "Accept-Encoding", "gzip, deflate")
	if resp.Header.Get("Content-Encoding") != "gzip" || resp.Header.Get("Vary") != "Accept-Encoding" || len(got) > len(content)/10 {
		t.Fatalf("header %v, %d bytes", resp.Header, len(got))
	}
	z, err := gzip.NewReader(bytes.NewReader(got))
	must(t, err)
	if plain, err := io.ReadAll(z); err != nil || string(plain) != content {
		t.Errorf("content differs (%v)", err)
	}
	for _, tt := range []struct {
		path   string
		header []string
		status int
		coding string
		length int64
	}{
		{"f", []string{"Accept-Encoding", "identity"}, 200, "", int64(len(content))},
		{"f", []string{"Accept-Encoding", "gzip", "Range", "bytes=0-9"}, 206, "", 10},
		{"f", []string{"Accept-Encoding", "gzip, identity;q=0", "Range", "bytes=0-9"}, 200, "gzip", -1},
		{"f", []string{"Accept-Encoding", "br, identity;q=0"}, 406, "", -1},
		{"f", []string{"Accept-Encoding", "gzip", "If-Modified-Since", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)}, 304, "", -1},
		{"empty", []string{"Accept-Encoding", "gzip"}, 200, "", 0},
	} {
		resp, got := b.get(t, tt.path, tt.header...)
		if resp.StatusCode != tt.status || resp.Header.Get("Content-Encoding") != tt.coding || tt.length >= 0 && resp.ContentLength != tt.length {
			t.Errorf("%s %v: %s %v %.80q", tt.path, tt.header, resp.Status, resp.Header, got)
		}
		if resp.Header.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%s %v: no Vary", tt.path, tt.header)
		}
	}
}

func TestRangesAndHead(t *testing.T) {
	b := newBench(t)
	b.put(t, "f.json", []byte(`0123456789`))
	for _, tt := range []struct{ header, body, contentRange string }{
		{"bytes=2-4", "234", "bytes 2-4/10"},
		{"bytes=7-", "789", "bytes 7-9/10"},
		{"bytes=-2", "89", "bytes 8-9/10"},
	} {
		resp, got := b.get(t, "f.json", "Range", tt.header)
		if resp.StatusCode != 206 || string(got) != tt.body || resp.Header.Get("Content-Range") != tt.contentRange {
			t.Errorf("%s: %s %q %v", tt.header, resp.Status, got, resp.Header)
		}
	}
	resp, got := b.get(t, "f.json", "Range", "bytes=10-")
	wantError(t, resp, got, 416, "Range")
	resp, got = b.do(t, "HEAD", "/files?path=f.json", nil)
	if resp.StatusCode != 200 || len(got) != 0 || resp.ContentLength != 10 || resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get("Last-Modified") == "" {
		t.Errorf("HEAD: %s %v %q", resp.Status, resp.Header, got)
	}
	resp, _ = b.do(t, "HEAD", "/files?path=f.json", nil, "Accept-Encoding", "gzip")
	if resp.StatusCode != 200 || resp.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("HEAD with gzip: %s %v", resp.Status, resp.Header)
	}
	resp, _ = b.get(t, "f.json", "If-Unmodified-Since", "Mon, 01 Jan 2001 00:00:00 GMT")
	if resp.StatusCode != 412 {
		t.Errorf("If-Unmodified-Since: %s", resp.Status)
	}
}

func TestBadDownloads(t *testing.T) {
	b := newBench(t)
	b.put(t, "f", []byte("x"))
	for _, tt := range []struct {
		method, query string
		status        int
		text          string
	}{
		{"GET", "path=none", 404, "does not exist"},
		{"GET", "path=f/none", 400, "not a directory"},
		{"GET", "path=/tmp", 400, "is a directory"},
		{"GET", "", 400, "is a directory"},
		{"GET", "path=f&username=nobody", 401, "unknown user"},
		{"GET", "path=f&username=990", 401, "unknown user"},
		{"GET", "path=" + strings.Repeat("a/", 3000), 400, "longer"},
		{"PUT", "path=f", 405, "PUT"},
		{"DELETE", "path=f", 405, "DELETE"},
	} {
		resp, got := b.do(t, tt.method, "/files?"+tt.query, nil)
		wantError(t, resp, got, tt.status, tt.text)
	}
	resp, got := b.do(t, "GET", "/files/compose", nil)
	wantError(t, resp, got, 405, "GET")
}

func TestSignatureIsAsked(t *testing.T) {
	var asked []string
	b := newBench(t, func(o *Options) {
		o.Signature = func(r *http.Request, op string) error {
			asked = append(asked, op)
			return errors.New("invalid signature")
		}
	})
	for _, tt := range []struct{ method, path string }{{"GET", "/files?path=f"}, {"HEAD", "/files?path=f"}, {"POST", "/files?path=f"}, {"POST", "/files/compose"}} {
		resp, got := b.do(t, tt.method, tt.path, nil)
		if tt.method != "HEAD" {
			wantError(t, resp, got, 401, "invalid signature")
		}
	}
	if diff := cmp.Diff([]string{OpRead, OpRead, OpWrite, OpWrite}, asked); diff != "" {
		t.Error(diff)
	}
}

func TestMetadata(t *testing.T) {
	b := newBench(t)
	probe := filepath.Join(b.root, "probe")
	write(t, probe, "")
	keeps := syscall.Setxattr(probe, "user.e2b.x", []byte("y"), 0) == nil
	want := func(m map[string]string) map[string]string {
		if !keeps {
			return nil
		}
		return m
	}
	infos := b.put(t, "f", []byte("x"), "X-Metadata-Author", "me", "X-Metadata-Kind", "k")
	if diff := cmp.Diff(want(map[string]string{"author": "me", "kind": "k"}), infos[0].Metadata); diff != "" {
		t.Error(diff)
	}
	e, err := b.stat(t, "f")
	must(t, err)
	if diff := cmp.Diff(want(map[string]string{"author": "me", "kind": "k"}), e.Metadata); diff != "" {
		t.Error(diff)
	}
	b.put(t, "f", []byte("x"), "X-Metadata-Kind", "other")
	e, err = b.stat(t, "f")
	must(t, err)
	if diff := cmp.Diff(want(map[string]string{"kind": "other"}), e.Metadata); diff != "" {
		t.Errorf("an upload replaces the set: %s", diff)
	}
}

// zeros reads as n zero bytes.
func zeros(n int64) io.Reader { return io.LimitReader(zero{}, n) }

type zero struct{}

func (zero) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// Case 49 at this level: client and server together allocate next to nothing.
func TestMemoryStaysConstant(t *testing.T) {
	b := newBench(t)
	up, down := int64(256<<20), int64(2<<30)
	if testing.Short() {
		up, down = 64<<20, 256<<20
	}
	head := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"m\"\r\n\r\n"
	multi := io.MultiReader(strings.NewReader(head), zeros(up), strings.NewReader("\r\n--b--\r\n"))
	must(t, os.WriteFile(b.real("tmp/sparse"), nil, 0o644))
	must(t, os.Truncate(b.real("tmp/sparse"), down))
	for _, tt := range []struct {
		name string
		run  func() error
	}{
		{"octet-stream", func() error { return b.stream("POST", "path=o", zeros(up), "application/octet-stream", -1) }},
		{"multipart", func() error { return b.stream("POST", "", multi, "multipart/form-data; boundary=b", -1) }},
		{"download", func() error { return b.stream("GET", "path=/tmp/sparse", nil, "", down) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			must(t, tt.run())
			runtime.ReadMemStats(&after)
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 8<<20 {
				t.Errorf("%d bytes were allocated", grown)
			}
		})
	}
	for _, name := range []string{"o", "m"} {
		if st, err := os.Stat(b.real("home/user/" + name)); err != nil || st.Size() != up {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
}

// stream sends body and wants length bytes of answer, when it is not negative.
func (b *bench) stream(method, query string, body io.Reader, kind string, length int64) error {
	r, err := http.NewRequest(method, b.url+"/files?"+query, body)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Accept-Encoding", "identity")
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (resp.StatusCode != 200 || length >= 0 && n != length) {
		err = fmt.Errorf("%s, %d bytes", resp.Status, n)
	}
	return err
}
