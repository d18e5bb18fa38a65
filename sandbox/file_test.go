package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/e2b/filesystem"
	"github.com/agent-sandbox/abx/sandbox"
)

func TestReadWrite(t *testing.T) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	p := newPlatform()
	sb, ctx := p.sandbox(t), t.Context()
	for _, path := range []string{"/a b.txt", "/数据.csv", "rel", "/'q'", "-rf", "/new\nline", "/a+b&c=d?e#f%2f", "/" + strings.Repeat("x", 255)} {
		for _, data := range [][]byte{{}, every, bytes.Repeat(every, 8<<20>>8)} {
			if err := sb.Files.Write(ctx, path, data, sandbox.User("root")); err != nil {
				t.Fatal(err)
			}
			r := p.last(t, "/files")
			q, _ := url.ParseQuery(r.Query)
			if r.Length != int64(len(data)) || q.Get("username") != "root" || r.Header.Get("Content-Type") != "application/octet-stream" {
				t.Errorf("%q: length %d, query %v, headers %v", path, r.Length, q, r.Header)
			}
			got, err := sb.Files.Read(ctx, path)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%q: read %d bytes, %v; want %d", path, len(got), err, len(data))
			}
		}
	}
	_, err := sb.Files.Read(ctx, "/missing")
	if wantOnly(t, err, sandbox.ErrNotFound); err == nil || !strings.Contains(err.Error(), `read "/missing"`) {
		t.Error(err)
	}
}

func TestRead(t *testing.T) {
	p := newPlatform()
	p.files["/f"] = []byte("0123456789")
	sb := p.sandbox(t)
	whole := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "0123456789") })
	sized := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "0123456789")
	})
	for name, h := range map[string]http.Handler{"ranges": nil, "no ranges": whole, "no ranges, length": sized} {
		p.agent["GET /files"] = h
		for _, tt := range []struct {
			offset, count int64
			want          string
		}{{0, 0, "0123456789"}, {3, 0, "3456789"}, {0, 4, "0123"}, {3, 4, "3456"}, {8, 100, "89"}, {10, 0, ""}, {99, 5, ""}, {1, 1<<63 - 1, "123456789"}} {
			got, err := sb.Files.Read(t.Context(), "/f", sandbox.Range(tt.offset, tt.count))
			if err != nil || string(got) != tt.want {
				t.Errorf("%s: %d+%d: %q, %v", name, tt.offset, tt.count, got, err)
			}
		}
	}
	p.agent["GET /files"] = nil
	for _, opts := range [][]sandbox.FileOption{nil, {sandbox.Range(3, 4)}, {sandbox.Range(99, 4)}} {
		r, err := sb.Files.ReadStream(t.Context(), "/f", opts...)
		if err != nil {
			t.Fatal(err)
		}
		if r.Size != 10 {
			t.Errorf("size %d with %d options", r.Size, len(opts))
		}
		if err := errors.Join(r.Close(), r.Close()); err != nil {
			t.Error(err)
		}
	}
}

// A server that promises more than it sends, or sends without end.
func TestReadFromLiar(t *testing.T) {
	p := newPlatform()
	sb := p.sandbox(t)
	for _, tt := range []struct {
		name, length string
		want         error
	}{
		{"short", "100", sandbox.ErrLost},
		{"huge", "999999999999", sandbox.ErrInvalid},
		{"cut", "", sandbox.ErrLost},
	} {
		p.agent["GET /files"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if tt.length != "" {
				w.Header().Set("Content-Length", tt.length)
			}
			_, _ = io.WriteString(w, "part")
			panic(http.ErrAbortHandler)
		})
		_, err := sb.Files.Read(t.Context(), "/f")
		t.Log(tt.name)
		wantOnly(t, err, tt.want)
	}
}

func TestWriteStream(t *testing.T) {
	p := newPlatform()
	sb := p.sandbox(t)
	data := strings.Repeat("0123456789", 100_000)
	for name, r := range map[string]io.Reader{
		"known": strings.NewReader(data), "unknown": iotest.HalfReader(strings.NewReader(data)), "buffer": bytes.NewBufferString(data),
	} {
		if err := sb.Files.WriteStream(t.Context(), "/f", r); err != nil || string(p.files["/f"]) != data {
			t.Errorf("%s: %v, %d bytes", name, err, len(p.files["/f"]))
		}
		if n := p.last(t, "/files").Length; name == "unknown" && n != -1 || name != "unknown" && n != int64(len(data)) {
			t.Errorf("%s: length %d", name, n)
		}
	}
	broken := errors.New("disk on fire")
	if err := sb.Files.WriteStream(t.Context(), "/f", iotest.ErrReader(broken)); err == nil {
		t.Error("no error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	pr, pw := io.Pipe()
	defer pw.Close()
	go func() {
		_, _ = pw.Write([]byte("x"))
		cancel()
	}()
	wantOnly(t, sb.Files.WriteStream(ctx, "/f", pr), context.Canceled)
}

func TestNoSpace(t *testing.T) {
	p := newPlatform()
	p.agent["POST /files"] = failing(http.StatusInsufficientStorage, "not enough disk space")
	wantOnly(t, p.sandbox(t).Files.Write(t.Context(), "/f", []byte("x")), sandbox.ErrCapacity)
}

func TestFolders(t *testing.T) {
	p := newPlatform()
	for _, name := range []string{"/a", "/b", "/c"} {
		p.files[name] = []byte(name)
	}
	for _, ours := range []bool{true, false} {
		p.ours = ours
		sb, ctx := p.sandbox(t), t.Context()
		l, err := sb.Files.List(ctx, "/", sandbox.Limit(2), sandbox.Depth(3))
		if err != nil || len(l.Entries) != 2 || l.Total != 3 {
			t.Errorf("ours %t: %+v, %v", ours, l, err)
		}
	}
	sb, ctx := p.sandbox(t), t.Context()
	e, err := sb.Files.Stat(ctx, "/a")
	want := &sandbox.Entry{Name: "a", Path: "/a", Type: sandbox.TypeFile, Size: 2, Mode: 0o644, Owner: "user"}
	if diff := cmp.Diff(want, e); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for path, want := range map[string]bool{"/a": true, "/x": false} {
		if got, err := sb.Files.Exists(ctx, path); got != want || err != nil {
			t.Errorf("%s exists: %t, %v", path, got, err)
		}
	}
	for name, err := range map[string]error{
		"make": sb.Files.MakeDir(ctx, "/d"), "make again": sb.Files.MakeDir(ctx, "/exists"),
		"rename": sb.Files.Rename(ctx, "/a", "/z"), "remove": sb.Files.Remove(ctx, "/z"),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantOnly(t, sb.Files.Rename(ctx, "/a", "/b"), sandbox.ErrNotFound)
	for name, err := range map[string]error{
		"empty path":   sb.Files.Remove(ctx, ""),
		"NUL":          sb.Files.Remove(ctx, "a\x00"),
		"empty target": sb.Files.Rename(ctx, "/b", ""),
		"other option": sb.Files.MakeDir(ctx, "/d", sandbox.Depth(1)),
		"negative":     func() error { _, err := sb.Files.List(ctx, "/", sandbox.Limit(-1)); return err }(),
	} {
		if !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTooLargeAnswer(t *testing.T) {
	p := newPlatform()
	p.agent["POST /filesystem.Filesystem/ListDir"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"entries":[{"name":"`+strings.Repeat("x", 17<<20)+`"}]}`)
	})
	_, err := p.sandbox(t).Files.List(t.Context(), "/")
	wantOnly(t, err, nil)
	if err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Error(err)
	}
}

func TestWatch(t *testing.T) {
	p := newPlatform()
	p.watch = []*filesystem.FilesystemEvent{
		{Name: "a", Type: filesystem.EventType_EVENT_TYPE_CREATE, Entry: &filesystem.EntryInfo{Name: "a", Path: "/d/a", Type: filesystem.FileType_FILE_TYPE_DIRECTORY}},
		{Name: "a", Type: filesystem.EventType_EVENT_TYPE_REMOVE},
	}
	sb := p.sandbox(t)
	w, err := sb.Files.Watch(t.Context(), "/d", sandbox.Recursive(), sandbox.WithEntries())
	if err != nil {
		t.Fatal(err)
	}
	want := []sandbox.Event{
		{Name: "a", Type: sandbox.EventCreate, Entry: &sandbox.Entry{Name: "a", Path: "/d/a", Type: sandbox.TypeDir}},
		{Name: "a", Type: sandbox.EventRemove},
	}
	for _, want := range want {
		got, err := w.Next()
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Error(diff, err)
		}
	}
	go w.Close()
	_, err = w.Next()
	wantOnly(t, err, context.Canceled)
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	_, err = sb.Files.Watch(t.Context(), "/missing")
	wantOnly(t, err, sandbox.ErrNotFound)
	ctx, cancel := context.WithCancel(t.Context())
	if w, err = sb.Files.Watch(ctx, "/d"); err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cancel()
	for err = nil; err == nil; {
		_, err = w.Next()
	}
	wantOnly(t, err, context.Canceled)
}

func TestWatchLost(t *testing.T) {
	p := newPlatform()
	p.agent["POST /filesystem.Filesystem/WatchDir"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/connect+json")
		frame := `{"start":{}}`
		_, _ = io.WriteString(w, "\x00\x00\x00\x00"+string(rune(len(frame)))+frame)
		panic(http.ErrAbortHandler)
	})
	w, err := p.sandbox(t).Files.Watch(t.Context(), "/d")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	_, err = w.Next()
	wantOnly(t, err, sandbox.ErrLost)
}

func TestSignedURLs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlatform()
		sb := p.sandbox(t)
		got, err := sb.Files.DownloadURL("hello.txt", sandbox.User("user"))
		want := "https://49983-" + testID + ".sbx.example.test/files?path=hello.txt&signature=v1_gUtH%2Fs9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E&username=user"
		if got != want || err != nil {
			t.Errorf("%s, %v\nwant %s", got, err, want)
		}
		got, err = sb.Files.UploadURL("/a b", sandbox.Expires(1500*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(got)
		if err != nil {
			t.Fatal(err)
		}
		expires := time.Now().Unix() + 2
		wantQuery := url.Values{
			"path": {"/a b"}, "signature_expiration": {strconv.FormatInt(expires, 10)},
			"signature": {e2b.Sign("/a b", "write", "", testToken, expires)},
		}
		if diff := cmp.Diff(wantQuery, u.Query()); diff != "" {
			t.Error(diff)
		}
		p.token = ""
		if got, _ = p.sandbox(t).Files.DownloadURL("/f"); strings.Contains(got, "signature") {
			t.Errorf("signed without a token: %s", got)
		}
		one := p.sandbox(t, func(c *sandbox.Config) { c.SandboxURL = "http://127.0.0.1:3000/base/" })
		if got, _ := one.Files.DownloadURL("/f"); got != "http://127.0.0.1:3000/base/files?path=%2Ff" {
			t.Error(got)
		}
	})
}

func BenchmarkWrite8MiB(b *testing.B) {
	p := newPlatform()
	p.agent["POST /files"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		reply(w, http.StatusOK, nil)
	})
	sb, data := p.sandbox(b), make([]byte, 8<<20)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if err := sb.Files.Write(b.Context(), "/f", data); err != nil {
			b.Fatal(err)
		}
		p.requests = p.requests[:0]
	}
}
