package model_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"conclave/actors/model"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

// capacityHarness is a model actor on a server that holds n models at a time.
func capacityHarness(t *testing.T, n int, change func(*model.Config)) *harness {
	t.Helper()
	return newHarness(t, always("big", "judge"), change, scriptserver.WithCapacity(n))
}

func (w *harness) embed(task string) string {
	w.t.Helper()
	return actortest.Code(w.deliver("agent.memory.model.embed", subjects.EmbedRequest{
		Texts: []string{"a b"},
		Task:  task,
	}, nil))
}

// roleNotice is what model.list says about the model of a role.
func (w *harness) roleNotice(role string) string {
	w.t.Helper()
	var list subjects.ModelList
	if err := w.deliver("agent.user.model.list", subjects.Empty{}, &list); err != nil {
		w.t.Fatal(err)
	}
	for _, r := range list.Roles {
		if r.Role == role {
			return r.Notice
		}
	}
	w.t.Fatalf("no role %s", role)
	return ""
}

// Embeddings are always made, also the first one beside a loaded model. Only when the server was seen to unload that
// one, further ones are denied, for an hour; the list says why and what to do.
func TestEmbeddingsAreMadeUntilTheyUnloadAModel(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		room   int
		change func(*model.Config)
		code   string // of the second embedding
		swaps  int
	}{
		"room for two": {2, nil, "", 0},
		"room for one": {1, nil, subjects.CodeModelSwap, 2}, // the embedding, and the answer after it
		"room for one, and the user accepts swaps": {
			1, func(c *model.Config) { c.Ollama.Exclusive = false }, "", 3,
		},
		"room for one, and the assistant's model need not stay": {
			1, func(c *model.Config) { c.Keep = []string{"embeddings"} }, "", 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := capacityHarness(t, tt.room, tt.change)
			for i, want := range []string{"", tt.code} {
				if got := w.ask(subjects.ChatRequest{}); got.err != nil {
					t.Fatal(got.err)
				}
				if code := w.embed(subjects.EmbedDocument); code != want {
					t.Errorf("embedding %d: %q, want %q", i, code, want)
				}
			}
			if s := w.srv.Stats(); s.Swaps != tt.swaps {
				t.Errorf("%d swaps, want %d", s.Swaps, tt.swaps)
			}
			notice := w.roleNotice(subjects.RoleEmbeddings)
			for _, what := range []string{"unloaded big", "OLLAMA_MAX_LOADED_MODELS", "exclusive: false"} {
				if strings.Contains(notice, what) != (tt.code != "") {
					t.Errorf("the list says %q", notice)
				}
			}
			w.m.AgeSwaps(61 * time.Minute)
			if code := w.embed(subjects.EmbedQuery); code != "" {
				t.Errorf("an hour later: %q", code)
			}
		})
	}
}

// A swap by a question that was asked at the same time is not held against the embeddings.
func TestSwapOfAnotherRequestIsNotTheEmbeddings(t *testing.T) {
	t.Parallel()
	w := capacityHarness(t, 1, nil)
	ask := func(name string) error { return w.ask(subjects.ChatRequest{Model: name}).err }
	if err := ask(""); err != nil {
		t.Fatal(err)
	}
	if err := w.m.DuringEmbedding(t.Context(), func() error { return ask("judge") }); err != nil {
		t.Fatal(err)
	}
	if notice := w.roleNotice(subjects.RoleEmbeddings); strings.Contains(notice, "unloaded") {
		t.Errorf("the list says %q", notice)
	}
}

// A swap is noticed also when the next question has loaded the assistant's model again before the server is asked.
func TestSwapIsSeenAfterTheNextQuestion(t *testing.T) {
	t.Parallel()
	for room, want := range map[int]bool{1: true, 2: false} {
		w := capacityHarness(t, room, nil)
		ask := func() error { return w.ask(subjects.ChatRequest{}).err }
		if err := ask(); err != nil {
			t.Fatal(err)
		}
		if err := w.m.DuringEmbedding(t.Context(), func() error {
			resp, err := http.Post(w.srv.URL+"/api/embed", "application/json",
				strings.NewReader(`{"model": "nomic-embed-text", "input": ["a b"]}`))
			if err != nil {
				return err
			}
			if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("status %s, %v", resp.Status, err)
			}
			return ask()
		}); err != nil {
			t.Fatal(err)
		}
		if notice := w.roleNotice(subjects.RoleEmbeddings); strings.Contains(notice, "unloaded big") != want {
			t.Errorf("room for %d: the list says %q", room, notice)
		}
	}
}

// A grade by a model that made the server unload the assistant's is the last one by it: the assistant's grades then. A
// question is answered by whatever model it asks for.
func TestBackgroundModelIsReplacedAfterItUnloadedTheAssistants(t *testing.T) {
	t.Parallel()
	for room, want := range map[int]string{1: "big", 2: "judge"} {
		w := capacityHarness(t, room, nil)
		if got := w.ask(subjects.ChatRequest{}); got.err != nil {
			t.Fatal(got.err)
		}
		grade := subjects.ChatRequest{Role: subjects.RoleCritic}
		if got := w.askAs("critic", "q1", grade); got.err != nil || got.last.Model != "judge" {
			t.Fatalf("the first grade: %s, %v", got.last.Model, got.err)
		}
		if got := w.ask(subjects.ChatRequest{}); got.err != nil {
			t.Fatal(got.err)
		}
		got := w.askAs("critic", "q2", grade)
		if got.err != nil || got.last.Model != want {
			t.Errorf("room for %d: the second grade by %s, %v", room, got.last.Model, got.err)
		}
		if told := strings.Contains(got.last.Notice, "unloaded big"); told != (want == "big") {
			t.Errorf("room for %d: the notice is %q", room, got.last.Notice)
		}
		named := w.askAs("critic", "q3", subjects.ChatRequest{Model: "judge"})
		if code := named.code(); (code == subjects.CodeModelSwap) != (want == "big") {
			t.Errorf("room for %d: the named model: %v", room, named.err)
		}
		if got := w.ask(subjects.ChatRequest{Model: "judge"}); got.err != nil {
			t.Errorf("room for %d: a question for the judge: %v", room, got.err)
		}
	}
}
