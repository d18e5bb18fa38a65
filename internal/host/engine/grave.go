package engine

import (
	"errors"
	"fmt"
	"time"
)

const (
	graveCount = 1024
	graveAge   = time.Hour
)

// graves remembers why sandboxes are no more: the newest graveCount of them,
// for graveAge. The zero value is empty. Guarded by the Engine's lock.
type graves struct {
	byID  map[string]grave
	order []string // a ring, oldest at next once it is full
	next  int
}

type grave struct {
	cause error
	at    time.Time
}

func (g *graves) add(id string, cause error, now time.Time) {
	if g.byID == nil {
		g.byID = map[string]grave{}
	}
	if len(g.order) < graveCount {
		g.order = append(g.order, id)
	} else {
		delete(g.byID, g.order[g.next])
		g.order[g.next] = id
		g.next = (g.next + 1) % graveCount
	}
	g.byID[id] = grave{cause: cause, at: now}
}

func (g *graves) has(id string) bool {
	_, ok := g.byID[id]
	return ok
}

// tell is the error for a sandbox that is not in the list.
func (g *graves) tell(id string, now time.Time) error {
	d, ok := g.byID[id]
	if !ok || now.Sub(d.at) > graveAge {
		return Errorf(ErrNotFound, "sandbox %.80q was not found", id)
	}
	at := d.at.UTC().Format(time.RFC3339)
	switch {
	case errors.Is(d.cause, ErrExpired):
		return Errorf(ErrExpired, "sandbox %s expired at %s; create a new one, with a longer timeout if need be", id, at)
	case errors.Is(d.cause, ErrLost):
		return Errorf(ErrLost, "sandbox %s ended at %s (%v); create a new one", id, at, d.cause)
	}
	return Errorf(errKilled, "sandbox %s was killed at %s", id, at)
}

// lostBecause is the end of a sandbox that nobody ended.
func lostBecause(err error) error {
	if err == nil {
		return fmt.Errorf("%w: its agent is gone", ErrLost)
	}
	if errors.Is(err, ErrLost) {
		return err
	}
	return fmt.Errorf("%w: %v", ErrLost, err)
}
