//go:build linux

package output

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/agent/account"
)

func owner() account.Account {
	return account.Account{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
}

func TestWindow(t *testing.T) {
	tests := []struct {
		name       string
		head, tail int
		writes     []string
		now        []string
		rest       string
		file       string // content; "" = none
	}{
		{"pass everything", 0, 0, []string{"abc", "def"}, []string{"abc", "def"}, "", ""},
		{"nothing", 3, 3, nil, nil, "", ""},
		{"below head", 4, 4, []string{"a", "bc"}, []string{"a", "bc"}, "", ""},
		{"exactly head", 3, 4, []string{"abc"}, []string{"abc"}, "", ""},
		{"across head", 4, 4, []string{"abc", "def"}, []string{"abc", "d"}, "ef", ""},
		{"exactly head and tail", 3, 3, []string{"abcdef"}, []string{"abc"}, "def", ""},
		{"one byte more", 3, 3, []string{"abcdefg"}, []string{"abc"}, "efg", "abcdefg"},
		{"one byte more in small writes", 3, 3, []string{"ab", "cd", "ef", "g"}, []string{"ab", "c", "", ""}, "efg", "abcdefg"},
		{"goes on after the cut", 2, 3, []string{"abcd", "efgh", "i", "jk", "lmnopqrstuv"}, []string{"ab", "", "", "", ""}, "tuv", "abcdefghijklmnopqrstuv"},
		{"tail only", 0, 2, []string{"a", "b", "c"}, []string{"", "", ""}, "bc", "abc"},
		{"head only", 2, 0, []string{"a", "bc", "d"}, []string{"a", "b", ""}, "", "abcd"},
		{"empty writes", 1, 1, []string{"", "ab", "", "c"}, []string{"", "a", "", ""}, "c", "abc"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := New(Options{Head: tt.head, Tail: tt.tail, Dir: filepath.Join(t.TempDir(), "logs"), Name: "1-stdout", Owner: owner()})
			var now []string
			for _, p := range tt.writes {
				b := []byte(p)
				now = append(now, string(w.Write(b)))
				clear(b) // nothing may hold it
			}
			if diff := cmp.Diff(tt.now, now); diff != "" {
				t.Errorf("Write (-want +got):\n%s", diff)
			}
			if got := string(w.Finish()); got != tt.rest {
				t.Errorf("Finish = %q, want %q", got, tt.rest)
			}
			if got, want := w.Total(), int64(len(strings.Join(tt.writes, ""))); got != want {
				t.Errorf("Total = %d, want %d", got, want)
			}
			var file string
			if w.File() != "" {
				b, err := os.ReadFile(w.File())
				if err != nil {
					t.Fatal(err)
				}
				file = string(b)
			}
			if file != tt.file {
				t.Errorf("file holds %q, want %q", file, tt.file)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWindowOfManySizes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		head, tail := r.IntN(40), r.IntN(40)
		w := New(Options{Head: head, Tail: tail, Dir: t.TempDir() + "/d", Name: "x", Owner: owner()})
		var all, now []byte
		for range r.IntN(30) {
			p := make([]byte, r.IntN(25))
			for i := range p {
				p[i] = byte(r.Uint32())
			}
			all = append(all, p...)
			now = append(now, w.Write(p)...)
		}
		rest := w.Finish()
		if head+tail == 0 || len(all) <= head+tail {
			if got := append(now, rest...); !bytes.Equal(got, all) || w.File() != "" {
				t.Fatalf("head %d tail %d total %d: got %d bytes, file %q; want all, no file", head, tail, len(all), len(got), w.File())
			}
			continue
		}
		if !bytes.Equal(now, all[:head]) || !bytes.Equal(rest, all[len(all)-tail:]) {
			t.Fatalf("head %d tail %d total %d: wrong ends", head, tail, len(all))
		}
		if got, err := os.ReadFile(w.File()); err != nil || !bytes.Equal(got, all) {
			t.Fatalf("head %d tail %d total %d: file holds %d bytes, error %v", head, tail, len(all), len(got), err)
		}
	}
}

func TestFileBelongsToOwnerAndHidesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	o := owner()
	if os.Getuid() == 0 {
		o.UID, o.GID = 4711, 4712
	}
	old := syscall.Umask(0o077)
	w := New(Options{Head: 1, Dir: dir, Name: "../7-stderr", Owner: o})
	w.Write([]byte("abc"))
	syscall.Umask(old)
	defer w.Close()
	info, err := os.Stat(w.File())
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	if info.Mode() != 0o644 || st.Uid != o.UID || st.Gid != o.GID {
		t.Errorf("file has mode %v, owner %d:%d; want 0644, %d:%d", info.Mode(), st.Uid, st.Gid, o.UID, o.GID)
	}
	if filepath.Dir(w.File()) != dir || !strings.HasPrefix(filepath.Base(w.File()), "7-stderr-") {
		t.Errorf("file %q is not 7-stderr-* in %q", w.File(), dir)
	}
	if info, err = os.Stat(dir); err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("folder: mode %v, error %v", info.Mode(), err)
	}
}

func TestFolderIsNoLink(t *testing.T) {
	base := t.TempDir()
	target := filepath.Join(base, "etc")
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(base, "logs")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	w := New(Options{Head: 1, Tail: 1, Dir: link, Name: "x", Owner: owner()})
	now := string(w.Write([]byte("abcd")))
	if got := now + string(w.Finish()); got != "ad" || w.File() != "" || w.Total() != 4 {
		t.Errorf("got %q, file %q, total %d; want the ends, no file, all counted", got, w.File(), w.Total())
	}
	if entries, _ := os.ReadDir(target); len(entries) != 0 {
		t.Errorf("the link was followed: %v", entries)
	}
}

func TestDiskFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full:", err)
	}
	w := New(Options{Head: 2, Tail: 2, Dir: t.TempDir() + "/d", Name: "x", Owner: owner()})
	w.Write([]byte("abcdef"))
	w.file.Close()
	w.file = full
	w.Write([]byte("ghij"))
	w.Write([]byte("kl"))
	if got := string(w.Finish()); got != "kl" || w.Total() != 12 || !w.Partial() || w.File() == "" {
		t.Errorf("tail %q, total %d, partial %v, file %q; want kl, 12, true, a name", got, w.Total(), w.Partial(), w.File())
	}
}

func TestMemoryDoesNotGrow(t *testing.T) {
	w := New(Options{Head: 1000, Tail: 3000, Dir: t.TempDir() + "/d", Name: "x", Owner: owner()})
	p := bytes.Repeat([]byte("0123456789"), 251)
	for range 2000 {
		w.Write(p)
	}
	if n := cap(w.tail) + cap(w.head) + cap(w.recent); n > 4*4000+2*recentBytes {
		t.Errorf("window holds %d bytes", n)
	}
}

func TestAfterTheEnd(t *testing.T) {
	w := New(Options{Head: 1, Tail: 10})
	w.Write([]byte("abc"))
	if got := string(w.Finish()); got != "bc" {
		t.Errorf("Finish = %q, want bc", got)
	}
	if now := w.Write([]byte("de")); now != nil || w.Total() != 5 || w.Finish() != nil {
		t.Errorf("a write after the end gave %q, total %d", now, w.Total())
	}
}

func TestParseWindow(t *testing.T) {
	tests := []struct {
		in         string
		head, tail int
		bad        bool
	}{
		{"", 0, 0, false},
		{"0,0", 0, 0, false},
		{"12288,20480", 12288, 20480, false},
		{" 1 , 2 ", 1, 2, false},
		{"5", 0, 0, true},
		{"5,", 0, 0, true},
		{"-1,5", 0, 0, true},
		{"1,2,3", 0, 0, true},
		{"1.5,2", 0, 0, true},
		{"16777216,16777217", 0, 0, true},
		{"99999999999999999999,1", 0, 0, true},
	}
	for _, tt := range tests {
		head, tail, err := ParseWindow(tt.in)
		if head != tt.head || tail != tt.tail || (err != nil) != tt.bad {
			if !tt.bad || err == nil {
				t.Errorf("ParseWindow(%q) = %d, %d, %v; want %d, %d, error %v", tt.in, head, tail, err, tt.head, tt.tail, tt.bad)
			}
		}
	}
}

func TestNewestLine(t *testing.T) {
	tests := []struct {
		name   string
		writes []string
		want   string
	}{
		{"none", nil, ""},
		{"unfinished", []string{"a\nb"}, "b"},
		{"finished", []string{"a\nb\n"}, "b"},
		{"blank lines after", []string{"a\n", "b \n\n  \n"}, "b"},
		{"in pieces", []string{"a\nhel", "lo"}, "hello"},
		{"progress bar", []string{"10%\r20%\r30%"}, "30%"},
		{"progress bar with the return last", []string{"10%\r20%\r"}, "20%"},
		{"CRLF", []string{"a\r\nb\r\n"}, "b"},
		{"half a character", []string{"x\nab\xf0\x9f"}, "ab"},
		{"no characters", []string{"a\xffb\n"}, "a\uFFFDb"},
		{"long", []string{"first\n" + strings.Repeat("é", 5000)}, strings.Repeat("é", 256)},
		{"long before", []string{strings.Repeat("x", 5000) + "\nend"}, "end"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := New(Options{Head: 1, Tail: 1})
			for _, p := range tt.writes {
				w.Write([]byte(p))
			}
			if got := w.NewestLine(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestConcurrentUse(t *testing.T) {
	w := New(Options{Head: 10, Tail: 10, Dir: t.TempDir() + "/d", Name: "x", Owner: owner()})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				w.Write([]byte("line\n"))
				w.NewestLine()
				w.Total()
			}
		})
	}
	wg.Wait()
	w.Finish()
	b, err := os.ReadFile(w.File())
	if err != nil || string(b) != strings.Repeat("line\n", 1600) {
		t.Errorf("file has %d bytes, error %v", len(b), err)
	}
}
