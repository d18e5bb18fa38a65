package tool

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
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
	said string            // what the client called it
	enc  encoding.Encoding // nil for utf-8 and base64
}

// findCoding looks an encoding up by one of its names.
func findCoding(name string) (textCoding, error) {
	said := strings.ToLower(strings.TrimSpace(name))
	switch said {
	case encodingUTF8, "utf8":
		return textCoding{name: encodingUTF8, said: said}, nil
	case encodingBase64:
		return textCoding{name: encodingBase64, said: said}, nil
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
		return textCoding{name: encodingUTF8, said: said}, nil
	}
	return textCoding{name: canonical, said: said, enc: enc}, nil
}

// decode turns p into text. ok is false when p is not valid in the encoding.
func (c textCoding) decode(p []byte) (text []byte, ok bool) {
	switch {
	case c.name == encodingBase64:
		return base64.StdEncoding.AppendEncode(nil, p), true
	case c.enc == nil:
		return p, utf8.Valid(p)
	}
	if table, single := c.enc.(*charmap.Charmap); single {
		return fromBytes(table, p)
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
	if table, single := c.enc.(*charmap.Charmap); single {
		if out, ok := toBytes(table, text); ok {
			return out, nil
		}
		return nil, bad("content", "%s does not have the character %s: use utf-8", c.said, c.missing(text))
	}
	out, err := c.enc.NewEncoder().Bytes(text)
	if err != nil {
		return nil, bad("content", "%s does not have the character %s: use utf-8", c.said, c.missing(text))
	}
	return out, nil
}

// missing names the first character of text that c does not have.
func (c textCoding) missing(text []byte) string {
	table, single := c.enc.(*charmap.Charmap)
	for _, r := range string(text) {
		if single {
			if _, ok := toByte(table, r); ok {
				continue
			}
		}
		if _, err := c.enc.NewEncoder().String(string(r)); err != nil {
			return fmt.Sprintf("%q (U+%04X)", r, r)
		}
	}
	return "that content holds"
}

// The library's tables leave holes where the WHATWG's have the control
// characters U+0080 to U+009F, each at its own number: latin1 has all 256 bytes.

func fromByte(table *charmap.Charmap, b byte) rune {
	r := table.DecodeByte(b)
	if r == utf8.RuneError && b >= 0x80 && b <= 0x9f {
		return rune(b)
	}
	return r
}

func toByte(table *charmap.Charmap, r rune) (byte, bool) {
	if b, ok := table.EncodeRune(r); ok {
		return b, true
	}
	return byte(r), r >= 0x80 && r <= 0x9f && table.DecodeByte(byte(r)) == utf8.RuneError
}

func fromBytes(table *charmap.Charmap, p []byte) (text []byte, ok bool) {
	text = make([]byte, 0, len(p)+len(p)/8)
	for _, b := range p {
		r := fromByte(table, b)
		if r == utf8.RuneError {
			return nil, false
		}
		text = utf8.AppendRune(text, r)
	}
	return text, true
}

func toBytes(table *charmap.Charmap, text []byte) (p []byte, ok bool) {
	p = make([]byte, 0, len(text))
	for _, r := range string(text) {
		b, ok := toByte(table, r)
		if !ok {
			return nil, false
		}
		p = append(p, b)
	}
	return p, true
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
