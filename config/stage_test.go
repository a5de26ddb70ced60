package config_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"conclave/config"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/story"
	"conclave/subjects"
)

// told parses a story whose first three lines are the same in all these tests.
func told(t testing.TB, text string) *story.Story {
	t.Helper()
	s, err := story.Parse([]byte("story: T\ntitle: a test of the stage\nwhy: to see\n"+text), "stories/t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A request that the script does not expect fails the story, says where, and shows what was asked.
func TestStageMismatch(t *testing.T) {
	t.Parallel()
	r := config.Play(t.Context(), told(t, `model:
  assistant:
    - when: {last_contains: something else}
      reply: {content: never}
turns:
  - query: What is the time?
    answer: {contains: [never]}
`), config.StageOptions{}, story.Options{})
	for _, want := range []string{
		`stories/t.yaml:6: the model was asked what the script does not expect: script of assistant: exchange 0 wants "something else" in the last message`,
		"stories/t.yaml:6: nobody asked for this reply of assistant",
		"stories/t.yaml:10: turn 1: the answer does not contain \"never\"",
		`assistant: system "..." user "What is the time?" tools [get_datetime]`,
		"generator  response.generation",
	} {
		if !strings.Contains(r.Report(), want) {
			t.Errorf("want %q\n%s", want, r.Report())
		}
	}
}

// What a story sets is read as strictly as any other configuration, and blamed on the story's line.
func TestStageConfiguration(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"config:\n  system: {log_level: warn}\n  web_search:\n    provder: mock\n", "stories/t.yaml:7: config.web_search:"},
		{"config:\n  web_search: {provider: nobody}\n", `stories/t.yaml:5: config.web_search: `},
		{"config: {websearch: {provider: mock}}\n", "stories/t.yaml:4: config.websearch:"},
		{"config: {system: {listen: '0.0.0.0:1'}}\n", "can be reached from other machines"},
	} {
		st, err := config.OpenStage(t.Context(), told(t, tt.text+"turns: [{query: hello, no_notes: true}]\n"), config.StageOptions{})
		if err == nil {
			st.Close(context.Background())
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: error %v, want %q", tt.text, err, tt.want)
		}
	}
}

// A stage leaves nothing behind, whether the story was played or could not begin.
func TestStageLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	for _, text := range []string{
		"server: {down: true}\nturns: [{query: hello, answer: {equals: hi}}]\n",
		"config: {system: {nope: x}}\nturns: [{query: hello, answer: {equals: hi}}]\n",
	} {
		r := config.Play(t.Context(), told(t, text), config.StageOptions{}, story.Options{})
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%q (%d failures) leaves %v, %v", text, len(r.Failures), left, err)
		}
	}
}

// With a real model the person's own configuration counts, and the script does not.
func TestStageLive(t *testing.T) {
	t.Parallel()
	real := modeltest.New(t, modeltest.Script{"mine": {
		{When: modeltest.When{LastContains: "capital"}, Reply: modeltest.Reply{Content: "Paris, of course."}},
	}})
	dir := t.TempDir()
	text := "ollama: {url: '" + real.URL + "'}\nroles: {assistant: mine}\nstand_in: never\n"
	if err := os.WriteFile(filepath.Join(dir, "models.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	live := config.StageOptions{Live: true, Config: dir}
	s := told(t, `model:
  assistant:
    - reply: {content: the script}
turns:
  - query: What is the capital of France?
    answer: {contains: [Paris]}
    thinking: {not_empty: true, scripted_only: true}
events:
  in_order: [query.received, response.generation model=mine]
`)
	if r := config.Play(t.Context(), s, live, story.Options{}); !r.OK() {
		t.Error(r.Report())
	}
	if err := real.Err(); err != nil {
		t.Error(err)
	}
	s = told(t, "scripted_only: true\nturns: [{query: hello, no_notes: true}]\n")
	if r := config.Play(t.Context(), s, live, story.Options{}); !r.OK() || r.Skipped == "" {
		t.Errorf("got %+v", r)
	}
}

// Events come from the stream with their authors, and questions stand before what came of them.
func TestStageEvents(t *testing.T) {
	t.Parallel()
	s := told(t, "model: {assistant: [{reply: {content: hi}}, {reply: {content: ho}}]}\nturns: [{query: hello, answer: {equals: hi}}]\n")
	st, err := config.OpenStage(t.Context(), s, config.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	heard, err := st.Hear(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var seen []story.Event
	for _, query := range []string{"q1", "q2"} {
		if err := st.Ask(ctx, subjects.Query{SessionID: "s", QueryID: query, Query: "hello"}); err != nil {
			t.Fatal(err)
		}
		for e := range heard {
			if e.Query == query && e.Subject == "answer.dialog" {
				break
			}
		}
		if seen, err = st.Events(ctx, 0); err != nil {
			t.Fatal(err)
		}
	}
	var asked, answered []int
	for i, e := range seen {
		switch e.Subject {
		case "query.received":
			asked = append(asked, i)
		case "answer.dialog":
			answered = append(answered, i)
			if e.From != "generator" || e.Session != "s" || e.Seq == 0 || e.Time.IsZero() {
				t.Errorf("event %+v", e)
			}
		}
	}
	if len(asked) != 2 || len(answered) != 2 || asked[0] != 0 || asked[1] < answered[0] || answered[1] < asked[1] {
		t.Errorf("asked %v, answered %v in %v", asked, answered, seen)
	}
	half := seen[len(seen)/2].Seq
	rest, err := st.Events(ctx, half)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range rest {
		if e.Seq > 0 && e.Seq <= half {
			t.Errorf("event %d is not after %d", e.Seq, half)
		}
	}
	if _, err := st.Request(ctx, story.Request{As: "nobody", Tool: "get_datetime"}, "q"); err == nil {
		t.Error("nobody asked the broker")
	}
	if err := st.Crash(ctx, "nobody"); err == nil {
		t.Error("nobody was ended")
	}
}
