// Package interpreter is the code interpreter of a sandbox: HTTP with the
// routes, lines and rules of E2B's (port 49999), over one kernel process a
// context. It is not Jupyter: a kernel is the plain interpreter that the
// sandbox has, running a small driver file of ours (folder driver).
//
// # Routes
//
//	GET    /health                  "OK"
//	POST   /execute                 run a cell; the answer is a stream of JSON lines
//	GET    /contexts                all contexts; the default Python one is always there
//	POST   /contexts                make one; its kernel starts with its first cell
//	POST   /contexts/{id}/restart   end its kernel; the next cell gets a new one
//	DELETE /contexts/{id}           end it for good
//
// Refusals are plain text. Cells of one context run one after another, in the
// order of their arrival; contexts run side by side.
//
// # Ends of a cell
//
// The last line, end_of_execution, carries abx (e2b.LineAbx). Its exit code:
//
//	0      the cell ended
//	1      it raised an exception (Python), which an error line tells
//	N      exit(N), sys.exit(N), `exit N`, or the last command's code (shell);
//	       the kernel and its state are kept
//	124    the time limit (Abx-Timeout-Ms) was met. It counts from when the
//	       kernel takes the cell, not while the cell waits for those before it
//	130    it was interrupted otherwise
//	128+S  the kernel was killed by signal S; os._exit(N) gives N
//
// A cell that runs out of time, or whose client goes away, gets SIGINT every
// half second, four times, as do the processes that it started; then its
// kernel is killed. Processes that such a cell leaves are killed too, unless
// they took themselves out of the kernel's session and family. A kernel that
// died is told of by an error line named ContextRestarting and by stateLost,
// at the latest in the next call.
//
// What a cell leaves running (threads, processes) is counted and never waited
// for. What those write between two cells comes first in the next one's output,
// its newest 64 KiB.
//
// # Output files
//
// With Abx-Output-Files: 1 the last line names regular files below
// Options.ScanDirs that the cell made or changed, as their ctime tells, which
// no program can set back. At most 100 are listed, those nearest to the top
// first; caches and installed packages (skipped in files.go) are not looked
// into. A look stops after 20,000 entries or 16 levels: what lies beyond is
// neither listed nor counted.
//
// # Kernels
//
// A kernel's frames are hostile input: what breaks the protocol kills the
// kernel and never hurts the agent. Memory of the agent is bounded, whatever
// a cell prints or shows: output passes in pieces of 64 KiB with back-pressure
// (or through output.Window), a frame has at most 8 MiB, and one is handled
// at a time.
//
// To add a language: a driver file, a type that fills driver (python.go is the
// example), and its names in language.go.
package interpreter
