//go:build linux

package interpreter

import "testing"

func TestFirst(t *testing.T) {
	b := newBench(t, true)
	t.Logf("%+v", b.python("print(1)"))
	t.Logf("%+v", b.python("1/0"))
	t.Logf("%+v", b.python("x=5\nx"))
	t.Logf("%+v", b.shell("echo hi; exit 3"))
}
