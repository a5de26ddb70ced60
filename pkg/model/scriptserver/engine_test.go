package scriptserver

import (
	"slices"
	"strings"
	"testing"

	"conclave/pkg/model"
)

func seen(name string, messages ...model.Message) Request {
	return Request{Request: model.Request{Model: name, Messages: messages}}
}

func user(text string) model.Message { return model.Message{Role: model.User, Content: text} }

func result(text string) model.Message {
	return model.Message{Role: model.ToolRole, Content: text, ToolName: "t"}
}

func TestConditions(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	full := Request{Request: model.Request{
		Model: "m", Think: &yes, Tools: []model.Tool{{Name: "look"}, {Name: "weigh"}},
		Messages: []model.Message{
			{Role: model.System, Content: "You are BRIEF."},
			user("my dog is Rex"),
			{
				Role: model.Assistant, Content: "Noted.",
				Calls: []model.Call{{Name: "save", Arguments: []byte(`{"dog":"rex"}`)}},
			},
			user("What is his name?"), result("name: Rex"),
		},
	}}
	for _, c := range []struct {
		name string
		when When
		ok   bool
	}{
		{"anything", When{}, true},
		{"last role", When{LastRole: "tool"}, true},
		{"other last role", When{LastRole: "user"}, false},
		{"last text, other case", When{LastContains: "NAME: rex"}, true},
		{"text that is not in the last", When{LastContains: "dog"}, false},
		{"in some message", When{Contains: []string{"noted", "his name"}}, true},
		{"in a call", When{Contains: []string{`"dog":"rex"`, "save"}}, true},
		{"one of two is nowhere", When{Contains: []string{"noted", "cat"}}, false},
		{"absent", When{Absent: []string{"cat"}}, true},
		{"not absent", When{Absent: []string{"cat", "dog"}}, false},
		{"system", When{System: "brief"}, true},
		{"said, but not by the system", When{System: "dog"}, false},
		{"tools", When{ToolsInclude: []string{"weigh"}}, true},
		{"a tool that is not offered", When{ToolsInclude: []string{"weigh", "smell"}}, false},
		{"no tools", When{NoTools: true}, false},
		{"count", When{Messages: 5}, true},
		{"other count", When{Messages: 4}, false},
		{"think", When{ThinkIs: &yes}, true},
		{"other think", When{ThinkIs: &no}, false},
		{"history", When{HistoryHas: []string{"my dog"}}, true},
		{"the question is not history", When{HistoryHas: []string{"his name"}}, false},
		{"what came after the question is not history", When{HistoryHas: []string{"name: rex"}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := NewEngine(Script{"m": {{When: c.when, Reply: Reply{Content: "ok"}}}})
			a := e.Next(full)
			if ok := a.Refusal == ""; ok != c.ok {
				t.Fatalf("answer %+v", a)
			}
			if !c.ok && (a.Status != 500 || !strings.Contains(a.Text, "exchange 0 wants") || e.Err() == nil ||
				len(e.Unused()) != 1) {
				t.Errorf("answer %+v, error %v, unused %v", a, e.Err(), e.Unused())
			}
			if c.ok && (e.Err() != nil || len(e.Unused()) != 0) {
				t.Errorf("error %v, unused %v", e.Err(), e.Unused())
			}
		})
	}
	if unmet := (When{ThinkIs: &no}).firstUnmet(seen("m")); unmet == "" {
		t.Error("think that is not sent counts as false")
	}
}

func replyText(e *Engine, r Request) string {
	a := e.Next(r)
	if a.Refusal != "" {
		return string(a.Refusal)
	}
	return a.Join().Content
}

func TestExchangesAreUsedInOrder(t *testing.T) {
	t.Parallel()
	e := NewEngine(Script{
		"m:latest": {
			{Reply: Reply{Content: "always"}, Always: true, When: When{LastContains: "any"}},
			{Reply: Reply{Content: "first"}},
			{Reply: Reply{Content: "b"}, When: When{LastContains: "b"}, AnyOrder: true},
			{Reply: Reply{Content: "a"}, When: When{LastContains: "a"}, AnyOrder: true},
			{Reply: Reply{Content: "last"}, When: When{LastContains: "end"}},
		},
		"n": {{Reply: Reply{Content: "n's own"}}},
		"*": {{Reply: Reply{Content: "whoever"}, Always: true}},
	})
	for _, c := range []struct{ model, text, want string }{
		{"m", "any", "first"}, // those that are used once come first
		{"m", "a", "a"},
		{"m", "any", "always"}, // holds no b
		{"m", "nothing", "mismatch"},
		{"m:latest", "b", "b"},
		{"m", "end", "last"},
		{"m", "end", "mismatch"},
		{"m", "any", "always"},
		{"n", "x", "n's own"},
		{"n", "x", "mismatch"},
		{"unheard-of", "x", "whoever"},
	} {
		if got := replyText(e, seen(c.model, user(c.text))); got != c.want {
			t.Errorf("%s %q: %q, want %q", c.model, c.text, got, c.want)
		}
	}
	if left := e.Unused(); len(left) != 0 {
		t.Errorf("unused %v", left)
	}
	if n := strings.Count(e.Err().Error(), "\n") + 1; n != 3 {
		t.Errorf("%d errors: %v", n, e.Err())
	}
	if got := NewEngine(Script{"m": {{}, {}}, "k": {{}}}).Unused(); !slices.Equal(got,
		[]Place{{"k", 0}, {"m", 0}, {"m", 1}}) {
		t.Errorf("unused %v", got)
	}
}

func TestConditionalRefusalKeepsExchangeForRetry(t *testing.T) {
	t.Parallel()
	yes := true
	e := NewEngine(Script{"m": {
		{Reply: Reply{Content: "busy no more", Quirks: Quirks{Busy: 2}}},
		{Reply: Reply{Content: "without tools", Quirks: Quirks{RefuseTools: true}}},
		{Reply: Reply{Content: "without thinking", Quirks: Quirks{RefuseThink: true}}},
		{Reply: Reply{Quirks: Quirks{TooLong: true}}},
		{Reply: Reply{Content: "after it"}},
	}})
	r := seen("m", user("x"))
	r.Tools = []model.Tool{{Name: "t"}}
	r.Think = &yes
	for _, want := range []string{"busy", "busy", "busy no more", "tools", "tools"} {
		if got := replyText(e, r); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	r.Tools = nil
	for _, want := range []string{"without tools", "thinking"} {
		if got := replyText(e, r); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	r.Think = nil
	for _, want := range []string{"without thinking", "length", "after it"} {
		if got := replyText(e, r); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	if e.Err() != nil {
		t.Error(e.Err())
	}
}

func TestTemplates(t *testing.T) {
	t.Parallel()
	r := seen("m", user("old question"), result("old result"), user("the \"question\"\nof two lines"),
		result("2026-01-02\n\n1. First\n  2. Second <b> \n"), result("other"))
	for _, c := range []struct{ text, want string }{
		{"plain", "plain"},
		{"{{last_user}}", "the \"question\"\nof two lines"},
		{"<{{ tool_result 0 | line 4 }}>", "<2. Second <b>>"},
		{"{{tool_result 1}} and {{tool_result -1}}", "other and other"},
		{"{{user 0}}", "old question"},
		{"{{user -1 | line 2}}", "of two lines"},
		{"{{tool_result 0 | match [0-9]{4}}}", "mismatch"}, // }} ends it: a known limit
		{"{{tool_result 0 | match [0-9]+-[0-9]+}}", "2026-01"},
		{"{{tool_result 0 | line 3 | match [A-Z]\\w+}}", "First"},
		{`{{"{{"}}x`, "{{x"},
		{"{{tool_result 2}}", "mismatch"},
		{"{{tool_result -3}}", "mismatch"},
		{"{{tool_result 0 | line 9}}", "mismatch"},
		{"{{tool_result 0 | line 0}}", "mismatch"},
		{"{{tool_result 0 | match nowhere}}", "mismatch"},
		{"{{tool_result 0 | upper}}", "mismatch"},
		{"{{tool_result}}", "mismatch"},
		{"{{whatever}}", "mismatch"},
		{"{{last_user", "mismatch"},
	} {
		t.Run(c.text, func(t *testing.T) {
			t.Parallel()
			if got := replyText(NewEngine(Script{"m": {{Reply: Reply{Content: c.text}}}}), r); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestTemplatesInCalls(t *testing.T) {
	t.Parallel()
	args := map[string]any{
		"q": "{{last_user}}", "n": 3,
		"list": []any{"{{tool_result 0}}", map[string]any{"deep": "{{last_user}}"}},
	}
	e := NewEngine(Script{"m": {
		{Always: true, Reply: Reply{Thinking: "{{last_user}}", Calls: []Call{
			{Name: "a", Arguments: args},
			{Name: "b", JSON: `{"z":"{{last_user}}","a":{}}`},
		}}},
	}})
	for _, text := range []string{"a \"b\"", "<c>"} { // twice: a script is not used up by being filled in
		whole := e.Next(seen("m", user(text), result("r"))).Join()
		if whole.Thinking != text {
			t.Errorf("thinking %q", whole.Thinking)
		}
		quoted := strings.ReplaceAll(text, `"`, `\"`)
		for i, want := range []string{
			`{"list":["r",{"deep":"` + quoted + `"}],"n":3,"q":"` + quoted + `"}`,
			`{"z":"` + quoted + `","a":{}}`,
		} {
			if got := string(whole.Calls[i].Arguments); got != want {
				t.Errorf("arguments %s, want %s", got, want)
			}
		}
	}
	for _, bad := range []Call{
		{Name: "x", JSON: `{"a":`},
		{Name: "x", JSON: `{}`, Arguments: map[string]any{"a": 1}},
		{Name: "x", Arguments: map[string]any{"a": []any{"{{nope}}"}}},
	} {
		e := NewEngine(Script{"m": {{Reply: Reply{Calls: []Call{bad}}}}})
		if a := e.Next(seen("m", user("x"))); a.Refusal != RefusedMismatch || e.Err() == nil {
			t.Errorf("%+v gives %+v", bad, a)
		}
	}
}
