//go:build linux

package interpreter

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// Bounds of a look for output files.
const (
	scanEntries = 20000
	scanDepth   = 16
	scanListed  = 100
	scanBefore  = 2000 // entries looked at before the cell
)

// skippedFolders hold what programs keep for themselves, anywhere below a
// scanned folder. A name with a slash is the end of a path.
var skippedFolders = []string{
	"__pycache__", ".cache", ".local", ".npm", ".git", "node_modules", "site-packages", "dist-packages", ".ipython", ".jupyter",
	".pytest_cache", ".mypy_cache", ".ruff_cache", ".ipynb_checkpoints", ".config/matplotlib", ".abx",
}

var skippedFiles = map[string]bool{".bash_history": true, ".python_history": true, ".wget-hsts": true, ".lesshst": true}

// scan finds the files that a cell changes.
type scan struct {
	dirs  []string
	skip  map[string]bool // whole paths
	since int64           // ctime, nanoseconds
	// recent are files that changed in the same tick of the kernel's clock, but
	// before the cell.
	recent map[found]bool
}

type found struct {
	path  string
	size  int64
	ctime int64
	inode uint64
	depth int
}

// scanBefore notes the time by the kernel's clock for files, which is coarse.
func (s *Service) scanBefore() *scan {
	c := &scan{dirs: s.opts.ScanDirs, skip: map[string]bool{filepath.Clean(s.opts.RunDir): true}, recent: map[found]bool{}}
	if s.opts.LogDir != "" {
		c.skip[filepath.Clean(s.opts.LogDir)] = true
	}
	c.since = s.clock()
	all, complete := c.walk(scanBefore)
	for _, f := range all {
		c.recent[f] = true
	}
	if !complete { // too much to look at: begin with the next tick instead
		for guard := time.Now().Add(50 * time.Millisecond); time.Now().Before(guard); time.Sleep(time.Millisecond) {
			if now := s.clock(); now > c.since {
				c.since = now
				break
			}
		}
	}
	return c
}

// clock is the time that the kernel gives a file which changes now, in
// nanoseconds.
func (s *Service) clock() int64 {
	path := filepath.Join(s.opts.RunDir, "clock")
	var st unix.Stat_t
	err := os.WriteFile(path, []byte("."), 0o600)
	if err == nil {
		err = unix.Stat(path, &st)
	}
	if err != nil {
		return time.Now().Add(-10 * time.Millisecond).UnixNano()
	}
	return st.Ctim.Nano()
}

// changed lists what the cell changed, and how many there are when the list
// had to be cut.
func (c *scan) changed() (files []e2b.OutputFile, total int) {
	all, _ := c.walk(scanEntries)
	all = slices.DeleteFunc(all, func(f found) bool { return c.recent[f] })
	if len(all) > scanListed {
		total = len(all)
		slices.SortStableFunc(all, func(a, b found) int {
			return cmp.Or(cmp.Compare(a.depth, b.depth), strings.Compare(a.path, b.path))
		})
		all = all[:scanListed]
	}
	slices.SortFunc(all, func(a, b found) int { return strings.Compare(a.path, b.path) })
	for _, f := range all {
		files = append(files, e2b.OutputFile{Name: filepath.Base(f.path), Path: f.path, Size: f.size})
	}
	return files, total
}

// walk lists regular files with a ctime of c.since or later, folders nearest
// to the top first. complete is false when limit entries were not enough.
func (c *scan) walk(limit int) (all []found, complete bool) {
	type folder struct {
		path  string
		depth int
		dev   uint64
	}
	var queue []folder
	for _, d := range c.dirs {
		var st unix.Stat_t
		if unix.Stat(d, &st) == nil {
			queue = append(queue, folder{filepath.Clean(d), 0, st.Dev})
		}
	}
	seen := map[string]bool{}
	for ; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if seen[at.path] || c.skipped(at.path) {
			continue
		}
		seen[at.path] = true
		limit -= list(at.path, limit, func(name string, st *unix.Stat_t) {
			path := filepath.Join(at.path, name)
			switch st.Mode & unix.S_IFMT {
			case unix.S_IFDIR:
				// What is mounted below, as an interpreter of the host's, is no cell's work.
				if at.depth < scanDepth && st.Dev == at.dev {
					queue = append(queue, folder{path, at.depth + 1, at.dev})
				}
			case unix.S_IFREG:
				if st.Ctim.Nano() >= c.since && !skippedFiles[name] {
					all = append(all, found{path, st.Size, st.Ctim.Nano(), st.Ino, at.depth})
				}
			}
		})
		if limit <= 0 {
			return all, false
		}
	}
	return all, true
}

func (c *scan) skipped(path string) bool {
	if c.skip[path] {
		return true
	}
	for _, s := range skippedFolders {
		if strings.HasSuffix(path, "/"+s) {
			return true
		}
	}
	return false
}

// list calls each with the entries of a folder, up to limit, and returns how
// many there were. It follows no link.
func list(path string, limit int, each func(name string, st *unix.Stat_t)) (n int) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 1
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	for n < limit {
		names, err := f.Readdirnames(min(1000, limit-n))
		for _, name := range names {
			n++
			var st unix.Stat_t
			if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
				each(name, &st)
			}
		}
		if err != nil || len(names) == 0 {
			break
		}
	}
	return n + 1
}
