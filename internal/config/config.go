// Package config reads the settings of the command line from where they may
// stand, in this order: a flag, the environment, ./.env, ~/.abx/config. Each
// value knows where it came from. The package reads; it starts and prints
// nothing.
//
// Its one invariant: a secret is shown by no String, error or log of this
// package, and is never paired with an endpoint that a project's ./.env named.
//
// To add a setting: name its Key below and give it a row in keys.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// A Key names a setting, as it stands in ~/.abx/config.
type Key string

// The settings.
const (
	APIKey         Key = "sandbox_api_key"
	BaseURL        Key = "sandbox_base_url"
	Domain         Key = "sandbox_domain"
	Region         Key = "region"
	Template       Key = "default_template"
	AuthToken      Key = "mcp_auth_token"
	AllowedOrigins Key = "mcp_allowed_origins"
	RuntimeDir     Key = "mcp_runtime_dir"
	Isolation      Key = "isolation"

	MaxMessage Key = "mcp_max_message" // bytes of one message of a client
	OutputHead Key = "mcp_output_head" // bytes kept of the begin of each stream
	OutputTail Key = "mcp_output_tail" // and of its end
	MaxImage   Key = "mcp_max_image"   // bytes of one picture
	MaxRead    Key = "mcp_max_read"    // bytes of one read_file
	MaxEntries Key = "mcp_max_entries" // of one list_files

	MemoryLimit  Key = "limit_memory"
	DiskLimit    Key = "limit_disk"
	ProcessLimit Key = "limit_processes"
	FileLimit    Key = "limit_open_files"
	MaxSandboxes Key = "max_sandboxes"
	PoolSize     Key = "pool_size"
)

// kinds of values.
type kind int

const (
	text   kind = iota
	number      // a whole number, at least 0
	size        // bytes, with a unit such as 2GiB
)

// strictest is the isolation that a project's file may ask for, too.
const strictest = "gvisor"

type spec struct {
	key    Key
	env    []string // variables, the first that is set counts
	kind   kind
	secret bool
	// endpoint: where a key is sent to. See Load.
	endpoint bool
	// guard: what keeps sandboxes apart from this machine and within bounds. A
	// project that was only opened must not loosen it: see Load.
	guard bool
	least int64 // of a number or size
}

var keys = []spec{
	{key: APIKey, env: []string{"ABX_SANDBOX_API_KEY"}, secret: true},
	{key: BaseURL, env: []string{"ABX_SANDBOX_BASE_URL"}, endpoint: true},
	{key: Domain, env: []string{"ABX_SANDBOX_DOMAIN"}, endpoint: true},
	{key: Region, env: []string{"SANDBOX_REGION", "ALIBABA_CLOUD_REGION_ID"}},
	{key: Template, env: []string{"ABX_DEFAULT_TEMPLATE"}},
	{key: AuthToken, env: []string{"ABX_MCP_AUTH_TOKEN"}, secret: true},
	{key: AllowedOrigins, env: []string{"ABX_MCP_ALLOWED_ORIGINS"}},
	{key: RuntimeDir, env: []string{"ABX_MCP_RUNTIME_DIR"}},
	{key: Isolation, env: []string{"ABX_ISOLATION"}, guard: true},
	{key: MaxMessage, env: []string{"ABX_MCP_MAX_MESSAGE"}, kind: size},
	{key: OutputHead, env: []string{"ABX_MCP_OUTPUT_HEAD"}, kind: size},
	{key: OutputTail, env: []string{"ABX_MCP_OUTPUT_TAIL"}, kind: size},
	{key: MaxImage, env: []string{"ABX_MCP_MAX_IMAGE"}, kind: size},
	{key: MaxRead, env: []string{"ABX_MCP_MAX_READ"}, kind: size},
	{key: MaxEntries, env: []string{"ABX_MCP_MAX_ENTRIES"}, kind: number},
	{key: MemoryLimit, env: []string{"ABX_LIMIT_MEMORY"}, kind: size, guard: true},
	{key: DiskLimit, env: []string{"ABX_LIMIT_DISK"}, kind: size, guard: true},
	{key: ProcessLimit, env: []string{"ABX_LIMIT_PROCESSES"}, kind: number, guard: true},
	{key: FileLimit, env: []string{"ABX_LIMIT_OPEN_FILES"}, kind: number, guard: true},
	{key: MaxSandboxes, env: []string{"ABX_MAX_SANDBOXES"}, kind: number, guard: true, least: 1},
	{key: PoolSize, env: []string{"ABX_POOL_SIZE"}, kind: number, guard: true},
}

// A Source is where a value came from.
type Source int

// The sources, the first that has a value counts.
const (
	Default     Source = iota // nowhere
	Flag                      // the command line
	Environment               // the process's environment
	Project                   // ./.env
	File                      // ~/.abx/config
)

// A Value is one setting.
type Value struct {
	Key    Key
	Text   string
	Set    bool // also when Text is empty
	Source Source
	Where  string // the flag, variable or file

	secret bool
}

// String shows the value, a secret as [set].
func (v Value) String() string {
	if v.secret && v.Text != "" {
		return "[set]"
	}
	return v.Text
}

// GoString is String, so that %#v shows no secret.
func (v Value) GoString() string { return fmt.Sprintf("{%s: %q from %s}", v.Key, v.String(), v.From()) }

// LogValue keeps secrets out of logs.
func (v Value) LogValue() slog.Value { return slog.StringValue(v.String()) }

// From says where the value came from, for people.
func (v Value) From() string {
	switch v.Source {
	case Flag:
		return "the flag " + v.Where
	case Environment:
		return "the environment variable " + v.Where
	case Project, File:
		return v.Where
	}
	return "the default"
}

// Remove says how to take the value away, for people; empty for a default.
func (v Value) Remove() string {
	switch v.Source {
	case Flag:
		return "leave out " + v.Where
	case Environment:
		return "unset " + v.Where
	case Project:
		return fmt.Sprintf("remove %s from %s", envOf(v.Key), v.Where)
	case File:
		return fmt.Sprintf("remove the line %s from %s", v.Key, v.Where)
	}
	return ""
}

// Options say where to look.
type Options struct {
	Flags     map[Key]Value                    // by Given
	LookupEnv func(name string) (string, bool) // nil: no environment
	Dir       string                           // where ./.env is; "" for none
	Home      string                           // where .abx/config is; "" for none
	ReadFile  func(name string) ([]byte, error)
}

// Given is the value of a flag that the user gave.
func Given(key Key, flag, text string) Value {
	return Value{Key: key, Text: text, Set: true, Source: Flag, Where: flag}
}

// Settings are all values, and what to warn of.
type Settings struct {
	values   map[Key]Value
	Warnings []string // sentences for people
}

// Load reads all sources. An endpoint that ./.env names is dropped, with a
// warning, when the API key comes from elsewhere: a hostile project could
// collect the key by it. So are limits in ./.env and an isolation that is not
// the strictest, always: they could loosen what the user has set. Unknown names
// are ignored in ./.env, and errors in ~/.abx/config.
func Load(o Options) (*Settings, error) {
	s := &Settings{values: map[Key]Value{}}
	if o.LookupEnv == nil {
		o.LookupEnv = func(string) (string, bool) { return "", false }
	}
	project, err := s.project(o)
	if err != nil {
		return nil, err
	}
	file, err := s.file(o)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if v, ok := project[k.key]; ok && k.guard && (k.key != Isolation || v.Text != strictest) {
			s.Warnings = append(s.Warnings, fmt.Sprintf("%s in %s is ignored: a project's file must not change what sandboxes may do. Set it in the environment or in ~/.abx/config.", k.env[0], v.Where))
			delete(project, k.key)
		}
		s.values[k.key] = k.first(o, project, file)
	}
	key := s.values[APIKey]
	for _, k := range keys {
		v := s.values[k.key]
		if !k.endpoint || v.Source != Project || key.Text == "" || key.Source == Project {
			continue
		}
		s.Warnings = append(s.Warnings, fmt.Sprintf("%s in %s is ignored: the API key comes from %s, and a project's file must not say where it is sent.", envOf(k.key), v.Where, key.From()))
		s.values[k.key] = k.first(o, nil, file)
	}
	return s, s.check()
}

// first is k's value of the first source that has one.
func (k *spec) first(o Options, project, file map[Key]Value) Value {
	v := Value{Key: k.key}
	if f, ok := o.Flags[k.key]; ok {
		v = f
	} else if e, ok := k.environment(o); ok {
		v = e
	} else if p, ok := project[k.key]; ok {
		v = p
	} else if f, ok := file[k.key]; ok {
		v = f
	}
	v.secret = k.secret
	return v
}

// environment skips variables that are set but empty, unless that means
// something: an empty token closes a server.
func (k *spec) environment(o Options) (Value, bool) {
	for _, name := range k.env {
		if text, ok := o.LookupEnv(name); ok && (text != "" || k.key == AuthToken) {
			return Value{Key: k.key, Text: text, Set: true, Source: Environment, Where: name}, true
		}
	}
	return Value{}, false
}

// check refuses values that are not of their kind.
func (s *Settings) check() error {
	for _, k := range keys {
		v := s.values[k.key]
		if !v.Set || v.Text == "" {
			continue
		}
		if k.kind == number {
			if n, err := strconv.ParseInt(v.Text, 10, 32); err != nil || n < k.least {
				return fmt.Errorf("%s: %q (from %s) is not a whole number from %d on", k.key, v.Text, v.From(), k.least)
			}
		}
		if k.kind == size {
			if _, err := parseSize(v.Text); err != nil {
				return fmt.Errorf("%s: %q (from %s) is no size: give bytes, or a number with KiB, MiB or GiB", k.key, v.Text, v.From())
			}
		}
	}
	if r := s.values[Region]; strings.ContainsFunc(r.Text, func(c rune) bool { return c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') }) {
		return fmt.Errorf("region: %q (from %s) is no region: it has letters, digits and hyphens only", r.Text, r.From())
	}
	return nil
}

// Get returns a setting; Source is Default and Text empty when nothing set it.
func (s *Settings) Get(k Key) Value { return s.values[k] }

// Text returns a setting's text, or def when it is empty.
func (s *Settings) Text(k Key, def string) string {
	if t := s.values[k].Text; t != "" {
		return t
	}
	return def
}

// Number returns a number or a size in bytes, 0 when it is not set.
func (s *Settings) Number(k Key) int64 {
	n, err := parseSize(s.values[k].Text)
	if err != nil {
		return 0
	}
	return n
}

var units = []struct {
	suffix string
	factor int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1},
}

func parseSize(s string) (int64, error) {
	s = strings.TrimSpace(s)
	factor := int64(1)
	for _, u := range units {
		if t, ok := strings.CutSuffix(s, u.suffix); ok {
			s, factor = strings.TrimSpace(t), u.factor
			break
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > 1<<62/factor {
		return 0, errors.New("no size")
	}
	return n * factor, nil
}

func envOf(k Key) string {
	for _, s := range keys {
		if s.key == k {
			return s.env[0]
		}
	}
	return string(k)
}

// Path is where the settings of a user lie below home.
func Path(home string) string { return filepath.Join(home, ".abx", "config") }

// missing reports whether err says that there is no file that can be read, also
// since what should be its folder is none.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOTDIR)
}
