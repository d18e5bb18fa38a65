package abx_test

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// documents lists the Markdown files of the tree.
func documents(t *testing.T) []string {
	t.Helper()
	var all []string
	walk(t, func(name string) {
		if path.Ext(name) == ".md" {
			all = append(all, name)
		}
	})
	if !slices.Contains(all, "README.md") {
		t.Fatal("no README.md")
	}
	return all
}

// TestMakeTargets wants every `make x` of a document to be one.
func TestMakeTargets(t *testing.T) {
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):(?:[^=]|$)`).FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets[m[1]] = true
	}
	named := regexp.MustCompile("(?m)(?:`|^\\s*)make ([a-z-]+)")
	for _, name := range documents(t) {
		for _, m := range named.FindAllStringSubmatch(read(t, name), -1) {
			if !targets[m[1]] {
				t.Errorf("%s names make %s, which the Makefile does not have", name, m[1])
			}
		}
	}
	for _, want := range []string{"help", "build", "test", "lint", "fuzz", "bench", "generate", "check", "demo", "cross", "clean"} {
		if !targets[want] {
			t.Errorf("the Makefile has no target %s", want)
		}
	}
}

// TestLinks wants every relative link of a document to lead to a file, and
// every file of ours that it quotes as a path to be there.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	quoted := regexp.MustCompile("`((?:cmd|docs|internal|proto|sandbox|test|testdata)/[A-Za-z0-9_./-]*)`")
	for _, name := range documents(t) {
		text := read(t, name)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to, _, _ := strings.Cut(m[1], "#")
			if to == "" || strings.Contains(to, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), to)); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(m[1]); err != nil {
				t.Errorf("%s names %s, which is not there", name, m[1])
			}
		}
	}
}

// TestSettings keeps docs/settings.md and the code in step: both name the same
// environment variables.
func TestSettings(t *testing.T) {
	variable := regexp.MustCompile(`\b(?:ABX_[A-Z_]+[A-Z]|SANDBOX_REGION|ALIBABA_CLOUD_REGION_ID)\b`)
	documented := map[string]bool{}
	for _, v := range variable.FindAllString(read(t, "docs/settings.md"), -1) {
		documented[v] = true
	}
	known := map[string]bool{}
	for _, s := range sources(t) {
		if s.test || !under("internal/config", "internal/cli")(s.dir) {
			continue
		}
		for _, v := range variable.FindAllString(read(t, s.name), -1) {
			known[v] = true
			if !documented[v] {
				t.Errorf("%s: %s is not in docs/settings.md", s.name, v)
			}
			documented[v] = true // once is enough
		}
	}
	for _, name := range documents(t) {
		if name == "CONTRIBUTING.md" {
			continue // names what steers tests
		}
		for _, v := range variable.FindAllString(read(t, name), -1) {
			if !known[v] {
				t.Errorf("%s: no setting is named %s", name, v)
				known[v] = true
			}
		}
	}
}

// TestLicense wants the license whole, and NOTICE to name every module that is
// built into a program of ours.
func TestLicense(t *testing.T) {
	license := read(t, "LICENSE")
	for _, want := range []string{"Apache License", "Version 2.0, January 2004", "END OF TERMS AND CONDITIONS"} {
		if !strings.Contains(license, want) {
			t.Errorf("LICENSE lacks %q", want)
		}
	}
	if !strings.Contains(read(t, "README.md"), "Apache-2.0") {
		t.Error("README.md does not name the license, Apache-2.0")
	}
	notice := strings.ReplaceAll(read(t, "NOTICE"), "golang.org/x/...", "golang.org/x/net golang.org/x/oauth2 golang.org/x/sync golang.org/x/sys golang.org/x/text golang.org/x/time")
	for _, goos := range []string{"linux", "windows", "darwin"} {
		cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", "./cmd/...")
		cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list ./cmd/...: %v", err)
		}
		modules := strings.Fields(string(out))
		slices.Sort(modules)
		for _, m := range slices.Compact(modules) {
			if !slices.Contains(strings.Fields(notice), m) {
				t.Errorf("NOTICE does not name %s, a module that is built into abx for %s", m, goos)
			}
		}
	}
}

// TestToolsNamed wants the README and docs/mcp.md to name the tools that the
// server has: one golden schema a tool.
func TestToolsNamed(t *testing.T) {
	schemas, err := filepath.Glob("internal/mcp/tool/testdata/*.json")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range schemas {
		names = append(names, strings.TrimSuffix(filepath.Base(s), ".json"))
	}
	if len(names) != 7 {
		t.Fatalf("%d schemas of tools in internal/mcp/tool/testdata, want 7: %v", len(names), names)
	}
	for _, doc := range []string{"README.md", "docs/mcp.md"} {
		text := read(t, doc)
		for _, n := range names {
			if !strings.Contains(text, "`"+n+"`") {
				t.Errorf("%s does not name the tool %s", doc, strconv.Quote(n))
			}
		}
	}
}
