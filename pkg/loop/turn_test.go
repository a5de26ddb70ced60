package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"conclave/pkg/model"
)

func TestTurnWithOneCall(t *testing.T) {
	t.Parallel()
	first := scriptedReply{chunks: []model.Chunk{
		{Thinking: "needs "},
		{Thinking: "data"},
		{Content: "I look."},
		{Calls: []model.Call{{Name: "web_search", Arguments: json.RawMessage(`{"limit":"3","query":"go"}`)}}},
		{Done: true, Final: model.Final{PromptTokens: 40, OutputTokens: 8, Model: "m1"}},
	}}
	a, p := newAgent(t, first, scriptedReply{chunks: []model.Chunk{
		{Content: "It is "},
		{Content: "so. "},
		{Done: true, Final: model.Final{PromptTokens: 60, OutputTokens: 4}},
	}})
	var rec hookRecorder
	s, err := RunTurn(t.Context(), a, question("what?"), rec.hooks())
	wantAnswer(t, s, err, "It is so.", false)
	wantNotes(t, s)
	want := []string{
		"generating 1", "thinking 1 needs ", "thinking 1 data", "interim 1 I look.", "checkpoint 2 messages",
		"started 1 web_search native", "finished 1 web_search ", "checkpoint 3 messages",
		"generating 2", "checkpoint 4 messages",
	}
	if !slices.Equal(rec.lines, want) {
		t.Errorf("hooks\n%s\nwant\n%s", strings.Join(rec.lines, "\n"), strings.Join(want, "\n"))
	}
	if got := rec.tokens.String(); got != "I look.It is so." {
		t.Errorf("tokens %q", got)
	}
	d := s.Finished[0]
	if d.Call.ID != "id1" || string(d.Call.Arguments) != `{"limit":3,"query":"go"}` || d.Layer != LayerNative ||
		d.Step != 1 {
		t.Errorf("done %+v", d)
	}
	second := p.asked[1]
	m := second.Messages[len(second.Messages)-1]
	if m.Role != model.ToolRole || m.CallID != "id1" || m.ToolName != "web_search" ||
		!strings.Contains(m.Content, `"go"`) {
		t.Errorf("result message %+v", m)
	}
	if back := second.Messages[len(second.Messages)-2]; back.Thinking != "needs data" {
		t.Errorf("thinking did not go back with the call: %+v", back)
	}
	if s.Thinking != "needs data" || s.Usage.Prompt != 100 || s.Usage.Output != 12 || s.Usage.Calls != 2 ||
		s.Usage.Model != "m1" {
		t.Errorf("thinking %q, usage %+v", s.Thinking, s.Usage)
	}
	if p.asked[0].Options.Predict != 2048 || len(p.asked[0].Tools) != 2 || !p.asked[0].Stream {
		t.Errorf("request %+v", p.asked[0])
	}
}

func TestCallsRunTogetherInOrder(t *testing.T) {
	t.Parallel()
	a, p := newAgent(t, callReply("web_search", `{"query":"a"}`, "web_search", `{}`, "nope", `{}`, "web_search",
		`{"query":"b"}`), textReply("done"))
	second := make(chan struct{})
	a.RunTool = func(_ context.Context, c model.Call) Result {
		if strings.Contains(string(c.Arguments), `"a"`) {
			<-second // the first ends after the last: they run together
			return Result{Text: "A"}
		}
		close(second)
		return Result{Text: "B", Fault: "denied"}
	}
	var rec hookRecorder
	s, err := RunTurn(t.Context(), a, question("q"), rec.hooks())
	wantAnswer(t, s, err, "done", false)
	wantNotes(t, s, NoteInvalid, NoteUnknown)
	var got []string
	for _, m := range p.asked[1].Messages[3:] {
		got = append(got, m.CallID+" "+m.Content)
	}
	want := []string{
		"id1 A",
		`id2 The call was not made: "query" is missing; it must be of type string. Correct it and call again.`,
		"id3 There is no tool of that name. The tools are: web_search, get_time.",
		"id4 B",
	}
	if !slices.Equal(got, want) {
		t.Errorf("results %q, want %q", got, want)
	}
	var faults []string
	for _, d := range s.Finished {
		faults = append(faults, d.Result.Fault)
	}
	if !slices.Equal(faults, []string{"", FaultInvalid, FaultUnknown, "denied"}) {
		t.Errorf("faults %q", faults)
	}
	if n := len(slices.DeleteFunc(slices.Clone(rec.lines), func(l string) bool {
		return !strings.HasPrefix(l, "finished")
	})); n != 4 {
		t.Errorf("%d calls were shown as finished, want 4: %q", n, rec.lines)
	}
}

func TestInvalidAndUsedIDsAreReplaced(t *testing.T) {
	t.Parallel()
	reply := scriptedReply{chunks: []model.Chunk{{Calls: []model.Call{
		{ID: "ok-1", Name: "get_time", Arguments: json.RawMessage(`{"zone":"a"}`)},
		{ID: "ok-1", Name: "get_time", Arguments: json.RawMessage(`{"zone":"b"}`)},
		{ID: "not a token", Name: "get_time", Arguments: json.RawMessage(`{"zone":"c"}`)},
		{ID: strings.Repeat("x", 65), Name: "get_time", Arguments: json.RawMessage(`{"zone":"d"}`)},
		{ID: "old", Name: "get_time", Arguments: json.RawMessage(`{"zone":"e"}`)},
		{ID: "", Name: "get_time", Arguments: json.RawMessage(`{"zone":"f"}`)},
	}, Done: true}}}
	a, _ := newAgent(t, reply, textReply("done"))
	in := question("q")
	in.History = []model.Message{
		{Role: model.User, Content: "before"},
		{Role: model.Assistant, Calls: []model.Call{{ID: "old", Name: "get_time", Arguments: json.RawMessage("{}")}}},
		{Role: model.ToolRole, CallID: "old", Content: "x"},
	}
	s, err := RunTurn(t.Context(), a, in, Hooks{})
	wantAnswer(t, s, err, "done", false)
	var ids []string
	for _, d := range s.Finished {
		ids = append(ids, d.Call.ID)
	}
	if want := []string{"ok-1", "id1", "id2", "id3", "id4", "id5"}; !slices.Equal(ids, want) {
		t.Errorf("ids %q, want %q", ids, want)
	}
}

// TestGuards has a row per guard: the scripted replies and the expected state.
func TestGuards(t *testing.T) {
	t.Parallel()
	look := func(q string) scriptedReply { return callReply("web_search", `{"query":"`+q+`"}`) }
	tests := []struct {
		name   string
		change func(*Agent)
		play   []scriptedReply
		// recalled says that an entry of memory is in the prompt.
		recalled bool
		answer   string
		partial  bool
		notes    []string
		check    func(t *testing.T, s State, p *scriptedModel)
	}{
		{
			name: "steps", change: func(a *Agent) { a.Limits.Steps = 2 },
			play: []scriptedReply{look("1"), look("2"), textReply("enough")}, answer: "enough",
			notes: []string{NoteStepCap},
			check: func(t *testing.T, s State, p *scriptedModel) {
				last := p.asked[2]
				if len(last.Tools) != 0 || lastText(last) != instructForced || last.Options.Predict != 4096 ||
					!s.Forced {
					t.Errorf("forced request %+v", last)
				}
			},
		},
		{
			name: "steps, and it calls all the same", change: func(a *Agent) { a.Limits.Steps = 1 },
			play: []scriptedReply{look("1"), look("2"), callReply("web_search", `{"query":"3"}`)}, partial: true,
			answer: "The model gave no answer. This is what the tools returned:\n\nweb_search " +
				"{\"query\":\"1\"}:\nweb_search of {\"query\":\"1\"}",
			notes: []string{NoteStepCap, NoteEmpty},
		},
		{
			name: "forced, call in text beside words", change: func(a *Agent) { a.Limits.Steps = 1 },
			play: []scriptedReply{
				look("1"),
				textReply(
					"It is so.\n<tool_call>{\"name\":\"web_search\",\"arguments\":{\"query\":\"2\"}}</tool_call>"),
			},
			answer: "It is so.",
			notes:  []string{NoteStepCap},
		},
		{
			name: "repetition", change: func(a *Agent) {
				a.RunTool = func(context.Context, model.Call) Result { return Result{Text: "same"} }
			},
			play: []scriptedReply{
				look("x"), callReply("web_search", `{ "query" : "\u0078" }`), look("x"),
				textReply("fine"),
			}, answer: "fine",
			notes: []string{NoteRepeated},
			check: func(t *testing.T, s State, _ *scriptedModel) {
				if len(s.Finished) != 3 || s.Finished[1].Result.Fault != "" ||
					s.Finished[2].Result.Fault != FaultRepeated {
					t.Errorf("done %+v", s.Finished)
				}
			},
		},
		{
			name: "repetition goes on", play: []scriptedReply{
				look("x"), look("x"), look("x"), look("x"),
				textReply("fine"),
			}, answer: "fine",
			notes: []string{NoteRepeated, NoteRepeated},
			check: func(t *testing.T, _ State, p *scriptedModel) {
				if len(p.asked[4].Tools) != 0 {
					t.Error("tools were still offered")
				}
			},
		},
		{
			name: "other results are no repetition", change: func(a *Agent) {
				n := 0
				a.RunTool = func(context.Context, model.Call) Result { n++; return Result{Text: fmt.Sprint(n)} }
			},
			play: []scriptedReply{look("x"), look("x"), look("x"), look("x"), textReply("fine")}, answer: "fine",
		},
		{
			name:   "repetition in one reply",
			play:   []scriptedReply{callReply("get_time", `{}`, "get_time", `{}`, "get_time", `{}`), textReply("fine")},
			answer: "fine", notes: []string{NoteRepeated},
		},
		{
			name: "budget", change: func(a *Agent) { a.Limits.TokenBudget = 400 },
			play: []scriptedReply{{chunks: []model.Chunk{{
				Calls: []model.Call{{Name: "get_time", Arguments: json.RawMessage("{}")}}, Done: true,
				Final: model.Final{PromptTokens: 300, OutputTokens: 90},
			}}}, textReply("short")}, answer: "short", notes: []string{NoteTokenBudget},
		},
		{
			name: "empty", play: []scriptedReply{textReply(""), textReply("yes")}, answer: "yes",
			notes: []string{NoteRetried},
			check: func(t *testing.T, _ State, p *scriptedModel) {
				if lastText(p.asked[1]) != instructEmpty {
					t.Errorf("said %q", lastText(p.asked[1]))
				}
			},
		},
		{
			name: "dropped call",
			play: []scriptedReply{
				{chunks: []model.Chunk{{Done: true, Final: model.Final{OutputTokens: 20}}}},
				textReply("yes"),
			}, answer: "yes", notes: []string{NoteRetried},
			check: func(t *testing.T, _ State, p *scriptedModel) {
				if lastText(p.asked[1]) != instructDropped {
					t.Errorf("said %q", lastText(p.asked[1]))
				}
			},
		},
		{
			name: "malformed", play: []scriptedReply{
				errorReply(fmt.Errorf("x: %w", model.ErrMalformed)),
				textReply("yes"),
			}, answer: "yes", notes: []string{NoteRetried},
		},
		{
			name: "malformed in the middle",
			play: []scriptedReply{
				{chunks: []model.Chunk{{Content: "Well"}}, err: model.ErrMalformed},
				textReply("yes"),
			}, answer: "yes", notes: []string{NoteRetried},
		},
		{
			name: "never anything", play: []scriptedReply{
				textReply(""), textReply(" "), textReply("\n"), textReply(""),
				textReply(""),
			}, partial: true,
			answer: "The model gave no answer. Please ask again, perhaps in other words.",
			notes:  []string{NoteRetried, NoteRetried, NoteRetried, NoteEmpty},
			check: func(t *testing.T, _ State, p *scriptedModel) {
				if len(p.asked[2].Tools) == 0 || len(p.asked[3].Tools) != 0 || lastText(p.asked[4]) != instructPlain {
					t.Error("tools are offered to the retries, not to the two last")
				}
			},
		},
		{
			name: "broken off", play: []scriptedReply{{chunks: []model.Chunk{{Content: "It"}}}, textReply("It is.")},
			answer: "It is.", notes: []string{NoteRetried},
		},
		{
			name: "room", play: []scriptedReply{cutReply("half"), textReply("whole")}, answer: "whole",
			notes: []string{NoteMoreTokens},
			check: func(t *testing.T, _ State, p *scriptedModel) {
				if p.asked[0].Options.Predict != 2048 || p.asked[1].Options.Predict != 4096 {
					t.Errorf("room %d, %d", p.asked[0].Options.Predict, p.asked[1].Options.Predict)
				}
			},
		},
		{
			name: "room again", play: []scriptedReply{cutReply("half"), cutReply("more")}, answer: "more",
			partial: true,
			notes:   []string{NoteMoreTokens, NoteCut},
		},
		{
			name:   "cut call is not mended",
			play:   []scriptedReply{cutReply(`{"name":"web_search","arguments":{"query":"x"}`), textReply("whole")},
			answer: "whole",
			notes:  []string{NoteMoreTokens},
		},
		{
			name: "most", change: func(a *Agent) { a.Limits.ReplyBytes = 10 },
			play: []scriptedReply{textReply("0123456789abc")}, answer: "0123456789", partial: true,
			notes: []string{NoteCut},
		},
		{
			name: "most, in the middle of a character", change: func(a *Agent) { a.Limits.ReplyBytes = 4 },
			play: []scriptedReply{textReply("世界")}, answer: "世", partial: true, notes: []string{NoteCut},
		},
		{
			name: "announces", play: []scriptedReply{
				textReply("Let me search the web for that."), look("x"),
				textReply("found"),
			}, answer: "found", notes: []string{NoteNudged},
			check: func(t *testing.T, s State, p *scriptedModel) {
				ms := p.asked[1].Messages
				if lastText(p.asked[1]) != instructAnnounce ||
					ms[len(ms)-2].Content != "Let me search the web for that." {
					t.Errorf("asked %+v", ms)
				}
				if len(s.Messages) != 4 {
					t.Errorf("the nudge stayed in the conversation: %+v", s.Messages)
				}
			},
		},
		{
			name:   "announces for ever",
			play:   []scriptedReply{textReply("I'll check."), textReply("I'll check."), textReply("I'll check.")},
			answer: "I'll check.", notes: []string{NoteNudged, NoteNudged},
		},
		{
			name: "a claim is left to the critic", play: []scriptedReply{textReply("I have sent the email.")},
			answer: "I have sent the email.",
		},
		{name: "a claim after a call is none", play: []scriptedReply{look("x"), textReply("I searched the web: " +
			"nothing.")}, answer: "I searched the web: nothing."},
		{
			name: "safety net", change: func(a *Agent) {
				a.Hedge = Hedge{SearchTool: "web_search", Query: "what is new?"}
			},
			play:   []scriptedReply{textReply("I don't have access to real-time information."), textReply("It is 42.")},
			answer: "It is 42.", notes: []string{NoteSearched},
			check: func(t *testing.T, s State, _ *scriptedModel) {
				if len(s.Finished) != 1 || s.Finished[0].Layer != LayerSafety ||
					string(s.Finished[0].Call.Arguments) != `{"query":"what is new?"}` {
					t.Errorf("done %+v", s.Finished)
				}
			},
		},
		{
			name: "safety net with memory in the prompt", change: func(a *Agent) {
				a.Hedge = Hedge{SearchTool: "web_search", Query: "what is new?"}
			}, recalled: true,
			play:   []scriptedReply{textReply("I don't have access to real-time information."), textReply("It is 42.")},
			answer: "It is 42.", notes: []string{NoteSearched},
		},
		{
			name: "safety net without words of the user", change: func(a *Agent) {
				a.Hedge = Hedge{SearchTool: "web_search"}
			},
			play:   []scriptedReply{textReply("I don't have access to real-time information.")},
			answer: "I don't have access to real-time information.",
		},
		{
			name: "safety net off", play: []scriptedReply{textReply("I don't have access to real-time information.")},
			answer: "I don't have access to real-time information.",
		},
		{
			name: "safety net not offered", change: func(a *Agent) { a.Hedge.SearchTool = "other" },
			play:   []scriptedReply{textReply("I don't have access to real-time information.")},
			answer: "I don't have access to real-time information.",
		},
		{
			name: "hedges although results are there", change: func(a *Agent) {
				a.Hedge = Hedge{SearchTool: "web_search", Query: "what is new?", Reask: true}
			},
			play:   []scriptedReply{look("x"), textReply("I cannot browse the internet."), textReply("It is 42.")},
			answer: "It is 42.", notes: []string{NoteReasked},
		},
		{
			name: "hedges to the end", change: func(a *Agent) {
				a.Hedge = Hedge{SearchTool: "web_search", Query: "what is new?", Reask: true}
			},
			play: []scriptedReply{textReply("I cannot browse the internet."), textReply("I cannot browse the " +
				"internet."), textReply("I cannot browse the internet.")},
			answer: "I cannot browse the internet.", notes: []string{NoteSearched, NoteReasked},
		},
		{
			name: "recovered", play: []scriptedReply{textReply(`web_search {"query": "x"}`), textReply("found")},
			answer: "found", notes: []string{NoteRecovered},
			check: func(t *testing.T, s State, _ *scriptedModel) {
				if s.Finished[0].Layer != LayerText {
					t.Errorf("layer %q", s.Finished[0].Layer)
				}
			},
		},
		{
			name:   "tagged call of another tool",
			play:   []scriptedReply{textReply(`<tool_call>{"name":"rm","arguments":{}}</tool_call>`), textReply("no")},
			answer: "no",
			notes:  []string{NoteUnknown, NoteRetried},
		},
		{
			name: "too many calls", change: func(a *Agent) { a.Limits.CallsPerReply = 1 },
			play: []scriptedReply{callReply("get_time", `{"zone":"a"}`, "get_time", `{"zone":"b"}`, "get_time",
				`{"zone":"c"}`), textReply("fine")}, answer: "fine",
			notes: []string{NoteInvalid},
			check: func(t *testing.T, s State, _ *scriptedModel) {
				if len(s.Finished) != 2 || s.Finished[1].Result.Fault != FaultTooMany {
					t.Errorf("done %+v", s.Finished)
				}
			},
		},
		{
			name: "large result", change: func(a *Agent) {
				a.Limits.ResultBytes = 30
				a.RunTool = func(context.Context, model.Call) Result {
					return Result{Text: strings.Repeat("a", 50) + strings.Repeat("z", 50)}
				}
			},
			play: []scriptedReply{look("x"), textReply("fine")}, answer: "fine", notes: []string{NoteClipped},
			check: func(t *testing.T, _ State, p *scriptedModel) {
				want := strings.Repeat("a", 20) + "\n[... 70 characters left out; call id1]\n" + strings.Repeat("z", 10)
				if got := lastText(p.asked[1]); got != want {
					t.Errorf("result %q, want %q", got, want)
				}
			},
		},
		{
			name: "empty result", change: func(a *Agent) {
				a.RunTool = func(context.Context, model.Call) Result { return Result{} }
			},
			play: []scriptedReply{look("x"), textReply("fine")}, answer: "fine",
			check: func(t *testing.T, _ State, p *scriptedModel) {
				if lastText(p.asked[1]) != resultEmpty {
					t.Errorf("result %q", lastText(p.asked[1]))
				}
			},
		},
		{
			name: "tool panics", change: func(a *Agent) {
				a.RunTool = func(context.Context, model.Call) Result { panic("oh") }
			},
			play: []scriptedReply{look("x"), textReply("fine")}, answer: "fine",
			check: func(t *testing.T, s State, _ *scriptedModel) {
				if s.Finished[0].Result != unavailableResult {
					t.Errorf("result %+v", s.Finished[0].Result)
				}
			},
		},
		{
			name: "no tools", play: []scriptedReply{
				errorReply(model.ErrNoTools),
				textReply("<tool_call>{\"name\":\"get_time\",\"arguments\":{}}</tool_call>"), textReply("noon"),
			},
			answer: "noon",
			notes:  []string{NoteNoTools, NoteRecovered},
			check: func(t *testing.T, s State, p *scriptedModel) {
				for _, r := range p.asked[1:] {
					if len(r.Tools) != 0 || !strings.Contains(r.Messages[0].Content, `"name":"get_time"`) {
						t.Errorf("tools %d, system %q", len(r.Tools), r.Messages[0].Content)
					}
				}
				ms := p.asked[2].Messages
				if ms[2].Content != "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>" ||
					len(ms[2].Calls) != 0 {
					t.Errorf("call as text: %+v", ms[2])
				}
				if ms[3].Role != model.User ||
					ms[3].Content != "<tool_result name=get_time id=id1>\nget_time of {}\n</tool_result>" {
					t.Errorf("result as text: %+v", ms[3])
				}
				if s.Calls != CallText {
					t.Error("the state does not say that it fell back")
				}
			},
		},
		{
			name: "no tools, and not in words either",
			play: []scriptedReply{
				errorReply(model.ErrNoTools), textReply("<tool_call>{"), textReply("<tool_call>{"),
				textReply("<tool_call>{"), textReply("from memory"),
			},
			answer: "from memory", notes: []string{NoteNoTools, NoteRetried, NoteRetried, NoteStatic},
			check: func(t *testing.T, _ State, p *scriptedModel) {
				if strings.Contains(p.asked[4].Messages[0].Content, "get_time") {
					t.Error("tools were still described")
				}
			},
		},
		{
			name: "no tools, memory in the prompt", recalled: true, play: []scriptedReply{
				errorReply(model.ErrNoTools),
				textReply("Green."),
			}, answer: "Green.", notes: []string{NoteNoTools},
			check: wantEntryAsText,
		},
		{
			name: "tools given up, memory in the prompt", recalled: true,
			play: []scriptedReply{
				errorReply(model.ErrNoTools), textReply("<tool_call>{"), textReply("<tool_call>{"),
				textReply("<tool_call>{"), textReply("Green."),
			},
			answer: "Green.", notes: []string{NoteNoTools, NoteRetried, NoteRetried, NoteStatic},
			check: wantEntryAsText,
		},
		{
			name: "no thinking", change: func(a *Agent) { yes := true; a.Think = &yes },
			play: []scriptedReply{errorReply(model.ErrNoThinking), textReply("yes")}, answer: "yes",
			notes: []string{NoteNoThinking},
			check: func(t *testing.T, _ State, p *scriptedModel) {
				if p.asked[0].Think == nil || p.asked[1].Think != nil {
					t.Error("think was not left out")
				}
			},
		},
		{name: "too long once", play: []scriptedReply{errorReply(model.ErrTooLong), textReply("yes")}, answer: "yes"},
		{
			name: "bad bytes", play: []scriptedReply{textReply("a\xffb")}, answer: "a\uFFFDb",
			notes: []string{NoteBadText},
		},
		{
			name: "only thinking", play: []scriptedReply{textReply("<think>hm"), textReply("yes")}, answer: "yes",
			notes: []string{NoteRetried},
			check: func(t *testing.T, s State, _ *scriptedModel) {
				if s.Thinking != "hm" {
					t.Errorf("thinking %q", s.Thinking)
				}
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, p := newAgent(t, tt.play...)
			if tt.change != nil {
				tt.change(&a)
			}
			in := question("what is new?")
			if tt.recalled {
				in.Recalled = &FinishedCall{Call: model.Call{
					ID: "recall", Name: "search_memory",
					Arguments: json.RawMessage(`{}`),
				}, Layer: LayerRecall, Step: 1, Result: Result{Text: "tea: green"}}
			}
			s, err := RunTurn(t.Context(), a, in, Hooks{})
			wantAnswer(t, s, err, tt.answer, tt.partial)
			wantNotes(t, s, tt.notes...)
			if len(p.asked) != len(tt.play) {
				t.Errorf("the model was asked %d times, want %d", len(p.asked), len(tt.play))
			}
			if tt.check != nil && !t.Failed() {
				tt.check(t, s, p)
			}
			if m := s.Messages[len(s.Messages)-1]; m.Role != model.Assistant || m.Content != s.Answer ||
				m.Thinking != "" {
				t.Errorf("last message %+v", m)
			}
		})
	}
}

func TestErrorKeepsPartialAnswer(t *testing.T) {
	t.Parallel()
	for _, want := range []error{
		model.ErrUnreachable, model.ErrMissing, model.ErrRemote, model.ErrUnauthorized,
		errors.New("other"),
	} {
		a, _ := newAgent(t, callReply("get_time", "{}"), scriptedReply{
			chunks: []model.Chunk{{Content: "It is"}},
			err:    fmt.Errorf("wrapped: %w", want),
		})
		s, err := RunTurn(t.Context(), a, question("q"), Hooks{})
		if !errors.Is(err, want) || s.Final || s.Answer != "It is" || !s.Partial || len(s.Finished) != 1 {
			t.Errorf("%v: error %v, state %+v", want, err, s)
		}
		wantNotes(t, s, NoteFailed)
	}
	a, _ := newAgent(t, errorReply(model.ErrTooLong), errorReply(model.ErrTooLong))
	if _, err := RunTurn(t.Context(), a, question("q"), Hooks{}); !errors.Is(err, model.ErrTooLong) {
		t.Errorf("error %v", err)
	}
	if _, err := RunTurn(t.Context(), a, Input{}, Hooks{}); err == nil {
		t.Error("a turn without a question must be an error")
	}
}

var errStop = errors.New("the user stopped it")

func TestStopWhileWriting(t *testing.T) {
	t.Parallel()
	a, _ := newAgent(t, scriptedReply{chunks: []model.Chunk{{Content: "It is "}, {Content: "so"}}, wait: true})
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var shown strings.Builder
	h := Hooks{Token: func(_ int, s string) {
		if shown.WriteString(s); shown.String() == "It is so" {
			cancel(errStop)
		}
	}}
	s, err := RunTurn(ctx, a, question("q"), h)
	if !errors.Is(err, errStop) || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if s.Answer != "It is so" || !s.Partial || s.Final {
		t.Errorf("state %+v", s)
	}
	wantNotes(t, s, NoteStopped)
}

// A stop at any point adds one note and keeps the thinking so far.
func TestStopKeepsThinking(t *testing.T) {
	t.Parallel()
	gone := errors.New("stopped: the user stopped it") // as a model says it that heard of the stop itself
	for name, tt := range map[string]struct {
		play           scriptedReply
		at             string // what was shown when the stop came; "" = it comes a moment later
		words, thought string
	}{
		"before the first word": {play: scriptedReply{wait: true}},
		"in the thinking": {play: scriptedReply{
			chunks: []model.Chunk{{Thinking: "hm "}, {Thinking: "well"}},
			wait:   true,
		}, at: "hm well", thought: "hm well"},
		"in tagged thinking": {
			play: scriptedReply{chunks: []model.Chunk{{Content: "<think>hm"}}, wait: true},
			at:   "hm", thought: "hm",
		},
		"in the answer": {play: scriptedReply{
			chunks: []model.Chunk{{Thinking: "hm"}, {Content: "It is"}},
			wait:   true,
		}, at: "hmIt is", words: "It is", thought: "hm"},
		"the model hears first": {play: scriptedReply{err: gone}},
		"first, in the thinking": {
			play:    scriptedReply{chunks: []model.Chunk{{Thinking: "hm"}}, err: gone},
			thought: "hm",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a, _ := newAgent(t, tt.play)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				shown := ""
				look := func(_ int, s string) {
					if shown += s; tt.at != "" && shown == tt.at {
						cancel(errStop)
					}
				}
				if tt.at == "" {
					time.AfterFunc(10*time.Millisecond, func() { cancel(errStop) })
				}
				s, err := RunTurn(ctx, a, question("q"), Hooks{Thinking: look, Token: look})
				if !errors.Is(err, errStop) || s.Answer != tt.words || s.Thinking != tt.thought || !s.Partial ||
					s.Final {
					t.Errorf("error %v, answer %q, thinking %q", err, s.Answer, s.Thinking)
				}
				wantNotes(t, s, NoteStopped)
			})
		})
	}
	// Control: the same complaint without a stop is a failure, told as one.
	synctest.Test(t, func(t *testing.T) {
		a, _ := newAgent(t, scriptedReply{chunks: []model.Chunk{{Thinking: "hm"}}, err: gone})
		s, err := RunTurn(t.Context(), a, question("q"), Hooks{})
		if !errors.Is(err, gone) || s.Thinking != "hm" {
			t.Errorf("error %v, thinking %q", err, s.Thinking)
		}
		wantNotes(t, s, NoteFailed)
	})
}

// TestHostsOfUnfinishedReplies: who got the prompt is known without a complete reply, by the chunk that names the
// model; a call that was given to no model stayed on this machine. A stop before that chunk leaves it unknown.
func TestHostsOfUnfinishedReplies(t *testing.T) {
	t.Parallel()
	// asked is a reply that names the hosts, and then waits, or ends with an error.
	asked := func(err error, hosts ...string) scriptedReply {
		reply := scriptedReply{err: err, wait: err == nil}
		for _, h := range hosts {
			reply.chunks = append(reply.chunks, model.Chunk{Final: model.Final{Model: "m", RemoteHost: h}})
		}
		return reply
	}
	failed := errors.New("500 Internal Server Error")
	stopped := asked(nil, "")
	stopped.chunks = append(stopped.chunks, model.Chunk{Content: "It is"})
	for name, tt := range map[string]struct {
		play scriptedReply
		want []string
	}{
		"stopped":               {stopped, []string{""}},
		"stopped in the queue":  {asked(nil, ""), []string{""}},
		"failed":                {asked(failed, ""), []string{""}},
		"denied":                {errorReply(model.ErrRemote), []string{""}},
		"no such model":         {errorReply(model.ErrMissing), []string{""}},
		"remote, stopped":       {asked(nil, "a.example"), []string{"a.example"}},
		"remote, failed":        {asked(failed, "a.example"), []string{"a.example"}},
		"forwarded, denied":     {asked(model.ErrRemote, "", "b.example"), []string{"", "b.example"}},
		"stopped before":        {scriptedReply{wait: true}, nil},
		"failed after text":     {scriptedReply{chunks: []model.Chunk{{Content: "It"}}, err: failed}, nil},
		"failed after thinking": {scriptedReply{chunks: []model.Chunk{{Thinking: "It"}}, err: failed}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a, _ := newAgent(t, tt.play)
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errStop)
				defer cancel()
				s, err := RunTurn(ctx, a, question("q"), Hooks{})
				if err == nil || !slices.Equal(s.Usage.Hosts, tt.want) {
					t.Errorf("%v, hosts %q, want %q", err, s.Usage.Hosts, tt.want)
				}
			})
		})
	}
}

func TestStopWhileCalling(t *testing.T) {
	t.Parallel()
	a, _ := newAgent(t, callReply("get_time", `{"zone":"a"}`, "get_time", `{"zone":"b"}`))
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	a.RunTool = func(ctx context.Context, c model.Call) Result {
		if strings.Contains(string(c.Arguments), "b") {
			<-ctx.Done()
			return Result{Text: "stopped", Fault: "stopped"}
		}
		return Result{Text: "A"}
	}
	h := Hooks{Finished: func(int, FinishedCall) { cancel(errStop) }}
	s, err := RunTurn(ctx, a, question("q"), h)
	if !errors.Is(err, errStop) || !s.Partial || len(s.Finished) != 1 || s.Finished[0].Result.Text != "A" {
		t.Fatalf("error %v, state %+v", err, s)
	}
	// Taken up again, only the other one runs, with its id.
	b, _ := newAgent(t, textReply("both"))
	var ran []string
	b.RunTool = func(_ context.Context, c model.Call) Result { ran = append(ran, c.ID); return Result{Text: "B"} }
	again, err := RunTurn(t.Context(), b, Input{State: cloneState(&s)}, Hooks{})
	wantAnswer(t, again, err, "both", false)
	if !slices.Equal(ran, []string{"id2"}) {
		t.Errorf("ran %q", ran)
	}
	if got := again.Messages[2].Content + again.Messages[3].Content; got != "AB" || len(again.Finished) != 2 {
		t.Errorf("results %q, done %+v", got, again.Finished)
	}
}

func TestCheckpointErrorPreventsCalls(t *testing.T) {
	t.Parallel()
	a, _ := newAgent(t, callReply("get_time", "{}"))
	a.RunTool = func(context.Context, model.Call) Result { t.Error("it ran"); return Result{} }
	full := errors.New("disk full")
	s, err := RunTurn(t.Context(), a, question("q"), Hooks{Checkpoint: func(context.Context, *State) error {
		return full
	}})
	if !errors.Is(err, full) || len(s.Messages) != 2 {
		t.Errorf("error %v, state %+v", err, s)
	}
	b, _ := newAgent(t, textReply("yes"))
	if _, err := RunTurn(t.Context(), b, question("q"), Hooks{Checkpoint: func(context.Context, *State) error {
		return full
	}}); !errors.Is(err, full) {
		t.Errorf("error %v", err)
	}
}

func TestFinalStateIsReturnedUnchanged(t *testing.T) {
	t.Parallel()
	a, _ := newAgent(t)
	in := Input{State: State{Final: true, Answer: "yes", Messages: []model.Message{{Role: model.User, Content: "q"}}}}
	s, err := RunTurn(t.Context(), a, in, Hooks{})
	wantAnswer(t, s, err, "yes", false)
}

// Whatever the model plays: from every checkpoint the turn ends with the same messages, and no call runs twice that was
// written down as done.
func TestResumeFromEveryCheckpoint(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var play []scriptedReply
		for i := range rapid.IntRange(0, 3).Draw(rt, "rounds") {
			q := fmt.Sprintf(`{"query":"%d"}`, i)
			switch rapid.IntRange(0, 3).Draw(rt, "kind") {
			case 0:
				play = append(play, callReply("web_search", q))
			case 1:
				play = append(play, callReply("web_search", q, "get_time", "{}", "web_search", "{}", "nope", "{}"))
			case 2:
				play = append(play, textReply("Now.\n```json\n{\"name\":\"web_search\",\"arguments\":"+q+"}\n```"))
			case 3:
				play = append(play,
					textReply("<think>x</think><tool_call>{\"name\":\"get_time\",\"arguments\":{}}</tool_call>"))
			}
		}
		play = append(play, textReply("the answer"))
		a, _ := newAgent(t, play...)
		var rec hookRecorder
		whole, err := RunTurn(context.Background(), a, question("q"), rec.hooks())
		if err != nil {
			rt.Fatal(err)
		}
		want, wantDone := asJSON(whole.Messages), asJSON(whole.Finished)
		for i, state := range rec.states {
			b, p := newAgent(t, play[countReplies(state):]...)
			b.NewID = idsAfter(state)
			got, err := RunTurn(context.Background(), b, Input{State: state}, Hooks{})
			if err != nil {
				rt.Fatal(err)
			}
			if have := asJSON(got.Messages); want != have {
				rt.Fatalf("from checkpoint %d (asked %d):\n%s\nwant\n%s", i, len(p.asked), have, want)
			}
			if wantDone != asJSON(got.Finished) || got.Step != whole.Step {
				rt.Fatalf("from checkpoint %d: done %+v, want %+v", i, got.Finished, whole.Finished)
			}
		}
	})
}

func countReplies(s State) int {
	n := 0
	for _, m := range s.Messages {
		if m.Role == model.Assistant {
			n++
		}
	}
	return n
}

// idsAfter goes on counting where the ids of a state end.
func idsAfter(s State) func() string {
	n := 0
	for _, m := range s.Messages {
		n += len(m.Calls)
	}
	return func() string { n++; return fmt.Sprintf("id%d", n) }
}

func asJSON(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

func TestBusyServerIsRetriedWithBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, p := newAgent(t, errorReply(model.ErrBusy), errorReply(model.ErrAway), errorReply(model.ErrBusy),
			textReply("yes"))
		start := time.Now()
		s, err := RunTurn(t.Context(), a, question("q"), Hooks{})
		wantAnswer(t, s, err, "yes", false)
		if d := time.Since(start); d != 1750*time.Millisecond {
			t.Errorf("waited %s", d)
		}
		p.repeat, p.replies, p.asked = true, []scriptedReply{errorReply(model.ErrBusy)}, nil
		if _, err := RunTurn(t.Context(), a, question("q"), Hooks{}); !errors.Is(err, model.ErrBusy) ||
			len(p.asked) != 7 {
			t.Errorf("error %v after %d calls", err, len(p.asked))
		}
		a.Limits.FirstToken = time.Second
		start = time.Now()
		_, err = RunTurn(t.Context(), a, question("q"), Hooks{})
		if !errors.Is(err, model.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) ||
			time.Since(start) != time.Second {
			t.Errorf("error %v after %s", err, time.Since(start))
		}
	})
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	half := scriptedReply{chunks: []model.Chunk{{Content: "It is"}}, wait: true}
	hang := scriptedReply{wait: true}
	t.Run("a call that hangs", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			a, _ := newAgent(t, hang)
			start := time.Now()
			s, err := RunTurn(t.Context(), a, question("q"), Hooks{})
			if !errors.Is(err, context.DeadlineExceeded) || s.Answer != "" || time.Since(start) != 5*time.Minute {
				t.Errorf("error %v after %s", err, time.Since(start))
			}
			wantNotes(t, s, NoteFailed)
		})
	})
	t.Run("a call that hangs in the middle", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			a, _ := newAgent(t, half)
			s, err := RunTurn(t.Context(), a, question("q"), Hooks{})
			wantAnswer(t, s, err, "It is", true)
			wantNotes(t, s, NoteCut)
		})
	})
	t.Run("a call that hangs after results", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			a, _ := newAgent(t, callReply("get_time", "{}"), hang)
			s, err := RunTurn(t.Context(), a, question("q"), Hooks{})
			if err != nil || !s.Partial || !strings.Contains(s.Answer, "get_time of {}") {
				t.Errorf("error %v, answer %q", err, s.Answer)
			}
			wantNotes(t, s, NoteFailed, NoteEmpty)
		})
	})
	t.Run("the turn's time runs out while writing", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			a, _ := newAgent(t, half)
			a.Limits.TurnTimeout = time.Minute
			start := time.Now()
			s, err := RunTurn(t.Context(), a, question("q"), Hooks{})
			wantAnswer(t, s, err, "It is", true)
			wantNotes(t, s, NoteTurnTimeout)
			if time.Since(start) != time.Minute || s.Spent != time.Minute {
				t.Errorf("after %s, spent %s", time.Since(start), s.Spent)
			}
		})
	})
	t.Run("the turn's time is nearly up", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			a, p := newAgent(t, callReply("get_time", "{}"), textReply("in time"))
			a.Limits.TurnTimeout = 100 * time.Second
			a.RunTool = func(context.Context, model.Call) Result {
				time.Sleep(85 * time.Second)
				return Result{Text: "late"}
			}
			s, err := RunTurn(t.Context(), a, question("q"), Hooks{})
			wantAnswer(t, s, err, "in time", false)
			wantNotes(t, s, NoteTurnTimeout)
			if len(p.asked[1].Tools) != 0 {
				t.Error("tools were still offered")
			}
		})
	})
	t.Run("a tool that never returns", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			a, _ := newAgent(t, callReply("get_time", "{}"))
			a.Limits.TurnTimeout = time.Minute
			a.RunTool = func(context.Context, model.Call) Result { <-release; return Result{} }
			s, err := RunTurn(t.Context(), a, question("q"), Hooks{})
			close(release)
			if err != nil || s.Finished[0].Result.Text != resultUnavailable || !s.Partial || s.Answer == "" {
				t.Errorf("error %v, state %+v", err, s)
			}
			wantNotes(t, s, NoteTurnTimeout, NoteEmpty)
		})
	})
	t.Run("time before a restart counts", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			a, _ := newAgent(t, half)
			a.Limits.TurnTimeout = time.Minute
			in := question("q")
			in.State.Spent = 50 * time.Second
			start := time.Now()
			s, _ := RunTurn(t.Context(), a, in, Hooks{})
			if time.Since(start) != 10*time.Second || s.Spent != time.Minute {
				t.Errorf("after %s, spent %s", time.Since(start), s.Spent)
			}
		})
	})
}

// An endless reply is read up to the byte limit.
func TestEndlessReplyIsReadUpToTheLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]model.Chunk{
		"blanks":   {Content: strings.Repeat(" \n", 64)},
		"text":     {Content: strings.Repeat("again and again. ", 8)},
		"thinking": {Thinking: strings.Repeat("hm ", 64)},
		"tags":     {Content: "<think><tool_call>{\"name\":"},
		"calls":    {Calls: []model.Call{{Name: "get_time", Arguments: json.RawMessage(`{"zone":"x"}`)}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			chunks := make([]model.Chunk, 0, 1<<15)
			for range 1 << 15 {
				chunks = append(chunks, c)
			}
			a, p := newAgent(t, scriptedReply{chunks: chunks, err: errors.New("it was read to the end")})
			p.repeat = true
			a.Limits.ReplyBytes = 32 << 10
			s, err := RunTurn(t.Context(), a, question("q"), Hooks{})
			if err != nil || s.Answer == "" || !s.Partial || len(s.Answer) > 33<<10 {
				t.Errorf("error %v, answer of %d bytes, partial %v, notes %q", err, len(s.Answer), s.Partial,
					noteCodes(s))
			}
		})
	}
}

// A streamed reply and one in a single chunk give the same result.
func TestStreamingDoesNotChangeTheResult(t *testing.T) {
	t.Parallel()
	content := "<think>so</think>I look.\n\n```json\n{\"name\": \"web_search\", \"arguments\": {\"query\": " +
		"\"x\"}}\n```\n"
	run := func(pieces []string) string {
		var chunks []model.Chunk
		for _, p := range pieces {
			chunks = append(chunks, model.Chunk{Content: p})
		}
		chunks = append(chunks, model.Chunk{Done: true})
		a, _ := newAgent(t, scriptedReply{chunks: chunks}, textReply("ok"))
		var rec hookRecorder
		s, err := RunTurn(t.Context(), a, question("q"), rec.hooks())
		if err != nil {
			t.Fatal(err)
		}
		s.Spent = 0
		return asJSON(s) + rec.tokens.String()
	}
	want := run([]string{content})
	for _, pieces := range splits(content) {
		if got := run(pieces); got != want {
			t.Fatalf("in pieces %q:\n%s\nwant\n%s", pieces, got, want)
		}
	}
}

// wantEntryAsText checks that the last request has the entry of memory in a message of the user, and neither calls nor
// results.
func wantEntryAsText(t *testing.T, _ State, p *scriptedModel) {
	last := p.asked[len(p.asked)-1].Messages
	if !slices.ContainsFunc(last, func(m model.Message) bool {
		return m.Role == model.User && strings.Contains(m.Content, "tea: green")
	}) {
		t.Errorf("the entry is not in the prompt: %+v", last)
	}
	if slices.ContainsFunc(last, func(m model.Message) bool { return m.Role == model.ToolRole || len(m.Calls) > 0 }) {
		t.Errorf("calls were sent to a model without them: %+v", last)
	}
}
