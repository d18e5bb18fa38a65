//go:build linux

package interpreter

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("\x00\x00\x00\x20{\"type\":\"done\",\"id\":1,\"data\":{}}"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, p []byte) {
		r := bytes.NewReader(p)
		for {
			if _, err := readFrame(r); err != nil {
				return
			}
		}
	})
}

func FuzzReadRecord(f *testing.F) {
	f.Add([]byte("ready 5\x00done 1 2 /a b\x00"))
	f.Fuzz(func(t *testing.T, p []byte) {
		r := bufio.NewReaderSize(bytes.NewReader(p), recordBytes)
		for {
			e, err := readRecord(r)
			if err != nil {
				return
			}
			if e.ExitCode < 0 || e.ExitCode > 255 {
				t.Fatalf("exit code %d", e.ExitCode)
			}
		}
	})
}

func TestPrelude(t *testing.T) {
	got := prelude(cell{
		Env: map[string]string{"B": "it's", "bad-name": "x", "1x": "y"}, Set: map[string]string{"A": "$(x)\n"}, Unset: []string{"U", "no;rm"},
	})
	want := "builtin unset -v U\nbuiltin export A='$(x)\n'\n__abx_set B 'it'\\''s'\n"
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestDifference(t *testing.T) {
	set, unset := difference([]string{"A=1", "B=2", "C=3"}, []string{"A=1", "B=x", "D=4"})
	if d := cmp.Diff(map[string]string{"B": "x", "D": "4"}, set); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"C"}, unset); d != "" {
		t.Error(d)
	}
}
