//go:build linux

package filesystem

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// notThere makes of a path that leads through a file one that does not exist:
// to who only looks, it is the same.
func notThere(p string, err error) error {
	if errors.Is(err, unix.ENOTDIR) {
		return at(p, unix.ENOENT)
	}
	return err
}

// makeDir makes the directory p and its parents.
func (t *tree) makeDir(p string) error {
	pl, err := t.locate(p, route{follow: true, make: true})
	if err != nil {
		return err
	}
	defer pl.close()
	err = mkdir(pl.dir, pl.name)
	if pl.name == "." {
		err = unix.EEXIST
	}
	if !errors.Is(err, unix.EEXIST) {
		return atEnd(p, pl.full(), err)
	}
	st, statErr := pl.lstat()
	if statErr == nil && fileType(&st) != unix.S_IFDIR {
		return faultf(kindInvalid, "path %s exists and is not a directory", show(p))
	}
	return at(p, err)
}

// move renames from to to, whose parents are made. Links are moved, not what
// they point to.
func (t *tree) move(from, to string) error {
	src, err := t.locate(from, route{})
	if err != nil {
		return notThere(from, err)
	}
	defer src.close()
	if _, err := src.lstat(); err != nil { // before parents are made for nothing
		return at(from, err)
	}
	if err := movable(src, from); err != nil {
		return err
	}
	dst, err := t.locate(to, route{make: true})
	if err != nil {
		return err
	}
	defer dst.close()
	if err := movable(dst, to); err != nil {
		return err
	}
	err = unix.Renameat(src.fd, src.name, dst.fd, dst.name)
	switch {
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM): // of either side
		return &fault{kind: kindDenied, text: fmt.Sprintf("path %s to %s: %v", show(from), show(to), err), err: err}
	case errors.Is(err, unix.EINVAL) && strings.HasPrefix(dst.full(), src.full()+"/"):
		return faultf(kindInvalid, "path %s: a directory cannot be moved into itself (%s)", show(from), show(to))
	case errors.Is(err, unix.ENOENT): // the parents of to are there: it is from that went
		return at(from, err)
	case errors.Is(err, unix.ENOTDIR):
		return faultf(kindInvalid, "path %s is a directory and %s is not; remove the latter first", show(from), show(to))
	case errors.Is(err, unix.EISDIR):
		return faultf(kindInvalid, "path %s is a directory and %s is not; name the file inside the directory: %s", show(to), show(from), show(path.Join(to, path.Base(from))))
	}
	return at(to, err)
}

func movable(pl *place, p string) error {
	if pl.name == "." {
		return faultf(kindInvalid, "path %s cannot be moved or replaced", show(p))
	}
	if kernelFS(pl.magic) {
		return readOnlyKernel(p)
	}
	return nil
}
