package reexec

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Inherited returns the n-th file that Start passed, close-on-exec from now on.
// The caller closes it.
func Inherited(n int, name string) (*os.File, error) {
	fd := 3 + n
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("inherited file %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
