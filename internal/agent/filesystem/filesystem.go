//go:build linux

package filesystem

import (
	"errors"
	"log/slog"
	"net/http"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/abx/internal/agent/account"
	"github.com/agent-sandbox/abx/internal/e2b/filesystem/filesystemconnect"
)

// Operations that Options.Signature is asked about.
const (
	OpRead  = "read"
	OpWrite = "write"
)

// Defaults of Options.
const (
	DefaultMaxWatchers    = 64
	DefaultMaxWatchedDirs = 32768
)

// Options say what a Service serves. The zero value serves the whole file
// system to anyone, as the users of /etc/passwd.
type Options struct {
	Book account.Book
	// DefaultUser names the user of a request that names none. nil: account.UserName.
	// A request acts with the rights of its user. Where Book is Single, or the
	// process may not change its ids, these are the process's, without its
	// capabilities.
	DefaultUser func() string
	// DefaultDir is the directory an empty path means. nil: the user's home.
	DefaultDir func(account.Account) string
	// Signature checks the token or signature of a request to /files; its
	// error is told with 401. nil lets everyone in: then the caller checks.
	// The Connect service never asks it.
	Signature func(r *http.Request, op string) error
	// Root is the directory that "/" means. Empty: "/".
	Root string
	// MaxFile is the most bytes one uploaded file may have; 0: as many as the disk holds.
	MaxFile int64
	// MaxWatchers is how many watches, streamed and polled, may be open at
	// once; 0: DefaultMaxWatchers.
	MaxWatchers int
	// MaxWatchedDirs is how many directories they may watch altogether; 0:
	// DefaultMaxWatchedDirs. The kernel's fs.inotify.max_user_watches may be lower.
	MaxWatchedDirs int
	Logger         *slog.Logger // nil: nothing is logged
}

// Service serves files. It is safe for concurrent use.
type Service struct {
	opts Options
	log  *slog.Logger
	*rights
	tree *tree // used within as only
	hub  *hub
	poll pollers
}

// New makes a Service. The calling thread must have the ids and capabilities
// that all threads have from now on, and the process its final umask: files are
// made with mode 0666, directories with 0755, less that. The caller ends the
// Service with Close.
func New(opts Options) *Service {
	if opts.DefaultUser == nil {
		opts.DefaultUser = func() string { return account.UserName }
	}
	if opts.DefaultDir == nil {
		opts.DefaultDir = func(a account.Account) string { return a.Home }
	}
	if opts.Root == "" {
		opts.Root = "/"
	}
	if opts.MaxWatchers <= 0 {
		opts.MaxWatchers = DefaultMaxWatchers
	}
	if opts.MaxWatchedDirs <= 0 {
		opts.MaxWatchedDirs = DefaultMaxWatchedDirs
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	t, r := newTree(opts.Root), newRights(opts.Book.Single, opts.Logger)
	return &Service{
		opts:   opts,
		log:    opts.Logger,
		rights: r,
		tree:   t,
		hub:    newHub(t, r, opts),
	}
}

// as returns what do does, done with the rights of a.
func as[T any](s *Service, a account.Account, do func() (T, error)) (result T, err error) {
	err = s.refused(a, s.rights.as(a, func() (err error) {
		result, err = do()
		return err
	}))
	return result, err
}

func (s *Service) as(a account.Account, do func() error) error {
	return s.refused(a, s.rights.as(a, do))
}

// maxMessage bounds a request of the Connect service, in bytes.
const maxMessage = 1 << 20

// Handler returns the Connect service and the path it is served under.
func (s *Service) Handler() (path string, h http.Handler) {
	return filesystemconnect.NewFilesystemHandler(rpc{s},
		connect.WithCompression("gzip", nil, nil), // the way to the host is memory or a socket: it would only cost time
		connect.WithReadMaxBytes(maxMessage),
	)
}

// Files returns the handler of GET, HEAD and POST /files and of POST
// /files/compose.
func (s *Service) Files() http.Handler {
	return http.HandlerFunc(s.serveFiles)
}

// Close ends all watches and waits until none is left. Calls in flight go on;
// new watches are refused. It may be called more than once.
func (s *Service) Close() error {
	return s.hub.close()
}

// user finds the user a request names, the default one when name is empty.
func (s *Service) user(name string) (account.Account, error) {
	if name == "" {
		name = s.opts.DefaultUser()
	}
	a, err := s.opts.Book.Lookup(name)
	if errors.Is(err, account.ErrUnknown) {
		return a, &fault{kind: kindUser, text: err.Error(), err: err}
	}
	return a, err
}

// userOf finds the user in an Authorization header of the Basic kind. The
// password is not looked at.
func (s *Service) userOf(h http.Header) (account.Account, error) {
	if h.Get("Authorization") == "" {
		return s.user("")
	}
	name, _, ok := (&http.Request{Header: h}).BasicAuth()
	if !ok {
		return account.Account{}, faultf(kindUser, "the Authorization header must be of the Basic kind and name a user of the sandbox")
	}
	return s.user(name)
}

// resolve turns the path of a request by a into an absolute one.
func (s *Service) resolve(p string, a account.Account) (string, error) {
	return resolve(p, a.Home, s.opts.DefaultDir(a))
}

func (s *Service) openRead(p string, a account.Account) (*opened, error) {
	return as(s, a, func() (*opened, error) { return s.tree.openRead(p) })
}
