package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agent-sandbox/abx/sandbox"
)

// Exit codes.
const (
	CodeFailure     = 1 // it did not work
	CodeUsage       = 2 // the command line is wrong
	CodeConfig      = 3 // a setting is wrong or missing
	CodeUnsupported = 4 // this machine or this abx cannot do it
	CodeInterrupted = 130
)

// A Hint is an error with what to do about it, and its exit code.
type Hint struct {
	Err  error
	Next string // a sentence or a command; may be empty
	Code int    // 0: by Err
}

func (h *Hint) Error() string { return h.Err.Error() }

func (h *Hint) Unwrap() error { return h.Err }

// codes is the table from errors to exit codes; the first that matches counts.
var codes = []struct {
	is   error
	code int
	next string
}{
	{sandbox.ErrUnauthorized, CodeConfig, "set ABX_SANDBOX_API_KEY"},
	{sandbox.ErrInvalid, CodeUsage, ""},
	{sandbox.ErrUnsupported, CodeUnsupported, ""},
	{context.Canceled, CodeInterrupted, ""},
}

// explain finds the exit code of err and what to do next.
func explain(err error) (code int, next string) {
	code = CodeFailure
	for _, c := range codes {
		if errors.Is(err, c.is) {
			code, next = c.code, c.next
			break
		}
	}
	if errors.As(err, new(*usageError)) || isUsage(err) {
		code, next = CodeUsage, "see: abx --help"
	}
	var own interface{ Next() string }
	if errors.As(err, &own) {
		next = own.Next()
	}
	var h *Hint
	if errors.As(err, &h) {
		if h.Next != "" {
			next = h.Next
		}
		if h.Code != 0 {
			code = h.Code
		}
	}
	return code, next
}

// isUsage knows cobra's own errors by their words; it has no types for them.
func isUsage(err error) bool {
	for _, p := range []string{"unknown command", "unknown flag", "unknown shorthand", "accepts ", "requires at least", "invalid argument", "flag needs an argument"} {
		if strings.HasPrefix(err.Error(), p) {
			return true
		}
	}
	return false
}

// report tells of an error and returns the exit code. With --json it is the
// result too, but for commands whose standard output is a protocol.
func (e *Env) report(cmd *cobra.Command, err error) int {
	code, next := explain(err)
	if e.json && (cmd == nil || cmd.Annotations[stdoutIsProtocol] == "") {
		type failure struct {
			Message string `json:"message"`
			Hint    string `json:"hint,omitempty"`
			Code    int    `json:"exit_code"`
		}
		_ = json.NewEncoder(e.Stdout).Encode(map[string]failure{"error": {err.Error(), next, code}})
	}
	text := fmt.Sprintf("abx: %v", err)
	if next != "" {
		text += "\n  " + strings.ReplaceAll(next, "\n", "\n  ")
	}
	e.note("%s", text)
	return code
}

// stdoutIsProtocol marks such commands.
const stdoutIsProtocol = "stdout"
