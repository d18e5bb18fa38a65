package mcp

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/abx/internal/mcp/tool"
)

// TestBothWaysOfAResultAreEqual holds that a client sees the same over STDIO,
// where results go around the library, and over other transports.
func TestBothWaysOfAResultAreEqual(t *testing.T) {
	for _, r := range []*tool.Result{
		{Content: []tool.Content{{Text: "a \"b\" <c> \u2028 \xff"}}, Structured: []byte(`{"x":"<\u2028>"}`)},
		{Content: []tool.Content{{Text: ""}, {MIMEType: "image/png", Data: []byte{1, 2, 255}}}, Structured: []byte(`{}`)},
		{Content: []tool.Content{{Text: "no"}}, IsError: true},
	} {
		around := append(r.AppendMembers([]byte("{")), '}')
		through, err := json.Marshal(throughLibrary(r))
		if err != nil {
			t.Fatal(err)
		}
		var a, b any
		if err := json.Unmarshal(around, &a); err != nil {
			t.Fatalf("%s: %v", around, err)
		}
		if err := json.Unmarshal(through, &b); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(b, a); d != "" {
			t.Errorf("through the library (-) and around it (+):\n%s", d)
		}
	}
}

func TestNewWantsAClient(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("no error")
	}
}
