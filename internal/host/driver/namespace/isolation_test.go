//go:build linux

package namespace

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// kinds are the ways in which ids can be mapped on the machine at hand; the
// one with a single id is everywhere.
func kinds(t *testing.T) map[string]func(*Options) {
	all := map[string]func(*Options){"single": func(o *Options) { o.Single = true }}
	switch detectMapping(false).kind {
	case direct:
		all["direct"] = nil
	case newuidmap:
		all["newuidmap"] = nil
	default:
		t.Log("this user has one id to map: nothing else to try")
	}
	return all
}

func TestUsersAndOwners(t *testing.T) {
	for kind, change := range kinds(t) {
		t.Run(kind, func(t *testing.T) {
			s := startSandbox(t, testDriver(t, change), "iusers", smallLimits)
			users := map[string]string{"user": "1000 1000 /home/user", "root": "0 0 /root"}
			if kind == "single" {
				delete(users, "root")
				_, err := tryRun(t.Context(), s, "root", "id")
				if err == nil || !strings.Contains(err.Error(), "newuidmap") {
					t.Errorf("root with a single id: %v; want a refusal that says what mends it", err)
				}
			}
			for user, want := range users {
				e := run(t, s, user, `echo $(id -u) $(id -g) $HOME; cd; touch f; stat -c '%U %G' f; grep -E 'Cap(Prm|Eff|Amb)|NoNewPrivs|^Seccomp:' /proc/self/status | tr -d '\n\t '`)
				wantOut := fmt.Sprintf("%s\n%s %s\nCapPrm:0000000000000000CapEff:0000000000000000CapAmb:0000000000000000NoNewPrivs:1Seccomp:2", want, user, user)
				if diff := cmp.Diff(wantOut, e.stdout); diff != "" {
					t.Errorf("as %s: %s%s", user, diff, e.stderr)
				}
			}
			if _, err := tryRun(t.Context(), s, "abx-agent", "id"); err == nil {
				t.Error("a command ran as the agent")
			}
			e := run(t, s, "user", "stat -c '%n %U' /app /home/user /tmp /etc /usr/bin/env; touch /app/x /tmp/x /home/user/x && echo written; touch /usr/x")
			if !strings.Contains(e.stdout, "/app user\n/home/user user\n") || !strings.Contains(e.stdout, "written") {
				t.Errorf("folders of user: %s%s", e.stdout, e.stderr)
			}
			if !strings.Contains(e.stderr, "Read-only file system") {
				t.Errorf("/usr could be written: %s", e.stderr)
			}
		})
	}
}

// pip is a wheel of our own making: no index can be reached.
const pip = `set -e
command -v pip3 >/dev/null || { echo no pip; exit 0; }
mkdir -p /tmp/p && cd /tmp/p && mkdir -p w/abxdemo w/abxdemo-1.0.dist-info
echo 'answer = 42' > w/abxdemo/__init__.py
printf 'Metadata-Version: 2.1\nName: abxdemo\nVersion: 1.0\n' > w/abxdemo-1.0.dist-info/METADATA
printf 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n' > w/abxdemo-1.0.dist-info/WHEEL
printf 'abxdemo/__init__.py,,\nabxdemo-1.0.dist-info/METADATA,,\nabxdemo-1.0.dist-info/WHEEL,,\nabxdemo-1.0.dist-info/RECORD,,\n' > w/abxdemo-1.0.dist-info/RECORD
python3 -c "import shutil; shutil.make_archive('abxdemo-1.0-py3-none-any','zip','w')" && mv abxdemo-1.0-py3-none-any.zip abxdemo-1.0-py3-none-any.whl
pip3 install --quiet --no-index ./abxdemo-1.0-py3-none-any.whl
cd / && python3 -c 'import abxdemo; print(abxdemo.answer, abxdemo.__file__.startswith("'$HOME'/.local/"))'
pip3 install --quiet --no-index --target /tmp/p/lib /tmp/p/*.whl
python3 -c 'import sys; sys.path.insert(0, "/tmp/p/lib"); import abxdemo; print(abxdemo.__file__)'
`

func TestPip(t *testing.T) {
	for kind, change := range kinds(t) {
		t.Run(kind, func(t *testing.T) {
			s := startSandbox(t, testDriver(t, change), "ipip", smallLimits)
			users := []string{"user"}
			if kind != "single" {
				users = append(users, "root")
			}
			for _, user := range users {
				e := run(t, s, user, strings.ReplaceAll(pip, "/tmp/p", "/tmp/p-"+user))
				want := "42 True\n/tmp/p-" + user + "/lib/abxdemo/__init__.py\n"
				if e.stdout != want && e.stdout != "no pip\n" {
					t.Errorf("as %s: %q %s %v", user, e.stdout, e.stderr, e.end)
				}
			}
		})
	}
}

func TestNothingOfTheHost(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("hostsecret"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("ABX_TEST_SECRET", "hostsecret")
	s := startSandbox(t, testDriver(t, nil), "ihost", smallLimits)
	e := run(t, s, "user", "ls /; echo --; ls /home; echo --; cat /proc/cmdline; env | grep -c hostsecret; ls /proc | grep -c '^[0-9]'; cat "+secret+"; hostname; ip -o addr 2>/dev/null | wc -l; ls /sys /run /var/lib 2>&1 | tr '\n' ' '")
	got := strings.SplitN(e.stdout, "--\n", 3)
	if len(got) != 3 {
		t.Fatalf("%q %s", e.stdout, e.stderr)
	}
	var extra []string
	want := []string{"app", "bin", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "mnt", "opt", "proc", "root", "run", "sbin", "srv", "tmp", "usr", "var"}
	for _, name := range strings.Fields(got[0]) {
		if !slices.Contains(want, name) {
			extra = append(extra, name)
		}
	}
	if len(extra) > 0 {
		t.Errorf("in the root beside the allow list: %v", extra)
	}
	if strings.TrimSpace(got[1]) != "user" && os.Getenv("HOME") == "/root" {
		t.Errorf("in /home: %q", got[1])
	}
	if strings.Contains(e.stdout, "hostsecret") {
		t.Error("a host's file or variable is visible")
	}
	if !strings.HasPrefix(got[2], "0\n") {
		t.Errorf("kernel command line or environment of the host: %q", got[2])
	}
	if !strings.Contains(e.stdout, "ihost\n") {
		t.Errorf("host name: %q", got[2])
	}
	e = run(t, s, "user", "cat /proc/self/cgroup /proc/interrupts; ulimit -c")
	for line := range strings.Lines(e.stdout) {
		if strings.Contains(line, "abx-") {
			t.Errorf("the host's cgroups are visible: %s", line)
		}
	}
	if !strings.Contains(e.stdout, "memory:/work") && os.Geteuid() == 0 && !strings.Contains(e.stdout, "0::/") {
		t.Errorf("the workload's cgroup: %q", e.stdout)
	}
	// What the agent and its workloads hold open.
	e = run(t, s, "user", "cat /proc/1/environ /proc/1/mem; ls -l /proc/1/fd /proc/1/root /proc/1/cwd; ls -l /proc/self/fd")
	if !strings.Contains(e.stderr, "denied") {
		t.Errorf("the agent's insides: %q %q", e.stdout, e.stderr)
	}
	for _, word := range []string{"memfd", "abx-agent", "socket"} {
		if strings.Contains(e.stdout, word) {
			t.Errorf("a descriptor of the agent leaked: %s", e.stdout)
		}
	}
}

// calls tries what the filter must refuse, and what it must not, by number.
const calls = `
import ctypes, errno, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == 'x86_64'
def call(*a):
    ctypes.set_errno(0)
    r = libc.syscall(*a)
    return 'ok' if r >= 0 else errno.errorcode[ctypes.get_errno()]
NEWUSER, NEWNET = 0x10000000, 0x40000000
nr = dict(unshare=272, mount=165, umount2=166, setns=308, bpf=321, keyctl=250, add_key=248, perf_event_open=298,
  userfaultfd=323, open_by_handle_at=304, io_uring_setup=425, clone3=435, pidfd_getfd=438, open_tree=428, fsopen=430,
  kexec_load=246, init_module=175, swapon=167, reboot=169, settimeofday=164, iopl=172, unknown=999) if x86 else dict(
  unshare=97, mount=40, umount2=39, setns=268, bpf=280, keyctl=219, add_key=217, perf_event_open=241,
  userfaultfd=282, open_by_handle_at=265, io_uring_setup=425, clone3=435, pidfd_getfd=438, open_tree=428, fsopen=430,
  kexec_load=104, init_module=105, swapon=224, reboot=142, settimeofday=170, unknown=999)
for name, n in nr.items():
    print(name, call(n, NEWUSER if name in ('unshare',) else 0, 0, 0, 0, 0, 0))
print('clone-newuser', call(56 if x86 else 220, NEWUSER | 17, 0, 0, 0, 0))
import socket
for name, family, kind in (('inet', 2, 1), ('inet6', 10, 1), ('unix', 1, 1), ('netlink', 16, 3), ('alg', 38, 5), ('vsock', 40, 1), ('packet', 17, 3)):
    print('socket-' + name, call(41 if x86 else 198, family, kind, 0))
print('socket-raw', call(41 if x86 else 198, 2, 3, 1))
if x86:
    # The bit that selects the other ABI, and a family hidden in the upper half.
    print('x32', call(0x40000000 | 39))
    print('socket-upper', call(41, ctypes.c_long(38 | 1 << 32), 5, 0))
`

func TestFilter(t *testing.T) {
	for kind, change := range kinds(t) {
		t.Run(kind, func(t *testing.T) {
			s := startSandbox(t, testDriver(t, change), "ifilter", smallLimits)
			e := run(t, s, "user", "python3 - <<'EOF'\n"+calls+"EOF")
			got := map[string]string{}
			for line := range strings.Lines(e.stdout) {
				if name, result, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
					got[name] = result
				}
			}
			allowed := []string{"socket-inet", "socket-inet6", "socket-unix", "socket-netlink"}
			// Refused, and not merely unknown: as the kernel would say it.
			nosys := []string{"clone3", "unknown", "x32"}
			if len(got) < 25 {
				t.Fatalf("%q %s", e.stdout, e.stderr)
			}
			for name, result := range got {
				want := []string{"EPERM", "EACCES"}
				switch {
				case slices.Contains(allowed, name):
					want = []string{"ok"}
				case slices.Contains(nosys, name):
					want = []string{"ENOSYS"}
				case strings.HasPrefix(name, "socket-"):
					want = append(want, "ENOSYS") // a conditional call that matched no condition
				}
				if !slices.Contains(want, result) {
					t.Errorf("%s: %s, want one of %v", name, result, want)
				}
			}
		})
	}
}

func TestNoNewNamespaceEvenAsRoot(t *testing.T) {
	for kind, change := range kinds(t) {
		if kind == "single" {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			s := startSandbox(t, testDriver(t, change), "inested", smallLimits)
			e := run(t, s, "root", "cat /proc/sys/user/max_user_namespaces; echo 9 > /proc/sys/user/max_user_namespaces; echo 1 > /proc/sys/net/ipv4/ip_forward; chown user /etc/passwd; mknod /tmp/sda b 8 0; kill -9 1; chroot / true")
			if !strings.HasPrefix(e.stdout, "0\n") {
				t.Errorf("namespaces allowed inside: %q", e.stdout)
			}
			if n := strings.Count(e.stderr, "Read-only file system"); n != 2 {
				t.Errorf("%d of 2 kernel settings were read-only: %s", n, e.stderr)
			}
			if n := strings.Count(e.stderr, "ermitted"); n < 3 {
				t.Errorf("root inside could do too much: %s", e.stderr)
			}
			// A kill of the agent is refused or ignored; it is there.
			if e := run(t, s, "root", "echo alive"); e.stdout != "alive\n" {
				t.Errorf("after kill -9 1: %q", e.stdout)
			}
		})
	}
}
