package sandbox

import (
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// Info is what the platform tells about a sandbox. What it does not tell is
// zero: the answers to create and connect hold no times, sizes or labels, and
// other platforms than ours none of the last four fields.
type Info struct {
	ID           string
	Template     string // id
	Alias        string // the template's name
	Domain       string
	AgentVersion string // "envd" version that the agent reports
	State        string // "running" or "paused"; empty after create and connect
	StartedAt    time.Time
	EndAt        time.Time // end of its lifetime as it stands
	CPUs         int
	MemoryMB     int
	DiskMB       int
	Metadata     map[string]string

	Isolation string   // the isolation in force: "namespace", "gvisor"
	Notes     []string // what the machine could not give, in sentences
	Network   string   // "none", "open" or "allow"
	Limits    Limits
}

// Limits of one sandbox; zero means unknown or none.
type Limits struct {
	MemoryBytes int64
	DiskBytes   int64
	Processes   int64
	OpenFiles   int64
}

func newInfo(s *e2b.Sandbox, requestedTemplate string) Info {
	i := Info{ID: s.SandboxID, Template: s.TemplateID, Alias: s.Alias, AgentVersion: s.EnvdVersion}
	if i.Template == "" {
		i.Template = requestedTemplate
	}
	if s.Domain != nil {
		i.Domain = *s.Domain
	}
	i.extend(s.Abx)
	return i
}

func listedInfo(s *e2b.ListedSandbox) Info {
	return Info{
		ID: s.SandboxID, Template: s.TemplateID, Alias: s.Alias, AgentVersion: s.EnvdVersion,
		State: s.State, StartedAt: s.StartedAt, EndAt: s.EndAt,
		CPUs: s.CPUCount, MemoryMB: s.MemoryMB, DiskMB: s.DiskSizeMB, Metadata: s.Metadata,
	}
}

func detailInfo(s *e2b.SandboxDetail) Info {
	i := listedInfo(&s.ListedSandbox)
	if s.Domain != nil {
		i.Domain = *s.Domain
	}
	i.extend(s.Abx)
	return i
}

func (i *Info) extend(a *e2b.SandboxAbx) {
	if a == nil {
		return
	}
	i.Isolation, i.Notes, i.Network = a.Isolation, a.Notes, a.Network
	if a.Limits != nil {
		i.Limits = Limits(*a.Limits)
	}
}
