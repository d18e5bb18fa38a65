package namespace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/control"
	"github.com/agent-sandbox/abx/internal/host/cgroup"
	"github.com/agent-sandbox/abx/internal/host/engine"
	"github.com/agent-sandbox/abx/internal/reexec"
)

const cloneFlags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// Start implements engine.Driver. Its phases run side by side where they can:
// the cgroup is made while the agent's program loads.
func (d *Driver) Start(ctx context.Context, spec engine.Spec) (_ engine.Sandbox, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	end, ok := d.begin(spec.ID, cancel)
	if !ok {
		return nil, reexec.ErrClosed
	}
	defer end()
	began := time.Now()
	select {
	case <-d.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if d.failed != nil {
		return nil, d.failed
	}
	s := &sandbox{id: spec.ID, driver: d, done: make(chan struct{}), heard: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start sandbox %s: %w", spec.ID, err), s.Close())
		}
	}()
	made := d.makeCgroup(spec)
	if d.setup.CgroupFD { // to be cloned into, it must be there first
		g := <-made
		if s.group = g.group; g.err != nil {
			return nil, g.err
		}
		made <- g
	}
	err = s.clone(d, spec)
	group := <-made
	s.group = group.group
	if err = errors.Join(err, group.err); err != nil {
		return nil, err
	}
	cloned := time.Now()
	admitted := s.admit(d)
	if admitted != nil {
		s.kill()
	}
	configured := time.Now()
	// An agent that ended by itself has said why.
	if err := s.awaitReady(ctx, d); err != nil {
		return nil, errors.Join(err, admitted)
	}
	d.log.Debug("sandbox started", "sandbox", spec.ID, "clone", cloned.Sub(began),
		"admit", configured.Sub(cloned), "setup", time.Since(configured), "total", time.Since(began))
	return s, nil
}

type madeGroup struct {
	group *cgroup.Group
	err   error
}

func (d *Driver) makeCgroup(spec engine.Spec) chan madeGroup {
	c := make(chan madeGroup, 1)
	if d.cgroups == nil {
		c <- madeGroup{}
		return c
	}
	go func() {
		l := cgroup.Limits{MemoryBytes: spec.Limits.MemoryBytes, Processes: spec.Limits.Processes}
		g, err := d.cgroups.Create(d.cgroupName()+"/"+spec.ID, l, d.mapping.agentUID(spec.ID))
		c <- madeGroup{g, err}
	}()
	return c
}

// clone starts the agent in new namespaces, unmapped. What it is to become
// waits for it in the control socket, so that it begins with what needs no
// mapped ids while we map them.
func (s *sandbox) clone(d *Driver, spec engine.Spec) error {
	ours, theirs, err := control.Pair()
	if err != nil {
		return err
	}
	if s.control, err = control.NewConn(ours); err != nil {
		ours.Close()
		theirs.Close()
		return err
	}
	if err := s.control.Send(d.setupOf(spec)); err != nil {
		theirs.Close()
		return err
	}
	caps := make([]uintptr, 0, 41)
	for c := uintptr(0); c <= lastCap(); c++ {
		caps = append(caps, c)
	}
	stderr, logged, err := s.logPipe()
	if err != nil {
		theirs.Close()
		return err
	}
	defer stderr.Close()
	attr := &syscall.SysProcAttr{Cloneflags: cloneFlags, AmbientCaps: caps, Setsid: true}
	if d.setup.CgroupFD {
		folder, err := s.group.Supervisor()
		if err != nil {
			theirs.Close()
			logged.Close()
			return fmt.Errorf("open cgroup: %w", err)
		}
		defer folder[0].Close()
		attr.UseCgroupFD, attr.CgroupFD = true, int(folder[0].Fd())
	}
	s.proc, err = d.threads.Start(reexec.Command{
		Binary: "/proc/self/fd/" + strconv.Itoa(int(d.agent.Fd())),
		Role:   RoleAgent,
		// Capabilities survive the exec of an identity that is not mapped yet
		// only as ambient ones.
		Attr:   attr,
		Files:  []reexec.File{reexec.Give(theirs)},
		Stderr: stderr,
	})
	if err != nil {
		logged.Close()
		return cloneAdvice(err)
	}
	go s.watch()
	go s.readLog(logged, d.log)
	return nil
}

// setupOf is what the agent of a sandbox is to become.
func (d *Driver) setupOf(spec engine.Spec) control.Setup {
	setup := personal(d.setup, spec.ID)
	setup.DiskBytes, setup.OpenFiles = spec.Limits.DiskBytes, spec.Limits.OpenFiles
	setup.MemoryBytes, setup.ProcessLimit = spec.Limits.MemoryBytes, spec.Limits.Processes
	iso := d.Isolation()
	if !iso.MemoryEnforced {
		setup.DataBytes = spec.Limits.MemoryBytes
	}
	if !iso.ProcessesEnforced {
		setup.Processes = spec.Limits.Processes
	}
	return setup
}

// admit maps the agent's ids and gives it the files of its cgroup.
func (s *sandbox) admit(d *Driver) error {
	if err := d.mapping.apply(s.proc.Pid, s.id); err != nil {
		return fmt.Errorf("map user ids: %w", err)
	}
	var msg control.Mapped
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if s.group != nil {
		var err error
		if files, msg.Files, err = s.cgroupFiles(); err != nil {
			return fmt.Errorf("open cgroup: %w", err)
		}
	}
	return s.control.Send(msg, files...)
}

// cgroupFiles opens the files by which the agent uses the group; the caller
// closes what is returned, also beside an error.
func (s *sandbox) cgroupFiles() (files []*os.File, names []string, err error) {
	add := func(name string, f *os.File) {
		if f != nil {
			files, names = append(files, f), append(names, name)
		}
	}
	if !s.driver.setup.CgroupFD {
		self, err := s.group.Supervisor()
		if err != nil {
			return files, names, err
		}
		for _, f := range self {
			add(control.FileSelf, f)
		}
	}
	work, err := s.group.Work()
	if err != nil {
		return files, names, err
	}
	for _, f := range work {
		add(control.FileWork, f)
	}
	oom, pids, peak := s.group.Counters()
	add(control.FileOOM, oom)
	add(control.FilePids, pids)
	add(control.FileMemoryPeak, peak)
	return files, names, nil
}

// starting bounds how long an agent may take from its setup to readiness on a
// machine under load.
const starting = 60 * time.Second

func (s *sandbox) awaitReady(ctx context.Context, d *Driver) error {
	ctx, cancel := context.WithTimeout(ctx, starting)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { s.kill() })
	defer stop()
	var status control.Status
	files, err := s.control.Receive(&status)
	for _, f := range files {
		f.Close()
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		<-s.done
		return fmt.Errorf("agent ended while it started (%s): %w", s.ended(), err)
	case status.Error != "":
		return setupAdvice(status)
	case !status.Ready || status.Build != d.opts.Build:
		return fmt.Errorf("agent is of build %.80q, this program of %q: run make build again", status.Build, d.opts.Build)
	}
	return nil
}

// lastCap is the highest capability that this kernel knows.
func lastCap() uintptr {
	b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return unix.CAP_LAST_CAP
	}
	n, err := strconv.Atoi(string(b[:max(0, len(b)-1)]))
	if err != nil || n > 63 {
		return unix.CAP_LAST_CAP
	}
	return uintptr(n)
}
