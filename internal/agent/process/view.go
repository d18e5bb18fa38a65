//go:build linux

package process

import (
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	pb "github.com/agent-sandbox/abx/internal/e2b/process"
)

// shortCommand is how long events are held back at most after a start, so that
// those of a short command leave together.
const shortCommand = 5 * time.Millisecond

// view is one client's stream of a job.
type view struct {
	job       *job
	watcher   *watcher
	ours      bool // the client knows the fields abx_*
	keepalive time.Duration
	deadline  <-chan time.Time // ends the stream, not the job; nil: never
	writer    *heldWriter
	send      func(*pb.ProcessEvent) error
}

// run sends start, output and end, or returns when the client is gone.
func (v *view) run(ctx context.Context) error {
	err := v.send(&pb.ProcessEvent{Event: &pb.ProcessEvent_Start{Start: &pb.ProcessEvent_StartEvent{Pid: uint32(v.job.process.PID())}}})
	if err != nil {
		return err
	}
	quiet := time.NewTimer(v.keepalive)
	defer quiet.Stop()
	short := time.NewTimer(shortCommand)
	defer short.Stop()
	for last := false; ; {
		chunks := v.watcher.take()
		for _, c := range chunks {
			if err := v.data(c.stream, c.data); err != nil {
				return err
			}
		}
		if last && len(chunks) == 0 {
			return v.finish()
		}
		if len(chunks) > 0 {
			quiet.Reset(v.keepalive)
		}
		select {
		case <-v.watcher.wake:
		case <-v.job.ended:
			last = true // all has been put; once more for what came since
		case <-short.C:
			v.writer.release()
		case <-quiet.C:
			if err := v.send(v.progress()); err != nil {
				return err
			}
			quiet.Reset(v.keepalive)
		case <-v.deadline:
			return connect.NewError(connect.CodeDeadlineExceeded, fmt.Errorf("time limit of the stream reached; process %d goes on", v.job.process.PID()))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// data sends output in pieces of a pipe's chunk.
func (v *view) data(stream int, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), pipeChunk)
		if err := v.send(dataEvent(stream, p[:n])); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// finish sends what windows owe, then the end. Where envd's own clients expect
// an error for a time limit, they get one; a window asks for the whole story.
func (v *view) finish() error {
	windows := v.watcher.windows
	if v.job.timedOut && !v.ours {
		return connect.NewError(connect.CodeDeadlineExceeded, fmt.Errorf("time limit of %v reached; process %d was killed", v.job.timeout, v.job.process.PID()))
	}
	end := v.job.end
	if windows != nil {
		end = proto.CloneOf(end)
		files := []*string{&end.AbxStdoutFile, &end.AbxStderrFile}
		for i, w := range windows {
			stream := i
			if v.job.tty != nil {
				stream = streamTTY
			}
			if err := v.data(stream, w.Finish()); err != nil {
				return err
			}
			*files[i] = w.File()
			if w.Partial() {
				end.AbxDetail = strings.TrimPrefix(end.AbxDetail+"; ", "; ") + "the disk was full: " + w.File() + " lacks the end of the output"
			}
		}
	}
	return v.send(&pb.ProcessEvent{Event: &pb.ProcessEvent_End{End: end}})
}

// progress is a keepalive; through a window it tells how far the job is.
func (v *view) progress() *pb.ProcessEvent {
	alive := &pb.ProcessEvent_KeepAlive{}
	if win := v.watcher.window(int(v.watcher.newest.Load())); win != nil {
		alive.AbxLine = win.NewestLine()
	}
	if v.ours {
		alive.AbxStdoutBytes = uint64(v.job.totals[streamOut].Load())
		alive.AbxStderrBytes = uint64(v.job.totals[streamErr].Load())
	}
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_Keepalive{Keepalive: alive}}
}

func dataEvent(stream int, p []byte) *pb.ProcessEvent {
	data := &pb.ProcessEvent_DataEvent{}
	switch stream {
	case streamOut:
		data.Output = &pb.ProcessEvent_DataEvent_Stdout{Stdout: p}
	case streamErr:
		data.Output = &pb.ProcessEvent_DataEvent_Stderr{Stderr: p}
	default:
		data.Output = &pb.ProcessEvent_DataEvent_Pty{Pty: p}
	}
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_Data{Data: data}}
}
