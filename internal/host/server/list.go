package server

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// maxPage is the longest page of a list, and the default.
const maxPage = 100

func (s *Server) listV1(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	metadata, err := parseMetadata(r.URL.Query().Get("metadata"))
	if err != nil {
		return 0, nil, err
	}
	page := []e2b.ListedSandbox{}
	for _, info := range s.engine.List() {
		if hasAll(info.Metadata, metadata) {
			page = append(page, listed(info))
		}
	}
	return http.StatusOK, page, nil
}

// query is what GET /v2/sandboxes was asked for.
type query struct {
	metadata     map[string]string
	running      bool // the state asked for includes it; nothing is ever paused
	ascending    bool
	startedAfter time.Time
	template     string
	limit        int
	after        *position // of the last page's end
}

// position is a place in a list that is stable while sandboxes come and go.
type position struct {
	started int64 // Unix nanoseconds
	id      string
}

func (s *Server) listV2(w http.ResponseWriter, r *http.Request) (int, any, error) {
	q, err := parseQuery(r.URL.Query())
	if err != nil {
		return 0, nil, err
	}
	infos := s.engine.List()
	w.Header().Set("X-Total-Running", strconv.Itoa(len(infos)))
	slices.SortFunc(infos, func(a, b engine.Info) int { return q.compare(positionOf(a), positionOf(b)) })
	page := []e2b.ListedSandbox{}
	var last position
	for _, info := range infos {
		if !q.takes(info) {
			continue
		}
		if len(page) == q.limit {
			w.Header().Set("X-Next-Token", last.token())
			break
		}
		page = append(page, listed(info))
		last = positionOf(info)
	}
	return http.StatusOK, page, nil
}

func positionOf(info engine.Info) position {
	return position{started: info.StartedAt.UnixNano(), id: info.ID}
}

func (q query) takes(info engine.Info) bool {
	return q.running &&
		(q.after == nil || q.compare(positionOf(info), *q.after) > 0) &&
		(q.template == "" || q.template == info.Template) &&
		info.StartedAt.After(q.startedAfter) &&
		hasAll(info.Metadata, q.metadata)
}

// compare is the order of the list.
func (q query) compare(a, b position) int {
	c := strings.Compare(a.id, b.id)
	if a.started != b.started {
		c = 1
		if a.started > b.started {
			c = -1
		}
		if q.ascending {
			c = -c
		}
	}
	return c
}

func (p position) token() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(p.started, 36) + "." + p.id))
}

func parsePosition(token string) (*position, error) {
	bad := engine.Errorf(engine.ErrInvalid, "query nextToken: %.80q is not one of ours", token)
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return nil, bad
	}
	number, id, _ := strings.Cut(string(text), ".")
	started, err := strconv.ParseInt(number, 36, 64)
	if err != nil || !e2b.ValidID(id) {
		return nil, bad
	}
	return &position{started: started, id: id}, nil
}

func parseQuery(v url.Values) (q query, err error) {
	if q.metadata, err = parseMetadata(v.Get("metadata")); err != nil {
		return q, err
	}
	if q.running, err = parseState(v["state"]); err != nil {
		return q, err
	}
	switch order := v.Get("order"); order {
	case "", "desc":
	case "asc":
		q.ascending = true
	default:
		return q, engine.Errorf(engine.ErrInvalid, "query order: %.80q is neither asc nor desc", order)
	}
	if text := v.Get("startedAfter"); text != "" {
		if q.startedAfter, err = time.Parse(time.RFC3339, text); err != nil {
			return q, engine.Errorf(engine.ErrInvalid, "query startedAfter: %.80q is not a time (RFC 3339)", text)
		}
	}
	q.template = v.Get("template")
	q.limit = maxPage
	if text := v.Get("limit"); text != "" {
		if q.limit, err = strconv.Atoi(text); err != nil || q.limit < 1 || q.limit > maxPage {
			return q, engine.Errorf(engine.ErrInvalid, "query limit: %.80q is not in 1 to %d", text, maxPage)
		}
	}
	if token := v.Get("nextToken"); token != "" {
		q.after, err = parsePosition(token)
	}
	return q, err
}

// parseState reports whether running sandboxes are asked for: one value or
// many, each with commas or without. None means all states.
func parseState(values []string) (running bool, err error) {
	list := strings.Join(values, ",")
	if list == "" {
		return true, nil
	}
	for state := range strings.SplitSeq(list, ",") {
		switch state {
		case e2b.StateRunning:
			running = true
		case e2b.StatePaused:
		default:
			return false, engine.Errorf(engine.ErrInvalid, "query state: %.80q is neither running nor paused", state)
		}
	}
	return running, nil
}

// parseMetadata reads a filter "k=v&k2=v2" whose keys and values SDKs encode
// once more than the query itself does.
func parseMetadata(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	bad := engine.Errorf(engine.ErrInvalid, "query metadata: %.80q is not a list like key=value&key2=value2, encoded", text)
	pairs, err := url.ParseQuery(text)
	if err != nil {
		return nil, bad
	}
	filter := make(map[string]string, len(pairs))
	for key, values := range pairs {
		k, errKey := url.QueryUnescape(key)
		v, errValue := url.QueryUnescape(values[0])
		if errKey != nil || errValue != nil || len(values) > 1 {
			return nil, bad
		}
		filter[k] = v
	}
	return filter, nil
}

// hasAll reports whether all pairs of filter are in metadata.
func hasAll(metadata, filter map[string]string) bool {
	for k, v := range filter {
		if got, ok := metadata[k]; !ok || got != v {
			return false
		}
	}
	return true
}
