package tool

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/agent-sandbox/abx/sandbox"
)

func writeFile(Options) definition {
	return definition{
		Tool: Tool{
			Name:  "write_file",
			Title: "Write a file",
			Description: "Creates or overwrites a file in a sandbox; missing parent folders are made. Give bytes as base64 with encoding base64. " +
				"Leave sandbox_id out to use the default sandbox.",
			Output: outputSchema(append([]field{
				{name: "success", kind: "boolean", always: true},
				{name: "bytes_written", kind: "integer", doc: "the length of the file", always: true},
				{name: "path", kind: "string", always: true},
			}, reportFields...)),
			Destructive: true, Idempotent: true,
		},
		params: []param{
			{name: "path", kind: kindText, required: true, absolute: true, doc: "the absolute path of the file"},
			{name: "content", kind: kindText, required: true, doc: "the whole content of the file"},
			sandboxID,
			{name: "encoding", kind: kindText, text: encodingUTF8, doc: "utf-8, base64 when content holds bytes in base64, or a WHATWG name such as latin1, utf-16le, gbk, shift_jis"},
		},
		run: (*Set).writeFile,
	}
}

func (s *Set) writeFile(ctx context.Context, a arguments, r Request) (*Result, error) {
	path := a.text("path")
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
		return nil, bad("content", "has %s bytes, at most %s: write parts to several files and join them by run_command `cat`", thousands(int64(len(data))), thousands(int64(most)))
	}
	lease, rep, err := s.use(ctx, a, r, 0)
	if err != nil {
		return nil, err
	}
	defer lease.Release()
	if err := lease.Sandbox.Files.Write(ctx, path, data); err != nil {
		return nil, noWrite(ctx, lease.Sandbox, path, err)
	}
	rep.data.Bool("success", true)
	rep.data.Int("bytes_written", int64(len(data)))
	rep.data.String("path", path)
	rep.text = append(rep.text, fmt.Sprintf("Wrote %s bytes to %s.", thousands(int64(len(data))), path))
	return rep.result(), nil
}

// noWrite says why path could not be written.
func noWrite(ctx context.Context, sb *handle, path string, err error) error {
	var e *sandbox.Error
	switch {
	case errors.Is(err, sandbox.ErrExpired):
		return err
	case errors.As(err, &e) && e.Status == 507:
		return problemf(err, "Free space by run_command `rm`, or make a new sandbox by create_sandbox.", "no space is left in the sandbox for %s", quote(path))
	case errors.Is(err, sandbox.ErrInvalid):
		if entry, statErr := sb.Files.Stat(ctx, path); statErr == nil && entry.Type == sandbox.TypeDir {
			return problemf(err, "Add the name of the file.", "%s is a folder", quote(path))
		}
	case errors.Is(err, sandbox.ErrUnauthorized):
		return problemf(err, "Write below /app, /home/user or /tmp.", "%s may not be written: %v", quote(path), err)
	}
	return err
}
