package config_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
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

// parlour is a whole house whose model says one thing to everything, and somebody who listens.
type parlour struct {
	t     *testing.T
	home  bus.Home
	cfg   config.Config
	house *config.Instance
	user  actor.Out

	answers chan subjects.Response
	stored  chan subjects.MemoryEvent
}

// newParlour prepares the system and starts nothing.
func newParlour(t *testing.T) *parlour {
	t.Helper()
	p := &parlour{t: t, home: newHome(t)}
	model := modeltest.New(t, scriptserver.Script{"assistant": {{Always: true, Reply: scriptserver.Reply{Content: "Your sister Anna lives in Rome."}}}})
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

// open starts some actors and listens as the user does.
func (p *parlour) open(names ...string) {
	p.t.Helper()
	var err error
	if p.house, err = p.cfg.Start(p.t.Context(), p.home, slog.New(slog.DiscardHandler), names...); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { down(p.t, p.house) })
	nc := p.dial("user")
	p.answers, p.stored = make(chan subjects.Response, 16), make(chan subjects.MemoryEvent, 16)
	hear(p.t, nc, "response.generation", p.answers)
	hear(p.t, nc, "memory.stored", p.stored)
	if err := bustest.ConfirmSubscriptions(p.t.Context(), nc); err != nil {
		p.t.Fatal(err)
	}
	if p.user, err = actor.NewOut(nc); err != nil {
		p.t.Fatal(err)
	}
}

func (p *parlour) dial(role string) *nats.Conn {
	p.t.Helper()
	nc, err := p.house.Bus.Dial(role)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(nc.Close)
	return nc
}

// hear puts what is said on a subject into a channel.
func hear[T any](t *testing.T, nc *nats.Conn, subject string, to chan T) {
	t.Helper()
	if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
		var v T
		if err := json.Unmarshal(m.Data, &v); err != nil {
			t.Errorf("%s: %v", subject, err)
		}
		to <- v
	}); err != nil {
		t.Fatal(err)
	}
}

func next[T any](t *testing.T, from chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(testTimeout):
		t.Fatalf("no %T came", v)
	}
	return v
}

// asks puts a question and waits for its answer.
func (p *parlour) asks(query, text string) subjects.Response {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), testTimeout)
	defer cancel()
	if err := actor.Emit(ctx, p.user, subjects.QueryReceived, subjects.Query{SessionID: "s1", QueryID: query, Query: text}); err != nil {
		p.t.Fatal(err)
	}
	r := next(p.t, p.answers)
	if r.QueryID != query || r.Error != nil || r.Answer == "" {
		p.t.Fatalf("asked %s, answered %+v", query, r)
	}
	return r
}

// tool asks the broker for a tool as an agent.
func (p *parlour) tool(role, name, args string) subjects.ToolResult {
	p.t.Helper()
	return p.toolWithin(testTimeout, role, name, args)
}

// toolWithin is tool with less time: a call that goes out as the broker goes down is answered by nobody.
func (p *parlour) toolWithin(limit time.Duration, role, name, args string) subjects.ToolResult {
	p.t.Helper()
	out, err := actor.NewOut(p.dial(role))
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), limit)
	defer cancel()
	return person{out: out.WithIDs("s1", "q1")}.call(ctx, name, actor.NewID(), args)
}

// offered are the tools that the broker finds for a task of the generator.
func (p *parlour) offered(task string) (names []string) {
	p.t.Helper()
	out, err := actor.NewOut(p.dial("generator"))
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), testTimeout)
	defer cancel()
	got, err := actor.Ask(ctx, out.WithIDs("s1", "q1"), subjects.BrokerDiscover, subjects.DiscoverRequest{Task: task, Max: 4})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, s := range got.Tools {
		names = append(names, s.Name)
	}
	return names
}

// recalls asks memory as the user.
func (p *parlour) recalls(query string) (subjects.MemoryReply, error) {
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

// TestMemoryInTheHouse: what was answered is remembered, an agent finds it through the broker and by no other way, and the
// broker offers the tools whenever it starts.
func TestMemoryInTheHouse(t *testing.T) {
	t.Parallel()
	p := newParlour(t)
	p.open("tools", "secrets", "model", "memory", "router", "generator") // the broker comes last
	if err := p.house.Run(t.Context(), p.cfg, p.home, slog.New(slog.DiscardHandler), "broker"); err != nil {
		t.Fatal(err)
	}
	p.asks("q1", "Where does my sister Anna live?")
	ev := next(t, p.stored)
	if ev.QueryID != "q1" || ev.By != "generator" || len(ev.IDs) != 1 {
		t.Fatalf("it tells %+v", ev)
	}
	for round := range 2 {
		for _, want := range []string{"search_memory", "save_memory", "search_knowledge_graph"} {
			if got := p.offered("remember, search the memory and the knowledge graph"); !slices.Contains(got, want) {
				t.Errorf("%d. offered %v, without %s", round+1, got, want)
			}
		}
		res := p.tool("generator", "search_memory", `{"query":"Where does Anna live?"}`)
		if res.Error != nil || !strings.Contains(res.Result, "Rome") || !slices.Equal(res.Recalls, ev.IDs) {
			t.Errorf("%d. the agent finds %+v, %v", round+1, res, res.Error)
		}
		if round == 0 { // the broker is cut off and comes back by itself
			if err := p.house.System.Abort("broker"); err != nil {
				t.Fatal(err)
			}
			deadline := time.Now().Add(testTimeout)
			probe := func() subjects.ToolResult { return p.toolWithin(2*time.Second, "generator", "get_datetime", utc) }
			for res := probe(); res.Error != nil; res = probe() {
				if time.Now().After(deadline) {
					t.Fatal(res.Error)
				}
			}
		}
	}
	r, err := p.recalls("Where does Anna live?")
	if err != nil || len(r.Hits) != 1 {
		t.Fatalf("the user finds %+v, %v", r, err)
	}
	want := subjects.Provenance{Source: subjects.SourceConversation, Trust: subjects.Trusted, Agent: "generator", SessionID: "s1", QueryID: "q1", Model: "assistant", Digest: "plain"}
	if got := r.Hits[0].Entry.Provenance; !reflect.DeepEqual(got, want) { // no stranger had a part in it
		t.Errorf("it was kept as %+v, want %+v", got, want)
	}
	// An agent's key does not reach memory itself: the server drops what it says.
	denied := make(chan error, 4)
	nc, err := p.house.Bus.Dial("generator", nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for _, subject := range []string{"memory.admin", "memory.query", "memory.write", "ctl.user.memory.admin"} {
		if err := nc.PublishRequest(subject, nats.NewInbox(), []byte(`{"op":"list"}`)); err != nil {
			t.Fatal(err)
		}
		if err := next(t, denied); !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), subject) {
			t.Errorf("%s: %v", subject, err)
		}
	}
	verified(t, p.home, p.house.Bus)
}

// TestHouseWithoutMemory: a memory that cannot be opened is no reason to be silent. The user is told why, what there is to
// be remembered waits, and is remembered when the file was put right.
func TestHouseWithoutMemory(t *testing.T) {
	t.Parallel()
	p := newParlour(t)
	path := memory.DatabaseFile(p.home.Data)
	spoiled := bytes.Repeat([]byte("no database "), 4096)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, spoiled, 0o600)); err != nil {
		t.Fatal(err)
	}
	p.open(config.Actors...)
	p.asks("q1", "Where does my sister Anna live?")
	var f *subjects.Fault
	if _, err := p.recalls("Anna"); !errors.As(err, &f) || f.Code != subjects.CodeUnavailable || !strings.Contains(f.Text, "memory is unavailable") || !strings.Contains(f.Text, "move it away") {
		t.Errorf("the user is told %v", err)
	}
	if got := p.offered("remember, search the memory and the knowledge graph"); slices.ContainsFunc(got, func(n string) bool { return strings.Contains(n, "memory") || strings.Contains(n, "graph") }) {
		t.Errorf("offered %v", got)
	}
	if res := p.tool("generator", "search_memory", `{"query":"Anna"}`); res.Error == nil || res.Error.Code != subjects.CodeUnknownTool {
		t.Errorf("the agent gets %+v", res)
	}
	if res := p.tool("operator", "get_datetime", utc); res.Error != nil {
		t.Errorf("the rest of the system: %v", res.Error)
	}
	down(t, p.house)
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, spoiled) {
		t.Errorf("the file was changed: %v", err)
	}

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	p.open(config.Actors...)
	r, err := p.recalls("Where does Anna live?") // it may come a moment later
	for deadline := time.Now().Add(testTimeout); err == nil && len(r.Hits) == 0 && time.Now().Before(deadline); r, err = p.recalls("Where does Anna live?") {
	}
	if err != nil || len(r.Hits) != 1 || r.Hits[0].Entry.Provenance.QueryID != "q1" {
		t.Errorf("after a restart it is remembered as %+v, %v", r, err)
	}
	if res := p.tool("generator", "search_memory", `{"query":"Where does Anna live?"}`); res.Error != nil || !strings.Contains(res.Result, "Rome") {
		t.Errorf("the agent finds %+v, %v", res, res.Error)
	}
	verified(t, p.home, p.house.Bus)
}

// TestMemoryIsOff: what is switched off is not offered, keeps nothing, and the system works without it.
func TestMemoryIsOff(t *testing.T) {
	t.Parallel()
	p := newParlour(t)
	if err := p.cfg.Apply(map[string]string{"memory.enabled": "false"}); err != nil {
		t.Fatal(err)
	}
	p.open(config.Actors...)
	p.asks("q1", "Where does my sister Anna live?")
	if _, err := p.recalls("Anna"); err == nil || !strings.Contains(err.Error(), "switched off") || !strings.Contains(err.Error(), "memory.yaml") {
		t.Errorf("the user is told %v", err)
	}
	if res := p.tool("generator", "search_memory", `{"query":"Anna"}`); res.Error == nil || res.Error.Code != subjects.CodeUnknownTool {
		t.Errorf("the agent gets %+v", res)
	}
	if _, err := os.Stat(memory.DatabaseFile(p.home.Data)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was made: %v", err)
	}
	down(t, p.house)

	// Switched on again it keeps what is said from now on, and not what was said meanwhile.
	if err := p.cfg.Apply(map[string]string{"memory.enabled": "true"}); err != nil {
		t.Fatal(err)
	}
	p.open(config.Actors...)
	p.asks("q2", "Where does my sister Anna live now?")
	if ev := next(t, p.stored); ev.QueryID != "q2" {
		t.Errorf("it tells %+v", ev)
	}
	if r, err := p.recalls("Where does Anna live?"); err != nil || len(r.Hits) != 1 || r.Hits[0].Entry.Provenance.QueryID != "q2" {
		t.Errorf("the user finds %+v, %v", r, err)
	}
}
