package model_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"conclave/actors/model"
	"conclave/subjects"
)

// slowHarness is a model actor on a machine where big reads 28 and writes 11 tokens a second, by an earlier run.
func slowHarness(t *testing.T) *harness {
	t.Helper()
	file := filepath.Join(t.TempDir(), "speeds.json")
	if err := os.WriteFile(file, []byte(`{"big": {"prompt": 28, "output": 11, "bytes_per_token": 4}}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	return newHarness(t, always("big"), func(c *model.Config) {
		c.MeasuredFile, c.Roles = file, map[string]string{"assistant": "big", "embeddings": "nomic-embed-text"}
	})
}

// chatOf is a chat request with a prompt of so many bytes.
func chatOf(role string, size int) subjects.ChatRequest {
	return subjects.ChatRequest{
		Role: role, Stream: true,
		Messages: []byte(fmt.Sprintf(`[{"role":"user","content":%q}]`, strings.Repeat("a", size))),
	}
}

func TestLongPromptIsAnnouncedWithItsExpectedTime(t *testing.T) {
	t.Parallel()
	w := slowHarness(t)
	got := w.ask(chatOf("assistant", 4796))
	if got.err != nil {
		t.Fatal(got.err)
	}
	if first := got.pieces[0]; first.Reading == nil || first.Reading.Tokens != 1200 || first.Reading.Millis != 42857 ||
		first.Done || first.Content != "" {
		t.Errorf("the first chunk is %+v", first)
	}
	if got := w.ask(chatOf("assistant", 4796)); got.err != nil || got.pieces[0].Reading != nil {
		t.Errorf("a cached prompt is announced: %+v, %v", got.pieces[0].Reading, got.err)
	}
}

// A grade and a digest are made on a slow machine too: a question preempts them.
func TestNothingIsLeftOutOnASlowMachine(t *testing.T) {
	t.Parallel()
	w := slowHarness(t)
	for _, account := range []string{"generator", "critic", "memory"} {
		q := chatOf("assistant", 80_000)
		q.Background = account != "generator"
		if got := w.askAs(account, "q1", q); got.err != nil {
			t.Errorf("%s: %v", account, got.err)
		}
	}
}

func TestModelListHasSpeeds(t *testing.T) {
	t.Parallel()
	w := slowHarness(t)
	var list subjects.ModelList
	if err := w.deliver("agent.user.model.list", subjects.Empty{}, &list); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list.Models, func(m subjects.ModelInfo) bool { return m.Name == "big:latest" })
	if i < 0 || list.Models[i].PromptSpeed != 28 || list.Models[i].OutputSpeed != 11 {
		t.Errorf("models %+v", list.Models)
	}
}

// A role's own model wins over the hint; a role without one uses the hint's, then the assistant's.
func TestRoleModelWinsOverHint(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("big", "tiny", "picker", "notes"), func(c *model.Config) {
		c.Roles = map[string]string{
			"assistant": "big", "embeddings": "nomic-embed-text", "tools": "picker",
			"summaries": "notes",
		}
	})
	for _, tt := range [][3]string{
		{"tools", "simple", "picker"},
		{"summaries", "simple", "notes"},
		{"critic", "simple", "tiny"},
		{"critic", "", "big"},
	} {
		q := chatOf(tt[0], 20)
		q.Hint = tt[1]
		if got := w.askAs("memory", "q1", q); got.err != nil || got.last.Model != tt[2] {
			t.Errorf("role %s with hint %q: %s, %v", tt[0], tt[1], got.last.Model, got.err)
		}
	}
}
