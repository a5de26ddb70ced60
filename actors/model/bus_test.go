package model_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/actors/model"
	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/audit"
	"conclave/pkg/bus/bustest"
	llm "conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scripted"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/model/wire"
	"conclave/subjects"
)

// busHarness is a server under the real grants with a model actor, its real audit and a model server.
type busHarness struct {
	*bustest.Bus
	t   *testing.T
	srv *scriptserver.Server
	m   *model.Model
}

func newBusHarness(t *testing.T, script scriptserver.Script, change func(*model.Config),
	opts ...scriptserver.Option,
) *busHarness {
	t.Helper()
	w := &busHarness{Bus: bustest.Start(t), t: t, srv: modeltest.New(t, script, opts...)}
	cfg := defaultConfig(w.srv.URL)
	if change != nil {
		change(&cfg)
	}
	w.start(cfg, newBackend(t, w.srv.URL))
	return w
}

func (w *busHarness) start(cfg model.Config, b llm.Backend) {
	w.t.Helper()
	if err := cfg.Validate(); err != nil {
		w.t.Fatal(err)
	}
	w.Run(w.AuditedSpec("model", func(_ context.Context, a *audit.Writer, h *audit.Hasher) (actor.Actor, error) {
		w.m = model.New(cfg, map[string]llm.Backend{model.Ollama: b}, scripted.Backend{}, a, h)
		return w.m, nil
	}), actor.Config{})
}

// out connects as a role and returns its Out for a session and a query.
func (w *busHarness) out(role, session, query string) actor.Out {
	w.t.Helper()
	return w.Out(role).WithIDs(session, query)
}

func newRequest(text string) llm.Request {
	return llm.Request{Messages: []llm.Message{{Role: llm.User, Content: text}}, Stream: true}
}

// auditRecords is what the model actor wrote into the audit, which must verify.
func (w *busHarness) auditRecords() []subjects.AuditRecord {
	w.t.Helper()
	_, recs, _ := w.AuditRecords()
	return recs
}

func TestBusChat(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t, scriptserver.Script{"judge": {{Reply: scriptserver.Reply{
		Thinking: "hm", Content: "Four of five .", Prompt: 9, Output: 4,
		Calls: []scriptserver.Call{{ID: "c1", Name: "x", JSON: `{"b":1,"a":2}`}},
	}}}}, nil)
	var last subjects.ChatChunk
	c := wire.Client{
		Out: w.out("critic", "s1", "q1"), Role: "critic", Timeout: soon,
		OnDone: func(p subjects.ChatChunk) { last = p },
	}
	r := newRequest("grade this")
	r.Tools = []llm.Tool{{Name: "x", Parameters: []byte(`{"type":"object"}`)}}
	pieces := 0
	msg, final, err := llm.Collect(func(yield func(llm.Chunk, error) bool) {
		for chunk, err := range c.Chat(t.Context(), r) {
			pieces++
			if !yield(chunk, err) {
				return
			}
		}
	})
	if err != nil || msg.Content != "Four of five ." || msg.Thinking != "hm" || len(msg.Calls) != 1 ||
		string(msg.Calls[0].Arguments) != `{"b":1,"a":2}` || pieces < 4 {
		t.Fatalf("%v, %d pieces, %+v", err, pieces, msg)
	}
	if final.Model != "judge" || final.PromptTokens != 9 || final.OutputTokens != 4 || last.DemoModel ||
		last.Notice != "" {
		t.Errorf("%+v, %+v", final, last)
	}
	recs := w.auditRecords()
	if len(recs) != 2 || recs[0].Status != subjects.StatusAllowed || recs[1].Status != subjects.StatusOK {
		t.Fatalf("audit %+v", recs)
	}
	for _, rec := range recs {
		if rec.AgentID != "critic" || rec.Action != "model.chat" || rec.Tool != "judge" || rec.Session != "s1" ||
			rec.Query != "q1" || rec.ParamsHash == "" {
			t.Errorf("record %+v", rec)
		}
	}
}

func TestBusEmbedAndList(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t, always("big"), nil)
	texts := slices.Repeat([]string{"a text"}, 100) // more than go into one request
	v, err := wire.Client{Out: w.out("memory", "", ""), Timeout: soon}.Embed(t.Context(), "", texts)
	if err != nil || len(v.Values) != 100 || len(v.Values[99]) != 768 || v.Model != "nomic-embed-text" {
		t.Fatalf("%v, %d vectors of %s", err, len(v.Values), v.Model)
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for _, role := range []string{"user", "gateway", "generator", "broker"} {
		list, err := actor.Ask(ctx, w.out(role, "", ""), subjects.ModelListService, subjects.Empty{})
		if err != nil || len(list.Models) != 2 || len(list.Roles) != 4 {
			t.Errorf("%s: %v, %+v", role, err, list)
		}
	}
}

// The user stops a query: the event reaches the actor, and the actor's request ends at the model server.
func TestBusCancel(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t,
		scriptserver.Script{
			"big": {{Always: true, Reply: scriptserver.Reply{Content: "x", Quirks: scriptserver.Quirks{Hang: true}}}},
		}, nil)
	failed := make(chan error, 2)
	for range 2 { // one runs, one waits
		c := wire.Client{Out: w.out("generator", "s1", "q1"), Timeout: soon}
		go func() {
			_, _, err := llm.Collect(c.Chat(t.Context(), newRequest("hi")))
			failed <- err
		}()
	}
	// A call is on record when it can be stopped: before that, a stop would not know of it.
	waitFor(t, "one runs and both can be stopped", func() bool {
		return w.srv.Stats().Running == 1 && len(w.auditRecords()) == 2
	})
	topic, err := subjects.QueryCancel.With("q1")
	if err != nil {
		t.Fatal(err)
	}
	if err := actor.Emit(t.Context(), w.out("user", "s1", "q1"), topic, subjects.Cancel{Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-failed; actortest.Code(err) != subjects.CodeStopped {
			t.Errorf("%v", err)
		}
	}
	waitFor(t, "the server stopped", func() bool { c := w.srv.Stats(); return c.Cancelled >= 1 && c.Running == 0 })
}

// A caller that stops listening ends the request at the model server, and the slot is free for the next.
func TestBusCallerCancels(t *testing.T) {
	t.Parallel()
	slow := scriptserver.Reply{
		Content: strings.Repeat("word ", 1000),
		Quirks:  scriptserver.Quirks{TokenDelay: 20 * time.Millisecond},
	}
	w := newBusHarness(t, scriptserver.Script{"big": {{Reply: slow}, {Reply: scriptserver.Reply{Content: "next"}}}},
		nil)
	c := wire.Client{Out: w.out("generator", "s1", "q1"), Timeout: soon}
	for c, err := range c.Chat(t.Context(), newRequest("hi")) {
		if err != nil {
			t.Fatal(err)
		}
		if c.Content != "" {
			break // one word is enough
		}
	}
	waitFor(t, "the server stopped", func() bool { return w.srv.Stats().Cancelled == 1 })
	if msg, _, err := llm.Collect(c.Chat(t.Context(), newRequest("hi"))); err != nil || msg.Content != "next" {
		t.Errorf("%v, %+v", err, msg)
	}
	waitFor(t, "both are on record", func() bool { return len(w.auditRecords()) == 4 })
	i := slices.IndexFunc(w.auditRecords(), func(r subjects.AuditRecord) bool {
		return r.Status == subjects.StatusUnknown
	})
	if i < 0 {
		t.Errorf("audit %+v", w.auditRecords())
	}
}

// Sessions take turns, also those of one account: a session with many questions does not hold up one with a single one.
func TestBusFairness(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t, always("big"), nil, scriptserver.WithSlots(1, 10*time.Millisecond, 100))
	greedy, modest := w.out("generator", "greedy", ""), w.out("generator", "modest", "")
	var wg sync.WaitGroup
	var mu sync.Mutex
	var order []string
	ask := func(who string, out actor.Out) {
		wg.Go(func() {
			_, _, err := llm.Collect(wire.Client{Out: out, Timeout: soon}.Chat(t.Context(), newRequest(who)))
			mu.Lock()
			defer mu.Unlock()
			order = append(order, who)
			if err != nil {
				t.Error(err)
			}
		})
	}
	for range 40 {
		ask("greedy", greedy)
	}
	waitFor(t, "they wait", func() bool { return w.srv.Stats().Finished >= 2 })
	done := w.srv.Stats().Finished
	ask("modest", modest)
	wg.Wait()
	if i := slices.Index(order, "modest"); i > done+10 {
		t.Errorf("it was served as number %d, after %d were done when it came", i+1, done)
	}
}

// Who may fetch models is the server's rule first and the actor's second.
func TestBusPull(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t, always("big"), nil)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var states []string
	for p, err := range actor.AskStream(ctx, w.out("user", "", ""), subjects.ModelPull,
		subjects.PullRequest{Model: "judge"}) {
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, p.Status)
	}
	if len(states) < 5 || states[len(states)-1] != "success" {
		t.Errorf("%v", states)
	}
	w.ExpectViolations(1)
	short, cancelShort := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancelShort()
	for _, err := range actor.AskStream(short, w.out("generator", "", ""), subjects.ModelPull,
		subjects.PullRequest{Model: "evil"}) {
		if err == nil {
			t.Error("an agent fetched a model")
		}
	}
	if slices.ContainsFunc(w.srv.Models(), func(m scriptserver.Model) bool { return m.Name == "evil" }) {
		t.Error("the model is there")
	}
}

func TestBusDemoModel(t *testing.T) {
	t.Parallel()
	w := &busHarness{Bus: bustest.Start(t), t: t}
	url := closedAddress(t)
	b := &switchableBackend{}
	b.to.Store(newBackend(t, url))
	w.start(defaultConfig(url), b)
	var last subjects.ChatChunk
	c := wire.Client{Out: w.out("generator", "s1", "q1"), Timeout: soon, OnDone: func(p subjects.ChatChunk) {
		last = p
	}}
	msg, _, err := llm.Collect(c.Chat(t.Context(), newRequest("anyone?")))
	if err != nil || msg.Content == "" || !last.DemoModel || last.Model != model.Scripted {
		t.Fatalf("%v, %+v, %+v", err, msg, last)
	}
	there := modeltest.New(t, always("big"))
	b.to.Store(newBackend(t, there.URL))
	waitFor(t, "the script steps aside", func() bool {
		_, _, err := llm.Collect(c.Chat(t.Context(), newRequest("anyone?")))
		return err == nil && !last.DemoModel && last.Model == "big"
	})
	there.Close()
	_, _, err = llm.Collect(c.Chat(t.Context(), newRequest("anyone?")))
	if !errors.Is(err, llm.ErrUnreachable) && !errors.Is(err, llm.ErrCut) {
		t.Errorf("%v", err)
	}
}

// Faults arrive as the errors that the backends made.
func TestBusFaults(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t, always("big"), nil, scriptserver.WithModels(scriptserver.Model{Name: "mute", Family: "f"}))
	out := w.out("generator", "", "")
	for _, tt := range []struct {
		name string
		r    llm.Request
		want error
	}{
		{"missing", llm.Request{Model: "none"}, llm.ErrMissing},
		{"remote", llm.Request{Model: "x:cloud"}, llm.ErrRemote},
		{
			"no tools",
			llm.Request{Model: "mute", Tools: []llm.Tool{{Name: "x", Parameters: []byte(`{}`)}}},
			llm.ErrNoTools,
		},
	} {
		tt.r.Messages = newRequest("x").Messages
		if _, _, err := llm.Collect(wire.Client{Out: out, Timeout: soon}.Chat(t.Context(), tt.r)); !errors.Is(err,
			tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// All slots are used, and never one more: while as many requests hang as there are slots, no other is admitted, and
// when they end, everybody is.
func TestBusSlotsAreBusy(t *testing.T) {
	t.Parallel()
	const slots, more = 8, 24
	hang := scriptserver.Exchange{Reply: scriptserver.Reply{Quirks: scriptserver.Quirks{Hang: true}}}
	script := scriptserver.Script{"big": append(slices.Repeat([]scriptserver.Exchange{hang}, slots),
		always("big")["big"]...)}
	w := newBusHarness(t, script, func(c *model.Config) { c.Ollama.Slots = slots })
	base := w.out("generator", "", "")
	ask := func(ctx context.Context, i int) error {
		c := wire.Client{Out: base.WithIDs(fmt.Sprintf("s%d", i), fmt.Sprintf("q%d", i)), Timeout: soon}
		_, _, err := llm.Collect(c.Chat(ctx, newRequest("hi")))
		return err
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var wg sync.WaitGroup
	for i := range slots {
		wg.Go(func() {
			if err := ask(ctx, i); err == nil {
				t.Error("one that hangs was answered")
			}
		})
	}
	waitFor(t, "all slots are taken", func() bool { return w.srv.Stats().Running == slots })
	for i := range more {
		wg.Go(func() {
			if err := ask(t.Context(), slots+i); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, "all others are about to enter", func() bool { return len(w.auditRecords()) == slots+more })
	if c := w.srv.Stats(); c.Running != slots || c.Started != slots {
		t.Errorf("%d run of %d that were let in, want %d", c.Running, c.Started, slots)
	}
	end()
	wg.Wait()
	// The server hears of a broken connection a moment after its slot is free: for it those that hung may overlap with
	// the next ones, but never more than they were.
	if c := w.srv.Stats(); c.Parallel > 2*slots || c.Finished != more {
		t.Errorf("%d at once, want %d; %d answered, want %d", c.Parallel, slots, c.Finished, more)
	}
}
