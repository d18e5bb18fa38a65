package tool

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"

	"github.com/agent-sandbox/abx/internal/mcp/wire"
	"github.com/agent-sandbox/abx/sandbox"
)

func readFile(Options) definition {
	return definition{
		Tool: Tool{
			Name:  "read_file",
			Title: "Read a file",
			Description: "Reads a file of a sandbox. Text is returned as it is; PNG, JPEG, GIF and WebP files are returned as pictures when no encoding is asked for; " +
				"other binary files need encoding base64. Read large files in parts with offset and limit. Leave sandbox_id out to use the default sandbox.",
			Output: outputSchema(append([]field{
				{name: "content", kind: "string", doc: "the content, in the encoding that was asked for turned into text; base64 for pictures", always: true},
				{name: "encoding", kind: "string", always: true},
				{name: "mime_type", kind: "string", doc: "of a picture"},
				{name: "size", kind: "integer", doc: "the length of the whole file in bytes"},
				{name: "offset", kind: "integer", doc: "where content begins in the file, when a part was asked for"},
				{name: "next_offset", kind: "integer", doc: "the offset to go on with; absent at the end of the file"},
			}, reportFields...)),
			ReadOnly: true, Idempotent: true,
		},
		params: []param{
			{name: "path", kind: kindText, required: true, absolute: true, aka: akaPath, doc: "the absolute path of the file"},
			sandboxID,
			{name: "encoding", kind: kindText, text: encodingUTF8, doc: "utf-8, base64 for bytes, or a WHATWG name such as latin1, utf-16le, gbk, shift_jis"},
			{name: "offset", kind: kindWhole, most: maxOffset, doc: "the byte to begin at; left out: 0"},
			{name: "limit", kind: kindWhole, least: 1, doc: "how many bytes to read at most; left out: the whole file"},
		},
		run: (*Set).readFile,
	}
}

// A part is a piece of a file.
type part struct {
	path         string
	data         []byte
	offset, size int64 // size of the whole file; -1: not known
	more         bool  // the file goes on behind data
	asked        bool  // by offset or limit
}

func (s *Set) readFile(ctx context.Context, a arguments, r Request) (*Result, error) {
	coding, err := findCoding(a.text("encoding"))
	if err != nil {
		return nil, err
	}
	most := int64(s.o.Limits.Read)
	if coding.name == encodingBase64 {
		most = most / 4 * 3
	}
	if limit := a.whole("limit"); limit > most {
		return nil, bad("limit", "%d is too large: one call returns at most %d bytes", limit, most)
	}
	lease, rep, err := s.use(ctx, a, r, 0)
	if err != nil {
		return nil, err
	}
	defer lease.Release()
	p, err := fetch(ctx, lease.Sandbox, a, most)
	if err != nil {
		return nil, err
	}
	if kind := pictureType(p.data); kind != "" && !a.has("encoding") && !p.asked {
		return s.picture(rep, p, kind)
	}
	if !p.asked && p.more {
		return nil, tooLarge(p, most)
	}
	return s.textOf(rep, p, coding, r.TextOnly)
}

// fetch reads what a asks for, at most most bytes.
func fetch(ctx context.Context, sb *handle, a arguments, most int64) (*part, error) {
	p := &part{path: a.text("path"), offset: a.whole("offset"), asked: a.has("offset") || a.has("limit")}
	want := most
	if a.has("limit") {
		want = a.whole("limit")
	}
	var opts []sandbox.FileOption
	if p.asked {
		opts = append(opts, sandbox.Range(p.offset, want+1))
	}
	f, err := sb.Files.ReadStream(ctx, p.path, opts...)
	if err != nil {
		return nil, noFile(ctx, sb, p.path, err)
	}
	defer f.Close()
	p.size = f.Size
	if room := p.size - p.offset; room >= 0 && room < want {
		p.data = make([]byte, room)
		_, err = io.ReadFull(f, p.data)
		if err == nil {
			err = more(f, p)
		}
	} else {
		p.data, err = io.ReadAll(io.LimitReader(f, want+1))
	}
	if err != nil {
		return nil, noFile(ctx, sb, p.path, fmt.Errorf("read %q: %w", p.path, err))
	}
	if int64(len(p.data)) > want {
		p.data, p.more = p.data[:want], true
	}
	if p.size < 0 && !p.more {
		p.size = p.offset + int64(len(p.data))
	}
	return p, nil
}

// more reads what a file has beyond its stated size: files of /proc state 0.
func more(f io.Reader, p *part) error {
	rest, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if len(rest) > 0 {
		p.data = append(p.data, rest...)
		p.size = p.offset + int64(len(p.data))
	}
	return err
}

func tooLarge(p *part, most int64) error {
	size := "more bytes than that"
	if p.size >= 0 {
		size = byteCount(p.size)
	}
	return problemf(nil, fmt.Sprintf("Read it in parts with offset and limit, such as offset 0 and limit %d, or look at it by run_command (head, tail, grep).", min(most, 1<<20)),
		"%s has %s; one call returns at most %s", quote(p.path), size, byteCount(most))
}

// picture returns a file that clients can show.
func (s *Set) picture(rep *report, p *part, kind string) (*Result, error) {
	if p.more || len(p.data) > s.o.Limits.Image {
		return nil, problemf(nil, "Make it smaller by run_code or run_command, or read its bytes with encoding base64, offset and limit.",
			"%s is a picture (%s) of %s; at most %s are shown", quote(p.path), kind, byteCount(max(p.size, int64(len(p.data)))), byteCount(s.o.Limits.Image))
	}
	rep.data.Grow(base64.StdEncoding.EncodedLen(len(p.data)) + 256)
	rep.data.String("content", base64.StdEncoding.EncodeToString(p.data))
	rep.data.String("encoding", encodingBase64)
	rep.data.String("mime_type", kind)
	rep.data.Int("size", int64(len(p.data)))
	rep.text = append(rep.text, fmt.Sprintf("%s: picture (%s), %s", p.path, kind, byteCount(len(p.data))))
	rep.media = append(rep.media, Content{MIMEType: kind, Data: p.data})
	return rep.result(), nil
}

// textOf returns a file as text.
func (s *Set) textOf(rep *report, p *part, coding textCoding, textOnly bool) (*Result, error) {
	text, used, skipped, ok := coding.decodePart(p.data, p.asked && p.offset > 0, p.more)
	if !ok {
		return nil, notText(p, coding)
	}
	var b wire.Builder
	b.Grow(len(text) + len(text)/16 + 256)
	b.Text("content", text)
	b.String("encoding", coding.name)
	if p.size >= 0 {
		b.Int("size", p.size)
	}
	next := p.offset + int64(skipped+used)
	if p.asked {
		b.Int("offset", p.offset+int64(skipped))
	}
	if p.more {
		b.Int("next_offset", next)
		rep.note("The file goes on: read the rest with offset %d%s.", next, ofSize(p.size))
	}
	if p.size >= 0 && p.offset > p.size || p.offset == p.size && p.offset > 0 {
		rep.note("Nothing is left at offset %d: the file has %s.", p.offset, byteCount(p.size))
	}
	rep.data = b
	shown := text
	if most := s.o.Limits.ReadText; len(text) > most && !textOnly {
		shown = wholeEnd(text[:most])
		rep.note("Only the first %s of %s are repeated here; structuredContent has all. Read parts with offset and limit.",
			thousands(int64(len(shown))), byteCount(len(text)))
	}
	res := rep.result()
	notes := res.Content
	res.Content = append([]Content{{Text: string(shown)}}, notes...)
	return res, nil
}

func ofSize(size int64) string {
	if size < 0 {
		return ""
	}
	return fmt.Sprintf(" (the file has %s)", byteCount(size))
}

// notText refuses bytes that are no text in the encoding.
func notText(p *part, coding textCoding) error {
	next := `Read it with encoding "base64"; for other text, name its encoding, such as "latin1".`
	if pictureType(p.data) != "" {
		next = `Leave encoding, offset and limit out to see the picture, or ask for encoding "base64" to have its bytes.`
	}
	return problemf(nil, next, "%s is not valid %s: it is %s, %s", quote(p.path), coding.said, fileType(p.data), byteCount(max(p.size, int64(len(p.data)))))
}
