//go:build linux

package output

import (
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// What the logs of ended calls may hold of the disk before a new one is
// begun; a log itself may go up to the disk's limit.
const (
	keepShare = 4  // a quarter of the disk
	keepFiles = 64 // at most
)

// prune removes the oldest logs until those left are within bounds, so that
// output which somebody once cut does not fill the disk for good.
func prune(folder int) {
	var fs unix.Statfs_t
	if unix.Fstatfs(folder, &fs) != nil {
		return
	}
	logs := list(folder)
	slices.SortFunc(logs, func(a, b entry) int { return a.changed.Compare(b.changed) })
	var total int64
	for _, l := range logs {
		total += l.size
	}
	budget := int64(fs.Blocks) * fs.Bsize / keepShare
	for len(logs) > 0 && (total > budget || len(logs) >= keepFiles) {
		_ = unix.Unlinkat(folder, logs[0].name, 0) // one that stays is counted again next time
		total -= logs[0].size
		logs = logs[1:]
	}
}

type entry struct {
	name    string
	size    int64
	changed time.Time
}

// list returns the regular files of our naming in a folder, at most some
// thousands: users may have put more there.
func list(folder int) []entry {
	fd, err := unix.Openat(folder, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	dir := os.NewFile(uintptr(fd), "logs")
	defer dir.Close()
	names, _ := dir.Readdirnames(4096) // what was read before an error counts
	var out []entry
	for _, name := range names {
		var st unix.Stat_t
		if !strings.HasSuffix(name, ".log") || unix.Fstatat(folder, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil ||
			st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		out = append(out, entry{name: name, size: st.Blocks * 512, changed: time.Unix(st.Mtim.Unix())})
	}
	return out
}
