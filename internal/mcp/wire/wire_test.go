package wire

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

var texts = []string{
	`{}`, `[]`, `null`, ` {"a":1,"b":[true,false,null,{"c":"\ud83d\ude00\n"}]} `, `"x"`, `-0.5e+10`, `01`, `1.`, `-`, `1e`, `{"a"}`, `{"a":}`,
	`{"a":1,}`, `[1,]`, `"\x"`, `"\u12g4"`, "\"a\nb\"", `"`, `"\`, `tru`, `nul`, `{} x`, ``, ` `, `{"a":"` + strings.Repeat("y", 100) + `\\"}`,
	"\"\x7f\x80\xff\"", "\"12345678\x1f\"", `"\ud800"`, `"\ud800\u0041"`, `{"\u0061":1}`, `[[[[]]]]`, "\"1234567\\\"\"", `{1:2}`, `{"a" 1}`,
}

func TestValidAgreesWithEncodingJSON(t *testing.T) {
	for _, s := range texts {
		if got, want := Valid([]byte(s)) == nil, json.Valid([]byte(s)); got != want {
			t.Errorf("Valid(%q): accepted %v, want %v", s, got, want)
		}
	}
}

func TestDepth(t *testing.T) {
	deep := func(n int) []byte { return []byte(strings.Repeat("[", n) + strings.Repeat("]", n)) }
	if err := Valid(deep(MaxDepth)); err != nil {
		t.Error(err)
	}
	if err := Valid(deep(MaxDepth + 1)); err == nil {
		t.Error("nesting over MaxDepth was accepted")
	}
}

func TestObject(t *testing.T) {
	var got []string
	err := Object([]byte(` {"a" : 1 , "\u0062":"x","c":{"d":[]}} `), func(key, val []byte) error {
		got = append(got, string(key)+"="+string(val))
		return nil
	})
	if want := `a=1 b="x" c={"d":[]}`; err != nil || strings.Join(got, " ") != want {
		t.Errorf("got %v, %v; want %s", got, err, want)
	}
}

func TestLineSeparatorsAreEscaped(t *testing.T) {
	const s = "a\u2028b\u2029c\u0085d\n"
	if got, want := string(AppendString(nil, s)), `"a\u2028b\u2029c\u0085d\n"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestBuilder(t *testing.T) {
	var b Builder
	b.String("s", "a\"b")
	b.Int("n", -5)
	b.Bool("t", true)
	b.Strings("l", []string{"x", "y"})
	b.Raw("r", []byte(`{"k":1}`))
	if got, want := string(b.JSON()), `{"s":"a\"b","n":-5,"t":true,"l":["x","y"],"r":{"k":1}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	var empty Builder
	if got := string(empty.JSON()); got != "{}" {
		t.Errorf("empty object: got %s", got)
	}
}

func FuzzValid(f *testing.F) {
	for _, s := range texts {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) > MaxDepth {
			return
		}
		valid := Valid(data) == nil
		if valid != json.Valid(data) {
			t.Fatalf("accepted %v, encoding/json %v", valid, !valid)
		}
		var want map[string]json.RawMessage
		if json.Unmarshal(data, &want) != nil || want == nil {
			return
		}
		got := map[string]string{}
		if err := Object(data, func(k, v []byte) error { got[string(k)] = string(v); return nil }); err != nil {
			t.Fatal(err)
		}
		for k, v := range got {
			if string(want[k]) != v {
				t.Fatalf("member %q: got %q, want %q", k, v, want[k])
			}
		}
	})
}

func FuzzString(f *testing.F) {
	for _, s := range texts {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		lit := AppendString(nil, s)
		if !bytes.Equal(lit, AppendString(nil, []byte(s))) {
			t.Fatal("string and bytes differ")
		}
		var back string
		if err := json.Unmarshal(lit, &back); err != nil {
			t.Fatalf("%s: %v", lit, err)
		}
		var want string
		std, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(std, &want); err != nil {
			t.Fatal(err)
		}
		if back != want {
			t.Fatalf("got %q, want %q", back, want)
		}
		got, err := String(std)
		if err != nil || string(got) != want {
			t.Fatalf("String(%s): %q, %v; want %q", std, got, err, want)
		}
	})
}

func BenchmarkScan8MiB(b *testing.B) {
	data := AppendString(nil, strings.Repeat("the quick brown fox jumps over it\n", 8<<20/34))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if err := Valid(data); err != nil {
			b.Fatal(err)
		}
		if _, err := String(data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppend8MiB(b *testing.B) {
	s := []byte(strings.Repeat("the quick brown fox jumps over it\n", 8<<20/34))
	buf := make([]byte, 0, 9<<20)
	b.SetBytes(int64(len(s)))
	for b.Loop() {
		buf = AppendString(buf[:0], s)
	}
}
