package acceptance

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/broker"
	"conclave/actors/generator"
	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// A generator is killed at each of its durable steps, again and again. Every question is answered once, and the tool
// that changes something runs once.

// boundaries are the durable steps of a turn with one tool call, in their order; the number tells the times apart that
// a turn comes by.
var boundaries = []string{
	"turn.start/before 1", "turn.start/after 1", // it is taken up
	"turn.step/before 1", "turn.step/after 1", // the model has asked for the tool
	"turn.step/before 2", "turn.step/after 2", // the tool has answered
	"turn.answer/before 1", "turn.answer/after 1",
	"response/before 1", "response/after 1",
	"dialog/before 1", "dialog/after 1",
	"conversation/before 1", "conversation/after 1",
}

// generatorAlone is what [playEnv] says for it.
const generatorAlone = "generator alone"

// runGenerator is the process that is killed: a generator that ends itself by SIGKILL at the step that a line of its
// input names. It stops when its input ends.
func runGenerator() error {
	c, err := config.Load(os.Getenv(dataEnv) + "-config")
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	b := &bus.Bus{URL: os.Getenv(listenEnv), Keys: bus.Home{Data: os.Getenv(dataEnv)}.Keys(), Log: log}
	var mu sync.Mutex
	armed, left := "", 0
	settings, err := c.Generator.Actor()
	if err != nil {
		return err
	}
	g := generator.New(subjects.Generator, settings)
	spec := actor.Spec{Name: "generator", Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
		return g, nil
	}}
	cfg := c.ActorConfig()
	cfg.Steps = func(step string) {
		mu.Lock()
		defer mu.Unlock()
		if step != armed {
			return
		}
		if left--; left == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // nothing happens between the signal and its effect
		}
	}
	cfg.Log = log
	s, err := actor.Supervise(context.Background(), spec, b.Dial, cfg)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		mu.Lock()
		_, err = fmt.Sscanf(lines.Text(), "%s %d", &armed, &left)
		mu.Unlock()
		if err != nil {
			return err
		}
		fmt.Fprintln(os.Stdout, "armed")
	}
	return s.Stop()
}

// crashHarness is everything but the generator, in this process.
type crashHarness struct {
	t        *testing.T
	home     bus.Home
	instance *config.Instance
	model    *scriptserver.Server
	file     string // what the tool writes
	out      actor.Out

	mu       sync.Mutex
	answers  map[string][]subjects.Response
	dialogs  map[string]int
	answered chan string

	cmd    *exec.Cmd
	stdin  io.WriteCloser
	says   *bufio.Scanner
	stderr syncBuffer
}

const crashManifest = `
types:
  assistant:
    tools: [fs_write]
accounts:
  generator: assistant
high_risk: [] # nobody is there to be asked
`

func newCrashHarness(t *testing.T, names ...string) *crashHarness {
	t.Helper()
	s := &crashHarness{
		t: t, home: newHome(t), answers: map[string][]subjects.Response{}, dialogs: map[string]int{},
		answered: make(chan string, 1024),
	}
	s.home.Config = s.home.Data + "-config"
	s.file = filepath.Join(t.TempDir(), "written")
	s.model = modeltest.New(t, scriptserver.Script{"assistant": {
		{
			Always: true, When: scriptserver.When{LastRole: "user", ToolsInclude: []string{"fs_write"}},
			Reply: scriptserver.Reply{
				Thinking: "this must be written down",
				Calls:    []scriptserver.Call{{Name: "fs_write", Arguments: map[string]any{"line": "{{last_user}}"}}},
			},
		},
		{
			Always: true, When: scriptserver.When{LastRole: "tool"},
			Reply: scriptserver.Reply{Content: "The tool said: {{tool_result 0}}"},
		},
	}})
	s.configure(map[string]string{
		"models.yaml":   "roles: {assistant: assistant}\nollama: {url: \"" + s.model.URL + "\", slots: 8}\n",
		"manifest.yaml": crashManifest,
		"system.yaml":   "listen: 127.0.0.1:0\ngateway: {listen: \"127.0.0.1:0\"}\n",
	})
	s.startActors(names...)
	return s
}

// configure writes the user's files.
func (s *crashHarness) configure(files map[string]string) {
	s.t.Helper()
	if err := os.MkdirAll(s.home.Config, 0o700); err != nil {
		s.t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(s.home.Config, name), []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

// startActors starts the system and listens as the user does.
func (s *crashHarness) startActors(names ...string) {
	s.t.Helper()
	c, err := config.Load(s.home.Config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.instance, err = c.Start(s.t.Context(), s.home, slog.New(slog.DiscardHandler), names...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.instance.Stop(context.Background()) })
	nc := bustest.Dial(s.t, s.instance.Bus, "user")
	if s.out, err = actor.NewOut(nc); err != nil {
		s.t.Fatal(err)
	}
	for _, subject := range []string{"response.generation", "answer.dialog"} {
		if _, err := nc.Subscribe(subject, s.recordEvent); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *crashHarness) recordEvent(m *nats.Msg) {
	var r subjects.Response
	if json.Unmarshal(m.Data, &r) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Subject == "answer.dialog" {
		s.dialogs[r.QueryID]++
		return
	}
	s.answers[r.QueryID] = append(s.answers[r.QueryID], r)
	s.answered <- r.QueryID
}

// fileTool is a tool that changes something: it appends a line to a file.
type fileTool struct {
	file string
	runs atomic.Int64
}

func (w *fileTool) Name() string { return "fs_write" }

func (w *fileTool) Routes() []actor.Route {
	at, err := subjects.ToolEndpoint("fs_write")
	if err != nil {
		return nil
	}
	return []actor.Route{actor.Serve(at, func(_ context.Context, in actor.Msg[subjects.ToolOrder],
		_ actor.Out,
	) (subjects.ToolResult, error) {
		var a struct{ Line string }
		if err := json.Unmarshal(in.Body.Args, &a); err != nil {
			return subjects.ToolResult{}, err
		}
		f, err := os.OpenFile(w.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return subjects.ToolResult{}, err
		}
		defer f.Close()
		_, err = fmt.Fprintln(f, a.Line)
		return subjects.ToolResult{Result: fmt.Sprintf("line %d is %q", w.runs.Add(1), a.Line)}, err
	})}
}

func (w *fileTool) Start(ctx context.Context, out actor.Out) error {
	topic, err := subjects.ToolSchemaEvent.With("fs_write")
	if err != nil {
		return err
	}
	return actor.Emit(ctx, out, topic, fileToolSchema)
}

var fileToolSchema = subjects.ToolSchema{
	Name: "fs_write", Description: "writes a line", Version: "1",
	Parameters: json.RawMessage(`{"type":"object","properties":{"line":{"type":"string"}},"required":["line"]}`),
}

// startBroker starts a broker that knows the tool: what a build has not declared is refused.
func (s *crashHarness) startBroker() {
	s.t.Helper()
	c, err := config.Load(s.home.Config)
	if err != nil {
		s.t.Fatal(err)
	}
	known := broker.Known{Tool: policy.Tool{
		Name: "fs_write", Zone: "tools", Known: true,
		Effects: policy.Declare(policy.Mutate), Timeout: 10 * time.Second,
	}, Pin: broker.Pin(fileToolSchema)}
	spec := actor.Spec{Name: "broker", Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) {
		h, err := audit.LoadHasher(s.home.HashKey())
		if err != nil {
			return nil, err
		}
		w, err := audit.Open(ctx, audit.Options{
			Account: "broker", Dir: s.home.Heads(), Log: bus.NewAuditLog(nc),
			Timeout: 2 * time.Second, Retry: 2 * time.Second,
		})
		if err != nil {
			return nil, err
		}
		return broker.New(broker.Config{CallTimeout: 10 * time.Second, AuditTimeout: 5 * time.Second},
			c.NewBook(s.home), w, h, []broker.Known{known}), nil
	}}
	if err := s.instance.System.Start(s.t.Context(), spec, s.instance.Bus.Dial, c.ActorConfig()); err != nil {
		s.t.Fatal(err)
	}
}

// startTool starts the tool.
func (s *crashHarness) startTool() {
	s.t.Helper()
	w := &fileTool{file: s.file}
	spec := actor.Spec{Name: "fs_write", Role: "tool_fs_write", Make: func(context.Context, *nats.Conn) (actor.Actor,
		error,
	) {
		return w, nil
	}}
	if err := s.instance.System.Start(s.t.Context(), spec, s.instance.Bus.Dial, actor.Config{}); err != nil {
		s.t.Fatal(err)
	}
}

// startGenerator starts a generator in a process of its own.
func (s *crashHarness) startGenerator() {
	s.t.Helper()
	s.startProcess(generatorAlone)
}

// startProcess starts a process that plays a part.
func (s *crashHarness) startProcess(part string) {
	s.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	s.cmd = exec.Command(exe)
	s.cmd.Env = append(os.Environ(), playEnv+"="+part, dataEnv+"="+s.home.Data, listenEnv+"="+s.instance.Bus.URL)
	s.cmd.Stderr = &s.stderr
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		s.t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	s.says = bufio.NewScanner(out)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.expectLine("ready")
}

func (s *crashHarness) expectLine(word string) {
	s.t.Helper()
	if !s.says.Scan() || s.says.Text() != word {
		s.t.Fatalf("it did not say %q: %q\n%s", word, s.says.Text(), s.stderr.String())
	}
}

// armCrash tells the generator where to die.
func (s *crashHarness) armCrash(boundary string) {
	s.t.Helper()
	if _, err := fmt.Fprintln(s.stdin, boundary); err != nil {
		s.t.Fatal(err)
	}
	s.expectLine("armed")
}

// waitForCrash waits for the generator's end, which must be the plug and nothing else.
func (s *crashHarness) waitForCrash(boundary string) {
	s.t.Helper()
	late := time.AfterFunc(time.Minute, func() { _ = s.cmd.Process.Signal(syscall.SIGQUIT) })
	defer late.Stop()
	err := s.cmd.Wait()
	status, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		s.t.Fatalf("at %s it did not die as it should: %v\n%s", boundary, err, s.stderr.String())
	}
}

// stopProcess ends it in order.
func (s *crashHarness) stopProcess() {
	s.t.Helper()
	s.stdin.Close()
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("it left with %v\n%s", err, s.stderr.String())
	}
}

func (s *crashHarness) ask(id string) {
	s.t.Helper()
	q := subjects.Query{SessionID: "session-" + id, QueryID: id, Query: "write down " + id}
	if err := actor.Emit(s.t.Context(), s.out, subjects.QueryReceived, q); err != nil {
		s.t.Fatal(err)
	}
}

// waitForAnswer waits until the turn is over: answered, told to those who watch, and kept in the conversation.
func (s *crashHarness) waitForAnswer(id string) {
	s.t.Helper()
	store := s.out.Store("state_generator")
	for late := time.Now().Add(2 * time.Minute); ; {
		var c subjects.Conversation
		data, _, err := store.Get(s.t.Context(), subjects.ConversationKey("session-"+id))
		s.mu.Lock()
		over := err == nil && json.Unmarshal(data, &c) == nil && c.Answered(id) && len(s.answers[id]) > 0 &&
			s.dialogs[id] > 0
		s.mu.Unlock()
		if over {
			return
		}
		if time.Now().After(late) {
			s.t.Fatalf("%s is not answered: %v\n%s", id, err, s.stderr.String())
		}
		time.Sleep(20 * time.Millisecond) // the bucket cannot be watched
	}
}

func TestChaosKillGenerator(t *testing.T) {
	t.Parallel()
	stages, kills := 7, 14 // every boundary once
	if full() {
		stages, kills = 8, 200
	}
	order := rand.New(rand.NewSource(chaosSeed(1))).Perm(kills)
	var calls, asked atomic.Int64
	t.Cleanup(func() {
		t.Logf("%d kills: %d questions, each answered once and its line written once; %d model calls, %d more than "+
			"without a kill", kills, asked.Load(), calls.Load(), calls.Load()-2*asked.Load())
	})
	for lane := range stages {
		t.Run(fmt.Sprint(lane), func(t *testing.T) {
			t.Parallel()
			s := newCrashHarness(t, "model", "router")
			s.startBroker()
			s.startTool()
			s.startGenerator()
			var ids []string
			for i := lane; i < kills; i += stages {
				k := order[i]
				boundary := boundaries[k%len(boundaries)]
				id := fmt.Sprintf("q%d", k)
				ids = append(ids, id)
				s.armCrash(boundary)
				s.ask(id)
				s.waitForCrash(boundary)
				s.startGenerator()
				s.waitForAnswer(id)
			}
			s.ask("last") // and nothing is left over from before
			s.waitForAnswer("last")
			s.stopProcess()
			s.checkAnswers(append(ids, "last"), int64(len(ids)))
			calls.Add(int64(s.model.Stats().Started))
			asked.Add(int64(len(ids) + 1))
		})
	}
}

// checkAnswers counts.
func (s *crashHarness) checkAnswers(ids []string, kills int64) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	data, err := os.ReadFile(s.file)
	if err != nil {
		s.t.Fatalf("%v; answers: %+v", err, s.answers)
	}
	lines := map[string]int{}
	for l := range strings.Lines(string(data)) {
		lines[strings.TrimSpace(l)]++
	}
	for _, id := range ids {
		line := "write down " + id
		if len(s.answers[id]) != 1 || s.dialogs[id] != 1 || lines[line] != 1 {
			s.t.Errorf("%s: answered %d times, in %d dialogs, written %d times", id, len(s.answers[id]), s.dialogs[id],
				lines[line])
			continue
		}
		r := s.answers[id][0]
		if r.Error != nil || r.Partial || !strings.Contains(r.Answer, line) || len(r.ToolCalls) != 1 {
			s.t.Errorf("%s: %+v", id, r)
		}
	}
	if len(lines) != len(ids) {
		s.t.Errorf("%d different lines for %d questions", len(lines), len(ids))
	}
	if extra := int64(s.model.Stats().Started) - 2*int64(len(ids)); extra < 0 || extra > kills {
		s.t.Errorf("%d model calls more than without a kill, after %d kills", extra, kills)
	}
}

// A question that is asked while nothing but the server runs is answered when the others are back.
func TestQuestionAskedWhileGeneratorIsDown(t *testing.T) {
	t.Parallel()
	s := newCrashHarness(t)
	s.ask("early")
	nc := bustest.Dial(t, s.instance.Bus, "user")
	// As the plain nats tool says it: no ids, no headers.
	if _, err := nc.Request("query.received", []byte("write down a plain one"), testTimeout); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(s.home.Config)
	if err != nil {
		t.Fatal(err)
	}
	run := func(names ...string) {
		t.Helper()
		if err := s.instance.Run(t.Context(), c, s.home, slog.New(slog.DiscardHandler), names...); err != nil {
			t.Fatal(err)
		}
	}
	run("model", "router")
	s.startBroker()
	s.startTool()
	run("generator")
	for range 2 { // the plain one has an id that nobody chose
		select {
		case <-s.answered:
		case <-time.After(time.Minute):
			t.Fatal("not answered")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	plain := 0
	for id, all := range s.answers {
		if id != "early" && all[0].Query == "write down a plain one" {
			plain++
		}
	}
	if plain != 1 || len(s.answers) != 2 {
		t.Errorf("answers: %+v", s.answers)
	}
}
