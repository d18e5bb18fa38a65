//go:build linux

package filesystem

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/account"
)

// names tells users and groups by their ids. Each of the two files is read
// once, when first needed.
type names struct {
	book          account.Book
	users, groups map[uint32]string
}

func newNames(b account.Book) *names { return &names{book: b} }

// user returns the name of id, or id in digits.
func (n *names) user(id uint32) string {
	if n.users == nil {
		n.users = readNames(n.book.Passwd, "/etc/passwd")
	}
	return nameOr(n.users, id)
}

// group returns the name of id, or id in digits.
func (n *names) group(id uint32) string {
	if n.groups == nil {
		n.groups = readNames(n.book.Group, "/etc/group")
	}
	return nameOr(n.groups, id)
}

func nameOr(m map[uint32]string, id uint32) string {
	if name, ok := m[id]; ok {
		return name
	}
	return decimal(id)
}

// maxNames bounds what is read of a file of names, in bytes.
const maxNames = 1 << 20

// readNames reads name and id of each line. The file belongs to the sandbox's
// root, who may have put anything there; what cannot be read gives no names.
func readNames(file, fallback string) map[uint32]string {
	m := map[uint32]string{}
	if file == "" {
		file = fallback
	}
	fd, err := openat(unix.AT_FDCWD, file, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return m
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || fileType(&st) != unix.S_IFREG {
		return m
	}
	for s := bufio.NewScanner(io.LimitReader(f, maxNames)); s.Scan(); {
		p := strings.SplitN(s.Text(), ":", 4)
		if len(p) < 4 {
			continue
		}
		id, err := strconv.ParseUint(p[2], 10, 32)
		if _, known := m[uint32(id)]; err == nil && !known {
			m[uint32(id)] = valid(p[0])
		}
	}
	return m
}
