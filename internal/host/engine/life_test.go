package engine_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/driver/drivertest"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{}
		e := newEngine(t, f, engine.Options{})
		a, b := create(t, e, request()), create(t, e, request())
		time.Sleep(59 * time.Second)
		if _, err := e.Extend(t.Context(), b.ID, time.Minute); err != nil {
			t.Fatal(err)
		}
		if len(f.Live()) != 2 {
			t.Fatal("expired early")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		_, err := e.Get(a.ID)
		if !errors.Is(err, engine.ErrExpired) || errors.Is(err, engine.ErrNotFound) || engine.Reason(err) != "expired" {
			t.Errorf("got %v", err)
		}
		if got := ids(e.List()); !slices.Equal(got, []string{b.ID}) || len(f.Live()) != 1 {
			t.Errorf("list %v, live %d", got, len(f.Live()))
		}
		if err := e.Kill(t.Context(), a.ID); !errors.Is(err, engine.ErrExpired) {
			t.Errorf("kill: %v", err)
		}
		// Remembered for a while only.
		time.Sleep(2 * time.Hour)
		if _, err := e.Get(a.ID); !errors.Is(err, engine.ErrNotFound) || engine.Reason(err) != "" {
			t.Errorf("later: %v", err)
		}
	})
}

// lifetimes are the deadlines that the agent was told, in order.
func lifetimes(b *drivertest.FakeSandbox) []time.Duration {
	var out []time.Duration
	for _, i := range b.Inits() {
		out = append(out, time.Duration(i.Abx.LifetimeMS)*time.Millisecond)
	}
	return out
}

func TestSetTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{}
		e := newEngine(t, f, engine.Options{})
		info := create(t, e, request())
		left := func() time.Duration {
			now, err := e.Get(info.ID)
			if err != nil {
				t.Fatal(err)
			}
			return time.Until(now.EndAt)
		}
		set := func(d time.Duration) {
			t.Helper()
			if err := e.SetTimeout(t.Context(), info.ID, d); err != nil {
				t.Fatal(err)
			}
			if left() != d {
				t.Errorf("set %v, left %v", d, left())
			}
		}
		set(10 * time.Minute)
		set(20 * time.Second)
		// Connect only extends.
		if got, err := e.Extend(t.Context(), info.ID, 10*time.Second); err != nil || left() != 20*time.Second || !got.EndAt.Equal(time.Now().Add(20*time.Second)) {
			t.Errorf("extend by less: left %v, %v", left(), err)
		}
		if _, err := e.Extend(t.Context(), info.ID, time.Hour); err != nil || left() != time.Hour {
			t.Errorf("extend: left %v, %v", left(), err)
		}
		// A session that extends before every use does not ask the agent each time.
		for range 3 {
			time.Sleep(2 * time.Second)
			if _, err := e.Extend(t.Context(), info.ID, time.Hour); err != nil || left() != time.Hour {
				t.Errorf("extend again: left %v, %v", left(), err)
			}
			set(time.Hour)
		}
		time.Sleep(10 * time.Second)
		if _, err := e.Extend(t.Context(), info.ID, time.Hour); err != nil {
			t.Fatal(err)
		}
		want := []time.Duration{90 * time.Second, 630 * time.Second, 50 * time.Second, time.Hour + 30*time.Second, time.Hour + 30*time.Second}
		if diff := cmp.Diff(want, lifetimes(f.Find(info.ID))); diff != "" {
			t.Errorf("agent's lifetimes (-want +got)\n%s", diff)
		}
		if err := e.SetTimeout(t.Context(), info.ID, 25*time.Hour); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("too long: %v", err)
		}
		if err := e.SetTimeout(t.Context(), info.ID, -time.Second); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("negative: %v", err)
		}
		if err := e.SetTimeout(t.Context(), info.ID, 0); err != nil {
			t.Errorf("expire now: %v", err)
		}
		if len(f.Live()) != 0 {
			t.Error("still there after SetTimeout 0")
		}
		if err := e.SetTimeout(t.Context(), info.ID, time.Minute); !errors.Is(err, engine.ErrExpired) {
			t.Errorf("after its end: %v", err)
		}
	})
}

func TestLifetimeInAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, &drivertest.Fake{}, engine.Options{MaxLifetime: time.Hour})
		info := create(t, e, request())
		for range 130 {
			if _, err := e.Extend(t.Context(), info.ID, time.Minute); err != nil {
				if !errors.Is(err, engine.ErrExpired) {
					t.Fatal(err)
				}
				break
			}
			time.Sleep(30 * time.Second)
		}
		synctest.Wait()
		if _, err := e.Get(info.ID); !errors.Is(err, engine.ErrExpired) {
			t.Errorf("got %v", err)
		}
	})
}

// TestAgentUnreachable: what the agent did not hear does not hold.
func TestAgentUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deaf := false
		f := &drivertest.Fake{}
		f.Init = func(engine.Spec, e2b.Init) error {
			if deaf {
				return errors.New("deaf")
			}
			return nil
		}
		e := newEngine(t, f, engine.Options{})
		info := create(t, e, request())
		deaf = true
		if _, err := e.Extend(t.Context(), info.ID, time.Hour); err == nil {
			t.Error("extended without the agent")
		}
		if now, _ := e.Get(info.ID); !now.EndAt.Equal(info.EndAt) {
			t.Errorf("end moved to %v", now.EndAt)
		}
		if err := e.SetTimeout(t.Context(), info.ID, time.Second); err != nil {
			t.Errorf("shorten: %v", err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(f.Live()) != 0 {
			t.Error("not expired")
		}
	})
}

func TestDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{}
		closed := 0
		f.Closing = func(engine.Spec) error { closed++; return nil }
		e := newEngine(t, f, engine.Options{})
		info := create(t, e, request())
		f.Find(info.ID).Die(errors.New("killed by the kernel"))
		synctest.Wait()
		_, err := e.Get(info.ID)
		if !errors.Is(err, engine.ErrLost) || !strings.Contains(err.Error(), "killed by the kernel") || engine.Reason(err) != "lost" {
			t.Errorf("got %v", err)
		}
		if len(e.List()) != 0 || closed != 1 {
			t.Errorf("list %v, closed %d times", e.List(), closed)
		}
	})
}

func TestGravesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, &drivertest.Fake{}, engine.Options{})
		var all []string
		for range 1100 {
			info := create(t, e, request())
			all = append(all, info.ID)
			if err := e.Kill(t.Context(), info.ID); err != nil {
				t.Fatal(err)
			}
		}
		known := 0
		for _, id := range all {
			_, err := e.Get(id)
			if !errors.Is(err, engine.ErrNotFound) {
				t.Fatalf("got %v", err)
			}
			if engine.Reason(err) == "killed" {
				known++
			}
		}
		if known != 1024 {
			t.Errorf("%d remembered", known)
		}
	})
}

// TestExtendFindsDeath: whoever extends the life of a dead sandbox is told so,
// though nobody has noticed it yet.
func TestExtendFindsDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{}
		told := 0
		f.Init = func(s engine.Spec, _ e2b.Init) error {
			if told++; told > 1 {
				f.Find(s.ID).Die(errors.New("shot"))
			}
			return nil
		}
		e := newEngine(t, f, engine.Options{})
		info := create(t, e, request())
		if _, err := e.Extend(t.Context(), info.ID, time.Hour); !errors.Is(err, engine.ErrLost) {
			t.Errorf("got %v", err)
		}
	})
}
