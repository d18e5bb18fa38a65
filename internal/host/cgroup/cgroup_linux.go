package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// agentMemory is what a group may use beyond Limits.MemoryBytes, so that a
// workload at its limit leaves its supervisor room.
const agentMemory = 64 << 20

// minTCP is the least that TCP sockets of a group may hold, in bytes.
const minTCP = 16 << 20

// Root is a place below which this process can make groups. It holds no
// resources. Safe for concurrent use.
type Root struct {
	v2      string            // folder of the unified hierarchy, "" when version 1 is used
	v1      map[string]string // controller to folder
	Missing []string          // controllers wanted but not to be had: memory, pids
}

// Detect finds the groups that this process may make. It makes one to try, and
// removes it. When there is none the error wraps ErrNone.
func Detect() (*Root, error) {
	mounts, err := readMounts("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	own, err := readOwn("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	if r, err := detectV2(mounts, own); err == nil {
		return r, nil
	}
	r := &Root{v1: map[string]string{}}
	var why error
	for _, c := range []string{"memory", "pids"} {
		dir, err := v1Folder(mounts, own, c)
		if err != nil {
			r.Missing = append(r.Missing, c)
			why = errors.Join(why, err)
			continue
		}
		r.v1[c] = dir
	}
	if len(r.v1) == 0 {
		return nil, fmt.Errorf("%w: %w", ErrNone, why)
	}
	return r, nil
}

type mount struct{ kind, options, root, path string }

func readMounts(path string) ([]mount, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var ms []mount
	for s := bufio.NewScanner(f); s.Scan(); {
		left, right, ok := strings.Cut(s.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if ok && len(l) >= 5 && len(r) >= 3 && strings.HasPrefix(r[0], "cgroup") {
			ms = append(ms, mount{kind: r[0], options: r[2], root: l[3], path: l[4]})
		}
	}
	return ms, nil
}

// readOwn returns the group of this process by controller; "" is version 2.
func readOwn(path string) (map[string]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	own := map[string]string{}
	for line := range strings.Lines(string(b)) {
		p := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(p) != 3 {
			continue
		}
		for _, c := range strings.Split(p[1], ",") {
			own[c] = p[2]
		}
	}
	return own, nil
}

// below maps a group's path to the file system, for a mount that shows the
// hierarchy from m.root on (in a container it is not "/").
func (m mount) below(group string) string {
	rel, err := filepath.Rel(m.root, group)
	if err != nil || strings.HasPrefix(rel, "..") {
		return m.path
	}
	return filepath.Join(m.path, rel)
}

func v1Folder(mounts []mount, own map[string]string, controller string) (string, error) {
	for _, m := range mounts {
		if m.kind != "cgroup" || !slices.Contains(strings.Split(m.options, ","), controller) {
			continue
		}
		dir := m.below(own[controller])
		if err := try(dir); err != nil {
			return "", err
		}
		return dir, nil
	}
	return "", fmt.Errorf("no %s controller is mounted", controller)
}

// detectV2 looks upwards from our own group for one that may have children
// with controllers: a group with processes in it may not (unless it is the
// root of all).
func detectV2(mounts []mount, own map[string]string) (*Root, error) {
	for _, m := range mounts {
		if m.kind != "cgroup2" {
			continue
		}
		for dir := m.below(own[""]); strings.HasPrefix(dir, m.path); dir = filepath.Dir(dir) {
			enabled := words(filepath.Join(dir, "cgroup.subtree_control"))
			if !slices.Contains(enabled, "memory") {
				if !slices.Contains(words(filepath.Join(dir, "cgroup.controllers")), "memory") {
					continue
				}
				if handOn(dir) != nil {
					continue
				}
			}
			if try(dir) == nil {
				return &Root{v2: dir}, nil
			}
		}
	}
	return nil, errors.New("no unified hierarchy with a memory controller to use")
}

// handOn gives the children of dir the controllers that it has of those we use.
func handOn(dir string) error {
	have := words(filepath.Join(dir, "cgroup.controllers"))
	for _, c := range []string{"memory", "pids"} {
		if !slices.Contains(have, c) {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
			return err
		}
	}
	return nil
}

func words(path string) []string {
	b, _ := os.ReadFile(path)
	return strings.Fields(string(b))
}

func try(dir string) error {
	d, err := os.MkdirTemp(dir, "abx-try-")
	if err != nil {
		return err
	}
	return os.Remove(d)
}

// Version is 1 or 2.
func (r *Root) Version() int {
	if r.v2 != "" {
		return 2
	}
	return 1
}

// Folders returns the folders in which groups of this name stand, for a record
// by which another process can Remove them.
func (r *Root) Folders(name string) []string {
	if r.v2 != "" {
		return []string{filepath.Join(r.v2, name)}
	}
	var out []string
	for _, dir := range r.v1 {
		out = append(out, filepath.Join(dir, name))
	}
	slices.Sort(out)
	return out
}

// Group is one control group with a part "work" in it whose processes and
// memory are limited apart from whoever supervises them.
type Group struct {
	root *Root
	name string
	uid  int
}

// Create makes the group name (which may hold slashes). uid, if not negative,
// is given the right to place processes into the work part.
func (r *Root) Create(name string, l Limits, uid int) (g *Group, err error) {
	g = &Group{root: r, name: name, uid: uid}
	defer func() {
		if err != nil {
			err = fmt.Errorf("cgroup %s: %w", name, errors.Join(err, g.Remove()))
		}
	}()
	if r.v2 != "" {
		return g, g.createV2(l)
	}
	return g, g.createV1(l)
}

func (g *Group) createV1(l Limits) error {
	if dir, ok := g.dir("memory"); ok {
		if err := os.MkdirAll(filepath.Join(dir, "work"), 0o755); err != nil {
			return err
		}
		if l.MemoryBytes > 0 {
			if err := limitMemoryV1(dir, l.MemoryBytes+agentMemory); err != nil {
				return err
			}
			if err := limitMemoryV1(filepath.Join(dir, "work"), l.MemoryBytes); err != nil {
				return err
			}
			// Version 1 counts what TCP sockets hold apart, and only once it is
			// limited; a kernel may not have it.
			err := write(filepath.Join(dir, "work", "memory.kmem.tcp.limit_in_bytes"), max(l.MemoryBytes/8, minTCP))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	if dir, ok := g.dir("pids"); ok {
		if err := os.MkdirAll(filepath.Join(dir, "work"), 0o755); err != nil {
			return err
		}
		if l.Processes > 0 {
			return write(filepath.Join(dir, "work", "pids.max"), l.Processes)
		}
	}
	return nil
}

func limitMemoryV1(dir string, n int64) error {
	if err := write(filepath.Join(dir, "memory.limit_in_bytes"), n); err != nil {
		return err
	}
	err := write(filepath.Join(dir, "memory.memsw.limit_in_bytes"), n)
	if errors.Is(err, fs.ErrNotExist) { // no swap accounting in this kernel
		return nil
	}
	return err
}

func (g *Group) createV2(l Limits) error {
	dir := filepath.Join(g.root.v2, g.name)
	for _, d := range []string{filepath.Join(dir, "agent"), filepath.Join(dir, "work")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	// Each level below the root hands the controllers on.
	for d := filepath.Dir(dir); strings.HasPrefix(d, g.root.v2) && d != g.root.v2; d = filepath.Dir(d) {
		if err := handOn(d); err != nil {
			return err
		}
	}
	if err := handOn(dir); err != nil {
		return err
	}
	if l.MemoryBytes > 0 {
		for d, n := range map[string]int64{dir: l.MemoryBytes + agentMemory, filepath.Join(dir, "work"): l.MemoryBytes} {
			if err := write(filepath.Join(d, "memory.max"), n); err != nil {
				return err
			}
			if err := write(filepath.Join(d, "memory.swap.max"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	if l.Processes > 0 {
		if err := write(filepath.Join(dir, "work", "pids.max"), l.Processes); err != nil {
			return err
		}
	}
	if g.uid < 0 {
		return nil
	}
	// Cloning into a group asks for the right to write both ends' files.
	for _, f := range []string{"work", "work/cgroup.procs", "agent/cgroup.procs", "cgroup.procs"} {
		if err := os.Chown(filepath.Join(dir, f), g.uid, -1); err != nil {
			return err
		}
	}
	return nil
}

func write(path string, n int64) error {
	return os.WriteFile(path, []byte(strconv.FormatInt(n, 10)), 0)
}

func (g *Group) dir(controller string) (string, bool) {
	d, ok := g.root.v1[controller]
	return filepath.Join(d, g.name), ok
}

// Supervisor opens what puts a supervisor into the group, outside its work
// part. With version 1 these are tasks files: each thread of the supervisor
// writes "0" to each of them, which, unlike moving a process from outside, waits
// for nobody. With version 2 it is the folder, to clone the supervisor into. The
// caller closes them.
func (g *Group) Supervisor() ([]*os.File, error) {
	if g.root.v2 != "" {
		f, err := os.Open(filepath.Join(g.root.v2, g.name, "agent"))
		return []*os.File{f}, err
	}
	return g.tasks("tasks")
}

// Work opens what a supervisor needs to start processes in the work part: with
// version 1 the tasks files, to each of which a thread writes "0" to join; with
// version 2 the folder, to clone into. The caller closes them.
func (g *Group) Work() ([]*os.File, error) {
	if g.root.v2 != "" {
		f, err := os.Open(filepath.Join(g.root.v2, g.name, "work"))
		return []*os.File{f}, err
	}
	return g.tasks("work/tasks")
}

func (g *Group) tasks(name string) ([]*os.File, error) {
	var files []*os.File
	for c := range g.root.v1 {
		dir, _ := g.dir(c)
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// Counters opens the files that count what limits refused, and the most memory
// that the whole group used, files included; nil for one that this kernel does
// not have. The caller closes them.
func (g *Group) Counters() (oom, pids, peak *os.File) {
	if g.root.v2 != "" {
		dir := filepath.Join(g.root.v2, g.name)
		return open(dir, "work/memory.events"), open(dir, "work/pids.events"), open(dir, "memory.peak")
	}
	if dir, ok := g.dir("memory"); ok {
		oom, peak = open(dir, "work/memory.oom_control"), open(dir, "memory.max_usage_in_bytes")
	}
	if dir, ok := g.dir("pids"); ok {
		pids = open(dir, "work/pids.events")
	}
	return oom, pids, peak
}

func open(dir, name string) *os.File {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil
	}
	return f
}

// Remove kills every process in the group and removes it. A group that is not
// there is removed already.
func (g *Group) Remove() error {
	return Remove(g.root.Folders(g.name))
}

// Remove kills every process in the groups with these folders, and removes
// them. The caller vouches that the folders are its own.
func Remove(folders []string) error {
	var err error
	for _, dir := range folders {
		err = errors.Join(err, removeTree(dir))
	}
	return err
}

// removal bounds how long a group may take to empty after its processes were
// killed; the kernel reaps them in milliseconds.
const removal = 5 * time.Second

func removeTree(dir string) error {
	wait := time.Millisecond
	for end := time.Now().Add(removal); ; {
		err := removeOnce(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
		time.Sleep(wait)
		wait = min(2*wait, 50*time.Millisecond)
	}
}

func removeOnce(dir string) error {
	if err := unix.Rmdir(dir); err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeOnce(filepath.Join(dir, e.Name())))
		}
	}
	kill(dir)
	return errors.Join(err, os.Remove(dir))
}

func kill(dir string) {
	if os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) == nil {
		return
	}
	for _, w := range words(filepath.Join(dir, "cgroup.procs")) {
		if pid, err := strconv.Atoi(w); err == nil && pid > 1 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}
