package mcp

import (
	"encoding/json"
	"strings"
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

// TestInstructionsTellWhatIsMissing holds that a model learns of a missing
// network before its first call.
func TestInstructionsTellWhatIsMissing(t *testing.T) {
	for network, want := range map[string]bool{"none": true, "": false} {
		c := dial(t, platform(), Options{Tools: tool.Options{Place: tool.Place{Network: network}}})
		got := c.ask(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)
		if strings.Contains(got, "no network") != want {
			t.Errorf("network %q: %s", network, got)
		}
	}
}

func TestNewWantsAClient(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("no error")
	}
}
