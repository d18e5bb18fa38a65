//go:build linux

package process

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/agent-sandbox/abx/internal/e2b"
	pb "github.com/agent-sandbox/abx/internal/e2b/process"
)

func TestLargeOutput(t *testing.T) {
	const size = 50_000_000
	for _, header := range []string{"", window} {
		t.Run(header, func(t *testing.T) {
			h := newHarness(t, nil)
			s, err := h.Start(testContext(t), shell(fmt.Sprintf("head -c %d /dev/zero; echo end >&2", size), e2b.HeaderWindow, header))
			if err != nil {
				t.Fatal(err)
			}
			before, most := heap(), uint64(0)
			o := &outcome{}
			for i := 0; s.Receive(); i++ {
				o.add(s.Msg().GetEvent())
				if i%100 == 0 {
					most = max(most, heap())
				}
			}
			if s.Err() != nil || o.end.GetAbxStdoutBytes() != size || o.end.GetAbxStderrBytes() != 4 {
				t.Fatalf("end %v, error %v", o.end, s.Err())
			}
			if most > before+20<<20 {
				t.Errorf("memory grew from %d to %d", before, most)
			}
			want := int64(size)
			if header != "" {
				want = 12288 + 20480
				if info, err := os.Stat(o.end.GetAbxStdoutFile()); err != nil || info.Size() != size {
					t.Errorf("file %q: %v, %v; want %d bytes", o.end.GetAbxStdoutFile(), info, err, size)
				}
			}
			if o.outCount != want || o.end.GetAbxStderrFile() != "" {
				t.Errorf("got %d bytes, want %d; end %v", o.outCount, want, o.end)
			}
		})
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestWindow(t *testing.T) {
	h := newHarness(t, nil)
	o := h.run(t, shell("seq 1 1000; seq 1 3 >&2", e2b.HeaderWindow, "10,12"))
	if string(o.stdout) != "1\n2\n3\n4\n5\n98\n999\n1000\n" {
		t.Errorf("stdout %q", o.stdout)
	}
	if string(o.stderr) != "1\n2\n3\n" || o.end.GetAbxStderrFile() != "" || o.end.GetAbxStdoutBytes() != 3893 {
		t.Errorf("stderr %q, end %v", o.stderr, o.end)
	}
	whole, err := exec.Command("seq", "1", "1000").Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, o.end.GetAbxStdoutFile()); got != string(whole) {
		t.Errorf("file has %d bytes, want %d", len(got), len(whole))
	}
}

func TestProgress(t *testing.T) {
	h := newHarness(t, nil)
	gate := h.fifo(t, "gate")
	r := shell("echo first; echo newest; read x < "+gate+"; echo last", e2b.HeaderWindow, "3,5", e2b.HeaderKeepalive, "0.02")
	o, s := h.begin(t, testContext(t), r)
	for len(o.alive) == 0 || o.alive[len(o.alive)-1].GetAbxLine() != "newest" {
		ev, ok := s.next()
		if !ok {
			t.Fatal(s.Err())
		}
		o.add(ev)
	}
	if got := o.alive[len(o.alive)-1].GetAbxStdoutBytes(); got != 13 || string(o.stdout) != "fir" {
		t.Errorf("%d bytes told, %q sent; want 13, fir", got, o.stdout)
	}
	if err := os.WriteFile(gate, []byte("\n"), 0); err != nil {
		t.Fatal(err)
	}
	if o.rest(s); string(o.stdout) != "firlast\n" || o.err != nil {
		t.Errorf("in all %q, %v", o.stdout, o.err)
	}
}

func TestKeepaliveWithoutWindow(t *testing.T) {
	h := newHarness(t, nil)
	gate := h.fifo(t, "gate")
	o, s := h.begin(t, testContext(t), shell("read x < "+gate, e2b.HeaderKeepalive, "0.02"))
	for len(o.alive) < 3 {
		ev, ok := s.next()
		if !ok {
			t.Fatal(s.Err())
		}
		o.add(ev)
	}
	if diff := cmp.Diff(&pb.ProcessEvent_KeepAlive{}, o.alive[0], protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if err := os.WriteFile(gate, []byte("\n"), 0); err != nil {
		t.Fatal(err)
	}
	if o.rest(s); o.end == nil {
		t.Error(o.err)
	}
}

func TestStreamsAreKeptApartAndInOrder(t *testing.T) {
	h := newHarness(t, nil)
	o := h.run(t, shell("i=0; while [ $i -lt 2000 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done"))
	var out, errs strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&out, "o%d\n", i)
		fmt.Fprintf(&errs, "e%d\n", i)
	}
	if string(o.stdout) != out.String() || string(o.stderr) != errs.String() {
		t.Error("streams are mixed or out of order")
	}
}

func TestConnect(t *testing.T) {
	h := newHarness(t, nil)
	gate := h.fifo(t, "gate")
	r := shell("echo before; read x < " + gate + "; seq 1 20000; exit 3")
	tag := "job"
	r.Msg.Tag = &tag
	first, s := h.begin(t, testContext(t), r)
	first.until(t, s, "before\n")

	list, err := h.List(testContext(t), connect.NewRequest(&pb.ListRequest{}))
	want := &pb.ListResponse{Processes: []*pb.ProcessInfo{{Config: r.Msg.Process, Pid: uint32(first.pid), Tag: &tag}}}
	if err != nil || !cmp.Equal(want, list.Msg, protocmp.Transform()) {
		t.Errorf("list %v, %v", list, err)
	}

	var wg sync.WaitGroup
	late := make([]*outcome, 5)
	for i := range late {
		sel := pidOf(first.pid)
		if i%2 == 1 {
			sel = tagOf(tag)
		}
		cs, err := h.Connect(testContext(t), connect.NewRequest(&pb.ConnectRequest{Process: sel}))
		if err != nil {
			t.Fatal(err)
		}
		late[i] = &outcome{keep: true}
		es := connectStream{cs}
		ev, ok := es.next()
		if !ok {
			t.Fatal(es.Err())
		}
		late[i].add(ev)
		wg.Go(func() { late[i].rest(es) })
	}
	if err := os.WriteFile(gate, []byte("\n"), 0); err != nil {
		t.Fatal(err)
	}
	first.rest(s)
	wg.Wait()
	all, _ := exec.Command("seq", "1", "20000").Output()
	for i, o := range late {
		if !bytes.Equal(o.stdout, all) || o.end.GetExitCode() != 3 || o.pid != first.pid || o.kinds != "sox" {
			t.Errorf("subscriber %d: %d bytes, end %v, pid %d, events %s", i, len(o.stdout), o.end, o.pid, o.kinds)
		}
	}
	if !bytes.Equal(first.stdout, append([]byte("before\n"), all...)) {
		t.Errorf("the first subscriber got %d bytes", len(first.stdout))
	}
}

func TestConnectAfterTheEnd(t *testing.T) {
	h := newHarness(t, nil)
	o := h.run(t, shell("exit 3"))
	cs, err := h.Connect(testContext(t), connect.NewRequest(&pb.ConnectRequest{Process: pidOf(o.pid)}))
	if err != nil {
		t.Fatal(err)
	}
	if late := collect(connectStream{cs}); late.kinds != "sx" || late.end.GetExitCode() != 3 {
		t.Errorf("events %q, end %v, error %v", late.kinds, late.end, late.err)
	}
	_, err = h.SendInput(testContext(t), connect.NewRequest(&pb.SendInputRequest{Process: pidOf(o.pid), Input: stdin("x")}))
	code(t, err, connect.CodeNotFound, "ended with code 3")
	_, err = h.SendSignal(testContext(t), connect.NewRequest(&pb.SendSignalRequest{Process: pidOf(o.pid), Signal: 9}))
	code(t, err, connect.CodeNotFound, "ended with code 3")
	if list, err := h.List(testContext(t), connect.NewRequest(&pb.ListRequest{})); err != nil || len(list.Msg.Processes) > 0 {
		t.Errorf("list %v, %v", list, err)
	}

	h = newHarness(t, func(o *Options) { o.KeepEnded = 1 })
	o = h.run(t, shell("exit 3"))
	cs, err = h.Connect(testContext(t), connect.NewRequest(&pb.ConnectRequest{Process: pidOf(o.pid)}))
	if err != nil {
		t.Fatal(err)
	}
	code(t, collect(connectStream{cs}).err, connect.CodeNotFound, fmt.Sprintf("pid %d not found", o.pid))
}

func TestConnectTimeoutLeavesTheProcess(t *testing.T) {
	h := newHarness(t, nil)
	o, _ := h.begin(t, testContext(t), shell("exec sleep 600"))
	r := connect.NewRequest(&pb.ConnectRequest{Process: pidOf(o.pid)})
	r.Header().Set(e2b.HeaderTimeout, "50")
	cs, err := h.Connect(testContext(t), r)
	if err != nil {
		t.Fatal(err)
	}
	code(t, collect(connectStream{cs}).err, connect.CodeDeadlineExceeded, "goes on")
	if !alive(o.pid) {
		t.Error("the process was killed")
	}
}

func TestSlowSubscriberSlowsTheProcess(t *testing.T) {
	h := newHarness(t, nil)
	count := filepath.Join(h.home, "count")
	o, s := h.begin(t, testContext(t), shell("i=0; while [ $i -lt 400 ]; do head -c 100000 /dev/zero; i=$((i+1)); echo $i > "+count+"; done"))
	// Nobody reads: what is under way fills up, and the count stands still.
	last, still := "", 0
	for still < 100 {
		b, _ := os.ReadFile(count)
		if string(b) == last && last != "" {
			still++
		} else {
			last, still = string(b), 0
		}
		<-time.After(2 * time.Millisecond)
	}
	if last == "400\n" {
		t.Error("40 MB were taken from the process though nobody read them")
	}
	if o.rest(s); o.outCount != 40_000_000 || o.end.GetExitCode() != 0 {
		t.Errorf("got %d bytes, end %v, %v", o.outCount, o.end, o.err)
	}
}

func TestSlowWindowDoesNot(t *testing.T) {
	h := newHarness(t, nil)
	done := h.fifo(t, "done")
	o, s := h.begin(t, testContext(t), shell("head -c 40000000 /dev/zero; echo done > "+done, e2b.HeaderWindow, "1000000,10"))
	if got := readAll(t, done); got != "done\n" { // before anything is read
		t.Errorf("got %q", got)
	}
	if o.rest(s); o.outCount != 1_000_010 || o.end.GetAbxStdoutBytes() != 40_000_000 {
		t.Errorf("got %d bytes, end %v, %v", o.outCount, o.end, o.err)
	}
}
