package mcptest

import (
	"context"
	"io"
	"net/http"
	"sync"
)

// transport calls a handler for every request, in memory and streaming.
type transport struct{ h http.Handler }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	in := r.Clone(ctx)
	in.RequestURI = in.URL.RequestURI()
	if in.Host == "" {
		in.Host = in.URL.Host
	}
	if in.Body == nil {
		in.Body = http.NoBody
	} else if in.ContentLength == 0 {
		in.ContentLength = -1
	}
	pr, pw := io.Pipe()
	w := &writer{header: http.Header{}, body: pw, begun: make(chan struct{})}
	go func() {
		defer cancel()
		defer func() {
			if v := recover(); v == any(http.ErrAbortHandler) {
				_ = pw.CloseWithError(io.ErrUnexpectedEOF)
			} else if v != nil {
				panic(v)
			}
			w.WriteHeader(http.StatusOK)
			_ = pw.Close()
		}()
		t.h.ServeHTTP(w, in)
	}()
	stop := context.AfterFunc(r.Context(), func() { _ = pr.CloseWithError(r.Context().Err()) })
	select {
	case <-w.begun:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	resp := &http.Response{
		StatusCode: w.status, Status: http.StatusText(w.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Request: r, ContentLength: length(w.sent),
		Body: body{pr, func() { stop(); cancel() }},
	}
	return resp, nil
}

type body struct {
	*io.PipeReader
	done func()
}

func (b body) Close() error {
	b.done()
	return b.PipeReader.Close()
}

type writer struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	begun  chan struct{} // closed when status and sent are valid
	status int
	sent   http.Header
}

func (w *writer) Header() http.Header { return w.header }

func (w *writer) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.begun)
	})
}

func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

func (w *writer) Flush() { w.WriteHeader(http.StatusOK) }
