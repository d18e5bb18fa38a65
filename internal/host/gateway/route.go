package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

const (
	idleConns    = 16               // kept to each port of a sandbox
	idleTimeout  = 60 * time.Second // agents must keep theirs longer
	maxHeader    = 256 << 10        // of a reply: what is inside may be hostile
	probeTimeout = 2 * time.Second
)

// route is the way into one sandbox. It ends with the sandbox.
type route struct {
	gateway   *Gateway
	id        string
	box       engine.Sandbox
	transport *http.Transport
	proxy     *httputil.ReverseProxy
	active    atomic.Int64
	// atEnd has a function called when the sandbox ends, unless stop is called
	// before.
	atEnd func(func()) (stop func() bool)
}

// route finds the way into box, or opens it.
func (g *Gateway) route(id string, box engine.Sandbox) *route {
	g.mu.Lock()
	defer g.mu.Unlock()
	if rt := g.routes[id]; rt != nil {
		return rt
	}
	life, end := context.WithCancel(context.Background()) // the sandbox's, not a request's
	rt := &route{gateway: g, id: id, box: box}
	rt.atEnd = func(f func()) func() bool { return context.AfterFunc(life, f) }
	rt.transport = &http.Transport{
		DialContext:            rt.dial,
		MaxIdleConnsPerHost:    idleConns,
		MaxIdleConns:           4 * idleConns,
		IdleConnTimeout:        idleTimeout,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true, // what the client did not ask for it cannot read
		WriteBufferSize:        32 << 10,
		ReadBufferSize:         32 << 10,
	}
	rt.proxy = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      rt.transport,
		FlushInterval:  -1,
		ErrorLog:       g.errors,
		BufferPool:     buffers,
		ModifyResponse: rt.received,
		ErrorHandler:   rt.failed,
	}
	g.routes[id] = rt
	g.wg.Add(1)
	go func() {
		defer g.wg.Done()
		<-box.Done()
		g.mu.Lock()
		delete(g.routes, id)
		g.mu.Unlock()
		end()
		rt.transport.CloseIdleConnections()
	}()
	return rt
}

// dial connects to the port in addr, whose host means nothing.
func (rt *route) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	return rt.box.Dial(ctx, n)
}

// exchange is one request on its way; rewrite and the hooks find it in the
// request's context.
type exchange struct {
	to    e2b.Address
	mask  string
	http1 bool  // the client's side
	body  *body // nil when there is none
}

type exchangeKey struct{}

// serve carries one request. It returns when the reply is whole.
func (rt *route) serve(w http.ResponseWriter, r *http.Request, to e2b.Address, info engine.Info) {
	defer rt.active.Add(-1)
	if n := rt.active.Add(1); n > int64(rt.gateway.opts.MaxRequests) {
		writeError(w, r, http.StatusTooManyRequests, fmt.Sprintf("more than %d requests at once into one sandbox; wait for some to end", rt.gateway.opts.MaxRequests))
		return
	}
	x := &exchange{to: to, mask: info.MaskHost, http1: r.ProtoMajor == 1}
	if r.Body != nil && r.Body != http.NoBody {
		control := http.NewResponseController(w)
		// Else net/http reads the body's rest before it sends the reply's begin,
		// and cuts replies to requests that the port did not read to the end.
		control.EnableFullDuplex() // HTTP/2 has it always, and says so with an error
		x.body = &body{from: r.Body, control: control}
		stop := rt.atEnd(x.body.abort)
		whole := false
		defer func() {
			stop()
			x.body.finish(whole)
		}()
		rt.carry(w, r, x)
		whole = true
		return
	}
	rt.carry(w, r, x)
}

// carry hands r to the proxy, which panics with http.ErrAbortHandler when it
// could not answer or the answer broke off.
func (rt *route) carry(w http.ResponseWriter, r *http.Request, x *exchange) {
	out := r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	if x.body != nil {
		out.Body = x.body
	}
	rt.proxy.ServeHTTP(w, out)
}

func exchangeOf(r *http.Request) *exchange {
	return r.Context().Value(exchangeKey{}).(*exchange)
}

// rewrite makes the request that the port gets.
func rewrite(p *httputil.ProxyRequest) {
	x := exchangeOf(p.In)
	p.Out.URL.Scheme = "http"
	p.Out.URL.Host = "sandbox:" + strconv.Itoa(x.to.Port)
	p.Out.URL.RawQuery = p.In.URL.RawQuery // as it came, not as Go would read it
	p.Out.Host = p.In.Host
	if x.mask != "" {
		p.Out.Host = strings.ReplaceAll(x.mask, "${PORT}", strconv.Itoa(x.to.Port))
	}
	p.SetXForwarded()
	for _, name := range []string{e2b.HeaderAPIKey, e2b.HeaderSandboxID, e2b.HeaderSandboxPort, e2b.HeaderTraffic} {
		p.Out.Header.Del(name)
	}
}

// received looks at a reply's header before it goes to the client.
func (rt *route) received(resp *http.Response) error {
	x := exchangeOf(resp.Request)
	resp.Header.Del(e2b.HeaderReason) // ours alone
	if resp.StatusCode == http.StatusSwitchingProtocols {
		if x.body != nil {
			x.body.release() // the connection is about to be taken over
		}
		return nil
	}
	if x.body != nil && !x.body.ended() && x.http1 {
		// The rest of the request may never be read: nothing must follow it.
		resp.Header.Set("Connection", "close")
	}
	if resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 && resp.Body != http.NoBody {
		ctx := resp.Request.Context()
		resp.Body = &untilClosed{ReadCloser: resp.Body, alive: func() bool { return rt.alive(ctx) }}
	}
	return nil
}

// failed answers a request that got no reply.
func (rt *route) failed(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r)
	switch {
	case errors.Is(err, engine.ErrPortClosed):
		writePortClosed(w, r, x.to)
	case errors.Is(err, engine.ErrLost) || rt.ended():
		// Before the client's leaving: net/http takes our giving up its body for that.
		_, _, why := rt.gateway.engine.Find(rt.id)
		writeNotFound(w, r, rt.id, why)
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // nobody waits for an answer
	case !rt.alive(r.Context()):
		_, _, why := rt.gateway.engine.Find(rt.id)
		writeNotFound(w, r, rt.id, why)
	case r.Header.Get("Upgrade") != "" && isNotHijackable(err):
		writeError(w, r, http.StatusNotImplemented, "WebSockets are not supported over the in-memory transport; use abx serve")
	default:
		rt.gateway.log.Debug("no reply", slog.String("sandbox", rt.id), slog.Int("port", x.to.Port), slog.Any("error", err))
		writeError(w, r, http.StatusBadGateway, fmt.Sprintf("port %d of the sandbox broke off without a reply", x.to.Port))
	}
}

// isNotHijackable knows the error of a ReverseProxy whose client's connection
// it cannot take over.
func isNotHijackable(err error) bool {
	return strings.Contains(err.Error(), "Hijacker")
}

func (rt *route) ended() bool {
	select {
	case <-rt.box.Done():
		return true
	default:
		return false
	}
}

// alive asks the agent. A dead sandbox's connections end before its Done does,
// so Done alone would be wrong for a moment.
func (rt *route) alive(ctx context.Context) bool {
	if rt.ended() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sandbox:"+strconv.Itoa(e2b.PortAgent)+"/health", nil)
	if err != nil {
		return false
	}
	resp, err := rt.transport.RoundTrip(req)
	if err != nil {
		// A live agent that is too busy to answer in time is not a dead one.
		return errors.Is(err, context.DeadlineExceeded)
	}
	resp.Body.Close()
	return true
}

// untilClosed is the body of a reply that ends with its connection: the only
// kind whose end looks the same when the sandbox has died.
type untilClosed struct {
	io.ReadCloser
	alive func() bool
}

func (u *untilClosed) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	if err == io.EOF && !u.alive() {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
