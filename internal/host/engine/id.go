package engine

import "crypto/rand"

const (
	idAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	idLength   = 20
)

// newID makes a sandbox id: 'i' and 19 random characters of [a-z0-9], about
// 98 bits. It starts with a letter, so that it is a good host name.
func newID() string {
	id := make([]byte, 1, idLength)
	id[0] = 'i'
	const fair = 256 - 256%len(idAlphabet) // bytes from here on would favour the first letters
	var random [2 * idLength]byte
	for len(id) < idLength {
		rand.Read(random[:]) // never fails
		for _, b := range random {
			if int(b) < fair && len(id) < idLength {
				id = append(id, idAlphabet[int(b)%len(idAlphabet)])
			}
		}
	}
	return string(id)
}

// newToken makes a secret of 130 bits.
func newToken() string { return rand.Text() }
