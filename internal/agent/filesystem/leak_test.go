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
	user, err := b.user("")
	must(t, err)
	all := func() { useEverything(t, b.Service, user) }
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
		s.makeDir(p, user)
		s.move(p, "/tmp/moved/x", user)
		s.move("/tmp/moved/x", p, user)
		if w, err := s.hub.open(p, true, false); err == nil {
			w.close()
		}
	}
	must(t, s.remove(t.Context(), "/tmp/d"))
	must(t, s.remove(t.Context(), "/tmp/moved"))
	must(t, s.remove(t.Context(), "/none"))
	if err := s.remove(t.Context(), "/"); err == nil {
		t.Error("the root was removed")
	}
}
