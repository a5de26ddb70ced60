package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"conclave/pkg/datatest"
)

// waitTimeout is how long a test waits for what must come. It is only ever waited for in full by a test that fails.
const waitTimeout = time.Minute

// runtimeEnv configures the Go runtime of the processes of the tests, which run hundreds: one built with the race
// detector waits for a second when it ends, unless told otherwise, and a short command collects garbage for a quarter
// of its processor time.
var runtimeEnv = map[string]string{"GORACE": "atexit_sleep_ms=0", "GOGC": "400"}

// setRuntimeEnv adds [runtimeEnv] to the environment of a script.
func setRuntimeEnv(env *testscript.Env) {
	for name, value := range runtimeEnv {
		env.Setenv(name, value)
	}
}

// output collects what a process writes and lets a test wait for a line.
type output struct {
	mu     sync.Mutex
	text   bytes.Buffer
	grown  chan struct{} // closed when more is there
	closed bool
}

func newOutput() *output { return &output{grown: make(chan struct{})} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	close(o.grown)
	o.grown = make(chan struct{})
	return len(p), nil
}

// finish says that no more will come.
func (o *output) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.closed = true
		close(o.grown)
	}
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// wait returns the first whole line that matches.
func (o *output) wait(pattern string) (string, error) {
	re := regexp.MustCompile(pattern)
	timeout := time.After(waitTimeout)
	for {
		o.mu.Lock()
		text, grown, closed := o.text.String(), o.grown, o.closed
		o.mu.Unlock()
		for _, l := range regexp.MustCompile(`[^\n]*\n`).FindAllString(text, -1) {
			if re.MatchString(l) {
				return l, nil
			}
		}
		if closed {
			return "", fmt.Errorf("it ended without a line that matches %q: %s", pattern, text)
		}
		select {
		case <-grown:
		case <-timeout:
			return "", fmt.Errorf("no line matched %q: %s", pattern, text)
		}
	}
}

// process is a program that a test has started.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr *output
	done           chan struct{}
}

// begin starts a program.
func begin(dir string, env []string, name string, v ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, v...), stdout: newOutput(), stderr: newOutput(), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = dir, env, p.stdout, p.stderr
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.reap()
	return p, nil
}

func (p *process) reap() {
	_ = p.cmd.Wait()
	p.stdout.finish()
	p.stderr.finish()
	close(p.done)
}

// end signals and returns the exit code.
func (p *process) end(s os.Signal) (int, error) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return 0, err
	}
	return p.wait()
}

// wait returns the exit code.
func (p *process) wait() (int, error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(waitTimeout):
		return 0, fmt.Errorf("it does not end: %s", p.stderr)
	}
}

// kill is kill -9.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.done
}

// installation is a home of its own for one test.
type installation struct {
	t    *testing.T
	dir  string
	data string
	env  []string
}

func newInstallation(t *testing.T) *installation {
	t.Helper()
	dir, data := t.TempDir(), datatest.Dir(t)
	if err := writeSystem(filepath.Join(dir, "config", "conclave")); err != nil {
		t.Fatal(err)
	}
	env := []string{
		"HOME=" + dir, "XDG_DATA_HOME=" + data, "XDG_CONFIG_HOME=" + filepath.Join(dir, "config"),
		"XDG_STATE_HOME=" + filepath.Join(dir, "state"),
		"PATH=" + os.Getenv("PATH"), "TERM=xterm",
	}
	for name, value := range runtimeEnv {
		env = append(env, name+"="+value)
	}
	return &installation{t, dir, filepath.Join(data, "conclave"), env}
}

// begin starts a program that ends with the test.
func (p *installation) begin(name string, v ...string) *process {
	p.t.Helper()
	c, err := begin(p.dir, p.env, name, v...)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(c.kill)
	return c
}

// must waits for a line.
func (p *installation) must(o *output, pattern string) string {
	p.t.Helper()
	l, err := o.wait(pattern)
	if err != nil {
		p.t.Fatal(err)
	}
	return l
}

// run runs a program to its end and returns its stdout; the exit code must be the given one.
func (p *installation) run(code int, name string, v ...string) string {
	p.t.Helper()
	c := p.begin(name, v...)
	got, err := c.wait()
	if err != nil || got != code {
		p.t.Fatalf("%s %v: exit code %d, want %d, %v\n%s%s", name, v, got, code, err, c.stdout, c.stderr)
	}
	return c.stdout.String()
}
