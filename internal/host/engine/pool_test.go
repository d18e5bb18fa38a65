package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/driver/drivertest"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

func pooled() engine.Request {
	return engine.Request{Template: engine.TemplateCodeInterpreter, Lifetime: time.Minute, Secure: true, Env: map[string]string{"A": "1"}}
}

// settle lets the pool fill.
func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func TestPoolClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var cells []e2b.Execute
		f := &drivertest.Fake{Interpreter: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var cell e2b.Execute
			json.NewDecoder(r.Body).Decode(&cell)
			mu.Lock()
			cells = append(cells, cell)
			mu.Unlock()
			io.WriteString(w, `{"type":"end_of_execution"}`)
		})}
		e := newEngine(t, f, engine.Options{PoolSize: 2})
		settle()
		if f.Started() != 2 || len(e.List()) != 0 || e.Len() != 0 {
			t.Fatalf("started %d, list %d", f.Started(), len(e.List()))
		}
		mu.Lock()
		want := []e2b.Execute{{Code: "None", Language: "python"}, {Code: "None", Language: "python"}}
		if diff := cmp.Diff(want, cells); diff != "" {
			t.Errorf("warm-up (-want +got)\n%s", diff)
		}
		mu.Unlock()
		if got := f.Live()[0].Inits()[0]; got.AccessToken != nil || got.Abx.LifetimeMS == 0 || got.DefaultUser != "user" {
			t.Errorf("first init of an entry: %+v", got)
		}
		oldest := f.Live()[0].Spec().ID
		info := create(t, e, pooled())
		if info.ID != oldest || f.Started() != 2 {
			t.Errorf("claimed %s of %s, started %d", info.ID, oldest, f.Started())
		}
		last := f.Find(info.ID).Inits()[1]
		if *last.AccessToken != info.AccessToken || last.EnvVars["A"] != "1" || last.Abx.LifetimeMS != 90_000 {
			t.Errorf("claim's init: %+v", last)
		}
		settle()
		if f.Started() != 3 {
			t.Errorf("not refilled: %d started", f.Started())
		}
		// Another template is not served from it.
		if other := create(t, e, request()); other.ID == f.Live()[0].Spec().ID || f.Started() != 4 {
			t.Error("claimed for another template")
		}
	})
}

func TestClaimNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fill := make(chan struct{})
		var starts atomic.Int32
		f := &drivertest.Fake{Before: func(ctx context.Context, _ engine.Spec) error {
			if starts.Add(1) == 1 {
				select {
				case <-fill:
				case <-ctx.Done():
				}
			}
			return ctx.Err()
		}}
		e := newEngine(t, f, engine.Options{PoolSize: 1})
		settle() // the fill hangs
		create(t, e, pooled())
		if starts.Load() != 2 {
			t.Errorf("%d starts", starts.Load())
		}
		close(fill)
		settle()
		if len(f.Live()) != 2 {
			t.Errorf("live %d", len(f.Live()))
		}
	})
}

func TestNoFillDuringCreates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{Before: func(_ context.Context, s engine.Spec) error {
			if s.Template == engine.TemplateBase {
				time.Sleep(time.Minute)
			}
			return nil
		}}
		e := newEngine(t, f, engine.Options{PoolSize: 1, StartTimeout: time.Hour})
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, err := e.Create(t.Context(), engine.Request{Template: engine.TemplateBase, Lifetime: time.Hour}); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if f.Started() != 0 {
			t.Error("filled while a create ran")
		}
		<-done
		settle()
		if f.Started() != 2 {
			t.Errorf("started %d", f.Started())
		}
	})
}

func TestPoolEntryDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{}
		e := newEngine(t, f, engine.Options{PoolSize: 1})
		settle()
		dead := f.Live()[0]
		dead.Die(errors.New("gone"))
		info := create(t, e, pooled())
		if info.ID == dead.Spec().ID {
			t.Error("claimed a dead entry")
		}
		settle()
		if len(f.Live()) != 2 {
			t.Errorf("live %d", len(f.Live()))
		}
	})
}

// TestPoolEntryNoGood: an entry that fails at its claim costs the client nothing.
func TestPoolEntryNoGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bad atomic.Value
		bad.Store("")
		f := &drivertest.Fake{Init: func(s engine.Spec, _ e2b.Init) error {
			if s.ID == bad.Load() {
				return errors.New("no")
			}
			return nil
		}}
		e := newEngine(t, f, engine.Options{PoolSize: 1})
		settle()
		id := f.Live()[0].Spec().ID
		bad.Store(id)
		info := create(t, e, pooled())
		if info.ID == id || f.Find(id) != nil {
			t.Error("bad entry is still there")
		}
	})
}

func TestWarmUp(t *testing.T) {
	tests := []struct {
		name   string
		answer http.HandlerFunc
		kept   bool
	}{
		{"refused", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no python here", 500) }, true},
		{"hangs", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, false},
		{"breaks off", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &drivertest.Fake{Interpreter: tt.answer}
				e := newEngine(t, f, engine.Options{PoolSize: 1})
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if tt.kept {
					if f.Started() != 1 || len(f.Live()) != 1 {
						t.Errorf("started %d, live %d", f.Started(), len(f.Live()))
					}
				} else if f.Started() < 2 || f.Started() > 60 {
					t.Errorf("tried %d times in 10 minutes", f.Started())
				}
				create(t, e, pooled())
			})
		})
	}
}

func TestPoolGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{}
		e := newEngine(t, f, engine.Options{PoolSize: 2, MaxSandboxes: 2})
		settle()
		if len(f.Live()) != 2 {
			t.Fatalf("live %d", len(f.Live()))
		}
		// Both places can be had for another template.
		create(t, e, request())
		if len(f.Live()) != 2 {
			t.Errorf("live %d", len(f.Live()))
		}
		second := create(t, e, request())
		if len(f.Live()) != 2 {
			t.Errorf("live %d", len(f.Live()))
		}
		if _, err := e.Create(t.Context(), request()); !errors.Is(err, engine.ErrCapacity) {
			t.Errorf("got %v", err)
		}
		settle()
		if f.Started() != 4 {
			t.Errorf("filled a full host: %d started", f.Started())
		}
		if err := e.Kill(t.Context(), second.ID); err != nil {
			t.Fatal(err)
		}
		settle()
		if len(f.Live()) != 2 || len(e.List()) != 1 {
			t.Errorf("live %d, list %d", len(f.Live()), len(e.List()))
		}
	})
}

func TestFillGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var starts atomic.Int32
		f := &drivertest.Fake{Before: func(ctx context.Context, _ engine.Spec) error {
			if starts.Add(1) == 1 {
				<-ctx.Done()
			}
			return ctx.Err()
		}}
		e := newEngine(t, f, engine.Options{PoolSize: 1, MaxSandboxes: 1})
		settle()
		create(t, e, pooled())
		synctest.Wait()
		if len(f.Live()) != 1 || starts.Load() != 2 {
			t.Errorf("live %d, starts %d", len(f.Live()), starts.Load())
		}
	})
}

func TestPoolAdapts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var free atomic.Int64
		free.Store(8 << 30)
		f := &drivertest.Fake{}
		newEngine(t, f, engine.Options{PoolSize: 2, FreeMemory: func() (int64, bool) { return free.Load(), true }})
		settle()
		if len(f.Live()) != 2 {
			t.Fatalf("live %d", len(f.Live()))
		}
		free.Store(256 << 20)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(f.Live()) != 0 {
			t.Errorf("memory is short and %d wait", len(f.Live()))
		}
		free.Store(8 << 30)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(f.Live()) != 2 {
			t.Errorf("live %d", len(f.Live()))
		}
	})
}

// TestPoolLease: entries outlive their agents' deadline for as long as the host
// is there to renew it.
func TestPoolLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{}
		e := newEngine(t, f, engine.Options{PoolSize: 1})
		settle()
		id := f.Live()[0].Spec().ID
		time.Sleep(24 * time.Hour)
		if info := create(t, e, pooled()); info.ID != id {
			t.Errorf("claimed %s, want %s; %d started", info.ID, id, f.Started())
		}
	})
}

func BenchmarkCreatePooled(b *testing.B) {
	f := &drivertest.Fake{}
	e, err := engine.New(f, engine.Options{PoolSize: 1, RefillDelay: time.Nanosecond, FreeMemory: plenty})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	for b.Loop() {
		b.StopTimer()
		for len(f.Live()) == 0 || len(f.Live()[0].Inits()) == 0 {
			runtime.Gosched()
		}
		b.StartTimer()
		info, err := e.Create(b.Context(), pooled())
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		e.Kill(b.Context(), info.ID)
		b.StartTimer()
	}
}
