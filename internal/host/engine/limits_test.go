package engine_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/driver/drivertest"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

func TestLimitsGiven(t *testing.T) {
	d := engine.Limits{MemoryBytes: 2 << 30, DiskBytes: 1 << 30, Processes: 512, OpenFiles: 4096}
	for name, c := range map[string]struct{ given, want engine.Limits }{
		"nothing":          {engine.Limits{}, d},
		"less memory":      {engine.Limits{MemoryBytes: 512 << 20}, engine.Limits{MemoryBytes: 512 << 20, DiskBytes: 256 << 20, Processes: 512, OpenFiles: 4096}},
		"more memory":      {engine.Limits{MemoryBytes: 8 << 30}, engine.Limits{MemoryBytes: 8 << 30, DiskBytes: 1 << 30, Processes: 512, OpenFiles: 4096}},
		"disk and the few": {engine.Limits{DiskBytes: 1 << 20, Processes: 99, OpenFiles: 88}, engine.Limits{MemoryBytes: 2 << 30, DiskBytes: 1 << 20, Processes: 99, OpenFiles: 88}},
	} {
		if got, err := d.Given(c.given); err != nil || got != c.want {
			t.Errorf("%s: %+v %v, want %+v", name, got, err, c.want)
		}
	}
	for name, g := range map[string]engine.Limits{
		"ABX_LIMIT_MEMORY": {MemoryBytes: 1 << 10}, "ABX_LIMIT_DISK": {DiskBytes: 4096},
		"ABX_LIMIT_PROCESSES": {Processes: 1}, "ABX_LIMIT_OPEN_FILES": {OpenFiles: 3},
	} {
		if _, err := d.Given(g); !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s too small: %v", name, err)
		}
	}
	_, err := d.Given(engine.Limits{DiskBytes: 4 << 30})
	if !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), "ABX_LIMIT_DISK") {
		t.Errorf("a disk larger than memory: %v", err)
	}
}

func TestDefaultLimitsFit(t *testing.T) {
	l := engine.DefaultLimits()
	if l.DiskBytes >= l.MemoryBytes || l.MemoryBytes > engine.DefaultMemoryBytes || l.MemoryBytes <= 0 {
		t.Errorf("%+v", l)
	}
}

// An agent that hangs is lost: the call says so, and the sandbox is gone from
// the list and from the machine.
func TestHungAgentIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := false
		f := &drivertest.Fake{Init: func(engine.Spec, e2b.Init) error {
			if hang {
				time.Sleep(10 * time.Minute)
			}
			return nil
		}}
		e := newEngine(t, f, engine.Options{})
		info := create(t, e, pooled())
		hang = true
		err := e.SetTimeout(t.Context(), info.ID, 2*time.Hour)
		if !errors.Is(err, engine.ErrLost) || !strings.Contains(err.Error(), "did not answer") {
			t.Errorf("set timeout: %v", err)
		}
		if e.Len() != 0 {
			t.Errorf("%d sandboxes are listed", e.Len())
		}
		if _, err := e.Get(info.ID); !errors.Is(err, engine.ErrLost) && !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("get: %v", err)
		}
		time.Sleep(time.Hour) // the fake wakes up
	})
}
