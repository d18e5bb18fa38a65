// Package e2b is the wire that everything of ours speaks: the REST types of
// the control plane, the names and headers by which a request finds a port in
// a sandbox, the lines of the code interpreter, and (generated below it) the
// Connect services of the agent. It holds nouns and their encoding only: no
// client, no server, no policy.
//
// Its one invariant: what E2B's SDKs send and read is never changed in meaning.
// Our own additions are optional and stand under one prefix: headers "Abx-*",
// JSON keys "abx", and protobuf fields abx_* numbered from 1000.
package e2b
