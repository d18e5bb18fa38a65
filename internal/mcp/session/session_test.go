package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

var errGone = errors.New("platform: 404")

// platform is a fake of the other end: sandboxes with real lifetimes.
type platform struct {
	latency time.Duration

	mu      sync.Mutex
	made    []*fake
	specs   []Spec
	fail    error
	killErr error
}

type fake struct {
	p       *platform
	id      string
	end     time.Time
	dead    bool
	extends []time.Duration
}

func (p *platform) create(ctx context.Context, spec Spec) (*fake, error) {
	if err := p.wait(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return nil, p.fail
	}
	f := &fake{p: p, id: fmt.Sprintf("i%d", len(p.made)+1), end: time.Now().Add(spec.Timeout)}
	p.made, p.specs = append(p.made, f), append(p.specs, spec)
	return f, nil
}

func (p *platform) wait(ctx context.Context) error {
	if p.latency == 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(p.latency):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// alive lists the sandboxes that run.
func (p *platform) alive() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := []string{}
	for _, f := range p.made {
		if !f.dead && time.Now().Before(f.end) {
			ids = append(ids, f.id)
		}
	}
	return ids
}

func (f *fake) ID() string { return f.id }

func (f *fake) SetTimeout(ctx context.Context, d time.Duration) error {
	if err := f.p.wait(ctx); err != nil {
		return err
	}
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	if f.dead || !time.Now().Before(f.end) {
		f.dead = true
		return errGone
	}
	f.end = time.Now().Add(d)
	f.extends = append(f.extends, d)
	return nil
}

func (f *fake) Kill(ctx context.Context) error {
	if err := f.p.wait(ctx); err != nil {
		return err
	}
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	if f.p.killErr != nil {
		return f.p.killErr
	}
	if f.dead {
		return errGone
	}
	f.dead = true
	return nil
}

// inBubble runs f with a session on a platform that takes 100 ms an answer, and
// checks that the session's end leaves nothing.
func inBubble(t *testing.T, f func(t *testing.T, s *Session[*fake], p *platform)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &platform{latency: 100 * time.Millisecond}
		s := New(p.create, Options{Template: "tpl", Gone: func(err error) bool { return errors.Is(err, errGone) }})
		f(t, s, p)
		if err := s.End(t.Context()); err != nil {
			t.Errorf("end: %v", err)
		}
		synctest.Wait()
		if left := p.alive(); len(left) > 0 {
			t.Errorf("alive after the end: %v", left)
		}
	})
}

func use(t *testing.T, s *Session[*fake], a Ask) *Lease[*fake] {
	t.Helper()
	l, err := s.Use(t.Context(), a)
	if err != nil {
		t.Fatalf("Use(%+v): %v", a, err)
	}
	return l
}

func TestLazyDefaultIsMadeOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Session[*fake], p *platform) {
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				l := use(t, s, Ask{})
				defer l.Release()
				if l.Sandbox.id != "i1" || !l.Created || l.Replaced {
					t.Errorf("got %s, created %v, replaced %v", l.Sandbox.id, l.Created, l.Replaced)
				}
			})
		}
		wg.Wait()
		want := []Spec{{Template: "tpl", Timeout: 300 * time.Second}}
		if d := cmp.Diff(want, p.specs); d != "" {
			t.Errorf("creations (-want +got):\n%s", d)
		}
		if l := use(t, s, Ask{}); l.Created {
			t.Error("a later call says that it created the sandbox")
		}
	})
}

func TestCancelledCallerLeavesTheFlightToOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Session[*fake], p *platform) {
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() {
			_, err := s.Use(ctx, Ask{})
			first <- err
		}()
		synctest.Wait()
		second := make(chan *Lease[*fake], 1)
		go func() { second <- use(t, s, Ask{}) }()
		synctest.Wait()
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled caller: %v", err)
		}
		if l := <-second; l.Sandbox.id != "i1" {
			t.Errorf("second caller got %s", l.Sandbox.id)
		}
		if len(p.made) != 1 {
			t.Errorf("%d sandboxes made", len(p.made))
		}
	})
}

func TestFailedLazyCreationIsTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Session[*fake], p *platform) {
		p.fail = errors.New("full")
		if _, err := s.Use(t.Context(), Ask{}); !errors.Is(err, p.fail) {
			t.Errorf("got %v", err)
		}
		p.fail = nil
		use(t, s, Ask{}).Release()
	})
}

func TestCreateSetsTheDefault(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Session[*fake], p *platform) {
		use(t, s, Ask{}).Release()
		b, err := s.Create(t.Context(), Spec{Template: "other", Timeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if l := use(t, s, Ask{}); l.Sandbox != b {
			t.Errorf("default is %s, want %s", l.Sandbox.id, b.id)
		}
		if l := use(t, s, Ask{ID: "i1"}); l.Sandbox.id != "i1" {
			t.Errorf("by id: got %s", l.Sandbox.id)
		}
		if l := use(t, s, Ask{}); l.Sandbox != b {
			t.Error("use by id changed the default")
		}
		if d := cmp.Diff([]string{"i1", "i2"}, p.alive()); d != "" {
			t.Errorf("alive (-want +got):\n%s", d)
		}
	})
}

func TestCallRightAfterCreateUsesThatSandbox(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Session[*fake], p *platform) {
		go s.Create(t.Context(), Spec{})
		synctest.Wait()
		l := use(t, s, Ask{})
		if l.Created || len(p.made) != 1 {
			t.Errorf("created %v, %d sandboxes", l.Created, len(p.made))
		}
		go s.Create(t.Context(), Spec{})
		synctest.Wait()
		if l := use(t, s, Ask{}); l.Sandbox.id != "i1" {
			t.Errorf("a call waited for a creation though there is a default: got %s", l.Sandbox.id)
		}
		synctest.Wait()
	})
}

func TestCancelledCreateIsKilled(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Session[*fake], p *platform) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := s.Create(ctx, Spec{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		time.Sleep(time.Second)
		if left := p.alive(); len(p.made) != 1 || len(left) > 0 {
			t.Errorf("%d made, alive %v", len(p.made), left)
		}
		if _, err := s.Use(t.Context(), Ask{ID: "i1"}); err == nil {
			t.Error("the abandoned sandbox can be used")
		}
	})
}

func TestLifetimes(t *testing.T) {
	for _, c := range []struct {
		name    string
		created time.Duration
		calls   []time.Duration // one after another, all still running
		want    []time.Duration
	}{
		{"created timeout", 300 * time.Second, []time.Duration{0}, []time.Duration{300 * time.Second}},
		{"a short life stays short", 5 * time.Second, []time.Duration{0}, []time.Duration{5 * time.Second}},
		{"and through the end of a call", 5 * time.Second, []time.Duration{4 * time.Second}, []time.Duration{9 * time.Second}},
		{"own timeout and margin", 60 * time.Second, []time.Duration{100 * time.Second}, []time.Duration{130 * time.Second}},
		{"as long as the sandbox lives", 60 * time.Second, []time.Duration{60 * time.Second}, []time.Duration{65 * time.Second}},
		{"nearly as long", 60 * time.Second, []time.Duration{57 * time.Second}, []time.Duration{62 * time.Second}},
		{"well within", 60 * time.Second, []time.Duration{40 * time.Second}, []time.Duration{60 * time.Second}},
		{"never longer than a sandbox may live", 60 * time.Second, []time.Duration{24 * time.Hour}, []time.Duration{24 * time.Hour}},
		{"the longer of both", 3600 * time.Second, []time.Duration{100 * time.Second}, []time.Duration{3600 * time.Second}},
		{"a running call is not cut", 60 * time.Second, []time.Duration{570 * time.Second, 0, 10 * time.Second},
			[]time.Duration{600 * time.Second, 600*time.Second - 100*time.Millisecond, 600*time.Second - 200*time.Millisecond}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *Session[*fake], p *platform) {
				f, err := s.Create(t.Context(), Spec{Timeout: c.created})
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range c.calls {
					use(t, s, Ask{Call: d})
				}
				if d := cmp.Diff(c.want, f.extends); d != "" {
					t.Errorf("setTimeout (-want +got):\n%s", d)
				}
			})
		})
	}
}

func TestReleasedCallNoLongerCounts(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Session[*fake], p *platform) {
		long := use(t, s, Ask{Call: time.Hour})
		long.Release()
		long.Release()
		use(t, s, Ask{})
		if got, want := p.made[0].extends, []time.Duration{time.Hour + 30*time.Second, 300 * time.Second}; !slices.Equal(got, want) {
			t.Errorf("setTimeout: got %v, want %v", got, want)
		}
	})
}

func TestConcurrentExtensionsNeverShorten(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Session[*fake], p *platform) {
		f, err := s.Create(t.Context(), Spec{Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() { use(t, s, Ask{Call: time.Duration(i) * time.Minute}) })
		}
		wg.Wait()
		if left, want := time.Until(f.end), 49*time.Minute; left < want {
			t.Errorf("the sandbox has %s left, the longest call needs %s", left, want)
		}
		if n := len(f.extends); n > 2 {
			t.Errorf("%d extensions for 50 calls at once, want at most 2", n)
		}
	})
}

func TestDeadDefaultIsReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Session[*fake], p *platform) {
		use(t, s, Ask{}).Release()
		time.Sleep(time.Hour)
		l := use(t, s, Ask{})
		if l.Sandbox.id != "i2" || !l.Created || !l.Replaced {
			t.Errorf("got %s, created %v, replaced %v", l.Sandbox.id, l.Created, l.Replaced)
		}
		if l := use(t, s, Ask{}); l.Replaced {
			t.Error("the replacement is told twice")
		}
		if _, err := s.Use(t.Context(), Ask{ID: "i1"}); !errors.Is(err, ErrDead) {
			t.Errorf("the dead one by id: %v", err)
		}
		if _, err := s.Kill(t.Context(), ""); err != nil {
			t.Error(err)
		}
		if l := use(t, s, Ask{}); l.Replaced {
			t.Error("a killed default counts as one that died")
		}
	})
}

func TestIDs(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Session[*fake], p *platform) {
		other := New(p.create, Options{})
		defer other.End(context.Background())
		theirs, err := other.Create(t.Context(), Spec{})
		if err != nil {
			t.Fatal(err)
		}
		_, foreign := s.Use(t.Context(), Ask{ID: theirs.id})
		_, unknown := s.Use(t.Context(), Ask{ID: "nope"})
		for id, err := range map[string]error{theirs.id: foreign, "nope": unknown} {
			if !errors.Is(err, ErrUnknown) || err.Error() != "unknown sandbox: "+id {
				t.Errorf("%s: %v", id, err)
			}
		}
		if _, err := s.Kill(t.Context(), theirs.id); !errors.Is(err, ErrUnknown) {
			t.Errorf("kill of a foreign sandbox: %v", err)
		}
		if got := p.alive(); !slices.Equal(got, []string{theirs.id}) {
			t.Errorf("alive: %v", got)
		}
	})
}

func TestKill(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Session[*fake], p *platform) {
		if _, err := s.Kill(t.Context(), ""); !errors.Is(err, ErrNoDefault) {
			t.Errorf("without a default: %v", err)
		}
		f, _ := s.Create(t.Context(), Spec{})
		p.killErr = errors.New("no answer")
		if _, err := s.Kill(t.Context(), ""); !errors.Is(err, p.killErr) {
			t.Errorf("got %v", err)
		}
		p.killErr = nil
		use(t, s, Ask{ID: f.id}).Release() // a kill that failed leaves it usable
		if id, err := s.Kill(t.Context(), f.id); err != nil || id != f.id {
			t.Errorf("got %s, %v", id, err)
		}
		if _, err := s.Kill(t.Context(), ""); !errors.Is(err, ErrNoDefault) {
			t.Errorf("killing the default by id did not clear it: %v", err)
		}
		if _, err := s.Kill(t.Context(), f.id); !errors.Is(err, ErrDead) {
			t.Errorf("killed twice: %v", err)
		}
		if l := use(t, s, Ask{}); !l.Created {
			t.Error("no new default after the kill")
		}
	})
}

func TestKillDuringUseMakesANewDefault(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Session[*fake], p *platform) {
		use(t, s, Ask{})
		done := make(chan error, 1)
		go func() { _, err := s.Kill(t.Context(), ""); done <- err }()
		synctest.Wait()
		l := use(t, s, Ask{})
		if err := <-done; err != nil {
			t.Error(err)
		}
		if again := use(t, s, Ask{}); l.Sandbox.id != "i2" || again.Sandbox != l.Sandbox {
			t.Errorf("got %s, then %s", l.Sandbox.id, again.Sandbox.id)
		}
	})
}

func TestFreshLeavesTheDefaultAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Session[*fake], p *platform) {
		a, b := use(t, s, Ask{Fresh: true}), use(t, s, Ask{Fresh: true})
		if a.Sandbox == b.Sandbox || !a.Created || !b.Created {
			t.Errorf("got %s and %s", a.Sandbox.id, b.Sandbox.id)
		}
		if _, err := s.Kill(t.Context(), ""); !errors.Is(err, ErrNoDefault) {
			t.Errorf("there is a default: %v", err)
		}
		if l := use(t, s, Ask{ID: a.Sandbox.id, Fresh: true}); l.Created {
			t.Error("an id was given, yet a sandbox was made")
		}
	})
}

func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &platform{latency: 100 * time.Millisecond}
		s := New(p.create, Options{})
		for range 20 {
			if _, err := s.Create(t.Context(), Spec{}); err != nil {
				t.Fatal(err)
			}
		}
		late := make(chan error, 1)
		go func() {
			_, err := s.Create(context.Background(), Spec{})
			late <- err
		}()
		synctest.Wait()
		start := time.Now()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := s.End(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took > 200*time.Millisecond {
			t.Errorf("20 kills of 100 ms each took %s", took)
		}
		if err := <-late; !errors.Is(err, ErrEnded) {
			t.Errorf("creation under way: %v", err)
		}
		if left := p.alive(); len(p.made) != 21 || len(left) > 0 {
			t.Errorf("%d made, alive %v", len(p.made), left)
		}
		_, used := s.Use(t.Context(), Ask{})
		_, made := s.Create(t.Context(), Spec{})
		for _, err := range []error{used, made} {
			if !errors.Is(err, ErrEnded) {
				t.Errorf("after the end: %v", err)
			}
		}
	})
}

func TestEndKeepsItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &platform{latency: time.Hour}
		s := New(p.create, Options{CreateTimeout: 10 * time.Hour, CallTimeout: 10 * time.Hour})
		go s.Use(t.Context(), Ask{})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := s.End(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %s", took)
		}
	})
}
