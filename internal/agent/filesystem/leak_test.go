//go:build linux

package filesystem

import (
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/agent-sandbox/abx/internal/agent/account"
)

func TestNoDescriptorIsLeft(t *testing.T) {
	b := newBench(t)
	must(t, syscall.Mkfifo(b.real("tmp/fifo"), 0o666))
	must(t, os.Symlink("loop", b.real("tmp/loop")))
	all := func() { useEverything(t, b.Service, b.account(t)) }
	all()
	before := descriptors(t)
	for range 20 {
		all()
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are open, %d before", after, before)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// useEverything calls each part so that it succeeds and so that it fails.
func useEverything(t *testing.T, s *Service, user account.Account) {
	t.Helper()
	files := s.Files()
	for _, p := range []string{"/tmp/d/f", "/tmp/fifo", "/tmp/loop", "/tmp", "/none/x/../y", "/tmp/fifo/x", "/tmp/" + strings.Repeat("n", 256)} {
		q := "/files?" + query(p)
		post := httptest.NewRequest("POST", q, strings.NewReader("x"))
		post.Header.Set("Content-Type", "application/octet-stream")
		files.ServeHTTP(httptest.NewRecorder(), post)
		files.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", q, nil))
		files.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/files/compose", strings.NewReader(`{"source_paths":["/tmp/d/f","`+p+`"],"destination":"/tmp/all"}`)))
		s.describer().stat(p)
		s.listDir(t.Context(), p, 3, 0)
		s.tree.makeDir(p)
		s.tree.move(p, "/tmp/moved/x")
		s.tree.move("/tmp/moved/x", p)
		if w, err := s.hub.open(p, user, true, false); err == nil {
			w.close()
		}
	}
	must(t, s.tree.remove(t.Context(), "/tmp/d"))
	must(t, s.tree.remove(t.Context(), "/tmp/moved"))
	must(t, s.tree.remove(t.Context(), "/none"))
	if err := s.tree.remove(t.Context(), "/"); err == nil {
		t.Error("the root was removed")
	}
}
