package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// program returns the path of what `make build` built. The test's result then
// depends on that file, for Go's cache of results too.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%v: run make build", err)
	}
	return path
}

// TestMCPTypeScript drives all seven tools with the TypeScript SDK.
func TestMCPTypeScript(t *testing.T) {
	abx := program(t, "abx")
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skipf("%v: install Node 20 or newer", err)
	}
	if _, err := os.Stat(filepath.Join("mcp-ts", "node_modules")); err != nil {
		t.Skipf("%v: run make node-modules", err)
	}
	cmd := exec.CommandContext(t.Context(), node, "client.mjs", abx)
	cmd.Dir = "mcp-ts"
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
