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
	if _, err := b.Lookup("user"); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Errorf("a pipe: %v", err)
	}
	b.Passwd = "/dev/zero"
	if _, err := b.Lookup("user"); err == nil {
		t.Error("a device was read")
	}
	b.Passwd = filepath.Dir(b.Group)
	if _, err := b.Lookup("user"); err == nil {
		t.Error("a folder was read")
	}
}
