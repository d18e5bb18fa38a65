package namespace

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/host/engine"
)

// sealedAgent returns a memory file with the agent's program that nobody, a
// process in a sandbox least of all, can write any more.
func sealedAgent() (*os.File, error) {
	var source io.Reader = bytes.NewReader(agentBinary)
	if len(agentBinary) == 0 {
		if builtWithCgo {
			return nil, fmt.Errorf("%w: this abx carries no agent and was built with cgo, so it cannot be one itself; "+
				"build it with: make build (or CGO_ENABLED=0 go install)", engine.ErrUnsupported)
		}
		self, err := os.Open("/proc/self/exe")
		if err != nil {
			return nil, fmt.Errorf("agent program: %w", err)
		}
		defer self.Close()
		source = self
	}
	fd, err := unix.MemfdCreate("abx-agent", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if err == unix.EINVAL { // kernels before 6.3 do not know MFD_EXEC
		fd, err = unix.MemfdCreate("abx-agent", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("agent program: memfd_create: %w (is the sysctl vm.memfd_noexec set?)", err)
	}
	f := os.NewFile(uintptr(fd), "abx-agent")
	if _, err := io.Copy(f, source); err != nil {
		f.Close()
		return nil, fmt.Errorf("agent program: %w", err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal the agent program: %w", err)
	}
	return f, nil
}
