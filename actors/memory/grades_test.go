package memory

import (
	"math"
	"strings"
	"testing"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// The place in the stream tells one grade from another, and the recorder has no stream: these hand it in.

func (w *fixture) critique(seq uint64, c subjects.Critique) error {
	return w.m.onCritique(w.t.Context(), actor.Msg[subjects.Critique]{From: "critic", Seq: seq, Body: c}, w.rec.Out())
}

func (w *fixture) pairwise(seq uint64, p subjects.Pairwise) error {
	return w.m.onPairwise(w.t.Context(), actor.Msg[subjects.Pairwise]{From: "critic", Seq: seq, Body: p}, w.rec.Out())
}

func (w *fixture) reward(seq uint64, r subjects.Reward) error {
	return w.m.onReward(w.t.Context(), actor.Msg[subjects.Reward]{From: "reward", Seq: seq, Body: r}, w.rec.Out())
}

// TestGrades: a grade is stored once under query and respondent, before or after its answer.
func TestGrades(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	all := func(seq uint64, query string) error {
		for i, err := range []error{
			w.critique(seq, subjects.Critique{QueryID: query, RespondentID: "generator", Score: 4, Feedback: "Clear."}),
			w.critique(seq+1, subjects.Critique{
				QueryID: query, RespondentID: "respondent_b", Score: 2,
				Feedback: "Vague.",
			}),
			w.pairwise(seq+2, subjects.Pairwise{QueryID: query, Winner: "generator"}),
			w.reward(seq+3, subjects.Reward{QueryID: query, RespondentID: "generator", Value: 1}),
			w.reward(seq+4, subjects.Reward{QueryID: query, RespondentID: "generator", Value: -0.5}),
		} {
			if err != nil {
				t.Errorf("the %d. grade of %s: %v", i+1, query, err)
			}
		}
		return nil
	}
	answer := func(query, who string) {
		for _, account := range []string{"generator", "respondent_b"} {
			r := told(query, who, "Rome")
			r.QueryID = query
			if err := w.deliverAnswer(account, r); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := map[string]subjects.Grades{
		"generator":    {Critic: 4, Feedback: "Clear.", Pairwise: "generator", Reward: -0.5, Rewards: 2},
		"respondent_b": {Critic: 2, Feedback: "Vague.", Pairwise: "generator"},
	}
	for _, tt := range []struct {
		name, query, who string
		do               func(query, who string)
		told             string // what it says of the five grades
	}{
		{"after the answer", "after", "Anna", func(q, who string) {
			answer(q, who)
			_ = all(10, q)
		}, "annotated annotated annotated annotated annotated"},
		{"before the answer", "before", "Berta", func(q, who string) {
			_ = all(20, q)
			answer(q, who)
		}, "waiting waiting waiting waiting waiting"},
		{"trick: each event twice", "twice", "Clara", func(q, who string) {
			answer(q, who)
			_ = all(30, q)
			_ = all(30, q)
		}, "annotated annotated annotated annotated annotated"},
		{"trick: twice, before and after", "both", "Doris", func(q, who string) {
			_ = all(40, q)
			answer(q, who)
			_ = all(40, q)
		}, "waiting waiting waiting waiting waiting"},
	} {
		had := len(w.events("memory.annotated"))
		tt.do(tt.query, tt.who)
		for account, g := range want {
			if got := w.entry(deriveID(subjects.KindEngram, tt.query, account)).Grades; got != g {
				t.Errorf("%s: %s has %+v, want %+v", tt.name, account, got, g)
			}
		}
		var said []string
		for _, ev := range w.events("memory.annotated")[had:] {
			said = append(said, ev.Action)
			if ev.QueryID != tt.query || ev.By == "" || ev.Why == "" || (ev.Action == "waiting") != (len(ev.IDs) == 0) {
				t.Errorf("%s: it tells %+v", tt.name, ev)
			}
		}
		if got := strings.Join(said, " "); got != tt.told {
			t.Errorf("%s: it tells of %s, want %s", tt.name, got, tt.told)
		}
	}
	// A stream that was made anew counts from one again: the same place at another time is another grade.
	in := actor.Msg[subjects.Reward]{
		From: "reward", Seq: 13, StoredAt: noon,
		Body: subjects.Reward{QueryID: "after", RespondentID: "generator", Value: 1},
	}
	for range 2 {
		if err := w.m.onReward(t.Context(), in, w.rec.Out()); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.entry(deriveID(subjects.KindEngram, "after", "generator")).Grades; got.Rewards != 3 || got.Reward != 1 {
		t.Errorf("after a stream that was made anew: %+v", got)
	}
}

// TestInvalidGradesAreIgnored: an invalid grade changes nothing.
func TestInvalidGradesAreIgnored(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	id := w.storeAnswer("q1", answer1().Query, answer1().Answer)
	gone := w.storeAnswer("q2", "What colour is the bicycle?", "The bicycle is red.")
	if _, err := w.admin(subjects.MemoryAdminRequest{Op: "forget", IDs: []string{gone}}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		do   func() error
		code string
		want subjects.Grades
	}{
		{"ungraded", func() error {
			return w.critique(1, subjects.Critique{QueryID: "q1", RespondentID: "generator"})
		}, "", subjects.Grades{}},
		{"more than five", func() error {
			return w.critique(2, subjects.Critique{QueryID: "q1", RespondentID: "generator", Score: 6})
		}, "", subjects.Grades{}},
		{"less than one", func() error {
			return w.critique(3, subjects.Critique{QueryID: "q1", RespondentID: "generator", Score: math.MinInt})
		}, "", subjects.Grades{}},
		{"of nobody", func() error {
			return w.critique(4, subjects.Critique{QueryID: "q1", RespondentID: "committee", Score: 1})
		}, "", subjects.Grades{}},
		{"trick: of every question", func() error {
			return w.critique(5, subjects.Critique{QueryID: "*", Score: 1})
		}, subjects.CodeMalformed, subjects.Grades{}},
		{"trick: of no question", func() error {
			return w.pairwise(6, subjects.Pairwise{Winner: "respondent_b"})
		}, subjects.CodeMalformed, subjects.Grades{}},
		{"trick: of a respondent that is two", func() error {
			return w.reward(7, subjects.Reward{QueryID: "q1", RespondentID: "a b", Value: 1})
		}, subjects.CodeMalformed, subjects.Grades{}},
		{"reward out of range", func() error {
			return w.reward(8, subjects.Reward{QueryID: "q1", RespondentID: "generator", Value: 1e9})
		}, "", subjects.Grades{Reward: 1, Rewards: 1}},
		{"trick: infinite reward", func() error {
			return w.reward(9, subjects.Reward{QueryID: "q1", RespondentID: "generator", Value: math.NaN()})
		}, "", subjects.Grades{Reward: 0, Rewards: 2}},
		{"undecided", func() error {
			return w.pairwise(13, subjects.Pairwise{QueryID: "q1", Undecided: "the critic was silent"})
		}, "", subjects.Grades{Reward: 0, Rewards: 2}},
		{"trick: a reward that counts down", func() error {
			return w.reward(14, subjects.Reward{QueryID: "q1", RespondentID: "generator", Value: 1, Count: -3})
		}, subjects.CodeMalformed, subjects.Grades{Reward: 0, Rewards: 2}},
		{"trick: a reward that no other could follow", func() error {
			return w.reward(15, subjects.Reward{QueryID: "q1", RespondentID: "generator", Value: 1, Count: math.MaxInt})
		}, subjects.CodeMalformed, subjects.Grades{Reward: 0, Rewards: 2}},
		{"trick: a winner as long as a book", func() error {
			return w.pairwise(10, subjects.Pairwise{QueryID: "q1", Winner: strings.Repeat("x", 1<<20)})
		}, "", subjects.Grades{Reward: 0, Rewards: 2, Pairwise: strings.Repeat("x", subjects.MaxToken) + "..."}},
		{"trick: a password in the critic's words", func() error {
			return w.critique(11, subjects.Critique{
				QueryID: "q1", RespondentID: "generator", Score: 5,
				Feedback: "It repeats the password: " + canary,
			})
		}, "", subjects.Grades{
			Reward: 0, Rewards: 2, Pairwise: strings.Repeat("x", subjects.MaxToken) + "...",
			Critic: 5, Feedback: "It repeats the password: [redacted: password]",
		}},
		{"forgotten answer", func() error {
			return w.reward(12, subjects.Reward{QueryID: "q2", RespondentID: "generator", Value: 1})
		}, "", subjects.Grades{
			Reward: 0, Rewards: 2, Pairwise: strings.Repeat("x", subjects.MaxToken) +
				"...", Critic: 5, Feedback: "It repeats the password: [redacted: password]",
		}},
	} {
		if err := tt.do(); actortest.Code(err) != tt.code || tt.code == "" && err != nil {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.code)
		}
		if got := w.entry(id).Grades; got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
	if w.count() != 1 {
		t.Errorf("%d entries", w.count())
	}
	w.assertAbsent(canary)
}

// TestRedeliveredGrades: a grade that changes nothing emits nothing, and the latest reward wins in any order of
// arrival.
func TestRedeliveredGrades(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	id := w.storeAnswer("q1", answer1().Query, answer1().Answer)
	four := subjects.Critique{QueryID: "q1", RespondentID: "generator", Score: 4, Feedback: "Clear."}
	reward := func(count int, value float64) subjects.Reward {
		return subjects.Reward{QueryID: "q1", RespondentID: "generator", Value: value, Count: count}
	}
	for i, tt := range []struct {
		name string
		do   func(seq uint64) error
		want subjects.Grades
		told int
	}{
		{"a grade", func(seq uint64) error {
			return w.critique(seq, four)
		}, subjects.Grades{Critic: 4, Feedback: "Clear."}, 1},
		{"the critic says it again, much later", func(seq uint64) error {
			return w.critique(seq, four)
		}, subjects.Grades{Critic: 4, Feedback: "Clear."}, 0},
		{"it thinks again", func(seq uint64) error {
			return w.critique(seq, subjects.Critique{
				QueryID: "q1", RespondentID: "generator", Score: 3,
				Feedback: "Clear.",
			})
		}, subjects.Grades{Critic: 3, Feedback: "Clear."}, 1},
		{"a verdict", func(seq uint64) error {
			return w.pairwise(seq, subjects.Pairwise{QueryID: "q1", Winner: "generator"})
		}, subjects.Grades{Critic: 3, Feedback: "Clear.", Pairwise: "generator"}, 1},
		{"trick: undecided after a verdict", func(seq uint64) error {
			return w.pairwise(seq, subjects.Pairwise{QueryID: "q1"})
		}, subjects.Grades{Critic: 3, Feedback: "Clear.", Pairwise: "generator"}, 0},
		{"the second reward first", func(seq uint64) error {
			return w.reward(seq, reward(2, -1))
		}, subjects.Grades{Critic: 3, Feedback: "Clear.", Pairwise: "generator", Reward: -1, Rewards: 2}, 1},
		{"older reward late", func(seq uint64) error {
			return w.reward(seq, reward(1, 1))
		}, subjects.Grades{Critic: 3, Feedback: "Clear.", Pairwise: "generator", Reward: -1, Rewards: 2}, 0},
		{"trick: the second reward once more, with another value", func(seq uint64) error {
			return w.reward(seq, reward(2, 1))
		}, subjects.Grades{Critic: 3, Feedback: "Clear.", Pairwise: "generator", Reward: -1, Rewards: 2}, 0},
		{"the third reward", func(seq uint64) error {
			return w.reward(seq, reward(3, 0.5))
		}, subjects.Grades{Critic: 3, Feedback: "Clear.", Pairwise: "generator", Reward: 0.5, Rewards: 3}, 1},
	} {
		had := len(w.events("memory.annotated"))
		for range 2 { // each event twice, as after a crash
			if err := tt.do(uint64(i + 1)); err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		if got := w.entry(id).Grades; got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
		if told := len(w.events("memory.annotated")) - had; told != tt.told {
			t.Errorf("%s: it was told %d times, want %d", tt.name, told, tt.told)
		}
	}
}

// TestGradesChangeTheRanking: of two equally near answers the better graded one comes first from the next recall on.
func TestGradesChangeTheRanking(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	// They have the same name, so only the better one is shown.
	one := w.storeAnswer("q1", "Which bakery has good bread?", "The bakery Kroll bakes good bread.")
	two := w.storeAnswer("q2", "Which bakery has good bread?", "The bakery Stein bakes good bread.")
	ask := func() string { // with the cache: a grade drops what it would change
		r, err := deliver[subjects.MemoryReply](w, "ctl.user.memory.query", "", "",
			subjects.MemoryQuery{Query: "Which bakery has good bread?"})
		if err != nil {
			t.Fatal(err)
		}
		if hits := last(r).Hits; len(hits) > 0 {
			return hits[0].Entry.ID
		}
		return ""
	}
	seq := uint64(0)
	for i, tt := range []struct {
		query string
		score int
		want  string
	}{
		{"q2", 5, two},
		{"q1", 5, one}, // equal again: the older one comes first
		{"q1", 1, two},
		{"q2", 1, one},
	} {
		ask()
		seq++
		if err := w.critique(seq, subjects.Critique{
			QueryID: tt.query, RespondentID: "generator",
			Score: tt.score,
		}); err != nil {
			t.Fatal(err)
		}
		if got := ask(); got != tt.want {
			t.Errorf("%d. after a %d for %s it recalls %s, want %s", i+1, tt.score, tt.query, got, tt.want)
		}
	}
	w.restart()
	if got := ask(); got != one {
		t.Errorf("after a restart it recalls %v", got)
	}
}
