package tool

import (
	"context"
	"fmt"
	pathpkg "path"
	"strings"
)

func writeFile(Options) definition {
	return definition{
		Tool: Tool{
			Name:  "write_file",
			Title: "Write a file",
			Description: "Creates or overwrites a whole file in a sandbox; missing parent folders are made. Give bytes as base64 with encoding base64. " +
				"Leave sandbox_id out to use the default sandbox.",
			Output: outputSchema(append([]field{
				{name: "success", kind: "boolean", always: true},
				{name: "bytes_written", kind: "integer", doc: "the length of the file", always: true},
				{name: "path", kind: "string", always: true},
			}, reportFields...)),
			Destructive: true, Idempotent: true,
		},
		params: []param{
			{name: "path", kind: kindText, required: true, absolute: true, aka: akaPath, doc: "the absolute path of the file"},
			{name: "content", kind: kindText, required: true, aka: []string{"contents", "text", "data", "body", "file_text", "file_content"}, doc: "the whole content of the file"},
			sandboxID,
			{name: "encoding", kind: kindText, text: encodingUTF8, doc: "utf-8, base64 when content holds bytes in base64, or a WHATWG name such as latin1, utf-16le, gbk, shift_jis"},
		},
		run: (*Set).writeFile,
	}
}

func (s *Set) writeFile(ctx context.Context, a arguments, r Request) (*Result, error) {
	path := a.text("path")
	if s := a.append(); s != "" {
		return nil, &badArgument{fmt.Sprintf("argument %s is not known: write_file replaces the whole file. To append, use run_command `cat >> FILE <<'EOF'`, or write old and new content together", quote(s))}
	}
	if strings.HasSuffix(path, "/") {
		return nil, bad("path", "%s names a folder: add the name of the file", quote(path))
	}
	coding, err := findCoding(a.text("encoding"))
	if err != nil {
		return nil, err
	}
	data, err := coding.encode(a.bytes("content"))
	if err != nil {
		return nil, err
	}
	if most := s.o.Limits.Write; len(data) > most {
		return nil, bad("content", "has %s, at most %s are taken: write parts to several files and join them by run_command `cat`", byteCount(len(data)), thousands(int64(most)))
	}
	lease, rep, err := s.use(ctx, a, r, 0)
	if err != nil {
		return nil, err
	}
	defer lease.Release()
	if err := lease.Sandbox.Files.Write(ctx, path, data); err != nil {
		return nil, noWrite(ctx, lease.Sandbox, path, err)
	}
	if !strings.Contains(path, "..") { // behind a link it leads elsewhere than it looks
		path = pathpkg.Clean(path)
	}
	rep.data.Bool("success", true)
	rep.data.Int("bytes_written", int64(len(data)))
	rep.data.String("path", path)
	rep.text = append(rep.text, fmt.Sprintf("Wrote %s to %s.", byteCount(len(data)), path))
	return rep.result(), nil
}

// append returns the unknown argument by which a client asks for what this tool
// does not do, and which it must not ignore: what was in the file would be lost.
func (a *arguments) append() string {
	for _, s := range a.strangers {
		switch name := fold(s.name); {
		case name == "append" && s.val != "false",
			name == "mode" && (strings.HasPrefix(s.val, `"a`) || strings.HasPrefix(s.val, `"A`)):
			return s.name
		}
	}
	return ""
}
