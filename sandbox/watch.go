package sandbox

import (
	"context"
	"errors"
	"io"
	"math"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/e2b/filesystem"
)

// An Event is a change in a watched folder.
type Event struct {
	Name  string // relative to the watched folder
	Type  EventType
	Entry *Entry // what is there now; only with [WithEntries], nil for what is gone
}

// EventType is what happened to a file.
type EventType string

// The types of events.
const (
	EventCreate EventType = "create"
	EventWrite  EventType = "write"
	EventRemove EventType = "remove"
	EventRename EventType = "rename"
	EventChmod  EventType = "chmod"
)

var eventTypes = map[filesystem.EventType]EventType{
	filesystem.EventType_EVENT_TYPE_CREATE: EventCreate,
	filesystem.EventType_EVENT_TYPE_WRITE:  EventWrite,
	filesystem.EventType_EVENT_TYPE_REMOVE: EventRemove,
	filesystem.EventType_EVENT_TYPE_RENAME: EventRename,
	filesystem.EventType_EVENT_TYPE_CHMOD:  EventChmod,
}

// A Watcher gives the changes of a folder. Next is for one caller at a time;
// Close may be called at any time and must be called in the end.
type Watcher struct {
	sb     *Sandbox
	op     string
	ctx    context.Context // the caller's; the watch is its one long call
	inner  context.Context // ends with ctx or by Close
	cancel context.CancelCauseFunc
	stream *connect.ServerStreamForClient[filesystem.WatchDirResponse]
}

// Watch watches a folder and returns when changes from now on will be seen. The
// watch ends with ctx or by [Watcher.Close]. A path that does not exist is
// ErrNotFound, a file ErrInvalid.
//
// Options: [Recursive], [WithEntries], [User].
func (f *Files) Watch(ctx context.Context, path string, opts ...FileOption) (*Watcher, error) {
	op := about("watch", path)
	set, err := newFileSettings("watch", path, usedRecursive|usedEntries, opts)
	if err != nil {
		return nil, err
	}
	w := &Watcher{sb: f.sb, op: op, ctx: ctx}
	w.inner, w.cancel = context.WithCancelCause(ctx)
	wait := f.sb.client.timeout
	if wait == 0 {
		wait = math.MaxInt64
	}
	dog := time.AfterFunc(wait, func() { w.cancel(errSilent) })
	defer dog.Stop()
	r := connect.NewRequest(&filesystem.WatchDirRequest{Path: path, Recursive: set.recursive, IncludeEntry: set.entries})
	r.Header()[e2b.HeaderKeepalive] = []string{keepalive}
	f.sb.actAs(r.Header(), set.user)
	if w.stream, err = f.sb.filesystem().WatchDir(w.inner, r); err == nil {
		switch {
		case !w.stream.Receive():
			err = w.end()
		case w.stream.Msg().GetStart() == nil:
			err = &Error{Message: "the answer does not begin with a start event"}
		}
	}
	if err != nil {
		if errors.Is(context.Cause(w.inner), errSilent) {
			err = context.DeadlineExceeded
		}
		_ = w.Close()
		return nil, f.sb.redact(f.sb.client.explain(ctx, op, f.sb.info.ID, err))
	}
	return w, nil
}

// end is why the stream ended.
func (w *Watcher) end() error {
	if err := w.stream.Err(); err != nil {
		return err
	}
	return io.EOF
}

// Next waits for a change and returns it. After an error there are no more:
// the watcher was closed ([context.Canceled]), ctx ended, or the sandbox is
// lost (ErrLost).
func (w *Watcher) Next() (Event, error) {
	for w.stream.Receive() {
		e := w.stream.Msg().GetFilesystem()
		if e == nil {
			continue // a keepalive
		}
		ev := Event{Name: e.GetName(), Type: eventTypes[e.GetType()]}
		if e.GetEntry() != nil {
			entry := newEntry(e.GetEntry())
			ev.Entry = &entry
		}
		return ev, nil
	}
	if w.ctx.Err() == nil && w.inner.Err() != nil {
		return Event{}, &Error{Op: w.op, SandboxID: w.sb.info.ID, Message: "the watcher was closed", cause: context.Canceled}
	}
	e := w.sb.client.explain(w.ctx, w.op, w.sb.info.ID, w.end())
	if w.ctx.Err() == nil && e.kinds[0] == nil {
		e.kinds[0] = ErrLost
	}
	return Event{}, w.sb.redact(e)
}

// Close ends the watch; a Next that waits returns. It is always nil and may be
// called twice.
func (w *Watcher) Close() error {
	w.cancel(errClosed)
	if w.stream != nil {
		_ = w.stream.Close()
	}
	return nil
}
