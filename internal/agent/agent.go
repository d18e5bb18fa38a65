//go:build linux

// Package agent is the program inside a sandbox: PID 1, which builds the
// sandbox around itself (setup) and then serves E2B's envd protocol
// (processes, files) and its code interpreter to the host, over connections
// that the host asks for on the control socket. Everything else in the sandbox
// is hostile to it; so it holds no secret but the sandbox's own access token,
// and its end is the sandbox's end.
//
// To add a service: give it a package below this one, with a Service that has
// a handler, and mount it in newServer.
package agent

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/setup"
	"github.com/agent-sandbox/abx/internal/control"
)

// Run is the agent's life: it returns when the host is gone or the sandbox's
// time is over, and the caller then ends the process. build must be the
// host's.
func Run(build string) error {
	// Setup is of the first thread, and its parent-death signal with it.
	runtime.LockOSThread()
	name := []byte("abx-agent\x00") // of a program without a path it would be a number
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0)
	tuneMemory()
	ignored := ignoreSignals()
	conn, err := control.NewConn(os.NewFile(3, "control"))
	if err != nil {
		return err
	}
	defer conn.Close()
	var s control.Setup
	if _, err := conn.Receive(&s); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return err
	}
	if s.Build != build {
		return conn.Send(control.Status{Build: build})
	}
	server, err := start(conn, s)
	if err != nil {
		return conn.Send(failure(err))
	}
	<-ignored
	if err := conn.Send(control.Status{Ready: true, Build: build}); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.serveControl(conn) }()
	select {
	case err := <-ended:
		return err
	case <-server.overdue:
		return nil
	}
}

// tuneMemory keeps an idle agent small: there is one for every sandbox.
func tuneMemory() {
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(24 << 20)
}

// ignoreSignals keeps what runs inside from ending PID 1 with a signal. The
// kernel drops those that have no handler, but the Go runtime installs one for
// most of them. SIGURG is the runtime's own, SIGCHLD the process table's. It
// takes 1.6 ms and goes on beside setup; the channel is closed when it is done.
func ignoreSignals() <-chan struct{} {
	sink := make(chan os.Signal, 1)
	var all []os.Signal
	for n := syscall.Signal(1); n < 65; n++ {
		switch n {
		case unix.SIGURG, unix.SIGCHLD, unix.SIGKILL, unix.SIGSTOP, unix.SIGPROF:
		default:
			all = append(all, n)
		}
	}
	done := make(chan struct{})
	go func() {
		signal.Notify(sink, all...)
		close(done)
		for range sink {
		}
	}()
	return done
}

func start(conn *control.Conn, s control.Setup) (*server, error) {
	files := map[string][]*os.File{}
	mapped := func() ([]*os.File, error) {
		var m control.Mapped
		received, err := conn.Receive(&m)
		if err != nil {
			return nil, err
		}
		for i, f := range received {
			if i < len(m.Files) {
				files[m.Files[i]] = append(files[m.Files[i]], f)
			}
		}
		return files[control.FileSelf], nil
	}
	if s.Single && s.Processes > 0 {
		// The limit counts by user id, and the workload has ours: at its limit we
		// could start no thread, which ends a Go program.
		reserveThreads(reservedThreads)
		s.Processes += reservedThreads
	}
	err := setup.Apply(s, mapped)
	for _, f := range files[control.FileSelf] {
		f.Close()
	}
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	srv, err := newServer(s, files, log)
	if err != nil {
		return nil, &setup.StepError{Step: "start services", Err: err}
	}
	return srv, nil
}

// reservedThreads are more than a busy agent was seen to use.
const reservedThreads = 48

// reserveThreads makes the runtime start n threads, which it keeps for later.
func reserveThreads(n int) {
	var running, done sync.WaitGroup
	running.Add(n)
	for range n {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			running.Done()
			running.Wait()
		})
	}
	done.Wait()
}

func failure(err error) control.Status {
	st := control.Status{Step: "start", Error: err.Error()}
	var step *setup.StepError
	if errors.As(err, &step) {
		st.Step, st.Error = step.Step, step.Err.Error()
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		st.Errno = int(errno)
	}
	return st
}

// serveControl answers the host's requests for connections until the host is
// gone.
func (s *server) serveControl(conn *control.Conn) error {
	for {
		var d control.Dial
		files, err := conn.Receive(&d)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(files) != 1 {
			for _, f := range files {
				f.Close()
			}
			return fmt.Errorf("control: a dial with %d files", len(files))
		}
		go s.answer(d.Port, files[0])
	}
}

func (s *server) answer(port int, reply *os.File) {
	conn, err := control.NewConn(reply)
	if err != nil {
		reply.Close()
		return
	}
	defer conn.Close()
	file, err := s.connect(port)
	if err != nil {
		// The host may be gone by now; then there is nobody to tell.
		_ = conn.Send(control.Answer{Error: err.Error(), Closed: errors.Is(err, syscall.ECONNREFUSED)})
		return
	}
	defer file.Close()
	_ = conn.Send(control.Answer{}, file)
}

// readHeader bounds how long a connection may take over a request's header.
const readHeader = 30 * time.Second

func newHTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeader,
		MaxHeaderBytes:    256 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}
