//go:build !linux

package engine

// freeMemory cannot be told here.
func freeMemory() (int64, bool) { return 0, false }

// allMemory cannot be told here.
func allMemory() (int64, bool) { return 0, false }
