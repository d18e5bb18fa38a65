package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// sample is a series of durations of one thing.
type sample []time.Duration

func (s sample) quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func (s sample) median() time.Duration { return s.quantile(0.5) }

func (s sample) String() string {
	return fmt.Sprintf("%s / %s", milliseconds(s.median()), milliseconds(s.quantile(0.95)))
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// A contender is one way to do a thing; do returns how long the part that
// counts took.
type contender struct {
	name string
	do   func(ctx context.Context) (time.Duration, error)
}

// interleave runs the contenders in turn, so that a noisy second on the machine
// hits all of them alike. One round to warm up is not counted.
func interleave(ctx context.Context, rounds int, all ...contender) (map[string]sample, error) {
	samples := map[string]sample{}
	for round := range rounds + 1 {
		for _, c := range all {
			took, err := c.do(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			if round > 0 {
				samples[c.name] = append(samples[c.name], took)
			}
		}
	}
	return samples, nil
}

// program is the contender that runs one program to its end, with two pipes for
// its output.
func program(name, path string, args ...string) contender {
	return contender{name, func(ctx context.Context) (time.Duration, error) {
		cmd := exec.CommandContext(ctx, path, args...)
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		began := time.Now()
		if err := cmd.Run(); err != nil {
			return 0, fmt.Errorf("%w: %s", err, stderr.String())
		}
		return time.Since(began), nil
	}}
}

func ratio(ours, peer sample) string {
	if len(ours) == 0 || len(peer) == 0 {
		return ""
	}
	return fmt.Sprintf("%.2fx", float64(ours.median())/float64(peer.median()))
}
