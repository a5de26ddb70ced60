package critic

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/strict"
	"conclave/subjects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// defaultConfig returns the shipped configuration.
func defaultConfig() Config {
	return Config{
		Enabled: true, CallTimeout: 10 * time.Minute, Predict: 1024, PairWait: 5 * time.Minute, MaxAge: 24 * time.Hour,
		RetryAt: 2,
	}
}

// harness is one critic with a scripted judge, a bucket and a fixed clock.
type harness struct {
	t   *testing.T
	rec actortest.Recorder
	c   *Critic

	mu     sync.Mutex
	judge  func(r model.Request) (string, error) // nil = the model is unavailable
	last   subjects.ChatChunk                    // what the end of a reply says beside words
	window int
	asked  []model.Request
	onStep func(step string) // nil = not observed
}

func newHarness(t *testing.T, change ...func(*Config)) *harness {
	t.Helper()
	w := &harness{
		t: t, window: 32768, judge: always("Feedback: Right and short. [RESULT] 5"),
		last: subjects.ChatChunk{Model: "judge:7b"},
	}
	cfg := defaultConfig()
	for _, f := range change {
		f(&cfg)
	}
	if err := cfg.Validate(); err != nil && cfg.Enabled {
		t.Fatal(err)
	}
	w.c, w.rec.Reply, w.rec.Time = New(cfg), w.answer, noon
	return w
}

// always is a judge with one reply.
func always(words string) func(model.Request) (string, error) {
	return func(model.Request) (string, error) { return words, nil }
}

// inTurn is a judge with several replies in order; the last is repeated.
func inTurn(words ...string) func(model.Request) (string, error) {
	var mu sync.Mutex
	return func(model.Request) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		said := words[0]
		if len(words) > 1 {
			words = words[1:]
		}
		return said, nil
	}
}

func fails(err error) func(model.Request) (string, error) {
	return func(model.Request) (string, error) { return "", err }
}

// answer is the model's account.
func (w *harness) answer(subject string, body []byte) (any, error) {
	w.mu.Lock()
	judge, last, window := w.judge, w.last, w.window
	w.mu.Unlock()
	switch {
	case subject == "model.list" && window > 0:
		return subjects.ModelList{Roles: []subjects.RoleModel{
			{Role: subjects.RoleAssistant, Window: 99},
			{Role: subjects.RoleCritic, Model: "judge:7b", Window: window},
		}}, nil
	case subject == "model.chat" && judge != nil:
		var q subjects.ChatRequest
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, err
		}
		r, err := wire.DecodeRequest(q)
		if err != nil {
			return nil, err
		}
		if q.Role != subjects.RoleCritic || q.Hint != "" || q.Model != "" || q.Stream || q.Think == nil || *q.Think ||
			r.Options.Predict != w.c.cfg.Predict || r.Options.Temperature != nil {
			return nil, fmt.Errorf("asked as %+v", q)
		}
		w.mu.Lock()
		w.asked = append(w.asked, r)
		w.mu.Unlock()
		said, err := judge(r)
		if err != nil {
			return nil, err
		}
		last.Content, last.Done = said, true
		return last, nil
	}
	return nil, subjects.Faultf(subjects.CodeUnavailable, "nobody answers %s", subject)
}

// setJudge changes the judge.
func (w *harness) setJudge(f func(model.Request) (string, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge = f
}

// prompts are what the model was asked, the last message of each request.
func (w *harness) prompts() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.asked {
		out = append(out, r.Messages[len(r.Messages)-1].Content)
	}
	return out
}

// message returns the delivery of an answer.
func message(from string, r subjects.Response) actor.Msg[subjects.Response] {
	return actor.Msg[subjects.Response]{
		Subject: "from." + from + ".response.generation", From: from,
		Tokens: []string{from}, Query: r.QueryID, Session: r.SessionID, StoredAt: noon, Attempt: 1, Body: r,
	}
}

// deliver delivers an answer.
func (w *harness) deliver(from string, r subjects.Response) error {
	return w.c.onResponse(w.context(), message(from, r), w.rec.Out())
}

// context returns the context of a delivery, observed by onStep.
func (w *harness) context() context.Context {
	if w.onStep == nil {
		return w.t.Context()
	}
	return actor.WithSteps(w.t.Context(), w.onStep)
}

// mustDeliver delivers an answer that must be handled.
func (w *harness) mustDeliver(from string, r subjects.Response) {
	w.t.Helper()
	if err := w.deliver(from, r); err != nil {
		w.t.Fatal(err)
	}
}

// plainAnswer is an answer without tools.
func plainAnswer(query string) subjects.Response {
	return subjects.Response{
		SessionID: "s1", QueryID: query, Query: "What is the capital of Norway?", Answer: "Oslo.",
		ToolCalls: []subjects.ToolCall{}, GeneratorID: "generator", RespondentID: "generator",
		Model: "big", Labels: &subjects.Labels{Trust: subjects.Trusted, Privacy: subjects.Public},
	}
}

// publishedEvents returns the published events of a subject.
func publishedEvents[T any](w *harness, subject string) (out []T) {
	w.t.Helper()
	for _, s := range w.rec.Published() {
		if s.Subject != subject {
			continue
		}
		var v T
		if err := strict.DecodeJSON([]byte(s.Body), &v); err != nil {
			w.t.Fatal(err)
		}
		if !s.Waited || s.ID == "" {
			w.t.Errorf("%s was not said once: %+v", subject, s)
		}
		out = append(out, v)
	}
	return out
}

func (w *harness) critiques() []subjects.Critique {
	return publishedEvents[subjects.Critique](w, "critique.result")
}

func (w *harness) verdicts() []subjects.Pairwise {
	return publishedEvents[subjects.Pairwise](w, "pairwise.result")
}

// critique returns the only published critique.
func (w *harness) critique() subjects.Critique {
	w.t.Helper()
	all := w.critiques()
	if len(all) != 1 {
		w.t.Fatalf("%d critiques: %+v", len(all), all)
	}
	return all[0]
}

// checkNoTrace fails the test when a secret is in an event, a request, the log or the bucket.
func (w *harness) checkNoTrace(secret string) {
	w.t.Helper()
	store := w.rec.Out().Store(bucket)
	keys, err := store.Keys(w.t.Context(), "")
	if err != nil {
		w.t.Fatal(err)
	}
	book := ""
	for _, k := range keys {
		v, _, err := store.Get(w.t.Context(), k)
		if err != nil {
			w.t.Fatal(err)
		}
		book += string(v)
	}
	for what, v := range map[string]any{
		"events": w.rec.Published(), "questions to a model": w.rec.Requested(),
		"the log": w.rec.Logged(), "the bucket": book,
	} {
		if all := fmt.Sprintf("%+v", v); strings.Contains(all, secret) {
			at := strings.Index(all, secret)
			w.t.Errorf("%s holds %q", what, all[max(0, at-80):min(len(all), at+80)])
		}
	}
}

// listens returns the subjects that an actor listens on.
func listens(a actor.Actor) (out []string) {
	for _, r := range a.Routes() {
		out = append(out, r.Spec().Subscription())
	}
	slices.Sort(out)
	return out
}
