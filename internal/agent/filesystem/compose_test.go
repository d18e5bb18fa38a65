//go:build linux

package filesystem

import (
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

func TestCompose(t *testing.T) {
	b := newBench(t)
	compose := func(body string) (*http.Response, []byte) {
		return b.do(t, "POST", "/files/compose", strings.NewReader(body), "Content-Type", "application/json")
	}
	for i, content := range []string{"one ", "", "three"} {
		b.put(t, fmt.Sprint("p", i), []byte(content))
	}
	resp, got := compose(`{"source_paths":["p0","p1","p2"],"destination":"/tmp/new/all"}`)
	if want := `{"path":"/tmp/new/all","name":"all","type":"file"}`; resp.StatusCode != 200 || string(got) != want {
		t.Fatalf("%s %s", resp.Status, got)
	}
	if got := read(t, b.real("tmp/new/all")); got != "one three" {
		t.Errorf("content %q", got)
	}
	b.wantOwned(t, "tmp/new", 0o755)
	b.wantOwned(t, "tmp/new/all", 0o644)
	if left, _ := filepath.Glob(path.Join(b.root, "home/user/p*")); left != nil {
		t.Errorf("sources left: %v", left)
	}
	b.put(t, "a", []byte("a"))
	must(t, os.Symlink("a", b.real("home/user/l")))
	for _, tt := range []struct {
		body   string
		status int
		text   string
	}{
		{`{"source_paths":["a","none"],"destination":"d"}`, 404, "none"},
		{`{"source_paths":["a"],"destination":"a"}`, 400, "one of the sources"},
		{`{"source_paths":["a"],"destination":"l"}`, 400, "one of the sources"},
		{`{"source_paths":["a","l"],"destination":"d"}`, 400, "same file"},
		{`{"source_paths":["a","/tmp"],"destination":"d"}`, 400, "directory"},
		{`{"source_paths":[],"destination":"d"}`, 400, "source_paths"},
		{`{"source_paths":["a"]}`, 400, "destination"},
		{`{"source_paths":["a"],"destination":"d","username":"nobody"}`, 401, "unknown user"},
		{`{"source_paths":["a"],"destination":"/tmp"}`, 400, "directory"},
		{`[]`, 400, "JSON"},
	} {
		resp, got := compose(tt.body)
		t.Run(tt.body, func(t *testing.T) { wantError(t, resp, got, tt.status, tt.text) })
	}
	if got := read(t, b.real("home/user/a")); got != "a" {
		t.Errorf("a refused compose changed a source: %q", got)
	}
	if _, err := os.Stat(b.real("home/user/d")); err == nil {
		t.Error("a refused compose left its destination")
	}
}
