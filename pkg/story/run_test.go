package story_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"conclave/pkg/model/scriptserver"
	"conclave/pkg/story"
	"conclave/subjects"
)

// replies answers every question with r, after a call of a tool.
func replies(r subjects.Response) func(*fakeSystem, subjects.Query) {
	return func(w *fakeSystem, q subjects.Query) {
		w.store("broker", "tool.request.web_search", q.QueryID,
			subjects.ToolRequest{Tool: "web_search", Args: json.RawMessage(`{}`)})
		w.store("broker", "tool.result.web_search", q.QueryID,
			subjects.ToolResult{Tool: "web_search", Result: "Today is Friday.\n\n1. Alpha ships\n   The first of its " +
				"kind."})
		w.done(q.QueryID, r)
	}
}

func parse(t testing.TB, text string) *story.Story {
	t.Helper()
	s, err := story.Parse([]byte(text), "stories/t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// quick does not wait long for what will not come.
var quick = story.Options{AnswerTimeout: 10 * time.Second, SettleTimeout: 300 * time.Millisecond}

// run runs a story in a bubble of synctest: waiting takes no time, and no timeout passes because the machine is busy.
func run(t *testing.T, s *story.Story, w story.System, opts story.Options) (r story.Result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { r = story.Run(t.Context(), s, w, opts) })
	return r
}

// good is an answer to compare with.
func good() subjects.Response {
	return subjects.Response{
		Answer: "The world is round. Alpha ships", Thinking: "round or flat",
		ToolCalls: []subjects.ToolCall{
			{
				Tool: "web_search", Args: json.RawMessage(`{"query":"alpha","n":3,"deep":{"a":[1]}}`),
				Result: "Alpha ships", Layer: "native",
			},
			{
				Tool: "get_datetime", Args: json.RawMessage(`{"timezone":"UTC"}`), Layer: "text",
				Error: subjects.Faultf("denied", "no"),
			},
		},
		Notes: []subjects.Note{{Code: "recovered_call"}, {Code: "step_cap"}},
	}
}

// TestExpectations shows for everything that can be expected what meets it and what does not, with the line of the
// failure. The turn begins on line 4 of the file, what is expected on line 6.
func TestExpectations(t *testing.T) {
	const sixth = "stories/t.yaml:6: turn 1: "
	for _, tt := range []struct {
		name   string
		turn   string // below the question
		events string // below the turns
		change func(*subjects.Response)
		want   string // in the report; "" = it passes
	}{
		{"contains", "answer: {contains: [WORLD, round]}", "", nil, ""},
		{
			"contains not", "answer: {contains: [world, flat]}", "", nil,
			sixth + `the answer does not contain "flat": "The world is round. Alpha ships"`,
		},
		{"not_contains", "answer: {not_contains: [flat]}", "", nil, ""},
		{
			"not_contains but does", "answer: {not_contains: [flat, Round]}", "", nil,
			sixth + `the answer contains "Round"`,
		},
		{"equals", "answer: {equals: The world is round. Alpha ships}", "", nil, ""},
		{"equals not", "answer: {equals: The world is round}", "", nil, sixth + `the answer is "The world`},
		{"matches", "answer: {matches: '^The \\w+ is'}", "", nil, ""},
		{"matches not", "answer: {matches: '^the'}", "", nil, sixth + "the answer does not match ^the"},
		{"not_empty", "answer: {not_empty: true}", "", nil, ""},
		{"not_empty but blank", "answer: {not_empty: true}", "", func(r *subjects.Response) {
			r.Answer = " \n"
		}, sixth + "the answer is empty"},
		{"an empty answer is never right", "no_notes: true", "", func(r *subjects.Response) {
			*r = subjects.Response{}
		}, "turn 1: the answer is empty"},
		{"contains_from", "answer: {contains_from: {event: tool.result.*, field: result}}", "", nil, ""},
		{
			"contains_from of another", "answer: {contains_from: {event: tool.result.*, field: result}}", "",
			func(r *subjects.Response) { r.Answer = "Beta ships" }, sixth + "the answer quotes nothing of",
		},
		{
			"contains_from a line", "answer: {contains_from: {event: tool.result.*, field: result, line: 4}}", "",
			func(r *subjects.Response) { r.Answer = "It is the first of its kind." }, "",
		},
		{
			"contains_from another line", "answer: {contains_from: {event: tool.result.*, field: result, line: 1}}", "",
			nil, sixth + "the answer quotes nothing of",
		},
		{
			"contains_from a line too far", "answer: {contains_from: {event: tool.result.*, field: result, line: 9}}",
			"",
			nil, sixth + "the field has no line 9",
		},
		{
			"contains_from no event", "answer: {contains_from: {event: tool.result.web_fetch, field: result}}", "", nil,
			sixth + "no event tool.result.web_fetch of this turn",
		},
		{
			"contains_from no field", "answer: {contains_from: {event: tool.result.*, field: error.code}}", "", nil,
			sixth + "no event tool.result.* of this turn has a field error.code",
		},
		{
			"contains_from a blank line", "answer: {contains_from: {event: tool.result.*, field: result, line: 2}}", "",
			nil, sixth + "the answer quotes nothing of",
		},

		{"thinking", "thinking: {not_empty: true, contains: [Flat]}", "", nil, ""},
		{"thinking without", "thinking: {not_empty: true}", "", func(r *subjects.Response) {
			r.Thinking = " "
		}, sixth + "no thinking"},
		{
			"thinking of something else", "thinking: {contains: [square]}", "", nil,
			sixth + `the thinking does not contain "square": "round or flat"`,
		},
		{"no thinking", "thinking: {empty: true}", "", func(r *subjects.Response) { r.Thinking = "" }, ""},
		{"no thinking but some", "thinking: {empty: true}", "", nil, sixth + `unexpected thinking "round or flat"`},

		{"calls", "tool_calls: [{tool: web_search}, {tool: get_datetime, error: denied}]", "", nil, ""},
		{"one of the calls", "tool_calls: [{tool: web_search, layer: native, result_contains: alpha, args: {query: " +
			"alpha, n: 3, deep: {a: [1]}}}]", "", nil, ""},
		{
			"calls in another order", "tool_calls: [{tool: get_datetime, error: denied}, {tool: web_search}]", "", nil,
			sixth + "no such call of web_search in this order: web_search",
		},
		{
			"one call too many", "tool_calls: [{tool: web_search}, {tool: web_search}]", "", nil,
			sixth + "no such call of web_search",
		},
		{"another layer", "tool_calls: [{tool: web_search, layer: xml}]", "", nil, sixth + "no such call"},
		{"another result", "tool_calls: [{tool: web_search, result_contains: beta}]", "", nil, sixth + "no such call"},
		{"other arguments", "tool_calls: [{tool: web_search, args: {query: beta}}]", "", nil, sixth + "no such call"},
		{
			"more arguments", "tool_calls: [{tool: web_search, args: {query: alpha, m: 3}}]", "", nil,
			sixth + "no such call",
		},
		{"a call that failed", "tool_calls: [{tool: get_datetime}]", "", nil, sixth + "no such call of get_datetime " +
			"in this order"},
		{
			"a call that failed otherwise", "tool_calls: [{tool: get_datetime, error: timeout}]", "", nil,
			"failed with denied",
		},
		{"no calls", "tool_calls: []", "", func(r *subjects.Response) { r.ToolCalls = nil }, ""},
		{"no calls but some", "tool_calls: []", "", nil, sixth + "unexpected tool calls: web_search"},

		{"notes", "notes: [step_cap, recovered_call]", "", nil, ""},
		{"other notes", "notes: [step_cap, repetition]", "", nil, sixth + "no note repetition: [recovered_call " +
			"step_cap]"},
		{"no notes", "no_notes: true", "", func(r *subjects.Response) { r.Notes = nil }, ""},
		{"no notes but some", "no_notes: true", "", nil, sixth + "unexpected notes"},
		{"partial", "partial: true", "", func(r *subjects.Response) { r.Partial = true }, ""},
		{"partial but whole", "partial: true", "", nil, sixth + "partial is false"},
		{"half an answer that nobody announced", "notes: [step_cap]", "", func(r *subjects.Response) {
			r.Partial = true
		}, "turn 1: partial is true"},
		{"error", "error: model_missing", "", func(r *subjects.Response) {
			r.Answer, r.Error = "", subjects.Faultf("model_missing", "x")
		}, ""},
		{"error but none", "error: model_missing", "", nil, sixth + "it did not fail with model_missing"},
		{"another error", "error: model_missing", "", func(r *subjects.Response) {
			r.Error = subjects.Faultf("timeout", "too long")
		}, sixth + "it failed with timeout (too long) instead of model_missing"},
		{"an error that nobody announced", "notes: [step_cap]", "", func(r *subjects.Response) {
			r.Error = subjects.Faultf("timeout", "too long")
		}, "turn 1: it failed with timeout (too long)\n"},

		{"present", "", "present: [tool.result.*, 'answer.dialog answer~ROUND']", nil, ""},
		{"present not", "", "present: [tool.result.*, tool.result.run_shell]", nil, "stories/t.yaml:7: no event " +
			"tool.result.run_shell\n"},
		{"present by its author", "", "present: [tool.result.* by=broker]", nil, ""},
		{"present by somebody else", "", "present: [tool.result.* by=generator]", nil, ":7: no event tool.result.* " +
			"by=generator"},
		{"present with a field", "", "present: [response.generation tool_calls.0.tool=web_search " +
			"tool_calls.1.error.code!=ok]", nil, ""},
		{"present with a field of something in a list that is too short", "", "present: [response.generation " +
			"tool_calls.2.tool=web_search]", nil, ":7: no event response.generation tool_calls.2.tool=web_search"},
		{
			"present with another field", "", "present: [response.generation tool_calls.0.tool=web_fetch]", nil,
			":7: no event response.generation tool_calls.0.tool=web_fetch",
		},
		{
			"present and not unequal", "", "present: [response.generation tool_calls.0.tool!=web_search]", nil,
			":7: no event",
		},
		{"present with a text", "", `present: ['tool.result.> result~"ALPHA ships"']`, nil, ""},
		{"present with another text", "", `present: ['tool.result.> result~"beta ships"']`, nil, ":7: no event"},
		{"present somewhere in the body", "", "present: ['tool.result.* body~\"of its kind\"', 'response.generation " +
			"body~NATIVE']", nil, ""},
		{"present nowhere in the body", "", "present: [tool.> body~native]", nil, ":7: no event tool.> body~native"},
		{"absent in every body", "", "absent: ['> body~secret']", nil, ""},
		{"absent but in a body", "", "absent: ['> body~recovered_call']", nil, ":7: unexpected event > " +
			"body~recovered_call: "},
		{"present so often", "", "present: [tool.> times=2]", nil, ""},
		{"present less often", "", "present: [tool.> times=3]", nil, ":7: 2 events tool.> times=3"},
		{"absent", "", "absent: [tool.request.run_shell, approval.>, tool.result.* by=tools]", nil, ""},
		{"absent but there", "", "absent: [approval.>, tool.request.>]", nil, ":7: unexpected event tool.request.>:"},
		{"in order", "", "in_order: [query.received, tool.request.web_search, tool.result.web_search, " +
			"response.generation, answer.dialog]", nil, ""},
		{
			"in another order", "", "in_order: [tool.result.web_search, tool.request.web_search, response.generation]",
			nil, ":7: no event tool.request.web_search after tool.result.web_search",
		},
		{
			"in order twice", "", "in_order: [response.generation, response.generation]", nil,
			":7: no event response.generation after response.generation",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			text := head + "turns:\n  - query: hello\n"
			if tt.turn != "" {
				text += "    " + tt.turn + "\n"
			}
			if tt.events != "" {
				text += "events:\n  " + tt.events + "\n"
			}
			r := good()
			if tt.change != nil {
				tt.change(&r)
			}
			got := run(t, parse(t, text), &fakeSystem{answer: replies(r)}, quick)
			if got.OK() != (tt.want == "") || !strings.Contains(got.Report(), tt.want) {
				t.Errorf("want %q\n%s", tt.want, got.Report())
			}
			if !got.OK() && (!strings.Contains(got.Report(), "events:\n       1 -          query.received") ||
				len(got.Failures) > 2) {
				t.Errorf("the report does not help:\n%s", got.Report())
			}
		})
	}
}

// Words that a scripted reply says by itself come from nowhere, and prove nothing.
func TestScriptedWordsProveNothing(t *testing.T) {
	t.Parallel()
	text := func(reply string) string {
		return head + "model: {assistant: [{reply: {content: '" + reply +
			"'}}]}\nturns:\n  - query: hello\n    answer: {contains_from: {event: tool.result.*, field: result}}\n"
	}
	if got := run(t, parse(t, text("News: {{tool_result 0 | line 3}}")), &fakeSystem{answer: replies(good())},
		quick); !got.OK() {
		t.Error(got.Report())
	}
	got := run(t, parse(t, text("{{last_user}}: 1. alpha ships")),
		&fakeSystem{answer: replies(subjects.Response{Answer: "hello: 1. alpha ships"})}, quick)
	if !strings.Contains(got.Report(), `t.yaml:7: turn 1: a scripted reply says "Alpha ships" itself`) {
		t.Errorf("got %q", got.Report())
	}
}

func TestScriptIsFollowed(t *testing.T) {
	t.Parallel()
	s := parse(t, head+"model:\n  assistant:\n    - reply: {content: a}\n    - reply: {content: b}\n"+
		"turns:\n  - query: hello\n    answer: {contains: [world]}\n")
	w := &fakeSystem{answer: replies(good()), script: story.ScriptReport{
		Requests: []string{"assistant: 2 messages"},
		Mismatches: []scriptserver.Mismatch{{
			Place: scriptserver.Place{Model: "assistant", N: -1},
			Text:  "no exchange is left",
		}, {
			Place: scriptserver.Place{Model: "assistant", N: 0},
			Text:  "exchange 0 wants",
		}}, Unused: []scriptserver.Place{{Model: "assistant", N: 1}},
	}}
	got := run(t, s, w, quick)
	for _, want := range []string{
		"t.yaml:6: a model request does not match the script: no exchange is left",
		"t.yaml:6: a model request does not match the script: exchange 0 wants",
		"t.yaml:7: no request for this reply of assistant",
		"model requests:\n    assistant: 2 messages",
	} {
		if !strings.Contains(got.Report(), want) {
			t.Errorf("want %q\n%s", want, got.Report())
		}
	}
}

func TestTurns(t *testing.T) {
	t.Parallel()
	s := parse(t, head+"turns:\n  - query: one\n    answer: {contains: [one]}\n  - query: two\n    session: other\n  "+
		"  answer: {contains: [two]}\n  - query: three\n")
	w := &fakeSystem{deaf: true, answer: func(w *fakeSystem, q subjects.Query) {
		w.done(q.QueryID, subjects.Response{Answer: q.Query})
	}}
	w.store("generator", "response.generation", "", subjects.Response{Answer: "of before"})
	if got := run(t, s, w, quick); !got.OK() || len(got.Events) != 12 {
		t.Errorf("%d events\n%s", len(got.Events), got.Report())
	}
	a := w.asked
	if len(a) != 3 || a[0].SessionID != a[2].SessionID || a[1].SessionID != "other" || a[0].QueryID == a[1].QueryID {
		t.Errorf("asked %+v", a)
	}
	for _, q := range a {
		if subjects.CheckToken(q.SessionID) != nil || subjects.CheckToken(q.QueryID) != nil {
			t.Errorf("ids of %+v", q)
		}
	}
}

// Respondent B answers in respondent B: its answer is not the answer.
func TestRespondentBIsNotTheAnswer(t *testing.T) {
	t.Parallel()
	w := &fakeSystem{answer: func(w *fakeSystem, q subjects.Query) {
		w.done(q.QueryID, subjects.Response{Answer: "the world"})
		w.store("respondent_b", "response.generation", q.QueryID, subjects.Response{Answer: "respondent B"})
	}}
	if got := run(t, parse(t, simple), w, quick); !got.OK() {
		t.Error(got.Report())
	}
}

// A grade of a real model takes its time: a live run waits for it, a scripted one does not.
func TestLiveRunWaitsForLateEvents(t *testing.T) {
	t.Parallel()
	for _, live := range []bool{false, true} {
		w := &fakeSystem{answer: func(w *fakeSystem, q subjects.Query) {
			w.done(q.QueryID, subjects.Response{Answer: "the world"})
			time.AfterFunc(15*time.Second, func() { // on the clock of the test
				w.store("critic", "critique.result", q.QueryID, subjects.Critique{Score: 4})
			})
		}}
		s := parse(t, simple+"events:\n  present: [critique.result]\n")
		if got := run(t, s, w, story.Options{Live: live}); got.OK() != live {
			t.Errorf("live %t: %s", live, got.Report())
		}
	}
}

func TestNoAnswer(t *testing.T) {
	t.Parallel()
	s := parse(t, simple+"  - query: and then\n")
	got := run(t, s, &fakeSystem{}, story.Options{
		AnswerTimeout: 50 * time.Millisecond,
		SettleTimeout: time.Millisecond,
	})
	if report := got.Report(); !strings.Contains(report, "t.yaml:5: turn 1: no answer") ||
		!strings.Contains(report, "t.yaml:7: turn 2 was not run") {
		t.Errorf("got %s", report)
	}
}

// A question that nobody can read ends in a dead letter. That is right when it was announced, and only then.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	dead := func(code string) *fakeSystem {
		return &fakeSystem{answer: func(w *fakeSystem, q subjects.Query) {
			w.store("router", "dead.router", q.QueryID, subjects.DeadLetter{Actor: "router", Code: code, Reason: "odd"})
		}}
	}
	opts := story.Options{AnswerTimeout: 10 * time.Second, SettleTimeout: 20 * time.Millisecond}
	expecting := head + "turns:\n  - query: hello\n    error: malformed\n"
	if got := run(t, parse(t, expecting), dead("malformed"), opts); !got.OK() {
		t.Error(got.Report())
	}
	if got := run(t, parse(t, expecting), dead("too_large"), opts); !strings.Contains(got.Report(),
		"no answer, but a dead letter of router: too_large: odd instead of malformed") {
		t.Errorf("got %s", got.Report())
	}
	both := func(w *fakeSystem, q subjects.Query) {
		w.store("model", "dead.model", "", subjects.DeadLetter{Actor: "model", Code: "permission"})
		w.done(q.QueryID, good())
	}
	if got := run(t, parse(t, simple), &fakeSystem{answer: both}, opts); !strings.Contains(got.Report(),
		"unexpected dead letter") {
		t.Errorf("a dead letter beside a good answer: %q", got.Report())
	}
	spoken := simple + "events: {present: [dead.model code=permission]}\n"
	if got := run(t, parse(t, spoken), &fakeSystem{answer: both}, opts); !got.OK() {
		t.Error(got.Report())
	}
}

func TestRequests(t *testing.T) {
	t.Parallel()
	text := func(tool, expect string) string {
		return head + "turns:\n  - request: {as: committee, tool: " + tool + ", args: {a: 1}}\n    " + expect + "\n"
	}
	for _, tt := range []struct{ tool, expect, want string }{
		{"forbidden", "error: denied", ""},
		{"allowed", "answer: {contains: [done for committee]}", ""},
		{"allowed", "error: denied", "t.yaml:6: turn 1: it did not fail with denied"},
		{"forbidden", "answer: {contains: [done]}", "turn 1: it failed with denied (no)"},
		{"forbidden", "error: denied\nevents: {present: [tool.result.forbidden error.code=denied by=broker]}", ""},
	} {
		got := run(t, parse(t, text(tt.tool, tt.expect)), &fakeSystem{}, quick)
		if got.OK() != (tt.want == "") || !strings.Contains(got.Report(), tt.want) {
			t.Errorf("%s, %s: want %q\n%s", tt.tool, tt.expect, tt.want, got.Report())
		}
		if got.Took > 250*time.Millisecond {
			t.Errorf("%s: it waited %s for an agent that does nothing", tt.tool, got.Took)
		}
	}
}

func TestStopAfter(t *testing.T) {
	t.Parallel()
	for moment, answer := range map[string]func(*fakeSystem, subjects.Query){
		"delta: wor": func(w *fakeSystem, q subjects.Query) {
			w.delta("other", "the world of somebody else")
			w.delta(q.QueryID, "the w")
			w.delta(q.QueryID, "or")
		},
		"event: agent.state.generator to=DISPATCHING_TOOL": func(w *fakeSystem, q subjects.Query) {
			w.store("generator", "agent.state.generator", q.QueryID, subjects.AgentState{To: "GENERATING"})
			w.store("generator", "agent.state.generator", q.QueryID, subjects.AgentState{To: "DISPATCHING_TOOL"})
		},
	} {
		s := parse(t, head+"turns:\n  - query: hello\n    stop_after: {"+moment+"}\n    partial: true\nevents:\n  "+
			"present: [query.cancel.* times=1]\n")
		w := &fakeSystem{answer: answer, cancel: func(w *fakeSystem, query string) {
			w.done(query, subjects.Response{Answer: "the wor", Partial: true})
		}}
		if got := run(t, s, w, quick); !got.OK() {
			t.Errorf("%s: %s", moment, got.Report())
		}
	}
}

func TestCrash(t *testing.T) {
	t.Parallel()
	s := parse(t, head+"turns:\n  - query: hello\n    crash: {actor: generator, after: {event: tool.result.*}}\n    "+
		"answer: {contains: [round]}\n")
	var crashed []string
	var asked subjects.Query
	w := &fakeSystem{
		answer: func(w *fakeSystem, q subjects.Query) {
			asked = q
			w.store("broker", "tool.result.x", q.QueryID, subjects.ToolResult{})
		},
		crash: func(w *fakeSystem, actor string) error {
			crashed = append(crashed, actor)
			w.done(asked.QueryID, good())
			return nil
		},
	}
	if got := run(t, s, w, quick); !got.OK() || !slices.Equal(crashed, []string{"generator"}) {
		t.Errorf("crashed %v\n%s", crashed, got.Report())
	}
	w = &fakeSystem{answer: w.answer, crash: func(*fakeSystem, string) error {
		return errors.New("there is no actor generator")
	}}
	if got := run(t, s, w, quick); !strings.Contains(got.Report(), "t.yaml:1: there is no actor generator") {
		t.Errorf("got %s", got.Report())
	}
}

// A story that wanted to see a crash or a stop has shown nothing when there was none.
func TestTheMomentNeverCame(t *testing.T) {
	t.Parallel()
	opts := story.Options{AnswerTimeout: 10 * time.Second, SettleTimeout: 20 * time.Millisecond}
	late := story.Options{AnswerTimeout: 50 * time.Millisecond, SettleTimeout: 20 * time.Millisecond}
	const crash, stop = "crash: {actor: generator, after: {event: tool.result.never}}", "stop_after: {delta: never}"
	unread := func(w *fakeSystem, q subjects.Query) {
		w.store("router", "dead.router", q.QueryID, subjects.DeadLetter{Actor: "router", Code: "malformed"})
	}
	for _, tt := range []struct {
		name, turn string
		world      *fakeSystem
		opts       story.Options
		want       string
	}{
		{"crash", crash, &fakeSystem{answer: replies(good())}, quick, "turn 1: the moment to crash generator was not " +
			"reached"},
		{"stop", stop, &fakeSystem{answer: replies(good())}, quick, "turn 1: the moment to stop was not reached"},
		{"nothing is heard", stop, &fakeSystem{answer: replies(good()), deaf: true}, opts, "turn 1: the moment to " +
			"stop was not reached"},
		{
			"a dead letter", crash + "\n    error: malformed", &fakeSystem{answer: unread}, opts,
			"turn 1: the moment to crash generator was not reached",
		},
		{"nobody answers", stop, &fakeSystem{}, late, "turn 1: the moment to stop was not reached"},
	} {
		s := parse(t, head+"turns:\n  - query: hello\n    "+tt.turn+"\nevents: {present: [query.received]}\n")
		if got := run(t, s, tt.world, tt.opts); !strings.Contains(got.Report(), tt.want) {
			t.Errorf("%s: got %q", tt.name, got.Report())
		}
	}
}

// With a real model the script and what is expected of it alone are left out, and nothing else is.
func TestLive(t *testing.T) {
	t.Parallel()
	live := quick
	live.Live = true
	skipped := run(t, parse(t, head+"scripted_only: true\nturns:\n  - query: hello\n    answer: {contains: [flat]}\n"),
		nil, live)
	if !skipped.OK() || skipped.Skipped == "" {
		t.Errorf("got %+v", skipped)
	}
	text := head + `turns:
  - query: one
    answer: {contains: [flat], scripted_only: true}
    thinking: {empty: true, scripted_only: true}
    tool_calls: [{tool: web_fetch, scripted_only: true}, {tool: web_search}]
  - query: two
    scripted_only: true
    notes: [repetition]
events:
  present: [tool.result.web_fetch scripted_only]
  absent: [tool.result.web_search scripted_only]
  in_order: [tool.result.web_fetch scripted_only, response.generation]
`
	if got := run(t, parse(t, text), &fakeSystem{answer: replies(good())}, live); !got.OK() {
		t.Errorf("live: %s", got.Report())
	}
	if got := run(t, parse(t, text), &fakeSystem{answer: replies(good())}, quick); len(got.Failures) != 7 {
		t.Errorf("scripted, %d failures: %s", len(got.Failures), got.Report())
	}
	strict := head + "turns:\n  - query: one\n    answer: {contains: [flat]}\n"
	if got := run(t, parse(t, strict), &fakeSystem{answer: replies(good())}, live); got.OK() {
		t.Error("a wrong answer of a real model passes")
	}
}
