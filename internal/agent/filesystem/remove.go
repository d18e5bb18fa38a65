//go:build linux

package filesystem

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// kept are directories that stay, mount points or not.
var kept = []string{"/", "/dev", "/proc", "/sys"}

// remove removes p and all below it; links are removed, not followed. It
// refuses before any change when a mount point is at or below p: behind it may
// be a directory of the host.
func (t *tree) remove(ctx context.Context, p string) error {
	pl, err := t.locate(p, route{})
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer pl.close()
	st, err := pl.lstat()
	if missing(err) {
		return nil
	}
	if err != nil {
		return at(p, err)
	}
	if err := t.removable(pl, p); err != nil {
		return err
	}
	if fileType(&st) != unix.S_IFDIR {
		err := unlink(pl.fd, pl.name, 0)
		if !errors.Is(err, unix.EISDIR) {
			return at(p, err)
		}
	}
	r := &remover{tree: t, cur: pl.dir}
	err = r.run(ctx, pl.name)
	r.end(pl.dir)
	return at(p, err)
}

func (t *tree) removable(pl *place, p string) error {
	full := pl.full()
	if pl.name == "." || slices.Contains(kept, full) {
		return faultf(kindInvalid, "path %s belongs to the sandbox itself and cannot be removed", show(p))
	}
	if kernelFS(pl.magic) {
		return readOnlyKernel(p)
	}
	mounts, err := mountPoints()
	if err != nil {
		return err
	}
	real := path.Join(t.root, full)
	for _, m := range mounts {
		if m == real || strings.HasPrefix(m, real+"/") {
			return faultf(kindBusy, "path %s is or holds a mount point (%s); remove what is in it instead", show(p), show(m))
		}
	}
	return nil
}

// mountPoints returns where something is mounted, as the agent sees it.
func mountPoints() ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var points []string
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if p := strings.Fields(s.Text()); len(p) > 4 {
			points = append(points, mountText.Replace(p[4]))
		}
	}
	return points, s.Err()
}

// mountText undoes what the kernel does to names in mountinfo.
var mountText = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#")

// A remover empties a tree of any depth with two descriptors: it goes down by
// name and up by "..", and makes sure that up is where it came from, since
// programs may move the directory it stands in.
type remover struct {
	tree *tree
	cur  *dir
	ways []step
}

// A step is a directory on the way down.
type step struct {
	dev, ino uint64   // of the directory that holds name
	name     string   // what was entered
	tries    int      // how often it was emptied before
	todo     []string // directories in it that were seen not to be empty
}

const (
	// maxTries is how often a directory is emptied that programs fill again.
	maxTries = 16
	// maxTodo bounds what is remembered of each directory on the way.
	maxTodo = 32
)

func (r *remover) end(first *dir) {
	if r.cur != first {
		r.cur.close()
	}
}

// run removes the directory name in r.cur, where r ends again unless it fails.
func (r *remover) run(ctx context.Context, name string) error {
	start := r.cur
	if err := r.down(name, 0, start); err != nil {
		return err
	}
	for len(r.ways) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		here := &r.ways[len(r.ways)-1]
		if len(here.todo) == 0 {
			var err error
			if here.todo, err = r.empty(ctx); err != nil {
				return err
			}
		}
		if n := len(here.todo); n > 0 {
			below := here.todo[n-1]
			here.todo = here.todo[:n-1]
			if err := r.down(below, 0, start); err != nil {
				return err
			}
			continue
		}
		if err := r.up(start); err != nil {
			return err
		}
	}
	return nil
}

// empty removes from r.cur what is not a directory, and directories that are
// empty. It returns some of those that are not, none when it came to the end.
func (r *remover) empty(ctx context.Context) (todo []string, err error) {
	fd, err := openat(r.cur.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), r.cur.path)
	defer f.Close()
	for len(todo) == 0 && ctx.Err() == nil {
		names, err := f.Readdirnames(namesAtOnce)
		for _, name := range names {
			err := unlink(r.cur.fd, name, 0)
			if errors.Is(err, unix.EISDIR) {
				err = unlink(r.cur.fd, name, unix.AT_REMOVEDIR)
			}
			if notEmpty(err) && len(todo) < maxTodo {
				todo = append(todo, name)
			}
			if err != nil && !notEmpty(err) {
				return nil, at(path.Join(r.cur.path, name), err)
			}
		}
		if errors.Is(err, io.EOF) || err == nil && len(names) == 0 {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	return todo, ctx.Err()
}

func notEmpty(err error) bool {
	return errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST)
}

// down enters the directory name. One that is gone is done with.
func (r *remover) down(name string, tries int, start *dir) error {
	next, err := r.tree.enter(r.cur, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) { // changed since it was looked at
		return unlink(r.cur.fd, name, 0)
	}
	if err != nil {
		return err
	}
	if crosses(r.cur, next) {
		next.close()
		return faultf(kindBusy, "path %s is a mount point; remove what is in it instead", show(path.Join(r.cur.path, name)))
	}
	r.ways = append(r.ways, step{dev: r.cur.dev, ino: r.cur.ino, name: name, tries: tries})
	r.move(next, start)
	return nil
}

// up leaves the emptied r.cur and removes it.
func (r *remover) up(start *dir) error {
	way := r.ways[len(r.ways)-1]
	parent := start
	if len(r.ways) > 1 {
		var err error
		if parent, err = r.above(way); err != nil {
			return err
		}
	}
	r.move(parent, start)
	r.ways = r.ways[:len(r.ways)-1]
	err := unlink(r.cur.fd, way.name, unix.AT_REMOVEDIR)
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return unlink(r.cur.fd, way.name, 0)
	case notEmpty(err) && way.tries < maxTries:
		return r.down(way.name, way.tries+1, start)
	case err != nil:
		return at(path.Join(r.cur.path, way.name), err)
	}
	return nil
}

// above opens the parent of r.cur, which must be where way began.
func (r *remover) above(way step) (*dir, error) {
	fd, err := openat(r.cur.fd, "..", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	parent, err := r.tree.hold(fd, path.Dir(r.cur.path), r.cur)
	if err != nil {
		return nil, err
	}
	if parent.dev != way.dev || parent.ino != way.ino {
		parent.close()
		return nil, faultf(kindBusy, "path %s was moved while it was removed; try again", show(r.cur.path))
	}
	return parent, nil
}

// move makes next the current directory. start belongs to the caller.
func (r *remover) move(next, start *dir) {
	if r.cur != start {
		r.cur.close()
	}
	r.cur = next
}

// unlink removes one name; one that is gone is success.
func unlink(dir int, name string, flags int) error {
	_, err := again(func() (int, error) { return 0, unix.Unlinkat(dir, name, flags) })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// crosses reports whether b, entered from a, is on another mount. Where the
// kernel does not tell mounts, devices stand for them.
func crosses(a, b *dir) bool {
	if a.dev != b.dev {
		return true
	}
	x, okA := mountID(a.fd)
	y, okB := mountID(b.fd)
	return okA && okB && x != y
}

func mountID(fd int) (id uint64, ok bool) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st)
	return st.Mnt_id, err == nil && st.Mask&unix.STATX_MNT_ID != 0
}
