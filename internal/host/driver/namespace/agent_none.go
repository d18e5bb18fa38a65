//go:build !embedagent

package namespace

// agentBinary is empty in a plain `go build`: this program then starts itself
// as the agent, which is slower but the same code.
var agentBinary []byte
