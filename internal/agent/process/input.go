//go:build linux

package process

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// errInputClosed is returned for input to a process that takes none any more.
var errInputClosed = errors.New("input is closed")

// input is what a process reads: the end of a pipe, or a terminal. Pieces are
// written whole, one after the other.
type input struct {
	file *os.File
	turn chan struct{} // holds one token while nobody writes
}

func newInput(f *os.File) *input {
	in := &input{file: f, turn: make(chan struct{}, 1)}
	in.turn <- struct{}{}
	return in
}

// write waits until the process has room for all of p, or ctx is done.
func (in *input) write(ctx context.Context, p []byte) error {
	select {
	case <-in.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { in.turn <- struct{}{} }()
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = in.file.SetWriteDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	_, err := in.file.Write(p)
	if !stop() {
		<-interrupted
		_ = in.file.SetWriteDeadline(time.Time{})
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ctx.Err()
	case errors.Is(err, os.ErrClosed), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EIO):
		return errInputClosed
	}
	return err
}

// close ends the input; a write that waits returns errInputClosed. Safe to
// call twice.
func (in *input) close() { _ = in.file.Close() }
