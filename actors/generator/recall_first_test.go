package generator

import (
	"slices"
	"strings"
	"testing"

	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/subjects"
)

// Before the first model call the user's own statements are recalled for the question, or only pinned facts, in a state
// of its own. Entries that are found are in the prompt; when there are none, the prompt has no trace of the search. The
// call is listed in any case. Tools that read memory are not offered again to a model with constrained calls.
func TestMemoryIsSearchedBeforeFirstModelCall(t *testing.T) {
	t.Parallel()
	found := subjects.ToolResult{
		Result:  "What the user told you.\n- today, you said: \"I take coffee black.\"",
		Recalls: []string{"entry1"},
	}
	for _, tt := range []struct {
		name     string
		setting  string
		calls    string // of the model
		question string
		result   subjects.ToolResult
		fault    *subjects.Fault
		searched bool
		shown    bool // the result is in the prompt of the answer
		demo     bool // the built-in demo model answers

		pinnedOnly bool // no statement is recalled
	}{
		{
			name: "an entry fits", setting: recallAuto, calls: string(loop.CallConstrained), result: found,
			searched: true,
			shown:    true,
		},
		{
			name: "nothing fits", setting: recallAuto, calls: string(loop.CallConstrained),
			result: subjects.ToolResult{Result: "Nothing fits."}, searched: true,
		},
		{
			name: "the broker denies it", setting: recallAuto, calls: string(loop.CallConstrained),
			fault: subjects.Faultf(subjects.CodeDenied, "no"), searched: true,
		},
		{
			name: "a model without tool calls", setting: recallAlways, calls: string(loop.CallText), result: found,
			searched: true, shown: true,
		},
		{
			name: "a model with native calls, auto", setting: recallAuto, calls: string(loop.CallNative),
			result: found, searched: true, shown: true, pinnedOnly: true,
		},
		{
			name: "a model with native calls, always", setting: recallAlways, calls: string(loop.CallNative),
			result: found, searched: true, shown: true,
		},
		{name: "the demo model", setting: recallAlways, calls: string(loop.CallNative), result: found, demo: true},
		{name: "never", setting: recallNever, calls: string(loop.CallConstrained), result: found},
		{
			name: "the question is attached as a whole", setting: recallAuto, calls: string(loop.CallConstrained),
			question: subjects.PipedQuestion, result: found,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			decision := `{"choice":"search_memory"}` // counts as the choice to answer where nothing was found
			if tt.calls != string(loop.CallConstrained) {
				decision = "Black."
			}
			w := newHarness(t, decision, "Black.")
			w.tools = []string{recallTool, "search_knowledge_graph", "clock"}
			w.role.Calls, w.role.DemoModel = tt.calls, tt.demo
			var searches []subjects.ToolRequest
			w.run = func(c subjects.ToolRequest) (subjects.ToolResult, error) {
				searches = append(searches, c)
				if tt.fault != nil {
					return subjects.ToolResult{}, tt.fault
				}
				return tt.result, nil
			}
			cfg := shippedConfig()
			cfg.RecallFirst = tt.setting
			question := tt.question
			if question == "" {
				question = "how do I take my coffee?"
			}
			if err := w.ask(New(subjects.Generator, cfg), "s", "q", question, 1); err != nil {
				t.Fatal(err)
			}
			if (len(searches) == 1) != tt.searched || len(searches) > 1 {
				t.Fatalf("%d searches", len(searches))
			}
			if tt.searched && (!strings.Contains(string(searches[0].Args), question) || !searches[0].Own ||
				strings.Contains(string(searches[0].Args), `"max":0`) != tt.pinnedOnly) {
				t.Errorf("searched for %s, own %t", searches[0].Args, searches[0].Own)
			}
			if path := w.statePath(); strings.Contains(path, string(recalling)) != tt.searched {
				t.Errorf("states %s", path)
			}
			first, last := w.asked[0], w.asked[len(w.asked)-1]
			isShown := slices.ContainsFunc(last.Messages, func(m model.Message) bool {
				return tt.result.Result != "" && strings.Contains(m.Content, tt.result.Result)
			})
			if isShown != tt.shown {
				t.Errorf("the result is in the prompt: %t", isShown)
			}
			if offered := strings.Contains(first.Messages[0].Content, "- search_"); tt.searched &&
				tt.calls == string(loop.CallConstrained) && offered != tt.shown {
				t.Errorf("the choice to use what was found: %t", offered)
			}
			r := w.onlyResponse()
			if listed := len(r.ToolCalls) == 1 && r.ToolCalls[0].Layer == subjects.LayerRecall; listed != tt.searched ||
				slices.Equal(r.Recalls, found.Recalls) != tt.shown {
				t.Errorf("calls %+v, recalls %v", r.ToolCalls, r.Recalls)
			}
			w.requireNoErrors()
		})
	}
}

// What memory adds to the prompt follows the question, so that system prompt, tools and history stay in the cache of
// the model server; and it is not kept in the conversation, where it would be repeated with every further question.
func TestRecalledEntriesFollowTheQuestionAndAreNotKept(t *testing.T) {
	t.Parallel()
	const entry = "Pinned by the user:\n- The user takes coffee black."
	w := newHarness(t, "Black.")
	w.tools = []string{recallTool, "clock"}
	w.run = func(subjects.ToolRequest) (subjects.ToolResult, error) {
		return subjects.ToolResult{Result: entry, Recalls: []string{"entry1"}}, nil
	}
	g := New(subjects.Generator, shippedConfig())
	for i, q := range []string{"how do I take my coffee?", "and in the evening?"} {
		if err := w.ask(g, "s", []string{"q1", "q2"}[i], q, 1); err != nil {
			t.Fatal(err)
		}
	}
	first, second := w.asked[0].Messages, w.asked[1].Messages
	for _, ms := range [][]model.Message{first, second} {
		if n := len(ms); ms[n-1].Content != entry || ms[n-2].Calls[0].ID != recallCall || ms[n-3].Role != model.User {
			t.Errorf("the prompt ends with %+v", ms[max(0, n-3):])
		}
	}
	if second[0].Content != first[0].Content || second[1].Content != first[1].Content || second[2].Content != "Black." {
		t.Errorf("the second prompt does not begin with the first turn: %+v", second)
	}
	for _, m := range w.conversation("s").Turns[0].Messages {
		if strings.Contains(m.Content, entry) || len(m.Calls) > 0 {
			t.Errorf("kept: %+v", m)
		}
	}
}
