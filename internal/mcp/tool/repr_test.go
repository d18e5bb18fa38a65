package tool

import (
	"strings"
	"testing"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/mcp/mcptest"
)

// TestPrinted has what comes by the wire: the repr of a value, of a string
// without its quotes.
func TestPrinted(t *testing.T) {
	for wire, want := range map[string]string{
		`line1\nline2`:                   "line1\nline2",
		`a\tb\\c\'d`:                     `a` + "\t" + `b\c'd`,
		`{\n  "a": 1\n}`:                 "{\n  \"a\": 1\n}",
		`don\'t say "no"\n`:              "don't say \"no\"\n",
		`don't\nwon't`:                   "don't\nwon't",
		`\x00\x7f\u2028\U0001f600`:       "\x00\x7f\u2028\U0001F600",
		`C:\\new`:                        `C:\new`,
		`plain`:                          `plain`,
		`5`:                              `5`,
		``:                               ``,
		`['a\nb', "c\\d"]`:               `['a\nb', "c\\d"]`, // a list is shown as Python shows it
		`{'a': 'x\ny', 1: b'\x00'}`:      `{'a': 'x\ny', 1: b'\x00'}`,
		`b'\x00\xff'`:                    `b'\x00\xff'`,
		`re.compile('\\d+')`:             `re.compile('\\d+')`,
		`ValueError('a\nb')`:             `ValueError('a\nb')`,
		`Point(name='a\'b\n')`:           `Point(name='a\'b\n')`,
		`\d+ by a repr of one's own`:     `\d+ by a repr of one's own`,
		"a\n\\n":                         "a\n\\n", // of several lines: a repr of its own
		`['x\ny', 'zz ... [cut: only x]`: `['x\ny', 'zz ... [cut: only x]`,
	} {
		if got := printed(wire); got != want {
			t.Errorf("printed(%q) = %q, want %q", wire, got, want)
		}
	}
}

func FuzzPrinted(f *testing.F) {
	f.Add(`a\n'b\x41`)
	f.Fuzz(func(t *testing.T, s string) {
		if got := printed(s); !strings.Contains(s, `\`) && got != s {
			t.Errorf("printed(%q) = %q", s, got)
		}
	})
}

func TestStringResultIsReadable(t *testing.T) {
	p := cells(nil, func(c *mcptest.Code) e2b.LineAbx {
		c.Send(e2b.Line{Type: e2b.LineResult, IsMainResult: true, Text: `line1\nline2`})
		return e2b.LineAbx{}
	})
	r := good(t, start(t, p, Options{}), "run_code", object{"code": `"line1\nline2"`})
	if r.Data["result"] != "line1\nline2" || !strings.Contains(r.text(), "[result]\nline1\nline2") {
		t.Errorf("got %q\n%s", r.Data["result"], r.text())
	}
}

func TestLongResultIsCutAndTold(t *testing.T) {
	for _, main := range []bool{true, false} {
		p := cells(nil, func(c *mcptest.Code) e2b.LineAbx {
			c.Send(e2b.Line{Type: e2b.LineResult, IsMainResult: main, Text: strings.Repeat("x", 100_000)})
			return e2b.LineAbx{}
		})
		r := good(t, start(t, p, Options{}), "run_code", object{"code": "x"})
		if r.Data["truncated"] != true {
			t.Errorf("main %v: truncated %v", main, r.Data["truncated"])
		}
		for _, w := range []string{"left out", "100,000 bytes of text, of which begin and end are shown", "write it to a file"} {
			if !strings.Contains(r.text(), w) {
				t.Errorf("main %v: %q is not in the text", main, w)
			}
		}
	}
}
