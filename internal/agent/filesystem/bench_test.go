//go:build linux

package filesystem

import (
	"fmt"
	"os"
	"testing"
)

func BenchmarkListDir(b *testing.B) {
	dir := b.TempDir()
	for i := range 20_000 {
		if err := os.WriteFile(fmt.Sprintf("%s/%05d", dir, i), nil, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	s := New(Options{Root: dir})
	for _, limit := range []int{0, 100} {
		b.Run(fmt.Sprint("limit ", limit), func(b *testing.B) {
			for b.Loop() {
				if _, err := s.listDir(b.Context(), "/", 1, limit); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
