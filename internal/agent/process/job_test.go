//go:build linux

package process

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b"
	pb "github.com/agent-sandbox/abx/internal/e2b/process"
)

// The end of a call is the end of its shell, whoever holds its pipes.
func TestBackground(t *testing.T) {
	for _, header := range []string{"", window} {
		t.Run(header, func(t *testing.T) {
			h := newHarness(t, nil)
			o := h.run(t, shell("sleep 300 & echo $!", e2b.HeaderWindow, header))
			pid := atoi(t, string(o.stdout))
			if !slices.Equal(o.end.GetAbxBackground(), []uint32{uint32(pid)}) || o.end.GetExitCode() != 0 {
				t.Errorf("end %v, want background [%d]", o.end, pid)
			}
			if !alive(pid) {
				t.Error("the background process was killed")
			}
		})
	}
}

func TestBackgroundIsCountedUpTo16(t *testing.T) {
	h := newHarness(t, nil)
	o := h.run(t, shell("for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 300 & done"))
	if n := len(o.end.GetAbxBackground()); n != maxBackground {
		t.Errorf("%d background processes told, want %d", n, maxBackground)
	}
}

func TestBackgroundGoesOn(t *testing.T) {
	h := newHarness(t, nil)
	work := filepath.Join(h.home, "w")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	begin, end := h.fifo(t, "begin"), h.fifo(t, "end")
	r := shell(fmt.Sprintf("nohup sh -c 'read x < %s; head -c 1000000 /dev/zero && echo more >&2 && pwd > %s' & echo started", begin, end))
	r.Msg.Process.Cwd = &work
	o := h.run(t, r)
	if string(o.stdout) != "started\n" || o.end.GetExitCode() != 0 {
		t.Fatalf("got %q, end %v", o.stdout, o.end)
	}
	// It writes more than a pipe holds, after the call is over.
	if err := os.WriteFile(begin, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, end); got != work+"\n" {
		t.Errorf("the background process wrote %q, want its folder", got)
	}
}

// A background process that never stops writing must not hold the end back.
func TestBackgroundFlood(t *testing.T) {
	for _, header := range []string{"", window} {
		h := newHarness(t, nil)
		o := h.run(t, shell("yes & sleep 0.1; exit 9", e2b.HeaderWindow, header))
		if o.end.GetExitCode() != 9 || len(o.end.GetAbxBackground()) != 1 {
			t.Errorf("end %v, error %v", o.end, o.err)
		}
	}
}

func TestTimeout(t *testing.T) {
	for _, tt := range []struct {
		name, script, out string
		shell             int32
	}{
		{"whole session", "echo $$; sleep 600 & echo $!; sleep 600", "", 143},
		{"ignores TERM", "trap '' TERM; echo $$; echo $$; while :; do sleep 600; done", "", 137},
		{"child ignores TERM", "echo $$; (trap '' TERM; while :; do sleep 600; done) & echo $!; wait", "", 143},
		{"child holds no pipe", "echo $$; (trap '' TERM; while :; do sleep 600; done) >/dev/null 2>&1 & echo $!; wait", "", 143},
		{"says good-bye", "trap 'echo bye; exit 0' TERM; echo $$; echo $$; while :; do sleep 600 & wait; done", "bye", 0},
	} {
		for _, header := range []string{"", window} {
			t.Run(tt.name+" "+header, func(t *testing.T) {
				t.Parallel()
				h := newHarness(t, nil)
				o := h.run(t, shell(tt.script, e2b.HeaderTimeout, "1500", e2b.HeaderWindow, header))
				lines := strings.Fields(string(o.stdout))
				if len(lines) < 2 {
					t.Fatalf("output before the limit is lost: %q, %v", o.stdout, o.err)
				}
				if len(lines) > 2 != (tt.out != "") {
					t.Errorf("output %q, want %q last", lines, tt.out)
				}
				for _, pid := range lines[:2] {
					if alive(atoi(t, pid)) {
						t.Errorf("process %s is left", pid)
					}
				}
				if left := h.table.Session(o.pid); len(left) > 0 {
					t.Errorf("%v are left", left)
				}
				if header == "" {
					code(t, o.err, connect.CodeDeadlineExceeded, "time limit of 1.5s reached")
					return
				}
				if o.err != nil || o.end.GetAbxReason() != e2b.ReasonTimeout || o.end.GetAbxShellCode() != tt.shell || o.end.GetAbxDetail() != "time limit 1.5s reached" {
					t.Errorf("end %v, error %v; want reason timeout, code %d", o.end, o.err, tt.shell)
				}
			})
		}
	}
}

func TestTimeoutValues(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want time.Duration
		bad  bool
	}{
		{"", 0, false}, {"0", 0, false}, {"0.0", 0, false}, {"1500", 1500 * time.Millisecond, false},
		{"0.5", 500 * time.Microsecond, false}, {"1e3", time.Second, false}, {"0.0000001", 1, false},
		{"9999999999", 9999999999 * time.Millisecond, false}, {"1e300", 0, false},
		{"-1", 0, true}, {"-0.1", 0, true}, {"NaN", 0, true}, {"Inf", 0, true}, {"1s", 0, true}, {" ", 0, true},
	} {
		if got, err := parseTimeout(tt.in); got != tt.want || (err != nil) != tt.bad {
			t.Errorf("%q: %v, %v; want %v", tt.in, got, err, tt.want)
		}
	}
	h := newHarness(t, nil)
	for _, ms := range []string{"0", "59999.5"} {
		if o := h.run(t, shell("echo hi", e2b.HeaderTimeout, ms)); o.err != nil || string(o.stdout) != "hi\n" {
			t.Errorf("timeout %s: %q, %v", ms, o.stdout, o.err)
		}
	}
}

func TestClientGoesAway(t *testing.T) {
	for _, foreground := range []bool{true, false} {
		t.Run(fmt.Sprint(foreground), func(t *testing.T) {
			h := newHarness(t, nil)
			r := shell("sleep 600 & echo $!; wait")
			if foreground {
				r.Header().Set(e2b.HeaderForeground, "1")
			}
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			o, s := h.begin(t, ctx, r)
			o.until(t, s, "\n")
			child := atoi(t, string(o.stdout))
			if foreground {
				cancel()
				gone(t, o.pid)
				gone(t, child)
				return
			}
			// The server has noticed when it forgot the watcher.
			j, err := h.service.find(pidOf(o.pid))
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			for end := time.Now().Add(guard); time.Now().Before(end); <-time.After(time.Millisecond) {
				j.mu.Lock()
				n := len(j.watchers)
				j.mu.Unlock()
				if n == 0 {
					break
				}
			}
			if !alive(o.pid) || !alive(child) {
				t.Error("a background process was killed when its client went away")
			}
			late, err := h.Connect(testContext(t), connect.NewRequest(&pb.ConnectRequest{Process: pidOf(o.pid)}))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := h.SendSignal(testContext(t), connect.NewRequest(&pb.SendSignalRequest{Process: pidOf(o.pid), Signal: pb.Signal_SIGNAL_SIGKILL})); err != nil {
				t.Error(err)
			}
			if o := collect(connectStream{late}); o.end.GetStatus() != "signal: killed" {
				t.Errorf("latecomer got %v, %v", o.end, o.err)
			}
			gone(t, child)
		})
	}
}

func TestSignalReachesTheGroup(t *testing.T) {
	h := newHarness(t, nil)
	o, s := h.begin(t, testContext(t), shell("trap 'echo caught; exit 130' INT; echo ready; sleep 600 & wait; sleep 600"))
	o.until(t, s, "ready\n")
	if _, err := h.SendSignal(testContext(t), connect.NewRequest(&pb.SendSignalRequest{Process: pidOf(o.pid), Signal: pb.Signal_SIGNAL_ABX_SIGINT})); err != nil {
		t.Fatal(err)
	}
	o.rest(s)
	if string(o.stdout) != "ready\ncaught\n" || o.end.GetExitCode() != 130 {
		t.Errorf("got %q, end %v, %v", o.stdout, o.end, o.err)
	}
	_, err := h.SendSignal(testContext(t), connect.NewRequest(&pb.SendSignalRequest{Process: pidOf(o.pid)}))
	code(t, err, connect.CodeInvalidArgument, "SIGNAL_UNSPECIFIED")
}

func TestSelectors(t *testing.T) {
	h := newHarness(t, nil)
	ctx := testContext(t)
	for _, tt := range []struct {
		sel  *pb.ProcessSelector
		code connect.Code
		text string
	}{
		{pidOf(999999), connect.CodeNotFound, "pid 999999 not found"},
		{tagOf("nix"), connect.CodeNotFound, `tag "nix" not found`},
		{&pb.ProcessSelector{}, connect.CodeInvalidArgument, "pid or a tag"},
		{nil, connect.CodeInvalidArgument, "pid or a tag"},
	} {
		_, err := h.SendSignal(ctx, connect.NewRequest(&pb.SendSignalRequest{Process: tt.sel, Signal: 15}))
		code(t, err, tt.code, tt.text)
		_, err = h.CloseStdin(ctx, connect.NewRequest(&pb.CloseStdinRequest{Process: tt.sel}))
		code(t, err, tt.code, tt.text)
		_, err = h.Update(ctx, connect.NewRequest(&pb.UpdateRequest{Process: tt.sel}))
		code(t, err, tt.code, tt.text)
		cs, err := h.Connect(ctx, connect.NewRequest(&pb.ConnectRequest{Process: tt.sel}))
		if err != nil {
			t.Fatal(err)
		}
		code(t, collect(connectStream{cs}).err, tt.code, tt.text)
	}
	// Of several with one tag, the running one is meant.
	r := shell("true")
	tag := "t"
	r.Msg.Tag = &tag
	h.run(t, r)
	r = shell("exec sleep 600")
	r.Msg.Tag = &tag
	o, s := h.begin(t, ctx, r)
	if _, err := h.SendSignal(ctx, connect.NewRequest(&pb.SendSignalRequest{Process: tagOf("t"), Signal: 15})); err != nil {
		t.Error(err)
	}
	if o.rest(s); o.end.GetStatus() != "signal: terminated" {
		t.Errorf("end %v, %v", o.end, o.err)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	h := newHarness(t, nil)
	o, s := h.begin(t, testContext(t), shell("setsid sleep 5 & exec sleep 600"))
	if err := h.service.Close(); err != nil {
		t.Fatal(err)
	}
	if alive(o.pid) {
		t.Error("a process is left")
	}
	o.rest(s)
	late := h.run(t, shell("true"))
	code(t, late.err, connect.CodeUnavailable, "closed")
	if left := h.table.Session(late.pid); late.pid != 0 && len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

func TestManyAtOnce(t *testing.T) {
	h := newHarness(t, nil)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			r := shell(fmt.Sprintf("seq 1 %d; exit %d", i*100, i), e2b.HeaderWindow, window)
			if i%2 == 0 {
				r.Header().Del(e2b.HeaderWindow)
			}
			s, err := h.Start(testContext(t), r)
			if err != nil {
				t.Error(err)
				return
			}
			o := collect(startStream{s})
			if lines := bytes.Count(o.stdout, []byte("\n")); lines != i*100 || o.end.GetExitCode() != int32(i) {
				t.Errorf("%d lines, end %v, %v; want %d lines, code %d", lines, o.end, o.err, i*100, i)
			}
		})
	}
	wg.Wait()
}

func TestNothingIsLeftOpen(t *testing.T) {
	h := newHarness(t, nil)
	long := shell("true #" + strings.Repeat("x", maxArgument))
	noSuch := shell("true")
	noSuch.Msg.Process.Cmd = "/no/such"
	cycle := func() {
		for _, r := range []*connect.Request[pb.StartRequest]{
			shell("true"), withInput("true"), terminal("true"), long, noSuch,
			shell("seq 1 1000", e2b.HeaderWindow, "1,1"), shell("sleep 600", e2b.HeaderTimeout, "1"),
			connect.NewRequest(&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/etc"}, Pty: &pb.PTY{}}),
			connect.NewRequest(&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/etc"}}),
		} {
			h.run(t, r)
		}
	}
	settled := func() (files, routines int) {
		files, routines = 1<<30, 1<<30
		for still := 0; still < 50; <-time.After(time.Millisecond) {
			entries, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Fatal(err)
			}
			if f, r := len(entries), runtime.NumGoroutine(); f < files || r < routines {
				files, routines, still = min(f, files), min(r, routines), 0
			}
			still++
		}
		return files, routines
	}
	cycle()
	files, routines := settled()
	for range 10 {
		cycle()
	}
	if f, r := settled(); f > files+5 || r > routines+5 {
		t.Errorf("open files went from %d to %d, goroutines from %d to %d", files, f, routines, r)
	}
}
