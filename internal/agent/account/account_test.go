//go:build linux

package account

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func book(t *testing.T, passwd, group string) Book {
	t.Helper()
	dir := t.TempDir()
	b := Book{Passwd: filepath.Join(dir, "passwd"), Group: filepath.Join(dir, "group")}
	if err := errors.Join(os.WriteFile(b.Passwd, []byte(passwd), 0o600), os.WriteFile(b.Group, []byte(group), 0o600)); err != nil {
		t.Fatal(err)
	}
	return b
}

const users = "root:x:0:0:root:/root:/bin/bash\nabx-agent:x:990:990::/:/bin/false\n# a comment\nuser:x:1000:1000::/home/user:/bin/sh\n" +
	"thief:x:990:5::/:/bin/sh\nbroken:x:many:1000::/:/bin/sh\nshort:x:7\n"

func TestLookup(t *testing.T) {
	b := book(t, users, "root:x:0:\nwheel:x:10:user,root\naudio:x:29:other\nagents:x:990:user\n")
	want := Account{Name: "user", UID: 1000, GID: 1000, Groups: []uint32{10}, Home: "/home/user", Shell: "/bin/sh"}
	for _, name := range []string{"user", "1000"} {
		got, err := b.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	for _, name := range []string{"abx-agent", "990", "thief", "nobody", "", "short"} {
		if a, err := b.Lookup(name); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: %v %v, want ErrUnknown", name, a, err)
		}
	}
	if _, err := b.Lookup("broken"); err == nil {
		t.Error("a user without a number was found")
	}
}

// Root inside, or with a single id the user, may break the files; the sandbox
// goes on as the two users that it began with.
func TestBrokenFiles(t *testing.T) {
	user := Account{Name: "user", UID: 1000, GID: 1000, Home: "/home/user", Shell: "/bin/sh"}
	root := Account{Name: "root", Home: "/root", Shell: "/bin/sh"}
	const other = "other:x:1001:1001::/home/other:/bin/sh\n"
	for name, tt := range map[string]struct {
		passwd string
		change func(*Book) error
	}{
		"missing":       {"", func(b *Book) error { return os.Remove(b.Passwd) }},
		"a folder":      {"", func(b *Book) error { return errors.Join(os.Remove(b.Passwd), os.Mkdir(b.Passwd, 0o755)) }},
		"a pipe":        {"", func(b *Book) error { return errors.Join(os.Remove(b.Passwd), syscall.Mkfifo(b.Passwd, 0o600)) }},
		"a loop":        {"", func(b *Book) error { return errors.Join(os.Remove(b.Passwd), os.Symlink(b.Passwd, b.Passwd)) }},
		"a device":      {"", func(b *Book) error { b.Passwd = "/dev/zero"; return nil }},
		"empty":         {"", nil},
		"others only":   {other, nil},
		"no numbers":    {"user:x:many:1000::/home/user:/bin/sh\nroot:x:0:::/root:/bin/sh\n", nil},
		"short":         {"user:x:1000\nroot\n", nil},
		"the agent's":   {"user:x:990:1000::/:/bin/sh\nroot:x:0:990::/:/bin/sh\n", nil},
		"a line of NUL": {strings.Repeat("\x00", 1<<17) + "\n" + "user:x:7:7::/:/bin/sh\n", nil},
		"no group":      {"", func(b *Book) error { return os.Remove(b.Group) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := book(t, tt.passwd, "")
			if tt.change != nil {
				if err := tt.change(&b); err != nil {
					t.Fatal(err)
				}
			}
			for key, want := range map[string]Account{"user": user, "1000": user, "root": root, "0": root} {
				got, err := b.Lookup(key)
				if err != nil {
					t.Errorf("%q: %v", key, err)
				} else if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%q: %s", key, diff)
				}
			}
			if a, err := b.Lookup("nobody"); err == nil {
				t.Errorf("nobody: %v", a)
			}
			b.Single = true
			if got, err := b.Lookup("user"); err != nil || !cmp.Equal(user, got) {
				t.Errorf("with a single id: %v %v", got, err)
			}
			if _, err := b.Lookup("root"); !errors.Is(err, ErrUnknown) {
				t.Errorf("root with a single id: %v", err)
			}
		})
	}
	b := book(t, "user:x:7:8::/home/u:/bin/zsh\n", "")
	want := Account{Name: "user", UID: 7, GID: 8, Home: "/home/u", Shell: "/bin/zsh"}
	if got, err := b.Lookup("user"); err != nil || !cmp.Equal(want, got) {
		t.Errorf("an entry that is there: %v %v", got, err)
	}
	b.Single = true
	if got, err := b.Lookup("user"); err != nil || !cmp.Equal(user, got) {
		t.Errorf("an entry that one id cannot be: %v %v", got, err)
	}
}

func TestSingle(t *testing.T) {
	b := book(t, users, "")
	b.Single = true
	if a, err := b.Lookup("user"); err != nil || a.UID != UserID {
		t.Errorf("user: %v %v", a, err)
	}
	if _, err := b.Lookup("root"); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "newuidmap") {
		t.Errorf("root: %v; want what mends it", err)
	}
}

// The sandbox's root may put anything in the place of the files.
func TestHostileFiles(t *testing.T) {
	b := book(t, users, "")
	if err := errors.Join(os.Remove(b.Passwd), syscall.Mkfifo(b.Passwd, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Lookup("other"); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Errorf("a pipe: %v", err)
	}
	b.Passwd = "/dev/zero"
	if _, err := b.Lookup("other"); err == nil {
		t.Error("a device was read")
	}
	b.Passwd = filepath.Dir(b.Group)
	if _, err := b.Lookup("other"); err == nil {
		t.Error("a folder was read")
	}
}
