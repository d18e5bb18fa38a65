package wire

import "strconv"

// A Builder appends the members of a JSON object, in the order of the calls.
// The zero value is an empty object.
type Builder struct{ buf []byte }

// Grow makes room for n more bytes.
func (b *Builder) Grow(n int) {
	if cap(b.buf)-len(b.buf) < n {
		b.buf = append(make([]byte, 0, len(b.buf)+n), b.buf...)
	}
}

func (b *Builder) key(name string) {
	if len(b.buf) == 0 {
		b.buf = append(b.buf, '{')
	} else {
		b.buf = append(b.buf, ',')
	}
	b.buf = AppendString(b.buf, name)
	b.buf = append(b.buf, ':')
}

// String adds a string member.
func (b *Builder) String(name, val string) {
	b.key(name)
	b.buf = AppendString(b.buf, val)
}

// Text adds a string member, given as bytes.
func (b *Builder) Text(name string, val []byte) {
	b.key(name)
	b.buf = AppendString(b.buf, val)
}

// Int adds a number member.
func (b *Builder) Int(name string, val int64) {
	b.key(name)
	b.buf = strconv.AppendInt(b.buf, val, 10)
}

// Bool adds a true or false member.
func (b *Builder) Bool(name string, val bool) {
	b.key(name)
	b.buf = strconv.AppendBool(b.buf, val)
}

// Raw adds a member whose value is JSON already.
func (b *Builder) Raw(name string, val []byte) {
	b.key(name)
	b.buf = append(b.buf, val...)
}

// Strings adds an array of strings.
func (b *Builder) Strings(name string, vals []string) {
	b.key(name)
	b.buf = append(b.buf, '[')
	for i, v := range vals {
		if i > 0 {
			b.buf = append(b.buf, ',')
		}
		b.buf = AppendString(b.buf, v)
	}
	b.buf = append(b.buf, ']')
}

// JSON returns the object, closed. The Builder is not used after it.
func (b *Builder) JSON() []byte {
	if len(b.buf) == 0 {
		return []byte("{}")
	}
	return append(b.buf, '}')
}
