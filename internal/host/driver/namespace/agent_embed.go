//go:build embedagent

package namespace

import _ "embed"

// agentBinary is the separate, small agent that `make build` puts here.
//
//go:embed agent.bin
var agentBinary []byte
