//go:build linux

package filesystem

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/account"
)

// rights lets functions run with the rights of a user and no more, so that it
// is the kernel who says what a request may do. They are a thread's own: its
// file system ids, its groups, and no effective capability. The function's
// goroutine is bound to the thread for the while, and Go never makes a thread
// from a bound one, so nothing else runs with them.
type rights struct {
	own  account.Account     // ids and groups of all other threads
	caps [2]unix.CapUserData // the same of capabilities
	none [2]unix.CapUserData // caps, with none effective
	ids  bool                // ids are changed: there are several, and the process may
	drop bool                // there are capabilities to drop
	log  *slog.Logger
	hide bool  // the process is not dumpable, and must stay so
	err  error // why none of this is known
}

// newRights looks at the calling thread. single leaves the ids alone.
func newRights(single bool, log *slog.Logger) *rights {
	r := &rights{log: log}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	groups, err := unix.Getgroups()
	if r.err = errors.Join(err, unix.Capget(&header, &r.caps[0])); r.err != nil {
		return r
	}
	for _, g := range groups {
		r.own.Groups = append(r.own.Groups, uint32(g))
	}
	r.own.UID, r.own.GID = fsID(unix.SYS_SETFSUID, unset), fsID(unix.SYS_SETFSGID, unset)
	r.none = r.caps
	r.none[0].Effective, r.none[1].Effective = 0, 0
	const change = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
	r.ids = !single && r.caps[0].Effective&change == change
	r.drop = r.caps != r.none
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	r.hide = err == nil && dumpable == 0
	return r
}

// as runs do with the rights of a. do must not start a goroutine or hand work
// to one. A process without capabilities has its own rights only, and then
// those are what do runs with.
//
// Should the thread not get back what it was, as panics the way net/http wants
// a handler to: the goroutine ends, and the thread with it.
func (r *rights) as(a account.Account, do func() error) error {
	spoiled, err := r.try(a, do)
	if spoiled {
		panic(http.ErrAbortHandler)
	}
	return err
}

// try is as for who can end its goroutine otherwise: it must when the thread is
// spoiled, and until then have no rights in mind.
func (r *rights) try(a account.Account, do func() error) (spoiled bool, err error) {
	if r.err != nil {
		return false, fmt.Errorf("rights of the agent: %w", r.err)
	}
	if !r.drop && !r.ids {
		return false, do()
	}
	runtime.LockOSThread()
	defer func() { // also when do panics
		if err := r.leave(a); err != nil {
			r.log.Error("a thread keeps a user's rights and is ended", slog.Any("error", err))
			spoiled = true // and bound for ever: it ends with the goroutine
			return
		}
		runtime.UnlockOSThread()
	}()
	if err := r.enter(a); err != nil {
		return false, &fault{kind: kindUser, text: fmt.Sprintf("user %s: the sandbox cannot act as it: %v", show(a.Name), err), err: err}
	}
	return false, do()
}

// enter takes the thread's rights down to those of a. Capabilities go last: the
// steps before need them.
func (r *rights) enter(a account.Account) error {
	if r.ids {
		if err := r.take(r.own, a); err != nil {
			return err
		}
	}
	return r.capset(&r.none)
}

// leave undoes enter, also one that ended half way.
func (r *rights) leave(a account.Account) error {
	if err := r.capset(&r.caps); err != nil || !r.ids {
		return err
	}
	return r.take(a, r.own)
}

// take gives the thread the ids and groups of b instead of those of a.
func (r *rights) take(a, b account.Account) error {
	if !slices.Equal(a.Groups, b.Groups) {
		if err := setGroups(b.Groups); err != nil {
			return fmt.Errorf("groups: %w", err)
		}
	}
	// These calls tell no error.
	if a.GID != b.GID {
		fsID(unix.SYS_SETFSGID, b.GID)
		if fsID(unix.SYS_SETFSGID, unset) != b.GID {
			return fmt.Errorf("gid %d is not to be had", b.GID)
		}
	}
	if a.UID != b.UID {
		fsID(unix.SYS_SETFSUID, b.UID)
		if fsID(unix.SYS_SETFSUID, unset) != b.UID {
			return fmt.Errorf("uid %d is not to be had", b.UID)
		}
	}
	if r.hide {
		// The change made it what the machine's fs.suid_dumpable says.
		return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	}
	return nil
}

func (r *rights) capset(data *[2]unix.CapUserData) error {
	if !r.drop {
		return nil
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return unix.Capset(&header, &data[0])
}

// unset is no id; asked for it, the kernel only tells the present one.
const unset = ^uint32(0)

// fsID makes the call, setfsuid or setfsgid, and returns the id before it. It
// and setGroups are of the thread alone, unlike the functions of package syscall.
func fsID(call uintptr, id uint32) uint32 {
	before, _, _ := unix.RawSyscall(call, uintptr(id), 0, 0)
	return uint32(before)
}

func setGroups(gids []uint32) error {
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(gids)), uintptr(unsafe.Pointer(unsafe.SliceData(gids))), 0)
	runtime.KeepAlive(gids)
	if errno != 0 {
		return errno
	}
	return nil
}
