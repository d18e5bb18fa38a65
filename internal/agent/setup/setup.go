//go:build linux

// Package setup is what PID 1 of a sandbox does before it serves: it turns the
// fresh namespaces that the host cloned into a root made from an allow list,
// an identity without privileges over the host, limits, and a system call
// filter. It runs once, single-minded, and is not for use after the agent
// serves. Its invariant: when Apply returns without an error, nothing that the
// host did not list can be reached, and no later step gives anything back.
//
// The order matters and each step says why it stands where it does.
package setup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/account"
	"github.com/agent-sandbox/abx/internal/control"
)

// newRoot is where the root is built before it becomes "/". Any folder of the
// host serves: the mount on it is seen by this mount namespace alone.
const newRoot = "/tmp"

// StepError names the step that went wrong; the host makes advice of it.
type StepError struct {
	Step string
	Err  error
}

func (e *StepError) Error() string { return e.Step + ": " + e.Err.Error() }
func (e *StepError) Unwrap() error { return e.Err }

// Apply does everything. It must run on the process's first thread, locked to
// it, before any other goroutine does work that depends on identity or mounts.
// mapped waits until the host has mapped this process's ids; it returns the
// cgroups' tasks files to join, which the caller closes.
func Apply(s control.Setup, mapped func() (self []*os.File, err error)) error {
	b := &builder{setup: s, mapped: mapped}
	defer b.close()
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"close stray files", closeStray},
		{"host name", func() error { return unix.Sethostname([]byte(s.ID)) }},
		{"loopback interface", loopbackUp},
		// Before the identity changes: the owner of a private folder above an
		// interpreter can still look into it.
		{"open host folders", b.openTrees},
		{"join cgroup", b.joinCgroup},
		{"cgroup namespace", newCgroupNamespace},
		{"change identity", b.changeIdentity},
		{"mount root", b.mountRoot},
		{"fill root", b.fillRoot},
		{"mount scratch folder", b.mountScratch},
		{"show host folders", b.moveTrees},
		{"mount /proc", b.mountProc},
		{"mount /dev", b.mountDev},
		{"change root", changeRoot},
		{"limits", b.limits},
		{"drop privileges", b.dropPrivileges},
		{"system call filter", b.filter},
	} {
		if err := step.do(); err != nil {
			return &StepError{Step: step.name, Err: err}
		}
	}
	return nil
}

type builder struct {
	setup  control.Setup
	mapped func() ([]*os.File, error)
	trees  []int // O_PATH mount descriptors, -1 for an optional one not there
}

func (b *builder) close() {
	for _, fd := range b.trees {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	b.trees = nil
}

// closeStray closes what leaked into this process from its host beside the
// standard files and the control socket: descriptors without close-on-exec
// that some library in the host opened. Those of this process's own runtime
// have close-on-exec set.
func closeStray() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		var fd int
		if _, err := fmt.Sscan(e.Name(), &fd); err != nil || fd <= 2 {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	return nil
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req)
}

// joinCgroup waits for the host and then moves every thread of this process.
// Writing "0", which is the writer itself, takes none of the kernel's global
// locks: 10 ms less than being moved from outside.
func (b *builder) joinCgroup() error {
	self, err := b.mapped()
	if err != nil {
		return err
	}
	zero := []byte("0")
	for _, f := range self {
		_, _, errno := syscall.AllThreadsSyscall(unix.SYS_WRITE, f.Fd(), uintptr(unsafe.Pointer(&zero[0])), 1)
		runtime.KeepAlive(zero)
		if errno != 0 {
			return errno
		}
	}
	return nil
}

// newCgroupNamespace hides the path of the group that the host put us into. It
// comes after the move, so that our group is the root of what is seen. Each
// thread has a cgroup namespace of its own, hence all of them.
func newCgroupNamespace() error {
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

func (b *builder) openTrees() error {
	for _, t := range b.setup.Trees {
		fd, err := openTree(t)
		if err != nil && !t.Optional {
			return fmt.Errorf("%s: %w", t.Source, err)
		}
		b.trees = append(b.trees, fd)
	}
	return nil
}

// openTree clones the mounts at a path of the host, detached, and takes from
// them what a sandbox must not have.
func openTree(t control.Tree) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, t.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_RDONLY}
	if t.Device {
		attr.Attr_set = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("make read-only: %w", err)
	}
	return fd, nil
}

// changeIdentity takes the agent's mapped identity; an unmapped one could not
// make files. Capabilities stay across the change, and from here on a uid of 0
// gives none, in every child. For making the root, this thread alone makes
// files as root inside.
func (b *builder) changeIdentity() error {
	const bits = secNoRoot | secNoRootLocked | secNoSetuidFixup | secNoSetuidFixupLocked |
		secNoAmbient | secNoAmbientLocked
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, bits, 0); errno != 0 {
		return fmt.Errorf("secure bits: %w", errno)
	}
	if b.setup.Single {
		return setIDs(account.UserID, account.UserID)
	}
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if err := setIDs(account.AgentID, account.AgentID); err != nil {
		return err
	}
	return fileIDs(0)
}

// fileIDs sets the ids that this thread, and no other, makes files with.
func fileIDs(id int) error {
	// Both calls answer the id as it was, so a second one tells if it changed.
	_, _ = unix.SetfsgidRetGid(id)
	_, _ = unix.SetfsuidRetUid(id)
	gid, _ := unix.SetfsgidRetGid(-1)
	uid, _ := unix.SetfsuidRetUid(-1)
	if gid != id || uid != id {
		return fmt.Errorf("file system ids are %d:%d, want %d", uid, gid, id)
	}
	return nil
}

// From linux/securebits.h.
const (
	secNoRoot              = 1 << 0
	secNoRootLocked        = 1 << 1
	secNoSetuidFixup       = 1 << 2
	secNoSetuidFixupLocked = 1 << 3
	secNoAmbient           = 1 << 6
	secNoAmbientLocked     = 1 << 7
)

func setIDs(uid, gid int) error {
	if err := syscall.Setresgid(gid, gid, gid); err != nil {
		return fmt.Errorf("setresgid %d: %w", gid, err)
	}
	if err := syscall.Setresuid(uid, uid, uid); err != nil {
		return fmt.Errorf("setresuid %d: %w", uid, err)
	}
	return nil
}

// mountRoot mounts the one tmpfs that all writable files live in, so that one
// size limits them all.
func (b *builder) mountRoot() error {
	options := "mode=0755"
	if n := b.setup.DiskBytes; n > 0 {
		// A file takes a page at least; this many inodes cannot be the bottleneck.
		options += fmt.Sprintf(",size=%d,nr_inodes=%d", n, max(n/4096, 1<<14))
	}
	return unix.Mount("abx", newRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
}

func (b *builder) fillRoot() error {
	unix.Umask(0)
	for _, d := range b.setup.Dirs {
		if err := b.makeDir(d); err != nil {
			return err
		}
	}
	for _, l := range b.setup.Links {
		if err := os.Symlink(l.Target, newRoot+l.Path); err != nil {
			return err
		}
	}
	unix.Umask(0o022)
	for _, t := range b.setup.Texts {
		if err := os.WriteFile(newRoot+t.Path, []byte(t.Content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// scratchBytes holds the kernels' drivers and the cells that are handed over.
const scratchBytes = 16 << 20

// mountScratch gives the agent a disk of its own, so that it goes on working
// when the workload has filled the other.
func (b *builder) mountScratch() error {
	if b.setup.Scratch == "" {
		return nil
	}
	path := newRoot + b.setup.Scratch
	options := fmt.Sprintf("mode=0755,size=%d,nr_inodes=4096", scratchBytes)
	if err := unix.Mount("abx", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return err
	}
	if b.setup.Single {
		return nil
	}
	return unix.Chown(path, account.AgentID, account.AgentID)
}

func (b *builder) makeDir(d control.Dir) error {
	path := newRoot + d.Path
	if err := unix.Mkdir(path, d.Mode); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("mkdir %s: %w", d.Path, err)
	}
	if b.setup.Single || d.UID == 0 && d.GID == 0 {
		return nil
	}
	if err := unix.Chown(path, d.UID, d.GID); err != nil {
		return fmt.Errorf("chown %s: %w", d.Path, err)
	}
	return nil
}

func (b *builder) moveTrees() error {
	for i, t := range b.setup.Trees {
		fd := b.trees[i]
		if fd < 0 {
			continue
		}
		target := newRoot + t.Target
		if err := mountPoint(fd, target); err != nil {
			return err
		}
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("%s: %w", t.Target, err)
		}
	}
	return nil
}

// mountPoint makes a folder or an empty file at target, whichever fd is.
func mountPoint(fd int, target string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return os.MkdirAll(target, 0o755)
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// mountProc mounts a /proc of our own PID namespace. The kernel allows it only
// while the host's, unmasked, is still visible, so it comes before the change
// of root. What tells of the host or of its kernel's insides is hidden.
func (b *builder) mountProc() error {
	proc := newRoot + "/proc"
	if err := unix.Mount("proc", proc, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	for _, m := range b.setup.Masks {
		if err := hide(newRoot + m); err != nil {
			return fmt.Errorf("hide %s: %w", m, err)
		}
	}
	for _, c := range sysctls {
		if err := os.WriteFile(proc+"/sys/"+c.name, []byte(c.value), 0); err != nil && !c.optional {
			return err
		}
	}
	sys := proc + "/sys"
	if err := unix.Mount(sys, sys, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("/proc/sys: %w", err)
	}
	const readOnly = unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("", sys, "", readOnly, ""); err != nil {
		return fmt.Errorf("/proc/sys read-only: %w", err)
	}
	return nil
}

// sysctls of our own namespaces that are set while they still can be.
var sysctls = []struct {
	name, value string
	optional    bool // an older kernel may not have it per namespace
}{
	// No namespace can be made inside, whatever the call: a second lock beside
	// the system call filter.
	{"user/max_user_namespaces", "0", false},
	// Watches count against the host's user too, who has 128 instances usually.
	// The agent itself needs one.
	{"user/max_inotify_instances", "16", true},
	{"user/max_inotify_watches", "16384", true},
	// What sockets hold is the whole machine's: with the usual 4 to 6 MiB each, a
	// few hundred that are never read would starve the host's connections.
	{"net/ipv4/tcp_rmem", "4096 65536 262144", true},
	{"net/ipv4/tcp_wmem", "4096 65536 262144", true},
}

func hide(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // not in this kernel
	}
	if err != nil {
		return err
	}
	if st.IsDir() {
		return unix.Mount("none", path, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,nr_inodes=2,mode=0555")
	}
	return unix.Mount(newRoot+"/dev/null", path, "", unix.MS_BIND, "")
}

// mountDev adds terminals of our own to the device nodes that came as trees.
func (b *builder) mountDev() error {
	options := "newinstance,ptmxmode=0666,mode=620"
	if !b.setup.Single {
		options += ",gid=5"
	}
	return unix.Mount("devpts", newRoot+"/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, options)
}

// changeRoot makes the new root "/" and lets go of the host's.
func changeRoot() error {
	if err := unix.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	// The old root now lies over the new one, at the same place.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the host's root: %w", err)
	}
	return unix.Chdir("/")
}

func (b *builder) limits() error {
	set := func(name string, resource int, n int64) error {
		if n <= 0 {
			return nil
		}
		v := uint64(n)
		// What this user may not have at all, a sandbox need not either.
		var now syscall.Rlimit
		if err := syscall.Getrlimit(resource, &now); err == nil {
			v = min(v, now.Max)
		}
		// syscall's, not unix's: it also stops the runtime from giving children
		// the limit that this process was started with.
		if err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: v, Max: v}); err != nil {
			return fmt.Errorf("%s %d: %w", name, n, err)
		}
		return nil
	}
	files := b.setup.OpenFiles
	if b.setup.Single {
		// Descriptors on their way through sockets are counted by user id and held
		// against the sender's limit: with the workload's own, another sandbox of
		// the same user could keep us from handing a connection to the host. The
		// process table gives the workload its limit.
		files *= 16
	}
	return errors.Join(
		set("open files", unix.RLIMIT_NOFILE, files),
		set("data", unix.RLIMIT_DATA, b.setup.DataBytes),
		set("processes", unix.RLIMIT_NPROC, b.setup.Processes),
		// Not 0: a core_pattern that is a pipe, to a crash reporter that the kernel
		// starts outside of all namespaces, ignores 0 and heeds 1.
		set("core", unix.RLIMIT_CORE, 1),
		// The kernel counts these against whoever made the user namespace, the
		// host's user: a sandbox could use up what that has.
		set("pending signals", unix.RLIMIT_SIGPENDING, 1024),
		set("message queues", unix.RLIMIT_MSGQUEUE, 64<<10),
		set("locked memory", unix.RLIMIT_MEMLOCK, 8<<20),
	)
}

// Capabilities that the agent keeps, in its own user namespace: to start
// processes as other users, to write their files, and to end them.
const keep = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_CHOWN |
	1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_KILL

func (b *builder) dropPrivileges() error {
	if !b.setup.Single {
		if err := fileIDs(account.AgentID); err != nil {
			return err
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: keep, Permitted: keep}}
	if err := capsetAll(&header, &data); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	// On this thread; the filter brings it to the others.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	// After the last change of identity: both are undone by one.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("dumpable: %w", err)
	}
	// A thread's own, and this one never ends.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("parent-death signal: %w", err)
	}
	return nil
}
