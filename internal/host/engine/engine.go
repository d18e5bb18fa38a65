// Package engine keeps the life of every sandbox of a host: it makes them over
// one Driver, hands a started one its identity, lists them, moves their
// deadline and ends them, and it keeps a few warm ones waiting. It knows no
// wire but the agent's POST /init, and no kernel.
//
// Its one invariant: a sandbox is in the list or it is on its way to nothing.
// What failed half way, expired, died or was killed is closed, and its place is
// free again only when the driver said that nothing of it is left.
package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options of an Engine. The zero value works, without a pool.
type Options struct {
	// Templates that exist. Default: TemplateBase and TemplateCodeInterpreter.
	Templates []string
	// Limits of every sandbox, as they are: a zero means that none is set. See
	// DefaultLimits.
	Limits Limits
	// MaxSandboxes at once, those that start and end included. Default
	// DefaultSandboxes.
	MaxSandboxes int
	// MaxLifetime of one sandbox. Default MaxLifetime.
	MaxLifetime time.Duration
	// Starts at once; the others queue. Default twice the processors.
	Starts int
	// StartTimeout bounds one start, queueing not counted. Default 30 s.
	StartTimeout time.Duration
	// CloseTimeout bounds Close. Default 30 s.
	CloseTimeout time.Duration

	// PoolSize is how many sandboxes of PoolTemplate wait warmed; 0 for none.
	PoolSize int
	// PoolTemplate defaults to TemplateCodeInterpreter if it is in Templates,
	// else to the first of them.
	PoolTemplate string
	// RefillDelay is how long no create must have run before the pool is
	// filled. Default 100 ms.
	RefillDelay time.Duration

	// FreeMemory tells how much memory the host could still give. Default: ask
	// the kernel. ok is false when it cannot be told; then nothing is refused.
	FreeMemory func() (bytes int64, ok bool)
	// MinFreeMemory below which creates are refused. Default 128 MiB.
	MinFreeMemory int64
	// PoolFreeMemory below which the pool is kept empty. Default 768 MiB.
	PoolFreeMemory int64

	// Logger defaults to none.
	Logger *slog.Logger
}

// DefaultLimits are the limits of a sandbox when nothing else is set. On a
// small machine memory is half of what there is, and the disk, which lies in
// memory, half of that.
func DefaultLimits() Limits {
	l := Limits{
		MemoryBytes: DefaultMemoryBytes,
		DiskBytes:   DefaultDiskBytes,
		Processes:   DefaultProcesses,
		OpenFiles:   DefaultOpenFiles,
	}
	if all, ok := allMemory(); ok {
		l.MemoryBytes = min(l.MemoryBytes, all/2)
	}
	l.DiskBytes = min(l.DiskBytes, l.MemoryBytes/2)
	return l
}

// The least that a sandbox works with: its agent, a shell and Python.
const (
	minMemory    = 32 << 20
	minDisk      = 1 << 20
	minProcesses = 16
	minOpenFiles = 64
)

// Given returns l with the limits that are set in g (not 0). A disk that is
// not given shrinks with the memory that it lies in; one that is given and does
// not fit there is ErrInvalid, as is a limit below what a sandbox needs.
func (l Limits) Given(g Limits) (Limits, error) {
	if g.MemoryBytes > 0 {
		l.MemoryBytes = g.MemoryBytes
		l.DiskBytes = min(l.DiskBytes, l.MemoryBytes/2)
	}
	if g.DiskBytes > 0 {
		l.DiskBytes = g.DiskBytes
	}
	if g.Processes > 0 {
		l.Processes = g.Processes
	}
	if g.OpenFiles > 0 {
		l.OpenFiles = g.OpenFiles
	}
	for _, c := range []struct {
		name        string
		value, need int64
	}{
		{"ABX_LIMIT_MEMORY", l.MemoryBytes, minMemory},
		{"ABX_LIMIT_DISK", l.DiskBytes, minDisk},
		{"ABX_LIMIT_PROCESSES", l.Processes, minProcesses},
		{"ABX_LIMIT_OPEN_FILES", l.OpenFiles, minOpenFiles},
	} {
		if c.value < c.need {
			return l, Errorf(ErrInvalid, "%s is %d: a sandbox needs at least %d", c.name, c.value, c.need)
		}
	}
	if l.DiskBytes >= l.MemoryBytes {
		return l, Errorf(ErrInvalid, "the disk limit (%d bytes) must be below the memory limit (%d bytes), since the disk lies in memory: set ABX_LIMIT_DISK lower or ABX_LIMIT_MEMORY higher",
			l.DiskBytes, l.MemoryBytes)
	}
	return l, nil
}

// Engine keeps the sandboxes of one driver. Safe for concurrent use.
type Engine struct {
	driver Driver
	opts   Options
	log    *slog.Logger
	starts chan struct{} // a token in it is one running start
	stop   chan struct{} // closed by Close
	wake   chan struct{} // the pool should look again
	wg     sync.WaitGroup

	mu       sync.Mutex
	live     map[string]*member
	creates  map[*create]struct{}
	closing  int // ended, not yet gone
	graves   graves
	pool     pool
	closed   bool
	finished chan struct{} // closed when Close is over
	closeErr error
}

// New makes an Engine over d, which stays the caller's to close, after the
// Engine. The caller closes the Engine.
func New(d Driver, opts Options) (*Engine, error) {
	if d == nil {
		return nil, errors.New("engine without a driver")
	}
	if err := opts.complete(); err != nil {
		return nil, err
	}
	e := &Engine{
		driver:   d,
		opts:     opts,
		log:      opts.Logger,
		starts:   make(chan struct{}, opts.Starts),
		stop:     make(chan struct{}),
		wake:     make(chan struct{}, 1),
		live:     map[string]*member{},
		creates:  map[*create]struct{}{},
		finished: make(chan struct{}),
	}
	if opts.PoolSize > 0 {
		e.wg.Add(1)
		go e.keepPool()
	}
	return e, nil
}

func (o *Options) complete() error {
	if len(o.Templates) == 0 {
		o.Templates = []string{TemplateBase, TemplateCodeInterpreter}
	}
	if o.PoolTemplate == "" {
		o.PoolTemplate = o.Templates[0]
		if slices.Contains(o.Templates, TemplateCodeInterpreter) {
			o.PoolTemplate = TemplateCodeInterpreter
		}
	}
	if !slices.Contains(o.Templates, o.PoolTemplate) {
		return fmt.Errorf("pool template %q is none of %s", o.PoolTemplate, strings.Join(o.Templates, ", "))
	}
	if o.PoolSize < 0 || o.MaxSandboxes < 0 || o.Starts < 0 || o.MaxLifetime < 0 {
		return errors.New("pool size, sandboxes, starts and lifetime cannot be negative")
	}
	setDefault(&o.MaxSandboxes, DefaultSandboxes)
	setDefault(&o.MaxLifetime, MaxLifetime)
	setDefault(&o.Starts, 2*runtime.GOMAXPROCS(0))
	setDefault(&o.StartTimeout, 30*time.Second)
	setDefault(&o.CloseTimeout, 30*time.Second)
	setDefault(&o.RefillDelay, 100*time.Millisecond)
	setDefault(&o.MinFreeMemory, 128<<20)
	setDefault(&o.PoolFreeMemory, 768<<20)
	if o.FreeMemory == nil {
		o.FreeMemory = freeMemory
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Info describes one sandbox. It is the caller's own copy.
type Info struct {
	ID           string
	Template     string
	Metadata     map[string]string
	AccessToken  string // of the agent; empty when it is open
	TrafficToken string // of other ports; empty when they are open
	MaskHost     string // Host that its own servers are shown; empty for the client's
	StartedAt    time.Time
	EndAt        time.Time
	Limits       Limits
}

// Isolation says what sandboxes of this host are kept in.
func (e *Engine) Isolation() Isolation { return e.driver.Isolation() }

// MaxLifetime is the longest that a sandbox may live.
func (e *Engine) MaxLifetime() time.Duration { return e.opts.MaxLifetime }

// Templates lists the names that create takes.
func (e *Engine) Templates() []string { return slices.Clone(e.opts.Templates) }

// Get describes a running sandbox. For one that is no more the error tells
// why, for a while: it is an ErrExpired, an ErrLost or an ErrNotFound.
func (e *Engine) Get(id string) (Info, error) {
	m, err := e.member(id)
	if err != nil {
		return Info{}, err
	}
	return m.describe(), nil
}

// Find is Get with the driver's sandbox, to dial into. The caller must not
// close it.
func (e *Engine) Find(id string) (Sandbox, Info, error) {
	m, err := e.member(id)
	if err != nil {
		return nil, Info{}, err
	}
	return m.box, m.describe(), nil
}

// List describes all running sandboxes, the newest first.
func (e *Engine) List() []Info {
	e.mu.Lock()
	members := slices.Collect(maps.Values(e.live))
	e.mu.Unlock()
	infos := make([]Info, len(members))
	for i, m := range members {
		infos[i] = m.describe()
	}
	slices.SortFunc(infos, func(a, b Info) int {
		if c := b.StartedAt.Compare(a.StartedAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return infos
}

// Len is how many sandboxes run or start, those of the pool not counted.
func (e *Engine) Len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.live) + len(e.creates)
}

func (e *Engine) member(id string) (*member, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if m := e.live[id]; m != nil {
		return m, nil
	}
	return nil, e.graves.tell(id, time.Now())
}

// Close kills all sandboxes, in parallel, and returns when they are gone or
// CloseTimeout is over. What still starts is cancelled. Safe to call twice.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		<-e.finished
		return e.closeErr
	}
	e.closed = true
	close(e.stop)
	for c := range e.creates {
		c.cancel(errStopping)
	}
	members := slices.Collect(maps.Values(e.live))
	waiting := e.pool.take()
	e.mu.Unlock()

	all := make(chan error, 1)
	go func() {
		all <- e.closeAll(members, waiting)
	}()
	guard := time.NewTimer(e.opts.CloseTimeout)
	defer guard.Stop()
	select {
	case e.closeErr = <-all:
	case <-guard.C:
		e.closeErr = fmt.Errorf("sandboxes not gone after %v", e.opts.CloseTimeout)
	}
	close(e.finished)
	return e.closeErr
}

// closeAll ends members and pool entries, a bounded number at once, and waits
// for everything that the engine started.
func (e *Engine) closeAll(members, waiting []*member) error {
	var g errgroup.Group
	g.SetLimit(4 * e.opts.Starts)
	for _, m := range members {
		g.Go(func() error {
			e.bury(m, errKilled)
			return e.dispose(m)
		})
	}
	for _, m := range waiting {
		g.Go(func() error { return e.dispose(m) })
	}
	err := g.Wait()
	e.wg.Wait()
	return err
}
