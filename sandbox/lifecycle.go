package sandbox

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// maxListed bounds a list whatever the server says.
const maxListed = 100_000

// Create makes a sandbox and returns when it is ready. It is not retried. When
// ctx ends first, a sandbox may have been made all the same; it then ends with
// its lifetime.
//
// Options: [Template], [Timeout] (its lifetime), [Env], [Metadata], [Secure],
// [Isolation], [AllowInternet], [AllowOut], [DenyOut], [AutoPause].
func (c *Client) Create(ctx context.Context, opts ...CreateOption) (*Sandbox, error) {
	const op = "create sandbox"
	set := createSettings{lifetime: DefaultLifetime}
	for _, o := range opts {
		o.applyCreate(&set)
	}
	if set.body.TemplateID == "" {
		set.body.TemplateID = DefaultTemplate
	}
	if set.body.Secure == nil {
		on := true
		set.body.Secure = &on
	}
	var err error
	if set.body.Timeout, err = lifetime(op, set.lifetime, 1); err != nil {
		return nil, err
	}
	var answer e2b.Sandbox
	if _, err := c.call(ctx, op, "", http.MethodPost, "/sandboxes", "", &set.body, &answer, false); err != nil {
		return nil, err
	}
	sb, err := c.handle(op, &answer, set.body.TemplateID)
	if err != nil {
		return nil, err
	}
	if set.body.Abx != nil {
		if err := sb.checkIsolation(ctx, op, set.body.Abx.Isolation); err != nil {
			return nil, err
		}
	}
	return sb, nil
}

// checkIsolation ends a sandbox that has less isolation than was asked for: a
// platform that does not know the wish ignores it.
func (s *Sandbox) checkIsolation(ctx context.Context, op, least string) error {
	got := s.info.Isolation
	if least == "" || least == "auto" || got == least || (least == "namespace" && got != "") {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	kill := s.Kill(ctx)
	if got == "" {
		got = "an isolation that it does not name"
	}
	return &Error{Op: op, Message: fmt.Sprintf("isolation %q was asked for, the platform gave %s; the sandbox was ended", least, oneLine(got)),
		kinds: [2]error{ErrUnsupported}, cause: kill}
}

// killTime bounds the clean-up after a call whose context has ended.
const killTime = 5 * time.Second

// Connect returns a handle for the sandbox with the given id, resuming it when
// it is paused. Its lifetime becomes at least [Timeout], by default 300 s, from
// now on. An unknown id is ErrNotFound.
func (c *Client) Connect(ctx context.Context, id string, opts ...ConnectOption) (*Sandbox, error) {
	const op = "connect to sandbox"
	set := connectSettings{lifetime: DefaultLifetime}
	for _, o := range opts {
		o.applyConnect(&set)
	}
	if err := checkID(op, id); err != nil {
		return nil, err
	}
	timeout, err := lifetime(op, set.lifetime, 1)
	if err != nil {
		return nil, err
	}
	var answer e2b.Sandbox
	if _, err := c.call(ctx, op, id, http.MethodPost, "/sandboxes/"+id+"/connect", "", e2b.SetTimeout{Timeout: timeout}, &answer, true); err != nil {
		return nil, err
	}
	return c.handle(op, &answer, "")
}

// Get asks for the present state of a sandbox. An unknown id is ErrNotFound.
func (c *Client) Get(ctx context.Context, id string) (*Info, error) {
	const op = "get sandbox"
	if err := checkID(op, id); err != nil {
		return nil, err
	}
	var answer e2b.SandboxDetail
	if _, err := c.call(ctx, op, id, http.MethodGet, "/sandboxes/"+id, "", nil, &answer, true); err != nil {
		return nil, err
	}
	info := detailInfo(&answer)
	return &info, nil
}

// List returns the sandboxes of the API key, newest first, running and paused.
//
// Options: [Metadata] and [State] to choose, [Limit].
func (c *Client) List(ctx context.Context, opts ...ListOption) ([]Info, error) {
	const op = "list sandboxes"
	var set listSettings
	for _, o := range opts {
		o.applyList(&set)
	}
	if set.limit < 0 {
		return nil, invalid(op, fmt.Sprintf("limit %d is negative; 0 means no limit", set.limit))
	}
	query := url.Values{}
	if len(set.states) > 0 {
		query.Set("state", strings.Join(set.states, ","))
	}
	if len(set.metadata) > 0 {
		query.Set("metadata", metadataQuery(set.metadata))
	}
	all := []Info{}
	for {
		if set.limit > 0 {
			query.Set("limit", strconv.Itoa(min(100, set.limit-len(all))))
		}
		var page []e2b.ListedSandbox
		h, err := c.call(ctx, op, "", http.MethodGet, "/v2/sandboxes", query.Encode(), nil, &page, true)
		if err != nil {
			return nil, err
		}
		for i := range page {
			all = append(all, listedInfo(&page[i]))
		}
		next := h.Get("X-Next-Token")
		if set.limit > 0 && len(all) >= set.limit {
			return all[:set.limit], nil
		}
		if next == "" {
			return all, nil
		}
		if next == query.Get("nextToken") || len(page) == 0 || len(all) >= maxListed {
			return nil, &Error{Op: op, Message: fmt.Sprintf("the server's list does not end (%d sandboxes so far): set a limit", len(all))}
		}
		query.Set("nextToken", next)
	}
}

// metadataQuery writes labels as the platform reads them: each key and value
// escaped, the pairs form-encoded; the query itself encodes once more.
func metadataQuery(labels map[string]string) string {
	v := make(url.Values, len(labels))
	for key, value := range labels {
		v.Set(url.QueryEscape(key), url.QueryEscape(value))
	}
	return v.Encode()
}

// Kill ends a sandbox, running or paused, and all that is in it. An unknown id
// is ErrNotFound.
func (c *Client) Kill(ctx context.Context, id string) error {
	return c.plain(ctx, "kill sandbox", id, http.MethodDelete, "", nil, true)
}

// Pause stops a sandbox and keeps its files and memory until [Client.Connect].
// One that is paused already is ErrConflict, a platform that cannot do it
// ErrUnsupported.
func (c *Client) Pause(ctx context.Context, id string) error {
	return c.plain(ctx, "pause sandbox", id, http.MethodPost, "/pause", struct{}{}, false)
}

// SetTimeout sets the lifetime of a sandbox to d from now on, longer or
// shorter than before, rounded up to whole seconds; 0 ends it now.
func (c *Client) SetTimeout(ctx context.Context, id string, d time.Duration) error {
	const op = "set sandbox timeout"
	timeout, err := lifetime(op, d, 0)
	if err != nil {
		return err
	}
	return c.plain(ctx, op, id, http.MethodPost, "/timeout", e2b.SetTimeout{Timeout: timeout}, true)
}

// plain is a call about one sandbox whose answer holds nothing.
func (c *Client) plain(ctx context.Context, op, id, method, path string, in any, idempotent bool) error {
	if err := checkID(op, id); err != nil {
		return err
	}
	_, err := c.call(ctx, op, id, method, "/sandboxes/"+id+path, "", in, nil, idempotent)
	return err
}

func checkID(op, id string) error {
	if !validID(id) {
		return invalid(op, fmt.Sprintf("%q is not a sandbox id", oneLine(id)))
	}
	return nil
}

// lifetime converts d to the wire's seconds, rounded up, at least least.
func lifetime(op string, d time.Duration, least int) (*int, error) {
	seconds := int64(math.Ceil(d.Seconds()))
	if d < 0 || seconds < int64(least) || seconds > math.MaxInt32 {
		return nil, invalid(op, fmt.Sprintf("timeout %s: want at least %d s", d, least))
	}
	n := int(seconds)
	return &n, nil
}
