package story_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"conclave/pkg/story"
)

// head is the beginning of every story in these tests: three lines.
const head = "story: T1\ntitle: a test\nwhy: to see\n"

// simple is a story that is complete.
const simple = head + "turns:\n  - query: hello\n    answer: {contains: [world]}\n"

func TestParse(t *testing.T) {
	s, err := story.Parse([]byte(head+`config:
  generator: {hedge: {search: ""}, steps: 2}
server: {models: {assistant: {tools: false, window: 4096}}}
model:
  assistant:
    - when: {last_role: user, tools_include: [web_search]}
      reply:
        tool_calls: [{name: web_search, arguments: {query: news, n: 3, deep: [true, 1.5]}}]
        quirks: {token_delay: 20ms}
    - reply: {content: "{{tool_result 0 | line 3}}"}
turns:
  - query: What is new?
    session: mine
    answer: {contains_from: {event: tool.result.web_search, field: result}}
    tool_calls: []
    crash: {actor: generator, after: {event: tool.request.> by=broker}}
events:
  present: [tool.result.* result~"two words" times=2 scripted_only]
`), "stories/t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	call := s.Model["assistant"][0].Reply.Calls[0]
	if s.Model["assistant"][0].Reply.Quirks.TokenDelay != 20*time.Millisecond || call.Arguments["n"] != 3 || call.Arguments["deep"].([]any)[1] != 1.5 {
		t.Errorf("model %+v", s.Model)
	}
	if s.Config["generator"]["hedge"].(map[string]any)["search"] != "" || s.Config["generator"]["steps"] != 2 {
		t.Errorf("config %v", s.Config)
	}
	turn := s.Turns[0]
	if turn.Session != "mine" || turn.ToolCalls == nil || len(turn.ToolCalls) != 0 || *s.Server.Models["assistant"].Tools || s.Server.Models["assistant"].Thinking != nil {
		t.Errorf("story %+v", s)
	}
	if s.File() != "stories/t.yaml" || s.Line("turns[0].answer") != 17 || s.Line("turns[0].notes") != 15 {
		t.Errorf("%s, lines %d and %d", s.File(), s.Line("turns[0].answer"), s.Line("turns[0].notes"))
	}
}

func TestParseRefuses(t *testing.T) {
	const turn = "turns:\n  - query: hello\n"
	for _, tt := range []struct{ name, text, want string }{
		{"no id", "title: x\nwhy: y\n" + turn, "t.yaml:1: story: must be there"},
		{"no title", "story: x\nwhy: y\n" + turn, "t.yaml:1: title: must be there"},
		{"no reason", "story: x\ntitle: y\n" + turn, "t.yaml:1: why: must be there"},
		{"a long reason", "story: x\ntitle: y\nwhy: |\n  a\n  b\n" + turn, "t.yaml:3: why: must be one line"},
		{"no turns", head, "t.yaml:1: turns: a story needs at least one question"},
		{"nothing expected", head + turn, "t.yaml:1: expects nothing: it cannot fail"},
		{"unknown field", head + "turn: x\n", "t.yaml:4: turn: unknown field"},
		{"unknown field of a turn", head + turn + "    anser: {contains: [x]}\n", "t.yaml:6: turns[0].anser: unknown field"},
		{"unknown condition", head + "model:\n  assistant:\n    - when:\n        last: user\n" + turn, "t.yaml:7: model.assistant[0].when.last: unknown field"},
		{"unknown quirk", head + "model:\n  assistant:\n    - reply: {quirks: {slow: true}}\n" + turn, "t.yaml:6: model.assistant[0].reply.quirks.slow: unknown field"},
		{"a pause without unit", head + "model:\n  assistant:\n    - reply: {quirks: {token_delay: 20}}\n" + turn, "t.yaml:6: model.assistant[0].reply.quirks.token_delay: 20 is not a duration"},
		{"a date for an argument", head + "model:\n  a:\n    - reply: {tool_calls: [{name: x, arguments: {day: 2026-01-01}}]}\n" + turn, "arguments.day: 2026-01-01 is neither text"},
		{"a script for every role", head + "model:\n  '*':\n    - reply: {content: x}\n" + turn, "t.yaml:6: model.*: is not the name of a role"},
		{"no question", head + "turns:\n  - answer: {not_empty: true}\n", "t.yaml:5: turns[0].query: must be there"},
		{"an answer that expects nothing", head + turn + "    answer: {scripted_only: true}\n", "t.yaml:6: turns[0].answer: expects nothing"},
		{"a broken expression", head + turn + "    answer:\n      matches: '('\n", "t.yaml:7: turns[0].answer.matches: error parsing regexp"},
		{"a source without field", head + turn + "    answer: {contains_from: {event: a.b}}\n", "t.yaml:6: turns[0].answer.contains_from: needs a field"},
		{"a source that is no subject", head + turn + "    answer: {contains_from: {event: a..b, field: x}}\n", `"a..b" is not a subject`},
		{"thinking both ways", head + turn + "    thinking: {empty: true, not_empty: true}\n", "t.yaml:6: turns[0].thinking: is either empty or not"},
		{"thinking neither way", head + turn + "    thinking: {scripted_only: true}\n", "is either empty or not"},
		{"a call without tool", head + turn + "    tool_calls:\n      - {layer: native}\n", "t.yaml:7: turns[0].tool_calls[0].tool: is not the name of a tool"},
		{"notes and none", head + turn + "    notes: [a]\n    no_notes: true\n", "t.yaml:7: turns[0].no_notes: there are notes, or there are none"},
		{"a stop at no moment", head + turn + "    partial: true\n    stop_after: {}\n", "t.yaml:7: turns[0].stop_after: needs either an event or a delta"},
		{"a stop at two moments", head + turn + "    stop_after: {event: a, delta: b}\n", "needs either an event or a delta"},
		{"a crash of nobody", head + turn + "    crash: {after: {delta: x}}\n", "t.yaml:6: turns[0].crash.actor: is not the name of an actor"},
		{"a crash at no moment", head + turn + "    crash: {actor: generator}\n", "turns[0].crash.after: needs either"},
		{"a question and a request", head + turn + "    request: {as: committee, tool: x}\n    error: denied\n", "t.yaml:6: turns[0].request: has an answer and an error"},
		{"a request with notes", head + "turns:\n  - request: {as: committee, tool: x}\n    no_notes: true\n", "t.yaml:5: turns[0].request: has an answer and an error"},
		{"a request of nobody", head + "turns:\n  - request: {tool: x}\n    error: denied\n", "turns[0].request: needs the account of an agent"},
		{"a counted moment", head + turn + "    stop_after: {event: a times=2}\n", "times has no meaning for a moment"},
		{"a counted order", simple + "events:\n  in_order:\n    - a\n    - b times=2\n", "t.yaml:10: events.in_order[1]: times has no meaning in an order"},
		{"zero times", simple + "events:\n  present: [a times=0]\n", "t.yaml:8: events.present[0]: times=0: write times=1 or more"},
		{"no condition", simple + "events:\n  absent: [a b]\n", `t.yaml:8: events.absent[0]: "b" is no condition`},
		{"a condition without value", simple + "events:\n  absent: ['a b=']\n", `"b=" is no condition`},
		{"an open quote", simple + "events:\n  absent: ['a b=\"c']\n", "does not end"},
		{"no subject", simple + "events:\n  present: ['']\n", "a subject must be there"},
		{"a wildcard inside", simple + "events:\n  present: [a.>.b]\n", `"a.>.b" is not a subject`},
		{"a word that is half a wildcard", simple + "events:\n  present: [a.b*]\n", `"a.b*" is not a subject`},
		{"a file that is no name", simple + "config:\n  ../system: {listen: x}\n", "t.yaml:8: config.../system: is not the name of a configuration file"},
		{"a file without fields", simple + "config: {generator: 5}\n", "t.yaml:7: config.generator: must hold fields"},
		{"trick: words that nothing quotes", head + "model:\n  assistant:\n    - reply: {content: the words themselves}\n" + turn + "    answer:\n      contains_from: {event: tool.result.x, field: result}\n", "t.yaml:10: turns[0].answer.contains_from: no scripted reply quotes anything"},
		{"trick: a second document", simple + "---\nstory: x\n", "t.yaml:7: a second document"},
		{"trick: a field twice", simple + "title: other\n", "t.yaml:7: title: written twice, first on line 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := story.Parse([]byte(tt.text), "t.yaml")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if s != nil {
				t.Error("an error, and yet a story")
			}
		})
	}
}

func TestLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "one.yaml")
	if _, err := story.Load(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := os.WriteFile(file, []byte(simple), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := story.Load(file); err != nil || s.File() != file {
		t.Errorf("%v, %v", s, err)
	}
}
