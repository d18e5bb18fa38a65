package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agent-sandbox/abx/internal/mcp/wire"
)

// Methods that the transport itself must know.
const (
	methodInitialize = "initialize"
	methodCall       = "tools/call"
	methodCancelled  = "notifications/cancelled"
)

// A message is one line of JSON-RPC, its parts still raw.
type message struct {
	version, id, method, params []byte // nil: absent
	answer                      bool   // it has a result or an error
}

// A refusal is a line that gets an error for an answer.
type refusal struct {
	id   []byte // raw; nil: null
	code int64
	text string
}

func (r *refusal) Error() string { return r.text }

func refuse(id []byte, code int64, format string, args ...any) *refusal {
	return &refusal{id: id, code: code, text: fmt.Sprintf(format, args...)}
}

// parse reads one line, which is not blank.
func parse(line []byte) (message, *refusal) {
	var m message
	if line[0] != '{' {
		if err := wire.Valid(line); err != nil {
			return m, refuse(nil, jsonrpc.CodeParseError, "parse error: %v: send one JSON-RPC message a line", err)
		}
		if line[0] == '[' {
			return m, refuse(nil, jsonrpc.CodeInvalidRequest, "invalid request: batches are not taken: send each message on a line of its own")
		}
		return m, refuse(nil, jsonrpc.CodeInvalidRequest, "invalid request: a message is a JSON object")
	}
	err := wire.Object(line, func(key, val []byte) error {
		switch string(key) {
		case "jsonrpc":
			m.version = val
		case "id":
			m.id = val
		case "method":
			m.method = val
		case "params":
			m.params = val
		case "result", "error":
			m.answer = true
		}
		return nil
	})
	if err != nil {
		return m, refuse(nil, jsonrpc.CodeParseError, "parse error: %v: send one JSON-RPC message a line", err)
	}
	return m, m.check()
}

func (m *message) check() *refusal {
	var id []byte // to answer with
	if _, err := makeID(m.id); err == nil {
		id = m.id
	}
	invalid := func(format string, args ...any) *refusal {
		return refuse(id, jsonrpc.CodeInvalidRequest, "invalid request: "+format, args...)
	}
	if m.method == nil && m.answer {
		return nil
	}
	switch {
	case m.id != nil && id == nil:
		return invalid(`"id" must be a string or an integer`)
	case string(m.version) != `"2.0"`:
		return invalid(`"jsonrpc" must be "2.0"`)
	case m.method == nil:
		return invalid(`"method" is missing`)
	case m.method[0] != '"':
		return invalid(`"method" must be a string`)
	case m.params != nil && m.params[0] != '{' && string(m.params) != "null":
		return refuse(id, jsonrpc.CodeInvalidParams, `invalid params: "params" must be an object`)
	}
	name, err := wire.String(m.method)
	if err != nil {
		return invalid(`"method" must be a string`)
	}
	m.method = name
	return nil
}

const largeID = "\x00"

// makeID turns a raw id into the library's. That one holds integers as
// float64: larger ones go by as strings that no client can send.
func makeID(raw []byte) (jsonrpc.ID, error) {
	if len(raw) == 0 || raw[0] == 'n' {
		return jsonrpc.ID{}, errors.New("no id")
	}
	if raw[0] == '"' {
		s, err := wire.String(raw)
		if err != nil {
			return jsonrpc.ID{}, err
		}
		return jsonrpc.MakeID(string(s))
	}
	if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil && n > -1<<53 && n < 1<<53 {
		return jsonrpc.MakeID(float64(n))
	}
	if f, err := strconv.ParseFloat(string(raw), 64); err != nil || f != float64(int64(f)) && bytes.ContainsAny(raw, ".eE") {
		return jsonrpc.ID{}, fmt.Errorf("%q is no id", raw)
	}
	return jsonrpc.MakeID(largeID + string(raw))
}

// request turns m into what the library takes. A call's own part is set for a
// request that wants an answer.
func (m *message) request(c *call) *jsonrpc.Request {
	r := &jsonrpc.Request{Method: string(m.method), Params: json.RawMessage(m.params)}
	switch {
	case r.Method == methodInitialize && (m.params == nil || m.params[0] == 'n'):
		r.Params = json.RawMessage("{}")
	case r.Method == methodCancelled:
		r.Params = cancelParams(m.params)
	case r.Method == methodCall && c != nil && len(m.params) > 0 && m.params[0] == '{':
		r.Params, c.arguments = splitArguments(m.params)
		r.Extra = &sdk.RequestExtra{TokenInfo: &auth.TokenInfo{Extra: map[string]any{callKey: c}}}
	}
	if c != nil {
		r.ID = c.key
	}
	return r
}

// callKey is where a call lies in the request's extra information.
const callKey = "abx.call"

// callOf returns the call that req came in by, nil over other transports.
func callOf(extra *sdk.RequestExtra) *call {
	if extra == nil || extra.TokenInfo == nil {
		return nil
	}
	c, _ := extra.TokenInfo.Extra[callKey].(*call)
	return c
}

// splitArguments takes the arguments of a tool out of params: they may be
// megabytes, which the library would parse three times.
func splitArguments(params []byte) (rest, arguments []byte) {
	var b wire.Builder
	_ = wire.Object(params, func(key, val []byte) error { // parsed before
		if string(key) == "arguments" {
			arguments = val
		} else {
			b.Raw(string(key), val)
		}
		return nil
	})
	return b.JSON(), arguments
}

// cancelParams makes the id of the request to cancel the library's.
func cancelParams(params []byte) []byte {
	id, ok := cancelledID(params)
	if s, _ := id.Raw().(string); ok && strings.HasPrefix(s, largeID) {
		return append(wire.AppendString([]byte(`{"requestId":`), s), '}')
	}
	return params
}

// cancelledID reads which request a notification cancels.
func cancelledID(params []byte) (id jsonrpc.ID, ok bool) {
	if len(params) == 0 || params[0] != '{' {
		return id, false
	}
	_ = wire.Object(params, func(key, val []byte) error {
		if string(key) == "requestId" {
			var err error
			id, err = makeID(val)
			ok = err == nil
		}
		return nil
	})
	return id, ok
}

// maxErrorText is how much of an error's text is sent: the library's may quote
// the whole request.
const maxErrorText = 2000

// appendError appends an error answer, without the line's end.
func appendError(dst, id []byte, code int64, text string, data []byte) []byte {
	dst = appendHead(dst, id)
	dst = append(dst, `"error":{"code":`...)
	dst = strconv.AppendInt(dst, code, 10)
	dst = append(dst, `,"message":`...)
	if len(text) > maxErrorText {
		text = text[:maxErrorText] + "..."
	}
	dst = wire.AppendString(dst, text)
	if len(data) > 0 {
		dst = append(dst, `,"data":`...)
		dst = append(dst, data...)
	}
	return append(dst, "}}"...)
}

// appendHead appends the start of an answer, up to its result or error.
func appendHead(dst, id []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	if id == nil {
		id = []byte("null")
	}
	dst = append(dst, id...)
	return append(dst, ',')
}

// errorOf gives an error of the library its code. Those without one are about
// the order of messages, as a call before initialize.
func errorOf(err error) (code int64, text string, data []byte) {
	if e, ok := err.(*jsonrpc.Error); ok { //nolint:errorlint // a wrapped one has another text
		return e.Code, inOurWords(e.Message), e.Data
	}
	code = jsonrpc.CodeInvalidRequest
	if e := (*jsonrpc.Error)(nil); errors.As(err, &e) {
		code = e.Code
	}
	return code, inOurWords(err.Error()), nil
}

// wrongType is how the library tells of a member of a wrong type, in Go's words.
var wrongType = regexp.MustCompile(`unmarshaling .*json: .* Go struct field [\w.]*?\.(\w+) of type (\w*)`)

// inOurWords is an error of the library's as a client can use it.
func inOurWords(text string) string {
	if m := wrongType.FindStringSubmatch(text); m != nil {
		if m[2] == "string" {
			return fmt.Sprintf(`invalid params: %q must be a string`, m[1])
		}
		return fmt.Sprintf(`invalid params: %q is of a wrong type`, m[1])
	}
	if strings.Contains(text, "unmarshaling ") {
		return "invalid params: a member is of a wrong type"
	}
	if strings.HasSuffix(text, " is invalid during session initialization") {
		return text + `: send "initialize" first`
	}
	return text
}
