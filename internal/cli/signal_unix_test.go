//go:build unix

package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"
)

func TestSignalStopsTheServer(t *testing.T) {
	// The test must survive a signal that comes before abx listens.
	mine := make(chan os.Signal, 1)
	signal.Notify(mine, syscall.SIGTERM)
	defer signal.Stop(mine)
	started := make(chan struct{})
	_, _, code, _ := start(t, func(ctx context.Context, o HostOptions) (*Host, error) {
		close(started)
		return fakeHost(ctx, o)
	})
	<-started // the host starts after abx listens to signals
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if c := ended(t, code); c != 0 {
		t.Errorf("exit code %d", c)
	}
}
