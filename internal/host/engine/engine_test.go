package engine_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/driver/drivertest"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// plenty is a host that has memory.
func plenty() (int64, bool) { return 64 << 30, true }

func newEngine(t *testing.T, f *drivertest.Fake, o engine.Options) *engine.Engine {
	t.Helper()
	if o.FreeMemory == nil {
		o.FreeMemory = plenty
	}
	e, err := engine.New(f, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if n := len(f.Live()); n != 0 {
			t.Errorf("%d sandboxes left after Close", n)
		}
	})
	return e
}

func request() engine.Request {
	return engine.Request{Template: engine.TemplateBase, Lifetime: time.Minute}
}

func create(t *testing.T, e *engine.Engine, req engine.Request) engine.Info {
	t.Helper()
	info, err := e.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func ids(infos []engine.Info) []string {
	var out []string
	for _, i := range infos {
		out = append(out, i.ID)
	}
	return out
}

func TestCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{}
		e := newEngine(t, f, engine.Options{Limits: engine.DefaultLimits()})
		req := request()
		req.Env = map[string]string{"A": "1"}
		req.Metadata = map[string]string{"k": "v"}
		req.Secure = true
		info := create(t, e, req)

		if !regexp.MustCompile(`^i[a-z0-9]{19}$`).MatchString(info.ID) {
			t.Errorf("id %q", info.ID)
		}
		if len(info.AccessToken) < 20 {
			t.Errorf("token %q", info.AccessToken)
		}
		if got := info.EndAt.Sub(info.StartedAt); got != time.Minute {
			t.Errorf("lives %v", got)
		}
		box := f.Find(info.ID)
		now := info.StartedAt
		want := []e2b.Init{{
			EnvVars: req.Env, AccessToken: &info.AccessToken, Timestamp: &now,
			DefaultUser: "user", DefaultWorkdir: "/home/user",
			Abx: &e2b.InitAbx{LifetimeMS: 90_000},
		}}
		if diff := cmp.Diff(want, box.Inits(), cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) })); diff != "" {
			t.Errorf("init (-want +got)\n%s", diff)
		}
		wantSpec := engine.Spec{ID: info.ID, Template: engine.TemplateBase, Limits: engine.DefaultLimits()}
		if diff := cmp.Diff(wantSpec, box.Spec()); diff != "" {
			t.Errorf("spec (-want +got)\n%s", diff)
		}
		got, err := e.Get(info.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(info, got); diff != "" {
			t.Errorf("get (-want +got)\n%s", diff)
		}
		got.Metadata["k"] = "changed"
		if again, _ := e.Get(info.ID); again.Metadata["k"] != "v" {
			t.Error("metadata of the engine changed through a copy")
		}
		other := create(t, e, request())
		if other.AccessToken != "" || other.ID == info.ID {
			t.Errorf("second sandbox: %+v", other)
		}
		if err := e.Kill(t.Context(), info.ID); err != nil {
			t.Fatal(err)
		}
		if f.Find(info.ID) != nil {
			t.Error("killed sandbox still there when Kill returned")
		}
		if got := ids(e.List()); !slices.Equal(got, []string{other.ID}) {
			t.Errorf("list %v", got)
		}
	})
}

func TestRefusals(t *testing.T) {
	with := func(change func(*engine.Request)) engine.Request {
		r := request()
		change(&r)
		return r
	}
	tests := []struct {
		name string
		req  engine.Request
		kind error
		text string
	}{
		{"template", with(func(r *engine.Request) { r.Template = "nope" }), engine.ErrNotFound, `template "nope" was not found; this host has base, code-interpreter-v1`},
		{"no lifetime", with(func(r *engine.Request) { r.Lifetime = 0 }), engine.ErrInvalid, "Timeout must be greater than 0 seconds"},
		{"long lifetime", with(func(r *engine.Request) { r.Lifetime = 25 * time.Hour }), engine.ErrInvalid, "Timeout cannot be greater than 24 hours"},
		{"isolation unknown", with(func(r *engine.Request) { r.Isolation = "vm" }), engine.ErrInvalid, `isolation "vm" is none of auto, namespace, gvisor`},
		{"isolation too much", with(func(r *engine.Request) { r.Isolation = "gvisor" }), engine.ErrUnsupported, `isolation "gvisor" is not supported by this host, which has "namespace"`},
		{"env name", with(func(r *engine.Request) { r.Env = map[string]string{"A=B": "x"} }), engine.ErrInvalid, `environment variable "A=B"`},
		{"env value", with(func(r *engine.Request) { r.Env = map[string]string{"A": "\x00"} }), engine.ErrInvalid, `environment variable "A"`},
	}
	f := &drivertest.Fake{}
	e := newEngine(t, f, engine.Options{})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := e.Create(t.Context(), tt.req)
			if !errors.Is(err, tt.kind) || !strings.HasPrefix(err.Error(), tt.text) {
				t.Errorf("got %v", err)
			}
		})
	}
	if f.Started() != 0 {
		t.Errorf("%d sandboxes were started", f.Started())
	}
}

// TestCreateFails is case 75: a create that fails half way leaves nothing.
func TestCreateFails(t *testing.T) {
	broken := errors.New("disk full")
	tests := []struct {
		name string
		fake *drivertest.Fake
	}{
		{"start", &drivertest.Fake{Before: func(context.Context, engine.Spec) error { return broken }}},
		{"configure", &drivertest.Fake{Init: func(engine.Spec, e2b.Init) error { return broken }}},
		{"configure and close", &drivertest.Fake{
			Init:    func(engine.Spec, e2b.Init) error { return broken },
			Closing: func(engine.Spec) error { return errors.New("mount busy") },
		}},
		{"agent dies", &drivertest.Fake{}},
	}
	tests[3].fake.Init = func(s engine.Spec, _ e2b.Init) error {
		tests[3].fake.Find(s.ID).Die(errors.New("shot"))
		return nil
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEngine(t, tt.fake, engine.Options{MaxSandboxes: 1})
				for range 2 { // the place is free again
					_, err := e.Create(t.Context(), request())
					if err == nil || errors.Is(err, engine.ErrCapacity) || errors.Is(err, engine.ErrLost) {
						t.Fatalf("got %v", err)
					}
					if len(e.List()) != 0 || e.Len() != 0 || len(tt.fake.Live()) != 0 {
						t.Errorf("list %d, len %d, live %d", len(e.List()), e.Len(), len(tt.fake.Live()))
					}
				}
			})
		})
	}
}

func TestCreateCancelled(t *testing.T) {
	for _, where := range []string{"start", "configure", "queue"} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hang := make(chan struct{})
				defer close(hang)
				f := &drivertest.Fake{}
				switch where {
				case "start", "queue":
					f.Before = func(ctx context.Context, _ engine.Spec) error {
						<-ctx.Done()
						return ctx.Err()
					}
				case "configure":
					f.Init = func(engine.Spec, e2b.Init) error { <-hang; return nil }
				}
				e := newEngine(t, f, engine.Options{Starts: 1})
				ctx, cancel := context.WithCancelCause(t.Context())
				gone := errors.New("client gone")
				errs := make(chan error)
				n := 1
				if where == "queue" {
					n = 3
				}
				for range n {
					go func() {
						_, err := e.Create(ctx, request())
						errs <- err
					}()
				}
				synctest.Wait()
				if e.Len() != n || len(e.List()) != 0 {
					t.Errorf("len %d, list %d while creating", e.Len(), len(e.List()))
				}
				cancel(gone)
				for range n {
					if err := <-errs; !errors.Is(err, gone) {
						t.Errorf("got %v", err)
					}
				}
				synctest.Wait()
				if e.Len() != 0 || len(f.Live()) != 0 {
					t.Errorf("len %d, live %d", e.Len(), len(f.Live()))
				}
			})
		})
	}
}

func TestStartTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{Before: func(ctx context.Context, _ engine.Spec) error { <-ctx.Done(); return ctx.Err() }}
		e := newEngine(t, f, engine.Options{StartTimeout: 7 * time.Second})
		_, err := e.Create(t.Context(), request())
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not ready after 7s") {
			t.Errorf("got %v", err)
		}
	})
}

func TestCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, &drivertest.Fake{}, engine.Options{MaxSandboxes: 2})
		first := create(t, e, request())
		create(t, e, request())
		_, err := e.Create(t.Context(), request())
		if !errors.Is(err, engine.ErrCapacity) || !strings.Contains(err.Error(), "max_sandboxes") {
			t.Errorf("got %v", err)
		}
		if err := e.Kill(t.Context(), first.ID); err != nil {
			t.Fatal(err)
		}
		create(t, e, request())
	})
}

func TestMemoryShort(t *testing.T) {
	e := newEngine(t, &drivertest.Fake{}, engine.Options{FreeMemory: func() (int64, bool) { return 1 << 20, true }})
	_, err := e.Create(t.Context(), request())
	if !errors.Is(err, engine.ErrCapacity) || !strings.Contains(err.Error(), "min_free_memory") {
		t.Errorf("got %v", err)
	}
}

// TestStartsQueue: more creates than may start at once all succeed.
func TestStartsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, most := 0, 0
		f := &drivertest.Fake{Before: func(context.Context, engine.Spec) error {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			time.Sleep(time.Second) // the bubble's clock
			mu.Lock()
			running--
			mu.Unlock()
			return nil
		}}
		e := newEngine(t, f, engine.Options{Starts: 4})
		begin := time.Now()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if _, err := e.Create(t.Context(), request()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if most != 4 {
			t.Errorf("%d starts at once", most)
		}
		if took := time.Since(begin); took != 25*time.Second {
			t.Errorf("took %v", took)
		}
		if n := len(e.List()); n != 100 {
			t.Errorf("%d sandboxes", n)
		}
	})
}

func TestKillMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{Closing: func(engine.Spec) error { time.Sleep(time.Second); return nil }}
		e := newEngine(t, f, engine.Options{MaxSandboxes: 1})
		info := create(t, e, request())
		errs := make(chan error, 10)
		for range 10 {
			go func() { errs <- e.Kill(t.Context(), info.ID) }()
		}
		synctest.Wait()
		if _, err := e.Create(t.Context(), request()); !errors.Is(err, engine.ErrCapacity) {
			t.Errorf("its place was given away before it was gone: %v", err)
		}
		killed := 0
		for range 10 {
			if err := <-errs; err == nil {
				killed++
			} else if !errors.Is(err, engine.ErrNotFound) {
				t.Errorf("got %v", err)
			}
		}
		if killed != 1 {
			t.Errorf("%d kills succeeded", killed)
		}
	})
}

func TestKillOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{Closing: func(engine.Spec) error { time.Sleep(time.Minute); return nil }}
		e := newEngine(t, f, engine.Options{CloseTimeout: time.Hour})
		info := create(t, e, request())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := e.Kill(ctx, info.ID); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(f.Live()) != 0 {
			t.Error("not killed")
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{Closing: func(engine.Spec) error { time.Sleep(time.Second); return nil }}
		var mu sync.Mutex
		hang := false
		f.Before = func(ctx context.Context, _ engine.Spec) error {
			mu.Lock()
			h := hang
			mu.Unlock()
			if h {
				<-ctx.Done()
			}
			return ctx.Err()
		}
		e, err := engine.New(f, engine.Options{FreeMemory: plenty, Starts: 4})
		if err != nil {
			t.Fatal(err)
		}
		for range 16 {
			create(t, e, request())
		}
		mu.Lock()
		hang = true
		mu.Unlock()
		starting := make(chan error)
		go func() {
			_, err := e.Create(t.Context(), request())
			starting <- err
		}()
		synctest.Wait()
		begin := time.Now()
		closed := make(chan error)
		for range 2 {
			go func() { closed <- e.Close() }()
		}
		if err := <-starting; !errors.Is(err, engine.ErrCapacity) || !strings.Contains(err.Error(), "stopping") {
			t.Errorf("create during close: %v", err)
		}
		for range 2 {
			if err := <-closed; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("closing took %v", took)
		}
		if len(f.Live()) != 0 || len(e.List()) != 0 {
			t.Errorf("live %d, list %d", len(f.Live()), len(e.List()))
		}
		if _, err := e.Create(t.Context(), request()); !errors.Is(err, engine.ErrCapacity) {
			t.Errorf("create after close: %v", err)
		}
	})
}

func TestCloseGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		let := make(chan struct{})
		f := &drivertest.Fake{Closing: func(engine.Spec) error { <-let; return nil }}
		e, err := engine.New(f, engine.Options{FreeMemory: plenty, CloseTimeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		create(t, e, request())
		if err := e.Close(); err == nil {
			t.Error("closed what hangs")
		}
		close(let)
	})
}

func TestParallelLife(t *testing.T) {
	f := &drivertest.Fake{}
	e := newEngine(t, f, engine.Options{PoolSize: 2, PoolTemplate: engine.TemplateBase})
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			info, err := e.Create(t.Context(), request())
			if err != nil {
				t.Error(err)
				return
			}
			var inner sync.WaitGroup
			inner.Go(func() { e.Extend(t.Context(), info.ID, time.Hour) })
			inner.Go(func() { e.SetTimeout(t.Context(), info.ID, time.Minute) })
			inner.Go(func() { e.List() })
			switch i % 3 {
			case 0:
				inner.Go(func() { e.Kill(t.Context(), info.ID) })
			case 1:
				inner.Go(func() {
					if b := f.Find(info.ID); b != nil {
						b.Die(fmt.Errorf("dies %d", i))
					}
				})
			}
			inner.Wait()
		})
	}
	wg.Wait()
}

func TestNewRefuses(t *testing.T) {
	if _, err := engine.New(nil, engine.Options{}); err == nil {
		t.Error("engine without a driver")
	}
	if _, err := engine.New(&drivertest.Fake{}, engine.Options{PoolTemplate: "x"}); err == nil {
		t.Error("unknown pool template")
	}
	if _, err := engine.New(&drivertest.Fake{}, engine.Options{PoolSize: -1}); err == nil {
		t.Error("negative pool")
	}
}
