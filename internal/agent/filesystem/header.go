//go:build linux

package filesystem

import (
	"fmt"
	"strconv"
	"strings"
)

// coding is how a file is to be sent.
type coding int

const (
	codingIdentity   coding = iota // as it is
	codingPreferGzip               // compressed; as it is would do too
	codingGzip                     // compressed only
	codingNone                     // neither
)

// accepted reads Accept-Encoding (RFC 9110, section 12.5.3). Identity, when not
// named, is acceptable and comes last. gzip is never chosen for "*" alone.
func accepted(values []string) coding {
	weight := map[string]float64{}
	for item := range strings.SplitSeq(strings.Join(values, ","), ",") {
		name, params, _ := strings.Cut(item, ";")
		name = strings.ToLower(strings.TrimSpace(name))
		if name == "x-gzip" {
			name = "gzip"
		}
		if name != "" {
			weight[name] = quality(params)
		}
	}
	star, anyGiven := weight["*"]
	gzip, gzipGiven := weight["gzip"]
	identity, identityGiven := weight["identity"]
	identityOK := identityGiven && identity > 0 || !identityGiven && (!anyGiven || star > 0)
	gzipOK := gzipGiven && gzip > 0 || !gzipGiven && anyGiven && star > 0
	switch {
	case !identityOK && gzipOK:
		return codingGzip
	case !identityOK:
		return codingNone
	case gzipGiven && gzip > 0 && (!identityGiven || gzip >= identity):
		return codingPreferGzip
	}
	return codingIdentity
}

// quality reads the q of a header item's parameters; without a good one it is 1.
func quality(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		k, v, _ := strings.Cut(strings.TrimSpace(p), "=")
		if !strings.EqualFold(strings.TrimSpace(k), "q") {
			continue
		}
		if q, err := strconv.ParseFloat(strings.TrimSpace(v), 64); err == nil && q >= 0 && q <= 1 {
			return q
		}
	}
	return 1
}

// disposition names a file for a client that saves it (RFC 6266): in plain
// ASCII, and when that is not all of the name, in the form of RFC 8187 too.
func disposition(name string) string {
	name = strings.ToValidUTF8(name, "\uFFFD")
	plain := strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' || c == '"' || c == '\\' || c == '%' || c == '/' {
			return '_'
		}
		return c
	}, name)
	d := `inline; filename="` + plain + `"`
	if plain == name {
		return d
	}
	var ext strings.Builder
	for _, b := range []byte(name) {
		if isAttrChar(b) {
			ext.WriteByte(b)
		} else {
			fmt.Fprintf(&ext, "%%%02X", b)
		}
	}
	return d + "; filename*=UTF-8''" + ext.String()
}

// isAttrChar is attr-char of RFC 8187.
func isAttrChar(b byte) bool {
	switch {
	case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9':
		return true
	}
	return strings.IndexByte("!#$&+-.^_`|~", b) >= 0
}
