//go:build linux

package filesystem

import (
	"context"
	"math"
	"net/http"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/agent/account"
	pb "github.com/agent-sandbox/abx/internal/e2b/filesystem"
)

// rpc is the Connect face of a Service: it reads requests and builds answers.
type rpc struct{ *Service }

// target finds the user of a request and the absolute path of what it names.
func (s rpc) target(h http.Header, p string) (account.Account, string, error) {
	a, err := s.userOf(h)
	if err != nil {
		return a, "", err
	}
	p, err = s.resolve(p, a)
	return a, p, err
}

// Stat describes a path; a link as the link, with type and mode of its target.
func (s rpc) Stat(_ context.Context, r *connect.Request[pb.StatRequest]) (*connect.Response[pb.StatResponse], error) {
	a, p, err := s.target(r.Header(), r.Msg.Path)
	if err != nil {
		return nil, s.wire(err)
	}
	info, err := as(s.Service, a, func() (*pb.EntryInfo, error) { return s.describer().stat(p) })
	if err != nil {
		return nil, s.wire(notThere(p, err))
	}
	return connect.NewResponse(&pb.StatResponse{Entry: info}), nil
}

// MakeDir makes a directory and its parents.
func (s rpc) MakeDir(_ context.Context, r *connect.Request[pb.MakeDirRequest]) (*connect.Response[pb.MakeDirResponse], error) {
	a, p, err := s.target(r.Header(), r.Msg.Path)
	if err != nil {
		return nil, s.wire(err)
	}
	info, err := as(s.Service, a, func() (*pb.EntryInfo, error) {
		if err := s.tree.makeDir(p); err != nil {
			return nil, err
		}
		return s.describer().stat(p)
	})
	if err != nil {
		return nil, s.wire(err)
	}
	return connect.NewResponse(&pb.MakeDirResponse{Entry: info}), nil
}

// Move renames a path and makes the parents of the new one.
func (s rpc) Move(_ context.Context, r *connect.Request[pb.MoveRequest]) (*connect.Response[pb.MoveResponse], error) {
	a, from, err := s.target(r.Header(), r.Msg.Source)
	if err != nil {
		return nil, s.wire(err)
	}
	to, err := s.resolve(r.Msg.Destination, a)
	if err != nil {
		return nil, s.wire(err)
	}
	info, err := as(s.Service, a, func() (*pb.EntryInfo, error) {
		if err := s.tree.move(from, to); err != nil {
			return nil, err
		}
		return s.describer().stat(to)
	})
	if err != nil {
		return nil, s.wire(err)
	}
	return connect.NewResponse(&pb.MoveResponse{Entry: info}), nil
}

// ListDir lists a directory.
func (s rpc) ListDir(ctx context.Context, r *connect.Request[pb.ListDirRequest]) (*connect.Response[pb.ListDirResponse], error) {
	a, p, err := s.target(r.Header(), r.Msg.Path)
	if err != nil {
		return nil, s.wire(err)
	}
	depth := int(min(max(r.Msg.Depth, 1), math.MaxInt32))
	limit := int(min(r.Msg.AbxLimit, math.MaxInt32))
	l, err := as(s.Service, a, func() (*listing, error) { return s.listDir(ctx, p, depth, limit) })
	if err != nil {
		return nil, s.wire(err)
	}
	answer := &pb.ListDirResponse{Entries: l.entries}
	if l.total > uint64(len(l.entries)) {
		answer.AbxTotal = l.total
	}
	return connect.NewResponse(answer), nil
}

// Remove removes a path and all below it. A missing path is success.
func (s rpc) Remove(ctx context.Context, r *connect.Request[pb.RemoveRequest]) (*connect.Response[pb.RemoveResponse], error) {
	a, p, err := s.target(r.Header(), r.Msg.Path)
	if err == nil {
		err = s.as(a, func() error { return s.tree.remove(ctx, p) })
	}
	if err != nil {
		return nil, s.wire(err)
	}
	return connect.NewResponse(&pb.RemoveResponse{}), nil
}
