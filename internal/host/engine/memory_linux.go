package engine

import (
	"bytes"
	"os"
	"strconv"
)

// freeMemory is what the kernel thinks it could give without swapping.
func freeMemory() (int64, bool) { return memory("MemAvailable:") }

// allMemory is what the machine has.
func allMemory() (int64, bool) { return memory("MemTotal:") }

func memory(name string) (int64, bool) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	return parseMemory(data, name)
}

func parseMemory(meminfo []byte, name string) (int64, bool) {
	for line := range bytes.Lines(meminfo) {
		value, ok := bytes.CutPrefix(line, []byte(name))
		if !ok {
			continue
		}
		number, ok := bytes.CutSuffix(bytes.TrimSpace(value), []byte(" kB"))
		if !ok {
			return 0, false
		}
		kib, err := strconv.ParseInt(string(number), 10, 64)
		return kib << 10, err == nil
	}
	return 0, false
}
