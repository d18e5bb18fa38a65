package main

import (
	"regexp"
	"strings"
	"testing"
)

const passed = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- PASS: TestA\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"pass","Package":"p"}
`

const skipped = `{"Action":"output","Package":"q","Test":"TestB","Output":"    b_test.go:1: needs root for this\n"}
{"Action":"skip","Package":"q","Test":"TestB"}
`

const failed = `{"Action":"output","Package":"r","Test":"TestC","Output":"    c_test.go:1: wrong\n"}
{"Action":"fail","Package":"r","Test":"TestC"}
`

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name, in, accept string
		want             []string // in the output
		fails            bool
	}{
		{"passed", passed, "", []string{"ok  \tp\t0.1s\n"}, false},
		{"skipped", passed + skipped, "", []string{"TestB", "needs root for this"}, true},
		{"skipped for another reason", passed + skipped, "needs a network", []string{"TestB"}, true},
		{"skip accepted", passed + skipped, "needs root", []string{"1 skipped here"}, false},
		{"failed", passed + failed, "", []string{"TestC", "c_test.go:1: wrong"}, true},
		{"no build", "# p\np.go:1: no\n", "", []string{"p.go:1: no"}, true},
		{"nothing", "", "", nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var accept *regexp.Regexp
			if c.accept != "" {
				accept = regexp.MustCompile(c.accept)
			}
			var out strings.Builder
			if err := judge(strings.NewReader(c.in), &out, accept); (err != nil) != c.fails {
				t.Errorf("error %v", err)
			}
			for _, w := range c.want {
				if !strings.Contains(out.String(), w) {
					t.Errorf("%q lacks %q", out.String(), w)
				}
			}
		})
	}
}
