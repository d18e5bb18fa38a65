//go:build linux

package filesystem

import (
	"errors"
	"log/slog"
	"os"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/account"
)

// A hub watches directories for all watchers by one inotify instance: the
// kernel allows a user few of them (128 by default, over all sandboxes). The
// instance is made for the first watcher and lives until close.
//
// One goroutine reads it. What only that goroutine touches is in struct reader.
type hub struct {
	tree        *tree
	rights      *rights
	log         *slog.Logger
	maxWatchers int
	maxDirs     int
	maxQueued   int

	mu       sync.Mutex
	fd       int      // the inotify instance, while file is set
	file     *os.File // the same
	subs     map[int32]map[*watcher]string
	watchers map[*watcher]struct{}
	closed   bool
	done     chan struct{} // closed when the reader has ended; nil before it began
}

// A watcher is one watch on one directory. Whoever opens it closes it.
type watcher struct {
	*queue
	hub       *hub
	user      account.Account // whose rights it looks with
	root      string          // within the tree, links resolved
	recursive bool
	dirs      map[int32]struct{}     // what it watches; guarded by hub.mu
	moving    map[uint32]moving      // by cookie; the reader's
	fresh     map[int32]*freshlyRead // the reader's
}

func newHub(t *tree, r *rights, opts Options) *hub {
	return &hub{
		tree:        t,
		rights:      r,
		log:         opts.Logger,
		maxWatchers: opts.MaxWatchers,
		maxDirs:     opts.MaxWatchedDirs,
		maxQueued:   maxQueued,
		subs:        map[int32]map[*watcher]string{},
		watchers:    map[*watcher]struct{}{},
	}
}

// mask is what is asked of every directory. It is the same for all watchers,
// since the kernel keeps one mask for each directory.
const mask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE |
	unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF |
	unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

var errClosed = faultf(kindGone, "the sandbox agent ends its watches")

// open begins to watch the directory p for a, with those below it when
// recursive. Changes from the return on are told.
func (h *hub) open(p string, a account.Account, recursive, network bool) (*watcher, error) {
	var d *dir
	err := h.rights.as(a, func() (err error) {
		d, err = h.tree.openDir(p)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer d.close()
	if networkFS(d.magic) && !network {
		return nil, faultf(kindInvalid, "path %s is on a network file system, where changes made elsewhere are not seen; set allow_network_mounts to watch it nevertheless", show(p))
	}
	w := &watcher{
		queue: newQueue(h.maxQueued), hub: h, user: a, root: d.path, recursive: recursive,
		dirs: map[int32]struct{}{}, moving: map[uint32]moving{}, fresh: map[int32]*freshlyRead{},
	}
	if err := h.admit(w); err != nil {
		return nil, err
	}
	err = h.rights.as(a, func() error {
		if _, _, err := h.subscribe(w, d, ""); err != nil || !recursive {
			return err
		}
		return h.grow(w, "", nil)
	})
	if err != nil {
		w.close()
		return nil, at(p, err)
	}
	return w, nil
}

// admit counts w in and starts the reader for the first one.
func (h *hub) admit(w *watcher) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errClosed
	}
	if len(h.watchers) >= h.maxWatchers {
		return faultf(kindLimit, "%d watches are open, the limit of this sandbox; end one first", h.maxWatchers)
	}
	if h.file == nil {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if errors.Is(err, unix.EMFILE) {
			return faultf(kindLimit, "the machine's limit fs.inotify.max_user_instances is used up; raise it with sysctl")
		}
		if err != nil {
			return at(w.root, err)
		}
		h.fd, h.file = fd, os.NewFile(uintptr(fd), "inotify")
		h.done = make(chan struct{})
		r := &reader{hub: h, file: h.file, fd: fd}
		go r.run(h.done)
	}
	h.watchers[w] = struct{}{}
	return nil
}

// subscribe lets w hear of directory d under the name rel. isNew is false when
// it did already; then only the name is brought up to date.
func (h *hub) subscribe(w *watcher, d *dir, rel string) (wd int32, isNew bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.watchers[w]; !ok {
		return 0, false, errClosed
	}
	n, err := unix.InotifyAddWatch(h.fd, procFD(d.fd), mask)
	if errors.Is(err, unix.ENOSPC) {
		return 0, false, faultf(kindLimit, "the machine's limit fs.inotify.max_user_watches is used up; watch a smaller directory, or raise it with sysctl")
	}
	if err != nil {
		return 0, false, err
	}
	wd = int32(n)
	if h.subs[wd] == nil {
		if len(h.subs) >= h.maxDirs {
			_, _ = unix.InotifyRmWatch(h.fd, uint32(wd)) // fails when the directory is gone
			return 0, false, faultf(kindLimit, "%d directories are watched, the limit of this sandbox; watch a smaller directory", h.maxDirs)
		}
		h.subs[wd] = map[*watcher]string{}
	}
	_, known := h.subs[wd][w]
	h.subs[wd][w] = rel
	w.dirs[wd] = struct{}{}
	return wd, !known, nil
}

// unsubscribe must be called with mu held.
func (h *hub) unsubscribe(w *watcher, wd int32) {
	delete(w.dirs, wd)
	delete(h.subs[wd], w)
	if len(h.subs[wd]) == 0 {
		delete(h.subs, wd)
		_, _ = unix.InotifyRmWatch(h.fd, uint32(wd)) // fails when the directory is gone, and is then not needed
	}
}

// subscribers returns who hears of wd, and under which names.
func (h *hub) subscribers(wd int32) map[*watcher]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	subs := make(map[*watcher]string, len(h.subs[wd]))
	for w, rel := range h.subs[wd] {
		subs[w] = rel
	}
	return subs
}

// forget drops wd, which the kernel no longer watches.
func (h *hub) forget(wd int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.subs[wd] {
		delete(w.dirs, wd)
	}
	delete(h.subs, wd)
}

// renamed gives the directories of w at and below from their new names.
func (h *hub) renamed(w *watcher, from, to string) {
	h.eachBelow(w, from, func(wd int32, tail string) { h.subs[wd][w] = to + tail })
}

// left drops the directories of w at and below rel, which were moved away.
func (h *hub) left(w *watcher, rel string) {
	h.eachBelow(w, rel, func(wd int32, _ string) { h.unsubscribe(w, wd) })
}

func (h *hub) eachBelow(w *watcher, rel string, do func(wd int32, tail string)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for wd := range w.dirs {
		tail, ok := strings.CutPrefix(h.subs[wd][w], rel)
		if ok && (tail == "" || tail[0] == '/') {
			do(wd, tail)
		}
	}
}

// grow watches the directories below rel in w, and rel itself. found, when not
// nil, is told what there is in directories that were not watched before.
// Directories that vanish meanwhile, or that w's user may not read, are passed
// over. It runs with the user's rights, as does all that opens directories.
func (h *hub) grow(w *watcher, rel string, found func(wd int32, rel, name string)) error {
	for todo := []string{rel}; len(todo) > 0; {
		rel := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		below, err := h.growOne(w, rel, found)
		if kindOf(err) == kindLimit || errors.Is(err, errClosed) {
			return err
		}
		if err != nil && !missing(err) {
			h.log.Debug("directory is not watched", slog.String("path", path.Join(w.root, rel)), slog.Any("error", err))
		}
		todo = append(todo, below...)
	}
	return nil
}

// growOne watches the directory rel and returns those in it.
func (h *hub) growOne(w *watcher, rel string, found func(wd int32, rel, name string)) ([]string, error) {
	d, err := h.tree.openDirNoLinks(path.Join(w.root, rel))
	if err != nil {
		return nil, at(rel, err)
	}
	defer d.close()
	wd, isNew, err := h.subscribe(w, d, rel)
	if err != nil || !isNew && found != nil {
		return nil, err
	}
	names, err := readNamesIn(d)
	if err != nil {
		return nil, err
	}
	var below []string
	for _, name := range names {
		if found != nil {
			found(wd, rel, name)
		}
		if st, err := lstatAt(d.fd, name); err == nil && fileType(&st) == unix.S_IFDIR {
			below = append(below, path.Join(rel, name))
		}
	}
	return below, nil
}

// openDirNoLinks opens the directory p, a path in which links were resolved
// once; a link in it now is refused.
func (t *tree) openDirNoLinks(p string) (*dir, error) {
	d, err := t.openRoot()
	for name := range strings.SplitSeq(strings.Trim(p, "/"), "/") {
		if err != nil || name == "" {
			break
		}
		var next *dir
		next, err = t.enter(d, name)
		d.close()
		d = next
	}
	return d, err
}

// close ends w and frees what it watched. It may be called more than once.
func (w *watcher) close() {
	w.finish(errClosed)
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for wd := range w.dirs {
		h.unsubscribe(w, wd)
	}
	delete(h.watchers, w)
}

// all returns the watchers there are.
func (h *hub) all() []*watcher {
	h.mu.Lock()
	defer h.mu.Unlock()
	ws := make([]*watcher, 0, len(h.watchers))
	for w := range h.watchers {
		ws = append(ws, w)
	}
	return ws
}

// close ends all watchers and waits for the reader.
func (h *hub) close() error {
	h.mu.Lock()
	h.closed = true
	file, done := h.file, h.done
	h.mu.Unlock()
	for _, w := range h.all() {
		w.close()
	}
	if file == nil {
		return nil
	}
	err := file.Close()
	<-done
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
