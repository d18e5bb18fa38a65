//go:build linux

package filesystem

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/agent-sandbox/abx/internal/e2b/filesystem"
)

// A describer makes entries for one request; it remembers names of users and
// directories without attributes while it lives.
type describer struct {
	tree  *tree
	names *names
	bare  map[uint64]bool // devices that keep no user attributes
}

func (s *Service) describer() *describer {
	return &describer{tree: s.tree, names: newNames(s.opts.Book), bare: map[uint64]bool{}}
}

// stat describes what is at p, an absolute path, itself; a link as the link.
func (e *describer) stat(p string) (*pb.EntryInfo, error) {
	pl, err := e.tree.locate(p, route{})
	if err != nil {
		return nil, err
	}
	defer pl.close()
	st, err := pl.lstat()
	if err != nil {
		return nil, at(p, err)
	}
	return e.entry(pl, &st, p), nil
}

// entry describes the thing st at pl, shown to the client as path shown.
func (e *describer) entry(pl *place, st *unix.Stat_t, shown string) *pb.EntryInfo {
	mode := goMode(st.Mode)
	info := &pb.EntryInfo{
		Name:         valid(path.Base(shown)),
		Path:         valid(shown),
		Type:         typeOf(st),
		Size:         st.Size,
		Mode:         uint32(mode.Perm()),
		Permissions:  mode.String(),
		Owner:        e.names.user(st.Uid),
		Group:        e.names.group(st.Gid),
		ModifiedTime: timestamppb.New(time.Unix(st.Mtim.Unix())),
	}
	switch fileType(st) {
	case unix.S_IFREG:
		info.Metadata = e.metadata(pl, st)
	case unix.S_IFLNK:
		e.target(info, pl)
	}
	return info
}

// target fills in what a link tells of its target: E2B gives type and mode of
// the target. A link that leads nowhere keeps an unspecified type.
func (e *describer) target(info *pb.EntryInfo, link *place) {
	info.Type, info.Mode = pb.FileType_FILE_TYPE_UNSPECIFIED, 0
	buf := make([]byte, maxPath)
	n, err := again(func() (int, error) { return unix.Readlinkat(link.fd, link.name, buf) })
	if err != nil {
		return
	}
	said := string(buf[:n])
	if !strings.HasPrefix(said, "/") {
		said = path.Join(link.path, said)
	}
	said = valid(path.Clean(said))
	info.SymlinkTarget = &said
	pl, err := e.tree.locate(link.full(), route{follow: true})
	if err != nil {
		return
	}
	defer pl.close()
	st, err := pl.lstat()
	if err != nil || fileType(&st) == unix.S_IFLNK {
		return
	}
	real := valid(pl.full())
	info.SymlinkTarget = &real
	info.Type, info.Mode = typeOf(&st), st.Mode&0o777
}

func typeOf(st *unix.Stat_t) pb.FileType {
	switch fileType(st) {
	case unix.S_IFREG:
		return pb.FileType_FILE_TYPE_FILE
	case unix.S_IFDIR:
		return pb.FileType_FILE_TYPE_DIRECTORY
	case unix.S_IFLNK:
		return pb.FileType_FILE_TYPE_SYMLINK
	}
	return pb.FileType_FILE_TYPE_UNSPECIFIED
}

// goMode is the mode as package fs has it, whose text form E2B shows.
func goMode(m uint32) fs.FileMode {
	mode := fs.FileMode(m & 0o777)
	switch m & unix.S_IFMT {
	case unix.S_IFDIR:
		mode |= fs.ModeDir
	case unix.S_IFLNK:
		mode |= fs.ModeSymlink
	case unix.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		mode |= fs.ModeSocket
	case unix.S_IFBLK:
		mode |= fs.ModeDevice
	case unix.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	}
	for bit, flag := range map[uint32]fs.FileMode{
		unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky,
	} {
		if m&bit != 0 {
			mode |= flag
		}
	}
	return mode
}

// valid makes s fit for a proto3 string.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func decimal(id uint32) string { return strconv.FormatUint(uint64(id), 10) }
