package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/agent-sandbox/abx/test/stdio"
)

// start measures from the start of the program to the answer of initialize.
func (b *bench) start(ctx context.Context) error {
	ours := contender{"abx", func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		c, err := stdio.Start(ctx, stdio.Options{
			Path: b.abx, Env: append(stdio.Embedded(os.Environ()), "ABX_POOL_SIZE=0"), Stderr: b.log,
		})
		if err != nil {
			return 0, err
		}
		if _, err := c.Initialize(ctx); err != nil {
			c.Close()
			return 0, err
		}
		took := time.Since(began)
		return took, c.Close()
	}}
	s, err := interleave(ctx, b.rounds, ours, program("true", "/bin/true"))
	if err != nil {
		return err
	}
	b.add(row{"start to the answer of initialize, p50 / p95", s["abx"].String(),
		"/bin/true " + s["true"].String(), ratio(s["abx"], s["true"]), "60 ms", "25 ms"})
	return nil
}

type made struct {
	ID string `json:"sandbox_id"`
}

type ran struct {
	Stdout   string `json:"stdout"`
	ExitCode int    `json:"exit_code"`
}

// life waits until the server is ready, makes a sandbox, makes one call in it
// and kills it; the time is that of the second and third, creates gets that of
// the second.
func (b *bench) life(c *stdio.Client, ready func(context.Context, int) error, creates *sample, tool string, args stdio.Arguments, want string) contender {
	return contender{"abx", func(ctx context.Context) (time.Duration, error) {
		if err := ready(ctx, c.PID()); err != nil {
			return 0, err
		}
		var m made
		var r ran
		began := time.Now()
		if _, err := c.Tool(ctx, "create_sandbox", nil, &m); err != nil {
			return 0, err
		}
		*creates = append(*creates, time.Since(began))
		if _, err := c.Tool(ctx, tool, args, &r); err != nil {
			return 0, err
		}
		took := time.Since(began)
		if r.ExitCode != 0 || r.Stdout != want {
			return 0, fmt.Errorf("%s answered %+v", tool, r)
		}
		_, err := c.Tool(ctx, "kill_sandbox", stdio.Arguments{"sandbox_id": m.ID}, nil)
		return took, err
	}}
}

// pooled measures create_sandbox and run_code with a sandbox waiting.
func (b *bench) pooled(ctx context.Context) error {
	c, err := b.server(ctx, "1")
	if err != nil {
		return err
	}
	defer c.Close()
	var creates sample
	all := []contender{b.life(c, warm, &creates, "run_code", stdio.Arguments{"code": "print(1)"}, "1\n"), program("true", "/bin/true")}
	if python := interpreter(ctx); python != "" {
		all = append(all, program("python3", python, "-c", "print(1)"))
	}
	s, err := interleave(ctx, b.rounds, all...)
	if err != nil {
		return err
	}
	b.add(row{"pooled create_sandbox + run_code print(1), p50 / p95", s["abx"].String(),
		"python3 -c 'print(1)' " + s["python3"].String(), ratio(s["abx"], s["python3"]), "5 / 15 ms", "2 / 6 ms"})
	b.add(row{"of that create_sandbox; all against /bin/true", creates[1:].String(), "/bin/true " + s["true"].String(), ratio(s["abx"], s["true"]), "", ""})
	return nil
}

// cold measures create_sandbox and the first command without a pool, beside
// bwrap doing what comes nearest: all namespaces, /usr read-only, fresh /proc,
// /dev and /tmp, the same shell.
func (b *bench) cold(ctx context.Context) error {
	c, err := b.server(ctx, "0")
	if err != nil {
		return err
	}
	defer c.Close()
	var creates sample
	all := []contender{b.life(c, settle, &creates, "run_command", stdio.Arguments{"command": "true"}, ""), program("true", "/bin/true")}
	if bwrap := lookup("bwrap"); bwrap != "" {
		all = append(all, program("bwrap", bwrap, bwrapArguments()...))
	}
	s, err := interleave(ctx, b.rounds, all...)
	if err != nil {
		return err
	}
	b.add(row{"cold create_sandbox + run_command true, p50 / p95", s["abx"].String(),
		"bwrap " + s["bwrap"].String(), ratio(s["abx"], s["bwrap"]), "1.6x", "1.2x"})
	b.add(row{"of that create_sandbox; all against /bin/true", creates[1:].String(), "/bin/true " + s["true"].String(), ratio(s["abx"], s["true"]), "", ""})
	return nil
}

func bwrapArguments() []string {
	args := []string{"--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev",
		"--tmpfs", "/tmp", "--tmpfs", "/app", "--chdir", "/app", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin"}
	for _, link := range []string{"/bin", "/lib", "/lib64", "/sbin"} {
		if to, err := os.Readlink(link); err == nil {
			args = append(args, "--symlink", to, link)
		} else if _, err := os.Stat(link); err == nil {
			args = append(args, "--ro-bind", link, link)
		}
	}
	return append(args, "sh", "-c", "true")
}

// command measures run_command true in a running sandbox.
func (b *bench) command(ctx context.Context) error {
	c, err := b.server(ctx, "0")
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Tool(ctx, "create_sandbox", nil, nil); err != nil {
		return err
	}
	ours := contender{"abx", func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		_, err := c.Tool(ctx, "run_command", stdio.Arguments{"command": "true"}, nil)
		return time.Since(began), err
	}}
	s, err := interleave(ctx, 5*b.rounds, ours, program("sh", "/bin/sh", "-c", "true"))
	if err != nil {
		return err
	}
	b.add(row{"run_command true in a running sandbox, p50 / p95", s["abx"].String(),
		"sh -c true, two pipes " + s["sh"].String(), ratio(s["abx"], s["sh"]), "1.6x", "1.25x"})
	return nil
}

// messageLimit is what one line over STDIO may have.
const messageLimit = 8 << 20

// files measures write_file in a message just under the limit, and read_file of
// the same. What the client itself needs to write and to decode JSON is left out.
func (b *bench) files(ctx context.Context) error {
	c, err := b.server(ctx, "0")
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Tool(ctx, "create_sandbox", nil, nil); err != nil {
		return err
	}
	line := strings.Repeat("0123456789abcdef", 6) + "\n"
	text := strings.Repeat(line, (messageLimit-messageLimit/64)/(len(line)+1)) // "\n" is two bytes in JSON
	call := func(name string, args stdio.Arguments) contender {
		return contender{name, func(ctx context.Context) (time.Duration, error) {
			r, err := c.PrepareTool(name, args)
			if err != nil {
				return 0, err
			}
			began := time.Now()
			reply, err := c.Send(ctx, r)
			took := time.Since(began)
			if err != nil {
				return 0, err
			}
			var got struct{ Content string }
			if _, err := stdio.DecodeTool(name, reply, &got); err != nil {
				return 0, err
			}
			if name == "read_file" && got.Content != text {
				return 0, fmt.Errorf("%d bytes came back of %d", len(got.Content), len(text))
			}
			return took, nil
		}}
	}
	const path = "/app/large.txt"
	s, err := interleave(ctx, max(5, b.rounds/4),
		call("write_file", stdio.Arguments{"path": path, "content": text}),
		call("read_file", stdio.Arguments{"path": path}))
	if err != nil {
		return err
	}
	size := fmt.Sprintf("%.2f MiB", float64(len(text))/(1<<20))
	b.add(row{"write_file of " + size + ", p50 / p95", s["write_file"].String(), "", "", "250 ms", "100 ms"})
	b.add(row{"read_file of the same, p50 / p95", s["read_file"].String(), "", "", "250 ms", "100 ms"})
	return nil
}
