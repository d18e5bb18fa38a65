// Command strict reads what `go test -json` writes and prints what CI wants to
// read: the closing line of each package, and of what failed, everything. A
// skipped test is a failure, unless its reason is one of those that this run
// must accept, because another run does what is skipped here.
//
//	go test -json ./... | strict [-accept REGEXP]
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

func main() {
	accept := flag.String("accept", "", "reasons of skips that are no failure (a regular expression)")
	flag.Parse()
	var reasons *regexp.Regexp
	if *accept != "" {
		re, err := regexp.Compile(*accept)
		if err != nil {
			fmt.Fprintln(os.Stderr, "strict:", err)
			os.Exit(2)
		}
		reasons = re
	}
	if err := judge(os.Stdin, os.Stdout, reasons); err != nil {
		fmt.Fprintln(os.Stderr, "strict:", err)
		os.Exit(1)
	}
}

type event struct {
	Action, Package, Test, Output string
	ImportPath                    string // of a build's output
}

type name struct{ pkg, test string }

// judge copies the closing lines from in to out. The error says how many tests
// failed or were skipped without an accepted reason.
func judge(in io.Reader, out io.Writer, accept *regexp.Regexp) error {
	output := map[name]*strings.Builder{}
	var failed, skipped, accepted int
	ran := false
	// What servers logged as errors, by package: the test that a line belongs to
	// cannot be told when several run at once.
	logged := map[string][]string{}
	broken := map[string]bool{}
	for lines := bufio.NewReader(in); ; {
		line, err := lines.ReadBytes('\n')
		if len(line) == 0 && err != nil {
			break
		}
		var e event
		if json.Unmarshal(line, &e) != nil { // not from go test: pass it on
			fmt.Fprintf(out, "%s", line)
			continue
		}
		n := name{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "output":
			if output[n] == nil {
				output[n] = &strings.Builder{}
			}
			output[n].WriteString(e.Output)
			if strings.Contains(e.Output, "level=ERROR") && len(logged[e.Package]) < 50 {
				logged[e.Package] = append(logged[e.Package], e.Output)
			}
			if e.Test == "" && closing(e.Output) {
				fmt.Fprint(out, e.Output)
			}
		case "pass":
			ran = true
			delete(output, n)
		case "skip":
			if e.Test == "" { // a package without tests
				break
			}
			text := text(output[n])
			if accept != nil && accept.MatchString(text) {
				accepted++
				break
			}
			skipped++
			fmt.Fprintf(out, "==== skipped, which is not accepted here: %s %s\n%s", e.Package, e.Test, text)
		case "fail":
			if e.Test == "" {
				fmt.Fprint(out, strings.Join(logged[e.Package], ""))
				unfinished(out, e.Package, output)
			}
			if e.Test == "" && broken[e.Package] { // told by its tests
				break
			}
			failed++
			broken[e.Package] = true
			fmt.Fprintf(out, "==== failed: %s %s\n%s", e.Package, e.Test, text(output[n]))
			delete(output, n)
		}
	}
	if accepted > 0 {
		fmt.Fprintf(out, "%d skipped here because another run does them\n", accepted)
	}
	if failed+skipped > 0 {
		return fmt.Errorf("%d failed, %d skipped", failed, skipped)
	}
	if !ran {
		return errors.New("no test ran")
	}
	return nil
}

// unfinished prints what tests of a failed package said that never ended: the
// package was stopped in the midst of them.
func unfinished(out io.Writer, pkg string, output map[name]*strings.Builder) {
	for n, b := range output {
		if n.pkg == pkg && n.test != "" {
			fmt.Fprintf(out, "==== did not end, or failed: %s %s\n%s", n.pkg, n.test, text(b))
		}
	}
}

func closing(line string) bool {
	return strings.HasPrefix(line, "ok  ") || strings.HasPrefix(line, "FAIL\t") || strings.HasPrefix(line, "panic:")
}

func text(b *strings.Builder) string {
	if b == nil {
		return ""
	}
	return b.String()
}
