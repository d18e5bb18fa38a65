//go:build linux

package filesystem

import (
	"bytes"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// File system types that x/sys/unix has no names for.
const (
	configfsMagic = 0x62656570
	fusectlMagic  = 0x65735543
	fuseMagic     = 0x65735546
	cifsMagic     = 0xff534d42
	smbMagic      = 0x517b
	smb2Magic     = 0xfe534d42
)

// kernelFS reports whether files of this type are a face of the kernel. Their
// sizes mean nothing, and writing one is an order to the kernel, which is for a
// command to give, not for an upload.
func kernelFS(magic int64) bool {
	switch magic {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
		unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC,
		unix.SELINUX_MAGIC, unix.PSTOREFS_MAGIC, unix.EFIVARFS_MAGIC, unix.BINFMTFS_MAGIC,
		unix.NSFS_MAGIC, unix.DEVPTS_SUPER_MAGIC, configfsMagic, fusectlMagic:
		return true
	}
	return false
}

// networkFS reports whether changes may happen elsewhere, where inotify does
// not see them.
func networkFS(magic int64) bool {
	switch magic {
	case unix.NFS_SUPER_MAGIC, cifsMagic, smbMagic, smb2Magic, fuseMagic:
		return true
	}
	return false
}

// readOnlyKernel is the refusal to change anything on a kernel file system.
func readOnlyKernel(p string) error {
	return faultf(kindDenied, "path %s is on a kernel file system such as /proc or /sys; it can be read, not changed", show(p))
}

// guardProcess refuses dir, a directory of procfs, when it belongs to process
// pid or one of its threads. The check is on the open directory, so that no
// reuse of a number can fool it.
func guardProcess(dir, pid int) error {
	fd, err := openat(dir, "status", unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return nil // no process's directory, or its process is over
	}
	refused := faultf(kindDenied, "the sandbox agent's own process is not shown")
	if err != nil {
		return refused
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	n, err := again(func() (int, error) { return unix.Read(fd, buf) })
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return refused
	}
	for line := range bytes.Lines(buf[:n]) {
		if v, ok := bytes.CutPrefix(line, []byte("Tgid:")); ok {
			if tgid, err := strconv.Atoi(string(bytes.TrimSpace(v))); err != nil || tgid == pid {
				return refused
			}
		}
	}
	return nil
}

// again repeats a system call that a signal interrupted.
func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// openat is openat(2), the descriptor closed on exec.
func openat(dir int, name string, flags int, mode uint32) (int, error) {
	return again(func() (int, error) { return unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode) })
}
