package mcp

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// readLines reads all lines of s; a long one shows as "<long>".
func readLines(r io.Reader, most int) []string {
	lr := newLineReader(r, most)
	lines := []string{}
	for {
		l, err := lr.next()
		switch {
		case errors.Is(err, errLineTooLong):
			lines = append(lines, "<long>")
		case err != nil:
			return lines
		default:
			lines = append(lines, string(l))
		}
	}
}

func TestLineReader(t *testing.T) {
	long := strings.Repeat("x", 200_000)
	for _, c := range []struct {
		in   string
		most int
		want []string
	}{
		{"", 10, []string{}},
		{"a\nb\n", 10, []string{"a", "b"}},
		{"a\n\nb", 10, []string{"a", "", "b"}},
		{"0123456789\n0123456789x\nok\n", 10, []string{"0123456789", "<long>", "ok"}},
		{"0123456789x", 10, []string{"<long>"}},
		{long + "\nok\n", 1000, []string{"<long>", "ok"}},
		{long + "\nok\n", len(long), []string{long, "ok"}},
		{long, len(long) - 1, []string{"<long>"}},
		{"a\r\nb", 10, []string{"a\r", "b"}},
	} {
		for name, r := range map[string]io.Reader{"at once": strings.NewReader(c.in), "in halves": iotest.HalfReader(strings.NewReader(c.in))} {
			if d := cmp.Diff(c.want, readLines(r, c.most)); d != "" {
				t.Errorf("%.20q, %s (-want +got):\n%s", c.in, name, d)
			}
		}
	}
}

// TestLongLineIsNotKept reads 256 MiB without a line end.
func TestLongLineIsNotKept(t *testing.T) {
	block := bytes.Repeat([]byte("x"), 1<<20)
	var parts []io.Reader
	for range 256 {
		parts = append(parts, bytes.NewReader(block))
	}
	parts = append(parts, strings.NewReader("\nok\n"))
	lr := newLineReader(io.MultiReader(parts...), 8<<20)
	if _, err := lr.next(); !errors.Is(err, errLineTooLong) {
		t.Fatal(err)
	}
	if l, err := lr.next(); err != nil || string(l) != "ok" {
		t.Errorf("after it: %q, %v", l, err)
	}
}

func FuzzLineReader(f *testing.F) {
	f.Add([]byte("a\nbb\n\nccccccccccccccccc\nd"), 5)
	f.Add(bytes.Repeat([]byte("x"), 100_000), 99_999)
	f.Fuzz(func(t *testing.T, data []byte, most int) {
		if most < 1 {
			return
		}
		want := strings.Split(string(data), "\n")
		if want[len(want)-1] == "" {
			want = want[:len(want)-1]
		}
		for i, l := range want {
			if len(l) > most {
				want[i] = "<long>"
			}
		}
		if got := readLines(bytes.NewReader(data), most); len(want)+len(got) > 0 && !cmp.Equal(want, got) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `[{}]`, `5`, `{"id":1.5}`, `{"id":12345678901234567890,"method":"x","jsonrpc":"2.0"}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99999999999999999999}}`,
		`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"arguments":{},"name":"x","_meta":{}}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		data = bytes.TrimSpace(data)
		if len(data) == 0 {
			return
		}
		m, bad := parse(data)
		if bad != nil {
			line := appendError(nil, bad.id, bad.code, bad.text, nil)
			if !jsonValid(line) {
				t.Errorf("answer %s", line)
			}
			return
		}
		if m.method == nil {
			return
		}
		var c *call
		if m.id != nil {
			key, err := makeID(m.id)
			if err != nil {
				t.Fatalf("accepted id %s: %v", m.id, err)
			}
			c = &call{key: key, id: m.id}
		}
		if r := m.request(c); len(r.Params) > 0 && !jsonValid(r.Params) {
			t.Errorf("params %s", r.Params)
		}
	})
}
