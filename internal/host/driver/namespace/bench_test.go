//go:build linux

package namespace

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/agent-sandbox/abx/internal/host/engine"
)

// BenchmarkCold is a sandbox made, its first command, and its end.
func BenchmarkCold(b *testing.B) {
	d := testDriver(b, nil)
	for i := 0; b.Loop(); i++ {
		s, err := d.Start(b.Context(), engine.Spec{ID: fmt.Sprintf("ibench%d", i), Limits: smallLimits})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := tryRun(b.Context(), s, "user", "true"); err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkColdBubblewrap is the same by bwrap, the peer to compare with.
func BenchmarkColdBubblewrap(b *testing.B) {
	if _, err := exec.LookPath("bwrap"); err != nil {
		b.Skip("bwrap is not installed")
	}
	for b.Loop() {
		if out, err := exec.Command("bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin",
			"--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev",
			"--tmpfs", "/tmp", "sh", "-c", "true").CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
}

// BenchmarkTrue is fork and exec alone.
func BenchmarkTrue(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}
