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
	first := playback{chunks: []model.Chunk{
		{Thinking: "needs "},
		{Thinking: "data"},
		{Content: "I look."},
		{Calls: []model.Call{{Name: "web_search", Arguments: json.RawMessage(`{"limit":"3","query":"go"}`)}}},
		{Done: true, Final: model.Final{PromptTokens: 40, OutputTokens: 8, Model: "m1"}},
	}}
	a, p := agent(t, first, playback{chunks: []model.Chunk{
		{Content: "It is "},
		{Content: "so. "},
		{Done: true, Final: model.Final{PromptTokens: 60, OutputTokens: 4}},
	}})
	var rec record
	s, err := Turn(t.Context(), a, ask("what?"), rec.hooks())
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
	d := s.Done[0]
	if d.Call.ID != "id1" || string(d.Call.Arguments) != `{"limit":3,"query":"go"}` || d.Layer != LayerNative || d.Step != 1 {
		t.Errorf("done %+v", d)
	}
	second := p.asked[1]
	m := second.Messages[len(second.Messages)-1]
	if m.Role != model.ToolRole || m.CallID != "id1" || m.ToolName != "web_search" || !strings.Contains(m.Content, `"go"`) {
		t.Errorf("result message %+v", m)
	}
	if back := second.Messages[len(second.Messages)-2]; back.Thinking != "needs data" {
		t.Errorf("thinking did not go back with the call: %+v", back)
	}
	if s.Thinking != "needs data" || s.Usage.Prompt != 100 || s.Usage.Output != 12 || s.Usage.Calls != 2 || s.Usage.Model != "m1" {
		t.Errorf("thinking %q, usage %+v", s.Thinking, s.Usage)
	}
	if p.asked[0].Options.Predict != 2048 || len(p.asked[0].Tools) != 2 || !p.asked[0].Stream {
		t.Errorf("request %+v", p.asked[0])
	}
}

func TestCallsRunTogetherInOrder(t *testing.T) {
	t.Parallel()
	a, p := agent(t, calls("web_search", `{"query":"a"}`, "web_search", `{}`, "nope", `{}`, "web_search", `{"query":"b"}`), says("done"))
	second := make(chan struct{})
	a.Run = func(_ context.Context, c model.Call) Result {
		if strings.Contains(string(c.Arguments), `"a"`) {
			<-second // the first ends after the last: they run together
			return Result{Text: "A"}
		}
		close(second)
		return Result{Text: "B", Fault: "denied"}
	}
	var rec record
	s, err := Turn(t.Context(), a, ask("q"), rec.hooks())
	wantAnswer(t, s, err, "done", false)
	wantNotes(t, s, NoteInvalid, NoteUnknown)
	var got []string
	for _, m := range p.asked[1].Messages[3:] {
		got = append(got, m.CallID+" "+m.Content)
	}
	want := []string{
		"id1 A",
		`id2 The call was not made: "query" is missing; it must be string. Correct it and call again.`,
		"id3 There is no tool of that name. The tools are: web_search, get_time.",
		"id4 B",
	}
	if !slices.Equal(got, want) {
		t.Errorf("results %q, want %q", got, want)
	}
	var faults []string
	for _, d := range s.Done {
		faults = append(faults, d.Result.Fault)
	}
	if !slices.Equal(faults, []string{"", FaultInvalid, FaultUnknown, "denied"}) {
		t.Errorf("faults %q", faults)
	}
	if n := len(slices.DeleteFunc(slices.Clone(rec.lines), func(l string) bool { return !strings.HasPrefix(l, "finished") })); n != 4 {
		t.Errorf("%d calls were shown as finished, want 4: %q", n, rec.lines)
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	reply := playback{chunks: []model.Chunk{{Calls: []model.Call{
		{ID: "ok-1", Name: "get_time", Arguments: json.RawMessage(`{"zone":"a"}`)},
		{ID: "ok-1", Name: "get_time", Arguments: json.RawMessage(`{"zone":"b"}`)},
		{ID: "not a token", Name: "get_time", Arguments: json.RawMessage(`{"zone":"c"}`)},
		{ID: strings.Repeat("x", 65), Name: "get_time", Arguments: json.RawMessage(`{"zone":"d"}`)},
		{ID: "old", Name: "get_time", Arguments: json.RawMessage(`{"zone":"e"}`)},
		{ID: "", Name: "get_time", Arguments: json.RawMessage(`{"zone":"f"}`)},
	}, Done: true}}}
	a, _ := agent(t, reply, says("done"))
	in := ask("q")
	in.History = []model.Message{
		{Role: model.User, Content: "before"},
		{Role: model.Assistant, Calls: []model.Call{{ID: "old", Name: "get_time", Arguments: json.RawMessage("{}")}}},
		{Role: model.ToolRole, CallID: "old", Content: "x"},
	}
	s, err := Turn(t.Context(), a, in, Hooks{})
	wantAnswer(t, s, err, "done", false)
	var ids []string
	for _, d := range s.Done {
		ids = append(ids, d.Call.ID)
	}
	if want := []string{"ok-1", "id1", "id2", "id3", "id4", "id5"}; !slices.Equal(ids, want) {
		t.Errorf("ids %q, want %q", ids, want)
	}
}

// Every guard: what is played, and what comes of it.
func TestGuards(t *testing.T) {
	t.Parallel()
	look := func(q string) playback { return calls("web_search", `{"query":"`+q+`"}`) }
	tests := []struct {
		name    string
		change  func(*Agent)
		play    []playback
		answer  string
		partial bool
		notes   []string
		check   func(t *testing.T, s State, p *player)
	}{
		{
			name: "steps", change: func(a *Agent) { a.Limits.Steps = 2 },
			play: []playback{look("1"), look("2"), says("enough")}, answer: "enough", notes: []string{NoteSteps},
			check: func(t *testing.T, s State, p *player) {
				last := p.asked[2]
				if len(last.Tools) != 0 || lastText(last) != sayForced || last.Options.Predict != 4096 || !s.Forced {
					t.Errorf("forced request %+v", last)
				}
			},
		},
		{
			name: "steps, and it calls all the same", change: func(a *Agent) { a.Limits.Steps = 1 },
			play: []playback{look("1"), look("2"), calls("web_search", `{"query":"3"}`)}, partial: true,
			answer: "The model gave no answer. This is what the tools returned:\n\nweb_search {\"query\":\"1\"}:\nweb_search of {\"query\":\"1\"}",
			notes:  []string{NoteSteps, NoteEmpty},
		},
		{
			name: "forced, call in text beside words", change: func(a *Agent) { a.Limits.Steps = 1 },
			play: []playback{look("1"), says("It is so.\n<tool_call>{\"name\":\"web_search\",\"arguments\":{\"query\":\"2\"}}</tool_call>")}, answer: "It is so.",
			notes: []string{NoteSteps},
		},
		{
			name: "repetition", change: func(a *Agent) { a.Run = func(context.Context, model.Call) Result { return Result{Text: "same"} } },
			play: []playback{look("x"), calls("web_search", `{ "query" : "\u0078" }`), look("x"), says("fine")}, answer: "fine",
			notes: []string{NoteRepeated},
			check: func(t *testing.T, s State, _ *player) {
				if len(s.Done) != 3 || s.Done[1].Result.Fault != "" || s.Done[2].Result.Fault != FaultRepeated {
					t.Errorf("done %+v", s.Done)
				}
			},
		},
		{
			name: "repetition goes on", play: []playback{look("x"), look("x"), look("x"), look("x"), says("fine")}, answer: "fine",
			notes: []string{NoteRepeated, NoteRepeated},
			check: func(t *testing.T, _ State, p *player) {
				if len(p.asked[4].Tools) != 0 {
					t.Error("tools were still offered")
				}
			},
		},
		{
			name: "other results are no repetition", change: func(a *Agent) {
				n := 0
				a.Run = func(context.Context, model.Call) Result { n++; return Result{Text: fmt.Sprint(n)} }
			},
			play: []playback{look("x"), look("x"), look("x"), look("x"), says("fine")}, answer: "fine",
		},
		{
			name: "repetition in one reply",
			play: []playback{calls("get_time", `{}`, "get_time", `{}`, "get_time", `{}`), says("fine")}, answer: "fine", notes: []string{NoteRepeated},
		},
		{
			name: "budget", change: func(a *Agent) { a.Limits.Tokens = 400 },
			play: []playback{{chunks: []model.Chunk{{
				Calls: []model.Call{{Name: "get_time", Arguments: json.RawMessage("{}")}}, Done: true, Final: model.Final{PromptTokens: 300, OutputTokens: 90},
			}}}, says("short")}, answer: "short", notes: []string{NoteBudget},
		},
		{
			name: "empty", play: []playback{says(""), says("yes")}, answer: "yes", notes: []string{NoteRetried},
			check: func(t *testing.T, _ State, p *player) {
				if lastText(p.asked[1]) != sayEmpty {
					t.Errorf("said %q", lastText(p.asked[1]))
				}
			},
		},
		{
			name: "dropped call",
			play: []playback{{chunks: []model.Chunk{{Done: true, Final: model.Final{OutputTokens: 20}}}}, says("yes")}, answer: "yes", notes: []string{NoteRetried},
			check: func(t *testing.T, _ State, p *player) {
				if lastText(p.asked[1]) != sayDropped {
					t.Errorf("said %q", lastText(p.asked[1]))
				}
			},
		},
		{
			name: "malformed", play: []playback{fails(fmt.Errorf("x: %w", model.ErrMalformed)), says("yes")}, answer: "yes", notes: []string{NoteRetried},
		},
		{
			name: "malformed in the middle",
			play: []playback{{chunks: []model.Chunk{{Content: "Well"}}, err: model.ErrMalformed}, says("yes")}, answer: "yes", notes: []string{NoteRetried},
		},
		{
			name: "never anything", play: []playback{says(""), says(" "), says("\n"), says(""), says("")}, partial: true,
			answer: "The model gave no answer. Please ask again, perhaps in other words.",
			notes:  []string{NoteRetried, NoteRetried, NoteRetried, NoteEmpty},
			check: func(t *testing.T, _ State, p *player) {
				if len(p.asked[2].Tools) == 0 || len(p.asked[3].Tools) != 0 || lastText(p.asked[4]) != sayPlain {
					t.Error("tools are offered to the retries, not to the two last")
				}
			},
		},
		{name: "broken off", play: []playback{{chunks: []model.Chunk{{Content: "It"}}}, says("It is.")}, answer: "It is.", notes: []string{NoteRetried}},
		{
			name: "room", play: []playback{long("half"), says("whole")}, answer: "whole", notes: []string{NoteRoom},
			check: func(t *testing.T, _ State, p *player) {
				if p.asked[0].Options.Predict != 2048 || p.asked[1].Options.Predict != 4096 {
					t.Errorf("room %d, %d", p.asked[0].Options.Predict, p.asked[1].Options.Predict)
				}
			},
		},
		{name: "room again", play: []playback{long("half"), long("more")}, answer: "more", partial: true, notes: []string{NoteRoom, NoteCut}},
		{
			name: "cut call is not mended", play: []playback{long(`{"name":"web_search","arguments":{"query":"x"}`), says("whole")}, answer: "whole",
			notes: []string{NoteRoom},
		},
		{
			name: "most", change: func(a *Agent) { a.Limits.Most = 10 },
			play: []playback{says("0123456789abc")}, answer: "0123456789", partial: true, notes: []string{NoteCut},
		},
		{
			name: "most, in the middle of a character", change: func(a *Agent) { a.Limits.Most = 4 },
			play: []playback{says("世界")}, answer: "世", partial: true, notes: []string{NoteCut},
		},
		{
			name: "announces", play: []playback{says("Let me search the web for that."), look("x"), says("found")}, answer: "found", notes: []string{NoteNudged},
			check: func(t *testing.T, s State, p *player) {
				ms := p.asked[1].Messages
				if lastText(p.asked[1]) != sayAnnounce || ms[len(ms)-2].Content != "Let me search the web for that." {
					t.Errorf("asked %+v", ms)
				}
				if len(s.Messages) != 4 {
					t.Errorf("the nudge stayed in the conversation: %+v", s.Messages)
				}
			},
		},
		{
			name:   "announces for ever",
			play:   []playback{says("I'll check."), says("I'll check."), says("I'll check.")},
			answer: "I'll check.", notes: []string{NoteNudged, NoteNudged},
		},
		{
			name: "claims", play: []playback{says("I've searched the web and found nothing."), says("I do not know.")}, answer: "I do not know.", notes: []string{NoteNudged},
		},
		{
			name:   "claims twice",
			play:   []playback{says("I have sent the email."), says("I have sent the email.")},
			answer: "I have sent the email.", notes: []string{NoteNudged},
		},
		{name: "a claim after a call is none", play: []playback{look("x"), says("I searched the web: nothing.")}, answer: "I searched the web: nothing."},
		{
			name: "safety net", change: func(a *Agent) { a.Hedge = Hedge{Search: "web_search"} },
			play:   []playback{says("I don't have access to real-time information."), says("It is 42.")},
			answer: "It is 42.", notes: []string{NoteSearched},
			check: func(t *testing.T, s State, _ *player) {
				if len(s.Done) != 1 || s.Done[0].Layer != LayerSafety || string(s.Done[0].Call.Arguments) != `{"query":"what is new?"}` {
					t.Errorf("done %+v", s.Done)
				}
			},
		},
		{
			name: "safety net off", play: []playback{says("I don't have access to real-time information.")}, answer: "I don't have access to real-time information.",
		},
		{
			name: "safety net not offered", change: func(a *Agent) { a.Hedge.Search = "other" },
			play: []playback{says("I don't have access to real-time information.")}, answer: "I don't have access to real-time information.",
		},
		{
			name: "hedges although results are there", change: func(a *Agent) { a.Hedge = Hedge{Search: "web_search", Reask: true} },
			play:   []playback{look("x"), says("I cannot browse the internet."), says("It is 42.")},
			answer: "It is 42.", notes: []string{NoteReasked},
		},
		{
			name: "hedges to the end", change: func(a *Agent) { a.Hedge = Hedge{Search: "web_search", Reask: true} },
			play:   []playback{says("I cannot browse the internet."), says("I cannot browse the internet."), says("I cannot browse the internet.")},
			answer: "I cannot browse the internet.", notes: []string{NoteSearched, NoteReasked},
		},
		{
			name: "recovered", play: []playback{says(`web_search {"query": "x"}`), says("found")}, answer: "found", notes: []string{NoteRecovered},
			check: func(t *testing.T, s State, _ *player) {
				if s.Done[0].Layer != LayerText {
					t.Errorf("layer %q", s.Done[0].Layer)
				}
			},
		},
		{
			name: "tagged call of another tool", play: []playback{says(`<tool_call>{"name":"rm","arguments":{}}</tool_call>`), says("no")}, answer: "no",
			notes: []string{NoteUnknown, NoteRetried},
		},
		{
			name: "too many calls", change: func(a *Agent) { a.Limits.Calls = 1 },
			play: []playback{calls("get_time", `{"zone":"a"}`, "get_time", `{"zone":"b"}`, "get_time", `{"zone":"c"}`), says("fine")}, answer: "fine",
			notes: []string{NoteInvalid},
			check: func(t *testing.T, s State, _ *player) {
				if len(s.Done) != 2 || s.Done[1].Result.Fault != FaultTooMany {
					t.Errorf("done %+v", s.Done)
				}
			},
		},
		{
			name: "large result", change: func(a *Agent) {
				a.Limits.Result = 30
				a.Run = func(context.Context, model.Call) Result {
					return Result{Text: strings.Repeat("a", 50) + strings.Repeat("z", 50)}
				}
			},
			play: []playback{look("x"), says("fine")}, answer: "fine", notes: []string{NoteClipped},
			check: func(t *testing.T, _ State, p *player) {
				want := strings.Repeat("a", 20) + "\n[... 70 characters left out; call id1]\n" + strings.Repeat("z", 10)
				if got := lastText(p.asked[1]); got != want {
					t.Errorf("result %q, want %q", got, want)
				}
			},
		},
		{
			name: "empty result", change: func(a *Agent) { a.Run = func(context.Context, model.Call) Result { return Result{} } },
			play: []playback{look("x"), says("fine")}, answer: "fine",
			check: func(t *testing.T, _ State, p *player) {
				if lastText(p.asked[1]) != resultEmpty {
					t.Errorf("result %q", lastText(p.asked[1]))
				}
			},
		},
		{
			name: "tool panics", change: func(a *Agent) { a.Run = func(context.Context, model.Call) Result { panic("oh") } },
			play: []playback{look("x"), says("fine")}, answer: "fine",
			check: func(t *testing.T, s State, _ *player) {
				if s.Done[0].Result != (Result{Text: resultUnavailable, Fault: FaultUnavailable}) {
					t.Errorf("result %+v", s.Done[0].Result)
				}
			},
		},
		{
			name: "no tools", play: []playback{fails(model.ErrNoTools), says("<tool_call>{\"name\":\"get_time\",\"arguments\":{}}</tool_call>"), says("noon")}, answer: "noon",
			notes: []string{NoteNoTools, NoteRecovered},
			check: func(t *testing.T, s State, p *player) {
				for _, r := range p.asked[1:] {
					if len(r.Tools) != 0 || !strings.Contains(r.Messages[0].Content, `"name":"get_time"`) {
						t.Errorf("tools %d, system %q", len(r.Tools), r.Messages[0].Content)
					}
				}
				ms := p.asked[2].Messages
				if ms[2].Content != "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>" || len(ms[2].Calls) != 0 {
					t.Errorf("call as text: %+v", ms[2])
				}
				if ms[3].Role != model.User || ms[3].Content != "<tool_result name=get_time id=id1>\nget_time of {}\n</tool_result>" {
					t.Errorf("result as text: %+v", ms[3])
				}
				if !s.Text {
					t.Error("the state does not say that it fell back")
				}
			},
		},
		{
			name:   "no tools, and not in words either",
			play:   []playback{fails(model.ErrNoTools), says("<tool_call>{"), says("<tool_call>{"), says("<tool_call>{"), says("from memory")},
			answer: "from memory", notes: []string{NoteNoTools, NoteRetried, NoteRetried, NoteStatic},
			check: func(t *testing.T, _ State, p *player) {
				if strings.Contains(p.asked[4].Messages[0].Content, "get_time") {
					t.Error("tools were still described")
				}
			},
		},
		{
			name: "no thinking", change: func(a *Agent) { yes := true; a.Think = &yes },
			play: []playback{fails(model.ErrNoThinking), says("yes")}, answer: "yes", notes: []string{NoteNoThinking},
			check: func(t *testing.T, _ State, p *player) {
				if p.asked[0].Think == nil || p.asked[1].Think != nil {
					t.Error("think was not left out")
				}
			},
		},
		{name: "too long once", play: []playback{fails(model.ErrTooLong), says("yes")}, answer: "yes"},
		{name: "bad bytes", play: []playback{says("a\xffb")}, answer: "a\uFFFDb", notes: []string{NoteBadText}},
		{
			name: "only thinking", play: []playback{says("<think>hm"), says("yes")}, answer: "yes", notes: []string{NoteRetried},
			check: func(t *testing.T, s State, _ *player) {
				if s.Thinking != "hm" {
					t.Errorf("thinking %q", s.Thinking)
				}
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, p := agent(t, tt.play...)
			if tt.change != nil {
				tt.change(&a)
			}
			s, err := Turn(t.Context(), a, ask("what is new?"), Hooks{})
			wantAnswer(t, s, err, tt.answer, tt.partial)
			wantNotes(t, s, tt.notes...)
			if len(p.asked) != len(tt.play) {
				t.Errorf("the model was asked %d times, want %d", len(p.asked), len(tt.play))
			}
			if tt.check != nil && !t.Failed() {
				tt.check(t, s, p)
			}
			if m := s.Messages[len(s.Messages)-1]; m.Role != model.Assistant || m.Content != s.Answer || m.Thinking != "" {
				t.Errorf("last message %+v", m)
			}
		})
	}
}

func TestErrorsKeepWhatIsThere(t *testing.T) {
	t.Parallel()
	for _, want := range []error{model.ErrUnreachable, model.ErrMissing, model.ErrRemote, model.ErrUnauthorized, errors.New("other")} {
		a, _ := agent(t, calls("get_time", "{}"), playback{chunks: []model.Chunk{{Content: "It is"}}, err: fmt.Errorf("wrapped: %w", want)})
		s, err := Turn(t.Context(), a, ask("q"), Hooks{})
		if !errors.Is(err, want) || s.Final || s.Answer != "It is" || !s.Partial || len(s.Done) != 1 {
			t.Errorf("%v: error %v, state %+v", want, err, s)
		}
		wantNotes(t, s, NoteFailed)
	}
	a, _ := agent(t, fails(model.ErrTooLong), fails(model.ErrTooLong))
	if _, err := Turn(t.Context(), a, ask("q"), Hooks{}); !errors.Is(err, model.ErrTooLong) {
		t.Errorf("error %v", err)
	}
	if _, err := Turn(t.Context(), a, Input{}, Hooks{}); err == nil {
		t.Error("a turn without a question must be an error")
	}
}

var errStop = errors.New("the user stopped it")

func TestStopWhileWriting(t *testing.T) {
	t.Parallel()
	a, _ := agent(t, playback{chunks: []model.Chunk{{Content: "It is "}, {Content: "so"}}, wait: true})
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var shown strings.Builder
	h := Hooks{Token: func(_ int, s string) {
		if shown.WriteString(s); shown.String() == "It is so" {
			cancel(errStop)
		}
	}}
	s, err := Turn(ctx, a, ask("q"), h)
	if !errors.Is(err, errStop) || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if s.Answer != "It is so" || !s.Partial || s.Final {
		t.Errorf("state %+v", s)
	}
	wantNotes(t, s, NoteStopped)
}

// A stop is a stop, wherever it comes: one note says so, and what was thought until then is kept.
func TestStopKeepsThinking(t *testing.T) {
	t.Parallel()
	gone := errors.New("stopped: the user stopped it") // as a model says it that heard of the stop itself
	for name, tt := range map[string]struct {
		play           playback
		at             string // what was shown when the stop came; "" = it comes a moment later
		words, thought string
	}{
		"before the first word":  {play: playback{wait: true}},
		"in the thinking":        {play: playback{chunks: []model.Chunk{{Thinking: "hm "}, {Thinking: "well"}}, wait: true}, at: "hm well", thought: "hm well"},
		"in tagged thinking":     {play: playback{chunks: []model.Chunk{{Content: "<think>hm"}}, wait: true}, at: "hm", thought: "hm"},
		"in the answer":          {play: playback{chunks: []model.Chunk{{Thinking: "hm"}, {Content: "It is"}}, wait: true}, at: "hmIt is", words: "It is", thought: "hm"},
		"the model hears first":  {play: playback{err: gone}},
		"first, in the thinking": {play: playback{chunks: []model.Chunk{{Thinking: "hm"}}, err: gone}, thought: "hm"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a, _ := agent(t, tt.play)
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
				s, err := Turn(ctx, a, ask("q"), Hooks{Thinking: look, Token: look})
				if !errors.Is(err, errStop) || s.Answer != tt.words || s.Thinking != tt.thought || !s.Partial || s.Final {
					t.Errorf("error %v, answer %q, thinking %q", err, s.Answer, s.Thinking)
				}
				wantNotes(t, s, NoteStopped)
			})
		})
	}
	// Control: the same complaint without a stop is a failure, told as one.
	synctest.Test(t, func(t *testing.T) {
		a, _ := agent(t, playback{chunks: []model.Chunk{{Thinking: "hm"}}, err: gone})
		s, err := Turn(t.Context(), a, ask("q"), Hooks{})
		if !errors.Is(err, gone) || s.Thinking != "hm" {
			t.Errorf("error %v, thinking %q", err, s.Thinking)
		}
		wantNotes(t, s, NoteFailed)
	})
}

func TestStopWhileCalling(t *testing.T) {
	t.Parallel()
	a, _ := agent(t, calls("get_time", `{"zone":"a"}`, "get_time", `{"zone":"b"}`))
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	a.Run = func(ctx context.Context, c model.Call) Result {
		if strings.Contains(string(c.Arguments), "b") {
			<-ctx.Done()
			return Result{Text: "stopped", Fault: "stopped"}
		}
		return Result{Text: "A"}
	}
	h := Hooks{Finished: func(int, Done) { cancel(errStop) }}
	s, err := Turn(ctx, a, ask("q"), h)
	if !errors.Is(err, errStop) || !s.Partial || len(s.Done) != 1 || s.Done[0].Result.Text != "A" {
		t.Fatalf("error %v, state %+v", err, s)
	}
	// Taken up again, only the other one runs, with its id.
	b, _ := agent(t, says("both"))
	var ran []string
	b.Run = func(_ context.Context, c model.Call) Result { ran = append(ran, c.ID); return Result{Text: "B"} }
	again, err := Turn(t.Context(), b, Input{State: cloned(&s)}, Hooks{})
	wantAnswer(t, again, err, "both", false)
	if !slices.Equal(ran, []string{"id2"}) {
		t.Errorf("ran %q", ran)
	}
	if got := again.Messages[2].Content + again.Messages[3].Content; got != "AB" || len(again.Done) != 2 {
		t.Errorf("results %q, done %+v", got, again.Done)
	}
}

func TestCheckpointErrorEndsTheTurnBeforeAnythingRuns(t *testing.T) {
	t.Parallel()
	a, _ := agent(t, calls("get_time", "{}"))
	a.Run = func(context.Context, model.Call) Result { t.Error("it ran"); return Result{} }
	full := errors.New("disk full")
	s, err := Turn(t.Context(), a, ask("q"), Hooks{Checkpoint: func(context.Context, *State) error { return full }})
	if !errors.Is(err, full) || len(s.Messages) != 2 {
		t.Errorf("error %v, state %+v", err, s)
	}
	b, _ := agent(t, says("yes"))
	if _, err := Turn(t.Context(), b, ask("q"), Hooks{Checkpoint: func(context.Context, *State) error { return full }}); !errors.Is(err, full) {
		t.Errorf("error %v", err)
	}
}

func TestFinalStateIsReturnedAsItIs(t *testing.T) {
	t.Parallel()
	a, _ := agent(t)
	in := Input{State: State{Final: true, Answer: "yes", Messages: []model.Message{{Role: model.User, Content: "q"}}}}
	s, err := Turn(t.Context(), a, in, Hooks{})
	wantAnswer(t, s, err, "yes", false)
}

// Whatever the model plays: from every checkpoint the turn ends with the same messages, and no call runs twice that was
// written down as done.
func TestResumeFromEveryCheckpoint(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var play []playback
		for i := range rapid.IntRange(0, 3).Draw(rt, "rounds") {
			q := fmt.Sprintf(`{"query":"%d"}`, i)
			switch rapid.IntRange(0, 3).Draw(rt, "kind") {
			case 0:
				play = append(play, calls("web_search", q))
			case 1:
				play = append(play, calls("web_search", q, "get_time", "{}", "web_search", "{}", "nope", "{}"))
			case 2:
				play = append(play, says("Now.\n```json\n{\"name\":\"web_search\",\"arguments\":"+q+"}\n```"))
			case 3:
				play = append(play, says("<think>x</think><tool_call>{\"name\":\"get_time\",\"arguments\":{}}</tool_call>"))
			}
		}
		play = append(play, says("the answer"))
		a, _ := agent(t, play...)
		var rec record
		whole, err := Turn(context.Background(), a, ask("q"), rec.hooks())
		if err != nil {
			rt.Fatal(err)
		}
		want, wantDone := asJSON(whole.Messages), asJSON(whole.Done)
		for i, state := range rec.states {
			b, p := agent(t, play[countReplies(state):]...)
			b.NewID = idsAfter(state)
			got, err := Turn(context.Background(), b, Input{State: state}, Hooks{})
			if err != nil {
				rt.Fatal(err)
			}
			if have := asJSON(got.Messages); want != have {
				rt.Fatalf("from checkpoint %d (asked %d):\n%s\nwant\n%s", i, len(p.asked), have, want)
			}
			if wantDone != asJSON(got.Done) || got.Step != whole.Step {
				rt.Fatalf("from checkpoint %d: done %+v, want %+v", i, got.Done, whole.Done)
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

func TestBusyIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, p := agent(t, fails(model.ErrBusy), fails(model.ErrBusy), fails(model.ErrBusy), says("yes"))
		start := time.Now()
		s, err := Turn(t.Context(), a, ask("q"), Hooks{})
		wantAnswer(t, s, err, "yes", false)
		if d := time.Since(start); d != 1750*time.Millisecond {
			t.Errorf("waited %s", d)
		}
		p.repeat, p.replies, p.asked = true, []playback{fails(model.ErrBusy)}, nil
		if _, err := Turn(t.Context(), a, ask("q"), Hooks{}); !errors.Is(err, model.ErrBusy) || len(p.asked) != 7 {
			t.Errorf("error %v after %d calls", err, len(p.asked))
		}
		a.Limits.Call = time.Second
		start = time.Now()
		_, err = Turn(t.Context(), a, ask("q"), Hooks{})
		if !errors.Is(err, model.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("error %v after %s", err, time.Since(start))
		}
	})
}

func TestTimes(t *testing.T) {
	t.Parallel()
	half := playback{chunks: []model.Chunk{{Content: "It is"}}, wait: true}
	hang := playback{wait: true}
	t.Run("a call that hangs", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			a, _ := agent(t, hang)
			start := time.Now()
			s, err := Turn(t.Context(), a, ask("q"), Hooks{})
			if !errors.Is(err, context.DeadlineExceeded) || s.Answer != "" || time.Since(start) != 120*time.Second {
				t.Errorf("error %v after %s", err, time.Since(start))
			}
			wantNotes(t, s, NoteFailed)
		})
	})
	t.Run("a call that hangs in the middle", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			a, _ := agent(t, half)
			s, err := Turn(t.Context(), a, ask("q"), Hooks{})
			wantAnswer(t, s, err, "It is", true)
			wantNotes(t, s, NoteCut)
		})
	})
	t.Run("a call that hangs after results", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			a, _ := agent(t, calls("get_time", "{}"), hang)
			s, err := Turn(t.Context(), a, ask("q"), Hooks{})
			if err != nil || !s.Partial || !strings.Contains(s.Answer, "get_time of {}") {
				t.Errorf("error %v, answer %q", err, s.Answer)
			}
			wantNotes(t, s, NoteFailed, NoteEmpty)
		})
	})
	t.Run("the turn's time runs out while writing", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			a, _ := agent(t, half)
			a.Limits.Wall = time.Minute
			start := time.Now()
			s, err := Turn(t.Context(), a, ask("q"), Hooks{})
			wantAnswer(t, s, err, "It is", true)
			wantNotes(t, s, NoteWall)
			if time.Since(start) != time.Minute || s.Spent != time.Minute {
				t.Errorf("after %s, spent %s", time.Since(start), s.Spent)
			}
		})
	})
	t.Run("the turn's time is nearly up", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			a, p := agent(t, calls("get_time", "{}"), says("in time"))
			a.Limits.Wall = 100 * time.Second
			a.Run = func(context.Context, model.Call) Result { time.Sleep(85 * time.Second); return Result{Text: "late"} }
			s, err := Turn(t.Context(), a, ask("q"), Hooks{})
			wantAnswer(t, s, err, "in time", false)
			wantNotes(t, s, NoteWall)
			if len(p.asked[1].Tools) != 0 {
				t.Error("tools were still offered")
			}
		})
	})
	t.Run("a tool that never returns", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			a, _ := agent(t, calls("get_time", "{}"))
			a.Limits.Wall = time.Minute
			a.Run = func(context.Context, model.Call) Result { <-release; return Result{} }
			s, err := Turn(t.Context(), a, ask("q"), Hooks{})
			close(release)
			if err != nil || s.Done[0].Result.Text != resultUnavailable || !s.Partial || s.Answer == "" {
				t.Errorf("error %v, state %+v", err, s)
			}
			wantNotes(t, s, NoteWall, NoteEmpty)
		})
	})
	t.Run("time of earlier lives counts", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			a, _ := agent(t, half)
			a.Limits.Wall = time.Minute
			in := ask("q")
			in.State.Spent = 50 * time.Second
			start := time.Now()
			s, _ := Turn(t.Context(), a, in, Hooks{})
			if time.Since(start) != 10*time.Second || s.Spent != time.Minute {
				t.Errorf("after %s, spent %s", time.Since(start), s.Spent)
			}
		})
	})
}

// A model that never ends is read only so far.
func TestEndless(t *testing.T) {
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
			a, p := agent(t, playback{chunks: chunks, err: errors.New("it was read to the end")})
			p.repeat = true
			a.Limits.Most = 32 << 10
			s, err := Turn(t.Context(), a, ask("q"), Hooks{})
			if err != nil || s.Answer == "" || !s.Partial || len(s.Answer) > 33<<10 {
				t.Errorf("error %v, answer of %d bytes, partial %v, notes %q", err, len(s.Answer), s.Partial, codes(s))
			}
		})
	}
}

// Streaming and one piece come to the same.
func TestStreamedOrNot(t *testing.T) {
	t.Parallel()
	content := "<think>so</think>I look.\n\n```json\n{\"name\": \"web_search\", \"arguments\": {\"query\": \"x\"}}\n```\n"
	run := func(pieces []string) string {
		var chunks []model.Chunk
		for _, p := range pieces {
			chunks = append(chunks, model.Chunk{Content: p})
		}
		chunks = append(chunks, model.Chunk{Done: true})
		a, _ := agent(t, playback{chunks: chunks}, says("ok"))
		var rec record
		s, err := Turn(t.Context(), a, ask("q"), rec.hooks())
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
