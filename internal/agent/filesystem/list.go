//go:build linux

package filesystem

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/abx/internal/e2b/filesystem"
)

// Bounds of one listing. They protect the agent's memory from what a program
// can make; each is told when it is met, nothing is left out in silence.
const (
	maxEntries  = 100_000 // entries in an answer without a limit
	maxInDir    = 200_000 // names in one directory
	maxDepth    = 200     // directories inside each other, each held open
	namesAtOnce = 1024
)

// A listing is one ListDir.
type listing struct {
	*describer
	limit   int // most entries; 0: no limit
	entries []*pb.EntryInfo
	total   uint64
}

// listDir lists p, an absolute path, depth levels deep, in the order of a walk
// with the names of each directory sorted by their bytes.
func (s *Service) listDir(ctx context.Context, p string, depth, limit int) (*listing, error) {
	d, err := s.tree.openDir(p)
	if err != nil {
		return nil, err
	}
	defer d.close()
	l := &listing{describer: s.describer(), limit: limit}
	if err := l.walk(ctx, d, p, depth, 1); err != nil {
		return nil, err
	}
	return l, nil
}

// openDir opens the directory p, links followed.
func (t *tree) openDir(p string) (*dir, error) {
	for range maxRaces {
		pl, err := t.locate(p, route{follow: true})
		if err != nil {
			return nil, err
		}
		st, err := pl.lstat()
		if err == nil && fileType(&st) != unix.S_IFDIR && fileType(&st) != unix.S_IFLNK {
			pl.close()
			return nil, faultf(kindInvalid, "path %s is not a directory", show(p))
		}
		var d *dir
		if err == nil {
			d, err = t.enter(pl.dir, pl.name)
		}
		pl.close()
		if err == nil {
			return d, nil
		}
		if !errors.Is(err, unix.ENOTDIR) { // else it changed since the look
			return nil, at(p, err)
		}
	}
	return nil, racing(p)
}

// walk adds what is in d, shown as path shown, and below it.
func (l *listing) walk(ctx context.Context, d *dir, shown string, depth, level int) error {
	names, err := readNamesIn(d)
	if err != nil {
		return at(shown, err)
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.add(ctx, d, name, shown, depth, level); err != nil {
			return err
		}
	}
	return nil
}

func (l *listing) add(ctx context.Context, d *dir, name, shown string, depth, level int) error {
	full := l.limit > 0 && len(l.entries) >= l.limit
	if full && depth <= 1 {
		l.total++
		return nil
	}
	st, err := lstatAt(d.fd, name)
	if missing(err) {
		return nil // gone since the directory was read
	}
	if err != nil {
		return at(path.Join(shown, name), err)
	}
	l.total++
	if !full {
		if len(l.entries) >= maxEntries {
			return faultf(kindLimit, "path %s holds more than %d entries; list a directory below it, or fewer levels", show(shown), maxEntries)
		}
		l.entries = append(l.entries, l.entry(&place{dir: d, name: name}, &st, path.Join(shown, name)))
	}
	if depth <= 1 || fileType(&st) != unix.S_IFDIR {
		return nil
	}
	return l.descend(ctx, d, name, path.Join(shown, name), depth, level)
}

func (l *listing) descend(ctx context.Context, d *dir, name, shown string, depth, level int) error {
	if level >= maxDepth {
		return faultf(kindLimit, "path %s lies %d directories deep; list it by itself", show(shown), level)
	}
	next, err := l.tree.enter(d, name)
	if missing(err) || kindOf(at(shown, err)) == kindDenied {
		return nil // gone, or not to be looked into
	}
	if err != nil {
		return at(shown, err)
	}
	defer next.close()
	err = l.walk(ctx, next, shown, depth-1, level+1)
	if missing(err) || err != nil && kindOf(err) == kindDenied {
		return nil
	}
	return err
}

// readNamesIn returns the sorted names in d.
func readNamesIn(d *dir) ([]string, error) {
	fd, err := openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	var names []string
	for {
		more, err := f.Readdirnames(namesAtOnce)
		if names = append(names, more...); len(names) > maxInDir {
			return nil, faultf(kindLimit, "path %s holds more than %d names; look into it with a command such as find", show(d.path), maxInDir)
		}
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
