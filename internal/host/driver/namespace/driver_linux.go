package namespace

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/agent-sandbox/abx/internal/control"
	"github.com/agent-sandbox/abx/internal/host/cgroup"
	"github.com/agent-sandbox/abx/internal/host/engine"
	"github.com/agent-sandbox/abx/internal/reexec"
)

// Driver fills engine.Driver; see the package comment.
type Driver struct {
	opts    Options
	log     *slog.Logger
	id      string // of this host, in names of cgroups and of the record
	mapping mapping
	cgroups *cgroup.Root // nil where there are none
	notes   []string

	threads *reexec.Threads
	janitor *janitor
	record  string

	// What each start needs and is computed once, beside the first steps of the
	// program: base waits for it.
	ready  chan struct{}
	cancel context.CancelFunc
	agent  *os.File
	setup  control.Setup
	failed error

	mu       sync.Mutex
	closed   bool
	starts   map[string]context.CancelFunc // those that run, by sandbox; none begins once closed is set
	starting sync.WaitGroup

	close    sync.Once
	closeErr error
}

// New readies the driver: it looks at what this machine can give, sweeps what
// dead hosts left and starts the janitor. What takes long goes on behind it;
// the first Start waits for that.
func New(opts Options) (*Driver, error) {
	log := opts.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if opts.StateDir == "" {
		return nil, fmt.Errorf("namespace driver: %w: no state folder", engine.ErrInvalid)
	}
	if err := os.MkdirAll(opts.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("namespace driver: %w", err)
	}
	d := &Driver{opts: opts, log: log, id: strings.ToLower(rand.Text()[:10]),
		ready: make(chan struct{}), starts: map[string]context.CancelFunc{}}
	d.mapping = detectMapping(opts.Single)
	if n := d.mapping.note(); n != "" {
		d.notes = append(d.notes, n)
	}
	d.detectCgroups()
	if err := sweep(opts.StateDir); err != nil {
		log.Warn("sweep after dead hosts", "error", err)
	}
	if err := d.keepRecord(); err != nil {
		return nil, err
	}
	d.threads = reexec.NewThreads(min(4, 2*runtime.NumCPU()))
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	go d.prepare(ctx)
	return d, nil
}

func (d *Driver) detectCgroups() {
	if d.opts.NoCgroup {
		d.notes = append(d.notes, "no cgroups, as asked: "+noCgroupNote)
		return
	}
	root, err := cgroup.Detect()
	if err != nil {
		d.log.Info("no cgroups", "reason", err)
		d.notes = append(d.notes, "this user may not make cgroups here: "+noCgroupNote)
		return
	}
	d.cgroups = root
	for _, c := range root.Missing {
		d.notes = append(d.notes, "no cgroup controller "+c+" here: its limit holds for each process, not for all together")
	}
}

const noCgroupNote = "memory is limited for each process and its private part only, not for all of a sandbox together, and processor time is not shared out"

// keepRecord leaves on disk what to remove should this process be killed, and
// starts who does it.
func (d *Driver) keepRecord() error {
	r := newRecord()
	if d.cgroups != nil {
		r.Cgroups = d.cgroups.Folders(d.cgroupName())
	}
	d.record = filepath.Join(d.opts.StateDir, d.id+".json")
	if err := r.write(d.record); err != nil {
		return fmt.Errorf("record of this host: %w", err)
	}
	j, err := startJanitor("/proc/self/exe", d.record, d.log)
	if err != nil {
		_ = os.Remove(d.record)
		return err
	}
	d.janitor = j
	return nil
}

func (d *Driver) cgroupName() string { return cgroupPrefix + d.id }

// prepare computes what every start shares.
func (d *Driver) prepare(ctx context.Context) {
	defer close(d.ready)
	type result struct {
		program []byte
		err     error
	}
	filter := make(chan result, 1)
	go func() {
		p, err := filterProgram(d.cgroups != nil && d.cgroups.Version() == 2)
		filter <- result{p, err}
	}()
	tools, notes := findTools(ctx, d.opts.Path, d.opts.Home, d.opts.Env)
	for _, n := range notes {
		d.log.Warn(n)
	}
	d.setup = baseSetup(tools)
	d.setup.Build = d.opts.Build
	d.setup.Single = d.mapping.kind == single
	d.setup.CgroupFD = d.cgroups != nil && d.cgroups.Version() == 2
	agent, err := sealedAgent()
	r := <-filter
	d.agent, d.setup.Seccomp, d.failed = agent, r.program, errors.Join(err, r.err)
}

// Isolation implements engine.Driver.
func (d *Driver) Isolation() engine.Isolation {
	i := engine.Isolation{Tier: Tier, Notes: d.notes}
	if d.cgroups != nil {
		i.MemoryEnforced, i.ProcessesEnforced = true, true
		for _, c := range d.cgroups.Missing {
			i.MemoryEnforced = i.MemoryEnforced && c != "memory"
			i.ProcessesEnforced = i.ProcessesEnforced && c != "pids"
		}
	}
	return i
}

// begin notes that a start runs, which Close is to end by cancel; the caller
// calls end. It is false when the driver is closed: a start that went on after
// Close would make again what Close removed.
func (d *Driver) begin(id string, cancel context.CancelFunc) (end func(), ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, false
	}
	d.starts[id] = cancel
	d.starting.Add(1)
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.starts, id)
		d.starting.Done()
	}, true
}

// Close implements engine.Driver. Starts that run are ended first.
func (d *Driver) Close() error {
	d.close.Do(func() {
		d.mu.Lock()
		d.closed = true
		for _, cancel := range d.starts {
			cancel()
		}
		d.mu.Unlock()
		d.cancel()
		<-d.ready
		d.starting.Wait()
		d.threads.Close()
		if d.agent != nil {
			d.agent.Close()
		}
		r, err := readRecord(d.record)
		if err == nil {
			err = r.cleanup(d.record)
		}
		d.closeErr = err
		d.janitor.close()
	})
	return d.closeErr
}
