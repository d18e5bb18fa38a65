//go:build linux

package filesystem

import (
	"path"
	"strings"
	"testing"
)

func TestResolve(t *testing.T) {
	for _, tt := range []struct{ give, want string }{
		{"", "/work"},
		{"a", "/home/user/a"},
		{"a/../b", "/home/user/b"},
		{"../..", "/"},
		{"../../../x", "/x"},
		{"./a", "/home/user/a"},
		{"/", "/"},
		{"//a//b/", "/a/b"},
		{"/../../etc", "/etc"},
		{"~", "/home/user"},
		{"~/", "/home/user"},
		{"~/x y", "/home/user/x y"},
		{"~/../u2", "/home/u2"},
		{"./~x", "/home/user/~x"},
		{"a~", "/home/user/a~"},
		{"-rf", "/home/user/-rf"},
		{`C:\a b\f.txt`, `/home/user/C:\a b\f.txt`},
		{"a\nb", "/home/user/a\nb"},
		{"\xff", "/home/user/\xff"},
	} {
		if got, err := resolve(tt.give, "/home/user", "/work"); got != tt.want || err != nil {
			t.Errorf("resolve(%q) = %q, %v; want %q", tt.give, got, err, tt.want)
		}
	}
	for _, give := range []string{"a\x00b", "~root", "~root/x", "~~", strings.Repeat("x", maxPath)} {
		if got, err := resolve(give, "/home/user", "/work"); kindOf(err) != kindInvalid {
			t.Errorf("resolve(%q) = %q, %v; want an invalid path", clip(give), got, err)
		}
	}
}

func TestResolveWithoutDirectory(t *testing.T) {
	for _, tt := range []struct{ give, home, dir, want string }{
		{"", "/h", "", "/h"},
		{"", "/h", "w", "/w"},
		{"x", "", "", "/x"},
		{"x", "../h", "", "/h/x"},
	} {
		if got, err := resolve(tt.give, tt.home, tt.dir); got != tt.want || err != nil {
			t.Errorf("resolve(%q, %q, %q) = %q, %v; want %q", tt.give, tt.home, tt.dir, got, err, tt.want)
		}
	}
}

func FuzzResolve(f *testing.F) {
	for _, s := range []string{"", "a", "~", "~/x", "~x", "/..", "\x00", "a/./../..//b", "\xff\n"} {
		f.Add(s, "/home/user", "/work")
	}
	f.Add("x", "", "..")
	f.Fuzz(func(t *testing.T, p, home, dir string) {
		got, err := resolve(p, home, dir)
		if err != nil {
			if kindOf(err) != kindInvalid {
				t.Errorf("resolve(%q): error %v of another kind", p, err)
			}
			return
		}
		if !strings.HasPrefix(got, "/") || path.Clean(got) != got || strings.Contains(p, "\x00") {
			t.Errorf("resolve(%q, %q, %q) = %q: not an absolute clean path", p, home, dir, got)
		}
	})
}
