//go:build !linux

package drivertest

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
)

// census counts goroutines; more is known on Linux only.
type census struct {
	inner      bool
	goroutines int
}

func takeCensus(_, inner bool) *census {
	return &census{inner: inner, goroutines: runtime.NumGoroutine()}
}

func (c *census) compare(t *testing.T, when string) {
	t.Helper()
	if !c.inner {
		return
	}
	eventually(t, func() string {
		if n := runtime.NumGoroutine(); n > c.goroutines {
			return fmt.Sprintf("%s: %d goroutines, %d before", when, n, c.goroutines)
		}
		return ""
	})
}

func observe(bool) {}

func initPIDs(bool) map[int]bool { return nil }

func killNewInit(map[int]bool) error { return errors.New("processes are looked for on Linux only") }
