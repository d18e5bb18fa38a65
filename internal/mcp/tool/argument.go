package tool

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/agent-sandbox/abx/internal/mcp/wire"
)

// The kinds of parameters.
const (
	kindText  = "string"
	kindWhole = "integer"
	kindWords = "object" // names to strings
)

// A param is one parameter of a tool. The schema is made from it, and the
// check, so that they cannot differ.
type param struct {
	name     string
	kind     string
	doc      string
	required bool
	text     string   // default of a kindText; "" has none
	whole    int64    // default of a kindWhole; 0 has none
	least    int64    // of a kindWhole
	most     int64    // of a kindWhole; 0 is maxWhole
	enum     []string // of a kindText
	absolute bool     // a path that must be absolute
	aliases  map[string]string
	aka      []string // other names that clients use for it
}

// Names that clients use for parameters of several tools.
var (
	akaPath    = []string{"file", "filename", "filepath", "file_path", "target_file"}
	akaFolder  = []string{"dir", "directory", "folder", "working_dir", "working_directory", "workdir"}
	akaTimeout = []string{"timeout_ms", "timeout_seconds", "timeout_secs", "ttl"}
)

// maxWhole keeps seconds far from where they overflow, maxOffset sizes.
const (
	maxWhole  = 1 << 31
	maxOffset = 1 << 52
)

// arguments are the checked arguments of one call, defaults filled in.
type arguments struct {
	texts  map[string][]byte
	wholes map[string]int64
	words  map[string]string
	given  map[string]bool

	strangers []stranger
}

// A stranger is an argument that no parameter has.
type stranger struct {
	name string
	val  string // JSON
}

func (a arguments) text(name string) string  { return string(a.texts[name]) }
func (a arguments) bytes(name string) []byte { return a.texts[name] }
func (a arguments) whole(name string) int64  { return a.wholes[name] }
func (a arguments) has(name string) bool     { return a.given[name] }

// badArgument is the error of a check: it names the argument.
type badArgument struct{ text string }

func (e *badArgument) Error() string { return e.text }

func bad(name, format string, args ...any) error {
	return &badArgument{fmt.Sprintf("argument %q: ", name) + fmt.Sprintf(format, args...)}
}

// parse checks raw, a JSON object, against params. An argument that no
// parameter has is kept apart, as clients add their own, unless it looks like a
// slip for one that has it. An argument that is null counts as left out.
func parse(params []param, raw []byte) (arguments, error) {
	a := arguments{texts: map[string][]byte{}, wholes: map[string]int64{}, given: map[string]bool{}}
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || string(raw) == "null" {
		raw = []byte("{}")
	}
	err := wire.Object(raw, func(key, val []byte) error {
		i := slices.IndexFunc(params, func(p param) bool { return p.name == string(key) })
		if string(val) == "null" {
			return nil
		}
		if i < 0 {
			a.strangers = append(a.strangers, stranger{string(key), string(val)})
			return nil
		}
		a.given[params[i].name] = true
		return a.set(&params[i], val)
	})
	if syntax := (*wire.SyntaxError)(nil); errors.As(err, &syntax) {
		return a, &badArgument{"the arguments must be a JSON object such as {\"" + params[0].name + "\": ...}, got " + show(raw)}
	}
	if err != nil {
		return a, err
	}
	for _, s := range a.strangers {
		if p := a.meant(s.name, params); p != "" {
			return a, &badArgument{fmt.Sprintf("argument %s is not known: did you mean %q?", quote(s.name), p)}
		}
	}
	return a, a.fill(params)
}

// fill sets defaults and refuses what is missing.
func (a *arguments) fill(params []param) error {
	for _, p := range params {
		switch {
		case a.given[p.name]:
		case p.required:
			unknown := ""
			if len(a.strangers) > 0 {
				unknown = " (not known: " + a.strangerNames() + ")"
			}
			return &badArgument{fmt.Sprintf("argument %q is missing: give %s%s", p.name, p.doc, unknown)}
		case p.kind == kindWhole && p.whole != 0:
			a.wholes[p.name] = p.whole
		case p.kind == kindText && p.text != "":
			a.texts[p.name] = []byte(p.text)
		}
	}
	return nil
}

func (a *arguments) set(p *param, val []byte) (err error) {
	switch p.kind {
	case kindWhole:
		a.wholes[p.name], err = p.parseWhole(val)
	case kindWords:
		a.words, err = p.parseWords(val)
	default:
		a.texts[p.name], err = p.parseText(val)
	}
	return err
}

func (p *param) parseText(val []byte) ([]byte, error) {
	if val[0] != '"' {
		return nil, bad(p.name, "must be a string, got %s", show(val))
	}
	text, err := wire.String(val)
	if err != nil {
		return nil, bad(p.name, "must be a string: %v", err)
	}
	if len(p.enum) > 0 && !slices.Contains(p.enum, string(text)) {
		return nil, bad(p.name, "%s is not one of %s%s", quote(string(text)), strings.Join(p.enum, ", "), p.suggest(string(text)))
	}
	if p.absolute {
		return text, checkPath(p.name, string(text))
	}
	return text, nil
}

// suggest names the value of an enum that was probably meant.
func (p *param) suggest(text string) string {
	lower := strings.ToLower(strings.TrimSpace(text))
	best := p.aliases[lower]
	for _, e := range p.enum {
		if best == "" && distance(lower, e) <= max(1, len(e)/3) {
			best = e
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(": did you mean %q?", best)
}

// checkPath refuses paths that are not absolute and names the absolute form.
func checkPath(name, p string) error {
	switch {
	case p == "":
		return bad(name, "is empty: give an absolute path such as %q", workDir)
	case strings.ContainsRune(p, 0):
		return bad(name, "%s holds a NUL byte, which no path has", quote(p))
	case p == "~" || strings.HasPrefix(p, "~/"):
		return bad(name, "%s: give the absolute path, %s", quote(p), quote(path.Join(homeDir, p[1:])))
	case strings.HasPrefix(p, "$"):
		return bad(name, "%s: variables are not known here: give the absolute path, such as %s", quote(p), quote(path.Join(homeDir, "file")))
	case p[0] != '/':
		return bad(name, "%s is relative: give the absolute path, such as %s", quote(p), quote(path.Join(workDir, strings.ReplaceAll(p, `\`, "/"))))
	}
	return nil
}

func (p *param) parseWhole(val []byte) (int64, error) {
	n, err := strconv.ParseInt(string(val), 10, 64)
	if err != nil {
		f, ferr := strconv.ParseFloat(string(val), 64)
		if val[0] == '"' || ferr != nil && !errors.Is(ferr, strconv.ErrRange) {
			return 0, bad(p.name, "must be a whole number, got %s", show(val))
		}
		if f != math.Trunc(f) {
			return 0, bad(p.name, "must be a whole number, got %s", show(val))
		}
		n = int64(min(max(f, -maxOffset), maxOffset+1))
	}
	most := p.most
	if most == 0 {
		most = maxWhole
	}
	switch {
	case n < p.least:
		return 0, bad(p.name, "%s is too small: give at least %d", show(val), p.least)
	case n > most:
		return 0, bad(p.name, "%s is too large: give at most %d", show(val), most)
	}
	return n, nil
}

func (p *param) parseWords(val []byte) (map[string]string, error) {
	if val[0] != '{' {
		return nil, bad(p.name, `must be an object of strings such as {"NAME": "value"}, got %s`, show(val))
	}
	words := map[string]string{}
	err := wire.Object(val, func(key, v []byte) error {
		k := string(key)
		switch {
		case k == "" || strings.ContainsAny(k, "=\x00"):
			return bad(p.name, "%s is no name of a variable", quote(k))
		case v[0] != '"':
			return bad(p.name, "the value of %s must be a string, got %s: put it in quotes", quote(k), show(v))
		}
		text, err := wire.String(v)
		if err != nil {
			return err
		}
		if bytes.IndexByte(text, 0) >= 0 {
			return bad(p.name, "the value of %s holds a NUL byte", quote(k))
		}
		words[k] = string(text)
		return nil
	})
	return words, err
}

// fold makes spellings of one name equal.
func fold(name string) string {
	return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(name))
}

// meant returns the parameter that name is a slip for, "" if none. One that is
// required and missing goes before all that merely look alike.
func (a *arguments) meant(name string, params []param) string {
	name = fold(name)
	similar := func(p param) bool { return distance(name, fold(p.name)) <= max(1, len(p.name)/4) }
	other := func(p param) bool {
		return slices.ContainsFunc(p.aka, func(s string) bool { return fold(s) == name })
	}
	for _, required := range []bool{true, false} {
		for _, is := range []func(param) bool{other, similar} {
			for _, p := range params {
				if p.required == required && !a.given[p.name] && is(p) {
					return p.name
				}
			}
		}
	}
	return ""
}

// strangerNames lists the arguments that no parameter has, in quotes.
func (a *arguments) strangerNames() string {
	const most = 5
	var names []string
	for _, s := range a.strangers[:min(most, len(a.strangers))] {
		names = append(names, quote(s.name))
	}
	if more := len(a.strangers) - most; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// ignored notes the arguments that no parameter has: they had no effect.
func (p *report) ignored(tool string, a arguments, params []param) {
	if len(a.strangers) == 0 {
		return
	}
	var known []string
	for _, q := range params {
		known = append(known, q.name)
	}
	p.note("Ignored, since %s does not know %s: %s. It takes %s.", tool, plural(len(a.strangers), "this argument", "these arguments"), a.strangerNames(), strings.Join(known, ", "))
}

// distance is how many letters must be changed, added or dropped to make b of a.
func distance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// show quotes a JSON value in an error.
func show(val []byte) string { return clipText(string(val)) }

// quote quotes what a client sent in an error.
func quote(s string) string { return strconv.Quote(clipText(s)) }

// clipText shortens s for an error, at whole characters.
func clipText(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	s = s[:most]
	for len(s) > 0 && !utf8.RuneStart(s[len(s)-1]) {
		s = s[:len(s)-1]
	}
	return s[:max(0, len(s)-1)] + "..."
}
