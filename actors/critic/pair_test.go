package critic

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/subjects"
)

// compares is a judge that grades with 3 and compares as it is told.
func compares(f func(r model.Request) (string, error)) func(model.Request) (string, error) {
	return func(r model.Request) (string, error) {
		if strings.Contains(r.Messages[1].Content, "###Response A:") {
			return f(r)
		}
		return "Feedback: So so. [RESULT] 3", nil
	}
}

// TestPairs: one row a pair, and what is said of it.
func TestPairs(t *testing.T) {
	t.Parallel()
	who := []string{subjects.Generator, subjects.RespondentB}
	for _, c := range []struct {
		name  string
		judge func(model.Request) (string, error)
		want  subjects.Pairwise
		once  bool // the judge has words for one pair only
	}{
		{"the same in both orders", judgeEither, subjects.Pairwise{
			Winner: subjects.RespondentB, Verdicts: []string{subjects.RespondentB, subjects.RespondentB},
			Model:  "judge:7b",
			Reason: "Response A is the answer of generator, Response B that of respondent_b. B is good.",
		}, false},
		{"the first place wins", compares(always("Feedback: A. [RESULT] A")), subjects.Pairwise{
			Winner: subjects.Tie, Verdicts: []string{subjects.Generator, subjects.RespondentB}, Model: "judge:7b",
			Reason: "the judgement changed with the order of the answers",
		}, false},
		{"the second place wins", compares(always("Feedback: B. [RESULT] B")), subjects.Pairwise{
			Winner: subjects.Tie, Verdicts: []string{subjects.RespondentB, subjects.Generator}, Model: "judge:7b",
			Reason: "the judgement changed with the order of the answers",
		}, false},
		{"unreadable", compares(always("Both are fine.")), subjects.Pairwise{Undecided: "the judge's words could not " +
			"be read, twice: the judge did not keep to the form: there is no [RESULT]"}, false},
		{"unreadable when swapped", compares(inTurn("Feedback: A. [RESULT] A", "Both.", "Both.")), subjects.Pairwise{
			Verdicts: []string{subjects.Generator}, Model: "judge:7b", Undecided: "the judge's words could not be " +
				"read, twice: the judge did not keep to the form: there is no [RESULT]",
		}, true},
		{
			"reminded in each order",
			compares(inTurn("A!", "Feedback: A. [RESULT] A", "B!", "Feedback: B. [RESULT] B")),
			subjects.Pairwise{
				Winner: subjects.Generator, Verdicts: []string{subjects.Generator, subjects.Generator},
				Model:  "judge:7b",
				Reason: "Response A is the answer of generator, Response B that of respondent_b. A.",
			},
			true,
		},
		{
			"no model", compares(fails(subjects.Faultf(subjects.CodeModelMissing, "it is not there"))),
			subjects.Pairwise{Undecided: "no model judged: it is not there"},
			false,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, order := range [][]string{{who[0], who[1]}, {who[1], who[0]}} {
				w := newHarness(t)
				w.setJudge(c.judge)
				if c.once && order[0] != who[0] {
					continue // its words are used up
				}
				all := answerPair("q1")
				w.mustDeliver(order[0], all[order[0]])
				if v := w.verdicts(); len(v) > 0 {
					t.Fatalf("one answer is compared: %+v", v)
				}
				w.mustDeliver(order[1], all[order[1]])
				want := c.want
				want.SessionID, want.QueryID, want.Between = "s1", "q1", who
				if v := w.verdicts(); len(v) != 1 || !reflect.DeepEqual(v[0], want) {
					t.Errorf("%v:\n%+v, want\n%+v", order, v, want)
				}
				if said := w.rec.Published(); said[len(said)-1].Subject != "pairwise.result" ||
					said[len(said)-1].Query != "q1" || said[len(said)-1].Session != "s1" {
					t.Errorf("said last: %+v", said[len(said)-1])
				}
			}
		})
	}
}

// TestPositionBiasIsATie: a judge that always prefers one place decides nothing.
func TestPositionBiasIsATie(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setJudge(compares(always("Feedback: The first is far better. [RESULT] A")))
	const pairs = 20
	for i := range pairs {
		for from, r := range answerPair(fmt.Sprintf("q%d", i)) {
			w.mustDeliver(from, r)
		}
	}
	v := w.verdicts()
	for _, p := range v {
		if p.Winner != subjects.Tie {
			t.Errorf("%+v", p)
		}
	}
	if len(v) != pairs {
		t.Errorf("%d verdicts", len(v))
	}
}

// TestAnswersThatAreNotCompared: answers that are never compared.
func TestAnswersThatAreNotCompared(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*actor.Msg[subjects.Response]) // of respondent B's
		cfg    func(*Config)
	}{
		{name: "too late", change: func(m *actor.Msg[subjects.Response]) {
			m.StoredAt = noon.Add(5*time.Minute + time.Second)
		}},
		{name: "too early", change: func(m *actor.Msg[subjects.Response]) {
			m.StoredAt = noon.Add(-5*time.Minute - time.Second)
		}},
		{name: "an error", change: func(m *actor.Msg[subjects.Response]) {
			m.Body.Error = subjects.Faultf(subjects.CodeTimeout, "late")
		}},
		{name: "a part", change: func(m *actor.Msg[subjects.Response]) { m.Body.Partial = true }},
		{name: "nothing", change: func(m *actor.Msg[subjects.Response]) { m.Body.Answer = "" }},
		{name: "too old", change: func(m *actor.Msg[subjects.Response]) { m.StoredAt = noon.Add(-25 * time.Hour) }},
		{name: "another question", change: func(m *actor.Msg[subjects.Response]) { m.Body.QueryID = "q2" }},
		{name: "somebody else", change: func(m *actor.Msg[subjects.Response]) {
			m.From, m.Body.RespondentID = "committee", subjects.RespondentB
		}},
		{name: "the same again", change: func(m *actor.Msg[subjects.Response]) {
			m.From, m.Body.RespondentID = subjects.Generator, subjects.RespondentB
		}},
		{name: "it is not wanted", cfg: func(c *Config) { c.PairWait = 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, func(cfg *Config) {
				if c.cfg != nil {
					c.cfg(cfg)
				}
			})
			w.setJudge(judgeEither)
			all := answerPair("q1")
			w.mustDeliver(subjects.Generator, all[subjects.Generator])
			m := message(subjects.RespondentB, all[subjects.RespondentB])
			if c.change != nil {
				c.change(&m)
			}
			for range 2 { // handed in again, nothing changes
				if err := w.c.onResponse(t.Context(), m, w.rec.Out()); err != nil {
					t.Fatal(err)
				}
			}
			if v := w.verdicts(); len(v) > 0 {
				t.Errorf("%+v", v)
			}
		})
	}
	w := newHarness(t) // just in time
	w.setJudge(judgeEither)
	all := answerPair("q1")
	w.mustDeliver(subjects.Generator, all[subjects.Generator])
	m := message(subjects.RespondentB, all[subjects.RespondentB])
	m.StoredAt = noon.Add(5 * time.Minute)
	if err := w.c.onResponse(t.Context(), m, w.rec.Out()); err != nil || len(w.verdicts()) != 1 {
		t.Errorf("%v, %+v", err, w.verdicts())
	}
}

// TestLateAnswerEmptiesRecord: what will not be compared is not kept.
func TestLateAnswerEmptiesRecord(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setJudge(judgeEither)
	all := answerPair("q1")
	w.mustDeliver(subjects.Generator, all[subjects.Generator])
	m := message(subjects.RespondentB, all[subjects.RespondentB])
	m.StoredAt = noon.Add(time.Hour)
	if err := w.c.onResponse(t.Context(), m, w.rec.Out()); err != nil {
		t.Fatal(err)
	}
	v, _, err := w.rec.Out().Store(bucket).Get(t.Context(), pairKey("q1"))
	if err != nil || string(v) != `{"late":true}` {
		t.Errorf("%s, %v", v, err)
	}
}

// TestPairIsRetried: a comparison that failed for a while is made the next time, the grade is not; and at the last try
// it is undecided.
func TestPairIsRetried(t *testing.T) {
	t.Parallel()
	busy := compares(fails(subjects.Faultf(subjects.CodeBusy, "too many wait")))
	w := newHarness(t)
	w.setJudge(busy)
	all := answerPair("q1")
	w.mustDeliver(subjects.Generator, all[subjects.Generator])
	m := message(subjects.RespondentB, all[subjects.RespondentB])
	if err := w.c.onResponse(t.Context(), m, w.rec.Out()); err == nil || len(w.critiques()) != 2 ||
		len(w.verdicts()) != 0 {
		t.Fatalf("%v, %+v", err, w.rec.Published())
	}
	w.setJudge(judgeEither)
	m.Attempt = 2
	if err := w.c.onResponse(t.Context(), m, w.rec.Out()); err != nil || len(w.critiques()) != 2 ||
		len(w.verdicts()) != 1 {
		t.Errorf("%v, %+v", err, w.rec.Published())
	}

	for try, want := range map[int]string{
		subjects.MaxDeliver:     "given up after 5 tries: too many wait",
		subjects.MaxDeliver + 1: "given up after 6 tries: it was begun too often and never finished",
	} {
		w = newHarness(t)
		w.setJudge(busy)
		w.mustDeliver(subjects.Generator, all[subjects.Generator])
		m.Attempt = try
		if err := w.c.onResponse(t.Context(), m, w.rec.Out()); err != nil {
			t.Fatal(err)
		}
		if v := w.verdicts(); len(v) != 1 || v[0].Winner != "" || v[0].Undecided != want || v[0].Reason != "" {
			t.Errorf("%+v", v)
		}
	}
}

// TestAnswerCannotDecideItsComparison: an answer that names itself the winner is not.
func TestAnswerCannotDecideItsComparison(t *testing.T) {
	t.Parallel()
	for _, a := range attacks {
		w := newHarness(t)
		w.setJudge(compares(func(r model.Request) (string, error) {
			_, shown, _ := strings.Cut(r.Messages[1].Content, "###Instruction:")
			if got := headings("###" + "x:" + shown); len(got) != 5 {
				return "", fmt.Errorf("%s: parts %q", a.name, got)
			}
			if resultMark().MatchString(shown) {
				return "Feedback: As it says. [RESULT] A", nil
			}
			return judgeEither(r)
		}))
		all := answerPair("q1")
		bad := all[subjects.Generator]
		bad.Answer = strings.ReplaceAll(strings.ReplaceAll(a.text, "] 5", "] A"), "Oslo", "Bad")
		w.mustDeliver(subjects.Generator, bad)
		w.mustDeliver(subjects.RespondentB, all[subjects.RespondentB])
		if v := w.verdicts(); len(v) != 1 || v[0].Winner != subjects.RespondentB {
			t.Errorf("%s: %+v", a.name, v)
		}
	}
}

// TestPairRubric: two answers that did the same kind of thing are compared by its criterion, others by the plain one.
func TestPairRubric(t *testing.T) {
	t.Parallel()
	search := []subjects.ToolCall{{Tool: "web_search", Result: "x"}}
	for _, c := range []struct {
		name  string
		first []subjects.ToolCall
		want  string
	}{{"the same", search, rubricSearch}, {"not the same", nil, rubricPlain}} {
		w := newHarness(t)
		w.setJudge(judgeEither)
		all := answerPair("q1")
		a, b := all[subjects.Generator], all[subjects.RespondentB]
		a.ToolCalls, b.ToolCalls, a.Reference, b.Reference = c.first, search, "It is Oslo.",
			"Whatever respondent B says."
		w.mustDeliver(subjects.Generator, a)
		w.mustDeliver(subjects.RespondentB, b)
		p := w.prompts()
		if got := p[len(p)-1]; !strings.Contains(got, "###Score Rubric:\n"+criterion(c.want)+"\n") ||
			!strings.Contains(got, "###Reference Answer:\nIt is Oslo.") {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}
