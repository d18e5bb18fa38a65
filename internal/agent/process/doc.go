// Package process starts processes inside a sandbox and serves them as E2B's
// envd does (process.Process over Connect). It is not a shell and keeps no
// output: what nobody watches is read and dropped.
//
// Its parts, from below:
//
//   - Table forks on one thread and reaps; it knows sessions and signals them.
//   - Judge says why a call ended.
//   - a job is one process of a client: its input, its output streams, its end.
//   - a watcher is one client that streams a job, whole or through a window.
//   - Service is the wire.
//
// Its invariant: a call ends when the process that it started ends, not when
// its pipes do. What the pipes hold then is sent, then the end. Whoever still
// holds the pipes finds a reader until the last of them is gone.
//
// Beyond envd's wire, requests may carry Abx-Window (bounded output, and the
// end event even after a timeout) and Abx-Foreground (a client that goes away
// takes its process along); end and keepalive events carry fields abx_*.
package process
