//go:build linux

package interpreter

import (
	"os/exec"
	"testing"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// BenchmarkFirst is a kernel's start to the end of its first cell; beside it
// is what a plain start costs.
func BenchmarkFirst(b *testing.B) {
	for _, test := range []struct{ language, code string }{{"python", "print(1)"}, {"bash", "echo 1"}} {
		b.Run(test.language, func(b *testing.B) {
			s := newBench(b, false)
			s.run(call{Execute: e2b.Execute{Code: test.code, Language: test.language}})
			c := must1(s.defaultContext(must1(parseLanguage(test.language))))
			for b.Loop() {
				b.StopTimer()
				c.restart()
				b.StartTimer()
				s.run(call{Execute: e2b.Execute{Code: test.code, Language: test.language}})
			}
		})
	}
	for name, argv := range map[string][]string{"plain python": {"/usr/bin/python3", "-c", "print(1)"}, "plain bash": {"/bin/bash", "-c", "echo 1"}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if out, err := exec.Command(argv[0], argv[1:]...).Output(); err != nil || string(out) != "1\n" {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCall is a later cell, over loopback HTTP.
func BenchmarkCall(b *testing.B) {
	for name, e := range map[string]call{
		"python":       {Execute: e2b.Execute{Code: "1"}},
		"python print": {Execute: e2b.Execute{Code: "print(1)"}},
		"python files": {Execute: e2b.Execute{Code: "1"}, files: true, window: "12288,20480"},
		"bash":         {Execute: e2b.Execute{Code: "echo 1", Language: "bash"}},
		"bash exit":    {Execute: e2b.Execute{Code: "exit 1", Language: "bash"}},
	} {
		b.Run(name, func(b *testing.B) {
			s := newBench(b, false)
			s.run(e)
			for b.Loop() {
				s.run(e)
			}
		})
	}
}

// BenchmarkOutput is the throughput of a stream through a window.
func BenchmarkOutput(b *testing.B) {
	s := newBench(b, false)
	e := call{Execute: e2b.Execute{Code: "import os\nfor _ in range(1000): os.write(1, b'x' * 65535 + b'\\n')"}, window: "12288,20480"}
	s.run(e)
	b.SetBytes(65536 * 1000)
	for b.Loop() {
		s.run(e)
	}
}
