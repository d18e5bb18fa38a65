//go:build linux

package interpreter

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/process"
)

// recordBytes is the most that a shell kernel may say at once: a path is all
// that is long in it.
const recordBytes = 8 << 10

type shellDriver struct{}

func (shellDriver) program(env []string) (string, error) {
	return lookPath(env, "bash")
}

// open makes the folder that driver/shell.bash describes.
func (shellDriver) open(o place) (_ link, err error) {
	if err := makeDir(o.dir, 0o711); err != nil {
		return link{}, err
	}
	var l link
	defer func() {
		if err != nil {
			closeAll(append(l.lent, l.files...))
		}
	}()
	fifos := map[string]*os.File{}
	for _, name := range []string{"in", "out", "stdout", "stderr"} {
		f, err := newFIFO(filepath.Join(o.dir, name), o)
		if err != nil {
			return link{}, err
		}
		fifos[name] = f
		l.files = append(l.files, f)
	}
	for _, name := range []string{"stdout", "stderr"} {
		f, err := os.OpenFile(filepath.Join(o.dir, name), os.O_WRONLY, 0)
		if err != nil {
			return link{}, fmt.Errorf("open FIFO for kernel: %w", err)
		}
		l.lent = append(l.lent, f)
	}
	if err := newOwned(filepath.Join(o.dir, "state"), o); err != nil {
		return link{}, err
	}
	l.command = process.Command{
		Path: o.program, Args: []string{"--norc", "--noprofile", filepath.Join(o.driverDir, "shell.bash"), o.dir},
		Stdout: l.lent[0], Stderr: l.lent[1],
	}
	l.stdout, l.stderr, l.files = fifos["stdout"], fifos["stderr"], []*os.File{fifos["in"], fifos["out"]}
	l.send = func(c cell) error { return sendShell(o.dir, fifos["in"], c) }
	records := bufio.NewReaderSize(fifos["out"], recordBytes)
	l.next = func() (event, error) { return readRecord(records) }
	return l, nil
}

// newFIFO makes a FIFO for the kernel's user and holds both its ends, so that
// opening it waits for nobody.
func newFIFO(path string, o place) (*os.File, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("make FIFO for kernel: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open FIFO for kernel: %w", err)
	}
	if err := give(path, o); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func newOwned(path string, o place) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make file for kernel: %w", err)
	}
	return errors.Join(f.Close(), give(path, o))
}

// give makes a file the user's. The folder is ours, so nobody has swapped it.
func give(path string, o place) error {
	if int(o.account.UID) == os.Getuid() {
		return nil
	}
	if err := os.Lchown(path, int(o.account.UID), int(o.account.GID)); err != nil {
		return fmt.Errorf("give file to %s: %w", o.account.Name, err)
	}
	return nil
}

func sendShell(dir string, in io.Writer, c cell) error {
	for name, text := range map[string]string{"pre": prelude(c), "cell": c.Code} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("hand cell over: %w", err)
		}
		if err := os.Chmod(filepath.Join(dir, name), 0o644); err != nil {
			return fmt.Errorf("hand cell over: %w", err)
		}
	}
	_, err := fmt.Fprintf(in, "run %d\n", c.ID)
	return err
}

// prelude sets the variables that come with a cell.
func prelude(c cell) string {
	var b strings.Builder
	if c.Dir != "" {
		fmt.Fprintf(&b, "builtin cd -- %s 2>/dev/null || builtin :\n", quote(c.Dir))
	}
	for _, name := range c.Unset {
		if isName(name) {
			fmt.Fprintf(&b, "builtin unset -v %s\n", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Set)) {
		if isName(name) {
			fmt.Fprintf(&b, "builtin export %s=%s\n", name, quote(c.Set[name]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		if isName(name) {
			fmt.Fprintf(&b, "__abx_set %s %s\n", name, quote(c.Env[name]))
		}
	}
	return b.String()
}

// isName reports whether a shell can hold a variable of that name.
func isName(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// readRecord reads "ready VERSION" or "done ID CODE CWD", ended by NUL.
func readRecord(r *bufio.Reader) (event, error) {
	raw, err := r.ReadSlice(0)
	if errors.Is(err, bufio.ErrBufferFull) {
		return event{}, fmt.Errorf("message of more than %d bytes", recordBytes)
	}
	if err != nil {
		return event{}, err
	}
	word, rest, _ := strings.Cut(string(raw[:len(raw)-1]), " ")
	if word == "ready" {
		return event{Type: "ready"}, nil
	}
	p := strings.SplitN(rest, " ", 3)
	if word != "done" || len(p) != 3 {
		return event{}, fmt.Errorf("message that is not ours: %.80q", raw)
	}
	id, err1 := strconv.Atoi(p[0])
	code, err2 := strconv.ParseUint(p[1], 10, 8)
	if err := errors.Join(err1, err2); err != nil {
		return event{}, fmt.Errorf("message that is not ours: %w", err)
	}
	return event{Type: "done", ID: id, ExitCode: int(code), CWD: p[2]}, nil
}
