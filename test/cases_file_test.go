package test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agent-sandbox/abx/test/stdio"
)

// C4: files.
var fileRows = []row{
	{"C4-41", filesOfManySizes},
	{"C4-42", allByteValues},
	{"C4-43", picturesAndBinaries},
	{"C4-44", namesOfFiles},
	{"C4-46", parentsAreMade},
	{"C4-48", linksStayInside},
	{"C4-52", manyEntries},
}

func (b *box) writeBytes(t *testing.T, path string, data []byte) {
	t.Helper()
	var got struct {
		Success bool
		Written int `json:"bytes_written"`
	}
	b.tool(t, "write_file", stdio.Arguments{"path": path, "content": base64.StdEncoding.EncodeToString(data), "encoding": "base64"}, &got)
	if !got.Success || got.Written != len(data) {
		t.Errorf("%s: wrote %d of %d bytes, %v", path, got.Written, len(data), got.Success)
	}
}

// readBytes reads a file whole, in parts where it must.
func (b *box) readBytes(t *testing.T, path string) []byte {
	t.Helper()
	var all []byte
	for offset := 0; ; {
		var got struct {
			Content string
			Size    int
			Next    int `json:"next_offset"`
		}
		b.tool(t, "read_file", stdio.Arguments{"path": path, "encoding": "base64", "offset": offset, "limit": 6 << 20}, &got)
		data, err := base64.StdEncoding.DecodeString(got.Content)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, data...)
		if got.Next == 0 {
			return all
		}
		offset = got.Next
	}
}

// wantSum checks a file from inside.
func (b *box) wantSum(t *testing.T, path string, data []byte) {
	t.Helper()
	b.run(t, "sha256sum < '"+path+"'").want(t, "0 exit", fmt.Sprintf("%x  -\n", sha256.Sum256(data)))
}

func filesOfManySizes(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	random := make([]byte, 6<<20)
	rand.NewChaCha8([32]byte{41}).Read(random)
	for _, n := range []int{0, 1, 18 << 10, 19 << 10, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1 << 20, 6<<20 - 4096} {
		b.writeBytes(t, "/tmp/f", random[:n])
		b.wantSum(t, "/tmp/f", random[:n])
		if got := b.readBytes(t, "/tmp/f"); !bytes.Equal(got, random[:n]) {
			t.Errorf("%d bytes: read %d, or others", n, len(got))
		}
	}
	// As text, up to what a message holds, and what is over it.
	text := strings.Repeat("0123456789abcde ", 8<<20/16)
	fits := text[:8<<20-1024]
	b.write(t, "/tmp/t", fits)
	b.wantSum(t, "/tmp/t", []byte(fits))
	if got := b.read(t, "/tmp/t"); got != fits {
		t.Errorf("text of %d bytes: read %d, or others", len(fits), len(got))
	}
	// Around what one call returns.
	for n, taken := range map[int]bool{8<<20 - 1: true, 8 << 20: true, 8<<20 + 1: false, 100_000_000: false} {
		b.run(t, fmt.Sprintf("yes '0123456789abcde ' | tr -d '\\n' | head -c %d > /tmp/r", n)).wantEnd(t, "0 exit")
		if !taken {
			b.refused(t, "read_file", stdio.Arguments{"path": "/tmp/r"}, "/tmp/r", "8,388,608", "offset", "limit")
		} else if got := b.read(t, "/tmp/r"); got != text[:n] {
			t.Errorf("%d bytes: read %d, or others", n, len(got))
		}
	}
	// 100 MB, in parts.
	b.run(t, "head -c 100000000 /dev/urandom > /tmp/r").wantEnd(t, "0 exit")
	b.wantSum(t, "/tmp/r", b.readBytes(t, "/tmp/r"))
	b.refused(t, "read_file", stdio.Arguments{"path": "/tmp/r", "limit": 9 << 20}, `"limit"`, "too large")
	// Parts beside the end.
	for _, offset := range []int{99_999_999, 100_000_000, 100_000_001, 1 << 50} {
		var got struct {
			Content string
			Next    int `json:"next_offset"`
		}
		b.tool(t, "read_file", stdio.Arguments{"path": "/tmp/r", "encoding": "base64", "offset": offset}, &got)
		if want := max(0, 100_000_000-offset); len(got.Content) != base64.StdEncoding.EncodedLen(want) || got.Next != 0 {
			t.Errorf("from %d: %q, next %d", offset, got.Content, got.Next)
		}
	}
}

func allByteValues(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	reversed := slices.Clone(all)
	slices.Reverse(reversed)
	for _, data := range [][]byte{all, reversed, bytes.Repeat(all, 300), {0}, {0xff, 0xfe}, []byte("a\r\nb\rc\n"), []byte("\xef\xbb\xbfbom")} {
		b.writeBytes(t, "/tmp/f", data)
		b.wantSum(t, "/tmp/f", data)
		if got := b.readBytes(t, "/tmp/f"); !bytes.Equal(got, data) {
			t.Errorf("read %.40q, want %.40q", got, data)
		}
	}
	// As text, in an encoding that has all of them.
	b.writeBytes(t, "/tmp/f", all)
	var got struct{ Content string }
	b.tool(t, "read_file", stdio.Arguments{"path": "/tmp/f", "encoding": "latin1"}, &got)
	if n := len([]rune(got.Content)); n != 256 {
		t.Errorf("%d characters of 256 bytes", n)
	}
	// Text stays as it is: no line end, no mark is changed.
	for _, text := range []string{"a\r\nb\n", "\ufeffbom", "\x00\x01\x1b[0m", "\u2028\u2029", "e\u0301 \u00e9", "no end", "\"\\/\b\f\t"} {
		b.write(t, "/tmp/t", text)
		b.wantSum(t, "/tmp/t", []byte(text))
		if got := b.read(t, "/tmp/t"); got != text {
			t.Errorf("read %q, want %q", got, text)
		}
	}
}

// imageIn finds the picture of a result, -1 if there is none.
func imageIn(res stdio.Result) int {
	for i, c := range res.Content {
		if c.Type == "image" {
			return i
		}
	}
	return -1
}

func picturesAndBinaries(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	var p, j, g bytes.Buffer
	img := image.NewPaletted(image.Rect(0, 0, 9, 9), color.Palette{color.Black, color.White})
	for _, err := range []error{png.Encode(&p, img), jpeg.Encode(&j, img, nil), gif.Encode(&g, img, nil)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	webp := []byte("RIFF\x1a\x00\x00\x00WEBPVP8L\x0d\x00\x00\x00\x2f\x00\x00\x00\x10\x07\x10\x11\x11\x88\x88\xfe\x07\x00")
	for kind, data := range map[string][]byte{"image/png": p.Bytes(), "image/jpeg": j.Bytes(), "image/gif": g.Bytes(), "image/webp": webp} {
		b.writeBytes(t, "/tmp/picture", data) // the content tells, not the name
		var got struct {
			Content, Encoding string
			Type              string `json:"mime_type"`
		}
		res := b.tool(t, "read_file", stdio.Arguments{"path": "/tmp/picture"}, &got)
		i := imageIn(res)
		want := base64.StdEncoding.EncodeToString(data)
		if i < 0 || res.Content[i].MimeType != kind || res.Content[i].Data != want {
			t.Errorf("%s: no such image content in %.300v", kind, res.Content)
		}
		if got.Content != want || got.Encoding != "base64" || got.Type != kind || strings.Contains(res.Text(), want) {
			t.Errorf("%s: %.300v, text %.300q", kind, got, res.Text())
		}
		res = b.tool(t, "read_file", stdio.Arguments{"path": "/tmp/picture", "encoding": "base64"}, &got)
		if len(res.Content) != 1 || res.Content[0].Type != "text" || got.Content != want {
			t.Errorf("%s as base64: %.300v", kind, res.Content)
		}
	}
	b.run(t, `cd /tmp; head -c 5000 /bin/true > elf; gzip -c elf > gz; printf 'a\377\n' > latin; printf 'PK\003\004\377' > zip; printf '%%PDF-1.4\n\377' > pdf; printf 'SQLite format 3\0\377' > db`).wantEnd(t, "0 exit")
	for _, name := range []string{"elf", "gz", "latin", "zip", "pdf", "db"} {
		said := b.refused(t, "read_file", stdio.Arguments{"path": "/tmp/" + name}, "/tmp/"+name, "bytes", "base64", "not valid utf-8")
		if len(said) > 400 || strings.Contains(said, "panic") || strings.Contains(said, "rune") {
			t.Errorf("%s: %q", name, said)
		}
	}
	b.refused(t, "read_file", stdio.Arguments{"path": "/tmp/picture", "encoding": "utf-8"}, "base64", "image/")
}

func namesOfFiles(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	names := []string{
		"a b.txt", "数据.csv", "é.nfc", "e\u0301.nfd", "'q'.txt", "-rf", "new\nline", strings.Repeat("n", 255), strings.Repeat("é", 127),
		" lead", "trail ", "...", "..x", "%2F", "%41", "a+b", "#x", "q?x=1&y", `back\slash`, "*", "$(x)", "`x`", `"dq"`, "\U0001F600", "tab\t", "\x01", "a;b", "\r", "C:\\a b\\f.txt", "&amp;", "~",
	}
	for i, name := range names {
		b.write(t, "/tmp/n/"+name, fmt.Sprint(i))
	}
	var list struct {
		Files []struct{ Name, Path, Type string }
		Total int
	}
	b.tool(t, "list_files", stdio.Arguments{"path": "/tmp/n"}, &list)
	var got []string
	for _, f := range list.Files {
		got = append(got, f.Name)
		if f.Path != "/tmp/n/"+f.Name || f.Type != "file" {
			t.Errorf("%q is %q, a %s", f.Name, f.Path, f.Type)
		}
	}
	for i, name := range names {
		if !slices.Contains(got, name) {
			t.Errorf("%q is not listed", name)
		}
		if text := b.read(t, "/tmp/n/"+name); text != fmt.Sprint(i) {
			t.Errorf("%q holds %q, want %d", name, text, i)
		}
	}
	if len(got) != len(names) {
		t.Errorf("%d of %d names are listed: %q", len(got), len(names), got)
	}
	b.run(t, "ls -A /tmp/n | wc -l").want(t, "0 exit", fmt.Sprintln(len(names)+1)) // one has a line end
	// Folders of such names, as working folders too.
	for _, name := range []string{"a b", "数据", "-rf", "new\nline", "'"} {
		b.write(t, "/tmp/d/"+name+"/f", "x")
		b.tool(t, "list_files", stdio.Arguments{"path": "/tmp/d/" + name}, &list)
		if list.Total != 1 {
			t.Errorf("folder %q has %d entries", name, list.Total)
		}
		b.runWith(t, "cat f", stdio.Arguments{"cwd": "/tmp/d/" + name}).want(t, "0 exit", "x")
	}
	// A name that is no text is listed, too.
	b.run(t, `mkdir /tmp/b; touch "$(printf '/tmp/b/\377')" /tmp/b/good`).wantEnd(t, "0 exit")
	b.tool(t, "list_files", stdio.Arguments{"path": "/tmp/b"}, &list)
	if list.Total != 2 || len(list.Files) != 2 {
		t.Errorf("beside a name that is no text: %v", list)
	}
	b.refused(t, "write_file", stdio.Arguments{"path": "/tmp/" + strings.Repeat("n", 256), "content": ""}, "name", "long")
	b.refused(t, "read_file", stdio.Arguments{"path": "/tmp/a\x00b"}, `"path"`, "NUL")
	b.refused(t, "read_file", stdio.Arguments{"path": "/tmp/" + strings.Repeat("n", 256)})
	b.refused(t, "read_file", stdio.Arguments{"path": "/" + strings.Repeat("d/", 3000)})
}

func parentsAreMade(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	for _, path := range []string{"/tmp/x/y/z.txt", "/app/a/b/c", "/home/user/.config/x/y", "/tmp/" + strings.Repeat("d/", 200) + "f", "/tmp//double///slash", "/tmp/x/../w/f"} {
		b.write(t, path, path)
		if got := b.read(t, path); got != path {
			t.Errorf("%s holds %.60q", path, got)
		}
	}
	b.run(t, "stat -c '%U %a' /tmp/x /tmp/x/y /tmp/x/y/z.txt").want(t, "0 exit", "user 755\nuser 755\nuser 644\n")
	b.run(t, "echo more >> /tmp/x/y/z.txt; touch /tmp/x/y/new; rm -r /tmp/x").wantEnd(t, "0 exit")
	b.write(t, "/tmp/file", "x")
	b.refused(t, "write_file", stdio.Arguments{"path": "/tmp/file/under/it", "content": ""}, "/tmp/file")
	b.refused(t, "write_file", stdio.Arguments{"path": "/usr/x/y", "content": ""}, "/usr/x")
	b.refused(t, "write_file", stdio.Arguments{"path": "/tmp", "content": ""}, "/tmp", "folder")
	b.refused(t, "write_file", stdio.Arguments{"path": "/tmp/", "content": ""}, "/tmp/", "folder")
	b.refused(t, "write_file", stdio.Arguments{"path": "/proc/x", "content": ""}, "/proc/x")
	// Overwriting makes it shorter and keeps its mode.
	b.run(t, "printf '#!/bin/sh\nexit 5 # a long remark\n' > /tmp/s; chmod 755 /tmp/s").wantEnd(t, "0 exit")
	b.write(t, "/tmp/s", "#!/bin/sh\nexit 6\n")
	b.run(t, "/tmp/s").wantEnd(t, "6 exit")
}

func linksStayInside(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.run(t, "ln -s /etc/shadow /tmp/l; ln -s "+secret+" /tmp/s; ln -s "+dir+" /tmp/d; ln -s / /tmp/root; ln -s loop /tmp/loop; ln -s ../../../../.."+secret+" /tmp/up; ln -s /etc/passwd /tmp/passwd").wantEnd(t, "0 exit")
	// What the host has, the sandbox does not.
	b.refused(t, "read_file", stdio.Arguments{"path": "/tmp/l"}, "/tmp/l")
	for _, path := range []string{"/tmp/s", "/tmp/d/secret", "/tmp/up", "/tmp/root" + secret, secret, "/app/../../../../.." + secret, "/proc/self/root" + secret, "/proc/1/root" + secret} {
		said := b.refused(t, "read_file", stdio.Arguments{"path": path})
		if strings.Contains(said, "of the host") {
			t.Errorf("%s leads to the host", path)
		}
	}
	b.refused(t, "read_file", stdio.Arguments{"path": "/tmp/loop"}, "/tmp/loop")
	b.refused(t, "list_files", stdio.Arguments{"path": "/tmp/d"}, "/tmp/d")
	// Inside, links lead where they lead inside.
	if got := b.read(t, "/tmp/passwd"); !strings.Contains(got, "/home/user") {
		t.Errorf("/etc/passwd of the sandbox: %q", got)
	}
	var list struct {
		Files []struct{ Name, Type, Target string }
	}
	b.tool(t, "list_files", stdio.Arguments{"path": "/tmp"}, &list)
	for _, f := range list.Files {
		if f.Name == "l" && (f.Type != "symlink" || f.Target != "/etc/shadow") {
			t.Errorf("the link is listed as %v", f)
		}
	}
	b.run(t, "ls /tmp/root"+dir).wantEnd(t, "2 exit")
	// A write through a link stays inside, too.
	b.run(t, "mkdir -p /tmp/real; ln -s real /tmp/alias; ln -s /tmp/real/made /tmp/dangling").wantEnd(t, "0 exit")
	b.write(t, "/tmp/alias/f", "x")
	b.write(t, "/tmp/s2/f", "x")
	b.run(t, "cat /tmp/real/f").want(t, "0 exit", "x")
	if _, err := b.c.Tool(t.Context(), "write_file", b.args(stdio.Arguments{"path": "/tmp/s", "content": "overwritten"}), nil); err == nil {
		b.run(t, "cat "+secret).want(t, "0 exit", "overwritten")
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != "of the host" {
		t.Errorf("the host's file holds %q: %v", data, err)
	}
	// An archive with a way up, unpacked by a command.
	b.code(t, `import io, tarfile
with tarfile.open('/tmp/x.tar', 'w') as tar:
    info = tarfile.TarInfo('../../../../../../..`+dir+`/evil'); info.size = 1
    tar.addfile(info, io.BytesIO(b'x'))`).wantEnd(t, "0 exit")
	b.run(t, "mkdir /tmp/out; tar -C /tmp/out -P -xf /tmp/x.tar; true").wantEnd(t, "0 exit")
	if _, err := os.Stat(filepath.Join(dir, "evil")); err == nil {
		t.Error("an archive was unpacked into the host")
	}
}

func manyEntries(t *testing.T, w *world) {
	b := newBox(t, w.plain)
	b.run(t, "mkdir /tmp/many; cd /tmp/many; seq -f f%05g 20000 | xargs touch").wantEnd(t, "0 exit")
	var list struct {
		Files     []struct{ Name string }
		Total     int
		Truncated bool
		Notes     []string
	}
	res := b.tool(t, "list_files", stdio.Arguments{"path": "/tmp/many"}, &list)
	if len(list.Files) != 1000 || list.Total != 20000 || !list.Truncated {
		t.Errorf("%d of %d entries, truncated %v", len(list.Files), list.Total, list.Truncated)
	}
	if list.Files[0].Name != "f00001" || list.Files[999].Name != "f01000" {
		t.Errorf("from %s to %s", list.Files[0].Name, list.Files[999].Name)
	}
	wantWords(t, "the text", res.Text(), "1000 of 20000", "run_command")
	b.run(t, "cd /tmp/many; seq -f f%05g 1001 20000 | xargs rm").wantEnd(t, "0 exit")
	b.tool(t, "list_files", stdio.Arguments{"path": "/tmp/many"}, &list)
	if len(list.Files) != 1000 || list.Total != 1000 || list.Truncated {
		t.Errorf("at the limit: %d of %d entries, truncated %v", len(list.Files), list.Total, list.Truncated)
	}
	b.run(t, "mkdir /tmp/empty; mkfifo /tmp/empty/fifo").wantEnd(t, "0 exit")
	b.tool(t, "list_files", stdio.Arguments{"path": "/tmp/empty"}, nil)
	// What never ends is not read.
	b.refused(t, "read_file", stdio.Arguments{"path": "/tmp/empty/fifo"}, "/tmp/empty/fifo")
	b.refused(t, "read_file", stdio.Arguments{"path": "/dev/zero"}, "/dev/zero")
	b.refused(t, "list_files", stdio.Arguments{"path": "/tmp/none"}, "/tmp/none", "no folder")
}
