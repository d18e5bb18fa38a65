package config

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// load reads settings from an environment and files in memory.
func load(t *testing.T, env, files map[string]string, flags ...Value) (*Settings, error) {
	t.Helper()
	o := Options{
		Dir: "/project", Home: "/home/u", Flags: map[Key]Value{},
		LookupEnv: func(n string) (string, bool) { v, ok := env[n]; return v, ok },
		ReadFile: func(n string) ([]byte, error) {
			if data, ok := files[n]; ok {
				return []byte(data), nil
			}
			return nil, fs.ErrNotExist
		},
	}
	for _, f := range flags {
		o.Flags[f.Key] = f
	}
	return Load(o)
}

type words = map[string]string

const (
	envFile  = "/project/.env"
	homeFile = "/home/u/.abx/config"
)

func TestPrecedence(t *testing.T) {
	all := words{envFile: "ABX_DEFAULT_TEMPLATE=project", homeFile: "default_template = file\n"}
	env := words{"ABX_DEFAULT_TEMPLATE": "env"}
	for _, c := range []struct {
		name       string
		env, files words
		flags      []Value
		text, from string
	}{
		{"nothing", nil, nil, nil, "", "the default"},
		{"file", nil, words{homeFile: all[homeFile]}, nil, "file", homeFile},
		{"project", nil, all, nil, "project", envFile},
		{"environment", env, all, nil, "env", "the environment variable ABX_DEFAULT_TEMPLATE"},
		{"flag", env, all, []Value{Given(Template, "--template", "flag")}, "flag", "the flag --template"},
		{"an empty variable is none", words{"ABX_DEFAULT_TEMPLATE": ""}, all, nil, "project", envFile},
	} {
		s, err := load(t, c.env, c.files, c.flags...)
		if err != nil {
			t.Fatal(err)
		}
		if v := s.Get(Template); v.Text != c.text || v.From() != c.from {
			t.Errorf("%s: %q from %s, want %q from %s", c.name, v.Text, v.From(), c.text, c.from)
		}
	}
}

func TestEndpointOfAProjectNeverGetsAKeyFromElsewhere(t *testing.T) {
	const evil = "ABX_SANDBOX_BASE_URL=https://evil.test\nABX_SANDBOX_DOMAIN=evil.test\n"
	for _, c := range []struct {
		name       string
		env, files words
		url        string
		warnings   int
	}{
		{"key in the environment", words{"ABX_SANDBOX_API_KEY": "k"}, words{envFile: evil}, "", 2},
		{"key in the file", nil, words{envFile: evil, homeFile: "sandbox_api_key = k\nsandbox_base_url = https://mine.test"}, "https://mine.test", 2},
		{"key in the same file", nil, words{envFile: evil + "ABX_SANDBOX_API_KEY=k"}, "https://evil.test", 0},
		{"no key", nil, words{envFile: evil}, "https://evil.test", 0},
		{"endpoint in the environment", words{"ABX_SANDBOX_BASE_URL": "https://mine.test", "ABX_SANDBOX_DOMAIN": "mine.test"}, words{envFile: evil + "ABX_SANDBOX_API_KEY=k"}, "https://mine.test", 0},
	} {
		s, err := load(t, c.env, c.files)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Get(BaseURL).Text; got != c.url || len(s.Warnings) != c.warnings {
			t.Errorf("%s: base URL %q, warnings %q; want %q, %d", c.name, got, s.Warnings, c.url, c.warnings)
		}
	}
}

// TestProjectsFileLoosensNothing: to open a repository is not to trust it.
func TestProjectsFileLoosensNothing(t *testing.T) {
	project := "ABX_ISOLATION=auto\nABX_LIMIT_MEMORY=900GiB\nABX_LIMIT_PROCESSES=100000\nABX_LIMIT_OPEN_FILES=1\nABX_LIMIT_DISK=1\nABX_MAX_SANDBOXES=9\nABX_POOL_SIZE=99\nABX_DEFAULT_TEMPLATE=base\n"
	s, err := load(t, words{"ABX_LIMIT_DISK": "5MiB"}, words{envFile: project, homeFile: "isolation = gvisor\nlimit_processes = 7\n"})
	if err != nil {
		t.Fatal(err)
	}
	got := map[Key]string{}
	for _, k := range []Key{Isolation, MemoryLimit, ProcessLimit, FileLimit, DiskLimit, MaxSandboxes, PoolSize, Template} {
		got[k] = s.Get(k).Text
	}
	want := map[Key]string{Isolation: "gvisor", MemoryLimit: "", ProcessLimit: "7", FileLimit: "", DiskLimit: "5MiB", MaxSandboxes: "", PoolSize: "", Template: "base"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("values (-want +got):\n%s", d)
	}
	if strict, err := load(t, nil, words{envFile: "ABX_ISOLATION=gvisor"}); err != nil || strict.Get(Isolation).Text != "gvisor" {
		t.Errorf("a stricter isolation is not heeded: %v, %v", strict.Get(Isolation), err)
	}
	if len(s.Warnings) != 7 || !strings.Contains(s.Warnings[0], "ABX_ISOLATION in "+envFile+" is ignored") {
		t.Errorf("warnings %q", s.Warnings)
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	const secret = "sk-very-secret"
	s, err := load(t, words{"ABX_SANDBOX_API_KEY": secret, "ABX_MCP_AUTH_TOKEN": secret}, words{envFile: "ABX_SANDBOX_BASE_URL=https://evil.test"})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "key", s.Get(APIKey))
	key := s.Get(APIKey)
	shown := fmt.Sprint(key, s.Get(AuthToken)) + fmt.Sprintf("%v %+v %#v %s", key, key, key, key) + key.From() + key.Remove() + strings.Join(s.Warnings, "") + log.String()
	if strings.Contains(shown, secret) {
		t.Errorf("a secret is shown: %s", shown)
	}
	if key.Text != secret {
		t.Errorf("the key is %q", key.Text)
	}
}

func TestEnvFile(t *testing.T) {
	s, err := load(t, nil, words{envFile: `
# comment
export ABX_SANDBOX_API_KEY="a b#c"
SANDBOX_REGION = cn-beijing # where
ABX_DEFAULT_TEMPLATE='it'
OTHER=ignored
no assignment
BROKEN="no end
ABX_MCP_AUTH_TOKEN=
`})
	if err != nil {
		t.Fatal(err)
	}
	got := map[Key]string{}
	for _, k := range []Key{APIKey, Region, Template, AuthToken} {
		got[k] = s.Get(k).Text
	}
	want := map[Key]string{APIKey: "a b#c", Region: "cn-beijing", Template: "it", AuthToken: ""}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("values (-want +got):\n%s", d)
	}
	if !s.Get(AuthToken).Set || s.Get(AllowedOrigins).Set {
		t.Error("an empty token is not told from none")
	}
}

// TestHomeThatIsNoFolder: there are no settings then, as with none.
func TestHomeThatIsNoFolder(t *testing.T) {
	home := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(home, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Load(Options{Home: home, Dir: home})
	if err != nil || len(s.Warnings) > 0 {
		t.Errorf("got %v, warnings %q", err, s.Warnings)
	}
}

func TestOwnFile(t *testing.T) {
	s, err := load(t, nil, words{homeFile: "version = 1\n# c\nregion = cn-hangzhou\nlimit_memory = \"512 MiB\"\n\n"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Get(Region).Text != "cn-hangzhou" || s.Number(MemoryLimit) != 512<<20 {
		t.Errorf("got %v, %d", s.Get(Region), s.Number(MemoryLimit))
	}
	for file, want := range map[string]string{
		"regoin = x":            `line 1: unknown setting "regoin"`,
		"\napi_key = x":         `line 2: unknown setting "api_key": did you mean "sandbox_api_key"?`,
		"version = 2":           "newer abx",
		"nonsense":              "line 1: want KEY = VALUE",
		`region = "x`:           "line 1: want KEY = VALUE",
		"limit_memory = much":   "limit_memory",
		"max_sandboxes = 0":     "max_sandboxes: \"0\"",
		"max_sandboxes = -1":    "max_sandboxes",
		"region = a.evil.test/": "region",
	} {
		if _, err := load(t, nil, words{homeFile: file}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", file, err, want)
		}
	}
}

func TestRemove(t *testing.T) {
	s, err := load(t, words{"SANDBOX_REGION": "r"}, words{envFile: "ABX_SANDBOX_API_KEY=k", homeFile: "sandbox_base_url = https://x"}, Given(Template, "--template", "t"))
	if err != nil {
		t.Fatal(err)
	}
	for k, want := range map[Key]string{
		Region: "unset SANDBOX_REGION", APIKey: "remove ABX_SANDBOX_API_KEY from " + envFile, BaseURL: "remove the line sandbox_base_url from " + homeFile,
		Template: "leave out --template", Domain: "",
	} {
		if got := s.Get(k).Remove(); got != want {
			t.Errorf("%s: %q, want %q", k, got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "1024": 1024, "2GiB": 2 << 30, "2 G": 2 << 30, "1MB": 1e6, "7B": 7, "10k": -1, "": -1, "GiB": -1, "-1": -1, "99999999999GiB": -1} {
		if got, err := parseSize(in); (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: %d, %v; want %d", in, got, err, want)
		}
	}
}

func TestRealFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, ".abx"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(Path(dir), []byte("region = cn-beijing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, ".env"), 0o700); err != nil { // a Python environment of that name
		t.Fatal(err)
	}
	s, err := Load(Options{Dir: dir, Home: dir})
	if err != nil || s.Get(Region).Text != "cn-beijing" || len(s.Warnings) != 0 {
		t.Errorf("got %v, %v", s, err)
	}
}
