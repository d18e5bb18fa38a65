package abx_test

import (
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// floors says who may import whom among our own packages: docs/architecture.md
// tells why. A folder's own row counts, not its parent's; "X/..." means X and
// all below it. A new package needs a row. The one arrow between host and agent,
// to internal/agent/account, is for the ids that both sides give the users.
var floors = map[string]string{
	".": "",

	// Floor 5: programs.
	"cmd/abx":       "internal/agent internal/agent/setup internal/cli internal/control internal/host internal/host/driver/... internal/host/engine internal/reexec",
	"cmd/abx-agent": "internal/agent internal/agent/setup internal/control",
	"test":          "test/proc test/stdio",
	"test/bench":    "test/proc test/stdio",
	"test/demo":     "test/stdio",
	"test/stdio":    "",
	"test/proc":     "",
	"test/strict":   "",

	// Floor 4: the roof.
	"internal/cli": "internal/config internal/e2b internal/host internal/mcp/... internal/reexec mcpserver sandbox",

	// Floor 3: the client wing's upper part.
	"mcpserver":            "internal/mcp/... sandbox",
	"internal/mcp":         "internal/mcp/session internal/mcp/tool internal/mcp/wire sandbox",
	"internal/mcp/tool":    "internal/mcp/session internal/mcp/wire sandbox",
	"internal/mcp/session": "sandbox",
	"internal/mcp/wire":    "",
	"internal/mcp/mcptest": "internal/e2b/... sandbox",

	// Floor 2: the wings. They never meet.
	"sandbox":                         "internal/e2b/...",
	"internal/agent":                  "internal/agent/... internal/control internal/e2b/...",
	"internal/agent/setup":            "internal/agent/account internal/control internal/e2b",
	"internal/agent/interpreter":      "internal/agent/account internal/agent/output internal/agent/process internal/e2b",
	"internal/agent/process":          "internal/agent/account internal/agent/output internal/e2b/...",
	"internal/agent/filesystem":       "internal/agent/account internal/e2b/...",
	"internal/agent/output":           "internal/agent/account",
	"internal/agent/account":          "",
	"internal/host":                   "internal/e2b/... internal/host/... internal/reexec",
	"internal/host/server":            "internal/e2b internal/host/engine",
	"internal/host/gateway":           "internal/e2b internal/host/engine",
	"internal/host/engine":            "internal/e2b",
	"internal/host/cgroup":            "",
	"internal/host/driver/drivertest": "internal/e2b/... internal/host/engine sandbox",
	"internal/host/driver/namespace":  "internal/agent/account internal/control internal/e2b/... internal/host/cgroup internal/host/engine internal/reexec",

	// Floor 1: the foundation.
	"internal/config":                           "",
	"internal/control":                          "",
	"internal/reexec":                           "",
	"internal/e2b":                              "",
	"internal/e2b/filesystem":                   "",
	"internal/e2b/filesystem/filesystemconnect": "internal/e2b/filesystem",
	"internal/e2b/process":                      "",
	"internal/e2b/process/processconnect":       "internal/e2b/process",
}

func TestFloors(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sources(t) {
		row, known := floors[s.dir]
		if !seen[s.dir] && !known {
			t.Errorf("%s has no row in the table of floors", s.dir)
		}
		seen[s.dir] = true
		if s.test || !known {
			continue
		}
		for _, i := range s.file.Imports {
			p, _ := strconv.Unquote(i.Path.Value)
			ours, ok := strings.CutPrefix(p, module+"/")
			if ok && !allowed(row, ours) {
				t.Errorf("%s: %s may not import %s", s.at(i), s.dir, ours)
			}
		}
	}
}

func allowed(row, dir string) bool {
	return slices.ContainsFunc(strings.Fields(row), func(a string) bool {
		if tree, ok := strings.CutSuffix(a, "/..."); ok {
			return dir == tree || strings.HasPrefix(dir, tree+"/")
		}
		return dir == a
	})
}

// TestForTestsOnly keeps suites and fakes out of every program.
func TestForTestsOnly(t *testing.T) {
	for _, s := range sources(t) {
		for _, i := range s.file.Imports {
			p, _ := strconv.Unquote(i.Path.Value)
			if !s.test && strings.HasPrefix(p, module+"/") && strings.HasSuffix(p, "test") {
				t.Errorf("%s: imported by a program", s.at(i))
			}
		}
	}
}

// TestDependencies lists all that the parts that must stay light are built
// from. A line more is a decision: run with -update and say why in the commit.
func TestDependencies(t *testing.T) {
	for _, c := range []struct {
		pkg, golden string
		only        []string // prefixes, empty: any
	}{
		{"./sandbox", "sandbox_deps.txt", nil},
		{"./cmd/abx-agent", "agent_deps.txt", []string{
			module + "/cmd/abx-agent", module + "/internal/agent", module + "/internal/control", module + "/internal/e2b",
			"connectrpc.com/connect", "google.golang.org/protobuf", "golang.org/x/sys",
		}},
	} {
		t.Run(path.Base(c.pkg), func(t *testing.T) {
			got := dependencies(t, c.pkg)
			for _, p := range got {
				if len(c.only) > 0 && !slices.ContainsFunc(c.only, func(o string) bool { return p == o || strings.HasPrefix(p, o+"/") }) {
					t.Errorf("%s is built from %s, which is none of %v", c.pkg, p, c.only)
				}
			}
			golden(t, c.golden, got)
		})
	}
}

// dependencies lists what pkg is built from on Linux, the standard library left
// out.
func dependencies(t *testing.T, pkg string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", pkg)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v", pkg, err)
	}
	deps := strings.Fields(string(out))
	slices.Sort(deps)
	return deps
}

func golden(t *testing.T, name string, got []string) {
	t.Helper()
	file := path.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; write it: go test . -run TestDependencies -update", err)
	}
	if diff := cmp.Diff(strings.Fields(string(want)), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}
