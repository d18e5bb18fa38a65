//go:build linux

package filesystem

import (
	"mime"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAccepted(t *testing.T) {
	for _, tt := range []struct {
		give string
		want coding
	}{
		{"", codingIdentity},
		{"identity", codingIdentity},
		{"gzip", codingPreferGzip},
		{"gzip, deflate, br", codingPreferGzip},
		{"GZIP;q=0.5", codingPreferGzip},
		{"x-gzip", codingPreferGzip},
		{"gzip;q=0", codingIdentity},
		{"gzip;q=0.5, identity", codingIdentity},
		{"gzip;q=0.5, identity;q=0.4", codingPreferGzip},
		{"br", codingIdentity},
		{"*", codingIdentity},
		{"*;q=0", codingNone},
		{"identity;q=0", codingNone},
		{"identity;q=0, br", codingNone},
		{"identity;q=0, gzip", codingGzip},
		{"identity;q=0, *", codingGzip},
		{"gzip, *;q=0", codingGzip},
		{"identity;q=0, gzip;q=0", codingNone},
		{"gzip;q=nonsense", codingPreferGzip},
		{",,;q=1,", codingIdentity},
	} {
		if got := accepted([]string{tt.give}); got != tt.want {
			t.Errorf("accepted(%q) = %v, want %v", tt.give, got, tt.want)
		}
	}
}

func TestDisposition(t *testing.T) {
	for _, name := range []string{
		"a.txt", "a b.txt", "文件.txt", "e\u0301", "é", "'q'.txt", `"q".txt`, `a\b`, "-rf", "a\nb\r\nX-Evil: 1", "100%.txt", "a;b=c",
		strings.Repeat("文", 85), "~!@#$&()+=[]{}|`^*",
	} {
		got := disposition(name)
		if strings.ContainsFunc(got, func(c rune) bool { return c < ' ' || c > '~' }) {
			t.Errorf("disposition(%q) = %q: not printable ASCII", name, got)
		}
		kind, params, err := mime.ParseMediaType(got)
		if err != nil || kind != "inline" || params["filename"] != name {
			t.Errorf("disposition(%q) = %q: read as %q, %q, %v", name, got, kind, params["filename"], err)
		}
	}
	if got, want := disposition("a.txt"), `inline; filename="a.txt"`; got != want {
		t.Errorf("disposition = %s, want %s", got, want)
	}
	if got, want := disposition("\xff"), `inline; filename="_"; filename*=UTF-8''%EF%BF%BD`; got != want {
		t.Errorf("disposition = %s, want %s", got, want)
	}
}

func TestPartNames(t *testing.T) {
	for _, tt := range []struct{ give, name, file string }{
		{`form-data; name="file"; filename="/tmp/a/b.txt"`, "file", "/tmp/a/b.txt"},
		{`form-data; name="file"; filename="../x"`, "file", "../x"},
		{`form-data; name="file"; filename="数据.csv"`, "file", "数据.csv"},
		{`form-data; name="file"; filename="a%22b%0Ac%0Dd%20"`, "file", "a\"b\nc\rd%20"},
		{`form-data; name="file"; filename="a\"b"`, "file", `a"b`},
		{`form-data; name="file"; filename="C:\dir\f"`, "file", `C:\dir\f`},
		{`form-data; name="file"; filename*=UTF-8''%E6%96%87`, "file", "文"},
		{`form-data; name="file"`, "file", ""},
		{`form-data; name="other"; filename=x`, "other", "x"},
		{`form-data; name="fi`, "", ""},
		{``, "", ""},
	} {
		name, file := partNames(tt.give)
		if name != tt.name || file != tt.file {
			t.Errorf("partNames(%s) = %q, %q; want %q, %q", tt.give, name, file, tt.name, tt.file)
		}
	}
}

func TestMetadataOf(t *testing.T) {
	h := http.Header{}
	h.Set("X-Metadata-Author", "me")
	h.Add("x-metadata-a_B", "1")
	h.Add("x-metadata-a_B", "2")
	h.Set("X-Other", "x")
	got, err := metadataOf(h)
	if diff := cmp.Diff(map[string]string{"author": "me", "a_b": "1, 2"}, got); diff != "" || err != nil {
		t.Errorf("metadataOf: %v\n%s", err, diff)
	}
	for _, bad := range []http.Header{
		{"X-Metadata-": {"v"}},
		{"X-Metadata-K": {"é"}},
		{"X-Metadata-K": {"a\x01"}},
		{"X-Metadata-" + strings.Repeat("k", maxMetadataKey+1): {"v"}},
		{"X-Metadata-K": {strings.Repeat("v", maxMetadata)}},
	} {
		if _, err := metadataOf(bad); kindOf(err) != kindInvalid {
			t.Errorf("metadataOf(%.60v) = %v, want an invalid request", bad, err)
		}
	}
}
