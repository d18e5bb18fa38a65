package namespace

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/control"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

// cloneAdvice explains why namespaces could not be made, and what mends it.
func cloneAdvice(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC) || sysctl("user/max_user_namespaces") == "0":
		return advise(err, "this kernel allows no more user namespaces",
			"sudo sysctl -w user.max_user_namespaces=65536")
	case sysctl("kernel/unprivileged_userns_clone") == "0" && os.Geteuid() != 0:
		return advise(err, "this kernel refuses user namespaces to ordinary users",
			"sudo sysctl -w kernel.unprivileged_userns_clone=1")
	case errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES):
		return permissionAdvice(err)
	}
	return err
}

// setupAdvice does the same for a step inside the new namespaces.
func setupAdvice(s control.Status) error {
	err := fmt.Errorf("%s: %.300s", s.Step, s.Error)
	errno := syscall.Errno(s.Errno)
	switch {
	case s.Errno != 0 && (errno == unix.EPERM || errno == unix.EACCES) && s.Step == "mount /proc":
		return advise(err, "parts of /proc are masked here, as in a container, and the kernel then shows no fresh one",
			"start the container with --security-opt systempaths=unconfined, or run abx outside it")
	case s.Errno != 0 && (errno == unix.EPERM || errno == unix.EACCES):
		return permissionAdvice(err)
	case errno == unix.ENOSYS:
		return advise(err, "this kernel is too old: Linux 5.12 is needed", "use a newer kernel")
	}
	return err
}

func permissionAdvice(err error) error {
	switch {
	case sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1" && os.Geteuid() != 0:
		return advise(err, "AppArmor restricts user namespaces here, as Ubuntu does from 23.10 on",
			"sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0")
	case inContainer():
		return advise(err, "this container may not make namespaces",
			"start it with --security-opt seccomp=unconfined --security-opt apparmor=unconfined, or run abx outside it")
	}
	return advise(err, "this user may not make namespaces here", "look for a security module or a seccomp filter around this process")
}

func advise(err error, cause, command string) error {
	return fmt.Errorf("%w: %s; to mend it: %s (%w)", engine.ErrUnsupported, cause, command, err)
}

func sysctl(name string) string {
	b, _ := os.ReadFile("/proc/sys/" + name)
	return strings.TrimSpace(string(b))
}

func inContainer() bool {
	for _, f := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(f); err == nil {
			return true
		}
	}
	return false
}
