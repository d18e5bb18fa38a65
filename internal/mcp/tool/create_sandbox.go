package tool

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agent-sandbox/abx/internal/mcp/session"
	"github.com/agent-sandbox/abx/internal/mcp/wire"
	"github.com/agent-sandbox/abx/sandbox"
)

// Longest is the longest life of a sandbox, in seconds.
const Longest = 24 * 60 * 60

const defaultLifetime = 300 // seconds

func createSandbox(o Options) definition {
	template := o.Template
	if template == "" {
		template = sandbox.DefaultTemplate
	}
	return definition{
		Tool: Tool{
			Name:  "create_sandbox",
			Title: "Create a sandbox",
			Description: o.Place.warn("Creates an isolated Linux sandbox and makes it the default of this session: later calls without sandbox_id use it. " +
				"It is seldom needed, since the first call of another tool creates a default sandbox by itself; use it for another template, lifetime or environment variables. " +
				"Each use extends the sandbox's life by its timeout. Earlier sandboxes live on until they are killed or the session ends."),
			Output: outputSchema([]field{
				{name: "sandbox_id", kind: "string", doc: "give it to other tools to use this sandbox", always: true},
				{name: "status", kind: "string", doc: "running", always: true},
				{name: "url", kind: "string", doc: "the address of port 80 in the sandbox; empty where the platform gives none. notes say when it leads nowhere", always: true},
				{name: "url_template", kind: "string", doc: "the address of any port in the sandbox, with {port} in its place", always: true},
				{name: "template", kind: "string", doc: "the template that it was made from", always: true},
				{name: "timeout", kind: "integer", doc: "seconds that it lives after its last use", always: true},
				{name: "isolation", kind: "string", doc: "what keeps the sandbox apart from the machine it runs on"},
				{name: "network", kind: "string", doc: "none, open (the public internet) or allow (allowed hosts only)"},
				{name: "limits", kind: "object", fields: []field{
					{name: "memory_bytes", kind: "integer"}, {name: "disk_bytes", kind: "integer"},
					{name: "processes", kind: "integer"}, {name: "open_files", kind: "integer"},
				}},
				{name: "notes", kind: "array", doc: "what this machine could not give, in sentences", items: stringItems},
			}),
			OpenWorld: o.Place.Network != noNetwork,
		},
		params: []param{
			{name: "template", kind: kindText, doc: fmt.Sprintf("the template to make the sandbox from; left out: the server's, %q", template)},
			{name: "timeout", kind: kindWhole, whole: defaultLifetime, least: 1, most: Longest, aka: akaTimeout, doc: "seconds that the sandbox lives after its last use"},
			{name: "envs", kind: kindWords, aka: []string{"env", "environment", "env_vars"}, doc: "environment variables of everything in the sandbox, names to values"},
		},
		run: (*Set).createSandbox,
	}
}

func (s *Set) createSandbox(ctx context.Context, a arguments, r Request) (*Result, error) {
	timeout := a.whole("timeout")
	sb, err := s.session.Create(ctx, session.Spec{
		Template: a.text("template"), Timeout: time.Duration(timeout) * time.Second, Envs: a.words,
	})
	if err != nil {
		return nil, s.noTemplate(longTimeout(err, timeout), a.text("template"))
	}
	info, rep := sb.Info(), r.report
	rep.notes = slices.Concat(info.Notes, s.o.Notes, rep.notes)
	d := &rep.data
	d.String("sandbox_id", sb.ID())
	d.String("status", "running")
	d.String("url", sb.URL(80))
	d.String("url_template", urlTemplate(sb.Sandbox))
	d.String("template", sb.Template())
	d.Int("timeout", timeout)
	text := fmt.Sprintf("Sandbox %s is running (template %s", sb.ID(), sb.Template())
	if info.Isolation != "" {
		d.String("isolation", info.Isolation)
		text += ", isolation " + info.Isolation
	}
	if info.Network != "" {
		d.String("network", info.Network)
		text += ", network " + info.Network
	}
	limits(d, info.Limits)
	text += fmt.Sprintf("). It is the default sandbox now and ends %d s after its last use.", timeout)
	if u := urlTemplate(sb.Sandbox); u != "" && !s.o.Place.Local {
		text += " Ports: " + u
	}
	rep.text = append(rep.text, text)
	return rep.result(), nil
}

// urlTemplate is the address of a port of sb with {port} in place of its number.
func urlTemplate(sb *sandbox.Sandbox) string {
	const port = 80
	return strings.Replace(sb.URL(port), fmt.Sprintf("://%d-", port), "://{port}-", 1)
}

func limits(d *wire.Builder, l sandbox.Limits) {
	var b wire.Builder
	known := false
	for _, v := range [...]struct {
		name string
		n    int64
	}{{"memory_bytes", l.MemoryBytes}, {"disk_bytes", l.DiskBytes}, {"processes", l.Processes}, {"open_files", l.OpenFiles}} {
		if v.n > 0 {
			b.Int(v.name, v.n)
			known = true
		}
	}
	if known {
		d.Raw("limits", b.JSON())
	}
}
