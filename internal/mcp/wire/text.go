package wire

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// String decodes the string literal val, which must be whole and valid as
// Object and Valid leave it. The result is part of val where val has no
// escapes; what is not UTF-8 becomes U+FFFD.
func String(val []byte) ([]byte, error) {
	if len(val) < 2 || val[0] != '"' || val[len(val)-1] != '"' {
		return nil, unexpected(val, 0, "a string")
	}
	text := val[1 : len(val)-1]
	next := bytes.IndexByte(text, '\\')
	if next >= 0 {
		text = unescape(text, next)
	}
	if !utf8.Valid(text) {
		text = bytes.ToValidUTF8(text, []byte("\uFFFD"))
	}
	return text, nil
}

// unescape resolves the escapes of text, the first at next.
func unescape(text []byte, next int) []byte {
	out := make([]byte, 0, len(text))
	for next >= 0 {
		out = append(out, text[:next]...)
		text = text[next:]
		out, text = unescapeOne(out, text)
		next = bytes.IndexByte(text, '\\')
	}
	return append(out, text...)
}

func unescapeOne(out, text []byte) (done, rest []byte) {
	switch c := text[1]; c {
	case 'u':
		r, n := codepoint(text)
		return utf8.AppendRune(out, r), text[n:]
	case 'b':
		return append(out, '\b'), text[2:]
	case 'f':
		return append(out, '\f'), text[2:]
	case 'n':
		return append(out, '\n'), text[2:]
	case 'r':
		return append(out, '\r'), text[2:]
	case 't':
		return append(out, '\t'), text[2:]
	default:
		return append(out, c), text[2:]
	}
}

// codepoint decodes the \u escape at the start of text, with its second half
// where it is a surrogate pair; half a pair is U+FFFD.
func codepoint(text []byte) (r rune, n int) {
	r = hex4(text[2:6])
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if len(text) >= 12 && text[6] == '\\' && text[7] == 'u' {
		if pair := utf16.DecodeRune(r, hex4(text[8:12])); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return utf8.RuneError, 6
}

func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		r = r<<4 | rune(unhex(c))
	}
	return r
}

// unhex returns the value of a hexadecimal digit, or 255.
func unhex(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10
	}
	return 255
}

const hexdigits = "0123456789abcdef"

// AppendString appends s to dst as a string literal. What is not UTF-8 becomes
// U+FFFD. Line separators beyond ASCII are escaped too: readers that split on
// lines (Node's readline among them) break a message there.
func AppendString[T string | []byte](dst []byte, s T) []byte {
	dst = append(dst, '"')
	dst = AppendText(dst, s)
	return append(dst, '"')
}

// AppendText is AppendString without the quotes.
func AppendText[T string | []byte](dst []byte, s T) []byte {
	from := 0
	for i := 0; i < len(s); {
		if i = ascii(s, i); i >= len(s) {
			break
		}
		c := s[i]
		if c < utf8.RuneSelf {
			dst = append(dst, s[from:i]...)
			dst = appendEscape(dst, c)
			i++
			from = i
			continue
		}
		r, n := decode(s, i)
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, s[from:i]...)
			dst = append(dst, `\ufffd`...)
			from = i + n
		} else if r == '\u0085' || r == '\u2028' || r == '\u2029' {
			dst = append(dst, s[from:i]...)
			dst = append(dst, '\\', 'u', hexdigits[r>>12&15], hexdigits[r>>8&15], hexdigits[r>>4&15], hexdigits[r&15])
			from = i + n
		}
		i += n
	}
	return append(dst, s[from:]...)
}

func decode[T string | []byte](s T, i int) (rune, int) {
	var b [utf8.UTFMax]byte
	return utf8.DecodeRune(b[:copy(b[:], s[i:])])
}

// ascii returns the first index from i whose byte is special in a literal or
// beyond ASCII.
func ascii[T string | []byte](s T, i int) int {
	var b [8]byte
	for ; i+8 <= len(s); i += 8 {
		copy(b[:], s[i:i+8])
		x := binary.LittleEndian.Uint64(b[:])
		if m := special(x) | x&highs; m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for i < len(s) && s[i] >= 0x20 && s[i] < utf8.RuneSelf && s[i] != '"' && s[i] != '\\' {
		i++
	}
	return i
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexdigits[c>>4], hexdigits[c&15])
}
