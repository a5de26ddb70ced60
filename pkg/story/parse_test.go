package story_test

import (
	"os"
	"path/filepath"
	"reflect"
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
	if s.Model["assistant"][0].Reply.Quirks.TokenDelay != 20*time.Millisecond || call.Arguments["n"] != 3 ||
		call.Arguments["deep"].([]any)[1] != 1.5 {
		t.Errorf("model %+v", s.Model)
	}
	if s.Config["generator"]["hedge"].(map[string]any)["search"] != "" || s.Config["generator"]["steps"] != 2 {
		t.Errorf("config %v", s.Config)
	}
	turn := s.Turns[0]
	if turn.Session != "mine" || turn.ToolCalls == nil || len(turn.ToolCalls) != 0 ||
		*s.Server.Models["assistant"].Tools || s.Server.Models["assistant"].Thinking != nil {
		t.Errorf("story %+v", s)
	}
	if s.File() != "stories/t.yaml" || s.Line("turns[0].answer") != 17 || s.Line("turns[0].notes") != 15 {
		t.Errorf("%s, lines %d and %d", s.File(), s.Line("turns[0].answer"), s.Line("turns[0].notes"))
	}
}

func TestParseRefuses(t *testing.T) {
	const turn = "turns:\n  - query: hello\n"
	const web = "web:\n  pages:\n    - {url: 'http://a.example.org/p', title: x, body: y}\n"
	for _, tt := range []struct{ name, text, want string }{
		{"no id", "title: x\nwhy: y\n" + turn, "t.yaml:1: story: is required"},
		{"no title", "story: x\nwhy: y\n" + turn, "t.yaml:1: title: is required"},
		{"no reason", "story: x\ntitle: y\n" + turn, "t.yaml:1: why: is required"},
		{"a long reason", "story: x\ntitle: y\nwhy: |\n  a\n  b\n" + turn, "t.yaml:3: why: must be one line"},
		{"no turns", head, "t.yaml:1: turns: a story needs at least one turn"},
		{"nothing expected", head + turn, "t.yaml:1: has no expectation, so it cannot fail"},
		{"unknown field", head + "turn: x\n", "t.yaml:4: turn: unknown field"},
		{"unknown field of a turn", head + turn + "    anser: {contains: [x]}\n", "t.yaml:6: turns[0].anser: unknown " +
			"field"},
		{
			"unknown condition", head + "model:\n  assistant:\n    - when:\n        last: user\n" + turn,
			"t.yaml:7: model.assistant[0].when.last: unknown field",
		},
		{
			"unknown quirk", head + "model:\n  assistant:\n    - reply: {quirks: {slow: true}}\n" + turn,
			"t.yaml:6: model.assistant[0].reply.quirks.slow: unknown field",
		},
		{
			"a pause without unit", head + "model:\n  assistant:\n    - reply: {quirks: {token_delay: 20}}\n" + turn,
			"t.yaml:6: model.assistant[0].reply.quirks.token_delay: 20 is not a duration",
		},
		{"a date for an argument", head + "model:\n  a:\n    - reply: {tool_calls: [{name: x, arguments: {day: " +
			"2026-01-01}}]}\n" + turn, "arguments.day: 2026-01-01 is neither text"},
		{"no question", head + "turns:\n  - answer: {not_empty: true}\n", "t.yaml:5: turns[0].query: is required"},
		{
			"an answer that expects nothing", head + turn + "    answer: {scripted_only: true}\n",
			"t.yaml:6: turns[0].answer: has no expectation",
		},
		{
			"a broken expression", head + turn + "    answer:\n      matches: '('\n",
			"t.yaml:7: turns[0].answer.matches: error parsing regexp",
		},
		{
			"a source without field", head + turn + "    answer: {contains_from: {event: a.b}}\n",
			"t.yaml:6: turns[0].answer.contains_from: needs a field",
		},
		{
			"a source that is no subject", head + turn + "    answer: {contains_from: {event: a..b, field: x}}\n",
			`invalid subject "a..b"`,
		},
		{
			"thinking both ways", head + turn + "    thinking: {empty: true, not_empty: true}\n",
			"t.yaml:6: turns[0].thinking: is contradictory",
		},
		{"thinking neither way", head + turn + "    thinking: {scripted_only: true}\n", "is contradictory"},
		{"notes and none", head + turn + "    notes: [a]\n    no_notes: true\n", "t.yaml:7: turns[0].no_notes: " +
			"contradicts notes"},
		{
			"a stop at no moment", head + turn + "    partial: true\n    stop_after: {}\n",
			"t.yaml:7: turns[0].stop_after: needs one of event, delta or page",
		},
		{"a stop at two moments", head + turn + "    stop_after: {event: a, delta: b}\n", "needs one of event, delta " +
			"or page"},
		{"a crash at no moment", head + turn + "    crash: {actor: generator}\n", "turns[0].crash.after: needs one of"},
		{
			"a question and a request", head + turn + "    request: {as: committee, tool: x}\n    error: denied\n",
			"t.yaml:6: turns[0].request: allows only answer and error",
		},
		{
			"a request with notes", head + "turns:\n  - request: {as: committee, tool: x}\n    no_notes: true\n",
			"t.yaml:5: turns[0].request: allows only answer and error",
		},
		{"a request with an answer of the user", head + "turns:\n  - request: {as: committee, tool: x}\n    approve: " +
			"{answer: deny}\n    error: denied\n", "turns[0].request: allows only answer and error"},
		{"trick: an answer that is none", head + turn + "    approve: {answer: allow}\n", "turns[0].approve.answer: " +
			"is not one of approve, deny, ignore"},
		{"trick: no answer at all", head + turn + "    approve: {}\n", "turns[0].approve.answer: is not one of"},
		{
			"trick: a no that is remembered", head + turn + "    approve: {answer: deny, remember: always}\n",
			"only approve can be remembered",
		},
		{
			"an answer remembered for a while", head + turn + "    approve: {answer: approve, remember: hour}\n",
			"turns[0].approve.remember: is not one of session, always",
		},
		{"a moment of a page that is not there", head + web + turn + "    crash: {actor: web_fetch, after: {page: " +
			"'http://a.example.org/q'}}\n", "turns[0].crash.after.page: is not a page of the story"},
		{
			"a page and a delta", head + web + turn + "    stop_after: {delta: x, page: 'http://a.example.org/p'}\n",
			"turns[0].stop_after: needs one of",
		},
		{"a counted moment", head + turn + "    stop_after: {event: a times=2}\n", "times is not allowed in a moment"},
		{
			"a counted order", simple + "events:\n  in_order:\n    - a\n    - b times=2\n",
			"t.yaml:10: events.in_order[1]: times is not allowed in in_order",
		},
		{"zero times", simple + "events:\n  present: [a times=0]\n", "t.yaml:8: events.present[0]: times=0: write " +
			"times=1 or more"},
		{"no condition", simple + "events:\n  absent: [a b]\n", `t.yaml:8: events.absent[0]: invalid condition "b"`},
		{"a condition without value", simple + "events:\n  absent: ['a b=']\n", `invalid condition "b="`},
		{"an open quote", simple + "events:\n  absent: ['a b=\"c']\n", "unterminated quote"},
		{"no subject", simple + "events:\n  present: ['']\n", "a subject is required"},
		{"a wildcard inside", simple + "events:\n  present: [a.>.b]\n", `invalid subject "a.>.b"`},
		{"a word that is half a wildcard", simple + "events:\n  present: [a.b*]\n", `invalid subject "a.b*"`},
		{"a file that is no name", simple + "config:\n  ../system: {listen: x}\n", "t.yaml:8: config.../system: is " +
			"not the name of a configuration file"},
		{"a file without fields", simple + "config: {generator: 5}\n", "t.yaml:7: config.generator: must hold fields"},
		{"a turn that waits for nothing", head + turn + "    after: []\n", "t.yaml:6: turns[0].after: has no event"},
		{
			"a turn that waits for a number", head + turn + "    after: 5\n",
			"t.yaml:6: turns[0].after: must be an event",
		},
		{"a turn that waits for fields", head + turn + "    after: {event: a.b}\n", "turns[0].after: must be an event"},
		{
			"a second event that is none", head + turn + "    after:\n      - memory.stored\n      - a..b\n",
			`t.yaml:8: turns[0].after[1]: invalid subject "a..b"`,
		},
		{"trick: an event of a list in a list", head + turn + "    after: [[a.b]]\n", "turns[0].after[0]: must be an " +
			"event"},
		{
			"trick: an answer to no question", head + "turns:\n  - after: memory.stored\n    answer: {not_empty: " +
				"true}\n",
			"t.yaml:5: turns[0]: has expectations of an answer and no question",
		},
		{
			"trick: a stop of no question", head + "turns:\n  - after: memory.stored\n    stop_after: {delta: x}\n",
			"turns[0]: has expectations of an answer",
		},
		{
			"trick: an error of no question", head + "turns:\n  - memory: {forget: x}\n    error: denied\n",
			"turns[0]: has expectations of an answer",
		},
		{"acts and nothing expected", head + "turns:\n  - memory: {forget: x}\n", "t.yaml:1: has no expectation, so " +
			"it cannot fail"},
		{"no act on memory", head + turn + "    memory: {}\n", "t.yaml:6: turns[0].memory: needs one of add, import"},
		{"two acts on memory", head + turn + "    memory: {forget: x, pin: y}\n", "turns[0].memory: needs one of"},
		{"trick: only that it is refused", head + turn + "    memory: {refused: true}\n", "turns[0].memory: needs " +
			"one of"},
		{"trick: blank words to forget", head + turn + "    memory: {forget: ' '}\n", "turns[0].memory: needs one of"},
		{
			"an act that memory has not", head + turn + "    memory: {remember: x}\n",
			"t.yaml:6: turns[0].memory.remember: unknown field",
		},
		{"nothing to add", head + turn + "    memory: {add: {name: x}}\n", "turns[0].memory.add.text: is required"},
		{"a file without text", head + turn + "    memory: {import: {from: a.md}}\n", "turns[0].memory.import.text: " +
			"is required"},
		{
			"a file of no kind", head + turn + "    memory: {import: {from: notes, text: x}}\n",
			"turns[0].memory.import.from: is not a file name",
		},
		{
			"trick: a file elsewhere", head + turn + "    memory: {import: {from: ../notes.md, text: x}}\n",
			"turns[0].memory.import.from: is not a file name",
		},
		{
			"trick: a hidden file", head + turn + "    memory: {import: {from: .md, text: x}}\n",
			"turns[0].memory.import.from: is not a file name",
		},
		{
			"a trust that is none", head + turn + "    memory: {import: {from: a.md, text: x, trust: full}}\n",
			"turns[0].memory.import.trust: is neither trusted nor untrusted",
		},
		{"trick: a request for a question to come", head + "turns:\n  - request: {as: committee, of: 2, tool: x}\n   " +
			" error: denied\n  - query: more\n", "t.yaml:5: turns[0].request.of: turn 2 is not earlier"},
		{"trick: a request for a question in another session", head + turn + "  - request: {as: committee, of: 1, " +
			"tool: x}\n    session: other\n    error: denied\n", "turns[1].session: must be omitted"},
		{
			"a request for a request", head + "turns:\n  - request: {as: committee, of: 1, tool: x}\n    error: " +
				"denied\n",
			"turns[0].request.of: turn 1 has no question",
		},
		{"feedback about nobody", head + turn + "    feedback: {thumb: 1}\n", "t.yaml:6: turns[0].feedback.of: must " +
			"be a turn from 1 to 1"},
		{"trick: feedback about a turn that there is not", head + turn + "    feedback: {of: 3, thumb: 1}\n  - " +
			"query: more\n", "turns[0].feedback.of: must be a turn from 1 to 2"},
		{
			"trick: feedback about a turn to come", head + turn + "    feedback: {of: 2, thumb: 1}\n  - query: more\n",
			"turns[0].feedback.of: turn 2 is not earlier",
		},
		{"trick: feedback about a request", head + "turns:\n  - request: {as: committee, tool: x}\n    error: " +
			"denied\n  - feedback: {of: 1, stars: 3}\n", "t.yaml:7: turns[1].feedback.of: turn 1 has no question"},
		{
			"feedback that says nothing", head + turn + "  - feedback: {of: 1, words: ' '}\n",
			"turns[1].feedback: is empty",
		},
		{"six stars", head + turn + "  - feedback: {of: 1, stars: 6}\n", "turns[1].feedback: thumb is -1 or 1, stars " +
			"are 1 to 5"},
		{
			"trick: a thumb of two", head + turn + "  - feedback: {of: 1, thumb: 2}\n",
			"turns[1].feedback: thumb is -1 or 1",
		},
		{
			"trick: feedback about a turn and an id", head + turn + "  - feedback: {of: 1, query: q9, thumb: 1}\n",
			"turns[1].feedback.query: must be a valid id",
		},
		{"trick: a grade in the critic's place", head + turn + "    grade: {of: 1, score: 5}\n", "grade"},
		{
			"trick: words that nothing quotes", head + "model:\n  assistant:\n    - reply: {content: the words " +
				"themselves}\n" + turn + "    answer:\n      contains_from: {event: tool.result.x, field: result}\n",
			"t.yaml:10: turns[0].answer.contains_from: no scripted reply quotes the request",
		},
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

// What a story can say of its stage and of the user comes out as it was written.
func TestParseStage(t *testing.T) {
	s, err := story.Parse([]byte(head+`manifest: |
  types: {}
web:
  pages:
    - {url: "http://a.example.org/p?q=1", title: A, snippet: found, body: <p>x</p>, slow: 2s, asked: 0}
    - {url: "http://b.example.org/", title: B, status: 404}
credentials: {brave_api_key: made-up}
server: {key: openai}
turns:
  - query: hello
    override: {level: RELAX, once: true, disable: [a], grant: ["assistant:b"]}
    approve: {answer: approve, remember: session}
    crash: {actor: web_fetch, after: {page: "http://b.example.org/"}}
    no_notes: true
  - request: {as: orchestrator, spawn: [{type: coder, tools: [x]}, {type: researcher}], tool: y}
    error: denied
`), "stories/t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	never := 0
	want := &story.Web{Pages: []story.Page{
		{
			URL: "http://a.example.org/p?q=1", Title: "A", Snippet: "found", Body: "<p>x</p>", Delay: 2 * time.Second,
			Requests: &never,
		},
		{URL: "http://b.example.org/", Title: "B", Status: 404},
	}}
	if !reflect.DeepEqual(s.Web, want) || s.Manifest != "types: {}\n" || s.Credentials["brave_api_key"] != "made-up" ||
		s.Server.Key != "openai" {
		t.Errorf("story %+v", s)
	}
	first, second := s.Turns[0], s.Turns[1]
	if o := (story.Override{
		Level: "RELAX", Once: true, Disable: []string{"a"},
		Grant: []string{"assistant:b"},
	}); !reflect.DeepEqual(*first.Override, o) {
		t.Errorf("override %+v", first.Override)
	}
	if *first.Approve != (story.Approve{Answer: story.AnswerApprove, Remember: "session"}) ||
		first.Crash.After.Page != "http://b.example.org/" {
		t.Errorf("turn %+v", first)
	}
	if c := []story.Child{{Type: "coder", Tools: []string{"x"}}, {Type: "researcher"}}; !reflect.DeepEqual(
		second.Request.Spawn, c) {
		t.Errorf("request %+v", second.Request)
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
