// Package sandbox is the Go client of Agent Sandbox and of every platform that
// speaks the E2B protocol: make a sandbox, run commands and code in it, read
// and write its files, and end it.
//
//	c, err := sandbox.NewClient(sandbox.Config{Domain: "e2b.app", APIKey: key})
//	sb, err := c.Create(ctx, sandbox.Template("code-interpreter-v1"))
//	defer sb.Kill(ctx)
//	res, err := sb.Commands.Run(ctx, "uname -a")
//
// The package is a client only. It starts no sandbox by itself and knows no
// isolation: where the other end is, is decided by [Config]: a platform in the
// cloud, a server of one's own, or an [net/http.RoundTripper] that calls
// handlers in this process.
//
// # What is data and what is an error
//
// A command that ends with a code other than 0, is killed, or runs out of time
// has ended all the same: that is data in [Result] ([Execution] for code), and
// the error is nil. An error means that the call itself did not come to its
// end: the sandbox is gone, the server refused, or ctx ended. Errors are told
// apart by [errors.Is] and the sentinels of this package.
//
// # Contexts, concurrency and closing
//
// A ctx bounds the whole call that takes it, the reading of a returned stream
// included; [Commands.Start] and [Commands.Connect] are the exception: there it
// bounds the start only. [Client], [Sandbox], [Commands], [Files] and [Process]
// are safe for concurrent use. A sandbox is not tied to its handle: it lives
// until it is killed or its lifetime is over, whatever happens to the client.
//
// # Secrets
//
// The API key goes to the control plane only, a sandbox's access token to that
// sandbox only. Neither appears in an error, and redirects are not followed.
package sandbox
