//go:build linux

package process

import (
	"io"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	pb "github.com/agent-sandbox/abx/internal/e2b/process"
)

// BenchmarkTrue runs /bin/true by os/exec with two pipes, by a Table with two
// pipes, and by the service over HTTP, in turn, so that what else the machine
// does hits all alike. It reports medians.
func BenchmarkTrue(b *testing.B) {
	h := newHarness(b, nil)
	kinds := []struct {
		name string
		run  func(*testing.B)
		took []time.Duration
	}{
		{name: "exec", run: execTrue},
		{name: "table", run: func(b *testing.B) { tableTrue(b, h) }},
		{name: "service", run: func(b *testing.B) { serviceTrue(b, h) }},
	}
	for b.Loop() {
		for i := range kinds {
			start := time.Now()
			kinds[i].run(b)
			kinds[i].took = append(kinds[i].took, time.Since(start))
		}
	}
	median := make([]float64, len(kinds))
	for i, k := range kinds {
		slices.Sort(k.took)
		median[i] = float64(k.took[len(k.took)/2].Nanoseconds())
		b.ReportMetric(median[i]/1000, k.name+"-us")
	}
	b.ReportMetric(median[1]/median[0], "table/exec")
	b.ReportMetric(median[2]/median[0], "service/exec")
}

func execTrue(b *testing.B) {
	cmd := exec.Command("/bin/true")
	out, _ := cmd.StdoutPipe()
	errs, _ := cmd.StderrPipe()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	drain(out, errs)
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
}

func tableTrue(b *testing.B, h *harness) {
	out, theirOut, _ := newPipe(true)
	errs, theirErrs, _ := newPipe(true)
	p, err := h.table.Start(Command{Path: "/bin/true", Stdout: theirOut, Stderr: theirErrs})
	if err != nil {
		b.Fatal(err)
	}
	closeAll(theirOut, theirErrs)
	drain(out, errs)
	<-p.Done()
}

func serviceTrue(b *testing.B, h *harness) {
	no := false
	s, err := h.Start(b.Context(), connect.NewRequest(&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/true"}, Stdin: &no}))
	if err != nil {
		b.Fatal(err)
	}
	if o := collect(startStream{s}); o.end.GetExitCode() != 0 || o.err != nil {
		b.Fatal(o.end, o.err)
	}
}

func drain(files ...io.ReadCloser) {
	var wg sync.WaitGroup
	for _, f := range files {
		wg.Go(func() {
			_, _ = io.Copy(io.Discard, f)
			_ = f.Close()
		})
	}
	wg.Wait()
}

// BenchmarkOutput moves 10 MB of output.
func BenchmarkOutput(b *testing.B) {
	h := newHarness(b, nil)
	b.SetBytes(10_000_000)
	for b.Loop() {
		s, err := h.Start(b.Context(), shell("head -c 10000000 /dev/zero"))
		if err != nil {
			b.Fatal(err)
		}
		o := &outcome{}
		if o.rest(startStream{s}); o.outCount != 10_000_000 {
			b.Fatal(o.outCount)
		}
	}
}
