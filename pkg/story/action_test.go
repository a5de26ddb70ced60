package story_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"conclave/pkg/story"
	"conclave/subjects"
)

// asks lets the broker ask the user about n calls; every answer ends the turn with its words.
func asks(n int) func(*fakeSystem, subjects.Query) {
	return func(w *fakeSystem, q subjects.Query) {
		for i := range n {
			id := q.QueryID + string(rune('a'+i))
			w.store("broker", "approval.request."+id, q.QueryID, subjects.ApprovalRequest{ID: id, Tool: "web_fetch"})
		}
	}
}

// The user answers each question once, in time also when nothing is heard live, and only questions of the turn.
func TestApprove(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, turn string
		asked      int
		deaf       bool
		refused    error
		want       string
		answers    []subjects.ApprovalDecision
	}{
		{
			name: "yes", turn: "approve: {answer: approve}", asked: 1,
			answers: []subjects.ApprovalDecision{{Approve: true}},
		},
		{name: "no", turn: "approve: {answer: deny}", asked: 1, answers: []subjects.ApprovalDecision{{}}},
		{
			name: "remembered", turn: "approve: {answer: approve, remember: always}", asked: 1,
			answers: []subjects.ApprovalDecision{{Approve: true, Remember: "always"}},
		},
		{
			name: "two questions", turn: "approve: {answer: approve}", asked: 2,
			answers: []subjects.ApprovalDecision{{Approve: true}, {Approve: true}},
		},
		{
			name: "heard of in the stream alone", turn: "approve: {answer: deny}", asked: 1, deaf: true,
			answers: []subjects.ApprovalDecision{{}},
		},
		{name: "nobody asks", turn: "approve: {answer: approve}", want: "turn 1: there was no approval request"},
		{name: "nobody asks, and it is ignored", turn: "approve: {answer: ignore}", want: "turn 1: there was no " +
			"approval request"},
		{
			name: "an answer that came too late", turn: "approve: {answer: approve}", asked: 1,
			refused: errors.New("the question is expired"), want: "turn 1: deciding an approval: the question is " +
				"expired", answers: []subjects.ApprovalDecision{{Approve: true}},
		},
		{name: "trick: no answer is written", turn: "no_notes: true", asked: 1, want: "turn 1: no answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []subjects.ApprovalDecision
			w := &fakeSystem{deaf: tt.deaf, answer: asks(tt.asked)}
			w.decide = func(w *fakeSystem, id string, d subjects.ApprovalDecision) error {
				got = append(got, d)
				if len(got) == tt.asked && tt.refused == nil {
					w.done(id[:len(id)-1], subjects.Response{Answer: "the world"})
				}
				return tt.refused
			}
			if tt.asked == 0 {
				w.answer = replies(good())
			}
			opts := story.Options{AnswerTimeout: 700 * time.Millisecond, SettleTimeout: 50 * time.Millisecond}
			r := run(t, parse(t, head+"turns:\n  - query: hello\n    "+tt.turn+"\nevents: {present: "+
				"[query.received]}\n"), w, opts)
			if r.OK() != (tt.want == "") || !strings.Contains(r.Report(), tt.want) {
				t.Errorf("want %q\n%s", tt.want, r.Report())
			}
			if len(got) != len(tt.answers) || len(got) > 0 && !reflect.DeepEqual(got[0], tt.answers[0]) {
				t.Errorf("answers %+v, want %+v", got, tt.answers)
			}
		})
	}
}

// A question that is ignored gets no answer, and one of another turn neither.
func TestIgnore(t *testing.T) {
	t.Parallel()
	w := &fakeSystem{
		answer: func(w *fakeSystem, q subjects.Query) {
			w.store("broker", "approval.request.other", "another", subjects.ApprovalRequest{ID: "other"})
			asks(1)(w, q)
			w.done(q.QueryID, subjects.Response{Answer: "the world"})
		},
		decide: func(_ *fakeSystem, id string, _ subjects.ApprovalDecision) error {
			return errors.New("an answer to " + id)
		},
	}
	if got := run(t, parse(t, simple+"    approve: {answer: ignore}\n"), w, quick); !got.OK() {
		t.Error(got.Report())
	}
}

// What the user sets is set for the session of the turn, before the question is asked.
func TestOverride(t *testing.T) {
	t.Parallel()
	s := parse(t, head+"turns:\n  - query: one\n    override: {level: RELAX, once: true}\n  - query: two\n    "+
		"session: mine\n    override: {disable: [x]}\n  - query: three\nevents: {present: [query.received times=3]}\n")
	before := -1
	w := &fakeSystem{answer: func(w *fakeSystem, q subjects.Query) {
		if len(w.asked) == 1 {
			before = len(w.overrides)
		}
		w.done(q.QueryID, subjects.Response{Answer: q.Query})
	}}
	if got := run(t, s, w, quick); !got.OK() {
		t.Fatal(got.Report())
	}
	o := w.overrides
	if before != 1 || len(o) != 2 || o[0].session != w.asked[0].SessionID || !o[0].Once || o[0].Level != "RELAX" ||
		o[1].session != "mine" || len(o[1].Disable) != 1 {
		t.Errorf("%d before the first question, all %+v", before, o)
	}
}

// Agents are made one below the other, and the last of them calls. A refusal to make one is the answer.
func TestSpawn(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, spawn, expect, want string }{
		{"one", "[{type: coder}]", "answer: {contains: [done for orchestrator.coder-1 in story-]}", ""},
		{"two", "[{type: sysadmin}, {type: coder}]", "answer: {contains: [done for orchestrator.sysadmin-1.coder-1 " +
			"in story-]}", ""},
		{"none", "[]", "answer: {contains: [done for orchestrator in story-]}", ""},
		{"refused", "[{type: coder}, {type: hermit}]", "error: denied", ""},
		{
			"trick: refused, and not expected", "[{type: hermit}]", "answer: {contains: [done]}",
			"turn 1: it failed with denied (orchestrator may not)",
		},
	} {
		text := head + "turns:\n  - request: {as: orchestrator, spawn: " + tt.spawn + ", tool: x}\n    " + tt.expect +
			"\n"
		got := run(t, parse(t, text), &fakeSystem{}, quick)
		if got.OK() != (tt.want == "") || !strings.Contains(got.Report(), tt.want) {
			t.Errorf("%s: want %q\n%s", tt.name, tt.want, got.Report())
		}
	}
}

// A tool is killed when a page is asked for: another page, an event or words that name it are not that moment.
func TestCrashAtAPage(t *testing.T) {
	t.Parallel()
	const page = "http://a.example.org/p"
	s := parse(t, head+"web: {pages: [{url: '"+page+"', title: A, body: b}]}\nturns:\n  - query: hello\n    crash: "+
		"{actor: web_fetch, after: {page: '"+page+"'}}\n    answer: {contains: [round]}\n")
	wanted := func(w *fakeSystem, url string) {
		body, _ := json.Marshal(map[string]string{"url": url})
		w.tell(story.Event{Subject: story.PageRequested, Body: body})
	}
	alike := func(w *fakeSystem, q subjects.Query) {
		wanted(w, page+"/other")
		w.store("broker", "tool.request.web_fetch", q.QueryID, map[string]string{"url": page})
		w.delta(q.QueryID, page)
	}
	var asked subjects.Query
	crashed := 0
	w := &fakeSystem{
		answer: func(w *fakeSystem, q subjects.Query) {
			asked = q
			wanted(w, page)
		},
		crash: func(w *fakeSystem, actor string) error {
			crashed++
			w.done(asked.QueryID, good())
			return nil
		},
	}
	if got := run(t, s, w, quick); !got.OK() || crashed != 1 {
		t.Errorf("crashed %d times\n%s", crashed, got.Report())
	}
	w = &fakeSystem{crash: w.crash, answer: func(w *fakeSystem, q subjects.Query) {
		alike(w, q)
		w.done(q.QueryID, good())
	}}
	if got := run(t, s, w, quick); !strings.Contains(got.Report(), "the moment to crash web_fetch was not reached") ||
		crashed != 1 {
		t.Errorf("crashed %d times\n%s", crashed, got.Report())
	}
}

// How often a page is asked for is counted, the pages of whom nothing is said are not.
func TestPagesAsked(t *testing.T) {
	t.Parallel()
	text := head + "web:\n  pages:\n    - {url: 'http://a.example.org/p', title: A, body: b, asked: 2}\n    - {url: " +
		"'http://a.example.org/q', title: A, body: b, asked: 0}\n" +
		"    - {url: 'http://a.example.org/r', title: A, body: b}\nturns:\n  - query: hello\n    answer: {contains: " +
		"[round]}\n"
	for _, tt := range []struct {
		name  string
		pages map[string]int
		want  string
	}{
		{"as said", map[string]int{
			"http://a.example.org/p": 2, "http://a.example.org/r": 7,
			"http://a.example.org/lost": 1,
		}, ""},
		{"too seldom", map[string]int{"http://a.example.org/p": 1}, "t.yaml:6: http://a.example.org/p was requested " +
			"1 times, want 2"},
		{
			"although never",
			map[string]int{"http://a.example.org/p": 2, "http://a.example.org/q": 1},
			"t.yaml:7: http://a.example.org/q was requested 1 times, want 0",
		},
		{"not at all", nil, "t.yaml:6: http://a.example.org/p was requested 0 times"},
	} {
		got := run(t, parse(t, text), &fakeSystem{answer: replies(good()), pages: tt.pages}, quick)
		if got.OK() != (tt.want == "") || !strings.Contains(got.Report(), tt.want) {
			t.Errorf("%s: want %q\n%s", tt.name, tt.want, got.Report())
		}
	}
}

// A request for a question is made in its session, and its results are told apart from those of others for it.
func TestRequestOfAQuestion(t *testing.T) {
	t.Parallel()
	s := parse(t, head+`turns:
  - query: one
    session: first
    answer: {equals: one}
  - request: {as: orchestrator, of: 1, tool: x}
    answer: {contains: [done for orchestrator in first], contains_from: {event: tool.result.x, field: result}}
  - request: {as: orchestrator, of: 1, tool: forbidden}
    error: denied
events: {present: [tool.result.> times=2]}
`)
	w := kept(0)
	if got := run(t, s, w, quick); !got.OK() {
		t.Fatal(got.Report())
	}
	for _, e := range w.events {
		if strings.HasPrefix(e.Subject, "tool.result.") && e.Query != w.asked[0].QueryID {
			t.Errorf("%s is for %q", e.Subject, e.Query)
		}
	}
}
