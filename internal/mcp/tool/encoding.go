package tool

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/htmlindex"
)

// Names of encodings that are not in the WHATWG's list, or that we treat
// ourselves.
const (
	encodingUTF8   = "utf-8"
	encodingBase64 = "base64"
)

// A textCoding turns bytes into text and back.
type textCoding struct {
	name string
	enc  encoding.Encoding // nil for utf-8 and base64
}

// findCoding looks an encoding up by one of its names.
func findCoding(name string) (textCoding, error) {
	switch n := strings.ToLower(strings.TrimSpace(name)); n {
	case encodingUTF8, "utf8":
		return textCoding{name: encodingUTF8}, nil
	case encodingBase64:
		return textCoding{name: encodingBase64}, nil
	case "binary", "hex", "bytes":
		return textCoding{}, bad("encoding", "%s is not known: use \"base64\" for bytes", quote(name))
	}
	enc, err := htmlindex.Get(name)
	if err != nil {
		return textCoding{}, bad("encoding", "%s is not known: use utf-8, base64 for bytes, or a name from the WHATWG Encoding Standard such as latin1, utf-16le, gbk, shift_jis", quote(name))
	}
	canonical, err := htmlindex.Name(enc)
	switch {
	case err != nil || canonical == "replacement":
		return textCoding{}, bad("encoding", "%s is refused by the WHATWG Encoding Standard: use base64", quote(name))
	case canonical == encodingUTF8:
		return textCoding{name: encodingUTF8}, nil
	}
	return textCoding{name: canonical, enc: enc}, nil
}

// decode turns p into text. ok is false when p is not valid in the encoding.
func (c textCoding) decode(p []byte) (text []byte, ok bool) {
	switch {
	case c.name == encodingBase64:
		return base64.StdEncoding.AppendEncode(nil, p), true
	case c.enc == nil:
		return p, utf8.Valid(p)
	}
	text, err := c.enc.NewDecoder().Bytes(p)
	if err != nil {
		return nil, false
	}
	if bytes.ContainsRune(text, utf8.RuneError) { // how these decoders report an error
		back, err := c.enc.NewEncoder().Bytes(text)
		return text, err == nil && bytes.Equal(back, p)
	}
	return text, true
}

// decodePart decodes p, of which a character may be cut at the end (more says
// that the file goes on) and at the start (when skip is set). It returns how
// many bytes of p the text stands for and how many it left out before them.
func (c textCoding) decodePart(p []byte, skip, more bool) (text []byte, used, skipped int, ok bool) {
	if c.name == encodingUTF8 && skip {
		for skipped < len(p) && skipped < utf8.UTFMax-1 && !utf8.RuneStart(p[skipped]) {
			skipped++
		}
		p = p[skipped:]
	}
	for cut := 0; cut < utf8.UTFMax && cut <= len(p); cut++ {
		if text, ok = c.decode(p[:len(p)-cut]); ok || !more {
			return text, len(p) - cut, skipped, ok
		}
	}
	return nil, 0, 0, false
}

// encode turns text from a client into bytes. Base64 may have line breaks, lack
// its padding, and be of the URL kind.
func (c textCoding) encode(text []byte) ([]byte, error) {
	switch {
	case c.name == encodingBase64:
		return fromBase64(text)
	case c.enc == nil:
		return text, nil
	}
	out, err := c.enc.NewEncoder().Bytes(text)
	if err != nil {
		return nil, bad("content", "holds a character that %s does not have: use utf-8", c.name)
	}
	return out, nil
}

func fromBase64(text []byte) ([]byte, error) {
	if bytes.ContainsAny(text, " \t\r\n") {
		text = bytes.Join(bytes.Fields(text), nil)
	}
	text = bytes.TrimRight(text, "=")
	enc := base64.RawStdEncoding
	if bytes.ContainsAny(text, "-_") {
		enc = base64.RawURLEncoding
	}
	out := make([]byte, enc.DecodedLen(len(text)))
	n, err := enc.Decode(out, text)
	if err != nil {
		return nil, bad("content", "is not base64: %v", err)
	}
	return out[:n], nil
}

// pictureType returns the MIME type of a picture that clients can show, "" for
// everything else.
func pictureType(p []byte) string {
	switch t := http.DetectContentType(p); t {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return t
	}
	return ""
}

// fileType says what a file that is no text probably is.
func fileType(p []byte) string {
	t, _, _ := strings.Cut(http.DetectContentType(p), ";")
	switch {
	case bytes.HasPrefix(p, []byte("\x7fELF")):
		return "an ELF program or library"
	case bytes.HasPrefix(p, []byte("SQLite format 3\x00")):
		return "an SQLite database"
	case bytes.HasPrefix(p, []byte("PAR1")):
		return "a Parquet file"
	case t == "application/octet-stream" || strings.HasPrefix(t, "text/"):
		return "binary data"
	}
	return fmt.Sprintf("of type %s", t)
}
