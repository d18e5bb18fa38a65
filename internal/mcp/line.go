package mcp

import (
	"bufio"
	"errors"
	"io"
)

// errLineTooLong is for a line over the limit, which was skipped.
var errLineTooLong = errors.New("line too long")

// A lineReader cuts a stream into lines, each at most max bytes long.
type lineReader struct {
	r   *bufio.Reader
	max int
}

func newLineReader(r io.Reader, most int) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 64<<10), max: most}
}

// next returns the next line without its end. A longer one than max is skipped
// without being kept and is errLineTooLong; the next call goes on behind it.
// What follows the last line end counts as a line too. The result is the
// caller's to keep.
func (l *lineReader) next() ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := l.r.ReadSlice('\n')
		if n := len(part); n > 0 && part[n-1] == '\n' {
			part = part[:n-1]
		}
		if long = long || len(line)+len(part) > l.max; long {
			line = nil
		} else {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !long && len(line) == 0:
			return nil, err
		case long:
			return nil, errLineTooLong
		}
		return line, nil
	}
}
