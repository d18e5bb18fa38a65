package tool

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/agent-sandbox/abx/internal/mcp/wire"
	"github.com/agent-sandbox/abx/sandbox"
)

func listFiles(Options) definition {
	return definition{
		Tool: Tool{
			Name:        "list_files",
			Title:       "List a folder",
			Description: "Lists the files and folders in a folder of a sandbox, not those below. Leave sandbox_id out to use the default sandbox.",
			Output: outputSchema(append([]field{
				{name: "files", kind: "array", always: true, items: outputSchema([]field{
					{name: "name", kind: "string", always: true},
					{name: "path", kind: "string", always: true},
					{name: "type", kind: "string", always: true, enum: []string{"file", "directory", "symlink", "other"}},
					{name: "size", kind: "integer", doc: "bytes", always: true},
					{name: "target", kind: "string", doc: "where a symlink leads to"},
				})},
				{name: "path", kind: "string", doc: "the folder", always: true},
				{name: "total", kind: "integer", doc: "entries that the folder has", always: true},
				{name: "truncated", kind: "boolean", doc: "true when not all are listed", always: true},
			}, reportFields...)),
			ReadOnly: true, Idempotent: true,
		},
		params: []param{
			{name: "path", kind: kindText, text: workDir, absolute: true, aka: slices.Concat(akaFolder, akaPath), doc: "the folder, absolute; left out: /app, or the template's own folder where there is no /app"},
			sandboxID,
		},
		run: (*Set).listFiles,
	}
}

func (s *Set) listFiles(ctx context.Context, a arguments, r Request) (*Result, error) {
	lease, rep, err := s.use(ctx, a, r, 0)
	if err != nil {
		return nil, err
	}
	defer lease.Release()
	sb, dir := lease.Sandbox, a.text("path")
	if dir == workDir {
		if dir, err = sb.workdir(ctx); err != nil {
			return nil, err
		}
	}
	if dir == "" {
		return s.listHome(ctx, sb, rep)
	}
	return s.list(ctx, sb, rep, dir)
}

// listHome lists the template's own folder, whose name only its entries tell.
func (s *Set) listHome(ctx context.Context, sb *handle, rep *report) (*Result, error) {
	list, err := sb.Files.List(ctx, ".", sandbox.Limit(s.o.Limits.Entries))
	if err != nil {
		return nil, err
	}
	dir := homeDir
	if len(list.Entries) > 0 {
		dir = path.Dir(list.Entries[0].Path)
	}
	return listing(rep, dir, list), nil
}

func (s *Set) list(ctx context.Context, sb *handle, rep *report, dir string) (*Result, error) {
	list, err := sb.Files.List(ctx, dir, sandbox.Limit(s.o.Limits.Entries))
	if err != nil {
		return nil, noFolder(ctx, sb, dir, err)
	}
	if clean := path.Clean(dir); !strings.Contains(dir, "..") || len(list.Entries) == 0 {
		dir = clean
	} else {
		dir = path.Dir(list.Entries[0].Path) // ".." behind a link leads elsewhere than it looks
	}
	return listing(rep, dir, list), nil
}

func listing(rep *report, dir string, list *sandbox.Listing) *Result {
	files := []byte("[")
	var lines strings.Builder
	for i, e := range list.Entries {
		var b wire.Builder
		b.String("name", e.Name)
		b.String("path", e.Path)
		b.String("type", typeName(e))
		b.Int("size", e.Size)
		if e.LinkTarget != "" {
			b.String("target", e.LinkTarget)
		}
		if i > 0 {
			files = append(files, ',')
		}
		files = append(files, b.JSON()...)
		lines.WriteString(line(e))
	}
	truncated := list.Total > len(list.Entries)
	rep.data.Raw("files", append(files, ']'))
	rep.data.String("path", dir)
	rep.data.Int("total", int64(list.Total))
	rep.data.Bool("truncated", truncated)
	if len(list.Entries) == 0 {
		lines.WriteString("(empty)\n")
	}
	rep.text = append(rep.text, fmt.Sprintf("%s: %s\n%s", dir, count(list.Total, "entry", "entries"), strings.TrimSuffix(lines.String(), "\n")))
	if truncated {
		rep.note("Only %d of %d entries are listed: see the rest by run_command, such as `ls %q | tail -n +%d`.",
			len(list.Entries), list.Total, dir, len(list.Entries)+1)
	}
	return rep.result()
}

func typeName(e sandbox.Entry) string {
	switch {
	case e.LinkTarget != "" || e.Type == sandbox.TypeSymlink:
		return "symlink"
	case e.Type == sandbox.TypeDir:
		return "directory"
	case e.Type == sandbox.TypeFile:
		return "file"
	}
	return "other"
}

func line(e sandbox.Entry) string {
	switch typeName(e) {
	case "directory":
		return e.Name + "/\n"
	case "symlink":
		return fmt.Sprintf("%s -> %s\n", e.Name, e.LinkTarget)
	case "file":
		return fmt.Sprintf("%s (%s)\n", e.Name, byteCount(e.Size))
	}
	return e.Name + " (special file)\n"
}
