package critic

import (
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
	"conclave/subjects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// usual is the configuration as shipped.
func usual() Config {
	return Config{
		Enabled: true, CallTimeout: 10 * time.Minute, Predict: 1024, PairWait: 5 * time.Minute, MaxAge: 24 * time.Hour, RetryAt: 2, Claims: true, ClaimCap: 2,
	}
}

// world is everything around one critic: a model that says what it is told to say, a book and a clock that stands still.
type world struct {
	t   *testing.T
	rec actortest.Recorder
	c   *Critic

	mu     sync.Mutex
	judge  func(r model.Request) (string, error) // nil = nobody answers
	last   subjects.ChatChunk                    // what the end of a reply says beside words
	window int
	asked  []model.Request
}

func newWorld(t *testing.T, change ...func(*Config)) *world {
	t.Helper()
	w := &world{t: t, window: 32768, judge: always("Feedback: Right and short. [RESULT] 5"), last: subjects.ChatChunk{Model: "judge:7b"}}
	cfg := usual()
	for _, f := range change {
		f(&cfg)
	}
	if err := cfg.Validate(); err != nil && cfg.Enabled {
		t.Fatal(err)
	}
	w.c, w.rec.Reply, w.rec.Time = New(cfg), w.answer, noon
	return w
}

// always is a judge that says one thing.
func always(words string) func(model.Request) (string, error) {
	return func(model.Request) (string, error) { return words, nil }
}

// inTurn is a judge that says one thing after the other, and the last for ever.
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
func (w *world) answer(subject string, body []byte) (any, error) {
	w.mu.Lock()
	judge, last, window := w.judge, w.last, w.window
	w.mu.Unlock()
	switch {
	case subject == "model.list" && window > 0:
		return subjects.ModelList{Roles: []subjects.RoleModel{{Role: subjects.RoleAssistant, Window: 99}, {Role: subjects.RoleCritic, Model: "judge:7b", Window: window}}}, nil
	case subject == "model.chat" && judge != nil:
		var q subjects.ChatRequest
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, err
		}
		r, err := wire.FromRequest(q)
		if err != nil {
			return nil, err
		}
		if q.Role != subjects.RoleCritic || q.Hint != "" || q.Model != "" || q.Stream || q.Think == nil || *q.Think || r.Options.Predict != w.c.cfg.Predict || r.Options.Temperature != nil {
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

// judges changes what the model says.
func (w *world) judges(f func(model.Request) (string, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge = f
}

// prompts are what the model was asked, the last message of each request.
func (w *world) prompts() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.asked {
		out = append(out, r.Messages[len(r.Messages)-1].Content)
	}
	return out
}

// message is an answer on its way in.
func message(from string, r subjects.Response) actor.Msg[subjects.Response] {
	return actor.Msg[subjects.Response]{Subject: "from." + from + ".response.generation", From: from, Tokens: []string{from}, Query: r.QueryID, Session: r.SessionID, StoredAt: noon, Attempt: 1, Body: r}
}

// hears hands an answer in.
func (w *world) hears(from string, r subjects.Response) error {
	return w.c.onResponse(w.t.Context(), message(from, r), w.rec.Out())
}

// must hands an answer in that must be handled.
func (w *world) must(from string, r subjects.Response) {
	w.t.Helper()
	if err := w.hears(from, r); err != nil {
		w.t.Fatal(err)
	}
}

// plain is an answer without tools.
func plain(query string) subjects.Response {
	return subjects.Response{
		SessionID: "s1", QueryID: query, Query: "What is the capital of Norway?", Answer: "Oslo.", ToolCalls: []subjects.ToolCall{}, GeneratorID: "generator", RespondentID: "generator",
		Model: "big", Labels: &subjects.Labels{Trust: subjects.Trusted, Privacy: subjects.Public},
	}
}

// said are the events of a kind.
func said[T any](w *world, subject string) (out []T) {
	w.t.Helper()
	for _, s := range w.rec.Published() {
		if s.Subject != subject {
			continue
		}
		var v T
		if err := actor.DecodeStrict([]byte(s.Body), &v); err != nil {
			w.t.Fatal(err)
		}
		if !s.Waited || s.ID == "" {
			w.t.Errorf("%s was not said once: %+v", subject, s)
		}
		out = append(out, v)
	}
	return out
}

func (w *world) critiques() []subjects.Critique { return said[subjects.Critique](w, "critique.result") }

func (w *world) verdicts() []subjects.Pairwise { return said[subjects.Pairwise](w, "pairwise.result") }

// critique is the one that there must be.
func (w *world) critique() subjects.Critique {
	w.t.Helper()
	all := w.critiques()
	if len(all) != 1 {
		w.t.Fatalf("%d critiques: %+v", len(all), all)
	}
	return all[0]
}

// nowhere fails the test when a secret is in what was said, asked, noted or written down.
func (w *world) nowhere(secret string) {
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
	for what, v := range map[string]any{"events": w.rec.Published(), "questions to a model": w.rec.Requested(), "the log": w.rec.Logged(), "the book": book} {
		if all := fmt.Sprintf("%+v", v); strings.Contains(all, secret) {
			at := strings.Index(all, secret)
			w.t.Errorf("%s holds %q", what, all[max(0, at-80):min(len(all), at+80)])
		}
	}
}

// listens is what an actor listens to.
func listens(a actor.Actor) (out []string) {
	for _, r := range a.Routes() {
		out = append(out, r.Spec().Subscription())
	}
	slices.Sort(out)
	return out
}
