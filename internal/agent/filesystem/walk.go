//go:build linux

package filesystem

import (
	"errors"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A tree is the file system that paths are looked up in. Its methods act with
// the rights of the thread that they run on.
type tree struct {
	root string // the directory that "/" means
	self int    // the agent's process id
}

func newTree(root string) *tree { return &tree{root: root, self: os.Getpid()} }

// A dir is a directory held open with O_PATH. Who gets one closes it.
type dir struct {
	fd       int
	path     string // within the tree, links resolved
	dev, ino uint64
	magic    int64 // type of its file system
	shared   bool  // anyone may make names here, and each removes its own only
}

func (d *dir) close() { unix.Close(d.fd) }

// A place is a name in a directory, or "." for the directory itself. There
// need be nothing of that name. Who gets a place closes it.
type place struct {
	*dir
	name string
}

// full returns the path of the place, links before it resolved.
func (p *place) full() string { return path.Join(p.path, p.name) }

func (p *place) lstat() (unix.Stat_t, error) { return lstatAt(p.fd, p.name) }

func lstatAt(dir int, name string) (st unix.Stat_t, err error) {
	_, err = again(func() (int, error) {
		return 0, unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	return st, err
}

func fileType(st *unix.Stat_t) uint32 { return st.Mode & unix.S_IFMT }

// route says how locate walks.
type route struct {
	// follow resolves the last name too when it is a symbolic link, also one
	// that leads to nothing yet.
	follow bool
	// make makes the directories before the last name that are missing.
	make bool
}

// maxLinks is the kernel's own bound for one path.
const maxLinks = 40

// locate walks to the last name of p, an absolute clean path. The error, a
// fault, names p.
func (t *tree) locate(p string, r route) (*place, error) {
	root, err := t.openRoot()
	if err != nil {
		return nil, err
	}
	w := walk{tree: t, route: r, cur: root, rootDev: root.dev, rootIno: root.ino}
	w.push(p)
	name, err := w.run()
	if err != nil {
		w.cur.close()
		return nil, at(p, err)
	}
	return &place{dir: w.cur, name: name}, nil
}

func (t *tree) openRoot() (*dir, error) {
	fd, err := openat(unix.AT_FDCWD, t.root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, at("/", err)
	}
	return t.hold(fd, "/", nil)
}

// hold takes the open directory fd, reached from parent (nil at the root) over
// to a dir. It closes fd when it refuses it.
func (t *tree) hold(fd int, p string, parent *dir) (*dir, error) {
	d := &dir{fd: fd, path: p}
	err := d.fill(parent)
	if err == nil && d.magic == unix.PROC_SUPER_MAGIC {
		err = guardProcess(fd, t.self)
	}
	if err != nil {
		d.close()
		return nil, at(p, err)
	}
	return d, nil
}

func (d *dir) fill(parent *dir) error {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return err
	}
	if fileType(&st) != unix.S_IFDIR {
		return unix.ENOTDIR
	}
	d.dev, d.ino = st.Dev, st.Ino
	d.shared = st.Mode&unix.S_ISVTX != 0 && st.Mode&unix.S_IWOTH != 0
	if parent != nil && parent.dev == d.dev {
		d.magic = parent.magic
		return nil
	}
	var err error
	d.magic, err = magicOf(d.fd)
	return err
}

func magicOf(fd int) (int64, error) {
	var st unix.Statfs_t
	_, err := again(func() (int, error) { return 0, unix.Fstatfs(fd, &st) })
	return int64(uint32(st.Type)), err
}

// enter opens the directory name in d without following a link.
func (t *tree) enter(d *dir, name string) (*dir, error) {
	fd, err := openat(d.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return t.hold(fd, path.Join(d.path, name), d)
}

// walk is one lookup on its way.
type walk struct {
	*tree
	route
	cur              *dir // owned
	rest             []string
	links            int
	rootDev, rootIno uint64
}

// push puts the names of p before those still to walk.
func (w *walk) push(p string) {
	names := slices.DeleteFunc(strings.Split(p, "/"), func(s string) bool { return s == "" || s == "." })
	slices.Reverse(names)
	w.rest = append(w.rest, names...)
}

// run walks until one name is left and returns it, "." when the walk ended on
// a directory without a name of its own.
func (w *walk) run() (string, error) {
	for len(w.rest) > 0 {
		name := w.rest[len(w.rest)-1]
		w.rest = w.rest[:len(w.rest)-1]
		var err error
		switch {
		case name == "..":
			err = w.up()
		case len(w.rest) > 0:
			err = w.down(name)
		default:
			var done bool
			if done, err = w.last(name); done {
				return name, nil
			}
		}
		if err != nil {
			return "", err
		}
	}
	return ".", nil
}

// last reports whether the walk ends at name; if not, it is a link and its
// target was pushed.
func (w *walk) last(name string) (done bool, err error) {
	if !w.follow {
		return true, nil
	}
	st, err := w.stat(name)
	if errors.Is(err, unix.ENOENT) {
		return true, nil
	}
	if err != nil || fileType(&st) != unix.S_IFLNK {
		return err == nil, err
	}
	if err := w.cur.follows(name); err != nil {
		return false, err
	}
	return false, w.link(name)
}

// follows asks the kernel whether it would follow the link name at the end of
// a path: with fs.protected_symlinks, not everyone's in a directory as /tmp.
func (d *dir) follows(name string) error {
	if !d.shared {
		return nil
	}
	fd, err := openat(d.fd, name, unix.O_PATH, 0)
	if err == nil {
		unix.Close(fd)
	}
	if errors.Is(err, unix.EACCES) { // other errors are the target's
		return err
	}
	return nil
}

func (w *walk) stat(name string) (unix.Stat_t, error) { return lstatAt(w.cur.fd, name) }

// down goes one directory down, making it if it is missing and may be made.
func (w *walk) down(name string) error {
	// A name may change between two looks at it; each pass takes it as it is then.
	for range maxLinks {
		st, err := w.stat(name)
		if errors.Is(err, unix.ENOENT) && w.make {
			if err := mkdir(w.cur, name); err != nil && !errors.Is(err, unix.EEXIST) {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		switch fileType(&st) {
		case unix.S_IFLNK:
			if err = w.link(name); !errors.Is(err, unix.EINVAL) {
				return err
			}
		case unix.S_IFDIR:
			var next *dir
			if next, err = w.enter(w.cur, name); err == nil {
				w.move(next)
				return nil
			}
			if !missing(err) {
				return err
			}
		default:
			return unix.ENOTDIR
		}
	}
	return racing(path.Join(w.cur.path, name))
}

func (w *walk) move(next *dir) {
	w.cur.close()
	w.cur = next
}

// up goes to the parent directory, at the root nowhere.
func (w *walk) up() error {
	if w.cur.dev == w.rootDev && w.cur.ino == w.rootIno {
		return nil
	}
	fd, err := openat(w.cur.fd, "..", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	next, err := w.hold(fd, path.Dir(w.cur.path), nil)
	if err != nil {
		return err
	}
	w.move(next)
	return nil
}

// link pushes the target of the symbolic link name.
func (w *walk) link(name string) error {
	if w.cur.magic == unix.PROC_SUPER_MAGIC {
		return faultf(kindDenied, "path %s: links of procfs are not followed, they lead into running processes", show(path.Join(w.cur.path, name)))
	}
	if w.links++; w.links > maxLinks {
		return unix.ELOOP
	}
	buf := make([]byte, maxPath)
	n, err := again(func() (int, error) { return unix.Readlinkat(w.cur.fd, name, buf) })
	if err != nil {
		return err
	}
	target := string(buf[:n])
	if strings.HasPrefix(target, "/") {
		root, err := w.openRoot()
		if err != nil {
			return err
		}
		w.move(root)
	}
	w.push(target)
	return nil
}

// mkdir makes the directory name in d.
func mkdir(d *dir, name string) error {
	if kernelFS(d.magic) {
		return readOnlyKernel(path.Join(d.path, name))
	}
	return unix.Mkdirat(d.fd, name, 0o755)
}
