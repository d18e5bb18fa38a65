package host

import (
	"net/http"
	"strings"
)

// announceTrailer prepares the keys that the handler declared, as net/http
// does.
func (c *call) announceTrailer(resp *http.Response) {
	for _, line := range c.header.Values("Trailer") {
		for key := range strings.SplitSeq(line, ",") {
			key = http.CanonicalHeaderKey(strings.TrimSpace(key))
			if key == "" || key == "Content-Length" || key == "Transfer-Encoding" || key == "Trailer" {
				continue
			}
			if resp.Trailer == nil {
				resp.Trailer = http.Header{}
			}
			resp.Trailer[key] = nil
		}
	}
	resp.Header.Del("Trailer")
}

// sendTrailer fills the trailer: before the pipe's end is seen, so before the
// client may look at it.
func (c *call) sendTrailer() {
	trailer := http.Header{}
	for key := range c.response.Trailer {
		trailer[key] = c.header.Values(key)
	}
	for key, values := range c.header {
		if undeclared, ok := strings.CutPrefix(key, http.TrailerPrefix); ok {
			trailer[http.CanonicalHeaderKey(undeclared)] = values
		}
	}
	if len(trailer) > 0 {
		c.response.Trailer = trailer
	}
}
