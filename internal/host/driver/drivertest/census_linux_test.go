package drivertest

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestCensusSees: what a driver may leave is found.
func TestCensusSees(t *testing.T) {
	c := takeCensus(true, true)
	if what := c.more(); what != "" {
		t.Fatalf("nothing changed: %s", what)
	}
	t.Run("descriptor", func(t *testing.T) {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		if what := c.more(); !strings.Contains(what, "descriptor is left: /dev/null") {
			t.Errorf("got %q", what)
		}
		f.Close()
	})
	t.Run("goroutine", func(t *testing.T) {
		c := takeCensus(false, true) // t.Run has one of its own
		stop := make(chan struct{})
		go func() { <-stop }()
		if what := c.more(); !strings.Contains(what, "goroutines") {
			t.Errorf("got %q", what)
		}
		close(stop)
		c.compare(t, "after its end")
	})
	t.Run("process", func(t *testing.T) {
		cmd := exec.Command("/bin/sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if what := c.more(); !strings.Contains(what, "is left") {
			t.Errorf("got %q", what)
		}
		cmd.Process.Kill()
		eventually(t, func() string { // a zombie is left, too
			if s, _ := readStatus(cmd.Process.Pid); !s.zombie {
				return "not dead"
			}
			return ""
		})
		if what := c.more(); !strings.Contains(what, "is left") {
			t.Errorf("zombie: got %q", what)
		}
		cmd.Wait()
	})
}

// TestCensusFindsInit: the first process of a sandbox is found and killed, and
// its namespace is remembered.
func TestCensusFindsInit(t *testing.T) {
	c := takeCensus(true, false)
	before := initPIDs(true)
	cmd := exec.Command("/bin/sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("no user namespaces here: %v", err)
	}
	observe(true)
	if pid := inObservedNamespace(); pid != cmd.Process.Pid {
		t.Errorf("observed %d, want %d", pid, cmd.Process.Pid)
	}
	if err := killNewInit(before); err != nil {
		t.Error(err)
		cmd.Process.Kill()
	}
	cmd.Wait()
	c.compare(t, "after its death")
}
