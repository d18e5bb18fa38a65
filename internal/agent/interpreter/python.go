//go:build linux

package interpreter

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/abx/internal/agent/process"
)

// frameBytes is the most that a kernel may say at once. The driver keeps
// results below 5 MiB.
const frameBytes = 8 << 20

type pythonDriver struct{}

func (pythonDriver) program(env []string) (string, error) {
	return lookPath(env, "python3", "python")
}

func (pythonDriver) open(o place) (_ link, err error) {
	var l link
	defer func() {
		if err != nil {
			closeAll(append(l.lent, append(l.files, l.stdout, l.stderr)...))
		}
	}()
	// in, out, stdout, stderr: the kernel's end first.
	var theirs, ours [4]*os.File
	for i := range theirs {
		theirs[i], ours[i], err = newPipe(i == 0)
		if err != nil {
			return link{}, err
		}
		l.lent, l.files = append(l.lent, theirs[i]), append(l.files, ours[i])
	}
	in, out := ours[0], ours[1]
	// No -I: a PYTHONPATH or PYTHONUSERBASE of the sandbox, and the user's own
	// site-packages, hold for its cells as for its scripts.
	l.command = process.Command{
		Path: o.program, Args: []string{filepath.Join(o.driverDir, "kernel.py")},
		Stdout: theirs[2], Stderr: theirs[3], Extra: []*os.File{theirs[0], theirs[1]},
	}
	l.stdout, l.stderr, l.files = ours[2], ours[3], ours[:2]
	l.send = func(c cell) error { return sendFrame(in, c) }
	l.next = func() (event, error) { return readFrame(out) }
	return l, nil
}

// newPipe makes a pipe. The kernel reads its end when input is set.
func newPipe(input bool) (theirs, ours *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("pipe for kernel: %w", err)
	}
	t, o := p[1], p[0]
	if input {
		t, o = o, t
	}
	if err := unix.SetNonblock(o, true); err != nil {
		_ = unix.Close(t)
		_ = unix.Close(o)
		return nil, nil, fmt.Errorf("pipe for kernel: %w", err)
	}
	return os.NewFile(uintptr(t), "kernel"), os.NewFile(uintptr(o), "kernel"), nil
}

func sendFrame(w io.Writer, c cell) error {
	body, err := json.Marshal(struct {
		ID    int               `json:"id"`
		Code  string            `json:"code"`
		Name  string            `json:"name"`
		Env   map[string]string `json:"env,omitempty"`
		Set   map[string]string `json:"set,omitempty"`
		Unset []string          `json:"unset,omitempty"`
		Dir   string            `json:"dir,omitempty"`
	}{c.ID, c.Code, "<cell " + strconv.Itoa(c.ID) + ">", c.Env, c.Set, c.Unset, c.Dir})
	if err != nil {
		return err
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	_, err = w.Write(append(frame, body...))
	return err
}

// readFrame reads one message. Whatever it is given, it takes no more than
// frameBytes of memory.
func readFrame(r io.Reader) (event, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return event{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > frameBytes {
		return event{}, fmt.Errorf("message of %d bytes, more than %d", n, frameBytes)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return event{}, err
	}
	var e event
	if err := json.Unmarshal(body, &e); err != nil {
		return event{}, fmt.Errorf("message that is not ours: %w", err)
	}
	return e, nil
}
