//go:build linux

package interpreter

import (
	"os"
	"testing"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// A folder that a call asks for is where a kernel's first such cell runs, and
// no later one is taken back there.
func TestFirstFolder(t *testing.T) {
	b := newBench(t, false)
	dir, other := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, other} {
		must(t, os.Chmod(d, 0o755))
	}
	for language, code := range map[string][3]string{
		"python": {"import os; print(os.getcwd())", "os.chdir('/'); print(os.getcwd())", "print(os.getcwd())"},
		"bash":   {"pwd", "cd /; pwd", "pwd"},
	} {
		for i, want := range []string{dir, "/", "/"} {
			c := call{Execute: e2b.Execute{Code: code[i], Language: language}, dir: dir}
			if i == 2 {
				c.dir = other
			}
			if o := b.run(c); o.stdout != want+"\n" {
				t.Errorf("%s, call %d: %q, want %q", language, i, o.stdout, want)
			}
		}
	}
	if status, text := b.get("POST", "/execute", `{"code":"1"}`); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
}

// A folder that is not there leaves the cell where it is.
func TestFirstFolderMissing(t *testing.T) {
	b := newBench(t, false)
	for _, language := range []string{"python", "bash"} {
		o := b.run(call{Execute: e2b.Execute{Code: map[string]string{"python": "print(1)", "bash": "echo 1"}[language], Language: language}, dir: "/no/such/folder"})
		if o.stdout != "1\n" || o.stderr != "" || o.err != nil {
			t.Errorf("%s: %q %q %v", language, o.stdout, o.stderr, o.err)
		}
	}
}
