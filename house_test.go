package abx_test

import (
	"bytes"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/*_deps.txt anew")

const module = "github.com/agent-sandbox/abx"

// Sizes that no file and no function of ours passes.
const (
	maxFileLines     = 600
	maxFunctionLines = 100
	maxDepth         = 4
)

// A source is one Go file of the tree, on whichever system it builds.
type source struct {
	name      string // from the root, with slashes
	dir       string // "." for the root
	test      bool
	generated bool
	lines     int
	file      *ast.File
	fset      *token.FileSet
}

func (s source) at(n ast.Node) string {
	return s.name + ":" + strconv.Itoa(s.fset.Position(n.Pos()).Line)
}

// sources parses every Go file of ours.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	fset := token.NewFileSet()
	walk(t, func(name string) {
		if path.Ext(name) != ".go" {
			return
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(fset, name, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, source{
			name: name, dir: path.Dir(name), file: f, fset: fset,
			test:      strings.HasSuffix(name, "_test.go"),
			generated: ast.IsGenerated(f),
			lines:     bytes.Count(text, []byte("\n")),
		})
	})
	if len(all) == 0 {
		t.Fatal("no Go files found")
	}
	return all
}

// walk calls f with every file of the tree but those that tools put there.
func walk(t *testing.T, f func(name string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (slices.Contains([]string{"bin", "node_modules"}, d.Name()) || strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if !d.IsDir() {
			f(filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// packages maps folders to their files, tests left out.
func packages(all []source) map[string][]source {
	m := map[string][]source{}
	for _, s := range all {
		if !s.test {
			m[s.dir] = append(m[s.dir], s)
		}
	}
	return m
}

func TestPackageDocs(t *testing.T) {
	for dir, files := range packages(sources(t)) {
		var docs []string
		for _, s := range files {
			if s.file.Doc == nil || s.generated {
				continue
			}
			text := s.file.Doc.Text()
			want := "Package " + s.file.Name.Name + " "
			if s.file.Name.Name == "main" {
				want = "Command " + path.Base(dir) + " "
			}
			if !strings.HasPrefix(text, want) {
				t.Errorf("%s: the package's doc begins %.40q, not %q", s.name, text, want)
			}
			docs = append(docs, s.name)
		}
		if all := slices.IndexFunc(files, func(s source) bool { return !s.generated }); all < 0 {
			continue
		}
		if len(docs) != 1 {
			t.Errorf("%s: %d files document the package, want one: %v", dir, len(docs), docs)
		}
	}
}

func TestNames(t *testing.T) {
	banned := regexp.MustCompile(`^(utils?|common|helpers?|shared|misc|types?|models?|base|core|manager|.*util)$`)
	for dir, files := range packages(sources(t)) {
		name := files[0].file.Name.Name
		if banned.MatchString(name) || banned.MatchString(path.Base(dir)) {
			t.Errorf("%s: the name %q says nothing about what the package is", dir, name)
		}
		if strings.ContainsAny(name, "_ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
			t.Errorf("%s: a package's name is one word in lower case, not %q", dir, name)
		}
	}
}

func TestDepth(t *testing.T) {
	walk(t, func(name string) {
		dir := path.Dir(name)
		if i := strings.Index(dir, "testdata"); i >= 0 {
			return
		}
		if n := len(strings.Split(dir, "/")); n > maxDepth {
			t.Errorf("%s lies %d folders deep, at most %d", name, n, maxDepth)
		}
	})
}

func TestSizes(t *testing.T) {
	for _, s := range sources(t) {
		if s.generated {
			continue
		}
		if s.lines > maxFileLines {
			t.Errorf("%s has %d lines, at most %d", s.name, s.lines, maxFileLines)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
			if n > maxFunctionLines {
				t.Errorf("%s: %s has %d lines, at most %d", s.at(f), f.Name.Name, n, maxFunctionLines)
			}
		}
	}
}

// TestForbidden holds what is said about imports for their effects, about
// exits and about standard output.
func TestForbidden(t *testing.T) {
	quiet := under("internal/mcp", "internal/host", "internal/agent", "internal/e2b", "internal/reexec", "internal/control", "internal/config", "sandbox", "mcpserver")
	mains := under("cmd", "test")
	environment := under("cmd", "test", "internal/cli", "internal/config")
	rules := []struct {
		call string
		in   func(dir string) bool
		why  string
	}{
		{"os.Exit", not(mains), "only a command exits"},
		{"log.Fatal log.Fatalf log.Fatalln log.Panic log.Panicf log.Panicln", not(mains), "return an error"},
		{"fmt.Print fmt.Printf fmt.Println os.Stdout", quiet, "stdout belongs to JSON-RPC or to a command's result"},
		{"os.Getenv os.LookupEnv os.Environ", not(environment), "settings are read by config, in cli"},
		{"context.TODO", under("."), "say what bounds the call"},
	}
	for _, s := range sources(t) {
		if s.test || s.generated {
			continue
		}
		for _, i := range s.file.Imports {
			if i.Name != nil && i.Name.Name == "_" && i.Path.Value != `"embed"` {
				t.Errorf("%s: %s is imported for its effects; name what is used", s.at(i), i.Path.Value)
			}
		}
		for _, u := range uses(s.file, s.file) {
			for _, r := range rules {
				if r.in(s.dir) && slices.Contains(strings.Fields(r.call), u.name) {
					t.Errorf("%s: %s: %s", s.at(u.node), u.name, r.why)
				}
			}
		}
	}
}

type use struct {
	name string // package.Name
	node ast.Node
}

// uses lists the names that a part of f takes from packages. It goes by the
// last element of an import's path, which is enough for the standard library.
func uses(f *ast.File, part ast.Node) []use {
	imported := map[string]string{}
	for _, i := range f.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		name := path.Base(p)
		if i.Name != nil {
			name = i.Name.Name
		}
		imported[name] = p
	}
	var all []use
	ast.Inspect(part, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && imported[x.Name] != "" {
			all = append(all, use{imported[x.Name] + "." + sel.Sel.Name, sel})
		}
		return true
	})
	return all
}

func under(prefixes ...string) func(dir string) bool {
	return func(dir string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool {
			return p == "." || dir == p || strings.HasPrefix(dir, p+"/")
		})
	}
}

func not(f func(string) bool) func(string) bool {
	return func(dir string) bool { return !f(dir) }
}

// TestSkips wants a reason with every skipped test: CI fails on a skip and
// prints it. A test that sleeps waits for luck; only a function named
// eventually, which polls for a state that nobody tells of, may.
func TestSkips(t *testing.T) {
	for _, s := range sources(t) {
		if !s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok || !slices.Contains([]string{"t", "tb", "b", "f"}, x.Name) {
				return true
			}
			if sel.Sel.Name == "SkipNow" || (strings.HasPrefix(sel.Sel.Name, "Skip") && len(call.Args) == 0 && sel.Sel.Name != "Skipped") {
				t.Errorf("%s: a skip without a reason", s.at(call))
			}
			if sel.Sel.Name == "Sleep" {
				t.Errorf("%s: a test that sleeps waits for luck", s.at(call))
			}
			return true
		})
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if ok && (f.Name.Name == "eventually" || bubbled(s.file)) {
				continue
			}
			for _, u := range uses(s.file, d) {
				if u.name == "time.Sleep" {
					t.Errorf("%s: time.Sleep outside testing/synctest and eventually: wait for the event itself", s.at(u.node))
				}
			}
		}
	}
}

// bubbled reports whether f uses testing/synctest, where a sleep costs nothing
// and is exact.
func bubbled(f *ast.File) bool {
	return slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` })
}
