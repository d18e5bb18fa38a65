//go:build linux

package filesystem

import (
	"bytes"
	"errors"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/account"
)

const (
	headerMetadata = "X-Metadata-"
	attribute      = "user.e2b."
	maxMetadataKey = 246  // XATTR_NAME_MAX less our prefix
	maxMetadata    = 4096 // bytes, keys and values
)

// metadataOf reads the X-Metadata-* headers. Keys come back in lower case.
func metadataOf(h http.Header) (map[string]string, error) {
	m := map[string]string{}
	total := 0
	for name, values := range h {
		if !strings.HasPrefix(name, headerMetadata) {
			continue
		}
		key, v := strings.ToLower(name[len(headerMetadata):]), strings.Join(values, ", ")
		switch {
		case key == "":
			return nil, faultf(kindInvalid, "header %s: the key is missing", headerMetadata)
		case len(key) > maxMetadataKey:
			return nil, faultf(kindInvalid, "header %s: the key is longer than %d bytes", show(name), maxMetadataKey)
		case !printable(key) || !printable(v):
			return nil, faultf(kindInvalid, "header %s: key and value may hold printable ASCII only", show(name))
		}
		total += len(key) + len(v)
		m[key] = v
	}
	if total > maxMetadata {
		return nil, faultf(kindInvalid, "headers %s*: %d bytes of keys and values, the limit is %d", headerMetadata, total, maxMetadata)
	}
	return m, nil
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' })
}

// setMetadata makes m the whole metadata of the open file fd and returns what
// the file system took. Not every one keeps attributes, and an upload is worth
// more than its metadata, so there is no error.
func (s *Service) setMetadata(fd int, m map[string]string, a account.Account) (kept map[string]string) {
	old := metadataKeys(func(b []byte) (int, error) { return unix.Flistxattr(fd, b) })
	if len(old) == 0 && len(m) == 0 {
		return nil
	}
	_ = s.as(a, func() error {
		kept = changeMetadata(fd, old, m)
		return nil
	})
	return kept
}

func changeMetadata(fd int, old []string, m map[string]string) (kept map[string]string) {
	for _, key := range old {
		if _, keep := m[key]; !keep {
			_ = unix.Fremovexattr(fd, attribute+key) // as for those set below
		}
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if err := unix.Fsetxattr(fd, attribute+key, []byte(m[key]), 0); err != nil {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[key] = m[key]
	}
	return kept
}

// metadata reads what is kept of the regular file at pl. There is no call for a
// name in an open directory on the kernels we support, hence the way through
// /proc; it does not follow a link put in the file's place.
func (e *describer) metadata(pl *place, st *unix.Stat_t) map[string]string {
	if e.bare[st.Dev] || kernelFS(pl.magic) {
		return nil
	}
	file := path.Join(procFD(pl.fd), pl.name)
	var failed error
	keys := metadataKeys(func(b []byte) (int, error) {
		n, err := unix.Llistxattr(file, b)
		failed = err
		return n, err
	})
	if errors.Is(failed, unix.ENOTSUP) || errors.Is(failed, unix.ENOSYS) {
		e.bare[st.Dev] = true
	}
	var m map[string]string
	buf := make([]byte, maxMetadata)
	for _, key := range keys {
		n, err := unix.Lgetxattr(file, attribute+key, buf)
		if err != nil {
			continue
		}
		if m == nil {
			m = map[string]string{}
		}
		m[valid(key)] = valid(string(buf[:n]))
	}
	return m
}

// metadataKeys returns the keys of ours among the attributes that list lists.
func metadataKeys(list func([]byte) (int, error)) []string {
	n, err := list(nil)
	if err != nil || n == 0 {
		return nil
	}
	buf := make([]byte, n)
	if n, err = list(buf); err != nil { // ERANGE when one was added just now
		return nil
	}
	var keys []string
	for name := range bytes.SplitSeq(buf[:n], []byte{0}) {
		if key, ok := strings.CutPrefix(string(name), attribute); ok && key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}

// procFD is a path that leads to the open descriptor fd of the agent.
func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
