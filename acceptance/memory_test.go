package acceptance

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/memory"
	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

// memoryHarness is a whole system whose model gives one answer to everything, with recorded events.
type memoryHarness struct {
	t        *testing.T
	home     bus.Home
	cfg      config.Config
	instance *config.Instance
	user     actor.Out

	answers chan subjects.Response
	stored  chan subjects.MemoryEvent
}

// newMemoryHarness prepares the system and starts nothing.
func newMemoryHarness(t *testing.T) *memoryHarness {
	t.Helper()
	p := &memoryHarness{t: t, home: newHome(t)}
	model := modeltest.New(t,
		scriptserver.Script{"assistant": {{Always: true, Reply: scriptserver.Reply{Content: "Your sister Anna lives " +
			"in Rome."}}}})
	for name, text := range map[string]string{
		"models.yaml": "roles: {assistant: assistant}\nollama: {url: \"" + model.URL + "\", slots: 8}\n",
		"memory.yaml": "model: false\n", // the script knows no second model
		"system.yaml": "listen: 127.0.0.1:0\ngateway: {listen: \"127.0.0.1:0\"}\n",
	} {
		if err := os.MkdirAll(p.home.Config, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(p.home.Config, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if p.cfg, err = config.Load(p.home.Config); err != nil {
		t.Fatal(err)
	}
	return p
}

// startActors starts some actors and listens as the user does.
func (p *memoryHarness) startActors(names ...string) {
	p.t.Helper()
	var err error
	if p.instance, err = p.cfg.Start(p.t.Context(), p.home, slog.New(slog.DiscardHandler), names...); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { down(p.t, p.instance) })
	nc := p.dial("user")
	p.answers, p.stored = make(chan subjects.Response, 16), make(chan subjects.MemoryEvent, 16)
	bustest.Subscribe(p.t, nc, "response.generation", p.answers)
	bustest.Subscribe(p.t, nc, "memory.stored", p.stored)
	if err := bustest.ConfirmSubscriptions(p.t.Context(), nc); err != nil {
		p.t.Fatal(err)
	}
	if p.user, err = actor.NewOut(nc); err != nil {
		p.t.Fatal(err)
	}
}

func (p *memoryHarness) dial(role string) *nats.Conn {
	p.t.Helper()
	return bustest.Dial(p.t, p.instance.Bus, role)
}

func receiveNext[T any](t *testing.T, from chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(testTimeout):
		t.Fatalf("no %T came", v)
	}
	return v
}

// askQuestion puts a question and waits for its answer.
func (p *memoryHarness) askQuestion(query, text string) subjects.Response {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), testTimeout)
	defer cancel()
	if err := actor.Emit(ctx, p.user, subjects.QueryReceived, subjects.Query{
		SessionID: "s1", QueryID: query,
		Query: text,
	}); err != nil {
		p.t.Fatal(err)
	}
	r := receiveNext(p.t, p.answers)
	if r.QueryID != query || r.Error != nil || r.Answer == "" {
		p.t.Fatalf("asked %s, answered %+v", query, r)
	}
	return r
}

// callTool asks the broker for a tool as an agent.
func (p *memoryHarness) callTool(role, name, args string) subjects.ToolResult {
	p.t.Helper()
	return p.callToolWithin(testTimeout, role, name, args)
}

// callToolWithin is tool with less time: a call that goes out as the broker goes down is answered by nobody.
func (p *memoryHarness) callToolWithin(limit time.Duration, role, name, args string) subjects.ToolResult {
	p.t.Helper()
	nc := p.dial(role)
	defer nc.Close() // the connections of an account are limited
	out, err := actor.NewOut(nc)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), limit)
	defer cancel()
	return busCaller{out: out.WithIDs("s1", "q1")}.callTool(ctx, name, actor.NewID(), args)
}

// discoverTools are the tools that the broker finds for a task of the generator. A broker that is being restarted may
// not have subscribed to every subject yet: without a responder the request is repeated.
func (p *memoryHarness) discoverTools(task string) (names []string) {
	p.t.Helper()
	nc := p.dial("generator")
	defer nc.Close()
	out, err := actor.NewOut(nc)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), testTimeout)
	defer cancel()
	ask := func() (subjects.DiscoverReply, error) {
		return actor.Ask(ctx, out.WithIDs("s1", "q1"), subjects.BrokerDiscover,
			subjects.DiscoverRequest{Task: task, Max: 4})
	}
	got, err := ask()
	for f := (*subjects.Fault)(nil); errors.As(err, &f) && f.Code == subjects.CodeUnavailable &&
		ctx.Err() == nil; got, err = ask() {
		runtime.Gosched()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	for _, s := range got.Tools {
		names = append(names, s.Name)
	}
	return names
}

// queryMemory asks memory as the user.
func (p *memoryHarness) queryMemory(query string) (subjects.MemoryReply, error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), testTimeout)
	defer cancel()
	var last subjects.MemoryReply
	for r, err := range actor.AskStream(ctx, p.user, subjects.MemoryQueryService, subjects.MemoryQuery{Query: query}) {
		if err != nil {
			return last, err
		}
		last = r
	}
	return last, nil
}

// TestMemoryLearnsFromAnswers: what was answered is remembered, an agent finds it through the broker and by no other
// way, and the broker offers the tools whenever it starts.
func TestMemoryLearnsFromAnswers(t *testing.T) {
	t.Parallel()
	p := newMemoryHarness(t)
	p.startActors("tools", "secrets", "model", "memory", "router", "generator") // the broker comes last
	if err := p.instance.Run(t.Context(), p.cfg, p.home, slog.New(slog.DiscardHandler), "broker"); err != nil {
		t.Fatal(err)
	}
	p.askQuestion("q1", "Where does my sister Anna live?")
	ev := receiveNext(t, p.stored)
	if ev.QueryID != "q1" || ev.By != "generator" || len(ev.IDs) != 1 {
		t.Fatalf("it tells %+v", ev)
	}
	for round := range 2 {
		for _, want := range []string{"search_memory", "save_memory", "search_knowledge_graph"} {
			if got := p.discoverTools("remember, search the memory and the knowledge graph"); !slices.Contains(got,
				want) {
				t.Errorf("%d. offered %v, without %s", round+1, got, want)
			}
		}
		res := p.callTool("generator", "search_memory", `{"query":"Where does Anna live?"}`)
		if res.Error != nil || !strings.Contains(res.Result, "Rome") || !slices.Equal(res.Recalls, ev.IDs) {
			t.Errorf("%d. the agent finds %+v, %v", round+1, res, res.Error)
		}
		if round == 0 { // the broker is cut off and comes back by itself
			if err := p.instance.System.Abort("broker"); err != nil {
				t.Fatal(err)
			}
			deadline := time.Now().Add(testTimeout)
			probe := func() subjects.ToolResult {
				return p.callToolWithin(2*time.Second, "generator", "get_datetime", utc)
			}
			for res := probe(); res.Error != nil; res = probe() {
				if time.Now().After(deadline) {
					t.Fatal(res.Error)
				}
			}
		}
	}
	r, err := p.queryMemory("Where does Anna live?")
	if err != nil || len(r.Hits) != 1 {
		t.Fatalf("the user finds %+v, %v", r, err)
	}
	want := subjects.Provenance{
		Source: subjects.SourceConversation, Trust: subjects.Trusted, Agent: "generator",
		SessionID: "s1", QueryID: "q1", Model: "assistant", Digest: "plain",
	}
	if got := r.Hits[0].Entry.Provenance; !reflect.DeepEqual(got, want) { // it has no untrusted source
		t.Errorf("it was kept as %+v, want %+v", got, want)
	}
	// An agent's key does not reach memory itself: the server drops what it says.
	denied := make(chan error, 4)
	nc := bustest.Dial(t, p.instance.Bus, "generator",
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err }))
	for _, subject := range []string{"memory.admin", "memory.query", "memory.write", "ctl.user.memory.admin"} {
		if err := nc.PublishRequest(subject, nats.NewInbox(), []byte(`{"op":"list"}`)); err != nil {
			t.Fatal(err)
		}
		if err := receiveNext(t, denied); !errors.Is(err, nats.ErrPermissionViolation) ||
			!strings.Contains(err.Error(), subject) {
			t.Errorf("%s: %v", subject, err)
		}
	}
	verified(t, p.home, p.instance.Bus)
}

// TestSystemRunsWithoutMemory: a memory that cannot be opened is no reason to be silent. The user is told why, what
// there is to be remembered waits, and is remembered when the file was put right.
func TestSystemRunsWithoutMemory(t *testing.T) {
	t.Parallel()
	p := newMemoryHarness(t)
	path := memory.DatabaseFile(p.home.Data)
	spoiled := bytes.Repeat([]byte("no database "), 4096)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, spoiled, 0o600)); err != nil {
		t.Fatal(err)
	}
	p.startActors(config.Actors...)
	p.askQuestion("q1", "Where does my sister Anna live?")
	var f *subjects.Fault
	if _, err := p.queryMemory("Anna"); !errors.As(err, &f) || f.Code != subjects.CodeUnavailable ||
		!strings.Contains(f.Text, "memory is unavailable") || !strings.Contains(f.Text, "move it away") {
		t.Errorf("the user is told %v", err)
	}
	if got := p.discoverTools("remember, search the memory and the knowledge graph"); slices.ContainsFunc(got,
		func(n string) bool { return strings.Contains(n, "memory") || strings.Contains(n, "graph") }) {
		t.Errorf("offered %v", got)
	}
	if res := p.callTool("generator", "search_memory", `{"query":"Anna"}`); res.Error == nil ||
		res.Error.Code != subjects.CodeUnknownTool {
		t.Errorf("the agent gets %+v", res)
	}
	if res := p.callTool("operator", "get_datetime", utc); res.Error != nil {
		t.Errorf("the rest of the system: %v", res.Error)
	}
	down(t, p.instance)
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, spoiled) {
		t.Errorf("the file was changed: %v", err)
	}

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	p.startActors(config.Actors...)
	r, err := p.queryMemory("Where does Anna live?") // it may come a moment later
	for deadline := time.Now().Add(testTimeout); err == nil && len(r.Hits) == 0 &&
		time.Now().Before(deadline); r, err = p.queryMemory("Where does Anna live?") {
	}
	if err != nil || len(r.Hits) != 1 || r.Hits[0].Entry.Provenance.QueryID != "q1" {
		t.Errorf("after a restart it is remembered as %+v, %v", r, err)
	}
	if res := p.callTool("generator", "search_memory", `{"query":"Where does Anna live?"}`); res.Error != nil ||
		!strings.Contains(res.Result, "Rome") {
		t.Errorf("the agent finds %+v, %v", res, res.Error)
	}
	verified(t, p.home, p.instance.Bus)
}

// TestMemoryIsOff: what is switched off is not offered, keeps nothing, and the system works without it.
func TestMemoryIsOff(t *testing.T) {
	t.Parallel()
	p := newMemoryHarness(t)
	if err := p.cfg.Apply(map[string]string{"memory.enabled": "false"}); err != nil {
		t.Fatal(err)
	}
	p.startActors(config.Actors...)
	p.askQuestion("q1", "Where does my sister Anna live?")
	if _, err := p.queryMemory("Anna"); err == nil || !strings.Contains(err.Error(), "switched off") ||
		!strings.Contains(err.Error(), "memory.yaml") {
		t.Errorf("the user is told %v", err)
	}
	if res := p.callTool("generator", "search_memory", `{"query":"Anna"}`); res.Error == nil ||
		res.Error.Code != subjects.CodeUnknownTool {
		t.Errorf("the agent gets %+v", res)
	}
	if _, err := os.Stat(memory.DatabaseFile(p.home.Data)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was made: %v", err)
	}
	down(t, p.instance)

	// Switched on again it keeps what is said from now on, and not what was said meanwhile.
	if err := p.cfg.Apply(map[string]string{"memory.enabled": "true"}); err != nil {
		t.Fatal(err)
	}
	p.startActors(config.Actors...)
	p.askQuestion("q2", "Where does my sister Anna live now?")
	if ev := receiveNext(t, p.stored); ev.QueryID != "q2" {
		t.Errorf("it tells %+v", ev)
	}
	if r, err := p.queryMemory("Where does Anna live?"); err != nil || len(r.Hits) != 1 ||
		r.Hits[0].Entry.Provenance.QueryID != "q2" {
		t.Errorf("the user finds %+v, %v", r, err)
	}
}
