package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agent-sandbox/abx/test/stdio"
)

// output measures what 1 GB of one command's output costs the server.
func (b *bench) output(ctx context.Context) error {
	c, err := b.server(ctx, "0")
	if err != nil {
		return err
	}
	defer c.Close()
	// Once small, so that what the first call costs is not counted.
	if _, err := c.Tool(ctx, "run_command", stdio.Arguments{"command": "head -c 1000000 /dev/zero | tr '\\0' x"}, nil); err != nil {
		return err
	}
	status := fmt.Sprintf("/proc/%d/status", c.PID())
	before, err := field(status, "VmRSS")
	if err != nil {
		return err
	}
	began := time.Now()
	var r ran
	if _, err := c.Tool(ctx, "run_command", stdio.Arguments{"command": "head -c 1000000000 /dev/zero | tr '\\0' x", "timeout": 300}, &r); err != nil {
		return err
	}
	took := time.Since(began)
	peak, err := field(status, "VmHWM")
	if err != nil {
		return err
	}
	host := program("sh", "/bin/sh", "-c", "head -c 1000000000 /dev/zero | tr '\\0' x | cat >/dev/null")
	hostTook, err := host.do(ctx)
	if err != nil {
		return err
	}
	b.add(row{"1 GB of output: the server grows by", fmt.Sprintf("%.1f MB", float64(max(0, peak-before))/1e6), "", "", "20 MB", ""})
	b.add(row{"1 GB of output: time, whole kept in a file", milliseconds(took), "to /dev/null " + milliseconds(hostTook),
		fmt.Sprintf("%.2fx", took.Seconds()/hostTook.Seconds()), "", ""})
	return nil
}

// several is over how many sandboxes idle memory is averaged.
const several = 10

// memory measures idle sandboxes by what the machine holds for each.
func (b *bench) memory(ctx context.Context) error {
	c, err := b.server(ctx, "0")
	if err != nil {
		return err
	}
	defer c.Close()
	var ids []string
	for range several {
		var m made
		if _, err := c.Tool(ctx, "create_sandbox", nil, &m); err != nil {
			return err
		}
		ids = append(ids, m.ID)
	}
	if err := settle(ctx, c.PID()); err != nil {
		return err
	}
	agent, err := pss(c.PID())
	if err != nil {
		b.add(row{what: "memory of an idle sandbox", ours: err.Error()})
		return nil
	}
	for _, id := range ids {
		if _, err := c.Tool(ctx, "run_code", stdio.Arguments{"code": "None", "sandbox_id": id}, nil); err != nil {
			return err
		}
	}
	if err := settle(ctx, c.PID()); err != nil {
		return err
	}
	python, err := pss(c.PID())
	if err != nil {
		return err
	}
	mib := func(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/several/(1<<20)) }
	what := fmt.Sprintf("idle sandbox, PSS, mean of %d", several)
	b.add(row{what, mib(agent), "", "", "4 MiB", "2 MiB"})
	b.add(row{what + ", with Python", mib(python), "", "", "12 MiB", "6 MiB"})
	return nil
}

// atOnce measures many creates in one moment.
func (b *bench) atOnce(ctx context.Context) error {
	c, err := b.server(ctx, "0")
	if err != nil {
		return err
	}
	defer c.Close()
	var (
		mu    sync.Mutex
		times sample
		errs  []error
		wg    sync.WaitGroup
	)
	began := time.Now()
	for range b.burst {
		wg.Go(func() {
			start := time.Now()
			_, err := c.Tool(ctx, "create_sandbox", nil, nil)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			times = append(times, time.Since(start))
		})
	}
	wg.Wait()
	took := time.Since(began)
	if len(errs) > 0 {
		return fmt.Errorf("%d of %d creates failed, the first: %w", len(errs), b.burst, errs[0])
	}
	b.add(row{fmt.Sprintf("%d creates at once: rate; p50 / p95 of one", b.burst),
		fmt.Sprintf("%.0f/s; %s", float64(b.burst)/took.Seconds(), times), "", "", "40/s", "100/s"})
	began = time.Now()
	if err := c.Close(); err != nil {
		return err
	}
	b.add(row{fmt.Sprintf("the server's end with %d sandboxes", b.burst), milliseconds(time.Since(began)), "", "", "", ""})
	return nil
}

// cycle makes and kills sandboxes and looks for what they left.
func (b *bench) cycle(ctx context.Context) error {
	c, err := b.server(ctx, "0")
	if err != nil {
		return err
	}
	defer c.Close()
	one := func() error {
		var m made
		if _, err := c.Tool(ctx, "create_sandbox", nil, &m); err != nil {
			return err
		}
		_, err := c.Tool(ctx, "kill_sandbox", stdio.Arguments{"sandbox_id": m.ID}, nil)
		return err
	}
	// A few first: what is made once is not left behind.
	for range 5 {
		if err := one(); err != nil {
			return err
		}
	}
	if err := settle(ctx, c.PID()); err != nil {
		return err
	}
	before := traceOf(c.PID(), b.home)
	began := time.Now()
	for n := range b.cycles {
		if err := one(); err != nil {
			return fmt.Errorf("cycle %d: %w", n, err)
		}
	}
	took := time.Since(began)
	if err := settle(ctx, c.PID()); err != nil {
		return err
	}
	after := traceOf(c.PID(), b.home)
	b.add(row{fmt.Sprintf("%d create/kill cycles, mean of one", b.cycles), milliseconds(took / time.Duration(max(1, b.cycles))), "", "", "", ""})
	b.add(row{"left before them", before.String(), "", "", "", ""})
	b.add(row{"left after them", after.String(), "", "", "the same", ""})
	if after.processes > before.processes || after.mounts > before.mounts || after.groups > before.groups || after.state > before.state || after.files > before.files+8 {
		return errors.New("something stayed behind: before " + before.String() + "; after " + after.String())
	}
	return nil
}
