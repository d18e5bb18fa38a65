//go:build linux

package filesystem

import (
	"context"
	"crypto/rand"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/agent/account"
	"github.com/agent-sandbox/abx/internal/e2b"
	pb "github.com/agent-sandbox/abx/internal/e2b/filesystem"
)

const (
	defaultKeepalive = 90 * time.Second
	maxKeepalive     = 24 * time.Hour
	// idlePoll is after how long without a poll a watcher gives way to a new
	// one when the limit is met: its client is likely gone.
	idlePoll = 10 * time.Minute
)

// WatchDir streams the changes in a directory until the client goes, the
// directory does, or the service closes.
func (s rpc) WatchDir(ctx context.Context, r *connect.Request[pb.WatchDirRequest], stream *connect.ServerStream[pb.WatchDirResponse]) error {
	a, p, err := s.target(r.Header(), r.Msg.Path)
	if err != nil {
		return s.wire(err)
	}
	w, err := s.watch(p, a, r.Msg)
	if err != nil {
		return s.wire(err)
	}
	defer w.close()
	start := &pb.WatchDirResponse{Event: &pb.WatchDirResponse_Start{Start: &pb.WatchDirResponse_StartEvent{}}}
	if err := stream.Send(start); err != nil {
		return err
	}
	every := keepalive(r.Header())
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return s.wire(ctx.Err())
		case <-timer.C:
			alive := &pb.WatchDirResponse{Event: &pb.WatchDirResponse_Keepalive{Keepalive: &pb.WatchDirResponse_KeepAlive{}}}
			if err := stream.Send(alive); err != nil {
				return err
			}
		case <-w.wake:
			events, end := w.take()
			for _, e := range s.tell(w, events, p, r.Msg.IncludeEntry) {
				if err := stream.Send(&pb.WatchDirResponse{Event: &pb.WatchDirResponse_Filesystem{Filesystem: e}}); err != nil {
					return err
				}
			}
			if end != nil {
				return s.wire(end)
			}
		}
		timer.Reset(every)
	}
}

// keepalive reads how often a silent stream shows that it lives.
func keepalive(h http.Header) time.Duration {
	n, err := strconv.ParseInt(strings.TrimSpace(h.Get(e2b.HeaderKeepalive)), 10, 32)
	if err != nil || n <= 0 {
		return defaultKeepalive
	}
	return min(time.Duration(n)*time.Second, maxKeepalive)
}

// watching is what the two requests to watch have in common.
type watching interface {
	GetRecursive() bool
	GetAllowNetworkMounts() bool
}

// watch opens a watcher on p, giving up idle polled ones when there are too many.
func (s *Service) watch(p string, a account.Account, o watching) (*watcher, error) {
	w, err := s.hub.open(p, a, o.GetRecursive(), o.GetAllowNetworkMounts())
	if kindOf(err) == kindLimit && s.poll.expire(time.Now().Add(-idlePoll)) {
		w, err = s.hub.open(p, a, o.GetRecursive(), o.GetAllowNetworkMounts())
	}
	return w, s.refused(a, err)
}

// tell builds the events for a client who watches p by w.
func (s *Service) tell(w *watcher, events []event, p string, withEntry bool) []*pb.FilesystemEvent {
	told := make([]*pb.FilesystemEvent, len(events))
	for i, e := range events {
		told[i] = &pb.FilesystemEvent{Name: valid(e.name), Type: e.kind}
	}
	if withEntry && len(events) > 0 {
		_ = s.as(w.user, func() error { // an event without its entry is told nevertheless
			s.addEntries(told, events, p)
			return nil
		})
	}
	return told
}

func (s *Service) addEntries(told []*pb.FilesystemEvent, events []event, p string) {
	d := s.describer()
	for i, e := range events {
		if e == lostEvents {
			continue
		}
		switch e.kind {
		case pb.EventType_EVENT_TYPE_CREATE, pb.EventType_EVENT_TYPE_WRITE, pb.EventType_EVENT_TYPE_CHMOD:
			if info, err := d.stat(path.Join(p, e.name)); err == nil { // else it is gone again
				told[i].Entry = info
			}
		}
	}
}

// pollers are the watchers whose clients come and ask. The zero value has none.
type pollers struct {
	mu   sync.Mutex
	byID map[string]*poller
}

type poller struct {
	*watcher
	path      string
	withEntry bool
	asked     time.Time // last; guarded by pollers.mu
}

func (p *pollers) add(w *poller) (id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID == nil {
		p.byID = map[string]*poller{}
	}
	id, w.asked = rand.Text(), time.Now()
	p.byID[id] = w
	return id
}

func (p *pollers) get(id string) (*poller, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.byID[id]
	if !ok {
		return nil, faultf(kindMissing, "watcher %s does not exist; create one with CreateWatcher", show(id))
	}
	w.asked = time.Now()
	return w, nil
}

func (p *pollers) remove(id string) {
	p.mu.Lock()
	w := p.byID[id]
	delete(p.byID, id)
	p.mu.Unlock()
	if w != nil {
		w.close()
	}
}

// expire removes those not asked since then and reports whether there were any.
func (p *pollers) expire(then time.Time) bool {
	p.mu.Lock()
	var idle []string
	for id, w := range p.byID {
		if w.asked.Before(then) {
			idle = append(idle, id)
		}
	}
	p.mu.Unlock()
	for _, id := range idle {
		p.remove(id)
	}
	return len(idle) > 0
}

// CreateWatcher begins a watch whose events the client fetches.
func (s rpc) CreateWatcher(_ context.Context, r *connect.Request[pb.CreateWatcherRequest]) (*connect.Response[pb.CreateWatcherResponse], error) {
	a, p, err := s.target(r.Header(), r.Msg.Path)
	if err != nil {
		return nil, s.wire(err)
	}
	w, err := s.watch(p, a, r.Msg)
	if err != nil {
		return nil, s.wire(err)
	}
	id := s.poll.add(&poller{watcher: w, path: p, withEntry: r.Msg.IncludeEntry})
	return connect.NewResponse(&pb.CreateWatcherResponse{WatcherId: id}), nil
}

// GetWatcherEvents returns the events since the last call. When the watched
// directory is gone, the last of them come first and not_found then.
func (s rpc) GetWatcherEvents(_ context.Context, r *connect.Request[pb.GetWatcherEventsRequest]) (*connect.Response[pb.GetWatcherEventsResponse], error) {
	w, err := s.poll.get(r.Msg.WatcherId)
	if err != nil {
		return nil, s.wire(err)
	}
	events, end := w.take()
	if len(events) == 0 && end != nil {
		s.poll.remove(r.Msg.WatcherId)
		return nil, s.wire(end)
	}
	return connect.NewResponse(&pb.GetWatcherEventsResponse{Events: s.tell(w.watcher, events, w.path, w.withEntry)}), nil
}

// RemoveWatcher ends such a watch.
func (s rpc) RemoveWatcher(_ context.Context, r *connect.Request[pb.RemoveWatcherRequest]) (*connect.Response[pb.RemoveWatcherResponse], error) {
	if _, err := s.poll.get(r.Msg.WatcherId); err != nil {
		return nil, s.wire(err)
	}
	s.poll.remove(r.Msg.WatcherId)
	return connect.NewResponse(&pb.RemoveWatcherResponse{}), nil
}
