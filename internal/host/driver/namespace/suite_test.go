//go:build linux

package namespace

import (
	"testing"

	"github.com/agent-sandbox/abx/internal/host/driver/drivertest"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

func TestSuite(t *testing.T) {
	for kind, change := range kinds(t) {
		t.Run(kind, func(t *testing.T) {
			drivertest.Run(t, func(t *testing.T) engine.Driver { return testDriver(t, change) },
				drivertest.Abilities{Processes: true, Python: true, Kernel: true})
		})
	}
}
