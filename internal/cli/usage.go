package cli

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// A usageError is a command line that is wrong.
type usageError struct {
	error
	command string // whose help says more, with all its words
	next    string // before that; may be empty
}

func (u *usageError) Unwrap() error { return u.error }

// Next says where to look.
func (u *usageError) Next() string {
	see := "see: " + u.command + " --help"
	if u.next != "" {
		return u.next + "; " + see
	}
	return see
}

// noArguments refuses arguments of a command that has none.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &usageError{error: fmt.Errorf("%s takes no arguments, got %q", cmd.CommandPath(), args[0]), command: cmd.CommandPath()}
}

// commandsOnly refuses what is no command below cmd, and names those that are.
func commandsOnly(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	word := "command"
	if len(names) > 1 {
		word = "commands"
	}
	return &usageError{
		error:   fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(), meant(cmd, args[0], "")),
		command: cmd.CommandPath(),
		next:    fmt.Sprintf("%s has the %s %s", cmd.CommandPath(), word, strings.Join(names, ", ")),
	}
}

// flagError explains why the flags of a command line are wrong. The first word
// that is no command counts more: its flags cannot be known.
func flagError(cmd *cobra.Command, err error) error {
	if words := cmd.Flags().Args(); cmd.HasAvailableSubCommands() && len(words) > 0 {
		return commandsOnly(cmd, words)
	}
	var unknown interface{ GetSpecifiedName() string }
	if errors.As(err, &unknown) {
		err = fmt.Errorf("%w%s", err, meant(flagsOf(cmd), unknown.GetSpecifiedName(), "--"))
	}
	if text, _, parsed := strings.Cut(err.Error(), ": strconv."); parsed {
		err = errors.New(text + ": it must be a whole number")
	}
	return &usageError{error: err, command: cmd.CommandPath()}
}

// meant names what name is probably a slip for, among the commands below cmd.
func meant(cmd *cobra.Command, name, prefix string) string {
	cmd.SuggestionsMinimumDistance = 2
	if s := cmd.SuggestionsFor(name); len(name) > 1 && len(s) > 0 {
		return fmt.Sprintf(": did you mean %q?", prefix+s[0])
	}
	return ""
}

var flagName = regexp.MustCompile(`(?m)^ +(?:-\w, +)?--([\w-]+)`)

// flagsOf has the flags of cmd as commands, so that meant finds them.
func flagsOf(cmd *cobra.Command) *cobra.Command {
	flags := &cobra.Command{}
	for _, m := range flagName.FindAllStringSubmatch(cmd.Flags().FlagUsages(), -1) {
		flags.AddCommand(&cobra.Command{Use: m[1], Run: func(*cobra.Command, []string) {}})
	}
	return flags
}
