package model_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"conclave/actors/model"
	"conclave/pkg/actor/actortest"
	llm "conclave/pkg/model"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

// capacityHarness is a model actor on a server that holds n models at a time, with what an earlier run kept in file.
func capacityHarness(t *testing.T, n int, file string) *harness {
	t.Helper()
	return newHarness(t, always("big"), func(c *model.Config) { c.MeasuredFile = file }, scriptserver.WithCapacity(n))
}

func (w *harness) embed(task string) string {
	w.t.Helper()
	return actortest.Code(w.deliver("agent.memory.model.embed", subjects.EmbedRequest{
		Texts: []string{"a b"},
		Task:  task,
	}, nil))
}

// embeddingsNotice is what model.list says about the model of the embeddings.
func (w *harness) embeddingsNotice() string {
	w.t.Helper()
	var list subjects.ModelList
	if err := w.deliver("agent.user.model.list", subjects.Empty{}, &list); err != nil {
		w.t.Fatal(err)
	}
	for _, r := range list.Roles {
		if r.Role == subjects.RoleEmbeddings {
			return r.Notice
		}
	}
	w.t.Fatal("no role embeddings")
	return ""
}

// loadOutside loads big, as another client of the server does.
func (w *harness) loadOutside() {
	w.t.Helper()
	if _, _, err := llm.Collect(newBackend(w.t, w.srv.URL).Chat(w.t.Context(), llm.Request{Model: "big"})); err != nil {
		w.t.Fatal(err)
	}
}

func TestEmbeddingUnloadsNoModelInUse(t *testing.T) {
	t.Parallel()
	w := capacityHarness(t, 1, "")
	if got := w.ask(subjects.ChatRequest{}); got.err != nil {
		t.Fatal(got.err)
	}
	for _, task := range []string{subjects.EmbedQuery, subjects.EmbedDocument} {
		if code := w.embed(task); code != subjects.CodeModelSwap {
			t.Errorf("%s: %q", task, code)
		}
	}
	if s := w.srv.Stats(); s.Loads != 1 || s.Swaps != 0 {
		t.Errorf("%d loads, %d swaps", s.Loads, s.Swaps)
	}
	if got := w.auditSummary(); strings.Count(got, "denied") != 2 {
		t.Errorf("audit: %s", got)
	}
}

// The embedding model is loaded before any other. A server with room for one model unloads it for the first chat; from
// then on no request swaps, also after a restart, and the list says why. With room for both, both are used from the
// beginning.
func TestModelsThatStayLoadedTogetherAreUsedTogether(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		room, loads, swaps int
		code               string
	}{
		"room for one": {1, 2, 1, subjects.CodeModelSwap},
		"room for two": {2, 2, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "measured.json")
			w := capacityHarness(t, tt.room, file)
			if code := w.embed(subjects.EmbedQuery); code != "" {
				t.Errorf("with nothing loaded: %q", code)
			}
			for range 3 {
				if got := w.ask(subjects.ChatRequest{}); got.err != nil {
					t.Fatal(got.err)
				}
				if code := w.embed(subjects.EmbedQuery); code != tt.code {
					t.Errorf("beside the assistant's model: %q, want %q", code, tt.code)
				}
			}
			if s := w.srv.Stats(); s.Loads != tt.loads || s.Swaps != tt.swaps {
				t.Errorf("%d loads, %d swaps", s.Loads, s.Swaps)
			}
			if notice := w.embeddingsNotice(); strings.Contains(notice, "OLLAMA_MAX_LOADED_MODELS") != (tt.code != "") {
				t.Errorf("the list says %q", notice)
			}
			if err := w.m.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			after := capacityHarness(t, tt.room, file)
			after.loadOutside()
			if code := after.embed(subjects.EmbedQuery); code != tt.code {
				t.Errorf("after a restart: %q, want %q", code, tt.code)
			}
		})
	}
}

// While nothing is known, an embedding that no user waits for is tried after an idle delay; here no question was asked
// at all. A model that it unloads is loaded again, by a call in the audit log.
func TestRoomForTwoModelsIsTriedWhenIdle(t *testing.T) {
	t.Parallel()
	for name, room := range map[string]int{"room for one": 1, "room for two": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := capacityHarness(t, room, "")
			if err := w.m.Start(context.Background(), w.rec.Out()); err != nil {
				t.Fatal(err)
			}
			w.loadOutside()
			if code := w.embed(subjects.EmbedQuery); code != subjects.CodeModelSwap {
				t.Errorf("a question that waits for it: %q", code)
			}
			w.auditSummary()
			if code := w.embed(subjects.EmbedDocument); code != "" {
				t.Errorf("in the background: %q", code)
			}
			if room == 2 {
				if code := w.embed(subjects.EmbedQuery); code != "" {
					t.Errorf("both stay loaded, but %q", code)
				}
				return
			}
			waitFor(t, "big is loaded again", func() bool { return w.srv.Stats().Loads == 3 })
			if code := w.embed(subjects.EmbedDocument); code != subjects.CodeModelSwap {
				t.Errorf("once it is known: %q", code)
			}
			waitFor(t, "the records of the embedding and of the load", func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return len(w.records) == 5
			})
		})
	}
}

// A server that was configured anew keeps two models that it did not keep before: after a day they are tried together
// again.
func TestModelsThatDidNotFitAreTriedAgainAfterADay(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "measured.json")
	w := capacityHarness(t, 1, file)
	w.embed(subjects.EmbedQuery)
	if got := w.ask(subjects.ChatRequest{}); got.err != nil {
		t.Fatal(got.err)
	}
	if code := w.embed(subjects.EmbedQuery); code != subjects.CodeModelSwap {
		t.Fatalf("with room for one: %q", code)
	}
	if err := w.m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pattern := regexp.MustCompile(`"seen": ?"([^"]*)"`)
	match := pattern.FindSubmatch(kept)
	if match == nil {
		t.Fatalf("no time in %s", kept)
	}
	seen, err := time.Parse(time.RFC3339, string(match[1]))
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		age  time.Duration
		code string
	}{
		"an hour later":  {time.Hour, subjects.CodeModelSwap},
		"two days later": {48 * time.Hour, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "measured.json")
			earlier := `"seen":"` + seen.Add(-tt.age).Format(time.RFC3339) + `"`
			if err := os.WriteFile(file, pattern.ReplaceAll(kept, []byte(earlier)), 0o600); err != nil {
				t.Fatal(err)
			}
			w := capacityHarness(t, 2, file)
			w.loadOutside()
			if code := w.embed(subjects.EmbedDocument); code != tt.code {
				t.Errorf("in the background: %q, want %q", code, tt.code)
			}
			if code := w.embed(subjects.EmbedQuery); code != tt.code {
				t.Errorf("for a question after it: %q, want %q", code, tt.code)
			}
		})
	}
}
