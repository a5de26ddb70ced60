package model_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/actors/model"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// slowHarness is a model actor on a machine where big reads 28 and writes 11 tokens a second, by an earlier run.
func slowHarness(t *testing.T, change func(*model.Config)) *harness {
	t.Helper()
	file := filepath.Join(t.TempDir(), "speeds.json")
	if err := os.WriteFile(file, []byte(`{"big": {"prompt": 28, "output": 11, "bytes_per_token": 4}}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	return newHarness(t, always("big"), func(c *model.Config) {
		c.MeasuredFile, c.BackgroundLimit, c.Roles = file, 30*time.Second, map[string]string{
			"assistant":  "big",
			"embeddings": "nomic-embed-text",
		}
		if change != nil {
			change(c)
		}
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
	w := slowHarness(t, nil)
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

// Calls that no user waits for are left out on a machine that is too slow for them; model.list says so.
func TestBackgroundCallsAreLeftOutOnASlowMachine(t *testing.T) {
	t.Parallel()
	long, short := 1600, 200 // 14 and 2 seconds, and 12 for the reply
	for name, tt := range map[string]struct {
		account              string
		size                 int
		background, optional bool
		refused              bool
	}{
		"a question is never refused":        {"generator", 80_000, false, false, false},
		"a long digest":                      {"memory", 2 * long, true, true, true},
		"a short digest":                     {"memory", short, true, true, false},
		"a long grade":                       {"critic", 2 * long, false, false, true},
		"a selection that the user waits on": {"broker", short, false, true, true},
	} {
		w := slowHarness(t, nil)
		q := chatOf("assistant", tt.size)
		q.Background, q.Optional = tt.background, tt.optional
		err := w.askAs(tt.account, "q1", q).err
		if code := actortest.Code(err); (code == subjects.CodeModelSlow) != tt.refused || err != nil && !tt.refused {
			t.Errorf("%s: %v", name, err)
		}
		if tt.refused && !strings.Contains(fmt.Sprint(err), "background_limit in models.yaml") {
			t.Errorf("%s: the setting is not named: %v", name, err)
		}
	}
}

func TestModelListHasSpeedsAndSkippedCalls(t *testing.T) {
	t.Parallel()
	w := slowHarness(t, nil)
	if got := w.askAs("critic", "q1", chatOf("critic", 9000)); got.code() != subjects.CodeModelSlow {
		t.Fatal(got.err)
	}
	var list subjects.ModelList
	if err := w.deliver("agent.user.model.list", subjects.Empty{}, &list); err != nil ||
		!strings.Contains(list.Skipped, "1 call for grades") {
		t.Errorf("skipped %q, %v", list.Skipped, err)
	}
	i := slices.IndexFunc(list.Models, func(m subjects.ModelInfo) bool { return m.Name == "big:latest" })
	if i < 0 || list.Models[i].PromptSpeed != 28 || list.Models[i].OutputSpeed != 11 {
		t.Errorf("models %+v", list.Models)
	}
}

func TestWithoutBackgroundLimitNothingIsLeftOut(t *testing.T) {
	t.Parallel()
	w := slowHarness(t, func(c *model.Config) { c.BackgroundLimit = 0 })
	if got := w.askAs("critic", "q1", chatOf("critic", 9000)); got.err != nil {
		t.Error(got.err)
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
