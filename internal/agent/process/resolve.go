//go:build linux

package process

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/account"
	pb "github.com/agent-sandbox/abx/internal/e2b/process"
)

// maxArgument is what the kernel takes as one argument, its NUL included.
const maxArgument = 128 << 10

func invalid(format string, args ...any) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}

// folder finds the folder to start in. The agent may see more than the user
// does: whether the user may enter it, the start itself tells.
func (s *Service) folder(cfg *pb.ProcessConfig, a account.Account) (string, error) {
	dir := cfg.GetCwd()
	switch {
	case dir == "":
		dir = s.opts.DefaultDir(a)
	case dir == "~" || strings.HasPrefix(dir, "~/"):
		dir = filepath.Join(a.Home, dir[1:])
	case dir[0] == '~':
		return "", invalid("cwd '%s': only ~ and ~/... are known, not another user's home", dir)
	case !filepath.IsAbs(dir):
		dir = filepath.Join(a.Home, dir)
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", invalid("cwd '%s' does not exist", dir)
	case err != nil:
		return "", invalid("cwd '%s': %w", dir, err)
	case !info.IsDir():
		return "", invalid("cwd '%s' is not a directory", dir)
	}
	return dir, nil
}

// environ is base with the request's variables in place of those of the same
// name.
func environ(base []string, envs map[string]string) ([]string, error) {
	env := slices.DeleteFunc(slices.Clone(base), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, ok := envs[name]
		return ok
	})
	first := len(env)
	for name, value := range envs {
		switch {
		case name == "":
			return nil, invalid("environment variable without a name")
		case strings.ContainsAny(name, "=\x00"):
			return nil, invalid("environment variable %.80q: a name holds neither '=' nor NUL", name)
		case strings.Contains(value, "\x00"):
			return nil, invalid("environment variable %.80q: its value holds a NUL", name)
		}
		env = append(env, name+"="+value)
	}
	slices.Sort(env[first:])
	return env, nil
}

// program finds what a command names, in the PATH that it will have itself.
func program(name, dir string, env []string) (string, error) {
	if name == "" {
		return "", invalid("process has no command")
	}
	if strings.Contains(name, "/") {
		if _, err := os.Stat(under(dir, name)); errors.Is(err, fs.ErrNotExist) {
			return "", invalid("command '%s' does not exist", name)
		}
		return name, nil
	}
	path := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	found := ""
	for _, folder := range filepath.SplitList(path) {
		candidate := filepath.Join(under(dir, folder), name)
		info, err := os.Stat(candidate)
		if err != nil || info.IsDir() {
			continue
		}
		if info.Mode()&0o111 != 0 {
			return candidate, nil
		}
		found = candidate
	}
	if found != "" {
		return "", connect.NewError(connect.CodePermissionDenied, fmt.Errorf("command '%s': %s is not executable; try chmod +x", name, found))
	}
	return "", invalid("command '%s' not found in PATH %q", name, path)
}

func under(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// arguments checks args and, when a shell's script is longer than the kernel
// takes as one argument, moves it into a file that the shell reads instead;
// the caller closes script. Models write whole files in here-documents.
func arguments(cmd string, args []string) (out []string, script *os.File, err error) {
	for i, a := range args {
		if strings.Contains(a, "\x00") {
			return nil, nil, invalid("argument %d of '%s' holds a NUL", i+1, cmd)
		}
	}
	last := len(args) - 1
	if last < 1 || len(args[last]) < maxArgument || args[last-1] != "-c" || !slices.Contains([]string{"sh", "bash", "dash", "ash"}, filepath.Base(cmd)) {
		return args, nil, nil
	}
	fd, err := unix.MemfdCreate("script", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("keep a long script: %w", err)
	}
	script = os.NewFile(uintptr(fd), "script")
	if _, err = script.WriteString(args[last]); err == nil {
		_, err = script.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("keep a long script: %w", err), script.Close())
	}
	out = slices.Clone(args)
	// The words are expanded before descriptor 3 is closed for the script.
	out[last] = `eval "$(cat <&3)" 3<&-`
	return out, script, nil
}

// startError tells a client why the kernel did not start a command.
func startError(err error, c Command) error {
	code, text := connect.CodeInternal, err.Error()
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		code, text = connect.CodeInvalidArgument, fmt.Sprintf("command '%s' does not exist, or its interpreter does not", c.Path)
	case errors.Is(err, syscall.ENOEXEC):
		code, text = connect.CodeInvalidArgument, fmt.Sprintf("command '%s' is no program and has no #! line; run it with sh", c.Path)
	case errors.Is(err, syscall.EACCES):
		code, text = connect.CodePermissionDenied, fmt.Sprintf("user '%s' may not run command '%s' in '%s': permission denied; check chmod +x and the folder's mode", c.Account.Name, c.Path, c.Dir)
	case errors.Is(err, syscall.E2BIG):
		code, text = connect.CodeInvalidArgument, fmt.Sprintf("command '%s': arguments and environment are too long (one holds up to %d bytes); write a script file and run that", c.Path, maxArgument-1)
	case errors.Is(err, syscall.EAGAIN):
		code, text = connect.CodeResourceExhausted, fmt.Sprintf("command '%s': the sandbox's limit of processes is reached; end some first", c.Path)
	case errors.Is(err, syscall.ENOMEM):
		code, text = connect.CodeResourceExhausted, fmt.Sprintf("command '%s': the sandbox is out of memory; end some processes first", c.Path)
	case errors.Is(err, ErrClosed):
		code = connect.CodeUnavailable
	}
	return connect.NewError(code, errors.New(text))
}
