//go:build linux

package filesystem

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/abx/internal/e2b/filesystem"
)

// A reader turns what inotify tells into events of the hub's watchers.
type reader struct {
	*hub
	file  *os.File
	fd    int
	bytes uint64 // handled so far
	rest  int    // read and not handled yet
	batch uint64 // which read it is
	// spoiled: the thread has a user's rights and cannot get rid of them.
	spoiled bool
}

// moving is a directory that left its name; its new one may follow.
type moving struct {
	rel   string
	batch uint64
}

// freshlyRead are the names in a directory that were told when it was read just
// after its watch was set. Until `until` bytes are handled, the kernel may
// still tell of their creation.
type freshlyRead struct {
	names map[string]struct{}
	until uint64
}

const (
	eventBuffer = 64 << 10
	// moveGap is how long the two halves of a move may lie apart. The kernel
	// queues one right after the other, but two reads may part them.
	moveGap = 20 * time.Millisecond
)

// run ends when the file is closed, and then closes done.
func (r *reader) run(done chan<- struct{}) {
	if r.read() {
		go r.run(done) // on another thread; this one ends
		return
	}
	close(done)
}

// read handles events until the file is closed or the thread is spoiled.
func (r *reader) read() (spoiled bool) {
	r.spoiled = false
	buf := make([]byte, eventBuffer)
	for {
		n, err := r.file.Read(buf)
		r.batch++
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case errors.Is(err, os.ErrClosed):
			return false
		case err != nil:
			r.log.Error("watches end", slog.Any("error", err))
			for _, w := range r.all() {
				w.finish(at(w.root, err))
			}
			return false
		default:
			r.handle(buf[:n])
		}
		r.settle()
		if r.spoiled {
			return true
		}
	}
}

// growAs is grow with the rights of w's user.
func (r *reader) growAs(w *watcher, rel string, found func(wd int32, rel, name string)) error {
	spoiled, err := r.rights.try(w.user, func() error { return r.grow(w, rel, found) })
	r.spoiled = r.spoiled || spoiled
	return err
}

// settle gives up moves whose second half did not come, and forgets what was
// freshly read when the kernel has nothing older to tell.
func (r *reader) settle() {
	waiting := false
	for _, w := range r.all() {
		for cookie, m := range w.moving {
			if m.batch == r.batch {
				waiting = true
				continue
			}
			delete(w.moving, cookie)
			r.left(w, m.rel)
		}
		for wd, f := range w.fresh {
			if r.bytes >= f.until {
				delete(w.fresh, wd)
			}
		}
	}
	var deadline time.Time
	if waiting {
		deadline = time.Now().Add(moveGap)
	}
	if err := r.file.SetReadDeadline(deadline); err != nil && !errors.Is(err, os.ErrClosed) {
		r.log.Error("watches: deadline", slog.Any("error", err))
	}
}

// handle reads the events in buf: struct inotify_event and a padded name each.
func (r *reader) handle(buf []byte) {
	for len(buf) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(buf))
		what := binary.NativeEndian.Uint32(buf[4:])
		cookie := binary.NativeEndian.Uint32(buf[8:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[12:]))
		if end > len(buf) {
			return // the kernel never parts an event
		}
		name := strings.TrimRight(string(buf[unix.SizeofInotifyEvent:end]), "\x00")
		r.rest = len(buf)
		r.dispatch(wd, what, cookie, name)
		r.bytes += uint64(end)
		buf = buf[end:]
	}
}

func (r *reader) dispatch(wd int32, what, cookie uint32, name string) {
	if what&unix.IN_Q_OVERFLOW != 0 {
		r.overflow()
		return
	}
	for w, rel := range r.subscribers(wd) {
		if name == "" {
			r.itself(w, rel, what)
		} else {
			r.entry(w, wd, what, cookie, rel, name)
		}
	}
	if what&unix.IN_IGNORED != 0 {
		r.forget(wd)
	}
}

// overflow tells all watchers that the kernel dropped events, and looks for
// directories whose making it did not tell.
func (r *reader) overflow() {
	for _, w := range r.all() {
		w.lose()
		if !w.recursive {
			continue
		}
		if err := r.growAs(w, "", nil); err != nil {
			r.log.Warn("directories stay unwatched", slog.String("root", w.root), slog.Any("error", err))
		}
	}
}

// itself handles an event of a watched directory, not of an entry in it. Of
// those below the root the parent's watch tells the same.
func (r *reader) itself(w *watcher, rel string, what uint32) {
	if rel != "" {
		return
	}
	gone := func(kind pb.EventType) {
		w.push(event{".", kind})
		w.finish(faultf(kindMissing, "the watched directory %s was removed or moved", show(w.root)))
	}
	switch {
	case what&unix.IN_ATTRIB != 0:
		w.push(event{".", pb.EventType_EVENT_TYPE_CHMOD})
	case what&unix.IN_MOVE_SELF != 0:
		gone(pb.EventType_EVENT_TYPE_RENAME)
	case what&(unix.IN_DELETE_SELF|unix.IN_UNMOUNT) != 0:
		gone(pb.EventType_EVENT_TYPE_REMOVE)
	}
}

// entry handles an event of name in the directory rel of w.
func (r *reader) entry(w *watcher, wd int32, what, cookie uint32, rel, name string) {
	full := path.Join(rel, name)
	dir := what&unix.IN_ISDIR != 0 && w.recursive
	if r.movedAway(w, rel, cookie, dir && what&unix.IN_MOVED_TO != 0) {
		return
	}
	switch {
	case what&unix.IN_CREATE != 0:
		if !w.told(wd, name) {
			w.push(event{full, pb.EventType_EVENT_TYPE_CREATE})
		}
		if dir {
			r.added(w, full)
		}
	case what&unix.IN_MOVED_TO != 0:
		if !w.told(wd, name) {
			w.push(event{full, pb.EventType_EVENT_TYPE_CREATE})
		}
		if m, ok := w.moving[cookie]; ok {
			delete(w.moving, cookie)
			r.renamed(w, m.rel, full)
		}
		if dir {
			r.added(w, full)
		}
	case what&unix.IN_MOVED_FROM != 0:
		w.told(wd, name)
		w.push(event{full, pb.EventType_EVENT_TYPE_RENAME})
		if dir {
			w.moving[cookie] = moving{full, r.batch}
		}
	case what&unix.IN_DELETE != 0:
		w.told(wd, name)
		w.push(event{full, pb.EventType_EVENT_TYPE_REMOVE})
	case what&unix.IN_MODIFY != 0:
		w.push(event{full, pb.EventType_EVENT_TYPE_WRITE})
	case what&unix.IN_ATTRIB != 0:
		w.push(event{full, pb.EventType_EVENT_TYPE_CHMOD})
	}
}

// movedAway decides on directories that left their names, at an event in rel:
// one that is not the second half of its move, yet comes from inside it, or is
// another directory's arrival, shows that the second half will not come. It
// reports whether rel was in such a directory; should the second half come
// nevertheless, the directory is read again, so nothing is missed.
func (r *reader) movedAway(w *watcher, rel string, cookie uint32, arrival bool) (gone bool) {
	for c, m := range w.moving {
		inside := rel == m.rel || strings.HasPrefix(rel, m.rel+"/")
		if inside || arrival && c != cookie {
			delete(w.moving, c)
			r.left(w, m.rel)
			gone = gone || inside
		}
	}
	return gone
}

// added watches a directory that appeared below a recursive watch, and tells
// what was made in it before it was watched.
func (r *reader) added(w *watcher, rel string) {
	err := r.growAs(w, rel, func(wd int32, rel, name string) {
		w.push(event{path.Join(rel, name), pb.EventType_EVENT_TYPE_CREATE})
		f := w.fresh[wd]
		if f == nil {
			f = &freshlyRead{names: map[string]struct{}{}}
			w.fresh[wd] = f
		}
		f.names[name] = struct{}{}
		f.until = r.queuedUntil()
	})
	if err != nil && !errors.Is(err, errClosed) {
		r.log.Warn("directories stay unwatched", slog.String("root", w.root), slog.Any("error", err))
		w.lose()
	}
}

// queuedUntil returns the count of bytes at which all that the kernel has
// queued by now is handled.
func (r *reader) queuedUntil() uint64 {
	n, err := unix.IoctlGetInt(r.fd, unix.TIOCINQ) // FIONREAD
	if err != nil {
		n = 0
	}
	return r.bytes + uint64(r.rest+n)
}

// told reports whether the making of name was told when its directory was
// read. It does so once: what the kernel tells of name after that is news.
func (w *watcher) told(wd int32, name string) bool {
	f := w.fresh[wd]
	if f == nil {
		return false
	}
	_, ok := f.names[name]
	delete(f.names, name)
	return ok
}
