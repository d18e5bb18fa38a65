package namespace

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// tool is an interpreter that PATH finds outside /usr.
type tool struct {
	bin     string   // folder of its program, for PATH
	folders []string // what must be shown for it to work
}

// probe is how an interpreter is asked where it lives. A program found on PATH
// may be a shim (pyenv, nvm, asdf): only itself knows.
type probe struct {
	names []string
	args  []string // prints a JSON list: program, then prefixes
}

var probes = []probe{
	{[]string{"python3"}, []string{"-I", "-c",
		"import json,sys;print(json.dumps([sys.executable,sys.prefix,sys.base_prefix]))"}},
	{[]string{"node"}, []string{"-p",
		"JSON.stringify([process.execPath,require('path').dirname(require('path').dirname(process.execPath))])"}},
}

// probing bounds how long one interpreter may take to answer.
const probing = 10 * time.Second

// findTools asks the interpreters on path that live outside /usr. One that
// does not answer sensibly is left out, with a note: sandboxes then have the
// system's, if any.
func findTools(ctx context.Context, path, home string, env []string) (tools []tool, notes []string) {
	for _, p := range probes {
		for _, name := range p.names {
			program := lookPath(name, path)
			if program == "" || inSystem(program) {
				continue
			}
			t, err := ask(ctx, program, p.args, env)
			if err == nil {
				err = t.check(home)
			}
			if ctx.Err() != nil {
				return tools, notes // the host ends before it began
			}
			if err != nil {
				notes = append(notes, fmt.Sprintf("%s at %s is not shown in sandboxes: %v", name, program, err))
				continue
			}
			if t.bin != "" {
				tools = append(tools, t)
			}
		}
	}
	return tools, notes
}

func lookPath(name, path string) string {
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		p := filepath.Join(dir, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p
		}
	}
	return ""
}

// inSystem reports whether a program, followed through links, lies in what
// every sandbox shows anyway.
func inSystem(program string) bool {
	real, err := filepath.EvalSymlinks(program)
	return err == nil && below(real, "/usr") && below(program, "/usr", "/bin", "/sbin")
}

func below(path string, dirs ...string) bool {
	for _, d := range dirs {
		if path == d || strings.HasPrefix(path, d+"/") {
			return true
		}
	}
	return false
}

func ask(ctx context.Context, program string, args, env []string) (tool, error) {
	ctx, cancel := context.WithTimeout(ctx, probing)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.Dir = env, "/"
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return tool{}, fmt.Errorf("asked where it lives: %w", err)
	}
	var places []string
	if err := json.Unmarshal(out, &places); err != nil || len(places) < 2 {
		return tool{}, fmt.Errorf("asked where it lives: answered %.80q", out)
	}
	if inSystem(places[0]) {
		return tool{}, nil
	}
	t := tool{bin: filepath.Dir(places[0])}
	for _, dir := range places[1:] {
		if !below(dir, "/usr") {
			t.folders = append(t.folders, dir)
		}
	}
	return t, nil
}

// check refuses a prefix that would show more than an interpreter: a home
// folder, the root, a system folder.
func (t tool) check(home string) error {
	for _, dir := range t.folders {
		clean := filepath.Clean(dir)
		switch {
		case !filepath.IsAbs(clean), strings.Count(clean, "/") < 2:
			return fmt.Errorf("its folder %s is too wide", dir)
		case clean == filepath.Clean(home), below(home, clean):
			return fmt.Errorf("its folder %s holds the home folder", dir)
		case below(clean, "/etc", "/proc", "/sys", "/dev", "/run", "/tmp", "/var", "/boot"):
			return fmt.Errorf("its folder %s is not one to show", dir)
		}
	}
	return nil
}
