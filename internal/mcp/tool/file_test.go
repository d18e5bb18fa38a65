package tool

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/mcp/mcptest"
)

var tinyPNG = append([]byte("\x89PNG\r\n\x1a\n"), 0, 0, 0, 13, 'I', 'H', 'D', 'R')

// with starts a set whose default sandbox holds these files.
func with(t *testing.T, o Options, files map[string]string) *Set {
	t.Helper()
	p := &mcptest.Platform{}
	s := start(t, p, o)
	good(t, s, "create_sandbox", `{}`)
	for name, data := range files {
		p.Sandbox(p.Alive()[0]).Put(name, []byte(data))
	}
	return s
}

func TestReadFile(t *testing.T) {
	latin := "caf\xe9"
	s := with(t, Options{}, map[string]string{
		"/app/a.txt": "héllo wörld", "/app/empty": "", "/app/latin": latin, "/app/utf16": "h\x00i\x00", "/app/p.png": string(tinyPNG),
		"/app/bin": "\x00\x01\xff\xfe", "/app/elf": "\x7fELF\x02\xff", "/app/bom": "\uFEFFx", "/app/sjis": "\x83\x65\x83\x58\x83\x67",
		"/app/nul": "a\x00b",
	})
	for _, c := range []struct {
		args string
		want object
	}{
		{`{"path":"/app/a.txt"}`, object{"content": "héllo wörld", "encoding": "utf-8", "size": 13.}},
		{`{"path":"/app/empty"}`, object{"content": "", "encoding": "utf-8", "size": 0.}},
		{`{"path":"/app/bom"}`, object{"content": "\uFEFFx", "encoding": "utf-8", "size": 4.}},
		{`{"path":"/app/nul"}`, object{"content": "a\x00b", "encoding": "utf-8", "size": 3.}},
		{`{"path":"/app/latin","encoding":"latin1"}`, object{"content": "café", "encoding": "windows-1252", "size": 4.}},
		{`{"path":"/app/utf16","encoding":"UTF-16LE"}`, object{"content": "hi", "encoding": "utf-16le", "size": 4.}},
		{`{"path":"/app/sjis","encoding":"shift_jis"}`, object{"content": "テスト", "encoding": "shift_jis", "size": 6.}},
		{`{"path":"/app/bin","encoding":"base64"}`, object{"content": "AAH//g==", "encoding": "base64", "size": 4.}},
		{`{"path":"/app/p.png"}`, object{"content": base64.StdEncoding.EncodeToString(tinyPNG), "encoding": "base64", "mime_type": "image/png", "size": 16.}},
		{`{"path":"/app/p.png","encoding":"base64"}`, object{"content": base64.StdEncoding.EncodeToString(tinyPNG), "encoding": "base64", "size": 16.}},
		{`{"path":"/app/a.txt","offset":0,"limit":4}`, object{"content": "hél", "encoding": "utf-8", "size": 13., "offset": 0., "next_offset": 4., "notes": any(nil)}},
		{`{"path":"/app/a.txt","limit":2}`, object{"content": "h", "encoding": "utf-8", "size": 13., "offset": 0., "next_offset": 1., "notes": any(nil)}},
		{`{"path":"/app/a.txt","offset":2}`, object{"content": "llo wörld", "encoding": "utf-8", "size": 13., "offset": 3.}},
		{`{"path":"/app/a.txt","offset":99}`, object{"content": "", "encoding": "utf-8", "offset": 99., "notes": []any{"Nothing is left at offset 99: the file has 13 bytes."}}},
		{`{"path":"/app/a.txt","offset":13}`, object{"content": "", "notes": []any{"Nothing is left at offset 13: the file has 13 bytes."}}},
		{`{"path":"/app/empty","offset":5}`, object{"content": "", "notes": []any{"Nothing is left at offset 5: the file has 0 bytes."}}},
		{`{"path":"/app/empty","offset":0}`, object{"content": ""}},
	} {
		r := good(t, s, "read_file", c.args)
		for k, v := range c.want {
			if k == "notes" && v == nil {
				v = r.Data["notes"]
			}
			if d := cmp.Diff(v, r.Data[k]); d != "" {
				t.Errorf("%s: %s (-want +got):\n%s", c.args, k, d)
			}
		}
	}
	for args, want := range map[string][]string{
		`{"path":"/app/bin"}`:                        {"is not valid utf-8", "binary data", "4 bytes", `"base64"`},
		`{"path":"/app/elf"}`:                        {"ELF", `"base64"`},
		`{"path":"/app/latin","encoding":"utf-8"}`:   {"is not valid utf-8", `"base64"`},
		`{"path":"/app/p.png","encoding":"utf-8"}`:   {"image/png", "Leave encoding, offset and limit out to see the picture", `"base64"`},
		`{"path":"/app/p.png","encoding":"UTF8"}`:    {"is not valid utf8", "Leave encoding"},
		`{"path":"/app/p.png","offset":0}`:           {"image/png", "Leave encoding, offset and limit out"},
		`{"path":"/app/bin","encoding":"shift_jis"}`: {"is not valid shift_jis", `"base64"`},
		`{"path":"/app"}`:                            {"is a folder", "list_files"},
		`{"path":"/app/none"}`:                       {`no file "/app/none"`, "list_files"},
	} {
		r := call(t, s, "read_file", args)
		if !r.IsError {
			t.Errorf("%s: accepted", args)
		}
		for _, w := range want {
			if !strings.Contains(r.text(), w) {
				t.Errorf("%s: %q is not in %q", args, w, r.text())
			}
		}
	}
}

func TestReadPictures(t *testing.T) {
	s := with(t, Options{Limits: Limits{Image: 20}}, map[string]string{
		"/app/a.png": string(tinyPNG), "/app/big.png": string(tinyPNG) + "xxxxxxxxxx", "/app/a.gif": "GIF89a", "/app/a.jpg": "\xff\xd8\xff\xe0", "/app/a.webp": "RIFF\x00\x00\x00\x00WEBPVP",
	})
	for name, kind := range map[string]string{"a.png": "image/png", "a.gif": "image/gif", "a.jpg": "image/jpeg", "a.webp": "image/webp"} {
		r := good(t, s, "read_file", object{"path": "/app/" + name})
		if len(r.Content) != 2 || r.Content[1].Type != "image" || r.Content[1].MIMEType != kind || r.Data["mime_type"] != kind || r.Content[1].Data != r.Data["content"] {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := call(t, s, "read_file", object{"path": "/app/big.png"}); !r.IsError || !strings.Contains(r.text(), "at most 20 bytes") {
		t.Errorf("large picture: %s", r.text())
	}
}

func TestReadLargeFiles(t *testing.T) {
	data := strings.Repeat("0123456789", 100)
	s := with(t, Options{Limits: Limits{Read: 400, ReadText: 100}}, map[string]string{"/app/big": data, "/app/mid": data[:300]})
	r := call(t, s, "read_file", object{"path": "/app/big"})
	for _, w := range []string{"1,000 bytes", "at most 400", "offset", "limit"} {
		if !strings.Contains(r.text(), w) {
			t.Errorf("%q is not in %q", w, r.text())
		}
	}
	// Following next_offset gives the whole.
	got, offset := "", 0.
	for range 10 {
		r := good(t, s, "read_file", object{"path": "/app/big", "offset": offset, "limit": 300})
		got += r.Data["content"].(string)
		next, more := r.Data["next_offset"].(float64)
		if !more {
			break
		}
		offset = next
	}
	if got != data {
		t.Errorf("parts give %d bytes, want %d", len(got), len(data))
	}
	r = good(t, s, "read_file", object{"path": "/app/mid"})
	if r.Content[0].Text != data[:100] || r.Data["content"] != data[:300] || !strings.Contains(r.text(), "structuredContent has all") {
		t.Errorf("text of %d bytes: %s", len(r.Content[0].Text), r.text())
	}
	r = callWith(t, s, "read_file", object{"path": "/app/mid"}, Request{TextOnly: true})
	if r.Content[0].Text != data[:300] {
		t.Errorf("a client without structured content gets %d bytes", len(r.Content[0].Text))
	}
}

func TestWriteFile(t *testing.T) {
	p := &mcptest.Platform{}
	s := start(t, p, Options{Limits: Limits{Write: 1000}})
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, c := range []struct {
		args object
		want []byte
	}{
		{object{"path": "/app/x/y/z.txt", "content": "a\r\nb\u0000\U0001F600"}, []byte("a\r\nb\x00\U0001F600")},
		{object{"path": "/app/empty", "content": ""}, []byte{}},
		{object{"path": "/app/数据 é.csv", "content": "x"}, []byte("x")},
		{object{"path": "/app/all", "content": base64.StdEncoding.EncodeToString(all), "encoding": "base64"}, all},
		{object{"path": "/app/url", "content": base64.RawURLEncoding.EncodeToString(all), "encoding": "base64"}, all},
		{object{"path": "/app/lines", "content": "AAEC\nAwQ=\n", "encoding": "base64"}, []byte{0, 1, 2, 3, 4}},
		{object{"path": "/app/latin", "content": "café", "encoding": "latin1"}, []byte("caf\xe9")},
	} {
		r := good(t, s, "write_file", c.args)
		name := c.args["path"].(string)
		if got := p.Sandbox(p.Alive()[0]).Get(name); !bytes.Equal(got, c.want) || got == nil {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		if r.Data["success"] != true || r.Data["bytes_written"] != float64(len(c.want)) {
			t.Errorf("%s: %v", name, r.Data)
		}
	}
	for args, want := range map[string]string{
		`{"path":"/app","content":"x"}`:                         "is a folder",
		fmt.Sprintf(`{"path":"/app/b","content":"%01001d"}`, 0): "at most 1,000",
	} {
		if r := call(t, s, "write_file", args); !r.IsError || !strings.Contains(r.text(), want) {
			t.Errorf("%.60s: %s", args, r.text())
		}
	}
}

func TestListFiles(t *testing.T) {
	files := map[string]string{"/app/b.txt": "12345", "/app/dir/x": "x", "/app/link": "-> /app/b.txt"}
	s := with(t, Options{Limits: Limits{Entries: 3}}, files)
	r := good(t, s, "list_files", `{}`)
	want := object{"path": "/app", "total": 3., "truncated": false, "files": []any{
		object{"name": "b.txt", "path": "/app/b.txt", "type": "file", "size": 5.},
		object{"name": "dir", "path": "/app/dir", "type": "directory", "size": 0.},
		object{"name": "link", "path": "/app/link", "type": "symlink", "size": 13., "target": "/app/b.txt"},
	}}
	if d := cmp.Diff(want, r.Data); d != "" {
		t.Errorf("result (-want +got):\n%s", d)
	}
	if want := "/app: 3 entries\nb.txt (5 bytes)\ndir/\nlink -> /app/b.txt"; r.text() != want {
		t.Errorf("text:\n%s\nwant:\n%s", r.text(), want)
	}
	r = good(t, s, "list_files", `{"path":"/"}`)
	if r.Data["truncated"] != false {
		t.Errorf("got %v", r.Data)
	}
	for args, want := range map[string]string{
		`{"path":"/nope"}`:      `no folder "/nope"`,
		`{"path":"/app/b.txt"}`: "read_file",
	} {
		if r := call(t, s, "list_files", args); !r.IsError || !strings.Contains(r.text(), want) {
			t.Errorf("%s: %s", args, r.text())
		}
	}
}

func TestListOfManyFiles(t *testing.T) {
	files := map[string]string{}
	for i := range 20_000 {
		files[fmt.Sprintf("/app/many/%05d", i)] = ""
	}
	r := good(t, with(t, Options{}, files), "list_files", `{"path":"/app/many"}`)
	if n := len(r.Data["files"].([]any)); n != 1000 || r.Data["total"] != 20_000. || r.Data["truncated"] != true {
		t.Errorf("%d files, total %v, truncated %v", n, r.Data["total"], r.Data["truncated"])
	}
	if !strings.Contains(r.text(), "Only 1000 of 20000") {
		t.Errorf("the cut is not told: %s", r.text()[len(r.text())-200:])
	}
}

// TestPathsThatCannotBeUsed holds that each answer names the path once, says
// why, and sends the model nowhere in vain.
func TestPathsThatCannotBeUsed(t *testing.T) {
	p := &mcptest.Platform{}
	s := start(t, p, Options{Place: embedded})
	good(t, s, "create_sandbox", `{}`)
	box := p.Sandbox(p.Alive()[0])
	box.Special("/tmp/fifo", `path "/tmp/fifo" is a FIFO, not a regular file; read or write it with a command in the sandbox`)
	box.Put("/tmp/loop", []byte("-> /tmp/loop"))
	box.Special("/tmp/loop", `path "/tmp/loop": goes through too many symbolic links`)
	box.Put("/tmp/dangling", []byte("-> /nope"))
	box.Missing("/tmp/dangling", `path "/tmp/dangling": does not exist`)
	box.Close("/usr/x", `path "/usr/x": is on a read-only file system`)
	box.Close("/etc/passwd", `path "/etc/passwd": permission denied for user "user"; use a path below /home/user, or make the request as root`)
	box.Close("/proc/self/environ", `path "/proc/self": links of procfs are not followed, they lead into running processes`)
	box.Close("/proc/1/fd", `the sandbox agent's own process is not shown`)
	for _, c := range []struct {
		tool, path, want string
	}{
		{"read_file", "/tmp/fifo", `"/tmp/fifo" is no file and no folder but a pipe, a socket or a device. Use run_command for it`},
		{"write_file", "/tmp/fifo", `"/tmp/fifo" is no file and no folder but a pipe, a socket or a device. Use run_command for it`},
		{"list_files", "/tmp/fifo", `"/tmp/fifo" is no file and no folder but a pipe, a socket or a device. Use run_command for it`},
		{"list_files", "/tmp/loop", "\"/tmp/loop\" is a link to \"/tmp/loop\", which is no file and no folder. See where it leads by run_command `readlink`."},
		{"read_file", "/tmp/dangling", `no file "/tmp/dangling": it is a link to "/nope", which is not there. Write its target`},
		{"list_files", "/tmp/dangling", `no folder "/tmp/dangling": it is a link to "/nope", which is not there. Write its target`},
		{"write_file", "/usr/x", `"/usr/x" may not be written: it is on a read-only file system. Write below /app, /home/user or /tmp.`},
		{"write_file", "/etc/passwd", `"/etc/passwd" may not be written: permission denied for user "user". Write below /app, /home/user or /tmp.`},
		{"read_file", "/etc/passwd", `"/etc/passwd" may not be read: permission denied for user "user". Look at its owner and mode`},
		{"list_files", "/etc/passwd", `"/etc/passwd" may not be listed: permission denied for user "user". Look at its owner and mode`},
		{"list_files", "/proc/1/fd", `"/proc/1/fd" may not be listed: the sandbox agent's own process is not shown. Use run_command for it`},
		{"read_file", "/proc/self/environ", `"/proc/self/environ" may not be read: path "/proc/self": links of procfs are not followed, they lead into running processes. Use run_command for it`},
	} {
		args := object{"path": c.path}
		if c.tool == "write_file" {
			args["content"] = "x"
		}
		r := call(t, s, c.tool, args)
		if !r.IsError || !strings.HasPrefix(r.text(), c.want) {
			t.Errorf("%s %s: %q, want %q", c.tool, c.path, r.text(), c.want)
		}
		if strings.Contains(r.text(), "sandbox "+box.ID) || strings.Contains(r.text(), "create_sandbox") {
			t.Errorf("%s %s: a new sandbox helps nothing: %q", c.tool, c.path, r.text())
		}
	}
}

func TestListedPathIsClean(t *testing.T) {
	s := with(t, Options{}, map[string]string{"/app/dir/f": "x"})
	for given, want := range map[string]string{
		"/app/dir/": "/app/dir", "//app/./dir//": "/app/dir", "/app/dir/../dir": "/app/dir", "/app/dir": "/app/dir",
	} {
		r := good(t, s, "list_files", object{"path": given})
		if r.Data["path"] != want || r.text() != want+": 1 entry\nf (1 byte)" {
			t.Errorf("%s: path %v, text %q", given, r.Data["path"], r.text())
		}
	}
}

func TestNumbersAgree(t *testing.T) {
	s := with(t, Options{}, nil)
	if r := good(t, s, "write_file", `{"path":"/app//./f","content":"x"}`); r.text() != "Wrote 1 byte to /app/f." || r.Data["path"] != "/app/f" {
		t.Errorf("got %q", r.text())
	}
	for n, want := range map[int64]string{0: "0 bytes", 1: "1 byte", 2: "2 bytes", 1234: "1,234 bytes"} {
		if got := byteCount(n); got != want {
			t.Errorf("byteCount(%d) = %q, want %q", n, got, want)
		}
	}
}

// TestAllBytesOfSingleByteEncodings holds that an encoding of the WHATWG's with
// a character for every byte reads every byte, and writes the same again.
func TestAllBytesOfSingleByteEncodings(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, name := range []string{"latin1", "windows-1252", "windows-1250", "windows-1251", "iso-8859-2", "koi8-r", "macintosh", "us-ascii"} {
		c, err := findCoding(name)
		if err != nil {
			t.Fatal(err)
		}
		text, ok := c.decode(all)
		if n := len([]rune(string(text))); !ok || n != 256 {
			t.Errorf("%s: %v, %d characters", name, ok, n)
			continue
		}
		if back, err := c.encode(text); err != nil || !bytes.Equal(back, all) {
			t.Errorf("%s: other bytes come back, %v", name, err)
		}
	}
	c, _ := findCoding("windows-1253") // has holes elsewhere
	if _, ok := c.decode([]byte{0xd2}); ok {
		t.Error("windows-1253 reads a byte that it does not have")
	}
	if _, err := c.encode([]byte("\u00d2")); err == nil {
		t.Error("windows-1253 writes a character that it does not have")
	}
}
