package tool

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A stream is what was kept of one output stream.
type stream struct {
	kept  []byte
	head  int   // how much of kept comes before the gap
	total int64 // bytes written
	file  string
}

// text is the stream as a model reads it: no terminal codes, progress bars
// collapsed, cut at the end of a line where one is near, else at whole
// characters, with a line that counts what was left out.
func (s stream) text() string {
	if s.total <= int64(len(s.kept)) {
		return clean(s.kept)
	}
	head, tail := lineEnd(s.kept[:s.head]), lineStart(s.kept[s.head:])
	left := s.total - int64(len(head)+len(tail))
	where := "the whole could not be kept"
	if s.file != "" {
		where = "the whole is in " + s.file
	}
	var b strings.Builder
	b.WriteString(clean(head))
	fmt.Fprintf(&b, "\n[... %s left out; %s ...]\n", byteCount(left), where)
	b.WriteString(clean(tail))
	return b.String()
}

func (s stream) cut() bool { return s.total > int64(len(s.kept)) }

// nearLine is how far from a cut the end of a line is looked for, in bytes.
const nearLine = 1 << 10

// lineEnd drops the line that p ends within, if its begin is near, or else the
// character.
func lineEnd(p []byte) []byte {
	if i := bytes.LastIndexByte(p[max(0, len(p)-nearLine):], '\n'); i >= 0 {
		return p[:max(0, len(p)-nearLine)+i]
	}
	return wholeEnd(p)
}

// lineStart drops the rest of a line that p begins within, if its end is near,
// or else that of a character.
func lineStart(p []byte) []byte {
	if i := bytes.IndexByte(p[:min(nearLine, len(p))], '\n'); i >= 0 && i+1 < len(p) {
		return p[i+1:]
	}
	return wholeStart(p)
}

// wholeEnd drops a character that p ends within.
func wholeEnd(p []byte) []byte {
	for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
		if c := p[len(p)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(p[len(p)-n:]) {
				return p[:len(p)-n]
			}
			break
		}
	}
	return p
}

// wholeStart drops the rest of a character that p begins within.
func wholeStart(p []byte) []byte {
	for n := 0; n < utf8.UTFMax && n < len(p); n++ {
		if utf8.RuneStart(p[n]) {
			return p[n:]
		}
	}
	return p
}

// clean makes output readable: terminal codes go, of a line that was written
// over by carriage returns the last state stays, what is not UTF-8 becomes
// U+FFFD.
func clean(p []byte) string {
	if bytes.IndexByte(p, '\x1b') >= 0 {
		p = stripCodes(p)
	}
	if bytes.IndexByte(p, '\r') >= 0 || bytes.IndexByte(p, '\b') >= 0 {
		p = collapse(p)
	}
	if !utf8.Valid(p) {
		p = bytes.ToValidUTF8(p, []byte("\uFFFD"))
	}
	return string(p)
}

// stripCodes removes ECMA-48 control sequences and strings.
func stripCodes(p []byte) []byte {
	out := make([]byte, 0, len(p))
	for {
		i := bytes.IndexByte(p, '\x1b')
		if i < 0 {
			return append(out, p...)
		}
		out = append(out, p[:i]...)
		p = p[i+sequence(p[i:]):]
	}
}

// sequence returns the length of the control sequence at the start of p, which
// is an escape character.
func sequence(p []byte) int {
	if len(p) < 2 {
		return len(p)
	}
	switch c := p[1]; {
	case c == '[': // parameters, intermediates, one final byte
		i := 2
		for i < len(p) && p[i] >= 0x20 && p[i] <= 0x3f {
			i++
		}
		if i < len(p) && p[i] >= 0x40 && p[i] <= 0x7e {
			i++
		}
		return i
	case c == ']' || c == 'P' || c == 'X' || c == '^' || c == '_': // a string up to its end
		for i := 2; i < len(p) && i < 4096; i++ {
			switch {
			case p[i] == '\a':
				return i + 1
			case p[i] == '\x1b' && i+1 < len(p) && p[i+1] == '\\':
				return i + 2
			case p[i] == '\n':
				return 2
			}
		}
		return 2
	case c >= 0x20 && c <= 0x2f: // intermediates, one final byte
		i := 2
		for i < len(p) && p[i] >= 0x20 && p[i] <= 0x2f {
			i++
		}
		return min(i+1, len(p))
	case c >= 0x30 && c <= 0x7e:
		return 2
	}
	return 1
}

// collapse gives each line as a terminal would leave it, about: what comes
// after the last carriage return stays, a backspace takes a character back.
func collapse(p []byte) []byte {
	out := make([]byte, 0, len(p))
	for len(p) > 0 {
		line, rest, found := bytes.Cut(p, []byte("\n"))
		line = bytes.TrimRight(line, "\r")
		if i := bytes.LastIndexByte(line, '\r'); i >= 0 {
			line = line[i+1:]
		}
		start := len(out)
		for _, c := range line {
			if c != '\b' {
				out = append(out, c)
			} else if len(out) > start {
				_, n := utf8.DecodeLastRune(out[start:])
				out = out[:len(out)-n]
			}
		}
		if found {
			out = append(out, '\n')
		}
		p = rest
	}
	return out
}

// plural is the one of two words that goes with n.
func plural[N int | int64](n N, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// count writes n and its noun.
func count[N int | int64](n N, one, many string) string {
	return thousands(int64(n)) + " " + plural(n, one, many)
}

// byteCount writes a number of bytes.
func byteCount[N int | int64](n N) string { return count(n, "byte", "bytes") }

// thousands writes n with commas.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
