package model_test

import (
	"context"
	"encoding/json"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"conclave/actors/model"
	"conclave/pkg/actor/actortest"
	llm "conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/ollama"
	"conclave/subjects"
)

// switchableBackend is a server that comes and goes.
type switchableBackend struct {
	to atomic.Pointer[ollama.Backend]
}

func (s *switchableBackend) Chat(ctx context.Context, r llm.Request) iter.Seq2[llm.Chunk, error] {
	return s.to.Load().Chat(ctx, r)
}

func (s *switchableBackend) Embed(ctx context.Context, name string, texts []string) (llm.Vectors, error) {
	return s.to.Load().Embed(ctx, name, texts)
}

func (s *switchableBackend) List(ctx context.Context) ([]llm.Info, error) {
	return s.to.Load().List(ctx)
}

func (s *switchableBackend) Show(ctx context.Context, name string) (llm.Info, error) {
	return s.to.Load().Show(ctx, name)
}

func (s *switchableBackend) Pull(ctx context.Context, name string) iter.Seq2[llm.Progress, error] {
	return s.to.Load().Pull(ctx, name)
}

func TestDemoModel(t *testing.T) {
	t.Parallel()
	w := &harness{t: t, refuse: map[string]error{}}
	url := closedAddress(t)
	absent, there := newBackend(t, url), modeltest.New(t, always("big", "judge"))
	b := &switchableBackend{}
	b.to.Store(absent)
	w.build(defaultConfig(url), map[string]llm.Backend{model.Ollama: b})
	w.rec.Time = now

	r := w.ask(subjects.ChatRequest{Role: "critic", Stream: true})
	if r.err != nil || r.text == "" || len(r.pieces) < 2 || !r.last.DemoModel || r.last.Model != model.Scripted ||
		!strings.Contains(r.last.Notice, "not a language model") || !strings.Contains(r.last.Notice, "ollama serve") {
		t.Fatalf("%v, %+v", r.err, r.last)
	}
	var e subjects.EmbedReply
	if err := w.deliver("agent.memory.model.embed", subjects.EmbedRequest{Texts: []string{"x", "y"}}, &e); err != nil ||
		e.Model != model.Scripted || len(e.Vectors) != 2 {
		t.Errorf("%v, %+v", err, e)
	}
	var list subjects.ModelList
	if err := w.deliver("agent.user.model.list", subjects.Empty{}, &list); err != nil || len(list.Models) != 1 ||
		list.Models[0].Name != model.Scripted {
		t.Errorf("%v, %+v", err, list)
	}
	for _, role := range list.Roles {
		if !role.DemoModel || role.Model != model.Scripted || role.Wanted == "" {
			t.Errorf("%+v", role)
		}
	}
	// What would leave the machine is refused, Ollama or not.
	if r := w.ask(subjects.ChatRequest{Model: "deep:cloud"}); r.code() != subjects.CodeModelRemote {
		t.Errorf("%v", r.err)
	}
	w.mu.Lock()
	if w.records[0].Tool != model.Scripted {
		t.Errorf("the record says %s", w.records[0].Tool)
	}
	w.mu.Unlock()

	// Ollama becomes reachable. It is probed again after a second; then the demo model no longer answers.
	b.to.Store(newBackend(t, there.URL))
	if r := w.ask(subjects.ChatRequest{}); !r.last.DemoModel {
		t.Error("it was looked for again at once")
	}
	late := func(after time.Duration) reply {
		t.Helper()
		w.rec.Time = now.Add(after)
		var r reply
		text, err := w.rec.Deliver(t, w.m, actortest.Message{
			Subject: "agent.critic.model.chat",
			Body: subjects.ChatRequest{
				Role:     "critic",
				Messages: json.RawMessage(`[{"role":"user","content":"x"}]`),
			},
			Deadline: w.rec.Time.Add(soon),
		})
		r.err = err
		if err == nil {
			lines := strings.Split(strings.TrimSpace(text), "\n")
			err = json.Unmarshal([]byte(lines[len(lines)-1]), &r.last)
		}
		if err != nil && r.err == nil {
			t.Fatal(err)
		}
		return r
	}
	if r := late(2 * time.Second); r.err != nil || r.last.DemoModel || r.last.Model != "judge" || r.last.Notice != "" {
		t.Errorf("%v, %+v", r.err, r.last)
	}
	// Ollama goes. Whoever had a model is told, and not fobbed off.
	b.to.Store(absent)
	for _, after := range []time.Duration{3 * time.Second, 5 * time.Minute} {
		if r := late(after); r.code() != subjects.CodeModelUnreachable ||
			!strings.Contains(r.err.Error(), "ollama serve") {
			t.Errorf("after %s: %v, %+v", after, r.err, r.last)
		}
	}
}

func TestDemoModelModes(t *testing.T) {
	t.Parallel()
	there := modeltest.New(t, always("big"))
	for _, tt := range []struct {
		mode, url string
		other     bool // another server is configured
		standIn   bool
		code      string
	}{
		{model.DemoNever, closedAddress(t), false, false, subjects.CodeModelUnreachable},
		{model.DemoAlways, closedAddress(t), false, true, ""},
		{model.DemoAlways, there.URL, false, true, ""},
		{model.DemoAuto, there.URL, false, false, ""},
		{model.DemoAuto, closedAddress(t), true, false, subjects.CodeModelUnreachable},
	} {
		w := &harness{t: t, refuse: map[string]error{}}
		cfg := defaultConfig(tt.url)
		cfg.DemoModel = tt.mode
		backends := map[string]llm.Backend{model.Ollama: newBackend(t, tt.url)}
		if tt.other {
			cfg.OpenAI = &model.Server{URL: there.URL}
			backends[model.OpenAI] = newBackend(t, there.URL)
		}
		w.build(cfg, backends)
		if r := w.ask(subjects.ChatRequest{}); r.code() != tt.code || r.last.DemoModel != tt.standIn {
			t.Errorf("%s, %s: %v, %+v", tt.mode, tt.url, r.err, r.last)
		}
	}
}
