package sandbox

import (
	"strconv"
	"time"

	"github.com/agent-sandbox/abx/internal/e2b"
)

// DownloadURL returns a URL from which everyone who has it can read the file
// until it expires: a secret for as long. It is not checked that the file is
// there. Behind a SandboxURL it leads to the right sandbox only on a server of
// ours.
//
// Options: [Expires] (default: never), [User].
func (f *Files) DownloadURL(path string, opts ...FileOption) (string, error) {
	set, err := newFileSettings("download URL", path, usedExpires, opts)
	if err != nil {
		return "", err
	}
	return f.signed(path, e2b.OpRead, set), nil
}

// UploadURL returns a URL to which everyone who has it can POST the file until
// it expires, as application/octet-stream or as a form with a part "file". It
// is a secret for as long. For the rest see [Files.DownloadURL].
func (f *Files) UploadURL(path string, opts ...FileOption) (string, error) {
	set, err := newFileSettings("upload URL", path, usedExpires, opts)
	if err != nil {
		return "", err
	}
	return f.signed(path, e2b.OpWrite, set), nil
}

func (f *Files) signed(path, operation string, set *fileSettings) string {
	query := f.query(path, set.user)
	if f.sb.token != "" {
		var expires int64
		if set.expires > 0 {
			expires = time.Now().Add(set.expires + time.Second - 1).Unix()
			query.Set("signature_expiration", strconv.FormatInt(expires, 10))
		}
		query.Set("signature", e2b.Sign(path, operation, query.Get("username"), f.sb.token, expires))
	}
	u := *f.sb.base(e2b.PortAgent)
	u.Path += "/files"
	u.RawQuery = query.Encode()
	return u.String()
}
