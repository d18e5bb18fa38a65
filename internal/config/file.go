package config

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// version of the format of ~/.abx/config.
const version = "1"

// maxFile is the largest file of settings that is read.
const maxFile = 1 << 20

func (o Options) read(name string) ([]byte, error) {
	if o.ReadFile != nil {
		return o.ReadFile(name)
	}
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // as a folder of that name, which some Python tools make
		return nil, fs.ErrNotExist
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s has more than %d bytes", name, maxFile)
	}
	return os.ReadFile(name)
}

// project reads ./.env: NAME=value, maybe with "export" and quotes. What it
// does not understand it skips: the file is not ours.
func (s *Settings) project(o Options) (map[Key]Value, error) {
	if o.Dir == "" {
		return nil, nil
	}
	name := filepath.Join(o.Dir, ".env")
	data, err := o.read(name)
	if err != nil {
		if !missing(err) {
			s.Warnings = append(s.Warnings, fmt.Sprintf("%s is ignored: %v.", name, err))
		}
		return nil, nil
	}
	found := map[string]string{}
	for l := range strings.Lines(string(data)) {
		if key, val, ok := assignment(l); ok {
			found[key] = val
		}
	}
	values := map[Key]Value{}
	for _, k := range keys {
		for _, env := range k.env {
			if text, ok := found[env]; ok && (text != "" || k.key == AuthToken) {
				values[k.key] = Value{Key: k.key, Text: text, Set: true, Source: Project, Where: name}
				break
			}
		}
	}
	return values, nil
}

// assignment reads one line of an .env file.
func assignment(l string) (key, val string, ok bool) {
	l = strings.TrimSpace(l)
	l = strings.TrimSpace(strings.TrimPrefix(l, "export "))
	key, val, ok = strings.Cut(l, "=")
	key, val = strings.TrimSpace(key), strings.TrimSpace(val)
	if !ok || key == "" || strings.HasPrefix(key, "#") {
		return "", "", false
	}
	if len(val) > 0 && (val[0] == '"' || val[0] == '\'') {
		if end := strings.IndexByte(val[1:], val[0]); end >= 0 {
			return key, val[1 : 1+end], true
		}
		return "", "", false
	}
	if i := strings.Index(val, " #"); i >= 0 {
		val = strings.TrimSpace(val[:i])
	}
	return key, val, true
}

// file reads ~/.abx/config: `key = value` a line, # begins a comment, a value
// in double quotes is a Go string.
func (s *Settings) file(o Options) (map[Key]Value, error) {
	if o.Home == "" {
		return nil, nil
	}
	name := Path(o.Home)
	data, err := o.read(name)
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read settings: %w", err)
	}
	values := map[Key]Value{}
	n := 0
	for l := range strings.Lines(string(data)) {
		n++
		l = strings.TrimSpace(l)
		if l == "" || l[0] == '#' {
			continue
		}
		key, val, ok := strings.Cut(l, "=")
		key, val = strings.TrimSpace(key), strings.TrimSpace(val)
		if ok && strings.HasPrefix(val, `"`) {
			val, err = strconv.Unquote(val)
			ok = err == nil
		}
		switch {
		case !ok:
			return nil, fmt.Errorf("%s, line %d: want KEY = VALUE", name, n)
		case key == "version" && val == version:
		case key == "version":
			return nil, fmt.Errorf("%s is of version %q, this abx knows %s: use a newer abx", name, val, version)
		case !known(Key(key)):
			return nil, fmt.Errorf("%s, line %d: unknown setting %q%s", name, n, key, suggestion(key))
		default:
			values[Key(key)] = Value{Key: Key(key), Text: val, Set: true, Source: File, Where: name}
		}
	}
	return values, nil
}

func known(k Key) bool {
	for _, s := range keys {
		if s.key == k {
			return true
		}
	}
	return false
}

// suggestion names a setting that was probably meant.
func suggestion(key string) string {
	fold := func(s string) string {
		return strings.ToLower(strings.NewReplacer("_", "", "-", "", ".", "").Replace(s))
	}
	for _, s := range keys {
		for _, other := range append([]string{string(s.key)}, s.env...) {
			if a, b := fold(key), fold(other); a == b || len(a) > 3 && (strings.HasSuffix(b, a) || strings.HasSuffix(a, b)) {
				return fmt.Sprintf(": did you mean %q?", s.key)
			}
		}
	}
	return ""
}
