package e2b

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
)

// Operations of a signed file URL.
const (
	OpRead  = "read"  // GET /files
	OpWrite = "write" // POST /files
)

// Sign returns the signature query value of a file URL. path and user are the
// raw query values, user empty when absent; expires is in Unix seconds, 0 when
// the URL does not expire.
func Sign(path, op, user, token string, expires int64) string {
	text := path + ":" + op + ":" + user + ":" + token
	if expires != 0 {
		text += ":" + strconv.FormatInt(expires, 10)
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}
