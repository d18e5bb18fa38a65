package tool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/agent-sandbox/abx/sandbox"
)

// What a model does next about a path.
const (
	useCommand   = "Use run_command for it (`cat`, `ls`, a redirection): there it is what a program of the sandbox sees."
	writeOwn     = "Write below /app, /home/user or /tmp."
	lookAtRights = "Look at its owner and mode, and at those of the folders above, by run_command `ls -ld`."
)

// kernelPath reports whether path lies where files are views of the kernel's.
func kernelPath(path string) bool {
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	return false
}

// denied reports whether err says that the sandbox's user may not do that.
func denied(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, sandbox.ErrUnauthorized)
}

// notOfPath reports whether err is about more than a path.
func notOfPath(err error) bool {
	var e *sandbox.Error
	return !errors.As(err, &e) || errors.Is(err, sandbox.ErrExpired) || errors.Is(err, sandbox.ErrLost) || lostUser(err) ||
		e.Message == "" || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// reason is what the sandbox said of path, without the path itself and the
// names of the call around it.
func reason(err error, path string) string {
	var e *sandbox.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	said := e.Message
	if rest, ok := strings.CutPrefix(said, "path "); ok {
		quoted, _ := strconv.QuotedPrefix(rest)
		named, _ := strconv.Unquote(quoted)
		begin, clipped := strings.CutSuffix(named, "...")
		if named != "" && (named == path || clipped && strings.HasPrefix(path, begin)) {
			said = strings.TrimPrefix(strings.TrimPrefix(rest[len(quoted):], ":"), " ")
		}
	}
	if denied(err) {
		said, _, _ = strings.Cut(said, "; ") // its advice is for other clients
	}
	return said
}

// because is reason as the second half of a sentence about path.
func because(err error, path string) string {
	said := reason(err, path)
	for _, verb := range []string{"is ", "holds ", "leads ", "goes ", "would ", "cannot "} {
		if strings.HasPrefix(said, verb) {
			return "it " + said
		}
	}
	return said
}

// special says what is at path when it is neither a file nor a folder; nil when
// it is one of them. kind is what was looked for.
func special(ctx context.Context, sb *handle, kind, path string, err error) error {
	e, statErr := sb.Files.Stat(ctx, path)
	if statErr != nil || e.Type == sandbox.TypeFile || e.Type == sandbox.TypeDir {
		return nil
	}
	if e.LinkTarget != "" && errors.Is(err, sandbox.ErrNotFound) {
		return problemf(err, "Write its target, or remove the link by run_command `rm`.", "no %s %s: it is a link to %s, which is not there", kind, quote(path), quote(e.LinkTarget))
	}
	if e.LinkTarget == "" {
		return problemf(err, useCommand, "%s is no file and no folder but a pipe, a socket or a device", quote(path))
	}
	return problemf(err, "See where it leads by run_command `readlink`.", "%s is a link to %s, which is no file and no folder", quote(path), quote(e.LinkTarget))
}

// noFile says why path could not be read.
func noFile(ctx context.Context, sb *handle, path string, err error) error {
	switch {
	case notOfPath(err):
		return err
	case errors.Is(err, sandbox.ErrNotFound):
		if p := special(ctx, sb, "file", path, err); p != nil {
			return p
		}
		return problemf(err, "Look for it by list_files.", "no file %s in the sandbox", quote(path))
	case denied(err):
		return problemf(err, rightsOf(path), "%s may not be read: %s", quote(path), because(err, path))
	case errors.Is(err, sandbox.ErrInvalid):
		if e, statErr := sb.Files.Stat(ctx, path); statErr == nil && e.Type == sandbox.TypeDir {
			return problemf(err, "Use list_files to see what is in it.", "%s is a folder", quote(path))
		}
		if p := special(ctx, sb, "file", path, err); p != nil {
			return p
		}
	}
	return problemf(err, "", "%s cannot be read: %s", quote(path), because(err, path))
}

// rightsOf is the next step where the sandbox's user may not read path.
func rightsOf(path string) string {
	if kernelPath(path) {
		return useCommand
	}
	return lookAtRights
}

// noWrite says why path could not be written.
func noWrite(ctx context.Context, sb *handle, path string, err error) error {
	var e *sandbox.Error
	switch {
	case notOfPath(err):
		return err
	case errors.As(err, &e) && e.Status == 507:
		return problemf(err, "Free space by run_command `rm`, or make a new sandbox by create_sandbox.", "no space is left in the sandbox for %s", quote(path))
	case denied(err):
		return problemf(err, writeOwn, "%s may not be written: %s", quote(path), because(err, path))
	case errors.Is(err, sandbox.ErrInvalid):
		if entry, statErr := sb.Files.Stat(ctx, path); statErr == nil && entry.Type == sandbox.TypeDir {
			return problemf(err, "Add the name of the file.", "%s is a folder", quote(path))
		}
		if p := special(ctx, sb, "file", path, err); p != nil {
			return p
		}
	}
	return problemf(err, "", "%s cannot be written: %s", quote(path), because(err, path))
}

// noFolder says why dir could not be listed.
func noFolder(ctx context.Context, sb *handle, dir string, err error) error {
	switch {
	case notOfPath(err):
		return err
	case errors.Is(err, sandbox.ErrNotFound):
		if p := special(ctx, sb, "folder", dir, err); p != nil {
			return p
		}
		return problemf(err, "Look at what is there by list_files of the folder above, or make it by run_command `mkdir -p`.", "no folder %s in the sandbox", quote(dir))
	case denied(err):
		return problemf(err, rightsOf(dir), "%s may not be listed: %s", quote(dir), because(err, dir))
	case errors.Is(err, sandbox.ErrInvalid):
		if e, statErr := sb.Files.Stat(ctx, dir); statErr == nil && e.Type == sandbox.TypeFile {
			return problemf(err, "Read it by read_file.", "%s is no folder but a file%s", quote(dir), ofBytes(e))
		}
		if p := special(ctx, sb, "folder", dir, err); p != nil {
			return p
		}
	}
	return problemf(err, "", "%s cannot be listed: %s", quote(dir), because(err, dir))
}

// ofBytes is the size of a file; of a link the sandbox tells its own.
func ofBytes(e *sandbox.Entry) string {
	if e.LinkTarget != "" {
		return fmt.Sprintf(" (by a link to %s)", quote(e.LinkTarget))
	}
	return " of " + byteCount(e.Size)
}
