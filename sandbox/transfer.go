package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
)

const (
	// MaxRead is the most bytes that [Files.Read] returns.
	MaxRead = 256 << 20
	// trusted is the length that a server may have allocated on its word alone.
	trusted = 32 << 20
)

// Read returns a file's content, at most [MaxRead] bytes (256 MiB; a longer one
// is ErrInvalid: give a [Range] or use [Files.ReadStream]). A path that does
// not exist is ErrNotFound, a folder ErrInvalid. The transfer is bounded by ctx
// alone.
//
// Options: [Range], [User].
func (f *Files) Read(ctx context.Context, path string, opts ...FileOption) ([]byte, error) {
	op := about("read", path)
	r, err := f.ReadStream(ctx, path, opts...)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	tooLong := invalid(op, fmt.Sprintf("the file is longer than %d MiB: read a range of it or as a stream", MaxRead>>20))
	if r.length > MaxRead {
		return nil, tooLong
	}
	var data []byte
	if r.length >= 0 && r.length <= trusted {
		data = make([]byte, r.length)
		_, err = io.ReadFull(r, data)
	} else if data, err = io.ReadAll(io.LimitReader(r, MaxRead+1)); len(data) > MaxRead {
		return nil, tooLong
	}
	if err != nil {
		e := f.sb.client.explain(ctx, op, f.sb.info.ID, err)
		if ctx.Err() == nil && e.kinds[0] == nil {
			e.kinds[0] = ErrLost
		}
		return nil, f.sb.redact(e)
	}
	return data, nil
}

// A FileReader is the content of a file as a stream. The caller must close it.
type FileReader struct {
	// Size is the length of the whole file in bytes, also when a [Range] was
	// asked for; -1: not told.
	Size int64

	body   io.ReadCloser
	r      io.Reader
	length int64 // of what will be read; -1: unknown
	cancel context.CancelFunc
}

// Read reads the file; a connection that is cut is an error other than io.EOF.
func (r *FileReader) Read(p []byte) (int, error) { return r.r.Read(p) }

// Close ends the transfer. It may be called twice and while Read runs.
func (r *FileReader) Close() error {
	r.cancel()
	return r.body.Close()
}

// ReadStream opens a file for reading. ctx bounds all of the reading, the
// client's request timeout only the time until the content begins. Errors and
// options are those of [Files.Read]; there is no limit of length.
func (f *Files) ReadStream(ctx context.Context, path string, opts ...FileOption) (*FileReader, error) {
	set, err := newFileSettings("read", path, usedRange, opts)
	if err != nil {
		return nil, err
	}
	op := about("read", path)
	inner, cancel := context.WithCancelCause(ctx)
	stop := func() { cancel(nil) }
	var dog *time.Timer
	if t := f.sb.client.timeout; t > 0 {
		dog = time.AfterFunc(t, func() { cancel(context.DeadlineExceeded) })
		defer dog.Stop()
	}
	r, err := f.open(inner, path, set)
	if err != nil {
		if errors.Is(context.Cause(inner), context.DeadlineExceeded) {
			err = context.DeadlineExceeded
		}
		stop()
		return nil, f.sb.redact(f.sb.client.explain(ctx, op, f.sb.info.ID, err))
	}
	r.cancel = stop
	return r, nil
}

// open sends the request for a file, again after a 429 that says when.
func (f *Files) open(ctx context.Context, path string, set *fileSettings) (*FileReader, error) {
	for try := 0; ; try++ {
		r := f.sb.request(ctx, http.MethodGet, e2b.PortAgent, "/files", f.query(path, set.user).Encode(), nil, 0)
		ranged := set.used&usedRange != 0 && (set.offset > 0 || set.count > 0)
		if ranged {
			last := ""
			if set.count > 0 && set.offset+set.count > 0 {
				last = strconv.FormatInt(set.offset+set.count-1, 10)
			}
			r.Header["Range"] = []string{"bytes=" + strconv.FormatInt(set.offset, 10) + "-" + last}
		}
		resp, err := f.sb.send(r, e2b.PortAgent)
		var e *Error
		if errors.As(err, &e) && e.Status == http.StatusRequestedRangeNotSatisfiable && ranged {
			return &FileReader{Size: e.size, body: http.NoBody, r: http.NoBody}, nil
		}
		if err == nil {
			return newFileReader(resp, set)
		}
		if e == nil || try == maxRetries || e.Status != http.StatusTooManyRequests || e.RetryAfter == 0 || e.RetryAfter > maxRetryWait {
			return nil, err
		}
		if err := sleep(ctx, e.RetryAfter); err != nil {
			return nil, err
		}
	}
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func newFileReader(resp *http.Response, set *fileSettings) (*FileReader, error) {
	fr := &FileReader{Size: resp.ContentLength, body: resp.Body, r: resp.Body, length: resp.ContentLength}
	if resp.StatusCode == http.StatusPartialContent {
		fr.Size = wholeSize(resp.Header)
		return fr, nil
	}
	// The server sent the whole: it knows no ranges, or none was asked for.
	if set.offset > 0 {
		if _, err := io.CopyN(io.Discard, resp.Body, set.offset); err != nil && !errors.Is(err, io.EOF) {
			_ = resp.Body.Close()
			return nil, &Error{Message: "read the answer: " + oneLine(err.Error()), kinds: [2]error{ErrLost}, cause: err}
		}
		if fr.length >= 0 {
			fr.length = max(0, fr.length-set.offset)
		}
	}
	if set.count > 0 {
		fr.r = io.LimitReader(resp.Body, set.count)
		if fr.length > set.count {
			fr.length = set.count
		}
	}
	return fr, nil
}

// wholeSize is the size of a file in Content-Range; -1: not told.
func wholeSize(h http.Header) int64 {
	_, size, _ := strings.Cut(h.Get("Content-Range"), "/")
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// Write makes or overwrites a file with data; missing parent folders are made.
// The transfer is bounded by ctx alone. A disk without room is ErrCapacity.
//
// Options: [User], who owns the file.
func (f *Files) Write(ctx context.Context, path string, data []byte, opts ...FileOption) error {
	return f.write(ctx, path, bytes.NewReader(data), int64(len(data)), opts)
}

// WriteStream is [Files.Write] with what r gives until io.EOF, in constant
// memory. After an error a part of it may be in the file. r is not closed; when
// ctx ends WriteStream returns even if r.Read blocks, and r may be read once
// more after that.
func (f *Files) WriteStream(ctx context.Context, path string, r io.Reader, opts ...FileOption) error {
	switch known := r.(type) {
	case *bytes.Reader:
		return f.write(ctx, path, known, int64(known.Len()), opts)
	case *bytes.Buffer:
		return f.write(ctx, path, known, int64(known.Len()), opts)
	case *strings.Reader:
		return f.write(ctx, path, known, int64(known.Len()), opts)
	}
	// The transport reads until it is told to stop, so what it reads must be
	// something that can be closed under it.
	pr, pw := io.Pipe()
	go func() {
		_, err := io.Copy(pw, r)
		_ = pw.CloseWithError(err)
	}()
	stop := context.AfterFunc(ctx, func() { _ = pr.CloseWithError(ctx.Err()) })
	defer stop()
	defer pr.Close()
	return f.write(ctx, path, pr, -1, opts)
}

func (f *Files) write(ctx context.Context, path string, body io.Reader, size int64, opts []FileOption) error {
	set, err := newFileSettings("write", path, 0, opts)
	if err != nil {
		return err
	}
	op := about("write", path)
	kind := "application/octet-stream"
	if !f.sb.atLeast(0, 5, 7) {
		if body, size, kind, err = formOf(path, body, size); err != nil {
			return &Error{Op: op, Message: "encode request", cause: err}
		}
	}
	r := f.sb.request(ctx, http.MethodPost, e2b.PortAgent, "/files", f.query(path, set.user).Encode(), body, size)
	r.Header["Content-Type"] = []string{kind}
	resp, err := f.sb.send(r, e2b.PortAgent)
	if err != nil {
		return f.sb.redact(f.sb.client.explain(ctx, op, f.sb.info.ID, err))
	}
	drain(resp.Body)
	return nil
}

// formOf wraps body in the form that agents before 0.5.7 want, without holding
// it in memory.
func formOf(path string, body io.Reader, size int64) (io.Reader, int64, string, error) {
	var frame bytes.Buffer
	w := multipart.NewWriter(&frame)
	if _, err := w.CreateFormFile("file", path); err != nil {
		return nil, 0, "", err
	}
	head := bytes.Clone(frame.Bytes())
	frame.Reset()
	if err := w.Close(); err != nil {
		return nil, 0, "", err
	}
	if size >= 0 {
		size += int64(len(head) + frame.Len())
	}
	parts := io.MultiReader(bytes.NewReader(head), body, &frame)
	if c, ok := body.(io.Closer); ok {
		return struct {
			io.Reader
			io.Closer
		}{parts, c}, size, w.FormDataContentType(), nil
	}
	return parts, size, w.FormDataContentType(), nil
}

func (f *Files) query(path, user string) url.Values {
	v := url.Values{"path": {path}}
	if user = f.sb.username(user); user != "" {
		v.Set("username", user)
	}
	return v
}
