package interpreter

import (
	"encoding/base64"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/agent-sandbox/abx/internal/e2b"
)

const hexDigits = "0123456789abcdef"

// appendString appends p as a JSON string in ASCII. Bytes that are not UTF-8
// become U+FFFD; ok is then false.
func appendString[T []byte | string](dst []byte, p T) (_ []byte, ok bool) {
	ok = true
	dst = append(dst, '"')
	for i := 0; i < len(p); {
		c := p[i]
		if c < utf8.RuneSelf {
			dst = appendASCII(dst, c)
			i++
			continue
		}
		// A rune has at most four bytes; the copy keeps T general.
		var four [utf8.UTFMax]byte
		n := copy(four[:], p[i:min(i+utf8.UTFMax, len(p))])
		r, size := utf8.DecodeRune(four[:n])
		if r == utf8.RuneError && size <= 1 {
			ok = false
		}
		dst = appendRune(dst, r)
		i += size
	}
	return append(dst, '"'), ok
}

func appendASCII(dst []byte, c byte) []byte {
	switch {
	case c == '"' || c == '\\':
		return append(dst, '\\', c)
	case c == '\n':
		return append(dst, '\\', 'n')
	case c == '\r':
		return append(dst, '\\', 'r')
	case c == '\t':
		return append(dst, '\\', 't')
	case c < 0x20 || c == 0x7f:
		return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
	}
	return append(dst, c)
}

// appendRune appends the \u form of a rune, two of them beyond the first plane.
func appendRune(dst []byte, r rune) []byte {
	if r >= 0x10000 {
		r -= 0x10000
		dst = appendUnit(dst, 0xd800+(r>>10))
		r = 0xdc00 + (r & 0x3ff)
	}
	return appendUnit(dst, r)
}

func appendUnit(dst []byte, r rune) []byte {
	return append(dst, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// appendRaw appends JSON that is valid already, in ASCII and on one line.
func appendRaw(dst []byte, raw []byte) []byte {
	for i := 0; i < len(raw); {
		c := raw[i]
		if c == '\n' || c == '\r' {
			c = ' ' // between tokens: inside a string it would not be valid
		}
		if c < utf8.RuneSelf {
			dst = append(dst, c)
			i++
			continue
		}
		r, size := utf8.DecodeRune(raw[i:])
		dst = appendRune(dst, r)
		i += size
	}
	return dst
}

// appendOutput appends a stdout or stderr line. Where the text cannot hold the
// bytes as they are, abx.bytes does.
func appendOutput(dst []byte, name string, p []byte, now time.Time) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, name...)
	dst = append(dst, `","text":`...)
	dst, ok := appendString(dst, p)
	dst = append(dst, `,"timestamp":"`...)
	dst = now.UTC().AppendFormat(dst, time.RFC3339Nano)
	dst = append(dst, '"')
	if !ok {
		dst = append(dst, `,"abx":{"exitCode":0,"bytes":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, p)
		dst = append(dst, `"}`...)
	}
	return append(dst, "}\n"...)
}

// appendError appends an error line. Its three fields are always there: E2B's
// Python SDK reads them without asking.
func appendError(dst []byte, name, value, traceback string) []byte {
	dst = append(dst, `{"type":"error","name":`...)
	dst, _ = appendString(dst, name)
	dst = append(dst, `,"value":`...)
	dst, _ = appendString(dst, value)
	dst = append(dst, `,"traceback":`...)
	dst, _ = appendString(dst, traceback)
	return append(dst, "}\n"...)
}

// appendLine appends any other line of ours.
func appendLine(dst []byte, l e2b.Line) []byte {
	raw, err := json.Marshal(l)
	if err != nil { // a Line without raw parts cannot fail
		raw = []byte(`{"type":"` + l.Type + `"}`)
	}
	return append(appendRaw(dst, raw), '\n')
}

// fields maps a MIME type to the field of a result line, in the line's order.
var fields = []struct{ mime, field string }{
	{"text/plain", "text"}, {"text/html", "html"}, {"text/markdown", "markdown"}, {"image/svg+xml", "svg"},
	{"image/png", "png"}, {"image/jpeg", "jpeg"}, {"application/pdf", "pdf"}, {"text/latex", "latex"},
	{"application/json", "json"}, {"application/javascript", "javascript"}, {"e2b/data", "data"}, {"e2b/chart", "chart"},
}

// objects are the fields that hold JSON; all others hold a string.
var objects = map[string]bool{"json": true, "data": true, "chart": true}

// appendResult appends a result line. A value of the wrong kind is left out;
// types without a field of their own go to extra.
func appendResult(dst []byte, main bool, data map[string]json.RawMessage) []byte {
	dst = append(dst, `{"type":"result","is_main_result":`...)
	if main {
		dst = append(dst, "true"...)
	} else {
		dst = append(dst, "false"...)
	}
	known := 0
	for _, f := range fields {
		raw, ok := data[f.mime]
		if !ok {
			continue
		}
		known++
		if len(raw) == 0 || raw[0] != '"' && !objects[f.field] {
			continue
		}
		dst = append(dst, `,"`...)
		dst = append(dst, f.field...)
		dst = append(dst, `":`...)
		dst = appendRaw(dst, raw)
	}
	if known < len(data) {
		dst = appendExtra(dst, data)
	}
	return append(dst, "}\n"...)
}

func appendExtra(dst []byte, data map[string]json.RawMessage) []byte {
	dst = append(dst, `,"extra":{`...)
	first := true
	for mime, raw := range data {
		if isField(mime) || len(raw) == 0 {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst, _ = appendString(dst, mime)
		dst = append(dst, ':')
		dst = appendRaw(dst, raw)
	}
	return append(dst, '}')
}

func isField(mime string) bool {
	for _, f := range fields {
		if f.mime == mime {
			return true
		}
	}
	return false
}
