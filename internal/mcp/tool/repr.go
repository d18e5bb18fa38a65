package tool

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/agent-sandbox/abx/sandbox"
)

// readable turns the value of a piece of Python code, where it is a string,
// into what print would show. On E2B's wire a string comes as its repr without
// the quotes, so that a line break in it is a backslash and an n.
func readable(results []sandbox.CodeResult) {
	for i := range results {
		if r := &results[i]; r.IsMain && r.HTML == "" && r.Markdown == "" {
			r.Text = printed(r.Text)
		}
	}
}

// printed is the string that text is the repr of, without its quotes. What may
// be the repr of something else, or is none, is returned as it is: the wire
// does not tell them apart, but outside of quotes no other value's repr has a
// backslash.
func printed(text string) string {
	if !strings.Contains(text, `\`) || strings.Contains(text, " ... [cut") || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' }) || !escapesOutside(text) {
		return text
	}
	var b strings.Builder
	for rest := text; rest != ""; {
		i := strings.IndexByte(rest, '\\')
		if i < 0 {
			b.WriteString(rest)
			break
		}
		b.WriteString(rest[:i])
		r, n := escape(rest[i:])
		if n == 0 {
			return text // no repr after all
		}
		b.WriteRune(r)
		rest = rest[i+n:]
	}
	return b.String()
}

// escape reads the escape sequence of Python that s begins with; n is 0 when it
// is none that a repr has.
func escape(s string) (r rune, n int) {
	if len(s) < 2 {
		return 0, 0
	}
	digits := 0
	switch s[1] {
	case 'n':
		return '\n', 2
	case 't':
		return '\t', 2
	case 'r':
		return '\r', 2
	case '\\', '\'', '"':
		return rune(s[1]), 2
	case 'x':
		digits = 2
	case 'u':
		digits = 4
	case 'U':
		digits = 8
	}
	if digits == 0 || len(s) < 2+digits {
		return 0, 0
	}
	v, err := strconv.ParseUint(s[2:2+digits], 16, 32)
	if err != nil || v > utf8.MaxRune {
		return 0, 0
	}
	return rune(v), 2 + digits
}

// escapesOutside reports whether text has a backslash outside of what looks
// like string literals: a quote begins one at the start and behind space and
// punctuation, or their prefix b, as in ['a\n', b'\x00'].
func escapesOutside(text string) bool {
	var quote byte // of the literal that we are in; 0: none
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && quote == 0:
			return true
		case c == '\\':
			i++
		case c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"') && beginsLiteral(text[:i]):
			quote = c
		}
	}
	return quote != 0 // a literal without an end is none
}

func beginsLiteral(before string) bool {
	before = strings.TrimSuffix(before, "b")
	return before == "" || strings.ContainsRune(" ([{,:=<", rune(before[len(before)-1]))
}
