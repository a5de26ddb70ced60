package acceptance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
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
	"conclave/pkg/strict"
	"conclave/subjects"
)

// A broker is killed at each step of a call, again and again, while an agent asks. What changes something never runs
// twice, and whoever asks again under the same name is told what is known.

// brokerSteps are the steps of a call that a crash can divide, in their order.
var brokerSteps = []string{"decided", "entered", "before", "sent", "answered", "learned", "after", "kept"}

// brokerAlone is what [playEnv] says for the process that is killed.
const brokerAlone = "broker alone"

// The part is taken before any test can be: it is a process of its own.
func init() {
	if os.Getenv(playEnv) != brokerAlone {
		return
	}
	if err := runBroker(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// crashToolTimeout is the longest run of a tool here. A broker that comes after a killed one waits so long before it
// says that nobody knows how a call ended.
const crashToolTimeout = 1200 * time.Millisecond

// crashTools are what the killed broker knows. What fs_write does cannot be done twice, fs_read may be, the clock is
// not even in the ledger, and fs_list is not for the agent.
func crashTools() (out []broker.Known) {
	for name, effects := range map[string]policy.Effects{
		"fs_write": policy.Declare(policy.Mutate), "fs_read": policy.Declare(policy.ReadsPrivate),
		"get_datetime": policy.Declare(), "fs_list": policy.Declare(policy.Mutate),
	} {
		facts := policy.Tool{
			Name: name, Zone: "tools", Known: true, Effects: effects, Timeout: crashToolTimeout,
			Act: policy.ActChange, Args: policy.Args{"line": {Role: policy.RoleContent}},
		}
		out = append(out, broker.Known{Tool: facts, Pin: broker.Pin(lineSchema(name))})
	}
	return out
}

func lineSchema(name string) subjects.ToolSchema {
	return subjects.ToolSchema{
		Name: name, Description: "writes a line", Version: "1",
		Parameters: json.RawMessage(
			`{"type":"object","properties":{"line":{"type":"string"},"fail":{"type":"boolean"}},"required":["line"],` +
				`"additionalProperties":false}`),
	}
}

// runBroker is a broker that ends itself by SIGKILL at the step that a line of its input names. It stops when its input
// ends.
func runBroker() error {
	home := bus.Home{Data: os.Getenv(dataEnv), Config: os.Getenv(dataEnv) + "-config"}
	c, err := config.Load(home.Config)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	bs := &bus.Bus{URL: os.Getenv(listenEnv), Keys: home.Keys(), Log: log}
	var mu sync.Mutex
	armed := ""
	spec := actor.Spec{Name: "broker", Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) {
		h, err := audit.LoadHasher(home.HashKey())
		if err != nil {
			return nil, err
		}
		w, err := audit.Open(ctx, audit.Options{
			Account: "broker", Dir: home.Heads(), Log: bus.NewAuditLog(nc),
			Timeout: 2 * time.Second, Retry: 2 * time.Second,
		})
		if err != nil {
			return nil, err
		}
		return broker.New(broker.Config{CallTimeout: crashToolTimeout, AuditTimeout: 5 * time.Second}, c.NewBook(home),
			w, h, crashTools()), nil
	}}
	cfg := c.ActorConfig()
	cfg.Log = log
	cfg.Steps = func(step string) {
		mu.Lock()
		defer mu.Unlock()
		if step == armed {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // nothing happens between the signal and its effect
		}
	}
	s, err := actor.Supervise(context.Background(), spec, bs.Dial, cfg)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		mu.Lock()
		armed = lines.Text()
		mu.Unlock()
		fmt.Fprintln(os.Stdout, "armed")
	}
	return s.Stop()
}

// lineTool is a tool that writes a line for each run.
type lineTool struct {
	name, file string
	mu         sync.Mutex
}

func (w *lineTool) Name() string { return w.name }

func (w *lineTool) Routes() []actor.Route {
	at, err := subjects.ToolEndpoint(w.name)
	if err != nil {
		return nil
	}
	return []actor.Route{actor.Serve(at, func(_ context.Context, in actor.Msg[subjects.ToolOrder],
		_ actor.Out,
	) (subjects.ToolResult, error) {
		var a struct {
			Line string `json:"line"`
			Fail bool   `json:"fail"`
		}
		if err := strict.DecodeJSON(in.Body.Args, &a); err != nil {
			return subjects.ToolResult{}, err
		}
		if a.Fail {
			return subjects.ToolResult{Error: subjects.Faultf(subjects.CodeTool, "the pen is dry")}, nil
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		f, err := os.OpenFile(w.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return subjects.ToolResult{}, err
		}
		_, err = fmt.Fprintf(f, "%s %s\n", w.name, a.Line)
		return subjects.ToolResult{Result: "wrote " + a.Line}, errors.Join(err, f.Close())
	})}
}

func (w *lineTool) Start(ctx context.Context, out actor.Out) error {
	topic, err := subjects.ToolSchemaEvent.With(w.name)
	if err != nil {
		return err
	}
	return actor.Emit(ctx, out, topic, lineSchema(w.name))
}

// Describe lets each broker after the first one find the tool.
func (w *lineTool) Describe() map[string]string {
	d, err := json.Marshal(lineSchema(w.name))
	if err != nil {
		d = nil
	}
	return map[string]string{"definition": string(d)}
}

// brokerHarness is everything but the broker, in this process, and a broker in another.
type brokerHarness struct {
	t        *testing.T
	home     bus.Home
	instance *config.Instance
	file     string
	agent    actor.Out

	cmd    *exec.Cmd
	stdin  io.WriteCloser
	says   *bufio.Scanner
	stderr syncBuffer
}

const brokerCrashManifest = `
types:
  assistant:
    tools: [fs_write, fs_read, get_datetime]
accounts:
  generator: assistant
high_risk: []                  # nobody is there to be asked
monitor_only: [flow.unknown_session] # and nobody has asked anything in these sessions
`

func newBrokerHarness(t *testing.T) *brokerHarness {
	t.Helper()
	d := &brokerHarness{t: t, home: newHome(t), file: filepath.Join(t.TempDir(), "written")}
	d.home.Config = d.home.Data + "-config"
	if err := os.MkdirAll(d.home.Config, 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(d.home.Config, "manifest.yaml"), []byte(brokerCrashManifest))
	writeFile(t, filepath.Join(d.home.Config, "system.yaml"), []byte("listen: 127.0.0.1:0\n"))
	c, err := config.Load(d.home.Config)
	if err != nil {
		t.Fatal(err)
	}
	d.instance = up(t, c, d.home)
	for _, k := range crashTools() {
		w := &lineTool{name: k.Name, file: d.file}
		spec := actor.Spec{
			Name: w.name, Role: subjects.ToolRole(w.name),
			Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return w, nil },
		}
		if err := d.instance.System.Start(t.Context(), spec, d.instance.Bus.Dial, actor.Config{}); err != nil {
			t.Fatal(err)
		}
	}
	if d.agent, err = actor.NewOut(bustest.Dial(t, d.instance.Bus, "generator")); err != nil {
		t.Fatal(err)
	}
	return d
}

// startBroker starts a broker and waits until it serves.
func (d *brokerHarness) startBroker() {
	d.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		d.t.Fatal(err)
	}
	d.cmd = exec.CommandContext(d.t.Context(), exe) // it does not outlive the test
	d.cmd.Env = append(os.Environ(), playEnv+"="+brokerAlone, dataEnv+"="+d.home.Data, listenEnv+"="+d.instance.Bus.URL)
	d.cmd.Stderr = &d.stderr
	if d.stdin, err = d.cmd.StdinPipe(); err != nil {
		d.t.Fatal(err)
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	d.says = bufio.NewScanner(out)
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.expectLine("ready")
}

func (d *brokerHarness) expectLine(word string) {
	d.t.Helper()
	if !d.says.Scan() || d.says.Text() != word {
		d.t.Fatalf("the broker did not say %q: %q\n%s", word, d.says.Text(), d.stderr.String())
	}
}

// armCrash tells the broker where to die.
func (d *brokerHarness) armCrash(step string) {
	d.t.Helper()
	if _, err := fmt.Fprintln(d.stdin, step); err != nil {
		d.t.Fatal(err)
	}
	d.expectLine("armed")
}

// waitForCrash waits for the broker's end, which must be the plug and nothing else.
func (d *brokerHarness) waitForCrash(step string) {
	d.t.Helper()
	late := time.AfterFunc(testTimeout, func() { _ = d.cmd.Process.Signal(syscall.SIGQUIT) })
	defer late.Stop()
	err := d.cmd.Wait()
	status, ok := d.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		d.t.Fatalf("at %s it did not die as it should: %v\n%s", step, err, d.stderr.String())
	}
}

// toolCall is one call of the agent: its name is its query and its line.
type toolCall struct {
	id, tool string
	fail     bool
	step     string // where the broker died while it ran
	alone    bool   // nothing else ran then
	cut      bool   // the broker died on it
	answer   subjects.ToolResult
	again    subjects.ToolResult // asked once more
}

// callTool asks once, and reports whether there was an answer of the broker's.
func (d *brokerHarness) callTool(ctx context.Context, e *toolCall) (subjects.ToolResult, bool) {
	s, err := subjects.ToolRequestService.With(e.tool)
	if err != nil {
		return subjects.ToolResult{Error: subjects.Faultf(subjects.CodeSubject, "%v", err)}, true
	}
	args, err := json.Marshal(map[string]any{"line": e.id, "fail": e.fail})
	if err != nil {
		return subjects.ToolResult{Error: subjects.Faultf(subjects.CodeMalformed, "%v", err)}, true
	}
	ctx, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	res, err := actor.Ask(ctx, d.agent.WithIDs("session-"+e.id, e.id), s,
		subjects.ToolRequest{CallID: e.id, QueryID: e.id, Args: args})
	var fault *subjects.Fault
	switch {
	case err == nil:
		return res, true
	case errors.As(err, &fault):
		res.Error = fault
	default:
		res.Error = subjects.Faultf(subjects.CodeUnavailable, "%v", err)
	}
	return res, actor.IsReplyFault(err)
}

// killAt lets the broker die at a step of these errands, which all run at once, and asks again for each of them.
func (d *brokerHarness) killAt(step string, all []*toolCall) {
	d.t.Helper()
	d.armCrash(step)
	ctx, cancel := context.WithCancel(d.t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for _, e := range all {
		e.step, e.alone = step, len(all) == 1
		wg.Go(func() {
			var answered bool
			e.answer, answered = d.callTool(ctx, e)
			e.cut = !answered
		})
	}
	d.waitForCrash(step)
	cancel() // nobody is there to answer any more
	wg.Wait()
	d.startBroker()
	for _, e := range all {
		wg.Go(func() {
			if e.cut {
				e.answer, _ = d.callTool(d.t.Context(), e)
			}
			e.again, _ = d.callTool(d.t.Context(), e)
		})
	}
	wg.Wait()
}

// stopBroker ends the broker in order.
func (d *brokerHarness) stopBroker() {
	d.t.Helper()
	d.stdin.Close()
	if err := d.cmd.Wait(); err != nil {
		d.t.Errorf("the broker left with %v\n%s", err, d.stderr.String())
	}
}

// newToolCalls are those of the k-th kill: one that changes something, then one that reads, then a crowd.
func newToolCalls(k int) []*toolCall {
	name := func(what string) string { return fmt.Sprintf("%s-%d", what, k) }
	switch k / len(brokerSteps) % 3 {
	case 0:
		return []*toolCall{{id: name("write"), tool: "fs_write"}}
	case 1:
		return []*toolCall{{id: name("read"), tool: "fs_read"}}
	}
	return []*toolCall{
		{id: name("one"), tool: "fs_write"},
		{id: name("two"), tool: "fs_write"},
		{id: name("fails"), tool: "fs_write", fail: true},
		{id: name("reads"), tool: "fs_read"},
		{id: name("looks"), tool: "get_datetime"},
		{id: name("denied"), tool: "fs_list"},
	}
}

// tally is what became of all errands.
type tally struct {
	mu                                sync.Mutex
	calls, cut, done, failed, unknown int
	lines, twice, rereads             int // twice: what changes something, and did so again
	allowed, outcomes, open           int
}

// count runs f alone.
func (s *tally) count(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func TestChaosKillBroker(t *testing.T) {
	t.Parallel()
	stages, kills := 6, 24 // every step with each kind of errand
	if full() {
		stages, kills = 6, 300
	}
	order := rand.New(rand.NewSource(chaosSeed(1))).Perm(kills)
	start := time.Now()
	var sum tally
	t.Cleanup(func() {
		t.Logf("%d kills in %s: %d calls, %d of them cut off: %d done, %d failed or denied, %d unknown; %d lines of "+
			"%d allowed runs, %d changes made twice, %d reads repeated; %d outcomes, %d runs without one",
			kills, time.Since(start).Round(time.Second), sum.calls, sum.cut, sum.done, sum.failed, sum.unknown,
			sum.lines, sum.allowed, sum.twice, sum.rereads, sum.outcomes, sum.open)
	})
	for lane := range stages {
		t.Run(fmt.Sprint(lane), func(t *testing.T) {
			t.Parallel()
			d := newBrokerHarness(t)
			d.startBroker()
			var all []*toolCall
			for i := lane; i < kills; i += stages {
				k := order[i]
				these := newToolCalls(k)
				d.killAt(brokerSteps[k%len(brokerSteps)], these)
				all = append(all, these...)
			}
			last := &toolCall{id: "last", tool: "fs_write"} // and nothing is left over from before
			last.answer, _ = d.callTool(t.Context(), last)
			last.again, _ = d.callTool(t.Context(), last)
			d.stopBroker()
			d.checkCalls(append(all, last), &sum)
		})
	}
}

// checkCalls holds the answers to the lines and both to the audit log.
func (d *brokerHarness) checkCalls(all []*toolCall, sum *tally) {
	d.t.Helper()
	lines := map[string]int{}
	data, err := os.ReadFile(d.file)
	if err != nil {
		d.t.Fatal(err)
	}
	for l := range strings.Lines(string(data)) {
		lines[strings.TrimSpace(l)]++
	}
	rep := verified(d.t, d.home, d.instance.Bus)
	acts := effectsOf(d.t, d.instance.Bus)
	open := 0
	for _, e := range all {
		ran := lines[e.tool+" "+e.id]
		delete(lines, e.tool+" "+e.id)
		open += d.checkCall(e, ran, acts[e.id], sum)
		delete(acts, e.id)
	}
	if len(lines) > 0 || len(acts) > 0 {
		d.t.Errorf("lines %v and acts %v that nobody asked for", lines, acts)
	}
	if open != rep.Unfinished+rep.Pending {
		d.t.Errorf("%d runs without an outcome, the verifier counts %d and %d", open, rep.Unfinished, rep.Pending)
	}
}

// effect is a run that the audit log says was allowed, with its outcomes.
type effect struct{ outcomes []string }

// effectsOf are the runs by the name of their errand.
func effectsOf(t *testing.T, b *bus.Bus) map[string][]*effect {
	t.Helper()
	acts, byID := map[string][]*effect{}, map[string]*effect{}
	for _, m := range bustest.ReadAuditLog(t, b) {
		for _, rec := range decoded(t, m) {
			switch {
			case rec.Phase == subjects.AuditBefore && rec.Status == subjects.StatusAllowed:
				if byID[rec.ID] != nil {
					t.Errorf("%s was allowed twice under one id", rec.Query)
				}
				byID[rec.ID] = &effect{}
				acts[rec.Query] = append(acts[rec.Query], byID[rec.ID])
			case rec.Phase == subjects.AuditAfter && byID[rec.ID] == nil:
				t.Errorf("%s has an outcome and was never allowed", rec.Query)
			case rec.Phase == subjects.AuditAfter:
				byID[rec.ID].outcomes = append(byID[rec.ID].outcomes, rec.Status)
			}
		}
	}
	return acts
}

// checkCall checks one errand, and returns how many of its runs have no outcome on record.
func (d *brokerHarness) checkCall(e *toolCall, lines int, acts []*effect, sum *tally) (open int) {
	d.t.Helper()
	t := d.t
	end := "done"
	switch {
	case e.answer.Error == nil:
	case slices.Contains([]string{subjects.CodeUncertain, subjects.CodeTimeout}, e.answer.Error.Code):
		end = "unknown"
	case slices.Contains([]string{subjects.CodeTool, subjects.CodeDenied}, e.answer.Error.Code):
		end = "failed"
	default:
		t.Errorf("%s ended in neither of the three: %v", e.id, e.answer.Error)
	}
	mutates, ok := e.tool == "fs_write", 0
	for _, a := range acts {
		switch len(a.outcomes) {
		case 0:
			open++
		case 1:
			if a.outcomes[0] == subjects.StatusOK {
				ok++
			}
		default:
			t.Errorf("%s: one run with the outcomes %v", e.id, a.outcomes)
		}
	}
	switch {
	case mutates && lines > 1:
		t.Errorf("%s, killed at %s: written %d times", e.id, e.step, lines)
	case mutates && len(acts) > 1:
		t.Errorf("%s, killed at %s: allowed %d times", e.id, e.step, len(acts))
	case lines > len(acts):
		t.Errorf("%s, killed at %s: %d lines and %d records: something ran unaudited", e.id, e.step, lines, len(acts))
	case end == "done" && (lines == 0 || mutates && lines != 1 || ok == 0):
		t.Errorf("%s, killed at %s: done, with %d lines and %d good outcomes", e.id, e.step, lines, ok)
	case end == "failed" && (lines > 0 || ok > 0):
		t.Errorf("%s, killed at %s: failed, with %d lines and %d good outcomes", e.id, e.step, lines, ok)
	case e.tool == "fs_list" && (end != "failed" || len(acts) > 0):
		t.Errorf("%s is not for the agent: %s, allowed %d times", e.id, end, len(acts))
	case open > 1 || open > 0 && !e.cut:
		t.Errorf("%s, killed at %s, cut off %v: %d runs without an outcome", e.id, e.step, e.cut, open)
	case e.answer.Error == nil && mutates && !reflect.DeepEqual(e.again, e.answer):
		t.Errorf("%s: asked again it says %+v, before %+v", e.id, e.again, e.answer)
	case end == "unknown" && mutates && (e.again.Error == nil || e.again.Error.Code != subjects.CodeUncertain):
		t.Errorf("%s: nobody knew how it ended, and now it says %+v", e.id, e.again)
	case e.alone && end != expectedOutcome(e):
		t.Errorf("%s, killed at %s with nothing beside it: %s, want %s: %v", e.id, e.step, end, expectedOutcome(e),
			e.answer.Error)
	case e.step == "" && end != "done":
		t.Errorf("%s, with nobody killed: %v", e.id, e.answer.Error)
	}
	sum.count(func() {
		sum.calls++
		sum.lines += lines
		sum.allowed += len(acts)
		sum.outcomes += len(acts) - open
		sum.open += open
		if e.cut {
			sum.cut++
		}
		if e.tool == "fs_read" {
			sum.rereads += max(0, lines-1)
		}
		if mutates {
			sum.twice += max(0, lines-1)
		}
		switch end {
		case "done":
			sum.done++
		case "failed":
			sum.failed++
		case "unknown":
			sum.unknown++
		}
	})
	return open
}

// expectedOutcome is how an errand ends when the broker died on it and on nothing else. What only reads is done again.
// What changes something is done when it had not begun, or when its end was written down.
func expectedOutcome(e *toolCall) string {
	if e.tool == "fs_read" || e.step == "decided" || e.step == "kept" {
		return "done"
	}
	return "unknown"
}
