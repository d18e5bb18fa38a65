package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func newVersion(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments,
		RunE:  func(*cobra.Command, []string) error { return runVersion(env) },
	}
}

func runVersion(env *Env) error {
	v := struct {
		Version string `json:"version"`
		Build   string `json:"build,omitempty"`
		Go      string `json:"go"`
		OS      string `json:"os"`
		Arch    string `json:"arch"`
	}{env.Version, env.Build, runtime.Version(), runtime.GOOS, runtime.GOARCH}
	text := "abx " + v.Version
	if v.Build != "" {
		text += " (build " + v.Build + ")"
	}
	return env.print(v, fmt.Sprintf("%s %s %s/%s\n", text, v.Go, v.OS, v.Arch))
}
