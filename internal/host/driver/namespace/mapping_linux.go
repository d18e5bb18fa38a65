package namespace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/account"
)

// A mapping says which ids of the host stand for those inside.
type mapping struct {
	kind mappingKind
	uid  idRange // direct: what to choose from; newuidmap: the range itself
	gid  idRange
	why  string // single: why there are no more ids
}

type mappingKind int

const (
	direct    mappingKind = iota // this process may map any id: a range of its own for each sandbox
	newuidmap                    // the setuid helpers map the range that /etc/subuid gives
	single                       // one id
)

type idRange struct{ first, count uint32 }

// Ids inside reach up to 65535 where the host has that many to give, and to
// the agent's and the user's at least.
const (
	wantIDs = 1 << 16
	needIDs = account.UserID + 1
)

// Where ranges for sandboxes of root are taken from: above those that useradd
// gives to people, below what container managers of the init system use for
// themselves at the top.
const (
	rangeFirst = 0x00080000
	rangeEnd   = 0x6fff0000
)

// detectMapping finds out how ids can be mapped here.
func detectMapping(forceSingle bool) mapping {
	if forceSingle {
		return mapping{kind: single, why: "it was asked for"}
	}
	if os.Geteuid() == 0 && canMapAny() {
		avail, err := ownRange("/proc/self/uid_map")
		if err == nil && avail.count > 0 {
			return mapping{kind: direct, uid: avail, gid: avail}
		}
	}
	uids, err := subordinate("/etc/subuid")
	if err == nil {
		var gids idRange
		if gids, err = subordinate("/etc/subgid"); err == nil {
			err = helpersPresent()
		}
		if err == nil {
			return mapping{kind: newuidmap, uid: uids, gid: gids}
		}
	}
	return mapping{kind: single, why: err.Error()}
}

// canMapAny reports whether this process has the capabilities to map any id,
// which root in a stripped container has not.
func canMapAny() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	const need = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
	return data[0].Effective&need == need
}

// ownRange returns the part of the sandbox ranges that exists in the user
// namespace of this process, or, in a small one, its upper half.
func ownRange(path string) (idRange, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return idRange{}, err
	}
	var top uint64
	for line := range strings.Lines(string(b)) {
		var inside, outside, count uint64
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err == nil {
			top = max(top, inside+count)
		}
	}
	if top >= rangeEnd {
		return idRange{first: rangeFirst, count: rangeEnd - rangeFirst}, nil
	}
	if top >= 2*needIDs+1 {
		return idRange{first: uint32(top / 2), count: uint32(top - top/2)}, nil
	}
	return idRange{}, nil
}

// subordinate reads the range that a file like /etc/subuid gives to whoever
// runs this.
func subordinate(path string) (idRange, error) {
	uid := strconv.Itoa(os.Getuid())
	name := uid
	if u, err := user.LookupId(uid); err == nil {
		name = u.Username
	}
	f, err := os.Open(path)
	if err != nil {
		return idRange{}, fmt.Errorf("%s cannot be read", path)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		p := strings.Split(strings.TrimSpace(s.Text()), ":")
		if len(p) != 3 || (p[0] != name && p[0] != uid) {
			continue
		}
		first, err1 := strconv.ParseUint(p[1], 10, 32)
		count, err2 := strconv.ParseUint(p[2], 10, 32)
		if errors.Join(err1, err2) == nil && count >= needIDs {
			return idRange{first: uint32(first), count: uint32(min(count, wantIDs))}, nil
		}
	}
	return idRange{}, fmt.Errorf("%s gives %s no range of at least %d ids", path, name, needIDs)
}

func helpersPresent() error {
	for _, h := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(h); err != nil {
			return fmt.Errorf("%s is not installed", h)
		}
	}
	return nil
}

// note says what this mapping lacks; empty when nothing.
func (m mapping) note() string {
	if m.kind != single {
		return ""
	}
	return "one user id is mapped (" + m.why + "): there is no root inside, and the agent shares its id with the workload; " +
		"to mend it install newuidmap (Debian and Ubuntu: apt-get install uidmap) and see that /etc/subuid and /etc/subgid name you"
}

// apply writes the maps of the user namespace of pid, for the sandbox id.
func (m mapping) apply(pid int, id string) error {
	proc := "/proc/" + strconv.Itoa(pid)
	switch m.kind {
	case direct:
		r := m.uid.choose(id)
		line := fmt.Sprintf("0 %d %d", r.first, r.count)
		if err := os.WriteFile(proc+"/gid_map", []byte(line), 0); err != nil {
			return err
		}
		return os.WriteFile(proc+"/uid_map", []byte(line), 0)
	case newuidmap:
		if err := runHelper("newgidmap", pid, m.gid); err != nil {
			return err
		}
		return runHelper("newuidmap", pid, m.uid)
	default:
		if err := os.WriteFile(proc+"/setgroups", []byte("deny"), 0); err != nil {
			return err
		}
		if err := os.WriteFile(proc+"/gid_map", fmt.Appendf(nil, "%d %d 1", account.UserID, os.Getegid()), 0); err != nil {
			return err
		}
		return os.WriteFile(proc+"/uid_map", fmt.Appendf(nil, "%d %d 1", account.UserID, os.Geteuid()), 0)
	}
}

// choose picks a sandbox's own part of r, the same for the same id: what the
// kernel counts by uid is then counted by sandbox.
func (r idRange) choose(id string) idRange {
	if r.count < 2*wantIDs {
		return idRange{first: r.first, count: min(r.count, wantIDs)}
	}
	h := fnv.New32a()
	h.Write([]byte(id))
	slot := h.Sum32() % (r.count / wantIDs)
	return idRange{first: r.first + slot*wantIDs, count: wantIDs}
}

// agentUID is the host's id for the agent, to which cgroup files are given.
func (m mapping) agentUID(id string) int {
	switch m.kind {
	case direct:
		return int(m.uid.choose(id).first) + account.AgentID
	case newuidmap:
		return int(m.uid.first) + account.AgentID
	default:
		return -1
	}
}

func runHelper(name string, pid int, r idRange) error {
	cmd := exec.Command(name, strconv.Itoa(pid), "0", strconv.Itoa(int(r.first)), strconv.Itoa(int(r.count)))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(stderr.String()))
	}
	return nil
}
