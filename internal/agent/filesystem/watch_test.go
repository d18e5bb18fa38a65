//go:build linux

package filesystem

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	pb "github.com/agent-sandbox/abx/internal/e2b/filesystem"
)

// guard bounds a wait that only a bug makes long.
const guard = time.Minute

// A view is a WatchDir stream, begun.
type view struct {
	*connect.ServerStreamForClient[pb.WatchDirResponse]
	t *testing.T
}

func (b *bench) watchDir(t *testing.T, r *pb.WatchDirRequest, header ...string) *view {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	t.Cleanup(cancel)
	req := connect.NewRequest(r)
	for i := 0; i < len(header); i += 2 {
		req.Header().Set(header[i], header[i+1])
	}
	s, err := b.rpc.WatchDir(ctx, req)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	if !s.Receive() || s.Msg().GetStart() == nil {
		t.Fatalf("the first message is not start: %v, %v", s.Msg(), s.Err())
	}
	return &view{s, t}
}

// until returns the events up to and with last.
func (v *view) until(last event) []event {
	v.t.Helper()
	var got []event
	for v.Receive() {
		e := v.Msg().GetFilesystem()
		if e == nil {
			continue
		}
		got = append(got, event{e.Name, e.Type})
		if got[len(got)-1] == last {
			return got
		}
	}
	v.t.Fatalf("the stream ended without %v: %v; events %.2000s", last, v.Err(), fmt.Sprint(got))
	return nil
}

func (v *view) want(want ...event) {
	v.t.Helper()
	if diff := cmp.Diff(want, v.until(want[len(want)-1]), allowEvent); diff != "" {
		v.t.Error(diff)
	}
}

func TestWatchKindsOfEvents(t *testing.T) {
	b := newBench(t)
	w := b.watchDir(t, &pb.WatchDirRequest{Path: "/tmp"})
	f, err := os.Create(b.real("tmp/f"))
	must(t, err)
	_, err = f.WriteString("x")
	must(t, err)
	must(t, f.Close())
	must(t, os.Chmod(b.real("tmp/f"), 0o600))
	must(t, os.Rename(b.real("tmp/f"), b.real("tmp/数据 \n")))
	must(t, os.Remove(b.real("tmp/数据 \n")))
	must(t, os.Mkdir(b.real("tmp/d"), 0o755))
	write(t, b.real("tmp/d/unseen"), "")
	must(t, os.Remove(b.real("tmp/d/unseen")))
	must(t, os.Remove(b.real("tmp/d")))
	must(t, os.Rename(b.real("home"), b.real("tmp/in")))
	must(t, os.Rename(b.real("tmp/in"), b.real("home")))
	write(t, b.real("tmp/\xff"), "")
	w.want(
		event{"f", created}, event{"f", written}, event{"f", chmod}, event{"f", renamed},
		event{"数据 \n", created}, event{"数据 \n", removed},
		event{"d", created}, event{"d", removed}, event{"in", created}, event{"in", renamed},
		event{"\uFFFD", created},
	)
}

func TestWatchRecursive(t *testing.T) {
	b := newBench(t)
	must(t, os.MkdirAll(b.real("tmp/a/b"), 0o755))
	w := b.watchDir(t, &pb.WatchDirRequest{Path: "/tmp", Recursive: true})
	write(t, b.real("tmp/a/b/1"), "")
	w.want(event{"a/b/1", created})

	must(t, os.Rename(b.real("tmp/a"), b.real("tmp/z")))
	write(t, b.real("tmp/z/b/2"), "")
	w.want(event{"a", renamed}, event{"z", created}, event{"z/b/2", created})

	// Out of sight: nothing more is told; back in: told anew, and watched.
	must(t, os.Rename(b.real("tmp/z"), b.real("home/z")))
	write(t, b.real("tmp/mark"), "")
	w.want(event{"z", renamed}, event{"mark", created})
	write(t, b.real("home/z/b/3"), "")
	must(t, os.Rename(b.real("home/z"), b.real("tmp/y")))
	got := w.until(event{"y/b/3", created})
	for _, want := range []event{{"y", created}, {"y/b", created}, {"y/b/1", created}, {"y/b/2", created}} {
		if !slices.Contains(got, want) {
			t.Errorf("%v is missing in %v", want, got)
		}
	}
	if slices.ContainsFunc(got, func(e event) bool { return strings.HasPrefix(e.name, "z/") }) {
		t.Errorf("events under a name that is gone: %v", got)
	}
	must(t, os.Remove(b.real("tmp/y/b/1")))
	w.want(event{"y/b/1", removed})
}

// What is made in a new directory before it is watched is told, once.
func TestWatchNewTreesCompletely(t *testing.T) {
	b := newBench(t)
	w := b.watchDir(t, &pb.WatchDirRequest{Path: "/tmp", Recursive: true})
	const trees = 100
	want := map[string]int{}
	for i := range trees {
		for _, p := range []string{"", "/x", "/x/y", "/x/y/z"} {
			p = fmt.Sprint("t", i) + p
			must(t, os.Mkdir(b.real("tmp/"+p), 0o755))
			write(t, b.real("tmp/"+p+"/f"), "")
			want[p], want[p+"/f"] = 1, 1
		}
	}
	// The last names may be told by a scan before those of other trees, so a
	// file is awaited that is made after all trees are told.
	got := map[string]int{}
	for len(got) < len(want) && w.Receive() {
		if e := w.Msg().GetFilesystem(); e.GetType() == created {
			got[e.Name]++
		}
	}
	write(t, b.real("tmp/end"), "")
	for _, e := range w.until(event{"end", created}) {
		if e.kind == created && e.name != "end" {
			got[e.name]++
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Case 51: all events in order, or an overflow that is told.
func TestWatchManyEvents(t *testing.T) {
	b := newBench(t)
	w := b.watchDir(t, &pb.WatchDirRequest{Path: "/tmp"})
	const many = 10_000
	var want []event
	for i := range many {
		name := fmt.Sprintf("%05d", i)
		p := b.real("tmp/" + name)
		f, err := os.Create(p)
		must(t, err)
		must(t, f.Close())
		must(t, os.Rename(p, p+"r"))
		must(t, os.Remove(p+"r"))
		want = append(want, event{name, created}, event{name, renamed}, event{name + "r", created}, event{name + "r", removed})
	}
	must(t, os.Mkdir(b.real("tmp/end"), 0o755))
	got := w.until(event{"end", created})
	got = got[:len(got)-1]
	lost := slices.Index(got, lostEvents)
	if lost < 0 {
		lost = len(got)
		if len(got) != len(want) {
			t.Errorf("%d events of %d and no overflow", len(got), len(want))
		}
	}
	if !slices.Equal(want[:min(lost, len(want))], got[:lost]) {
		t.Errorf("before an overflow: %.2000s", cmp.Diff(want[:lost], got[:lost], allowEvent))
	}
	// After it what comes is still in order.
	at := 0
	for _, e := range got {
		if e == lostEvents {
			continue
		}
		i := slices.Index(want[at:], e)
		if i < 0 {
			t.Fatalf("%v is out of order", e)
		}
		at += i + 1
	}
}

func TestWatchOverflowIsTold(t *testing.T) {
	b := newBench(t)
	b.hub.maxQueued = 10
	id := b.watchPoll(t, "/tmp")
	for i := range 1000 {
		write(t, b.real(fmt.Sprint("tmp/", i)), "")
	}
	must(t, os.Mkdir(b.real("tmp/end"), 0o755))
	b.settled(t)
	got := b.events(t, id)
	if len(got) != 11 || got[10] != lostEvents || got[0] != (event{"0", created}) {
		t.Fatalf("events %v", got)
	}
	write(t, b.real("tmp/after"), "")
	b.settled(t)
	if diff := cmp.Diff([]event{{"after", created}}, b.events(t, id), allowEvent); diff != "" {
		t.Error(diff)
	}
}

// settled waits until all that happened before is queued: inotify is one line,
// so it awaits an event of its own.
func (b *bench) settled(t *testing.T) {
	t.Helper()
	dir := "/" + rel(t, b.root, mkdirTemp(t, b.root))
	w, err := b.hub.open(dir, b.account(t), false, false)
	must(t, err)
	defer w.close()
	write(t, b.real(dir+"/mark"), "")
	select {
	case <-w.wake:
	case <-time.After(guard):
		t.Fatal("no event came")
	}
}

func mkdirTemp(t *testing.T, dir string) string {
	t.Helper()
	var p string
	asOwner(t, dir, func() (err error) {
		p, err = os.MkdirTemp(dir, "settled")
		return err
	})
	return p
}

func rel(t *testing.T, base, p string) string {
	t.Helper()
	r, err := filepath.Rel(base, p)
	must(t, err)
	return r
}

func (b *bench) watchPoll(t *testing.T, p string) (id string) {
	t.Helper()
	r, err := b.rpc.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: p}))
	must(t, err)
	return r.Msg.WatcherId
}

func (b *bench) poll1(t *testing.T, id string) (*pb.GetWatcherEventsResponse, error) {
	t.Helper()
	r, err := b.rpc.GetWatcherEvents(t.Context(), connect.NewRequest(&pb.GetWatcherEventsRequest{WatcherId: id}))
	if err != nil {
		return nil, err
	}
	return r.Msg, nil
}

func (b *bench) events(t *testing.T, id string) []event {
	t.Helper()
	m, err := b.poll1(t, id)
	must(t, err)
	var got []event
	for _, e := range m.Events {
		if !utf8.ValidString(e.Name) {
			t.Errorf("name %q", e.Name)
		}
		got = append(got, event{e.Name, e.Type})
	}
	return got
}

func TestPolledWatcher(t *testing.T) {
	b := newBench(t)
	id := b.watchPoll(t, "/tmp")
	if got := b.events(t, id); got != nil {
		t.Errorf("events before anything happened: %v", got)
	}
	write(t, b.real("tmp/f"), "")
	b.settled(t)
	if diff := cmp.Diff([]event{{"f", created}}, b.events(t, id), allowEvent); diff != "" {
		t.Error(diff)
	}
	if got := b.events(t, id); got != nil {
		t.Errorf("events are told twice: %v", got)
	}
	_, err := b.rpc.RemoveWatcher(t.Context(), connect.NewRequest(&pb.RemoveWatcherRequest{WatcherId: id}))
	must(t, err)
	_, err = b.poll1(t, id)
	wantCode(t, err, connect.CodeNotFound)
	_, err = b.rpc.RemoveWatcher(t.Context(), connect.NewRequest(&pb.RemoveWatcherRequest{WatcherId: id}))
	wantCode(t, err, connect.CodeNotFound)
	if b.hub.mu.Lock(); len(b.hub.subs) != 0 || len(b.hub.watchers) != 0 {
		t.Errorf("left behind: %v, %v", b.hub.subs, b.hub.watchers)
	}
	b.hub.mu.Unlock()
}

func TestWatchedDirectoryGoes(t *testing.T) {
	b := newBench(t)
	for name, act := range map[string]struct {
		do   func(p string) error
		last event
	}{
		"removed": {os.Remove, event{".", removed}},
		"moved":   {func(p string) error { return os.Rename(p, p+"2") }, event{".", renamed}},
	} {
		dir := "/tmp/" + name
		must(t, os.Mkdir(b.real(dir), 0o755))
		w, id := b.watchDir(t, &pb.WatchDirRequest{Path: dir}), b.watchPoll(t, dir)
		must(t, act.do(b.real(dir)))
		w.want(act.last)
		if w.Receive() {
			t.Errorf("%s: more came: %v", name, w.Msg())
		}
		wantCode(t, w.Err(), connect.CodeNotFound)
		b.settled(t)
		if diff := cmp.Diff([]event{act.last}, b.events(t, id), allowEvent); diff != "" {
			t.Error(diff)
		}
		_, err := b.poll1(t, id)
		wantCode(t, err, connect.CodeNotFound)
	}
}

func TestWatchEntries(t *testing.T) {
	b := newBench(t)
	must(t, os.Symlink("tmp", b.real("link")))
	w := b.watchDir(t, &pb.WatchDirRequest{Path: "/link", IncludeEntry: true})
	must(t, os.Mkdir(b.real("tmp/d"), 0o755))
	if !w.Receive() {
		t.Fatal(w.Err())
	}
	e := w.Msg().GetFilesystem()
	if e.GetEntry().GetPath() != "/link/d" || e.Entry.Type != pb.FileType_FILE_TYPE_DIRECTORY || e.Name != "d" {
		t.Errorf("event %v", e)
	}
	must(t, os.Remove(b.real("tmp/d")))
	if !w.Receive() || w.Msg().GetFilesystem().GetEntry() != nil {
		t.Errorf("event %v, %v", w.Msg(), w.Err())
	}
}

func TestWatchRefusals(t *testing.T) {
	b := newBench(t)
	write(t, b.real("tmp/f"), "")
	for p, want := range map[string]connect.Code{"/none": connect.CodeNotFound, "/tmp/f": connect.CodeInvalidArgument} {
		_, err := b.rpc.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: p}))
		wantCode(t, err, want)
		s, err := b.rpc.WatchDir(t.Context(), connect.NewRequest(&pb.WatchDirRequest{Path: p}))
		must(t, err)
		if s.Receive() {
			t.Errorf("WatchDir(%q): %v", p, s.Msg())
		}
		wantCode(t, s.Err(), want)
		s.Close()
	}
}

func TestWatcherLimits(t *testing.T) {
	b := newBench(t, func(o *Options) { o.MaxWatchers, o.MaxWatchedDirs = 2, 3 })
	first := b.watchPoll(t, "/tmp")
	b.watchPoll(t, "/tmp")
	create := func(p string, recursive bool) (string, error) {
		r, err := b.rpc.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: p, Recursive: recursive}))
		if err != nil {
			return "", err
		}
		return r.Msg.WatcherId, nil
	}
	_, err := create("/tmp", false)
	wantCode(t, err, connect.CodeResourceExhausted)
	b.poll.mu.Lock()
	b.poll.byID[first].asked = time.Now().Add(-2 * idlePoll)
	b.poll.mu.Unlock()
	id, err := create("/tmp", false)
	must(t, err)
	_, err = b.poll1(t, first)
	wantCode(t, err, connect.CodeNotFound)
	b.poll.remove(id)

	must(t, os.MkdirAll(b.real("home/1/2/3"), 0o755))
	_, err = create("/home", true)
	wantCode(t, err, connect.CodeResourceExhausted)
	id, err = create("/tmp", true)
	must(t, err)
	must(t, os.MkdirAll(b.real("tmp/1/2/3/4"), 0o755))
	b.settledBesides(t)
	if got := b.events(t, id); !slices.Contains(got, lostEvents) {
		t.Errorf("directories past the limit are not told: %v", got)
	}
}

// settledBesides waits like settled, where no other watcher may be opened.
func (b *bench) settledBesides(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(guard); ; runtime.Gosched() {
		for _, w := range b.hub.all() {
			w.mu.Lock()
			lost := w.lost || slices.Contains(w.items, lostEvents)
			w.mu.Unlock()
			if lost {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing was lost")
		}
	}
}

func TestKeepalive(t *testing.T) {
	for header, want := range map[string]time.Duration{"": defaultKeepalive, "50": 50 * time.Second, " 1 ": time.Second, "0": defaultKeepalive, "-1": defaultKeepalive, "x": defaultKeepalive, "99999999": maxKeepalive} {
		h := connect.NewRequest(&pb.StatRequest{}).Header()
		h.Set("Keepalive-Ping-Interval", header)
		if got := keepalive(h); got != want {
			t.Errorf("keepalive(%q) = %v, want %v", header, got, want)
		}
	}
	b := newBench(t)
	w := b.watchDir(t, &pb.WatchDirRequest{Path: "/tmp"}, "Keepalive-Ping-Interval", "1")
	if !w.Receive() || w.Msg().GetKeepalive() == nil {
		t.Errorf("message %v, %v", w.Msg(), w.Err())
	}
}

func TestWatchDeadline(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	defer cancel()
	r := connect.NewRequest(&pb.WatchDirRequest{Path: "/tmp"})
	s, err := b.rpc.WatchDir(ctx, r)
	must(t, err)
	if !s.Receive() {
		t.Fatal(s.Err())
	}
	cancel()
	for s.Receive() {
	}
	s.Close()
	for len(b.hub.all()) > 0 { // the handler sees the end of its context
		runtime.Gosched()
	}
}

func TestCloseEndsWatches(t *testing.T) {
	b := newBench(t)
	w, id := b.watchDir(t, &pb.WatchDirRequest{Path: "/tmp", Recursive: true}), b.watchPoll(t, "/tmp")
	must(t, b.Close())
	if w.Receive() {
		t.Errorf("message %v", w.Msg())
	}
	wantCode(t, w.Err(), connect.CodeUnavailable)
	_, err := b.poll1(t, id)
	wantCode(t, err, connect.CodeUnavailable)
	_, err = b.rpc.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: "/tmp"}))
	wantCode(t, err, connect.CodeUnavailable)
	must(t, b.Close())
}

// A tree is made, moved and removed while it is watched: whatever is told, the
// watch must live and know the directories that are left.
func TestWatchUnderChurn(t *testing.T) {
	b := newBench(t)
	w := b.watchDir(t, &pb.WatchDirRequest{Path: "/tmp", Recursive: true})
	for i := range 300 {
		p := b.real(fmt.Sprint("tmp/", i%7))
		os.MkdirAll(p+"/x/y", 0o755)
		os.Rename(p, b.real(fmt.Sprint("tmp/m", i%5)))
		os.RemoveAll(b.real(fmt.Sprint("tmp/m", (i+2)%5)))
		os.Rename(b.real("tmp/m0"), b.real("home/m0"))
		os.RemoveAll(b.real("home/m0"))
	}
	must(t, os.RemoveAll(b.real("tmp/last")))
	must(t, os.MkdirAll(b.real("tmp/last/a"), 0o755))
	w.until(event{"last/a", created})
	write(t, b.real("tmp/last/a/end"), "")
	w.until(event{"last/a/end", created})
	for i := range 7 {
		os.RemoveAll(b.real(fmt.Sprint("tmp/", i)))
		os.RemoveAll(b.real(fmt.Sprint("tmp/m", i)))
	}
	write(t, b.real("tmp/last/a/end2"), "")
	w.until(event{"last/a/end2", created})
	b.settled(t)
	b.hub.mu.Lock()
	defer b.hub.mu.Unlock()
	if n := len(b.hub.subs); n != 3 {
		t.Errorf("%d directories are watched, want tmp, tmp/last and tmp/last/a: %v", n, b.hub.subs)
	}
}
