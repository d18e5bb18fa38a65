package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/e2b/filesystem"
)

// Files reads and writes the files of a sandbox. Paths are absolute or relative
// to the home folder of the user; "~/" stands for it.
type Files struct{ sb *Sandbox }

// Which option was given; each call refuses those that it cannot heed.
const (
	usedLimit = 1 << iota
	usedRange
	usedDepth
	usedRecursive
	usedEntries
	usedExpires
)

var fileOptionNames = [...]string{"Limit", "Range", "Depth", "Recursive", "WithEntries", "Expires"}

type fileSettings struct {
	user          string
	used          uint
	limit         int
	offset, count int64
	depth         int
	recursive     bool
	entries       bool
	expires       time.Duration
}

// Range reads only count bytes from offset on; a count of 0 means to the end.
// An offset at or behind the end gives no bytes and no error.
func Range(offset, count int64) FileOption {
	return fileFunc(func(s *fileSettings) { s.offset, s.count, s.used = offset, count, s.used|usedRange })
}

// Depth is how many levels of folders a list descends; default (and 0) 1.
func Depth(levels int) FileOption {
	return fileFunc(func(s *fileSettings) { s.depth, s.used = levels, s.used|usedDepth })
}

// Recursive watches all folders below, too.
func Recursive() FileOption {
	return fileFunc(func(s *fileSettings) { s.recursive, s.used = true, s.used|usedRecursive })
}

// WithEntries asks for the [Entry] of what was created or written in each event.
func WithEntries() FileOption {
	return fileFunc(func(s *fileSettings) { s.entries, s.used = true, s.used|usedEntries })
}

// Expires ends a signed URL after d, rounded up to whole seconds.
func Expires(d time.Duration) FileOption {
	return fileFunc(func(s *fileSettings) { s.expires, s.used = d, s.used|usedExpires })
}

func newFileSettings(op, path string, may uint, opts []FileOption) (*fileSettings, error) {
	var s fileSettings
	for _, o := range opts {
		o.applyFile(&s)
	}
	if rest := s.used &^ may; rest != 0 {
		for i, name := range fileOptionNames {
			if rest&(1<<i) != 0 {
				return nil, invalid(op, "the option "+name+" has no meaning here")
			}
		}
	}
	switch {
	case path == "":
		return nil, invalid(op, "the path is empty")
	case strings.ContainsRune(path, 0):
		return nil, invalid(op, "the path holds a NUL byte")
	case s.limit < 0 || s.offset < 0 || s.count < 0 || s.depth < 0 || s.expires < 0:
		return nil, invalid(op, "an option is negative")
	case s.limit > math.MaxInt32 || s.depth > math.MaxInt32:
		return nil, invalid(op, "an option is too large; 0 means no limit")
	}
	return &s, nil
}

// An Entry is a file, a folder or a link in a sandbox.
type Entry struct {
	Name       string
	Path       string
	Type       EntryType
	Size       int64       // bytes
	Mode       fs.FileMode // permission bits
	Owner      string      // names, or numbers where there is no name
	Group      string
	ModTime    time.Time
	LinkTarget string            // where a link leads to; empty: no link
	Metadata   map[string]string // labels that an upload set
}

// EntryType is what an Entry is. Of a link, it is what the link leads to.
type EntryType string

// The types of entries.
const (
	TypeFile    EntryType = "file"
	TypeDir     EntryType = "dir"
	TypeSymlink EntryType = "symlink"
	TypeOther   EntryType = "other" // a device, a pipe, a link to nothing
)

// A Listing is the content of a folder.
type Listing struct {
	Entries []Entry
	Total   int // entries that there are, also those that a limit left out
}

// Stat describes a file or folder. A path that does not exist is ErrNotFound.
func (f *Files) Stat(ctx context.Context, path string, opts ...FileOption) (*Entry, error) {
	const op = "stat"
	set, err := newFileSettings(op, path, 0, opts)
	if err != nil {
		return nil, err
	}
	out, err := unary(ctx, f.sb, about(op, path), set.user, true, f.sb.filesystem().Stat, &filesystem.StatRequest{Path: path})
	if err != nil {
		return nil, err
	}
	e := newEntry(out.GetEntry())
	return &e, nil
}

// Exists reports whether path is there.
func (f *Files) Exists(ctx context.Context, path string, opts ...FileOption) (bool, error) {
	_, err := f.Stat(ctx, path, opts...)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// List returns what a folder holds, without the folder itself.
//
// Options: [Depth] (default 1), [Limit] (default none), [User].
func (f *Files) List(ctx context.Context, path string, opts ...FileOption) (*Listing, error) {
	const op = "list"
	set, err := newFileSettings(op, path, usedDepth|usedLimit, opts)
	if err != nil {
		return nil, err
	}
	in := &filesystem.ListDirRequest{Path: path, Depth: uint32(set.depth), AbxLimit: uint32(set.limit)}
	out, err := unary(ctx, f.sb, about(op, path), set.user, true, f.sb.filesystem().ListDir, in)
	if err != nil {
		return nil, err
	}
	got := out.GetEntries()
	l := &Listing{Total: max(len(got), int(count(out.GetAbxTotal())))}
	if set.limit > 0 && len(got) > set.limit {
		got = got[:set.limit]
	}
	l.Entries = make([]Entry, 0, len(got))
	for _, e := range got {
		l.Entries = append(l.Entries, newEntry(e))
	}
	return l, nil
}

// MakeDir makes a folder and its parents. One that exists is no error; a file
// of that name is ErrInvalid.
func (f *Files) MakeDir(ctx context.Context, path string, opts ...FileOption) error {
	const op = "make folder"
	set, err := newFileSettings(op, path, 0, opts)
	if err != nil {
		return err
	}
	_, err = unary(ctx, f.sb, about(op, path), set.user, false, f.sb.filesystem().MakeDir, &filesystem.MakeDirRequest{Path: path})
	var e *Error
	if errors.As(err, &e) && e.Code == connect.CodeAlreadyExists.String() {
		return nil
	}
	return err
}

// Rename moves a file or folder and makes the new place's parents. A path that
// does not exist is ErrNotFound.
func (f *Files) Rename(ctx context.Context, from, to string, opts ...FileOption) error {
	const op = "rename"
	if to == "" {
		return invalid(op, "the new path is empty")
	}
	set, err := newFileSettings(op, from, 0, opts)
	if err != nil {
		return err
	}
	_, err = unary(ctx, f.sb, about(op, from), set.user, false, f.sb.filesystem().Move, &filesystem.MoveRequest{Source: from, Destination: to})
	return err
}

// Remove removes a file, or a folder and all below it. A path that does not
// exist is no error.
func (f *Files) Remove(ctx context.Context, path string, opts ...FileOption) error {
	const op = "remove"
	set, err := newFileSettings(op, path, 0, opts)
	if err != nil {
		return err
	}
	_, err = unary(ctx, f.sb, about(op, path), set.user, true, f.sb.filesystem().Remove, &filesystem.RemoveRequest{Path: path})
	return err
}

// about names a file in the op of an error.
func about(op, path string) string { return fmt.Sprintf("%s %q", op, path) }

func newEntry(e *filesystem.EntryInfo) Entry {
	out := Entry{
		Name: e.GetName(), Path: e.GetPath(), Type: TypeOther, Size: e.GetSize(), Mode: fs.FileMode(e.GetMode()) & fs.ModePerm,
		Owner: e.GetOwner(), Group: e.GetGroup(), LinkTarget: e.GetSymlinkTarget(), Metadata: e.GetMetadata(),
	}
	if t := e.GetModifiedTime(); t != nil {
		out.ModTime = t.AsTime()
	}
	switch e.GetType() {
	case filesystem.FileType_FILE_TYPE_FILE:
		out.Type = TypeFile
	case filesystem.FileType_FILE_TYPE_DIRECTORY:
		out.Type = TypeDir
	case filesystem.FileType_FILE_TYPE_SYMLINK:
		out.Type = TypeSymlink
	}
	return out
}
