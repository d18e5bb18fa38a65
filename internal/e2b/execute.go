package e2b

import "encoding/json"

// Execute is the body of POST /execute of the code interpreter. ContextID and
// Language exclude each other; both absent means the default Python context.
type Execute struct {
	Code      string            `json:"code"`
	ContextID string            `json:"context_id,omitempty"`
	Language  string            `json:"language,omitempty"`
	EnvVars   map[string]string `json:"env_vars,omitempty"`
}

// NewContext is the body of POST /contexts.
type NewContext struct {
	Language string `json:"language,omitempty"` // default python
	CWD      string `json:"cwd,omitempty"`      // default /home/user
}

// Context is one code context: one kernel with its own state.
type Context struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	CWD      string `json:"cwd"`
}

// Types of the lines of an execution.
const (
	LineExecutions = "number_of_executions"
	LineStdout     = "stdout"
	LineStderr     = "stderr"
	LineResult     = "result"
	LineError      = "error"
	LineKeepalive  = "keepalive"
	LineEnd        = "end_of_execution"
)

// Line is one line of the answer to POST /execute, a union by Type. Lines are
// ASCII-escaped JSON: SDKs decode chunks separately and would break a split
// character.
type Line struct {
	Type           string `json:"type"`
	ExecutionCount int    `json:"execution_count,omitempty"`

	// stdout, stderr. Bytes that are no text are replaced; Abx.Bytes then holds
	// them as they were.
	Text      string `json:"text,omitempty"`
	Timestamp string `json:"timestamp,omitempty"`

	// result
	IsMainResult bool            `json:"is_main_result,omitempty"`
	HTML         string          `json:"html,omitempty"`
	Markdown     string          `json:"markdown,omitempty"`
	SVG          string          `json:"svg,omitempty"`
	PNG          string          `json:"png,omitempty"`  // base64
	JPEG         string          `json:"jpeg,omitempty"` // base64
	PDF          string          `json:"pdf,omitempty"`  // base64
	LaTeX        string          `json:"latex,omitempty"`
	JSON         json.RawMessage `json:"json,omitempty"`
	JavaScript   string          `json:"javascript,omitempty"`
	Data         json.RawMessage `json:"data,omitempty"`
	Chart        json.RawMessage `json:"chart,omitempty"`
	Extra        json.RawMessage `json:"extra,omitempty"`

	// error
	Name      string `json:"name,omitempty"`
	Value     string `json:"value,omitempty"`
	Traceback string `json:"traceback,omitempty"`

	Abx *LineAbx `json:"abx,omitempty"`
}

// LineAbx is our part of a line: on end_of_execution how the cell ended, on
// keepalive how far it is.
type LineAbx struct {
	// End of execution.
	ExitCode   int    `json:"exitCode"`
	Reason     string `json:"reason,omitempty"` // as in the process service
	Detail     string `json:"detail,omitempty"`
	StateLost  bool   `json:"stateLost,omitempty"` // the kernel was replaced: variables are gone
	CWD        string `json:"cwd,omitempty"`
	Background int    `json:"background,omitempty"` // threads and processes of the cell that still run

	OutputFiles      []OutputFile `json:"outputFiles,omitempty"`
	OutputFilesTotal int          `json:"outputFilesTotal,omitempty"` // when the list was cut

	// Both; see Abx-Window.
	StdoutBytes int64  `json:"stdoutBytes,omitempty"`
	StderrBytes int64  `json:"stderrBytes,omitempty"`
	StdoutFile  string `json:"stdoutFile,omitempty"`
	StderrFile  string `json:"stderrFile,omitempty"`

	// stdout and stderr: the bytes, when Text could not hold them.
	Bytes []byte `json:"bytes,omitempty"`

	// Keepalive: the newest output line.
	NewestLine string `json:"newestLine,omitempty"`
}

// OutputFile is a file that a cell made or changed.
type OutputFile struct {
	Name string `json:"name"`
	Path string `json:"path"`
	Size int64  `json:"size"`
}

// Reasons why a call ended; the host adds ReasonSandboxLost.
const (
	ReasonExit        = "exit"
	ReasonSignal      = "signal"
	ReasonTimeout     = "timeout"
	ReasonOOM         = "oom"
	ReasonDiskFull    = "disk-full"
	ReasonPidsLimit   = "pids-limit"
	ReasonSandboxLost = "sandbox-lost"
)
