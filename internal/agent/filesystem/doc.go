// Package filesystem is the part of the agent that reads, changes and watches
// files for a client outside the sandbox: the Connect service
// filesystem.Filesystem and the HTTP routes /files and /files/compose, as
// E2B's envd serves them. It runs nothing and keeps no file of its own.
//
// It acts with the rights of the user a request is for, as a command of that
// user would and no more: calls that name or open a file run on a thread that
// has the user's ids and no capability (type rights), and the kernel decides.
// What is made so is the user's; content is copied over the open descriptor,
// outside. An operation that is denied is permission_denied, or status 403.
//
// All it meets is hostile to it: programs of the sandbox may swap any name for
// another thing at any moment, and the agent's own process is among what there
// is. So its one invariant: a path is walked here, one directory descriptor
// after the other, never handed whole to the kernel. On that walk no link of
// procfs is followed, no directory of the agent's own process is entered,
// nothing is written to a kernel file system, and nothing but a regular file is
// opened for its content; an open never waits.
//
// # Paths
//
// A path is absolute, or relative to the user's home; "~" and "~/x" are the
// home; an empty one is the default directory. It is cleaned as text before
// links are followed. Names that are not UTF-8 are answered with U+FFFD in
// place of the bad bytes; GET and POST /files take their bytes as they are.
//
// # Watches
//
// A rename is told as RENAME of the old name and CREATE of the new one.
// Overflow: when events were lost, one event of type WRITE with the name "."
// stands where they are missing, and the watch goes on; list the directory
// again. (A directory itself is never written otherwise, and E2B's SDKs hand
// this event to the user, while they drop unknown types.) When the watched
// directory itself is removed or moved, REMOVE or RENAME of "." is the last
// event and the watch ends with not_found.
//
// # Differences from envd
//
// Move between file systems is refused instead of failing half way. A failed
// upload leaves no new file behind. In a multipart file name %22, %0A and %0D
// are decoded, as browsers and httpx write them. Remove never crosses a mount
// point. Files act with the rights of their user; envd acts as root and gives
// what it writes to the user, files of others too.
package filesystem
