//go:build linux

package filesystem

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	pb "github.com/agent-sandbox/abx/internal/e2b/filesystem"
)

const (
	created = pb.EventType_EVENT_TYPE_CREATE
	written = pb.EventType_EVENT_TYPE_WRITE
	removed = pb.EventType_EVENT_TYPE_REMOVE
	renamed = pb.EventType_EVENT_TYPE_RENAME
	chmod   = pb.EventType_EVENT_TYPE_CHMOD
)

var allowEvent = cmp.AllowUnexported(event{})

func TestQueueTellsWhereEventsWereLost(t *testing.T) {
	q := newQueue(3)
	for _, name := range []string{"1", "2", "3", "lost", "lost too"} {
		q.push(event{name, created})
	}
	<-q.wake
	got, end := q.take()
	want := []event{{"1", created}, {"2", created}, {"3", created}, lostEvents}
	if diff := cmp.Diff(want, got, allowEvent); diff != "" || end != nil {
		t.Errorf("take: %v\n%s", end, diff)
	}
	q.push(event{"4", created})
	if got, _ := q.take(); !cmp.Equal([]event{{"4", created}}, got, allowEvent) {
		t.Errorf("after an overflow: %v", got)
	}
	q.lose()
	q.push(event{"5", created})
	q.push(event{"6", created})
	got, _ = q.take()
	if diff := cmp.Diff([]event{lostEvents, {"5", created}, {"6", created}}, got, allowEvent); diff != "" {
		t.Errorf("lost before others: %s", diff)
	}
}

func TestQueueFoldsRepeats(t *testing.T) {
	q := newQueue(100)
	for _, e := range []event{{"a", written}, {"a", written}, {"b", written}, {"a", written}, {"a", chmod}, {"a", chmod}, {"c", created}, {"c", created}} {
		q.push(e)
	}
	got, _ := q.take()
	want := []event{{"a", written}, {"b", written}, {"a", written}, {"a", chmod}, {"c", created}, {"c", created}}
	if diff := cmp.Diff(want, got, allowEvent); diff != "" {
		t.Error(diff)
	}
}

func TestQueueEndsAfterItsEvents(t *testing.T) {
	first := errors.New("first")
	q := newQueue(10)
	q.push(event{"a", created})
	q.finish(first)
	q.finish(errors.New("second"))
	q.push(event{"late", created})
	q.lose()
	got, end := q.take()
	if len(got) != 1 || !errors.Is(end, first) {
		t.Errorf("take = %v, %v", got, end)
	}
}
