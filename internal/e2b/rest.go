package e2b

import "time"

// EnvdVersion is the agent version reported to clients. From 0.6.4 on E2B's
// SDKs use every feature of the data plane.
const EnvdVersion = "0.6.13"

// Sandbox states on the wire.
const (
	StateRunning = "running"
	StatePaused  = "paused"
)

// NewSandbox is the body of POST /sandboxes and POST /v2/sandboxes.
type NewSandbox struct {
	TemplateID string            `json:"templateID"`
	Timeout    *int              `json:"timeout,omitempty"` // seconds, > 0; absent: 15 in v1, 300 in v2
	Metadata   map[string]string `json:"metadata,omitempty"`
	EnvVars    map[string]string `json:"envVars,omitempty"`
	Secure     *bool             `json:"secure,omitempty"` // v1 only; v2 is always secured
	AllowNet   *bool             `json:"allow_internet_access,omitempty"`
	AutoPause  bool              `json:"autoPause,omitempty"`
	AutoResume *struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume,omitempty"`
	Network      *Network       `json:"network,omitempty"`
	VolumeMounts []VolumeMount  `json:"volumeMounts,omitempty"`
	MCP          map[string]any `json:"mcp,omitempty"`
	Abx          *NewSandboxAbx `json:"abx,omitempty"`
}

// NewSandboxAbx holds our own, optional wishes for a new sandbox.
type NewSandboxAbx struct {
	// Isolation names the least isolation accepted: auto (or empty), namespace, gvisor.
	Isolation string `json:"isolation,omitempty"`
}

// Network is the egress and ingress part of NewSandbox.
type Network struct {
	AllowOut           []string `json:"allowOut,omitempty"`
	DenyOut            []string `json:"denyOut,omitempty"`
	AllowPublicTraffic *bool    `json:"allowPublicTraffic,omitempty"`
	MaskRequestHost    string   `json:"maskRequestHost,omitempty"`
}

// VolumeMount asks for a volume by name.
type VolumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// Sandbox answers create and connect.
type Sandbox struct {
	TemplateID         string      `json:"templateID"`
	SandboxID          string      `json:"sandboxID"`
	ClientID           string      `json:"clientID"` // deprecated; any string
	EnvdVersion        string      `json:"envdVersion"`
	Alias              string      `json:"alias,omitempty"`
	EnvdAccessToken    string      `json:"envdAccessToken,omitempty"`
	TrafficAccessToken *string     `json:"trafficAccessToken,omitempty"`
	Domain             *string     `json:"domain"`
	Abx                *SandboxAbx `json:"abx,omitempty"`
}

// SandboxAbx tells what an E2B client does not ask for.
type SandboxAbx struct {
	Isolation string   `json:"isolation,omitempty"` // the tier in force: namespace, gvisor
	Notes     []string `json:"notes,omitempty"`     // what this machine could not give, in sentences
	Network   string   `json:"network,omitempty"`   // none, open, allow
	Limits    *Limits  `json:"limits,omitempty"`
}

// Limits of one sandbox; zero means none is enforced.
type Limits struct {
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	DiskBytes   int64 `json:"diskBytes,omitempty"`
	Processes   int64 `json:"processes,omitempty"`
	OpenFiles   int64 `json:"openFiles,omitempty"`
}

// ListedSandbox is one entry of GET /v2/sandboxes.
type ListedSandbox struct {
	TemplateID  string            `json:"templateID"`
	SandboxID   string            `json:"sandboxID"`
	ClientID    string            `json:"clientID"`
	Alias       string            `json:"alias,omitempty"`
	StartedAt   time.Time         `json:"startedAt"`
	EndAt       time.Time         `json:"endAt"`
	CPUCount    int               `json:"cpuCount"`
	MemoryMB    int               `json:"memoryMB"`
	DiskSizeMB  int               `json:"diskSizeMB"`
	State       string            `json:"state"`
	EnvdVersion string            `json:"envdVersion"`
	Metadata    map[string]string `json:"metadata,omitempty"`
}

// SandboxDetail answers GET /sandboxes/{id}.
type SandboxDetail struct {
	ListedSandbox
	EnvdAccessToken string      `json:"envdAccessToken,omitempty"`
	Domain          *string     `json:"domain"`
	Lifecycle       *Lifecycle  `json:"lifecycle,omitempty"`
	Abx             *SandboxAbx `json:"abx,omitempty"`
}

// Lifecycle says what happens when a sandbox's time is over.
type Lifecycle struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"` // kill or pause
}

// SetTimeout is the body of POST /sandboxes/{id}/timeout and of connect:
// seconds from now. On timeout 0 means "expire now".
type SetTimeout struct {
	Timeout *int `json:"timeout,omitempty"`
}

// Error is the body of every control-plane error. SDKs read Code, not the
// HTTP status, so both are always equal.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// NotFoundError is the gateway's 502 for an unknown or dead sandbox.
type NotFoundError struct {
	SandboxID string `json:"sandboxId"`
	Message   string `json:"message"` // MessageSandboxNotFound
	Code      int    `json:"code"`    // 502
}

// PortClosedError is the gateway's 502 for a port where nothing listens.
type PortClosedError struct {
	SandboxID string `json:"sandboxId"`
	Message   string `json:"message"` // MessagePortClosed
	Port      int    `json:"port"`
	Code      int    `json:"code"` // 502
}

// Messages that SDKs or their tests compare to the letter.
const (
	MessageSandboxNotFound = "The sandbox was not found"
	MessagePortClosed      = "The sandbox is running but port is not open"
)

// Init is the body of POST /init, by which the host, and only the host, hands
// a started agent its sandbox's identity. The gateway answers 404 for it.
// Every field that is present replaces what was set before.
type Init struct {
	EnvVars        map[string]string `json:"envVars,omitempty"`
	AccessToken    *string           `json:"accessToken,omitempty"`
	Timestamp      *time.Time        `json:"timestamp,omitempty"`
	DefaultUser    string            `json:"defaultUser,omitempty"`
	DefaultWorkdir string            `json:"defaultWorkdir,omitempty"`
	Abx            *InitAbx          `json:"abx,omitempty"`
}

// InitAbx is our part of Init.
type InitAbx struct {
	// LifetimeMS is how long the agent lets the sandbox live from now, in
	// milliseconds, unless told again. 0 leaves the deadline as it is.
	LifetimeMS int64 `json:"lifetimeMs,omitempty"`
}

// Metrics answers GET /metrics of the agent. Sizes are bytes unless named MiB.
type Metrics struct {
	Timestamp   int64   `json:"ts"`
	CPUCount    int     `json:"cpu_count"`
	CPUUsedPct  float64 `json:"cpu_used_pct"`
	MemTotal    int64   `json:"mem_total"`
	MemUsed     int64   `json:"mem_used"`
	MemCache    int64   `json:"mem_cache"`
	DiskUsed    int64   `json:"disk_used"`
	DiskTotal   int64   `json:"disk_total"`
	MemTotalMiB int64   `json:"mem_total_mib"`
	MemUsedMiB  int64   `json:"mem_used_mib"`
}

// FileInfo is one entry of the answer to POST /files.
type FileInfo struct {
	Path     string            `json:"path"`
	Name     string            `json:"name"`
	Type     string            `json:"type"` // file
	Metadata map[string]string `json:"metadata,omitempty"`
}
