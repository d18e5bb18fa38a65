package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func transportTo(h http.HandlerFunc) *transport {
	return newTransport(h, slog.New(slog.DiscardHandler))
}

func ask(ctx context.Context, t testing.TB, method string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://user@embedded/a%2Fb?q=1#frag", body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func mustTrip(t testing.TB, tr http.RoundTripper, req *http.Request) *http.Response {
	t.Helper()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func TestRequestAsOverANetwork(t *testing.T) {
	type seen struct {
		Method, Host, URI, Path, RawPath, Proto, Body, Encoding string
		Length                                                  int64
		Header                                                  http.Header
		Server                                                  bool
	}
	var got seen
	tr := transportTo(func(_ http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		got = seen{
			r.Method, r.Host, r.RequestURI, r.URL.Path, r.URL.RawPath, r.Proto, string(data),
			strings.Join(r.TransferEncoding, ","), r.ContentLength, r.Header, r.Context().Value(http.ServerContextKey) != nil,
		}
		r.Header.Set("X-Changed", "by the handler")
		if r.URL.Host != "" || r.URL.Scheme != "" || r.URL.User != nil || r.URL.Fragment != "" {
			t.Errorf("URL %v", r.URL)
		}
	})
	base := seen{Host: "embedded", URI: "/a%2Fb?q=1", Path: "/a/b", RawPath: "/a%2Fb", Proto: "HTTP/1.1", Server: true}
	tests := []struct {
		name   string
		change func(*http.Request)
		want   func(*seen)
	}{
		{"get", func(*http.Request) {}, func(s *seen) { s.Method = "GET" }},
		{"no method, other host", func(r *http.Request) { r.Method, r.Host = "", "80-i1.test" }, func(s *seen) { s.Method, s.Host = "GET", "80-i1.test" }},
		{"sized body", func(r *http.Request) {
			r.Method, r.Body, r.ContentLength = "POST", io.NopCloser(strings.NewReader("hello")), 5
		}, func(s *seen) { s.Method, s.Body, s.Length = "POST", "hello", 5 }},
		{"unsized body", func(r *http.Request) {
			r.Method, r.Body, r.ContentLength = "POST", io.NopCloser(strings.NewReader("hello")), 0
		}, func(s *seen) { s.Method, s.Body, s.Length, s.Encoding = "POST", "hello", -1, "chunked" }},
		{"longer than said", func(r *http.Request) {
			r.Method, r.Body, r.ContentLength = "POST", io.NopCloser(strings.NewReader("hello")), 2
		}, func(s *seen) { s.Method, s.Body, s.Length = "POST", "he", 2 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req := ask(t.Context(), t, "GET", nil)
			req.Header.Set("X-A", "b")
			tt.change(req)
			resp := mustTrip(t, tr, req)
			io.Copy(io.Discard, resp.Body)
			want := base
			want.Header = http.Header{"X-A": {"b"}}
			tt.want(&want)
			got.Header.Del("X-Changed")
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("request (-want +got)\n%s", diff)
			}
			if req.Header.Get("X-Changed") != "" || req.URL.Host == "" {
				t.Error("the client's request was changed")
			}
			if resp.StatusCode != 200 || resp.ContentLength != 0 || resp.Request != req {
				t.Errorf("reply %+v", resp)
			}
		})
	}
}

// replies are handlers and what a client reads of them.
var replies = []struct {
	name    string
	method  string
	handler http.HandlerFunc
	status  string
	length  int64
	body    string
	err     error
	header  http.Header
	trailer http.Header
}{
	{
		name: "sniffed and unsized", handler: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") },
		status: "200 OK", length: -1, body: "<html>", header: http.Header{"Content-Type": {"text/html; charset=utf-8"}},
	},
	{
		name: "sized", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2")
			w.Header().Set("Content-Type", "x/y")
			w.WriteHeader(404)
			w.WriteHeader(200) // too late
			w.Header().Set("X-Late", "1")
			io.WriteString(w, "hi")
			if _, err := io.WriteString(w, "!"); err != http.ErrContentLength {
				panic(err)
			}
		},
		status: "404 Not Found", length: 2, body: "hi", header: http.Header{"Content-Type": {"x/y"}, "Content-Length": {"2"}},
	},
	{
		name: "shorter than said", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			w.Header().Set("Content-Type", "x/y")
			io.WriteString(w, "hi")
		},
		status: "200 OK", length: 5, body: "hi", err: io.ErrUnexpectedEOF, header: http.Header{"Content-Type": {"x/y"}, "Content-Length": {"5"}},
	},
	{
		name: "no content", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(103)
			w.WriteHeader(204)
			if _, err := io.WriteString(w, "x"); err != http.ErrBodyNotAllowed {
				panic(err)
			}
		},
		status: "204 No Content", header: http.Header{},
	},
	{
		name: "head", method: "HEAD", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			io.WriteString(w, "hello")
		},
		status: "200 OK", length: 5, header: http.Header{"Content-Type": {"text/plain; charset=utf-8"}, "Content-Length": {"5"}},
	},
	{
		name: "trailers", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum, X-None")
			w.Header().Set("Content-Type", "x/y")
			w.WriteHeader(200)
			w.Header().Set("X-Sum", "7")
			w.Header().Set(http.TrailerPrefix+"X-More", "8")
		},
		status: "200 OK", length: -1, header: http.Header{"Content-Type": {"x/y"}},
		trailer: http.Header{"X-Sum": {"7"}, "X-None": nil, "X-More": {"8"}},
	},
	{
		name: "abort after the begin", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "x/y")
			io.WriteString(w, "begin")
			panic(http.ErrAbortHandler)
		},
		status: "200 OK", length: -1, body: "begin", err: io.ErrUnexpectedEOF, header: http.Header{"Content-Type": {"x/y"}},
	},
	{
		name: "panic after the begin", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "x/y")
			w.(http.Flusher).Flush()
			panic("bug")
		},
		status: "200 OK", length: -1, err: io.ErrUnexpectedEOF, header: http.Header{"Content-Type": {"x/y"}},
	},
	{
		name: "handler's goroutine ends", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "x/y")
			io.WriteString(w, "begin")
			runtime.Goexit()
		},
		status: "200 OK", length: -1, body: "begin", err: io.ErrUnexpectedEOF, header: http.Header{"Content-Type": {"x/y"}},
	},
}

func TestReply(t *testing.T) {
	for _, tt := range replies {
		t.Run(tt.name, func(t *testing.T) {
			tr := transportTo(tt.handler)
			defer tr.close()
			resp := mustTrip(t, tr, ask(t.Context(), t, tt.method, nil))
			body, err := io.ReadAll(resp.Body)
			if string(body) != tt.body || !errors.Is(err, tt.err) {
				t.Errorf("body %q, %v", body, err)
			}
			if resp.Status != tt.status || resp.ContentLength != tt.length {
				t.Errorf("status %q, length %d", resp.Status, resp.ContentLength)
			}
			if diff := cmp.Diff(tt.header, resp.Header); diff != "" {
				t.Errorf("header (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(tt.trailer, resp.Trailer); diff != "" {
				t.Errorf("trailer (-want +got)\n%s", diff)
			}
		})
	}
}

func TestAbortBeforeTheBegin(t *testing.T) {
	for _, v := range []any{http.ErrAbortHandler, "bug"} {
		tr := transportTo(func(http.ResponseWriter, *http.Request) { panic(v) })
		if _, err := tr.RoundTrip(ask(t.Context(), t, "GET", nil)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%v: got %v", v, err)
		}
		tr.close()
	}
}

// TestFirstBeforeLast: a stream's first byte arrives before the last is written,
// with a flush and without.
func TestFirstBeforeLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		more := make(chan struct{})
		tr := transportTo(func(w http.ResponseWriter, _ *http.Request) {
			for i := range 3 {
				fmt.Fprintf(w, "%d", i)
				<-more
			}
		})
		resp := mustTrip(t, tr, ask(t.Context(), t, "GET", nil))
		var one [1]byte
		for i := range 3 {
			if _, err := resp.Body.Read(one[:]); err != nil || one[0] != byte('0'+i) {
				t.Fatalf("%q, %v", one, err)
			}
			more <- struct{}{}
		}
		if _, err := resp.Body.Read(one[:]); err != io.EOF {
			t.Errorf("got %v", err)
		}
		tr.close()
	})
}

// TestBothWays: what the client writes is answered while it still writes.
func TestBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := transportTo(func(w http.ResponseWriter, r *http.Request) {
			if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
				t.Error(err)
			}
			w.(http.Flusher).Flush()
			io.Copy(w, r.Body)
		})
		out, in := io.Pipe()
		resp := mustTrip(t, tr, ask(t.Context(), t, "POST", out))
		for _, word := range []string{"one", "two"} {
			io.WriteString(in, word)
			var got [3]byte
			if _, err := io.ReadFull(resp.Body, got[:]); err != nil || string(got[:]) != word {
				t.Fatalf("%q, %v", got, err)
			}
		}
		in.Close()
		if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != 0 {
			t.Errorf("%q, %v", rest, err)
		}
	})
}

func TestCancel(t *testing.T) {
	cause := errors.New("user pressed stop")
	tests := []struct {
		name    string
		handler func(http.ResponseWriter, *http.Request)
	}{
		{"waits for its context", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{"reads a silent client", func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }},
		{"writes to a slow client", func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}},
		{"proxies a silent client", func(w http.ResponseWriter, r *http.Request) {
			target, _ := url.Parse("http://x")
			p := httputil.NewSingleHostReverseProxy(target)
			p.Transport = transportTo(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) })
			p.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
			p.ServeHTTP(w, r)
		}},
	}
	for _, tt := range tests {
		for _, how := range []string{"context", "close"} {
			t.Run(tt.name+"/"+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ended := make(chan struct{})
					tr := transportTo(func(w http.ResponseWriter, r *http.Request) {
						defer close(ended)
						if how == "close" {
							w.(http.Flusher).Flush()
						}
						tt.handler(w, r)
					})
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					silent, in := io.Pipe()
					defer in.Close()
					req := ask(ctx, t, "POST", silent)
					if how == "close" {
						resp := mustTrip(t, tr, req)
						resp.Body.Close()
						<-ended
						if _, err := resp.Body.Read(make([]byte, 1)); err == nil || err == io.EOF {
							t.Errorf("read after close: %v", err)
						}
					} else {
						errs := make(chan error)
						go func() {
							resp, err := tr.RoundTrip(req)
							if err == nil {
								_, err = io.Copy(waiter{t.Context()}, resp.Body)
							}
							errs <- err
						}()
						synctest.Wait()
						cancel(cause)
						if err := <-errs; !errors.Is(err, cause) {
							t.Errorf("got %v", err)
						}
						<-ended
					}
					if _, err := io.WriteString(in, "x"); err != io.ErrClosedPipe {
						t.Errorf("request's body was not closed: %v", err)
					}
					tr.close()
				})
			})
		}
	}
}

// waiter is a client that takes a second for each read.
type waiter struct{ context.Context }

func (w waiter) Write(p []byte) (int, error) {
	time.Sleep(time.Second) // the bubble's clock
	return len(p), nil
}

// TestCancelDeaf: the client is free even when the handler does not listen.
func TestCancelDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wake := make(chan struct{})
		tr := transportTo(func(w http.ResponseWriter, _ *http.Request) {
			<-wake
			io.WriteString(w, "too late")
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := tr.RoundTrip(ask(ctx, t, "GET", nil)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		close(wake)
		tr.close()
	})
}

func TestTransportClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := transportTo(func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		resp := mustTrip(t, tr, ask(t.Context(), t, "GET", nil))
		tr.close()
		if _, err := resp.Body.Read(make([]byte, 1)); !errors.Is(err, errTransportClosed) {
			t.Errorf("got %v", err)
		}
		body := &closed{}
		req := ask(t.Context(), t, "POST", body)
		if _, err := tr.RoundTrip(req); !errors.Is(err, errTransportClosed) || !body.done {
			t.Errorf("got %v, body closed: %v", err, body.done)
		}
	})
}

type closed struct{ done bool }

func (c *closed) Read([]byte) (int, error) { return 0, io.EOF }
func (c *closed) Close() error             { c.done = true; return nil }

func TestReadDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := transportTo(func(w http.ResponseWriter, r *http.Request) {
			control := http.NewResponseController(w)
			control.SetReadDeadline(time.Now().Add(time.Hour))
			control.SetReadDeadline(time.Time{})
			control.SetReadDeadline(time.Now().Add(time.Second))
			begin := time.Now()
			_, err := io.Copy(io.Discard, r.Body)
			fmt.Fprintf(w, "%v %v", time.Since(begin), err)
		})
		silent, in := io.Pipe()
		defer in.Close()
		resp := mustTrip(t, tr, ask(t.Context(), t, "POST", silent))
		got, _ := io.ReadAll(resp.Body)
		if want := "1s " + http.ErrBodyReadAfterClose.Error(); string(got) != want {
			t.Errorf("got %q", got)
		}
	})
}

func TestNoGoroutineLeft(t *testing.T) {
	tr := transportTo(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(w, r.Body)
	})
	before := runtime.NumGoroutine()
	for range 100 {
		resp := mustTrip(t, tr, ask(t.Context(), t, "POST", strings.NewReader(strings.Repeat("x", 100_000))))
		io.ReadFull(resp.Body, make([]byte, 10))
		resp.Body.Close()
	}
	tr.close()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); runtime.Gosched() {
		if runtime.NumGoroutine() <= before {
			return
		}
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}

// TestPipeKeepsBytes sends random sizes both ways through readers and writers
// of every kind of pace.
func TestPipeKeepsBytes(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		data := make([]byte, 1<<20)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		most := []int{1 << 10, 100_000, 1 << 20}[seed%3]
		p := newPipe()
		go func() {
			w := rand.New(rand.NewPCG(seed, 1))
			for rest := data; len(rest) > 0; {
				n := min(len(rest), 1+w.IntN(most))
				part := bytes.Clone(rest[:n])
				if m, err := p.Write(part); m != n || err != nil {
					panic(fmt.Sprint(m, err))
				}
				clear(part) // a writer may use its buffer again
				rest = rest[n:]
			}
			p.finish(io.EOF)
		}()
		sum := sha256.New()
		buf := make([]byte, 1<<20)
		for {
			n, err := p.Read(buf[:1+r.IntN(most)])
			sum.Write(buf[:n])
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if want := sha256.Sum256(data); !bytes.Equal(sum.Sum(nil), want[:]) {
			t.Errorf("seed %d: bytes changed", seed)
		}
		if cap(p.buf) > 2*pipeWindow {
			t.Errorf("seed %d: window grew to %d", seed, cap(p.buf))
		}
	}
}

func BenchmarkUnary(b *testing.B) {
	tr := transportTo(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"ok":true}`)
	})
	b.ReportAllocs()
	for b.Loop() {
		resp, err := tr.RoundTrip(ask(b.Context(), b, "POST", strings.NewReader(`{"a":1}`)))
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

func BenchmarkUp8MiB(b *testing.B) {
	tr := transportTo(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) })
	data := make([]byte, 8<<20)
	b.SetBytes(8 << 20)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := tr.RoundTrip(ask(b.Context(), b, "POST", bytes.NewReader(data)))
		if err != nil {
			b.Fatal(err)
		}
		resp.Body.Close()
	}
}

func BenchmarkDown8MiB(b *testing.B) {
	data := make([]byte, 32<<10)
	tr := transportTo(func(w http.ResponseWriter, _ *http.Request) {
		for range (8 << 20) / len(data) {
			w.Write(data)
		}
	})
	b.SetBytes(8 << 20)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := tr.RoundTrip(ask(b.Context(), b, "GET", nil))
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}
