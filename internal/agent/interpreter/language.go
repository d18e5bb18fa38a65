package interpreter

import (
	"fmt"
	"slices"
	"strings"
)

// Languages that have a kernel, as contexts name them.
const (
	python = "python"
	bash   = "bash"
)

var aliases = map[string]string{
	"python": python, "python3": python, "py": python,
	"bash": bash, "shell": bash, "sh": bash,
}

// foreign are languages of E2B's interpreter without a kernel here, and what
// runs them by a command.
var foreign = map[string]struct{ name, command string }{
	"javascript": {"JavaScript", "node"}, "js": {"JavaScript", "node"},
	"typescript": {"TypeScript", "npx tsx"}, "ts": {"TypeScript", "npx tsx"},
	"r": {"R", "Rscript"}, "java": {"Java", "java"},
}

// parseLanguage returns the language that a name means; "" is Python. The
// error is for the client to read.
func parseLanguage(name string) (string, error) {
	key := strings.ToLower(strings.TrimSpace(name))
	if key == "" {
		return python, nil
	}
	if l, ok := aliases[key]; ok {
		return l, nil
	}
	if f, ok := foreign[key]; ok {
		return "", fmt.Errorf("language %q: this sandbox has Python and shell kernels, none for %s; write the code to a file and run it with run_command and `%s`, if that is installed", name, f.name, f.command)
	}
	if near := nearest(key); near != "" {
		return "", fmt.Errorf("language %q is unknown; did you mean %q? This sandbox has kernels for python and shell", clip(name), near)
	}
	return "", fmt.Errorf("language %q is unknown; this sandbox has kernels for python and shell", clip(name))
}

// nearest is the known name with the fewest changes, if they are few.
func nearest(key string) string {
	if len(key) > 32 {
		return ""
	}
	var names []string
	for n := range aliases {
		names = append(names, n)
	}
	for n := range foreign {
		names = append(names, n)
	}
	slices.Sort(names)
	best, least := "", 3
	for _, n := range names {
		if d := distance(key, n); d < least && d < len(n) && d < len(key) {
			best, least = n, d
		}
	}
	return best
}

// distance is the number of single bytes to insert, delete or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		above := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := above
			if a[i] != b[j] {
				change++
			}
			above = row[j+1]
			row[j+1] = min(change, above+1, row[j]+1)
		}
	}
	return row[len(b)]
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}
