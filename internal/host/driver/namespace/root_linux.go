package namespace

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agent-sandbox/abx/internal/agent/account"
	"github.com/agent-sandbox/abx/internal/control"
)

// Folders inside that the agent keeps for itself.
const (
	RunDir = "/run/abx"     // files that workloads may read and not write
	LogDir = "/var/log/abx" // whole outputs of calls
)

// etc lists what of the host's /etc is shown: what programs under /usr need to
// work, and nothing that says who or where the host is.
var etc = []string{
	"alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
	"localtime", "magic", "matplotlibrc", "mime.types", "perl", "pki/tls/certs", "pki/ca-trust", "protocols",
	"R", "services", "ssl/certs", "ssl/openssl.cnf", "terminfo", "xdg", "ImageMagick-6", "ImageMagick-7",
}

// etcGlobs is the same for names with a version in them.
var etcGlobs = []string{"java*", "python3*", "maven", "node*"}

// masks lists what of /proc is hidden: what tells of the host's hardware, its
// kernel's insides or what else runs there, and no program needs.
var masks = []string{
	"acpi", "asound", "buddyinfo", "bus", "cmdline", "config.gz", "consoles", "crypto", "diskstats", "driver",
	"dynamic_debug", "fs", "interrupts", "iomem", "ioports", "irq", "kallsyms", "kcore", "key-users", "keys", "kmsg",
	"kpagecgroup", "kpagecount", "kpageflags", "latency_stats", "misc", "modules", "mtrr", "pagetypeinfo", "partitions",
	"pressure", "sched_debug", "schedstat", "scsi", "slabinfo", "softirqs", "swaps", "sysrq-trigger", "timer_list",
	"timer_stats", "vmallocinfo", "zoneinfo",
}

// baseSetup is what every sandbox of this driver is made of; it is computed
// once. tools are interpreters that live outside /usr.
func baseSetup(tools []tool) control.Setup {
	s := control.Setup{
		Dirs: []control.Dir{
			{Path: "/app", Mode: 0o755, UID: account.UserID, GID: account.UserID},
			{Path: "/dev", Mode: 0o755},
			{Path: "/dev/pts", Mode: 0o755},
			{Path: "/dev/shm", Mode: 0o1777},
			{Path: "/etc", Mode: 0o755},
			{Path: "/home", Mode: 0o755},
			{Path: "/home/user", Mode: 0o755, UID: account.UserID, GID: account.UserID},
			{Path: "/mnt", Mode: 0o755},
			{Path: "/opt", Mode: 0o755},
			{Path: "/proc", Mode: 0o555},
			{Path: "/root", Mode: 0o755},
			{Path: "/run", Mode: 0o755},
			{Path: RunDir, Mode: 0o755, UID: account.AgentID, GID: account.AgentID},
			{Path: "/srv", Mode: 0o755},
			{Path: "/tmp", Mode: 0o1777},
			{Path: "/usr", Mode: 0o755},
			{Path: "/var", Mode: 0o755},
			{Path: "/var/cache", Mode: 0o755},
			{Path: "/var/lib", Mode: 0o755},
			{Path: "/var/log", Mode: 0o755},
			{Path: LogDir, Mode: 0o755, UID: account.AgentID, GID: account.AgentID},
			{Path: "/var/tmp", Mode: 0o1777},
		},
		Links: []control.Link{
			{Target: "/proc/self/fd", Path: "/dev/fd"},
			{Target: "/proc/self/fd/0", Path: "/dev/stdin"},
			{Target: "/proc/self/fd/1", Path: "/dev/stdout"},
			{Target: "/proc/self/fd/2", Path: "/dev/stderr"},
			{Target: "pts/ptmx", Path: "/dev/ptmx"},
			{Target: "../proc/self/mounts", Path: "/etc/mtab"},
			{Target: "../usr/lib/os-release", Path: "/etc/os-release"},
			{Target: "../run", Path: "/var/run"},
		},
		Scratch: RunDir,
		Trees:   []control.Tree{{Source: "/usr", Target: "/usr"}},
		// Without a network a package manager that tries again only hangs.
		Env: []string{"NPM_CONFIG_FETCH_RETRIES=0", "PIP_RETRIES=0"},
	}
	for _, m := range masks {
		s.Masks = append(s.Masks, "/proc/"+m)
	}
	for _, d := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		s.Trees = append(s.Trees, control.Tree{Source: "/dev/" + d, Target: "/dev/" + d, Device: true})
	}
	addSystemFolders(&s)
	addEtc(&s)
	s.Path = addTools(&s, tools)
	return s
}

// addSystemFolders shows /bin and its like as the host has them: links into
// /usr, or folders of their own.
func addSystemFolders(s *control.Setup) {
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		if target, err := os.Readlink(name); err == nil {
			s.Links = append(s.Links, control.Link{Target: target, Path: name})
		} else if st, err := os.Stat(name); err == nil && st.IsDir() {
			s.Trees = append(s.Trees, control.Tree{Source: name, Target: name})
		}
	}
}

func addEtc(s *control.Setup) {
	names := slices.Clone(etc)
	for _, g := range etcGlobs {
		found, _ := filepath.Glob("/etc/" + g) // the patterns are constant and valid
		for _, f := range found {
			names = append(names, strings.TrimPrefix(f, "/etc/"))
		}
	}
	for _, n := range names {
		if _, err := os.Stat("/etc/" + n); err == nil {
			s.Trees = append(s.Trees, control.Tree{Source: "/etc/" + n, Target: "/etc/" + n, Optional: true})
		}
	}
	shell := "/bin/sh"
	if _, err := os.Stat("/bin/bash"); err == nil {
		shell = "/bin/bash"
	}
	s.Texts = append(s.Texts,
		control.Text{Path: "/etc/passwd", Content: "root:x:0:0:root:/root:" + shell + "\n" +
			"abx-agent:x:990:990:sandbox agent:/:/usr/sbin/nologin\n" +
			"user:x:1000:1000:user:/home/user:" + shell + "\n" +
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"},
		control.Text{Path: "/etc/group", Content: "root:x:0:\ntty:x:5:\nabx-agent:x:990:\nuser:x:1000:\nnogroup:x:65534:\n"},
		control.Text{Path: "/etc/nsswitch.conf", Content: "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"},
		control.Text{Path: "/etc/resolv.conf", Content: "# This sandbox has no network: names do not resolve.\n"},
		control.Text{Path: "/etc/shells", Content: shell + "\n/bin/sh\n"},
	)
}

// addTools shows each interpreter's own folder, read-only, and nothing beside
// it; it returns the PATH with their programs where the host's PATH had them:
// before the system's.
func addTools(s *control.Setup, tools []tool) string {
	path := []string{"/home/user/.local/bin", "/home/user/.npm-global/bin"}
	seen := map[string]bool{}
	for _, t := range tools {
		for _, dir := range t.folders {
			if !seen[dir] {
				seen[dir] = true
				s.Trees = append(s.Trees, control.Tree{Source: dir, Target: dir, Optional: true})
			}
		}
		if !slices.Contains(path, t.bin) {
			path = append(path, t.bin)
		}
	}
	path = append(path, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
	return strings.Join(path, ":")
}

// personal adds what differs from sandbox to sandbox.
func personal(s control.Setup, id string) control.Setup {
	s.ID = id
	s.Texts = append(slices.Clip(s.Texts),
		control.Text{Path: "/etc/hostname", Content: id + "\n"},
		control.Text{Path: "/etc/hosts", Content: "127.0.0.1 localhost " + id + "\n::1 localhost ip6-localhost\n"},
	)
	return s
}
