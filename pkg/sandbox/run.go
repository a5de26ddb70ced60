//go:build linux && (amd64 || arm64)

package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Run runs a program and returns its result when every process that it started is gone. The end of ctx kills them. It
// fails with [ErrUnavailable] where [SelfTest] does, and with other errors when the program did not start; a program
// that fails or exceeds a limit is a result.
func Run(ctx context.Context, s Spec) (Result, error) {
	defer s.Pipes.close()
	if err := SelfTest(ctx); err != nil {
		return Result{}, err
	}
	return run(ctx, s)
}

// run is [Run] without the self-test.
func run(ctx context.Context, s Spec) (_ Result, failed error) {
	if err := s.validate(); err != nil {
		return Result{}, err
	}
	if err := checkOnDisk(s); err != nil {
		return Result{}, err
	}
	mounts, err := checkOutside(ctx, s)
	if err != nil {
		return Result{}, err
	}
	owner, err := chooseUser()
	if err != nil {
		return Result{}, err
	}
	if owner != nil {
		if err := checkSearchable(s.Dir); err != nil {
			return Result{}, err
		}
	}
	work, err := os.OpenRoot(s.Dir)
	if err != nil {
		return Result{}, fmt.Errorf("opening the working folder: %w", err)
	}
	defer work.Close()
	if owner != nil {
		giveBack, err := lendFolder(ctx, work, *owner)
		if err != nil {
			return Result{}, fmt.Errorf("preparing the working folder: %w", err)
		}
		defer func() {
			if back := giveBack(); back != nil && failed == nil {
				failed = fmt.Errorf("taking the working folder back: %w", back)
			}
		}()
	}
	defer func() { // a program may open its folder to other users
		if err := os.Chmod(s.Dir, 0o700); err != nil && failed == nil {
			failed = fmt.Errorf("closing the working folder to other users: %w", err)
		}
	}()
	before, err := readFolder(ctx, work, s.Limits.Entries, true)
	if err != nil {
		return Result{}, fmt.Errorf("reading the working folder: %w", err)
	}
	r := &runner{spec: s, owner: owner, mounts: mounts, work: work, done: make(chan struct{})}
	out, err := r.run(ctx)
	if err != nil {
		return Result{}, err
	}
	after, err := readFolder(context.WithoutCancel(ctx), work, s.Limits.Entries, true)
	if err != nil {
		return Result{}, fmt.Errorf("reading the working folder: %w", err)
	}
	out.Changed = after.changedSince(before, s.Dir)
	return out, nil
}

// checkOnDisk rejects a folder whose path contains a symlink: bubblewrap would follow it to a folder that nobody has
// checked.
func checkOnDisk(s Spec) error {
	paths := slices.Concat([]string{s.Dir}, s.ReadOnly, s.ReadWrite)
	if s.Socket != "" {
		paths = append(paths, s.Socket)
	}
	for _, path := range paths {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return fmt.Errorf("opening %s: %w", path, err)
		}
		if real != path {
			return fmt.Errorf("sandbox: %s is reached through a symlink; use %s", path, real)
		}
	}
	return nil
}

// runner is one run.
type runner struct {
	spec   Spec
	owner  *syscall.Credential // nil = the user of this process
	mounts mountSet            // those in its further folders when it started; nil = later ones stay outside
	work   *os.Root

	command *exec.Cmd
	group   *group // nil = no control group is writable
	first   int    // process 1 of the sandbox, as this process sees it
	handle  int    // pidfd of first
	output  []byte
	done    chan struct{} // closed when every process is gone

	mu      sync.Mutex
	stopped Stop
}

// run starts the program and waits for it. Process 1 is held before the program starts until it is in its control
// group.
func (r *runner) run(ctx context.Context) (Result, error) {
	f := &files{}
	defer f.close()
	output, outputIn, err := os.Pipe()
	if err != nil {
		return Result{}, err
	}
	defer output.Close()
	defer outputIn.Close()
	status, hold, err := r.prepareCommand(f, outputIn)
	if err != nil {
		return Result{}, err
	}

	began := time.Now()
	exited, err := startOnOwnThread(r.command)
	if err != nil {
		return Result{}, fmt.Errorf("starting bubblewrap: %w", err)
	}
	outputIn.Close()
	f.closeChild()
	r.spec.Pipes.close()

	var reading sync.WaitGroup
	reading.Go(func() { r.readOutput(output) })
	messages := json.NewDecoder(status)
	if !r.openFirst(messages) {
		r.command.Process.Kill()
		<-exited
		reading.Wait()
		return Result{}, launchError(r.output)
	}
	defer unix.Close(r.handle)
	r.group = newGroup(r.spec.Limits)
	defer r.group.remove()
	if err := r.group.add(r.first); err != nil {
		r.group.remove()
		r.group = nil // the limits of the processes and the watch remain
	}

	var watching sync.WaitGroup
	watching.Go(func() { r.watch(ctx) })
	hold.Write([]byte{1}) // an error means that bubblewrap is gone, which exited reports
	hold.Close()

	err = <-exited
	// what the program left running; process 1 ends after all others
	unix.PidfdSendSignal(r.handle, unix.SIGKILL, nil, 0)
	waitForEnd(r.handle)
	close(r.done)
	watching.Wait()
	reading.Wait()

	out := Result{Output: r.output, Duration: time.Since(began), Stopped: r.reason()}
	if out.Stopped == StopNone && r.group.outOfMemory() {
		out.Stopped = StopMemory
	}
	if out.ExitCode, err = r.readExitCode(messages, out.Stopped, err); err != nil {
		return Result{}, err
	}
	return out, nil
}

// prepareCommand sets the command that runs the program in bubblewrap and writes its output to output. Its descriptors
// are in f. bubblewrap reports to status, and holds process 1 until it reads a byte from hold.
func (r *runner) prepareCommand(f *files, output *os.File) (status, hold *os.File, err error) {
	program, err := findBubblewrap()
	if err != nil {
		return nil, nil, err
	}
	args, err := r.arguments(f)
	if err != nil {
		return nil, nil, err
	}
	if status, err = f.fromChild("--json-status-fd"); err != nil {
		return nil, nil, err
	}
	if hold, err = f.toChild("--block-fd"); err != nil {
		return nil, nil, err
	}
	r.command = exec.Command(program, append(append(f.args, args...), r.programArgs()...)...)
	r.command.Env = []string{} // nil would be the environment of this process
	r.command.ExtraFiles = f.child
	r.command.Stdout, r.command.Stderr = output, output
	stdin, err := r.feedStdin(f)
	if err != nil {
		return nil, nil, err
	}
	if stdin != nil {
		r.command.Stdin = stdin
	}
	if p := r.spec.Pipes; p != nil {
		r.command.Stdin, r.command.Stdout = p.In, p.Out
	}
	r.command.SysProcAttr = &syscall.SysProcAttr{Credential: r.owner}
	// what the machine mounts later stays outside; without this right measure stops the program
	if r.owner != nil && maySetMounts() {
		r.command.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
		r.mounts = nil
	}
	return status, hold, nil
}

// openFirst waits until bubblewrap reports process 1 and opens its pidfd, which the caller closes. It reports false
// when there is no process 1.
func (r *runner) openFirst(messages *json.Decoder) bool {
	var started struct {
		First int `json:"child-pid"`
	}
	if err := messages.Decode(&started); err != nil || started.First <= 0 {
		return false
	}
	handle, err := unix.PidfdOpen(started.First, 0)
	if err != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.first, r.handle = started.First, handle
	return true
}

// readExitCode returns the exit code that bubblewrap reported, or that of SIGKILL for a program that was stopped.
// exited is the result of waiting for bubblewrap. It fails when the program never ran.
func (r *runner) readExitCode(messages *json.Decoder, stopped Stop, exited error) (int, error) {
	var ended struct {
		Code *int `json:"exit-code"`
	}
	for ended.Code == nil && messages.Decode(&ended) == nil { // bubblewrap may report more than the exit code
	}
	switch exit := (*exec.ExitError)(nil); {
	case ended.Code != nil:
		return *ended.Code, nil
	case stopped != StopNone:
		return 128 + int(syscall.SIGKILL), nil
	case exited == nil || errors.As(exited, &exit):
		return 0, launchError(r.output) // the output is that of bubblewrap
	}
	return 0, fmt.Errorf("waiting for bubblewrap: %w", exited)
}

// launchError is the error of a sandbox that did not start, with the output of bubblewrap.
func launchError(output []byte) error {
	text := strings.TrimPrefix(strings.TrimSpace(string(output[:min(len(output), 500)])), "bwrap: ")
	return fmt.Errorf("starting the sandbox: %s", cmp.Or(text, "bubblewrap was killed"))
}

// startOnOwnThread starts c. The kernel kills a sandbox with the thread that started it, so that thread is kept for as
// long as c runs. The channel receives the result of waiting for c.
func startOnOwnThread(c *exec.Cmd) (exited <-chan error, err error) {
	result, started := make(chan error, 1), make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		// Descriptors that this process inherited, or that C code opened, are not the program's.
		if err := closeOnExec(); err != nil {
			started <- err
			return
		}
		err := c.Start()
		started <- err
		if err == nil {
			result <- c.Wait()
		}
	}()
	return result, <-started
}

// closeOnExec marks all descriptors of this process but the standard ones so that no child inherits them. Those that a
// child is given are duplicated for it.
func closeOnExec() error {
	if unix.CloseRange(3, ^uint(0)>>1&0xffffffff, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	entries, err := os.ReadDir("/proc/self/fd") // before Linux 5.11
	if err != nil {
		return fmt.Errorf("listing the open descriptors: %w", err)
	}
	for _, e := range entries {
		var fd int
		if _, err := fmt.Sscan(e.Name(), &fd); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// feedStdin returns the standard input of the program, nil for none. Its content is written while the program runs.
func (r *runner) feedStdin(f *files) (*os.File, error) {
	if len(r.spec.Stdin) == 0 {
		return nil, nil // exec uses /dev/null
	}
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	f.stdin, f.parent = in, append(f.parent, out)
	go func() {
		defer out.Close()
		out.Write(r.spec.Stdin) // fails when the program does not read it, which is its choice
	}()
	return in, nil
}

// readOutput collects the output until every writer is gone. Output beyond the limit ends the run; that of a server is
// dropped.
func (r *runner) readOutput(from io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		piece := buffer[:min(n, r.spec.Limits.Output-len(r.output))]
		r.output = append(r.output, piece...)
		if len(piece) > 0 && r.spec.Output != nil {
			r.spec.Output(piece)
		}
		if len(piece) < n && r.spec.Pipes == nil {
			r.stop(StopOutput)
		}
		if err != nil {
			return
		}
	}
}

// stop kills every process of the sandbox. The first reason is the one of the result.
func (r *runner) stop(why Stop) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped == StopNone {
		r.stopped = why
	}
	if r.first > 0 {
		// The kernel kills every process of a namespace with process 1.
		unix.PidfdSendSignal(r.handle, unix.SIGKILL, nil, 0)
	} else {
		r.command.Process.Kill()
	}
}

// reason returns why the run was ended.
func (r *runner) reason() Stop {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stopped
}

// waitForEnd waits until the process is gone. Process 1 of a namespace is the last one in it.
func waitForEnd(pidfd int) {
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
