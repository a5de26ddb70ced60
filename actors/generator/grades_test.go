package generator

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// gradesConfig is the configuration with grades in the prompt.
func gradesConfig() Config {
	cfg := shippedConfig()
	cfg.Grades.Prompt = true
	return cfg
}

// deliverGrade delivers a critique or a reward to a generator.
func (w *harness) deliverGrade(g *Generator, body any) {
	w.t.Helper()
	subject := "critique.result"
	if _, ok := body.(subjects.Reward); ok {
		subject = "reward.event"
	}
	if _, err := w.Deliver(w.t, g, actortest.Message{Subject: subject, Body: body}); err != nil {
		w.t.Error(err)
	}
}

func critique(query string, score int, feedback string) subjects.Critique {
	return subjects.Critique{
		SessionID: "s1", QueryID: query, RespondentID: "generator", Score: score,
		Feedback: feedback, Retry: score > 0 && score <= 2,
	}
}

func reward(query string, value float64, count int, words string) subjects.Reward {
	return subjects.Reward{
		SessionID: "s1", QueryID: query, RespondentID: "generator", Value: value, Count: count,
		Source: subjects.RewardUser, Words: words,
	}
}

// grades are those of a turn, as they are stored; zero when there are none.
func (w *harness) grades(query string) subjects.Grades {
	w.t.Helper()
	for _, t := range w.conversation("s1").Turns {
		if t.QueryID == query && t.Grades != nil {
			return *t.Grades
		}
	}
	return subjects.Grades{}
}

// TestGradesAreKept: grades are stored with their answer; invalid and foreign ones are ignored.
func TestGradesAreKept(t *testing.T) {
	t.Parallel()
	type grades = subjects.Grades
	good := critique("q1", 4, "clear")
	with := func(change func(c *subjects.Critique)) subjects.Critique {
		c := good
		change(&c)
		return c
	}
	from := func(source subjects.Source) subjects.Reward {
		r := reward("q1", 1, 1, "the model's words")
		r.Source = source
		return r
	}
	for _, tt := range []struct {
		name   string
		events []any
		want   grades
	}{
		{"a grade", []any{good}, grades{Critic: 4, Feedback: "clear"}},
		{"a reward", []any{reward("q1", -1, 1, "too long")}, grades{Reward: -1, Rewards: 1, Words: "too long"}},
		{"both", []any{reward("q1", 0.5, 1, ""), good}, grades{Critic: 4, Feedback: "clear", Reward: 0.5, Rewards: 1}},
		{
			"the user thinks again",
			[]any{reward("q1", -1, 1, "too long"), reward("q1", 1, 2, "")},
			grades{Reward: 1, Rewards: 2},
		},
		{
			"in whatever order it comes",
			[]any{reward("q1", 1, 2, ""), reward("q1", -1, 1, "too long")},
			grades{Reward: 1, Rewards: 2},
		},
		{
			"the same again",
			[]any{good, good, reward("q1", 1, 1, "x"), reward("q1", 1, 1, "x")},
			grades{Critic: 4, Feedback: "clear", Reward: 1, Rewards: 1, Words: "x"},
		},
		{
			"what a model took from the conversation",
			[]any{from(subjects.RewardConversation)},
			grades{Reward: 1, Rewards: 1},
		},
		{
			"very long",
			[]any{critique("q1", 3, strings.Repeat("x", 1<<20/2))},
			grades{Critic: 3, Feedback: strings.Repeat("x", maxGradeWords) + "..."},
		},

		{"ungraded", []any{with(func(c *subjects.Critique) { c.Score, c.Ungraded = 0, "no judge" })}, grades{}},
		{"trick: ungraded with a score", []any{with(func(c *subjects.Critique) { c.Ungraded = "no judge" })}, grades{}},
		{"trick: of respondent B's answer", []any{with(func(c *subjects.Critique) {
			c.RespondentID = subjects.RespondentB
		})}, grades{}},
		{"trick: of nobody's answer", []any{with(func(c *subjects.Critique) { c.RespondentID = "" })}, grades{}},
		{"trick: 6 of 5", []any{critique("q1", 6, "")}, grades{}},
		{"trick: less than nothing", []any{critique("q1", -1, "")}, grades{}},
		{"trick: of another answer", []any{critique("q9", 4, "")}, grades{}},
		{"trick: of another session", []any{with(func(c *subjects.Critique) { c.SessionID = "s2" })}, grades{}},
		{
			"trick: a session that is a wildcard",
			[]any{with(func(c *subjects.Critique) { c.SessionID = "*" })},
			grades{},
		},
		{"trick: a question that is none", []any{with(func(c *subjects.Critique) { c.QueryID = "a.b" })}, grades{}},
		{"trick: a reward that was never counted", []any{reward("q1", 1, 0, "x")}, grades{}},
		{"trick: a reward beyond measure", []any{reward("q1", 7, 1, "x")}, grades{}},
		{"trick: of a source nobody knows", []any{from("")}, grades{Reward: 1, Rewards: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, "Paris.")
			g := New(subjects.Generator, shippedConfig())
			if err := w.ask(g, "s1", "q1", "Capital?", 1); err != nil {
				t.Fatal(err)
			}
			before := w.conversation("s1")
			for _, e := range tt.events {
				w.deliverGrade(g, e)
			}
			if got := w.grades("q1"); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
			after := w.conversation("s1")
			after.Turns[0].Grades = nil
			if !reflect.DeepEqual(after, before) {
				t.Errorf("the conversation became %+v", after)
			}
			w.requireNoErrors()
		})
	}
}

// Respondent B has no routes for grades: its answers are not part of a conversation.
func TestRespondentBIgnoresGrades(t *testing.T) {
	t.Parallel()
	for _, r := range newRespondentB().Routes() {
		if l := r.Spec().Subscription(); strings.Contains(l, "critique") || strings.Contains(l, "reward") {
			t.Errorf("it listens on %s", l)
		}
	}
}

// conflictingOut is an Out whose store runs a function before each write of a conversation.
type conflictingOut struct {
	actor.Out
	put func(n int) error // before the nth write of a conversation; an error is its end
	n   *int
}

func (i conflictingOut) WithIDs(session, query string) actor.Out {
	return conflictingOut{i.Out.WithIDs(session, query), i.put, i.n}
}

func (i conflictingOut) Store(bucket string) actor.Store {
	return conflictingStore{i.Out.Store(bucket), i}
}

type conflictingStore struct {
	actor.Store
	i conflictingOut
}

func (s conflictingStore) Put(ctx context.Context, key string, value []byte, rev uint64) (uint64, error) {
	if strings.HasPrefix(key, subjects.ConversationPrefix+".") {
		*s.i.n++
		if err := s.i.put(*s.i.n); err != nil {
			return 0, err
		}
	}
	return s.Store.Put(ctx, key, value, rev)
}

// TestGradeBeforeItsTurnIsStored: a grade that arrives before its turn is stored is not lost, at whichever step.
func TestGradeBeforeItsTurnIsStored(t *testing.T) {
	t.Parallel()
	want := subjects.Grades{Critic: 5, Feedback: "quick"}
	ask := func(w *harness, g *Generator, put func(n int) error) {
		t.Helper()
		in := actor.Msg[subjects.Query]{
			Tokens: []string{"3", "s1"}, Attempt: 1,
			Body: subjects.Query{QueryID: "q1", Query: "Capital?"},
		}
		if err := g.onTurn(w.withObserver(t.Context(), g), in, conflictingOut{w.Out(), put, new(int)}); err != nil {
			t.Fatal(err)
		}
		if got := w.grades("q1"); got != want || len(g.pendingGrades.grades)+len(g.pendingGrades.order) != 0 {
			t.Errorf("%+v, and %d wait", got, len(g.pendingGrades.grades))
		}
		if s, ok := g.sessions.get("s1"); !ok || s.conversation.Turns[0].Grades == nil ||
			*s.conversation.Turns[0].Grades != want {
			t.Errorf("in memory: %+v", s.conversation.Turns)
		}
		w.requireNoErrors()
	}
	for _, at := range []string{"response/after", "dialog/after", "conversation/before"} {
		w := newHarness(t, "Paris.")
		g := New(subjects.Generator, shippedConfig())
		w.observe(g, func(s string) {
			if s == at {
				w.deliverGrade(g, critique("q1", 5, "quick"))
			}
		})
		writes := 0
		ask(w, g, func(n int) error { writes = n; return nil })
		if writes != 1 {
			t.Errorf("%s: the conversation was written %d times", at, writes)
		}
	}
	// During the write of the turn: the buffer was read already, and the turn is not stored yet.
	w := newHarness(t, "Paris.")
	g := New(subjects.Generator, shippedConfig())
	ask(w, g, func(n int) error {
		if n == 1 {
			w.deliverGrade(g, critique("q1", 5, "quick"))
		}
		return nil
	})
	// A question of the same name in another session is another question.
	w = newHarness(t, "Paris.")
	g = New(subjects.Generator, shippedConfig())
	w.deliverGrade(g, subjects.Critique{SessionID: "s2", QueryID: "q1", RespondentID: "generator", Score: 5})
	if err := w.ask(g, "s1", "q1", "Capital?", 1); err != nil {
		t.Fatal(err)
	}
	if got := w.grades("q1"); got != (subjects.Grades{}) {
		t.Errorf("it has the grade of another: %+v", got)
	}
	// Somebody else keeps the turn; this one hears of it all the same.
	w = newHarness(t, "Paris.")
	g, other := New(subjects.Generator, shippedConfig()), New(subjects.Generator, shippedConfig())
	w.deliverGrade(g, critique("q1", 5, "quick"))
	if err := w.ask(other, "s1", "q1", "Capital?", 1); err != nil {
		t.Fatal(err)
	}
	w.deliverGrade(g, reward("q1", 1, 1, ""))
	if got := w.grades("q1"); got.Critic != 5 || got.Rewards != 1 {
		t.Errorf("%+v", got)
	}
}

// TestPendingGradesAreBounded: grades without a turn do not fill the memory.
func TestPendingGradesAreBounded(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "Paris.")
	g := New(subjects.Generator, shippedConfig())
	for i := range maxPendingGrades + 10 {
		for range 2 {
			w.deliverGrade(g, critique(fmt.Sprint("q", i), 3, ""))
		}
	}
	if len(g.pendingGrades.grades) != maxPendingGrades || len(g.pendingGrades.order) != maxPendingGrades ||
		g.pendingGrades.get("s1.q9") != nil || g.pendingGrades.get("s1.q10") == nil {
		t.Errorf("%d wait, in a list of %d", len(g.pendingGrades.grades), len(g.pendingGrades.order))
	}
	// One that comes for a turn that was let go is let go too.
	w.storeConversation(subjects.Conversation{SessionID: "s1", Past: []string{"q12"}, Turns: []subjects.Turn{}})
	w.deliverGrade(g, critique("q12", 3, ""))
	if g.pendingGrades.get("s1.q12") != nil {
		t.Error("it waits for ever")
	}
	w.requireNoErrors()
}

// TestGradeIsRetriedAfterConflict: a grade is retried a few times and then dropped. Its turn is not affected.
func TestGradeIsRetriedAfterConflict(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		lost  int
		kept  bool
		noted int
	}{
		{"once", 1, true, 0},
		{"almost always", gradeAttempts - 1, true, 0},
		{"always", 1000, false, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, "Paris.")
			g := New(subjects.Generator, shippedConfig())
			if err := w.ask(g, "s1", "q1", "Capital?", 1); err != nil {
				t.Fatal(err)
			}
			out := conflictingOut{w.Out(), func(n int) error {
				if n <= tt.lost {
					return fmt.Errorf("%w: once more", actor.ErrChanged)
				}
				return nil
			}, new(int)}
			if err := g.onCritique(t.Context(), actor.Msg[subjects.Critique]{Body: critique("q1", 4, "")},
				out); err != nil {
				t.Fatal(err)
			}
			if got := w.grades("q1"); (got.Critic == 4) != tt.kept || len(w.Logged()) != tt.noted ||
				*out.n > gradeAttempts {
				t.Errorf("%+v after %d writes, noted %v", got, *out.n, w.Logged())
			}
			if g.pendingGrades.get("s1.q1") != nil {
				t.Error("it still waits")
			}
			if err := w.ask(g, "s1", "q2", "And now?", 1); err != nil || len(w.conversation("s1").Turns) != 2 {
				t.Errorf("the next question: %v", err)
			}
		})
	}
	// The other way round: a turn that is kept while a grade is written keeps both.
	w := newHarness(t, "Paris.")
	g := New(subjects.Generator, shippedConfig())
	if err := w.ask(g, "s1", "q1", "Capital?", 1); err != nil {
		t.Fatal(err)
	}
	w.observe(g, func(s string) {
		if s == "conversation/before" {
			w.deliverGrade(g, critique("q1", 2, "late"))
		}
	})
	if err := w.ask(g, "s1", "q2", "And now?", 1); err != nil {
		t.Fatal(err)
	}
	if c := w.conversation("s1"); len(c.Turns) != 2 || w.grades("q1").Critic != 2 {
		t.Errorf("%+v", c.Turns)
	}
	w.requireNoErrors()
}

// A grade that arrives during a summary does not discard the summary.
func TestGradeWhileSummarizing(t *testing.T) {
	t.Parallel()
	w := newHarness(t, longAnswer(85))
	w.role.Window = 4096
	g := New(subjects.Generator, shippedConfig())
	last := ""
	graded := 0
	w.summary = waitOnMarshal{func() {
		graded++
		w.deliverGrade(g, critique(last, 1, ""))
	}}
	for i := range 6 {
		last = fmt.Sprint("q", i)
		if err := w.ask(g, "s1", last, "Tell me more", 1); err != nil {
			t.Fatal(err)
		}
		g.summaries.running.Wait()
	}
	c := w.conversation("s1")
	if graded == 0 || c.Summary != "a summary" || c.Summarized+len(c.Turns) != 6 {
		t.Errorf("%d grades, %d turns, summary %q of %d", graded, len(c.Turns), c.Summary, c.Summarized)
	}
	if s, ok := g.sessions.get("s1"); !ok || s.conversation.Summarized != c.Summarized {
		t.Errorf("in memory: %+v", s.conversation)
	}
	w.requireNoErrors()
}

func TestCacheKeepsTheLaterConversation(t *testing.T) {
	t.Parallel()
	h := newSessionCache(2)
	h.put("a", sessionState{conversationRev: 5, recordRev: 2})
	for _, rev := range []uint64{4, 7, 6} {
		h.replaceOlder("a", subjects.Conversation{Summary: fmt.Sprint(rev)}, rev)
	}
	h.replaceOlder("b", subjects.Conversation{}, 9)
	if s, _ := h.get("a"); s.conversation.Summary != "7" || s.conversationRev != 7 || s.recordRev != 2 ||
		len(h.entries) != 1 {
		t.Errorf("%+v of %d", s, len(h.entries))
	}
}
