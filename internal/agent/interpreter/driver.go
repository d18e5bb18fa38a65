//go:build linux

package interpreter

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/agent-sandbox/abx/internal/agent/account"
	"github.com/agent-sandbox/abx/internal/agent/process"
)

// A driver knows how one language's kernel is started and spoken to.
type driver interface {
	// program finds the interpreter in an environment.
	program(env []string) (string, error)
	// open makes the channels of a kernel. files are ours, to be closed with
	// the kernel; lent are closed after the start.
	open(o place) (link, error)
}

// place is where and as whom a kernel runs.
type place struct {
	driverDir string // the driver files
	dir       string // the kernel's own folder, made empty
	program   string
	account   account.Account
}

// link is the agent's side of a kernel that is about to start.
type link struct {
	command        process.Command // without Env, Dir and Account
	lent           []*os.File
	stdout, stderr *os.File
	files          []*os.File            // others of ours
	send           func(cell) error      // hands a cell over
	next           func() (event, error) // waits for the kernel's next message
}

// cell is one run as the kernel gets it.
type cell struct {
	ID    int
	Code  string
	Env   map[string]string // for this cell
	Set   map[string]string // for good
	Unset []string
	Dir   string // go there first, if it is there
}

// event is one message of a kernel.
type event struct {
	Type     string                     `json:"type"` // ready, display, done
	ID       int                        `json:"id"`
	Main     bool                       `json:"main"`
	Data     map[string]json.RawMessage `json:"data"`
	ExitCode int                        `json:"exit_code"`
	Error    *failure                   `json:"error"`
	CWD      string                     `json:"cwd"`
	Threads  int                        `json:"threads"`
}

// failure is the exception that a cell raised.
type failure struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// errNoProgram is wrapped where the sandbox lacks a language's interpreter.
var errNoProgram = errors.New("interpreter is not installed")

// lookPath finds the first of names in the PATH of env.
func lookPath(env []string, names ...string) (string, error) {
	var path string
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	for _, name := range names {
		for _, dir := range filepath.SplitList(path) {
			file := filepath.Join(dir, name)
			info, err := os.Stat(file)
			if err == nil && filepath.IsAbs(file) && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return file, nil
			}
		}
	}
	return "", fmt.Errorf("%w: no %s in PATH (%s)", errNoProgram, strings.Join(names, " or "), path)
}

//go:embed driver
var driverFiles embed.FS

// driverDir holds the driver files where kernels can read them.
type driverDir struct {
	path string
	mu   sync.Mutex
	made bool
}

// ensure writes the files once.
func (d *driverDir) ensure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.made {
		return nil
	}
	if err := makeDir(d.path, 0o755); err != nil {
		return err
	}
	entries, err := driverFiles.ReadDir("driver")
	if err != nil {
		return err
	}
	for _, e := range entries {
		text, err := driverFiles.ReadFile("driver/" + e.Name())
		if err != nil {
			return err
		}
		file := filepath.Join(d.path, e.Name())
		if err := errors.Join(os.WriteFile(file, text, 0o644), os.Chmod(file, 0o644)); err != nil {
			return fmt.Errorf("write kernel driver: %w", err)
		}
	}
	d.made = true
	return nil
}

// makeDir makes a folder with just this mode, whatever the umask.
func makeDir(path string, mode os.FileMode) error {
	if err := os.MkdirAll(path, mode); err != nil {
		return fmt.Errorf("make folder for kernels: %w", err)
	}
	if err := os.Chmod(path, mode); err != nil {
		return fmt.Errorf("make folder for kernels: %w", err)
	}
	return nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
