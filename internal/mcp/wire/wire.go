// Package wire reads and writes the JSON of MCP messages without the copies
// and the repeated passes of a general encoder: a message may hold a file of
// 8 MiB in one string. It knows JSON only, nothing of MCP.
//
// Its one invariant: a text is accepted if and only if encoding/json accepts
// it (and nests no deeper than MaxDepth); fuzz tests hold that.
package wire

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// MaxDepth is how deep arrays and objects may nest.
const MaxDepth = 1000

// SyntaxError says where a text stops being JSON.
type SyntaxError struct {
	Offset int // in bytes
	What   string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s at byte %d", e.What, e.Offset)
}

// Valid reports whether data is one JSON value, nil, or where it is not.
func Valid(data []byte) error {
	end, err := value(data, skip(data, 0), 0)
	if err != nil {
		return err
	}
	return atEnd(data, end)
}

// Object calls each for every member of the JSON object in data, in order. Key
// is decoded, val is the raw text of the value; both may be parts of data.
// A syntax error comes after the members before it; an error of each ends the
// walk and is returned as it is.
func Object(data []byte, each func(key, val []byte) error) error {
	i := skip(data, 0)
	if i >= len(data) || data[i] != '{' {
		return unexpected(data, i, "an object")
	}
	i = skip(data, i+1)
	if i < len(data) && data[i] == '}' {
		return atEnd(data, i+1)
	}
	for {
		key, from, to, err := member(data, i, 1)
		if err != nil {
			return err
		}
		name, err := String(key)
		if err != nil {
			return err
		}
		if err := each(name, data[from:to]); err != nil {
			return err
		}
		i = skip(data, to)
		switch {
		case i < len(data) && data[i] == '}':
			return atEnd(data, i+1)
		case i < len(data) && data[i] == ',':
			i = skip(data, i+1)
		default:
			return unexpected(data, i, "',' or '}'")
		}
	}
}

// member scans `"key" : value` at i.
func member(data []byte, i, depth int) (key []byte, from, to int, err error) {
	if i >= len(data) || data[i] != '"' {
		return nil, 0, 0, unexpected(data, i, "a key")
	}
	end, err := quoted(data, i)
	if err != nil {
		return nil, 0, 0, err
	}
	key = data[i:end]
	i = skip(data, end)
	if i >= len(data) || data[i] != ':' {
		return nil, 0, 0, unexpected(data, i, "':'")
	}
	from = skip(data, i+1)
	to, err = value(data, from, depth)
	return key, from, to, err
}

// value scans the value at i and returns where it ends.
func value(data []byte, i, depth int) (int, error) {
	if i >= len(data) {
		return i, unexpected(data, i, "a value")
	}
	switch c := data[i]; {
	case c == '"':
		return quoted(data, i)
	case c == '{' || c == '[':
		if depth >= MaxDepth {
			return i, &SyntaxError{i, fmt.Sprintf("nested deeper than %d", MaxDepth)}
		}
		if c == '{' {
			return object(data, i, depth+1)
		}
		return array(data, i, depth+1)
	case c == '-' || c >= '0' && c <= '9':
		return number(data, i)
	case c == 't':
		return literal(data, i, "true")
	case c == 'f':
		return literal(data, i, "false")
	case c == 'n':
		return literal(data, i, "null")
	}
	return i, unexpected(data, i, "a value")
}

func object(data []byte, i, depth int) (int, error) {
	i = skip(data, i+1)
	if i < len(data) && data[i] == '}' {
		return i + 1, nil
	}
	for {
		_, _, to, err := member(data, i, depth)
		if err != nil {
			return to, err
		}
		i = skip(data, to)
		switch {
		case i < len(data) && data[i] == '}':
			return i + 1, nil
		case i < len(data) && data[i] == ',':
			i = skip(data, i+1)
		default:
			return i, unexpected(data, i, "',' or '}'")
		}
	}
}

func array(data []byte, i, depth int) (int, error) {
	i = skip(data, i+1)
	if i < len(data) && data[i] == ']' {
		return i + 1, nil
	}
	for {
		to, err := value(data, i, depth)
		if err != nil {
			return to, err
		}
		i = skip(data, to)
		switch {
		case i < len(data) && data[i] == ']':
			return i + 1, nil
		case i < len(data) && data[i] == ',':
			i = skip(data, i+1)
		default:
			return i, unexpected(data, i, "',' or ']'")
		}
	}
}

func literal(data []byte, i int, word string) (int, error) {
	for j := range len(word) {
		if i+j >= len(data) || data[i+j] != word[j] {
			return i + j, unexpected(data, i+j, word)
		}
	}
	return i + len(word), nil
}

func number(data []byte, i int) (int, error) {
	if data[i] == '-' {
		i++
	}
	switch {
	case i < len(data) && data[i] == '0':
		i++
	case i < len(data) && data[i] >= '1' && data[i] <= '9':
		i = digits(data, i)
	default:
		return i, unexpected(data, i, "a digit")
	}
	if i < len(data) && data[i] == '.' {
		end := digits(data, i+1)
		if end == i+1 {
			return end, unexpected(data, end, "a digit")
		}
		i = end
	}
	if i < len(data) && (data[i] == 'e' || data[i] == 'E') {
		i++
		if i < len(data) && (data[i] == '+' || data[i] == '-') {
			i++
		}
		end := digits(data, i)
		if end == i {
			return end, unexpected(data, end, "a digit")
		}
		i = end
	}
	return i, nil
}

func digits(data []byte, i int) int {
	for i < len(data) && data[i] >= '0' && data[i] <= '9' {
		i++
	}
	return i
}

// quoted scans the string literal that starts at i.
func quoted(data []byte, i int) (int, error) {
	for i++; ; {
		i = plain(data, i)
		if i >= len(data) {
			return i, &SyntaxError{i, "string without an end"}
		}
		switch c := data[i]; {
		case c == '"':
			return i + 1, nil
		case c == '\\':
			end, err := escape(data, i)
			if err != nil {
				return end, err
			}
			i = end
		default:
			return i, &SyntaxError{i, fmt.Sprintf("control character %#02x in a string", c)}
		}
	}
}

func escape(data []byte, i int) (int, error) {
	if i+1 >= len(data) {
		return i, &SyntaxError{i + 1, "string without an end"}
	}
	switch data[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2, nil
	case 'u':
		for j := i + 2; j < i+6; j++ {
			if j >= len(data) || unhex(data[j]) > 15 {
				return j, unexpected(data, j, "a hexadecimal digit")
			}
		}
		return i + 6, nil
	}
	return i + 1, unexpected(data, i+1, "an escape")
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plain returns the first index from i whose byte is a quote, a backslash or a
// control character, eight bytes at a time.
func plain(data []byte, i int) int {
	for ; i+8 <= len(data); i += 8 {
		x := binary.LittleEndian.Uint64(data[i:])
		if m := special(x); m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for i < len(data) && data[i] >= 0x20 && data[i] != '"' && data[i] != '\\' {
		i++
	}
	return i
}

// special marks, in the high bit of its byte, the first byte of x that is a
// quote, a backslash or below 0x20; later marks may be false.
func special(x uint64) uint64 {
	quote, back := x^(ones*'"'), x^(ones*'\\')
	return ((x-ones*0x20)&^x | (quote-ones)&^quote | (back-ones)&^back) & highs
}

func skip(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\t' || data[i] == '\r' || data[i] == '\n') {
		i++
	}
	return i
}

func atEnd(data []byte, i int) error {
	if i = skip(data, i); i < len(data) {
		return unexpected(data, i, "the end")
	}
	return nil
}

func unexpected(data []byte, i int, want string) error {
	if i >= len(data) {
		return &SyntaxError{len(data), "ends where " + want + " should be"}
	}
	return &SyntaxError{i, fmt.Sprintf("found %q where %s should be", data[i], want)}
}
