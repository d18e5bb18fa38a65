//go:build linux

package filesystem

import (
	"path"
	"strings"
)

// maxPath is Linux's PATH_MAX.
const maxPath = 4096

// resolve turns the path of a request into an absolute, clean one: p relative
// to home, "~" and "~/x" in it, or dir when p is empty. A home or dir that is
// not absolute counts from "/".
func resolve(p, home, dir string) (string, error) {
	home = path.Join("/", home)
	switch {
	case strings.ContainsRune(p, 0):
		return "", faultf(kindInvalid, "path %s holds a NUL byte", show(p))
	case len(p) >= maxPath:
		return "", faultf(kindInvalid, "path %s is longer than %d bytes", show(p), maxPath-1)
	case p == "":
		if dir == "" {
			return home, nil
		}
		return path.Join("/", dir), nil
	case p == "~" || strings.HasPrefix(p, "~/"):
		return path.Join(home, p[1:]), nil
	case p[0] == '~':
		return "", faultf(kindInvalid, "path %s: only ~ and ~/ are known, for the user's own home; write a file whose name begins with ~ as ./%s", show(p), clip(p))
	case p[0] == '/':
		return path.Clean(p), nil
	}
	return path.Join(home, p), nil
}
