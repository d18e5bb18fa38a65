package sandbox

import (
	"bufio"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// A capture keeps what a plain slice of the whole would show.
func TestCapture(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		c := newCapture(&callSettings{head: r.IntN(8), tail: r.IntN(8), maxOutput: r.IntN(8)})
		var all []byte
		for range r.IntN(12) {
			p := make([]byte, r.IntN(12))
			for i := range p {
				p[i] = byte('a' + r.IntN(26))
			}
			c.write(p)
			all = append(all, p...)
		}
		want := string(all)
		if len(all) > c.head+c.tail {
			want = string(all[:c.head]) + string(all[len(all)-c.tail:])
		}
		wantHead := len(want)
		if len(all) > len(want) {
			wantHead = c.head
		}
		for range 2 { // asking again changes nothing
			kept, head, total := c.result(0)
			if string(kept) != want || total != int64(len(all)) || head != wantHead {
				t.Fatalf("%d,%d of %q: %q (head %d, total %d), want %q (head %d)", c.head, c.tail, all, kept, head, total, want, wantHead)
			}
		}
	}
}

func TestReadLine(t *testing.T) {
	long := strings.Repeat("x", 100)
	for _, tt := range []struct {
		in   string
		want []string
		err  error
	}{
		{"", nil, io.EOF},
		{"a\n\nb", []string{"a\n", "\n", "b"}, io.EOF},
		{long + "\nb\n" + long, []string{long + "\n", "b\n", long}, io.EOF},
		{"a\n" + long + long + "\n", []string{"a\n"}, nil},
	} {
		br := bufio.NewReaderSize(strings.NewReader(tt.in), 16)
		var got []string
		var buf []byte
		var err error
		for err == nil {
			var line []byte
			if line, err = readLine(br, &buf, 150); len(line) > 0 {
				got = append(got, string(line))
			}
		}
		if strings.Join(got, "|") != strings.Join(tt.want, "|") || tt.err != nil && !errors.Is(err, tt.err) {
			t.Errorf("%.20q: %q, %v", tt.in, got, err)
		}
	}
}

func TestAtLeast(t *testing.T) {
	for version, want := range map[string]bool{
		"": true, "0.5.7": true, "0.5.6": false, "0.5.10": true, "0.4.9": false, "1.0.0": true, "0.6": true, "dev": true, "0.5": true, "0.5.7-rc1": true,
	} {
		s := &Sandbox{info: Info{AgentVersion: version}}
		if got := s.atLeast(0, 5, 7); got != want {
			t.Errorf("%q: %t", version, got)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "3": 3 * time.Second, "-3": 0, "x": 0, "99999999999": 0,
		"Tue, 01 Jan 2030 00:00:09 GMT": 9 * time.Second, "Tue, 01 Jan 2020 00:00:09 GMT": 0,
	} {
		if got := retryAfter(map[string][]string{"Retry-After": {value}}, now); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}

func FuzzOneLine(f *testing.F) {
	f.Add("a\x1b[31m\xff\n")
	f.Fuzz(func(t *testing.T, s string) {
		if got := oneLine(s); strings.ContainsAny(got, "\n\x1b\x00") || len(got) > 2010 {
			t.Errorf("%q", got)
		}
	})
}
