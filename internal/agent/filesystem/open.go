//go:build linux

package filesystem

import (
	"errors"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/account"
)

// maxRaces is how often a name may change under an open before it is given up.
const maxRaces = 16

// An opened is a regular file open for its content.
type opened struct {
	*os.File
	fd     int // File's; its own Fd method would make reads wait
	at     *place
	stat   unix.Stat_t // when it was opened
	kernel bool        // on a kernel file system: the size means nothing
	made   bool        // openWrite made it
}

func (o *opened) Close() error {
	o.at.close()
	return o.File.Close()
}

// openRead opens the regular file p, links followed, for reading.
func (t *tree) openRead(p string) (*opened, error) {
	return t.open(p, route{follow: true}, unix.O_RDONLY)
}

// openWrite opens the regular file p, links followed, for writing and leaves
// its content alone. When it is missing, it is made with mode 0666, and its
// directories with it with 0755, less the umask.
func (t *tree) openWrite(p string) (*opened, error) {
	return t.open(p, route{follow: true, make: true}, unix.O_WRONLY)
}

func (t *tree) open(p string, r route, flags int) (*opened, error) {
	for range maxRaces {
		pl, err := t.locate(p, r)
		if err != nil {
			return nil, err
		}
		o, err := openAt(pl, flags)
		if err == nil {
			return o, nil
		}
		pl.close()
		raced := errors.Is(err, unix.ELOOP) || r.make && (errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT))
		if !raced {
			return nil, atEnd(p, pl.full(), err)
		}
	}
	return nil, racing(p)
}

// racing is the end of a lookup that a program of the sandbox kept disturbing.
func racing(p string) error {
	return faultf(kindBusy, "path %s keeps changing; try again when it does not", show(p))
}

// openAt opens what is at pl, or makes it when it is to be written. ELOOP,
// EEXIST and, then, ENOENT mean that it changed since it was located.
func openAt(pl *place, flags int) (*opened, error) {
	write := flags == unix.O_WRONLY
	st, err := pl.lstat()
	made := errors.Is(err, unix.ENOENT) && write
	if err != nil && !made {
		return nil, err
	}
	if write && kernelFS(pl.magic) {
		return nil, readOnlyKernel(pl.full())
	}
	if made {
		flags |= unix.O_CREAT | unix.O_EXCL
	} else if err := regular(pl.full(), &st); err != nil {
		return nil, err
	}
	// O_NONBLOCK: neither a FIFO put here just now nor a lease may hold us up.
	fd, err := openat(pl.fd, pl.name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0o666)
	if err != nil {
		return nil, err
	}
	o := &opened{fd: fd, at: pl, made: made}
	if err := o.check(fd, write); err != nil {
		unix.Close(fd)
		return nil, err
	}
	if !o.kernel {
		if err := unix.SetNonblock(fd, false); err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	o.File = os.NewFile(uintptr(fd), path.Join("/", pl.full()))
	return o, nil
}

// check looks at what was really opened.
func (o *opened) check(fd int, write bool) error {
	if err := unix.Fstat(fd, &o.stat); err != nil {
		return err
	}
	if err := regular(o.at.full(), &o.stat); err != nil {
		return err
	}
	magic := o.at.magic
	if o.stat.Dev != o.at.dev { // a file can be a mount point
		var err error
		if magic, err = magicOf(fd); err != nil {
			return err
		}
	}
	o.kernel = kernelFS(magic)
	if o.kernel && write {
		return readOnlyKernel(o.at.full())
	}
	return nil
}

// regular refuses what is not a regular file. A symbolic link is ELOOP.
func regular(p string, st *unix.Stat_t) error {
	what := ""
	switch fileType(st) {
	case unix.S_IFREG:
		return nil
	case unix.S_IFLNK:
		return unix.ELOOP
	case unix.S_IFDIR:
		return at(p, unix.EISDIR)
	case unix.S_IFIFO:
		what = "a FIFO"
	case unix.S_IFSOCK:
		what = "a socket"
	default:
		what = "a device"
	}
	return faultf(kindInvalid, "path %s is %s, not a regular file; read or write it with a command in the sandbox", show(p), what)
}

// A rawReader reads a file of the kernel to its end and never waits: where the
// kernel has nothing to give now, it ends. What procfs shows of a process may
// depend on who reads, not only on who opened.
type rawReader struct {
	*Service
	user account.Account
	fd   int
}

func (r rawReader) Read(b []byte) (int, error) {
	n, err := as(r.Service, r.user, func() (int, error) {
		return again(func() (int, error) { return unix.Read(r.fd, b) })
	})
	switch {
	case errors.Is(err, unix.EAGAIN), err == nil && n == 0 && len(b) > 0:
		return 0, io.EOF
	case err != nil:
		return 0, err
	}
	return n, nil
}
