// Package control is the socket between a host and the agent of one sandbox: a
// unix SOCK_SEQPACKET pair that the host makes and the agent inherits. It
// carries JSON messages, a file descriptor or several beside each where the
// message says so. It knows neither sandboxes nor HTTP, and it is no data
// plane: bytes of calls go through the connections that it hands over.
//
// The messages, in order:
//
//	host → agent  Setup, once, sent before the agent exists
//	host → agent  Mapped, once, with the cgroup files that it names
//	agent → host  Status, once: ready, or the step that went wrong
//	host → agent  Dial, any number of times, with one end of a socket pair
//	              for the answer
//	agent → that  Answer, once, with the connection's descriptor if it has one
//
// The end of the socket is the end of the sandbox, in both directions: its
// invariant is that neither side outlives the other.
package control

// Setup tells an agent what to make of its new namespaces before it serves.
type Setup struct {
	ID       string // also the host name inside
	Build    string // of the host; an agent of another build refuses
	Single   bool   // one uid is mapped: the agent and its workloads share it
	Trees    []Tree
	Links    []Link
	Dirs     []Dir
	Texts    []Text
	Masks    []string // paths of /proc to hide
	Scratch  string   // a folder of the agent's on a small disk of its own
	Seccomp  []byte   // sock_filter program, in the machine's byte order
	Path     string   // PATH of workloads
	Env      []string // further environment of every workload, "K=V"
	CgroupFD bool     // Files.Work is a v2 folder to clone into, else v1 tasks files to join

	DiskBytes int64 // size of the root; 0: half of the memory, the kernel's default
	OpenFiles int64 // RLIMIT_NOFILE; 0: as it is
	DataBytes int64 // RLIMIT_DATA of each process; 0: none
	Processes int64 // RLIMIT_NPROC; 0: none

	MemoryBytes  int64 // limit in force, for messages only
	ProcessLimit int64 // likewise
}

// Mapped says that the agent's user ids are mapped and its cgroup is there.
type Mapped struct {
	Files []string // names of the descriptors beside the message, in order
}

// Names in Mapped.Files.
const (
	FileSelf       = "self"        // v1: a tasks file for the agent itself to join, several
	FileWork       = "work"        // v1: a tasks file, several; v2: the folder
	FileOOM        = "oom"         // memory.oom_control or memory.events
	FilePids       = "pids"        // pids.events
	FileMemoryPeak = "memory-peak" // memory.max_usage_in_bytes or memory.peak
)

// Tree is a folder or file of the host shown inside, read-only unless Device.
type Tree struct {
	Source, Target string
	Optional       bool // skip when Source cannot be opened
	Device         bool // a device node: writable, and devices work
}

// Link is a symbolic link.
type Link struct{ Target, Path string }

// Dir is a folder to make; parents come first.
type Dir struct {
	Path     string
	Mode     uint32 // with sticky and setgid bits as in unix
	UID, GID int
}

// Text is a small file to write, owned by root inside, mode 0644.
type Text struct{ Path, Content string }

// Status is an agent's one message to its host.
type Status struct {
	Ready bool
	Build string
	Step  string // what was being done when Error came
	Error string
	Errno int // of Error, 0 if it has none
}

// Dial asks for a connection to a port.
type Dial struct{ Port int }

// Answer tells how a Dial went.
type Answer struct {
	Error  string
	Closed bool // nothing listens on the port
}
