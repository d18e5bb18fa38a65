// Command bench measures the built abx, side by side with programs of the
// machine that do the nearest thing, and prints one table. It is no test: times
// are for the eye, ratios within one run are what may be compared.
//
//	bench [-only NAMES] [-rounds N] [-cycles N] PATH-TO-ABX
//
// All loops are bounded, and so is the whole.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/agent-sandbox/abx/test/stdio"
)

// limit bounds a whole run.
const limit = 20 * time.Minute

func main() {
	b := &bench{out: os.Stdout, log: os.Stderr}
	only := flag.String("only", "", "measure these alone, with commas: "+strings.Join(names(), ","))
	flag.IntVar(&b.rounds, "rounds", 40, "how often each call is measured")
	flag.IntVar(&b.cycles, "cycles", 1000, "sandboxes made and killed by the measure named cycles")
	flag.IntVar(&b.burst, "burst", 100, "sandboxes made at once by the measure named burst")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: bench [OPTION...] PATH-TO-ABX")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := b.run(ctx, flag.Arg(0), *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

type bench struct {
	out, log io.Writer
	abx      string
	rounds   int
	cycles   int
	burst    int
	home     string // of the servers: what they note there is theirs alone
	rows     []row
}

// A row of the table. Goals are those of docs/benchmarks.md.
type row struct {
	what, ours, peer, ratio, must, stretch string
}

type measure struct {
	name string
	run  func(*bench, context.Context) error
}

func measures() []measure {
	return []measure{
		{"start", (*bench).start},
		{"pooled", (*bench).pooled},
		{"cold", (*bench).cold},
		{"command", (*bench).command},
		{"files", (*bench).files},
		{"output", (*bench).output},
		{"memory", (*bench).memory},
		{"burst", (*bench).atOnce},
		{"cycles", (*bench).cycle},
	}
}

func names() []string {
	var all []string
	for _, m := range measures() {
		all = append(all, m.name)
	}
	return all
}

func (b *bench) run(ctx context.Context, abx, only string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if b.abx, err = filepath.Abs(abx); err != nil {
		return err
	}
	if b.home, err = os.MkdirTemp("", "abx-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.home)
	chosen := names()
	if only != "" {
		chosen = strings.Split(only, ",")
	}
	for _, name := range chosen {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("no measure is named %q; there are %s", name, strings.Join(names(), ", "))
		}
	}
	for _, m := range measures() {
		if !slices.Contains(chosen, m.name) {
			continue
		}
		fmt.Fprintf(b.log, "measuring %s\n", m.name)
		if err := m.run(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	b.table()
	return nil
}

func (b *bench) add(r row) { b.rows = append(b.rows, r) }

func (b *bench) table() {
	cells := [][]string{{"what", "abx", "beside it", "ratio", "must", "stretch"}}
	for _, r := range b.rows {
		cells = append(cells, []string{r.what, r.ours, r.peer, r.ratio, r.must, r.stretch})
	}
	widths := make([]int, len(cells[0]))
	for _, line := range cells {
		for i, c := range line {
			widths[i] = max(widths[i], len([]rune(c)))
		}
	}
	fmt.Fprintf(b.out, "%s, %d cores, uid %d, %s\n\n", kernel(), runtime.NumCPU(), os.Getuid(), time.Now().UTC().Format("2006-01-02"))
	for n, line := range cells {
		for i, c := range line {
			fmt.Fprintf(b.out, "| %s%s ", c, strings.Repeat(" ", widths[i]-len([]rune(c))))
		}
		fmt.Fprintln(b.out, "|")
		if n == 0 {
			for _, w := range widths {
				fmt.Fprintf(b.out, "|%s", strings.Repeat("-", w+2))
			}
			fmt.Fprintln(b.out, "|")
		}
	}
}

func kernel() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return runtime.GOOS
	}
	return "Linux " + strings.TrimSpace(string(text))
}

// server starts an initialized server with a pool of this size.
func (b *bench) server(ctx context.Context, pool string) (*stdio.Client, error) {
	c, err := stdio.Start(ctx, stdio.Options{
		Path: b.abx, Env: append(stdio.Embedded(os.Environ()), "ABX_POOL_SIZE="+pool, "HOME="+b.home), Stderr: b.log,
	})
	if err != nil {
		return nil, err
	}
	if _, err := c.Initialize(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// lookup finds a program to measure beside ours; "" when this machine has none.
func lookup(name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

// interpreter is the Python of sandboxes, itself and not a shim before it.
func interpreter(ctx context.Context) string {
	path, err := exec.CommandContext(ctx, "python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(path))
}
