//go:build linux

// Package account looks users up inside a sandbox. It reads /etc/passwd and
// /etc/group each time, since the sandbox's root may add users; it caches
// nothing and never changes them. Its invariant: the agent's own uid is never
// handed out.
package account

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Names and ids that every template of ours has.
const (
	UserName = "user"
	UserID   = 1000
	RootName = "root"
	// AgentID is the agent's own uid and gid, where more than one is mapped.
	AgentID = 990
)

// ErrUnknown is wrapped by Lookup for a user that is not there or not allowed.
var ErrUnknown = errors.New("unknown user")

// Account is one user of the sandbox.
type Account struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary
	Home   string
	Shell  string
}

// Book finds accounts. The zero value reads /etc/passwd and /etc/group and
// allows every user but the agent.
type Book struct {
	Passwd, Group string // paths; empty means those in /etc
	// Single is set where only one uid is mapped: then only that one exists.
	Single bool
}

// first are the users that a sandbox begins with. They are there even when its
// files are broken or no longer name them, so that it can be mended.
var first = []Account{
	{Name: UserName, UID: UserID, GID: UserID, Home: "/home/user", Shell: "/bin/sh"},
	{Name: RootName, Home: "/root", Shell: "/bin/sh"},
}

// Lookup finds a user by name or decimal uid. UserName and RootName, by either,
// are found even where the files have no entry for them that may be used.
func (b Book) Lookup(name string) (Account, error) {
	a, err := b.find(name)
	if err == nil {
		err = b.allow(a, name)
	}
	if err != nil {
		i := slices.IndexFunc(first, func(f Account) bool {
			return name == f.Name || name == strconv.FormatUint(uint64(f.UID), 10)
		})
		if i < 0 {
			return Account{}, err
		}
		a = first[i]
		if err := b.allow(a, name); err != nil {
			return Account{}, err
		}
	}
	if !b.Single {
		a.Groups = b.groups(a)
	}
	return a, nil
}

// allow refuses users that nobody may be.
func (b Book) allow(a Account, name string) error {
	if a.UID == AgentID || a.GID == AgentID {
		return fmt.Errorf("%w: %q is the sandbox agent's", ErrUnknown, name)
	}
	if b.Single && a.UID != UserID {
		return fmt.Errorf("%w: %q: this machine maps a single user id into sandboxes, so only %q exists; install newuidmap (Debian: uidmap) and give yourself a range in /etc/subuid to have root inside", ErrUnknown, name, UserName)
	}
	return nil
}

func (b Book) find(name string) (Account, error) {
	path := orDefault(b.Passwd, "/etc/passwd")
	text, err := read(path)
	if err != nil {
		return Account{}, fmt.Errorf("look up user %q: %w", name, err)
	}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		p := strings.Split(s.Text(), ":")
		if len(p) < 7 || (p[0] != name && p[2] != name) {
			continue
		}
		uid, err1 := strconv.ParseUint(p[2], 10, 32)
		gid, err2 := strconv.ParseUint(p[3], 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return Account{}, fmt.Errorf("user %q in %s: %w", name, path, err)
		}
		return Account{Name: p[0], UID: uint32(uid), GID: uint32(gid), Home: p[5], Shell: p[6]}, nil
	}
	return Account{}, fmt.Errorf("%w: %q", ErrUnknown, name)
}

// groups finds the supplementary groups of a. They only add rights, so a file
// that cannot be read gives none.
func (b Book) groups(a Account) (gids []uint32) {
	text, err := read(orDefault(b.Group, "/etc/group"))
	if err != nil {
		return nil
	}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan() && len(gids) < 32; {
		p := strings.Split(s.Text(), ":")
		if len(p) < 4 || !slices.Contains(strings.Split(p[3], ","), a.Name) {
			continue
		}
		if gid, err := strconv.ParseUint(p[2], 10, 32); err == nil && gid != AgentID {
			gids = append(gids, uint32(gid))
		}
	}
	return gids
}

// maxBook bounds what is read of a file, in bytes.
const maxBook = 1 << 20

// read reads a file that the sandbox's root may have put anything in the place
// of: a pipe must not make us wait, nor a device make us read for ever.
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	return io.ReadAll(io.LimitReader(f, maxBook))
}

func orDefault(s, d string) string {
	if s == "" {
		return d
	}
	return s
}
