// Package stories holds the acceptance stories, one file each, and runs them: a whole Conclave per story, with every
// actor, real NATS and real HTTP, and a model server that follows the story's script.
package stories_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/actors/memory"
	"conclave/actors/memory/store"
	"conclave/pkg/datatest"
	"conclave/pkg/programtest"
	"conclave/pkg/story"
	"conclave/stories/harness"
)

// patient has limits for a machine that runs other tests too. A story that passes ends long before them.
var patient = story.Options{AnswerTimeout: time.Minute, SettleTimeout: 15 * time.Second}

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", side); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	// with several systems in the process, collecting garbage is a quarter of its processor time
	debug.SetGCPercent(400)
	os.Setenv("GOMEMLIMIT", "off") // each story would set the limit of one system for the process
	os.Exit(m.Run())
}

// emptyMemory is the file of a memory with nothing in it.
var emptyMemory = datatest.MakeOnce(func(path string) error {
	db, err := store.Open(context.Background(), path, store.Options{})
	if err != nil {
		return err
	}
	return db.Close(context.Background())
})

// inMemory are the options of a system whose data folder is removed with the test. It has an empty memory.
func inMemory(t testing.TB) harness.Options {
	t.Helper()
	data := filepath.Join(datatest.Dir(t), "data")
	file := memory.DatabaseFile(data)
	content, err := emptyMemory()
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		err = os.WriteFile(file, content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return harness.Options{Data: data}
}

// load reads a story by its file's name.
func load(t testing.TB, file string) *story.Story {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, err := story.Parse(data, path.Join("stories", file))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// files are the names of all stories.
func files(t testing.TB) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, ".yaml") {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		t.Fatal("no story files found")
	}
	return out
}

func TestStories(t *testing.T) {
	t.Parallel()
	for _, file := range files(t) {
		t.Run(strings.TrimSuffix(file, ".yaml"), func(t *testing.T) {
			t.Parallel()
			r := harness.RunStory(t.Context(), load(t, file), inMemory(t), patient)
			if r.Skipped != "" {
				programtest.SkipIf(t, errors.New(r.Skipped))
			}
			if !r.OK() {
				t.Error("\n" + r.Report())
			}
		})
	}
}

// TestUsedSystem runs stories twice on one system: what memory keeps of the first run, recalled for the second before
// the first model call, must neither change the answer nor make a search wait for an approval.
func TestUsedSystem(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"s1_capital.yaml", "s3_web_search.yaml", "s4_search_then_fetch.yaml"} {
		t.Run(strings.TrimSuffix(file, ".yaml"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			before, rest, _ := strings.Cut(string(data), "\nturns:\n")
			turn, after, _ := strings.Cut(rest, "\nevents:\n")
			again := turn + "\n    session: another\n    after: memory.stored"
			s, err := story.Parse([]byte(before+"\nturns:\n"+turn+"\n"+again+"\nevents:\n"+after), file)
			if err != nil {
				t.Fatal(err)
			}
			s.Config = map[string]map[string]any{"generator": {"recall_first": "always"}}
			for role, exchanges := range s.Model {
				s.Model[role] = slices.Concat(exchanges, exchanges)
			}
			s.Events.Present = nil // the counts of one run
			if s.Web != nil {
				for i := range s.Web.Pages {
					s.Web.Pages[i].Requests = nil
				}
			}
			if r := harness.RunStory(t.Context(), s, inMemory(t), patient); !r.OK() {
				t.Error("\n" + r.Report())
			}
		})
	}
}

// TestStoryIDs requires unique ids and file names that begin with the id.
func TestStoryIDs(t *testing.T) {
	t.Parallel()
	var ids []string
	for _, file := range files(t) {
		s := load(t, file)
		if slices.Contains(ids, s.ID) {
			t.Errorf("%s: duplicate id %s", file, s.ID)
		}
		ids = append(ids, s.ID)
		if !strings.HasPrefix(file, strings.ToLower(s.ID)) {
			t.Errorf("%s: the file name does not begin with the id %s", file, s.ID)
		}
	}
}

// TestPronounNeedsHistory removes the history from a story that depends on it, by another session and by a limit of one
// turn: the story must fail.
func TestPronounNeedsHistory(t *testing.T) {
	if os.Getenv("CONCLAVE_SHORT") != "" {
		t.Skip("CONCLAVE_SHORT is set")
	}
	t.Parallel()
	for name, without := range map[string]func(*story.Story){
		"another session": func(s *story.Story) { s.Turns[2].Session = "another" },
		"one turn kept":   func(s *story.Story) { s.Config = map[string]map[string]any{"generator": {"turns": 1}} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := load(t, "history_resolves_pronoun.yaml")
			without(s)
			r := harness.RunStory(t.Context(), s, inMemory(t), patient)
			if r.OK() || !strings.Contains(r.Report(), "Marie [A-Z][a-z]+ is not in") {
				t.Errorf("the story does not fail without the first question:\n%s", r.Report())
			}
		})
	}
}

// TestStoriesFailWithoutGuard removes the guard that a story is about: the story must fail, for the expected reason.
func TestStoriesFailWithoutGuard(t *testing.T) {
	if os.Getenv("CONCLAVE_SHORT") != "" {
		t.Skip("CONCLAVE_SHORT is set")
	}
	t.Parallel()
	for _, tt := range []struct {
		name, file string
		without    func(*story.Story)
		want       string
	}{
		{"the user approves the injected call", "injected_page_denied.yaml", func(s *story.Story) {
			s.Turns[1].Approve.Answer = story.AnswerApprove
		}, "http://collect.example.net/in?code=4711 was requested 1 times, want 0"},
		{"the override does not end", "override_once.yaml", func(s *story.Story) {
			s.Turns[0].Override.Once = false
		}, "turn 2: there was no approval request"},
		{"the tool is not disabled", "disabled_tool.yaml", func(s *story.Story) {
			s.Turns[1].Override = nil
			s.Turns = slices.Delete(s.Turns, 2, 3)
		}, "no such call of web_search"},
		{"the parent's tools are not narrowed", "lineage_narrowing.yaml", func(s *story.Story) {
			s.Turns[1].Request.Spawn[0].Tools = nil
		}, "turn 2: it did not fail with denied"},
		{"the tool is not killed", "tool_killed.yaml", func(s *story.Story) {
			s.Turns[0].Crash = nil
		}, "unexpected event tool.result.web_fetch result~later"},
		{"the result is not parked", "large_result_parked.yaml", func(s *story.Story) { s.Config = nil }, "needle"},
		{"the user approves the call injected through memory", "memory_injected_page.yaml", func(s *story.Story) {
			s.Turns[1].Approve.Answer = story.AnswerApprove
		}, "http://collect.example.net/in?code=4711 was requested 1 times, want 0"},
		{"the untrusted document is imported as trusted", "memory_document.yaml", func(s *story.Story) {
			s.Turns[1].Memory.Import.Trust = "trusted"
		}, "turn 4: there was no approval request"},
		{"the entry is not forgotten", "memory_forget.yaml", func(s *story.Story) {
			s.Turns[4].Memory = nil
		}, `turn 6: the answer contains "black"`},
		{"no entry supersedes another", "memory_contradiction.yaml", func(s *story.Story) {
			// Contradictions are found by the relations that the model makes.
			s.Model["summaries"][1] = s.Model["summaries"][2]
		}, "timeout: waiting for memory.stored action=superseded (0 so far)"},
		{"the second question has other words", "memory_cache.yaml", func(s *story.Story) {
			s.Turns[2].Request.Args["query"] = "how does the user drink coffee"
		}, "no event memory.recalled cached=true"},
		{"both answers get the same grade", "memory_low_grade_ranks_last.yaml", func(s *story.Story) {
			for i := range s.Model["critic"] {
				s.Model["critic"][i].Reply.Content = "Feedback: It will do. [RESULT] 3"
			}
		}, "turn 3: the answer does not match"},
		{"the judge prefers a position", "s7_pairwise.yaml", func(s *story.Story) {
			s.Model["critic"][3].Reply.Content = "Feedback: The first one. [RESULT] A"
		}, "no event pairwise.result winner=generator"},
		{"the answer claims nothing", "critic_claim_without_call.yaml", func(s *story.Story) {
			s.Model["assistant"][0].Reply.Content = "The bridge opened in 1932."
		}, "I searched the web for it"},
		{"the grade is not in the prompt", "grade_in_prompt.yaml", func(s *story.Story) { s.Config = nil }, "2 of 5"},
		{"the candidate is not accepted", "memory_candidate.yaml", func(s *story.Story) {
			s.Turns[5].Memory = nil
		}, "turn 7: the answer does not contain \"ten past nine\""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := load(t, tt.file)
			tt.without(s)
			r := harness.RunStory(t.Context(), s, inMemory(t), story.Options{AnswerTimeout: 30 * time.Second})
			if r.OK() || !strings.Contains(r.Report(), tt.want) {
				t.Errorf("the story does not fail with %q:\n%s", tt.want, r.Report())
			}
		})
	}
}
