//go:build linux

package interpreter

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestNearest(t *testing.T) {
	for in, want := range map[string]string{
		"pyton": "python", "python4": "python", "bsh": "bash", "zsh": "sh", "typscript": "typescript", "x": "", "rust": "", "": "",
		strings.Repeat("python", 20): "",
	} {
		if got := nearest(in); got != want {
			t.Errorf("nearest(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestErrorLineIsComplete(t *testing.T) {
	got := string(appendError(nil, "E", "", ""))
	if want := `{"type":"error","name":"E","value":"","traceback":""}` + "\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestWholeCharacters(t *testing.T) {
	for in, want := range map[string]int{"": 0, "a": 1, "é": 2, "\xc3": 0, "a\xf0\x9f\x98": 1, "😀": 4, "\x80\x80": 2, "\xff": 1, "a\xc3b": 3} {
		if got := wholeCharacters([]byte(in)); got != want {
			t.Errorf("wholeCharacters(%q) = %d, want %d", in, got, want)
		}
	}
}

func FuzzAppendOutput(f *testing.F) {
	for _, s := range []string{"", "a\n\r\t\"\\", "é😀\u2028", "\xff\xf0\x9f", "\x00\x1f\x7f"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		raw := appendOutput(nil, "stdout", p, time.Unix(0, 0))
		var l struct {
			Text string
			Abx  struct{ Bytes []byte }
		}
		if err := json.Unmarshal(raw, &l); err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		for _, c := range raw {
			if c >= utf8.RuneSelf {
				t.Fatalf("%q is not ASCII", raw)
			}
		}
		if bytes.IndexByte(raw, '\n') != len(raw)-1 {
			t.Fatalf("%q is not one line", raw)
		}
		got := l.Abx.Bytes
		if got == nil {
			got = []byte(l.Text)
		}
		if !bytes.Equal(got, p) {
			t.Fatalf("got %q, want %q", got, p)
		}
	})
}

func FuzzAppendResult(f *testing.F) {
	f.Add([]byte(`{"text/plain":"é","application/json":{"a":
1},"x/y":[null],"image/png":5}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		var data map[string]json.RawMessage
		if json.Unmarshal(p, &data) != nil {
			return
		}
		raw := appendResult(nil, true, data)
		var l map[string]any
		if err := json.Unmarshal(raw, &l); err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		if bytes.IndexByte(raw, '\n') != len(raw)-1 {
			t.Fatalf("%q is not one line", raw)
		}
	})
}
