//go:build linux

package namespace

import (
	"strings"
	"testing"

	"github.com/agent-sandbox/abx/internal/e2b"
	"github.com/agent-sandbox/abx/internal/host/engine"
)

func TestLimits(t *testing.T) {
	d := testDriver(t, nil)
	iso := d.Isolation()
	s := startSandbox(t, d, "ilimits", smallLimits)
	alive := func(after string) {
		t.Helper()
		if e := run(t, s, "user", "echo alive"); e.stdout != "alive\n" {
			t.Fatalf("after %s the sandbox is not usable: %q %q", after, e.stdout, e.stderr)
		}
	}

	e := run(t, s, "user", "python3 -c 'x = bytearray(600 << 20); print(len(x))'")
	if iso.MemoryEnforced {
		if e.end.GetAbxReason() != e2b.ReasonOOM || !strings.Contains(e.end.GetAbxDetail(), "256 MiB") {
			t.Errorf("memory: %v", e.end)
		}
	} else if !strings.Contains(e.stderr, "MemoryError") {
		t.Errorf("memory of a process: %v %s", e.end, e.stderr)
	}
	alive("out of memory")

	e = run(t, s, "user", "head -c 100M /dev/zero > /tmp/big")
	if e.end.GetAbxReason() != e2b.ReasonDiskFull || !strings.Contains(e.stderr, "No space left") {
		t.Errorf("disk: %v %s", e.end, e.stderr)
	}
	if e := run(t, s, "user", "rm /tmp/big && echo freed > /tmp/small && cat /tmp/small"); e.stdout != "freed\n" {
		t.Errorf("after a full disk: %q %s", e.stdout, e.stderr)
	}

	// A fork bomb that stops by itself once it is refused.
	e = run(t, s, "user", "for i in $(seq 200); do sleep 60 & done; wait")
	if e.end.GetAbxReason() != e2b.ReasonPidsLimit && e.end.GetExitCode() == 0 {
		t.Errorf("processes: %v %s", e.end, e.stderr)
	}
	run(t, s, "user", "kill -9 -1")
	alive("a fork bomb")

	e = run(t, s, "user", "python3 -c 'f=[open(\"/dev/null\") for i in range(300)]'")
	if !strings.Contains(e.stderr, "Too many open files") {
		t.Errorf("open files: %v %s", e.end, e.stderr)
	}
	alive("too many open files")
}

// A bomb that does not stop by itself, in every way of mapping ids: where the
// workload has the agent's id, the limit on processes holds for both.
func TestForkBomb(t *testing.T) {
	for kind, change := range kinds(t) {
		t.Run(kind, func(t *testing.T) {
			d := testDriver(t, func(o *Options) {
				if change != nil {
					change(o)
				}
				o.NoCgroup = true
			})
			s := startSandbox(t, d, "ibomb", smallLimits)
			// It runs until its session is killed; there is always a process too many.
			e := run(t, s, "user", `python3 - <<'EOF'
import os, signal, time
end = time.time() + 2
try:
    while time.time() < end:
        try:
            os.fork()
        except OSError:
            pass
finally:
    os.killpg(0, signal.SIGKILL)
EOF`)
			if e.end == nil {
				t.Fatal("the call did not end")
			}
			if e := run(t, s, "user", "echo alive"); e.stdout != "alive\n" {
				t.Errorf("%q %q", e.stdout, e.stderr)
			}
		})
	}
}

// What the kernel counts against the user who made the namespaces is bounded:
// the host's own programs need it too.
func TestHostsCountsAreSpared(t *testing.T) {
	for kind, change := range kinds(t) {
		t.Run(kind, func(t *testing.T) {
			s := startSandbox(t, testDriver(t, change), "icounts", smallLimits)
			e := run(t, s, "user", `bash -c "ulimit -i; ulimit -q; ulimit -l"; cat /proc/sys/net/ipv4/tcp_rmem | tr '\t' ' '
python3 - <<'EOF'
import ctypes, os, signal
libc = ctypes.CDLL(None)
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
n = 0
while n < 50000 and libc.sigqueue(os.getpid(), 40, 0) == 0:
    n += 1
print('signals', n <= 1024)
print('watchers', sum(libc.inotify_init() >= 0 for i in range(100)) <= 16)
EOF`)
			if want := "1024\n65536\n8192\n4096 65536 262144\nsignals True\nwatchers True\n"; e.stdout != want {
				t.Errorf("%q, want %q; %s", e.stdout, want, e.stderr)
			}
		})
	}
}

// Descriptors that one sandbox leaves on their way through sockets do not keep
// another from talking to its host.
func TestDescriptorsOnTheirWay(t *testing.T) {
	for kind, change := range kinds(t) {
		t.Run(kind, func(t *testing.T) {
			d := testDriver(t, change)
			limits := smallLimits
			limits.OpenFiles = 1024
			a := startSandbox(t, d, "iflight", limits)
			b := startSandbox(t, d, "iother", limits)
			e := run(t, a, "user", `ulimit -Sn; python3 - <<'EOF'
import array, socket, time, os
sent = 0
try:
    for i in range(400):
        x, y = socket.socketpair()
        for j in range(10):
            x.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))])
            sent += 1
except OSError:
    pass
print(sent > 300, flush=True)
if os.fork() == 0:
    time.sleep(600)
EOF`)
			if e.stdout != "1024\nTrue\n" {
				t.Fatalf("%q %s", e.stdout, e.stderr)
			}
			for _, s := range []engine.Sandbox{a, b} {
				c, err := s.Dial(t.Context(), e2b.PortAgent)
				if err != nil {
					t.Error(err)
					continue
				}
				c.Close()
			}
		})
	}
}

// Everything inside can be killed by the workload but the agent.
func TestSignalsDoNotReachTheAgent(t *testing.T) {
	for kind, change := range kinds(t) {
		t.Run(kind, func(t *testing.T) {
			s := startSandbox(t, testDriver(t, change), "isignals", smallLimits)
			run(t, s, "user", "for s in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 17 19 20 21 22 23 24 25 26 27 31 34 64; do kill -$s 1; done 2>/dev/null")
			if e := run(t, s, "user", "echo alive"); e.stdout != "alive\n" {
				t.Errorf("%q %q", e.stdout, e.stderr)
			}
		})
	}
}
