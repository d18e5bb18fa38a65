package drivertest

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// Abilities says what a driver under test has beyond the interface. What is
// not claimed is not tested, so claim all there is.
type Abilities struct {
	// Processes: the agent starts commands of this machine (/bin/sh, head).
	Processes bool
	// Python: it starts python3, too.
	Python bool
	// Kernel: a sandbox is a child of this process, PID 1 of a PID namespace
	// of its own, and has a host name of its own. Leaks are then looked for
	// among processes and mounts.
	Kernel bool
	// Kill ends the agent of a sandbox as a crash would. Nil with Kernel means
	// SIGKILL to the child.
	Kill func(t *testing.T, s engine.Sandbox)
	// Template to start. Default engine.TemplateBase.
	Template string
	// Limits to start with. Default engine.DefaultLimits.
	Limits engine.Limits
}

// guard is ten times what anything here should take.
const guard = 60 * time.Second

// Run runs the suite. newDriver makes a fresh driver; the suite closes it.
func Run(t *testing.T, newDriver func(t *testing.T) engine.Driver, can Abilities) {
	if can.Template == "" {
		can.Template = engine.TemplateBase
	}
	if can.Limits == (engine.Limits{}) {
		can.Limits = engine.DefaultLimits()
	}
	killable := can.Kernel || can.Kill != nil
	for _, c := range []struct {
		name string
		able bool
		run  func(*suite)
	}{
		{"isolation", true, testIsolation},
		{"health", true, testHealth},
		{"closed port", true, testClosedPort},
		{"close", true, testClose},
		{"parallel starts", true, testParallel},
		{"start with a cancelled context", true, testCancelled},
		{"start cancelled midway", true, testCancelledMidway},
		{"context bounds the start only", true, testContextBounds},
		{"agent's own deadline", true, testDeadline},
		{"closed driver", true, testClosedDriver},
		{"agent dies", killable, testAgentDies},
		{"process", can.Processes, testProcess},
		{"big output", can.Processes, testBigOutput},
		{"close ends processes", can.Processes, testCloseEndsProcesses},
		{"host name", can.Processes && can.Kernel, testHostName},
		{"port of a server inside", can.Processes && can.Python, testServerInside},
	} {
		if !c.able {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			outer := takeCensus(can.Kernel, false)
			s := &suite{T: t, can: can, driver: newDriver(t)}
			// The first start may open what then stays open.
			s.start(t.Context()).Close()
			inner := takeCensus(can.Kernel, true)
			c.run(s)
			inner.compare(t, "after the test")
			for range 2 {
				if err := s.driver.Close(); err != nil {
					t.Errorf("close driver: %v", err)
				}
			}
			outer.compare(t, "after the driver's close")
		})
	}
}

// suite is one test of the suite, with a driver of its own.
type suite struct {
	*testing.T
	can    Abilities
	driver engine.Driver
}

func (s *suite) spec() engine.Spec {
	return engine.Spec{
		ID:       "i" + strings.ToLower(rand.Text())[:19],
		Template: s.can.Template,
		Limits:   s.can.Limits,
	}
}

// start starts a sandbox, or ends the test.
func (s *suite) start(ctx context.Context) engine.Sandbox {
	s.Helper()
	box, err := s.driver.Start(ctx, s.spec())
	if err != nil {
		s.Fatalf("start: %v", err)
	}
	observe(s.can.Kernel)
	return box
}

// end closes box, and checks it.
func (s *suite) end(box engine.Sandbox) {
	s.Helper()
	if err := box.Close(); err != nil {
		s.Errorf("close: %v", err)
	}
	select {
	case <-box.Done():
	default:
		s.Error("not done after Close")
	}
}

// wait waits for c, or ends the test.
func (s *suite) wait(c <-chan struct{}, what string) {
	s.Helper()
	timer := time.NewTimer(guard)
	defer timer.Stop()
	select {
	case <-c:
	case <-timer.C:
		s.Fatalf("%s: not within %v", what, guard)
	}
}

func testIsolation(s *suite) {
	if s.driver.Isolation().Tier == "" {
		s.Error("no tier")
	}
}

func testHealth(s *suite) {
	box := s.start(s.Context())
	defer s.end(box)
	select {
	case <-box.Done():
		s.Fatal("done at once")
	default:
	}
	if err := box.Err(); err != nil {
		s.Errorf("err of a live sandbox: %v", err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if status := s.get(box, e2b.PortAgent, "/health"); status != 204 {
				s.Errorf("agent's health: %d", status)
			}
		})
		wg.Go(func() {
			if status := s.get(box, e2b.PortInterpreter, "/health"); status != 200 {
				s.Errorf("interpreter's health: %d", status)
			}
		})
	}
	wg.Wait()
}

func testClosedPort(s *suite) {
	box := s.start(s.Context())
	defer s.end(box)
	for _, port := range []int{1, 3000, 65535} {
		conn, err := box.Dial(s.Context(), port)
		if err == nil {
			conn.Close()
		}
		if !errors.Is(err, engine.ErrPortClosed) || errors.Is(err, engine.ErrLost) {
			s.Errorf("dial port %d: %v", port, err)
		}
	}
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	if conn, err := box.Dial(ctx, e2b.PortAgent); err == nil {
		conn.Close()
		s.Error("dial with a cancelled context")
	}
}

func testClose(s *suite) {
	box := s.start(s.Context())
	conn, err := box.Dial(s.Context(), e2b.PortAgent)
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { s.end(box) })
	}
	wg.Wait()
	s.end(box)
	if err := box.Err(); err != nil {
		s.Errorf("err after Close: %v", err)
	}
	conn.SetReadDeadline(time.Now().Add(guard))
	if n, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		s.Errorf("a connection outlived its sandbox: %d bytes, %v", n, err)
	}
	if conn, err := box.Dial(s.Context(), e2b.PortAgent); !errors.Is(err, engine.ErrLost) {
		if err == nil {
			conn.Close()
		}
		s.Errorf("dial after Close: %v", err)
	}
}

func testParallel(s *suite) {
	const n = 20
	boxes := make([]engine.Sandbox, n)
	var wg sync.WaitGroup
	for i := range boxes {
		wg.Go(func() {
			box, err := s.driver.Start(s.Context(), s.spec())
			if err != nil {
				s.Errorf("start %d: %v", i, err)
				return
			}
			boxes[i] = box
			if status := s.get(box, e2b.PortAgent, "/health"); status != 204 {
				s.Errorf("health of %d: %d", i, status)
			}
		})
	}
	wg.Wait()
	observe(s.can.Kernel)
	for _, box := range boxes {
		if box != nil {
			wg.Go(func() { s.end(box) })
		}
	}
	wg.Wait()
}

func testCancelled(s *suite) {
	why := errors.New("no longer wanted")
	ctx, cancel := context.WithCancelCause(s.Context())
	cancel(why)
	box, err := s.driver.Start(ctx, s.spec())
	if err == nil {
		s.end(box)
		s.Fatal("started")
	}
	if !errors.Is(err, why) && !errors.Is(err, context.Canceled) {
		s.Errorf("got %v", err)
	}
}

// testCancelledMidway cancels at many points of a start. Whether it succeeds
// does not matter; that nothing is left does.
func testCancelledMidway(s *suite) {
	begin := time.Now()
	s.end(s.start(s.Context()))
	whole := time.Since(begin)
	for i := range 20 {
		ctx, cancel := context.WithTimeout(s.Context(), whole*time.Duration(i)/20)
		box, err := s.driver.Start(ctx, s.spec())
		cancel()
		if err == nil {
			s.end(box)
		} else if ctx.Err() == nil {
			s.Errorf("start: %v", err)
		}
	}
}

func testContextBounds(s *suite) {
	ctx, cancel := context.WithCancel(s.Context())
	box := s.start(ctx)
	defer s.end(box)
	cancel()
	for range 5 {
		if status := s.get(box, e2b.PortAgent, "/health"); status != 204 {
			s.Errorf("health: %d", status)
		}
	}
}

func testDeadline(s *suite) {
	box := s.start(s.Context())
	defer s.end(box)
	s.init(box, e2b.Init{Abx: &e2b.InitAbx{LifetimeMS: 3_600_000}})
	s.init(box, e2b.Init{Abx: &e2b.InitAbx{LifetimeMS: 50}})
	s.wait(box.Done(), "the end that the agent was told")
}

func testClosedDriver(s *suite) {
	if err := s.driver.Close(); err != nil {
		s.Errorf("close: %v", err)
	}
	if box, err := s.driver.Start(s.Context(), s.spec()); err == nil {
		s.end(box)
		s.Error("a closed driver starts sandboxes")
	}
}

func testAgentDies(s *suite) {
	before := initPIDs(s.can.Kernel)
	box := s.start(s.Context())
	conn, err := box.Dial(s.Context(), e2b.PortAgent)
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close()
	if s.can.Kill != nil {
		s.can.Kill(s.T, box)
	} else if err := killNewInit(before); err != nil {
		s.Fatal(err)
	}
	s.wait(box.Done(), "done after the agent's death")
	if err := box.Err(); err == nil {
		s.Error("no reason for a death")
	}
	conn.SetReadDeadline(time.Now().Add(guard))
	if n, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		s.Errorf("a connection outlived its agent: %d bytes, %v", n, err)
	}
	if conn, err := box.Dial(s.Context(), e2b.PortAgent); !errors.Is(err, engine.ErrLost) {
		if err == nil {
			conn.Close()
		}
		s.Errorf("dial: %v", err)
	}
	s.end(box)
	s.end(box)
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// eventually waits until trouble tells of none, or reports it.
func eventually(t *testing.T, trouble func() string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(guard)
	defer end.Stop()
	for {
		what := trouble()
		if what == "" {
			return
		}
		select {
		case <-tick.C:
		case <-end.C:
			t.Errorf("still so after %v: %s", guard, what)
			return
		}
	}
}
