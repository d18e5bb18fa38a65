package namespace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/elastic/go-seccomp-bpf/arch"
	profile "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Calls that container engines allow by default and a sandbox is refused:
// ways into large or young parts of the kernel that no workload of ours needs.
var refused = []string{
	"add_key", "bpf", "fanotify_init", "fanotify_mark", "fsconfig", "fsmount", "fsopen", "fspick",
	"io_uring_enter", "io_uring_register", "io_uring_setup", "kcmp", "keyctl",
	"listmount", "mount", "mount_setattr", "move_mount", "name_to_handle_at", "open_by_handle_at",
	"open_tree", "perf_event_open", "pidfd_getfd", "pivot_root", "process_madvise",
	"quotactl", "quotactl_fd", "remap_file_pages", "request_key", "setns", "statmount", "swapoff", "swapon",
	"syslog", "umount", "umount2", "unshare", "userfaultfd", "vmsplice",
}

// Address families that a socket may have.
var families = []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP | unix.CLONE_NEWTIME

// The personalities that only change what uname tells, or ask for the present one.
var personalities = []uint64{0, 0x8, 0x20000, 0x20008, 0xffffffff}

// What the filter answers.
var (
	allow   = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	refuse  = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	unknown = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
)

// Offsets in struct seccomp_data.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArg0   = 16 // its low half on the little-endian machines we run on
)

// filterProgram builds the system call filter as the kernel takes it: what
// container engines allow to a process without capabilities, less refused. A
// call that is known and not allowed fails with EPERM, an unknown or newer one
// with ENOSYS, so that a C library falls back to an older call.
//
// clone3 hides its flags behind a pointer. It is ENOSYS too, unless withClone3:
// the agent needs it to start processes in a cgroup of version 2, and then it
// is the limit on namespaces (set to 0 inside) that keeps it harmless.
//
// The names, numbers and the list of allowed calls come from libraries; the
// program does not: the assembler at hand loses the call's number once a
// condition failed, and goes on to compare an argument with numbers.
func filterProgram(withClone3 bool) ([]byte, error) {
	info, err := arch.GetInfo("")
	if err != nil {
		return nil, fmt.Errorf("system call filter: %w", err)
	}
	table := map[uint32]answer{}
	for name, n := range info.SyscallNames {
		if name != "clone3" {
			table[uint32(n)] = answer{refuse}
		}
	}
	allowed := allowedCalls(info)
	if withClone3 {
		allowed = append(allowed, "clone3")
	}
	for _, name := range allowed {
		table[uint32(info.SyscallNames[name])] = answer{allow}
	}
	table[uint32(info.SyscallNames["socket"])] = equalsAny(families)
	table[uint32(info.SyscallNames["personality"])] = equalsAny(personalities)
	table[uint32(info.SyscallNames["clone"])] = answer{
		bpf.LoadAbsolute{Off: offsetArg0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: newNamespaces, SkipTrue: 1},
		allow,
		refuse,
	}
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(info.ID), SkipTrue: 1},
		unknown,
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
	}
	// The x32 numbers, the same calls by another way on amd64, lie above all
	// others and so are unknown.
	return encodeFilter(append(program, search(ranges(table))...))
}

// answer is the end of the program for some calls: it loads what it likes and
// always returns.
type answer []bpf.Instruction

// span is a run of call numbers with one answer, from first up to the next span.
type span struct {
	first uint32
	answer
}

// ranges lists the answers by number, in order and from 0 on.
func ranges(table map[uint32]answer) []span {
	spans := []span{{0, answer{unknown}}}
	top := slices.Max(slices.Collect(maps.Keys(table)))
	for n := range top + 2 {
		a, ok := table[n]
		if !ok {
			a = answer{unknown}
		}
		switch last := &spans[len(spans)-1]; {
		case n == 0:
			last.answer = a
		case !slices.Equal(last.answer, a):
			spans = append(spans, span{n, a})
		}
	}
	return spans
}

// search finds the span of the loaded number by halving. The kernel tries a
// new filter on every call's number to cache its answers, and one by one that
// would be half of what the filter costs.
func search(spans []span) []bpf.Instruction {
	if len(spans) == 1 {
		return spans[0].answer
	}
	half := len(spans) / 2
	low, high := search(spans[:half]), search(spans[half:])
	program := []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: spans[half].first, SkipFalse: 1},
		bpf.Jump{Skip: uint32(len(low))}, // a conditional jump reaches 255 only
	}
	return slices.Concat(program, low, high)
}

// equalsAny allows a first argument that is one of values, all of its 64 bits.
func equalsAny(values []uint64) answer {
	block := answer{
		bpf.LoadAbsolute{Off: offsetArg0 + 4, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		refuse,
		bpf.LoadAbsolute{Off: offsetArg0, Size: 4},
	}
	for _, v := range values {
		block = append(block, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(v), SkipTrue: 1}, allow)
	}
	return append(block, refuse)
}

func encodeFilter(program []bpf.Instruction) ([]byte, error) {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("system call filter: %w", err)
	}
	var b bytes.Buffer
	for _, ins := range raw {
		if err := binary.Write(&b, binary.NativeEndian, ins); err != nil {
			return nil, fmt.Errorf("system call filter: %w", err)
		}
	}
	return b.Bytes(), nil
}

// allowedCalls lists the calls that are allowed whatever their arguments.
func allowedCalls(info *arch.Info) []string {
	take := map[string]bool{}
	for _, group := range profile.DefaultProfile().Syscalls {
		if group.Action != specs.ActAllow || len(group.Args) > 0 || !applies(group.Includes) {
			continue
		}
		for _, name := range group.Names {
			if _, ok := info.SyscallNames[name]; ok && !slices.Contains(refused, name) {
				take[name] = true
			}
		}
	}
	for _, name := range []string{"socket", "clone", "clone3", "personality"} {
		delete(take, name)
	}
	return slices.Sorted(maps.Keys(take))
}

// applies reports whether a group's condition holds for a process without
// capabilities on this architecture. A least kernel is taken as met: all of
// the profile's are older than what this driver needs.
func applies(f *profile.Filter) bool {
	if f == nil {
		return true
	}
	return len(f.Caps) == 0 && (len(f.Arches) == 0 || slices.Contains(f.Arches, runtime.GOARCH))
}
