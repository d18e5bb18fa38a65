//go:build linux

package setup

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// capsetAll sets capabilities on every thread: they are a thread's own.
func capsetAll(header *unix.CapUserHeader, data *[2]unix.CapUserData) error {
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET,
		uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(data)), 0)
	runtime.KeepAlive(header)
	runtime.KeepAlive(data)
	if errno != 0 {
		return errno
	}
	return nil
}

// filter installs the host's program on all threads; children inherit it.
func (b *builder) filter() error {
	raw := b.setup.Seccomp
	const size = int(unsafe.Sizeof(unix.SockFilter{}))
	if len(raw) == 0 || len(raw)%size != 0 {
		return errors.New("the host sent no valid program")
	}
	// Copied: raw's bytes need not be aligned as the kernel's struct is.
	program := make([]unix.SockFilter, len(raw)/size)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&program[0])), len(raw)), raw)
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	tid, _, errno := syscall.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return errno
	}
	if tid != 0 {
		return fmt.Errorf("thread %d could not take it", tid)
	}
	return nil
}
