package tool

import (
	"context"
	"fmt"
)

func killSandbox(Options) definition {
	return definition{
		Tool: Tool{
			Name:  "kill_sandbox",
			Title: "Kill a sandbox",
			Description: "Ends a sandbox with all its processes and files. Leave sandbox_id out to kill the default sandbox; the next call without sandbox_id then makes a new one. " +
				"Sandboxes end with the session by themselves.",
			Output: outputSchema([]field{
				{name: "success", kind: "boolean", always: true},
				{name: "sandbox_id", kind: "string", doc: "the sandbox that was killed", always: true},
			}),
			Destructive: true,
		},
		params: []param{
			{name: "sandbox_id", kind: kindText, doc: "the id of the sandbox to kill; left out: the default sandbox"},
		},
		run: (*Set).killSandbox,
	}
}

func (s *Set) killSandbox(ctx context.Context, a arguments, r Request) (*Result, error) {
	id, err := s.session.Kill(ctx, a.text("sandbox_id"))
	if err != nil {
		return nil, err
	}
	rep := r.report
	rep.data.Bool("success", true)
	rep.data.String("sandbox_id", id)
	rep.text = append(rep.text, fmt.Sprintf("Sandbox %s was killed.", id))
	return rep.result(), nil
}
