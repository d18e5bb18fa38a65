//go:build linux

package output

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// Of the newest output so many bytes are kept, and so many at most make a line.
const (
	recentBytes = 2048
	lineBytes   = 512
)

// remember keeps the newest bytes of the stream.
func (w *Window) remember(p []byte) {
	if len(p) >= recentBytes {
		w.recent = append(w.recent[:0], p[len(p)-recentBytes:]...)
		return
	}
	if over := len(w.recent) + len(p) - recentBytes; over > 0 {
		w.recent = w.recent[:copy(w.recent, w.recent[over:])]
	}
	w.recent = append(w.recent, p...)
}

// NewestLine is the last line that is not blank, finished or not, as valid
// UTF-8 of at most 512 bytes without its line end. A carriage return begins a
// line too, so of a progress bar it is the newest state.
func (w *Window) NewestLine() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return newestLine(w.recent)
}

func newestLine(recent []byte) string {
	b := bytes.TrimRight(recent, " \t\r\n")
	if i := bytes.LastIndexAny(b, "\r\n"); i >= 0 {
		b = b[i+1:]
	}
	if len(b) > lineBytes {
		b = b[:lineBytes]
	}
	// Both ends may be cut inside a character.
	for i := 0; i < utf8.UTFMax && len(b) > 0 && !utf8.RuneStart(b[0]); i++ {
		b = b[1:]
	}
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i:]; utf8.RuneStart(c[0]) && !utf8.FullRune(c) {
			b = b[:len(b)-i]
			break
		}
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}
