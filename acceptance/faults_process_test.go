package acceptance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/broker"
	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// faultPart begins the value of [playEnv] for a process of the fault suite; the names of its actors follow.
const faultPart = "faults "

// faultFileEnv is the file to which the tool of the fault suite appends a line for each run.
const faultFileEnv = "CONCLAVE_TEST_FILE"

func init() {
	names, ok := strings.CutPrefix(os.Getenv(playEnv), faultPart)
	if !ok {
		return
	}
	if err := runFaultActors(strings.Split(names, ",")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// faultControls are what the parent changes in a running process, by lines on its input.
type faultControls struct {
	clock atomic.Int64 // nanoseconds by which the clock is wrong
	slow  atomic.Int64 // nanoseconds that the tool takes
}

// runFaultActors runs actors against the server at [listenEnv] until its input ends. It starts them again while the
// server is away, as a service manager does.
func runFaultActors(names []string) error {
	home := bus.Home{Data: os.Getenv(dataEnv), Config: os.Getenv(dataEnv) + "-config"}
	c, err := config.Load(home.Config)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	lines := make(chan string)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- in.Text()
		}
	}()
	if names[0] == machinePart {
		return runFaultMachine(c, home, log, lines)
	}
	var controls faultControls
	specs, err := faultSpecs(c, home, names, &controls)
	if err != nil {
		return err
	}
	b := &bus.Bus{URL: os.Getenv(listenEnv), Keys: home.Keys(), Log: log}
	cfg := c.ActorConfig()
	cfg.Log = log
	cfg.Now = func() time.Time { return time.Now().Add(time.Duration(controls.clock.Load())) }
	var system actor.System
	var early []string // lines that came before the actors were ready
	for _, spec := range specs {
		for {
			err := system.Start(context.Background(), spec, b.Dial, cfg)
			if err == nil {
				break
			}
			select {
			case line, open := <-lines:
				if !open {
					return err
				}
				early = append(early, line)
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
	fmt.Fprintln(os.Stdout, "ready")
	for _, line := range early {
		controls.apply(line)
	}
	for line := range lines {
		controls.apply(line)
	}
	return system.Stop()
}

// apply does what a line of the parent says.
func (c *faultControls) apply(line string) {
	var n int64
	switch {
	case line == "stats":
		files, _ := os.ReadDir("/proc/self/fd")
		fmt.Fprintln(os.Stdout, runtime.NumGoroutine(), len(files))
	case scanned(line, "clock %d", &n):
		c.clock.Store(n)
	case scanned(line, "slow %d", &n):
		c.slow.Store(n)
	}
}

func scanned(line, format string, n *int64) bool {
	_, err := fmt.Sscanf(line, format, n)
	return err == nil
}

// faultSpecs are the actors of this build, except the tool, which counts, and the broker, which knows it.
func faultSpecs(c config.Config, home bus.Home, names []string, controls *faultControls) ([]actor.Spec, error) {
	switch names[0] {
	case "tool":
		w := &countingTool{file: os.Getenv(faultFileEnv), controls: controls}
		return []actor.Spec{{
			Name: "fs_write", Role: "tool_fs_write",
			Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return w, nil },
		}}, nil
	case "broker":
		facts := policy.Tool{
			Name: "fs_write", Zone: "tools", Known: true, Effects: policy.Declare(policy.Mutate),
			Timeout: faultToolTimeout, Act: policy.ActChange, Args: policy.Args{"line": {Role: policy.RoleContent}},
		}
		known := broker.Known{Tool: facts, Pin: broker.Pin(fileToolSchema)}
		return []actor.Spec{{Name: "broker", Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) {
			h, err := audit.LoadHasher(home.HashKey())
			if err != nil {
				return nil, err
			}
			now := func() time.Time { return time.Now().Add(time.Duration(controls.clock.Load())) }
			w, err := audit.Open(ctx, audit.Options{
				Account: "broker", Dir: home.Heads(), Log: bus.NewAuditLog(nc),
				Timeout: 2 * time.Second, Retry: 4 * time.Second, Now: now,
			})
			if err != nil {
				return nil, err
			}
			return broker.New(broker.Config{CallTimeout: faultToolTimeout, AuditTimeout: 6 * time.Second},
				c.NewBook(home), w, h, []broker.Known{known}), nil
		}}}, nil
	}
	return c.Compose(home, names...)
}

// faultToolTimeout is the longest run of the tool.
const faultToolTimeout = 5 * time.Second

// countingTool appends a line for each run, then takes as long as the test says.
type countingTool struct {
	file     string
	controls *faultControls
	mu       sync.Mutex
}

func (w *countingTool) Name() string { return "fs_write" }

func (w *countingTool) Routes() []actor.Route {
	at, err := subjects.ToolEndpoint("fs_write")
	if err != nil {
		return nil
	}
	return []actor.Route{actor.Serve(at, func(ctx context.Context, in actor.Msg[subjects.ToolOrder],
		_ actor.Out,
	) (subjects.ToolResult, error) {
		var a struct{ Line string }
		if err := json.Unmarshal(in.Body.Args, &a); err != nil {
			return subjects.ToolResult{}, err
		}
		if err := w.appendLine(a.Line); err != nil {
			return subjects.ToolResult{}, err
		}
		select {
		case <-time.After(time.Duration(w.controls.slow.Load())):
		case <-ctx.Done():
		}
		return subjects.ToolResult{Result: "wrote " + a.Line}, nil
	})}
}

func (w *countingTool) appendLine(line string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	f, err := os.OpenFile(w.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, line)
	return errors.Join(err, f.Close())
}

func (w *countingTool) Start(ctx context.Context, out actor.Out) error {
	topic, err := subjects.ToolSchemaEvent.With("fs_write")
	if err != nil {
		return err
	}
	return actor.Emit(ctx, out, topic, fileToolSchema)
}

// Describe lets each broker after the first one find the tool.
func (w *countingTool) Describe() map[string]string {
	d, err := json.Marshal(fileToolSchema)
	if err != nil {
		d = nil
	}
	return map[string]string{"definition": string(d)}
}

// faultProcess is a process of the suite. It reaches the server over a link of its own.
type faultProcess struct {
	t     *testing.T
	names string
	env   []string
	link  *bustest.Link

	cmd    *exec.Cmd
	stdin  io.WriteCloser
	says   chan string
	stderr *syncBuffer
	before processStats // before the faults
}

// processStats are what a process holds.
type processStats struct{ id, goroutines, files int }

// readStats waits until the actors of the process are ready and returns what it holds.
func (p *faultProcess) readStats() processStats {
	p.t.Helper()
	p.send("stats")
	line := p.waitForLine()
	for line == "ready" {
		line = p.waitForLine()
	}
	s := processStats{id: p.cmd.Process.Pid}
	if _, err := fmt.Sscan(line, &s.goroutines, &s.files); err != nil {
		p.t.Fatalf("%s says %q", p.names, line)
	}
	return s
}

// start starts the process and does not wait for it.
func (p *faultProcess) start() {
	p.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	p.cmd = exec.Command(exe)
	p.cmd.Env = append(append(os.Environ(), p.env...), playEnv+"="+faultPart+p.names, listenEnv+"=nats://"+
		p.link.Addr())
	p.cmd.Stderr = p.stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		p.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	says := make(chan string, 64)
	p.says = says
	go func() {
		defer close(says)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			says <- lines.Text()
		}
	}()
}

// kill is kill -9.
func (p *faultProcess) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed: that is its error
	p.cmd = nil
}

func (p *faultProcess) restart() {
	p.kill()
	p.start()
}

// signal sends a signal to the process; one that has ended meanwhile is the concern of the test's end.
func (p *faultProcess) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// send sends a line to the process, which reads it when it is ready.
func (p *faultProcess) send(format string, v ...any) { _, _ = fmt.Fprintf(p.stdin, format+"\n", v...) }

// waitForLine waits for a line of the process.
func (p *faultProcess) waitForLine() string {
	p.t.Helper()
	select {
	case line, ok := <-p.says:
		if !ok {
			p.t.Fatalf("%s has ended:\n%s", p.names, p.stderr.String())
		}
		return line
	case <-time.After(2 * time.Minute):
		p.t.Fatalf("%s says nothing:\n%s", p.names, p.stderr.String())
		return ""
	}
}
