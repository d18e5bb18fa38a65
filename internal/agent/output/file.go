//go:build linux

package output

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// What of the disk is given back when a file has filled it, so that the log of
// one command does not stop the next: an eighth, and this much at least.
const (
	giveBack      = 1 << 20
	giveBackShare = 8
)

// open makes the file of a stream that was cut. Without one the stream goes
// on: a log must not end a command.
func (w *Window) open() {
	if w.opts.Dir == "" {
		return
	}
	f, err := create(w.opts.Dir, w.opts.Name)
	if err != nil {
		return
	}
	// Without CHOWN it stays ours; mode 0644 lets every user read it.
	_ = f.Chown(int(w.opts.Owner.UID), int(w.opts.Owner.GID))
	w.file, w.path = f, f.Name()
}

// save appends to the file. The first error ends it: the disk is full, or the
// quota met. What was written before it stays readable.
func (w *Window) save(p []byte) {
	if w.file == nil || len(p) == 0 {
		return
	}
	if _, err := w.file.Write(p); err == nil {
		return
	}
	w.partial = true
	if info, err := w.file.Stat(); err == nil {
		back := int64(giveBack)
		var fs unix.Statfs_t
		if unix.Fstatfs(int(w.file.Fd()), &fs) == nil {
			back = max(back, int64(fs.Blocks)*fs.Bsize/giveBackShare)
		}
		_ = w.file.Truncate(max(0, info.Size()-back))
	}
	_ = w.file.Close()
	w.file = nil
}

// create makes a new file in dir under a name that nobody can guess, and dir
// itself when it is missing. The users of a sandbox may write to dir's parent
// and may have put anything in dir's place: no link is followed from there.
func create(dir, name string) (*os.File, error) {
	folder, err := openDir(dir)
	if err != nil {
		return nil, err
	}
	defer unix.Close(folder)
	prune(folder)
	var random [8]byte
	rand.Read(random[:])
	base := filepath.Base(name) + "-" + hex.EncodeToString(random[:]) + ".log"
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(folder, base, flags, 0o644)
	if err != nil {
		return nil, fmt.Errorf("create %s in %s: %w", base, dir, err)
	}
	f := os.NewFile(uintptr(fd), filepath.Join(dir, base))
	_ = f.Chmod(0o644) // whatever the umask is
	return f, nil
}

// openDir opens dir, made with mode 1777 (each user deletes its own logs) when
// it is missing.
func openDir(dir string) (fd int, err error) {
	parent, err := unix.Open(filepath.Dir(dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", filepath.Dir(dir), err)
	}
	defer unix.Close(parent)
	base := filepath.Base(dir)
	made := unix.Mkdirat(parent, base, 0o700)
	if made != nil && !errors.Is(made, unix.EEXIST) {
		return -1, fmt.Errorf("create %s: %w", dir, made)
	}
	fd, err = unix.Openat(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", dir, err)
	}
	if made == nil {
		_ = unix.Fchmod(fd, 0o777|unix.S_ISVTX)
	}
	return fd, nil
}
