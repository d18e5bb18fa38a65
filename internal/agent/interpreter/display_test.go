//go:build linux

package interpreter

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/e2b"
)

func TestDisplay(t *testing.T) {
	b := newBench(t, true)
	b.python(`
class Rich:
    def _repr_html_(self): return '<b>é</b>'
    def _repr_png_(self): return b'\x89PNG'
    def _repr_latex_(self): return '$x$'
    def _repr_json_(self): return {'n': [1, float('nan')]}
    def _repr_markdown_(self): raise NotImplementedError
    def _repr_svg_(self): return 5
    def __repr__(self): return 'rich'
class Bundle:
    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/plain': 'p', 'application/vnd.x+json': {'k': 'v'}, 'image/gif': b'GIF8'}
class Bad:
    def _repr_html_(self): raise RuntimeError('no html')
`)
	o := b.python("Rich()")
	r := o.results[0]
	got := []string{r.Text, r.HTML, r.PNG, r.LaTeX, string(r.JSON), r.Markdown, r.SVG}
	if d := cmp.Diff([]string{"rich", "<b>é</b>", base64.StdEncoding.EncodeToString([]byte("\x89PNG")), "$x$", `{"n": [1, null]}`, "", ""}, got); d != "" {
		t.Error(d)
	}
	o = b.python("print('before')\ndisplay(Rich(), 5)\nprint('after')\n6")
	var order []string
	for _, l := range o.lines {
		switch l.Type {
		case e2b.LineStdout:
			order = append(order, l.Text)
		case e2b.LineResult:
			order = append(order, l.Text+map[bool]string{true: " main"}[l.IsMainResult])
			if _, ok := l.raw["is_main_result"]; !ok {
				t.Error("no is_main_result")
			}
		}
	}
	// What came after a result may be sent before it, what came before may not.
	if !strings.HasPrefix(order[0], "before\n") {
		t.Errorf("order %q", order)
	}
	results := slices.DeleteFunc(order, func(s string) bool { return strings.HasSuffix(s, "\n") })
	if d := cmp.Diff([]string{"rich", "5", "6 main"}, results); d != "" {
		t.Error(d)
	}
	o = b.python("Bundle()")
	if r := o.results[0]; r.Text != "p" || string(r.Extra) != `{"application/vnd.x+json":{"k": "v"},"image/gif":"R0lGOA=="}` && string(r.Extra) != `{"image/gif":"R0lGOA==","application/vnd.x+json":{"k": "v"}}` {
		t.Errorf("bundle: %+v", r)
	}
	o = b.python("Bad()")
	want{Main: "~Bad object", Stderr: "~no html"}.check(t, "Bad()", o)
	want{Main: "~class"}.check(t, "Rich", b.python("Rich"))
	o = b.python("from IPython.display import display as d, HTML, Markdown, Image, JSON\nd(HTML('<i>h</i>'), Markdown('# m'))\nJSON({'a': 1})")
	if len(o.results) != 3 || o.results[0].HTML != "<i>h</i>" || o.results[1].Markdown != "# m" || string(o.results[2].JSON) != `{"a": 1}` {
		t.Errorf("IPython.display: %+v %+v", o.results, o.err)
	}
	o = b.python("import IPython; IPython.get_ipython() is None, IPython.display.HTML is HTML")
	want{Main: "(True, True)"}.check(t, "IPython", o)
	want{Error: "ModuleNotFoundError", Value: "~IPython.nope", Exit: 1}.check(t, "nope", b.python("import IPython.nope"))
}

// Case 70: results have bounds, and say so.
func TestBigResults(t *testing.T) {
	b := newBench(t, true)
	for code, part := range map[string]string{
		"'x' * (10 << 20)": "only the first 256 KB",
		"class Big:\n    def __repr__(self): return 'y' * (100 << 20)\nBig()":  "only the first 256 KB",
		"class Pic:\n    def _repr_png_(self): return b'p' * (8 << 20)\nPic()": "image/png of 11.2 MB left out",
		"class Web:\n    def _repr_html_(self): return 'é' * (1 << 20)\nWeb()": "text/html of 6.3 MB left out",
		"display({'text/html': 'h' * (6 << 20)}, raw=True)":                    "text/html of 6.3 MB left out",
		"{i: 'v' * 1000 for i in range(1000)}":                                 "only the first 256 KB",
	} {
		o := b.python(code)
		if len(o.results) != 1 {
			t.Errorf("%.60s: %d results, error %+v, end %+v", code, len(o.results), o.err, o.end)
		} else if text := o.results[0].Text; !strings.Contains(text, part) || len(text) > 300<<10 {
			t.Errorf("%.60s: %d bytes of text, lacks %q: %.300q", code, len(text), part, text)
		}
	}
	o := b.python("class Ok:\n    def _repr_png_(self): return b'p' * (3 << 20)\nOk()")
	if len(o.results) != 1 || len(o.results[0].PNG) != 4<<20 {
		t.Errorf("3 MB picture: %d", len(o.results))
	}
}

// fakes stand for packages that are not installed here.
var fakes = map[string]string{
	"matplotlib/__init__.py": "def use(b): pass\n",
	"matplotlib/figure.py": `
class Figure:
    def __init__(self, n): self.n, self.saved = n, 0
    def savefig(self, f, format=None, **k):
        self.saved += 1
        f.write(b'\x89PNG fig %d' % self.n)
    def get_axes(self): return []
    def __repr__(self): return '<Figure %d>' % self.n
`,
	"matplotlib/pyplot.py": `
from .figure import Figure
figs = {}
n = 0
def figure(num=None):
    global n
    globals()['show'].__signature__ = None # as the real one does
    if num in figs: return figs[num]
    n += 1
    figs[n] = Figure(n)
    return figs[n]
def plot(*a):
    if not figs: figure()
def gcf(): return figs[max(figs)]
def get_fignums(): return sorted(figs)
def close(f=None):
    for k in [k for k, v in figs.items() if f in (None, 'all', v)]: del figs[k]
def show(*a, **k): raise RuntimeError('the real show')
def tight_layout(): pass
`,
	"pandas/__init__.py": `
class DataFrame:
    size = 4
    def _repr_html_(self): return '<table></table>'
    def __repr__(self): return '   a  b'
    def to_dict(self, orient): return {'a': [1, 2], 'b': [1.5, float('nan')]}
DataFrame.__module__ = 'pandas.core.frame'
`,
}

// Case 63 and its neighbours.
func TestFigures(t *testing.T) {
	b := newBench(t, true)
	lib := filepath.Join(b.home, "lib")
	for name, text := range fakes {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(lib, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(lib, name), []byte(text), 0o644))
	}
	b.env["PYTHONPATH"] = lib
	const imports = "import matplotlib.pyplot as plt\n"
	for _, test := range []struct {
		code     string
		pictures int
		exit     int
	}{
		{imports + "plt.plot([1,2]); plt.tight_layout(); plt.show()", 1, 0},
		{imports + "plt.plot([1,2])", 1, 0},
		{"plt.figure(); plt.figure()", 2, 0},
		{"for _ in range(3):\n    plt.plot([1]); plt.show()", 3, 0},
		{"plt.plot([1]); 1/0", 1, 1},
		{"import matplotlib; matplotlib.use('Agg'); plt.plot([1]); plt.show()", 1, 0},
		{"fig = plt.figure(); fig", 1, 0},
		{"fig = plt.figure(); plt.show(); fig", 1, 0},
		{"fig", 1, 0},
		{"plt.plot([1]); plt.close()", 0, 0},
		{"1", 0, 0},
		{"from matplotlib.pyplot import show, plot\nplot([1]); show(block=False)", 1, 0},
	} {
		o := b.python(test.code)
		n := 0
		for _, r := range o.results {
			if r.PNG != "" {
				n++
			}
		}
		if n != test.pictures || o.end.ExitCode != test.exit || o.stderr != "" {
			t.Errorf("%s: %d pictures, end %+v, error %+v, stderr %s", test.code, n, o.end, o.err, o.stderr)
		}
	}
	o := b.python("import pandas; pandas.DataFrame()")
	if r := o.results[0]; r.HTML != "<table></table>" || r.Text != "   a  b" || string(r.Data) != `{"a": [1, 2], "b": [1.5, null]}` {
		t.Errorf("data frame: %+v", r)
	}
}
