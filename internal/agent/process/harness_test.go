//go:build linux

package process

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"math"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/account"
	pb "github.com/agent-sandbox/abx/internal/e2b/process"
	"github.com/agent-sandbox/abx/internal/e2b/process/processconnect"
)

// guard is far beyond what anything here takes.
const guard = 60 * time.Second

func TestMain(m *testing.M) {
	// What the test itself inherited is no concern of its children.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if role := os.Getenv("ABX_TEST_ROLE"); role != "" {
		os.Exit(roles[role]())
	}
	os.Exit(m.Run())
}

// book has the user "user", who is whoever runs the tests, and "other".
func book(t testing.TB, home string) account.Book {
	t.Helper()
	b := account.Book{Passwd: filepath.Join(t.TempDir(), "passwd"), Group: filepath.Join(t.TempDir(), "group")}
	passwd := fmt.Sprintf("user:x:%d:%d::%s:/bin/sh\nother:x:4711:4712::/:/bin/sh\n", os.Getuid(), os.Getgid(), home)
	for path, text := range map[string]string{b.Passwd: passwd, b.Group: "team:x:4713:other\n"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

type harness struct {
	processconnect.ProcessClient
	service *Service
	table   *Table
	url     string
	home    string // cwd of commands, and HOME
}

func newHarness(t testing.TB, change func(*Options), opts ...connect.ClientOption) *harness {
	t.Helper()
	home := t.TempDir()
	table, err := NewTable(TableOptions{NoCredential: os.Getuid() != 0})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Table: table, Book: book(t, home), KillGrace: 100 * time.Millisecond,
		LogDir: filepath.Join(home, ".abx"),
	}
	if change != nil {
		change(&o)
	}
	s := NewService(o)
	_, h := s.Handler()
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.CloseClientConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	})
	return &harness{processconnect.NewProcessClient(server.Client(), server.URL, opts...), s, table, server.URL, home}
}

// shell is a request that runs a script as our run_command does.
func shell(script string, headers ...string) *connect.Request[pb.StartRequest] {
	no := false
	r := connect.NewRequest(&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}, Stdin: &no})
	for i := 0; i < len(headers); i += 2 {
		r.Header().Set(headers[i], headers[i+1])
	}
	return r
}

const window = "12288,20480"

// outcome is what a stream told.
type outcome struct {
	pid              int
	stdout, stderr   []byte
	tty              []byte
	kinds            string // one letter an event: s, o, e, t, k, x
	end              *pb.ProcessEvent_EndEvent
	alive            []*pb.ProcessEvent_KeepAlive
	err              error
	events           int
	keep             bool
	outCount, errCnt int64
}

func (o *outcome) add(ev *pb.ProcessEvent) {
	o.events++
	switch e := ev.GetEvent().(type) {
	case *pb.ProcessEvent_Start:
		o.pid, o.kinds = int(e.Start.GetPid()), o.kinds+"s"
	case *pb.ProcessEvent_Data:
		switch d := e.Data.GetOutput().(type) {
		case *pb.ProcessEvent_DataEvent_Stdout:
			o.outCount += int64(len(d.Stdout))
			if o.keep {
				o.stdout = append(o.stdout, d.Stdout...)
			}
			o.kind("o")
		case *pb.ProcessEvent_DataEvent_Stderr:
			o.errCnt += int64(len(d.Stderr))
			if o.keep {
				o.stderr = append(o.stderr, d.Stderr...)
			}
			o.kind("e")
		case *pb.ProcessEvent_DataEvent_Pty:
			o.tty = append(o.tty, d.Pty...)
			o.kind("t")
		}
	case *pb.ProcessEvent_End:
		o.end, o.kinds = e.End, o.kinds+"x"
	case *pb.ProcessEvent_Keepalive:
		o.alive, o.kinds = append(o.alive, e.Keepalive), o.kinds+"k"
	}
}

func (o *outcome) kind(k string) {
	if !strings.HasSuffix(o.kinds, k) {
		o.kinds += k
	}
}

type eventStream interface {
	next() (*pb.ProcessEvent, bool)
	Err() error
	Close() error
}

type startStream struct {
	*connect.ServerStreamForClient[pb.StartResponse]
}

func (s startStream) next() (*pb.ProcessEvent, bool) {
	ok := s.Receive()
	return s.Msg().GetEvent(), ok
}

type connectStream struct {
	*connect.ServerStreamForClient[pb.ConnectResponse]
}

func (s connectStream) next() (*pb.ProcessEvent, bool) {
	ok := s.Receive()
	return s.Msg().GetEvent(), ok
}

// collect reads a stream to its end.
func collect(s eventStream) *outcome {
	o := &outcome{keep: true}
	o.rest(s)
	return o
}

func (o *outcome) rest(s eventStream) {
	defer s.Close()
	for {
		ev, ok := s.next()
		if !ok {
			o.err = s.Err()
			return
		}
		o.add(ev)
	}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	t.Cleanup(cancel)
	return withoutDeadline{ctx}
}

// withoutDeadline keeps connect's client from sending the guard as a timeout.
type withoutDeadline struct{ context.Context }

func (withoutDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }

func (h *harness) run(t testing.TB, r *connect.Request[pb.StartRequest]) *outcome {
	t.Helper()
	s, err := h.Start(testContext(t), r)
	if err != nil {
		t.Fatal(err)
	}
	return collect(startStream{s})
}

// begin starts r and reads the start event.
func (h *harness) begin(t testing.TB, ctx context.Context, r *connect.Request[pb.StartRequest]) (*outcome, eventStream) {
	t.Helper()
	s, err := h.Start(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	o, es := &outcome{keep: true}, startStream{s}
	ev, ok := es.next()
	if !ok {
		t.Fatal(es.Err())
	}
	o.add(ev)
	t.Cleanup(func() { es.Close() })
	return o, es
}

// until reads events until standard output ends with want.
func (o *outcome) until(t testing.TB, s eventStream, want string) {
	t.Helper()
	for !bytes.HasSuffix(o.stdout, []byte(want)) && !bytes.HasSuffix(o.tty, []byte(want)) {
		ev, ok := s.next()
		if !ok {
			t.Fatalf("stream ended (%v) after %q, want %q", s.Err(), o.stdout, want)
		}
		o.add(ev)
	}
}

func pidOf(pid int) *pb.ProcessSelector {
	return &pb.ProcessSelector{Selector: &pb.ProcessSelector_Pid{Pid: uint32(pid)}}
}

func tagOf(tag string) *pb.ProcessSelector {
	return &pb.ProcessSelector{Selector: &pb.ProcessSelector_Tag{Tag: tag}}
}

func basic(user string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"))
}

// fifo makes a named pipe in the home folder, by which scripts and tests wait
// for each other.
func (h *harness) fifo(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(h.home, name)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// gone waits until no process has the pid, zombies aside.
func gone(t testing.TB, pid int) {
	t.Helper()
	for end := time.Now().Add(guard); time.Now().Before(end); <-time.After(time.Millisecond) {
		if s, err := readStat(pid); err != nil || s.dead() {
			return
		}
	}
	t.Errorf("process %d still runs", pid)
}

func alive(pid int) bool {
	s, err := readStat(pid)
	return err == nil && !s.dead()
}

func code(t testing.TB, err error, want connect.Code, text string) {
	t.Helper()
	if connect.CodeOf(err) != want || err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v; want code %v and text %q", err, want, text)
	}
}

func readAll(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func atoi(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
