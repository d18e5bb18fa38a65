package sandbox

import (
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// Defaults of options.
const (
	DefaultTemplate  = "base"
	DefaultLifetime  = 300 * time.Second // of a sandbox
	DefaultTimeout   = 60 * time.Second  // of Run and RunCode; Start has none
	DefaultMaxOutput = 64 << 20          // bytes of a stream kept in a result
)

// Options, by the calls that take them. An option may serve several.
type (
	// A CreateOption is for [Client.Create].
	CreateOption interface{ applyCreate(*createSettings) }
	// A ConnectOption is for [Client.Connect].
	ConnectOption interface{ applyConnect(*connectSettings) }
	// A ListOption is for [Client.List].
	ListOption interface{ applyList(*listSettings) }
	// A RunOption is for [Commands.Run], [Commands.Start] and [Commands.Connect].
	RunOption interface{ applyRun(*runSettings) }
	// A CodeOption is for [Sandbox.RunCode].
	CodeOption interface{ applyCode(*codeSettings) }
	// A CallOption is for commands and for code.
	CallOption interface {
		RunOption
		CodeOption
	}
	// A ContextOption is for [Sandbox.CreateContext].
	ContextOption interface{ applyContext(*e2b.NewContext) }
	// A FileOption is for the calls of [Files]. One that a call cannot heed is
	// refused with ErrInvalid.
	FileOption interface{ applyFile(*fileSettings) }
)

// The types of options that serve several calls.
type (
	// A TimeoutOption is what [Timeout] returns.
	TimeoutOption interface {
		CreateOption
		ConnectOption
		CallOption
	}
	// An EnvOption is what [Env] returns.
	EnvOption interface {
		CreateOption
		CallOption
	}
	// A MetadataOption is what [Metadata] returns.
	MetadataOption interface {
		CreateOption
		ListOption
	}
	// A UserOption is what [User] returns.
	UserOption interface {
		RunOption
		FileOption
	}
	// A CwdOption is what [Cwd] returns.
	CwdOption interface {
		RunOption
		ContextOption
	}
	// A LanguageOption is what [Language] returns.
	LanguageOption interface {
		CodeOption
		ContextOption
	}
	// A LimitOption is what [Limit] returns.
	LimitOption interface {
		ListOption
		FileOption
	}
)

type createSettings struct {
	body     e2b.NewSandbox
	lifetime time.Duration
}

type connectSettings struct{ lifetime time.Duration }

type listSettings struct {
	metadata map[string]string
	states   []string
	limit    int
}

// callSettings are what commands and code have in common.
type callSettings struct {
	timeout    time.Duration // 0: none
	env        map[string]string
	head, tail int // both 0: no window
	maxOutput  int
	onStdout   func([]byte)
	onStderr   func([]byte)
	onProgress func(Progress)
	bad        string // the first option that is wrong
}

func (s *callSettings) check(op string) error {
	switch {
	case s.bad != "":
		return invalid(op, s.bad)
	case s.timeout < 0:
		return invalid(op, fmt.Sprintf("timeout %s is negative; 0 means no limit", s.timeout))
	case s.timeout > math.MaxInt32*time.Millisecond:
		return invalid(op, fmt.Sprintf("timeout %s is longer than 24 days; 0 means no limit", s.timeout))
	}
	return nil
}

type (
	createFunc func(*createSettings)
	listFunc   func(*listSettings)
	callFunc   func(*callSettings)
	runFunc    func(*runSettings)
	codeFunc   func(*codeSettings)
	fileFunc   func(*fileSettings)
)

func (f createFunc) applyCreate(s *createSettings) { f(s) }
func (f listFunc) applyList(s *listSettings)       { f(s) }
func (f callFunc) applyRun(s *runSettings)         { f(&s.callSettings) }
func (f callFunc) applyCode(s *codeSettings)       { f(&s.callSettings) }
func (f runFunc) applyRun(s *runSettings)          { f(s) }
func (f codeFunc) applyCode(s *codeSettings)       { f(s) }
func (f fileFunc) applyFile(s *fileSettings)       { f(s) }

type timeoutOption time.Duration

func (o timeoutOption) applyCreate(s *createSettings)   { s.lifetime = time.Duration(o) }
func (o timeoutOption) applyConnect(s *connectSettings) { s.lifetime = time.Duration(o) }
func (o timeoutOption) applyRun(s *runSettings)         { s.timeout = time.Duration(o) }
func (o timeoutOption) applyCode(s *codeSettings)       { s.timeout = time.Duration(o) }

// Timeout of a new or connected sandbox is its lifetime from now on: more than
// 0, rounded up to whole seconds, default 300 s. Timeout of a command or of
// code is how long it may run before it is killed or interrupted: default 60 s
// for Run and RunCode, none for Start; 0 means no limit.
func Timeout(d time.Duration) TimeoutOption { return timeoutOption(d) }

type envOption map[string]string

func (o envOption) applyCreate(s *createSettings) { s.body.EnvVars = merge(s.body.EnvVars, o) }
func (o envOption) applyRun(s *runSettings)       { s.env = merge(s.env, o) }
func (o envOption) applyCode(s *codeSettings)     { s.env = merge(s.env, o) }

// Env sets environment variables: for everything in a new sandbox, or for one
// command or piece of code. Several add up, later ones winning.
func Env(vars map[string]string) EnvOption { return envOption(vars) }

type metadataOption map[string]string

func (o metadataOption) applyCreate(s *createSettings) { s.body.Metadata = merge(s.body.Metadata, o) }
func (o metadataOption) applyList(s *listSettings)     { s.metadata = merge(s.metadata, o) }

// Metadata labels a new sandbox, or lists only sandboxes with all these labels.
func Metadata(labels map[string]string) MetadataOption { return metadataOption(labels) }

type userOption string

func (o userOption) applyRun(s *runSettings)   { s.user = string(o) }
func (o userOption) applyFile(s *fileSettings) { s.user = string(o) }

// User names the user in the sandbox to act as; the default is the sandbox's own.
func User(name string) UserOption { return userOption(name) }

type cwdOption string

func (o cwdOption) applyRun(s *runSettings)        { s.cwd = string(o) }
func (o cwdOption) applyContext(c *e2b.NewContext) { c.CWD = string(o) }

// Cwd is the working folder of a command or of a new code context. The default
// is the sandbox's own, usually /home/user.
func Cwd(dir string) CwdOption { return cwdOption(dir) }

type languageOption string

func (o languageOption) applyCode(s *codeSettings)      { s.language = string(o) }
func (o languageOption) applyContext(c *e2b.NewContext) { c.Language = string(o) }

// Language of code: python (the default), javascript, typescript, bash, r, and
// what else the template has.
func Language(name string) LanguageOption { return languageOption(name) }

type limitOption int

func (o limitOption) applyList(s *listSettings) { s.limit = int(o) }
func (o limitOption) applyFile(s *fileSettings) { s.limit, s.used = int(o), s.used|usedLimit }

// Limit is the most sandboxes or folder entries that a list returns; 0 means
// no limit.
func Limit(n int) LimitOption { return limitOption(n) }

// Template of a new sandbox by name or id; default "base".
func Template(name string) CreateOption {
	return createFunc(func(s *createSettings) { s.body.TemplateID = name })
}

// Secure says whether a new sandbox asks for its access token; default true.
// Without it everyone who knows the id may use the sandbox.
func Secure(on bool) CreateOption {
	return createFunc(func(s *createSettings) { s.body.Secure = &on })
}

// AllowInternet says whether a new sandbox may reach the internet; default true.
func AllowInternet(on bool) CreateOption {
	return createFunc(func(s *createSettings) { s.body.AllowNet = &on })
}

// AllowOut names hosts, addresses or CIDR blocks that a new sandbox may reach
// in spite of [DenyOut].
func AllowOut(to ...string) CreateOption {
	return createFunc(func(s *createSettings) { network(s).AllowOut = append(network(s).AllowOut, to...) })
}

// DenyOut names addresses or CIDR blocks that a new sandbox may not reach.
func DenyOut(to ...string) CreateOption {
	return createFunc(func(s *createSettings) { network(s).DenyOut = append(network(s).DenyOut, to...) })
}

// AutoPause pauses a new sandbox at the end of its lifetime instead of killing it.
func AutoPause() CreateOption {
	return createFunc(func(s *createSettings) { s.body.AutoPause = true })
}

// Isolation names the least isolation that a new sandbox may have: "auto" (the
// default), "namespace" or "gvisor". Create fails with ErrUnsupported when the
// platform gives less or does not say what it gives.
func Isolation(least string) CreateOption {
	return createFunc(func(s *createSettings) { s.body.Abx = &e2b.NewSandboxAbx{Isolation: least} })
}

// State lists only sandboxes in one of these states, "running" or "paused".
func State(states ...string) ListOption {
	return listFunc(func(s *listSettings) { s.states = append(s.states, states...) })
}

// Window keeps the first head and the last tail bytes of each output stream in
// the result and leaves out what lies between. A server of ours then sends no
// more than that and keeps the whole in a file in the sandbox; from others
// everything is received and dropped here. Both 0 to 16 MiB, not both 0.
func Window(head, tail int) CallOption {
	return callFunc(func(s *callSettings) {
		const most = 16 << 20
		if head < 0 || tail < 0 || head > most || tail > most || head+tail == 0 {
			s.bad = fmt.Sprintf("window of %d and %d bytes: want 0 to %d each, not both 0", head, tail, most)
			return
		}
		s.head, s.tail = head, tail
	})
}

// MaxOutput is how many bytes of each output stream, and of all results of code
// together, a result keeps; results beyond are counted in
// [Execution.ResultsOmitted]. For the streams it counts when there
// is no [Window]: the first half and the last half of them. Default 64 MiB; 0
// keeps nothing, for callers that take all from [OnStdout] and [OnStderr].
func MaxOutput(bytes int) CallOption {
	return callFunc(func(s *callSettings) {
		if bytes < 0 {
			s.bad = fmt.Sprintf("maximum output of %d bytes is negative", bytes)
			return
		}
		s.maxOutput = bytes
	})
}

// OnStdout is called with each piece of standard output (of a terminal: of all
// output) as it comes, cut anywhere. Calls come one after another, before the
// call (or [Process.Wait]) returns; f must not keep p. A slow f slows the
// command down.
func OnStdout(f func(p []byte)) CallOption {
	return callFunc(func(s *callSettings) { s.onStdout = f })
}

// OnStderr is [OnStdout] for standard error.
func OnStderr(f func(p []byte)) CallOption {
	return callFunc(func(s *callSettings) { s.onStderr = f })
}

// OnProgress is called about every two seconds while a long call runs, in turn
// with the output callbacks.
func OnProgress(f func(Progress)) CallOption {
	return callFunc(func(s *callSettings) { s.onProgress = f })
}

// Progress is a sign of life of a running command or piece of code.
type Progress struct {
	Elapsed     time.Duration // since the start
	NewestLine  string        // of the output; may be empty
	StdoutBytes int64         // written until now, also what a window holds back
	StderrBytes int64
}

func merge(into, from map[string]string) map[string]string {
	if into == nil {
		return maps.Clone(from)
	}
	maps.Copy(into, from)
	return into
}

func network(s *createSettings) *e2b.Network {
	if s.body.Network == nil {
		s.body.Network = &e2b.Network{}
	}
	return s.body.Network
}
