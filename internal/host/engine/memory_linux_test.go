package engine

import "testing"

func TestParseAvailable(t *testing.T) {
	tests := []struct {
		text string
		want int64
		ok   bool
	}{
		{"MemTotal:       16000 kB\nMemFree:    1 kB\nMemAvailable:   12000 kB\nBuffers: 1 kB\n", 12000 << 10, true},
		{"MemAvailable: 7 kB", 7 << 10, true},
		{"MemAvailable: 7", 0, false},
		{"MemAvailable: x kB", 0, false},
		{"MemFree: 7 kB\n", 0, false},
		{"", 0, false},
	}
	for _, tt := range tests {
		got, ok := parseMemory([]byte(tt.text), "MemAvailable:")
		if ok != tt.ok || ok && got != tt.want {
			t.Errorf("%q: %d, %v", tt.text, got, ok)
		}
	}
	if free, ok := freeMemory(); !ok || free <= 0 {
		t.Errorf("this machine: %d, %v", free, ok)
	}
}
