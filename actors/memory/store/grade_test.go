//go:build cgo

package store

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"conclave/subjects"
)

func TestGrade(t *testing.T) {
	t.Parallel()
	before, after := newStore(t), newStore(t)
	critic := func(q, r string, n int) Grade {
		return Grade{Query: q, Respondent: r, Critic: &n, Feedback: ptr(fmt.Sprint("words ", n))}
	}
	reward := func(q, r string, v float64) Grade { return Grade{Query: q, Respondent: r, Reward: &v} }
	counted := func(v float64, n int) Grade { return Grade{Query: "q", Respondent: "one", Reward: &v, Count: n} }
	winner := func(q, w string) Grade { return Grade{Query: q, Pairwise: &w} }
	for row, c := range []struct {
		name   string
		grades []Grade
		one    subjects.Grades // of the answer of one to q
		two    subjects.Grades
		last   string // whom the last one concerned
	}{
		{
			"a critic",
			[]Grade{critic("q", "one", 4)},
			subjects.Grades{Critic: 4, Feedback: "words 4"},
			subjects.Grades{},
			"[a]",
		},
		{
			"a critic thinks again",
			[]Grade{critic("q", "one", 4), critic("q", "one", 2)},
			subjects.Grades{Critic: 2, Feedback: "words 2"},
			subjects.Grades{},
			"[a]",
		},
		{
			"of nobody in particular",
			[]Grade{critic("q", "", 3)},
			subjects.Grades{Critic: 3, Feedback: "words 3"},
			subjects.Grades{Critic: 3, Feedback: "words 3"},
			"[a b]",
		},
		{
			"of one beside all",
			[]Grade{critic("q", "one", 5), critic("q", "", 3)},
			subjects.Grades{Critic: 5, Feedback: "words 5"},
			subjects.Grades{Critic: 3, Feedback: "words 3"},
			"[a b]",
		},
		{
			"a winner concerns both",
			[]Grade{winner("q", "two")},
			subjects.Grades{Pairwise: "two"},
			subjects.Grades{Pairwise: "two"},
			"[a b]",
		},
		{
			"a winner named with a respondent concerns both",
			[]Grade{{Query: "q", Respondent: "one", Pairwise: ptr("two")}},
			subjects.Grades{Pairwise: "two"},
			subjects.Grades{Pairwise: "two"},
			"[a b]",
		},
		{
			"changed reward",
			[]Grade{reward("q", "one", 1), reward("q", "one", -1), reward("q", "one", 0.75)},
			subjects.Grades{Reward: 0.75, Rewards: 3},
			subjects.Grades{},
			"[a]",
		},
		{
			"reward of one answer and of all",
			[]Grade{reward("q", "one", 1), reward("q", "", 0)},
			subjects.Grades{Reward: 1, Rewards: 1},
			subjects.Grades{Reward: 0, Rewards: 1},
			"[a b]",
		},
		{
			"counted rewards",
			[]Grade{counted(1, 1), counted(-1, 2)},
			subjects.Grades{Reward: -1, Rewards: 2},
			subjects.Grades{},
			"[a]",
		},
		{
			"counted rewards, the last one only",
			[]Grade{counted(0.5, 7)},
			subjects.Grades{Reward: 0.5, Rewards: 7},
			subjects.Grades{},
			"[a]",
		},
		{
			"the same opinion under the next count",
			[]Grade{counted(1, 1), counted(1, 2)},
			subjects.Grades{Reward: 1, Rewards: 2},
			subjects.Grades{},
			"[a]",
		},
		{
			"trick: counted rewards out of order",
			[]Grade{counted(-1, 3), counted(0.5, 2)},
			subjects.Grades{Reward: -1, Rewards: 3},
			subjects.Grades{},
			"[]",
		},
		{
			"trick: the same count with another value",
			[]Grade{counted(-1, 2), counted(1, 2)},
			subjects.Grades{Reward: -1, Rewards: 2},
			subjects.Grades{},
			"[]",
		},
		{
			"a reward without a count after counted ones",
			[]Grade{counted(-1, 2), reward("q", "one", 1)},
			subjects.Grades{Reward: 1, Rewards: 3},
			subjects.Grades{},
			"[a]",
		},
		{
			"repeated critic grade",
			[]Grade{critic("q", "one", 4), critic("q", "one", 4)},
			subjects.Grades{Critic: 4, Feedback: "words 4"},
			subjects.Grades{},
			"[]",
		},
		{
			"the same score in other words",
			[]Grade{critic("q", "one", 4), {Query: "q", Respondent: "one", Critic: ptr(4), Feedback: ptr("other")}},
			subjects.Grades{Critic: 4, Feedback: "other"},
			subjects.Grades{},
			"[a]",
		},
		{
			"another score in the same words",
			[]Grade{critic("q", "one", 4), {Query: "q", Respondent: "one", Critic: ptr(3), Feedback: ptr("words 4")}},
			subjects.Grades{Critic: 3, Feedback: "words 4"},
			subjects.Grades{},
			"[a]",
		},
		{
			"the same winner again",
			[]Grade{winner("q", "two"), winner("q", "two")},
			subjects.Grades{Pairwise: "two"},
			subjects.Grades{Pairwise: "two"},
			"[]",
		},
		{
			"trick: a known winner and a new score in one",
			[]Grade{winner("q", "two"), {Query: "q", Respondent: "one", Critic: ptr(2), Pairwise: ptr("two")}},
			subjects.Grades{Pairwise: "two", Critic: 2},
			subjects.Grades{Pairwise: "two"},
			"[a b]",
		},
		{"another question", []Grade{critic("other", "one", 1)}, subjects.Grades{}, subjects.Grades{}, "[]"},
		{"query id with a trailing blank", []Grade{critic("q ", "one", 1)}, subjects.Grades{}, subjects.Grades{}, "[]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Questions and answers of its own: "q" stands for this row's.
			own := func(q string) string { return fmt.Sprintf("r%d%s", row, q) }
			a, b := own("a"), own("b")
			answers := func(s *Store) { putEntries(t, s, newEngram(a, own("q"), "one"), newEngram(b, own("q"), "two")) }
			answers(before)
			for i, g := range c.grades {
				g.Query, g.Event = own(g.Query), own(fmt.Sprint("e", i))
				for round := range 2 { // told again, it counts once
					all, err := before.Grade(t.Context(), g)
					if err != nil {
						t.Fatal(err)
					}
					whom := []string{}
					for _, w := range all {
						whom = append(whom, strings.TrimPrefix(w.ID, own("")))
						if e := getEntry(t, before, w.ID); e.Grades != w.Grades {
							t.Errorf("round %d: %s was told as %+v and is %+v", round, w.ID, w.Grades, e.Grades)
						}
					}
					if i == len(c.grades)-1 && fmt.Sprint(whom) != c.last {
						t.Errorf("round %d: it concerns %v, want %s", round, whom, c.last)
					}
				}
				if all, err := after.Grade(t.Context(), g); err != nil || len(all) != 0 {
					t.Errorf("before there is an answer: %v, %v", all, err)
				}
			}
			answers(after)
			for name, s := range map[string]*Store{"after the answer": before, "before the answer": after} {
				if ga, gb := getEntry(t, s, a).Grades, getEntry(t, s, b).Grades; ga != c.one || gb != c.two {
					t.Errorf("%s: got %+v and %+v\nwant %+v and %+v", name, ga, gb, c.one, c.two)
				}
				got, err := s.IndexEntries(t.Context(), "", a)
				want := c.one
				want.Feedback = ""
				if err != nil || got[0].Grades != want {
					t.Errorf("%s: the light one has %+v, %v", name, got[0].Grades, err)
				}
				err = s.Load(t.Context(), "", func(l IndexEntry) error {
					if l.ID == a && l.Grades != want {
						return fmt.Errorf("loaded are %+v", l.Grades)
					}
					return nil
				})
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

func TestGradeRejectsInvalidValues(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for name, g := range map[string]Grade{
		"no question":                           {Critic: ptr(3)},
		"a question of two lines":               {Query: "q\none", Critic: ptr(3)},
		"critic grade out of range":             {Query: "q", Critic: ptr(6)},
		"none of five":                          {Query: "q", Critic: ptr(0)},
		"a reward of two":                       {Query: "q", Reward: ptr(2.0)},
		"reward NaN":                            {Query: "q", Reward: ptr(math.NaN())},
		"a reward that counts down":             {Query: "q", Reward: ptr(1.0), Count: -1},
		"a reward that counts beyond all":       {Query: "q", Reward: ptr(1.0), Count: math.MaxInt32 + 1},
		"an event that is nothing one can name": {Query: "q", Event: "\x00"},
	} {
		if _, err := s.Grade(t.Context(), g); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := queryCount(t, s, "SELECT count(*) FROM grades"); n != 0 {
		t.Errorf("%d grades", n)
	}
}

// TestGradeReportsChange: nil means no change; a grade that is stored before its answer is a change.
func TestGradeReportsChange(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newEngram("gone", "q2", "one"))
	forgetEntries(t, s, "gone")
	for _, c := range []struct {
		name  string
		grade Grade
		told  bool
	}{
		{
			"before its answer",
			Grade{Query: "q", Respondent: "one", Critic: ptr(4), Feedback: ptr("clear"), Event: "e1"},
			true,
		},
		{"the same event after a crash", Grade{
			Query: "q", Respondent: "one", Critic: ptr(4), Feedback: ptr("clear"),
			Event: "e1",
		}, true},
		{"the same words in another event", Grade{
			Query: "q", Respondent: "one", Critic: ptr(4), Feedback: ptr("clear"),
			Event: "e2",
		}, false},
		{"repeated value redelivered", Grade{
			Query: "q", Respondent: "one", Critic: ptr(4), Feedback: ptr("clear"),
			Event: "e2",
		}, false},
		{"no event at all", Grade{Query: "q", Respondent: "one", Critic: ptr(4), Feedback: ptr("clear")}, false},
		{
			"another answer",
			Grade{Query: "q", Respondent: "two", Critic: ptr(4), Feedback: ptr("clear"), Event: "e3"},
			true,
		},
		{
			"the second reward first",
			Grade{Query: "q", Respondent: "one", Reward: ptr(0.0), Count: 2, Event: "e4"},
			true,
		},
		{"older reward late", Grade{Query: "q", Respondent: "one", Reward: ptr(1.0), Count: 1, Event: "e5"}, false},
		{"forgotten answer", Grade{Query: "q2", Respondent: "one", Critic: ptr(1), Event: "e6"}, false},
		{
			"trick: the event of one that changed nothing, with something new",
			Grade{Query: "q", Respondent: "one", Critic: ptr(1), Event: "e2"},
			true,
		},
	} {
		all, err := s.Grade(t.Context(), c.grade)
		if err != nil || (all != nil) != c.told || len(all) > 0 {
			t.Errorf("%s: %#v, %v", c.name, all, err)
		}
	}
	if n := queryCount(t, s, "SELECT count(*) FROM graded"); n != 4 {
		t.Errorf("%d events are known, want those that changed something", n)
	}
}

// TestGradeAfterARestore: restored grades count like received ones: the next reward is applied, a known one is not.
func TestGradeAfterARestore(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	e := newEngram("a", "q", "one")
	e.Grades = subjects.Grades{Reward: -0.5, Rewards: 3}
	if _, err := s.Put(t.Context(), Item{Entry: e, Restore: true}); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		count int
		want  subjects.Grades
	}{{2, e.Grades}, {3, e.Grades}, {4, subjects.Grades{Reward: 1, Rewards: 4}}} {
		if _, err := s.Grade(t.Context(), Grade{
			Query: "q", Respondent: "one", Reward: ptr(1.0), Count: c.count,
			Event: fmt.Sprint(i),
		}); err != nil {
			t.Fatal(err)
		}
		if got := getEntry(t, s, "a").Grades; got != c.want {
			t.Errorf("after the %d. reward: %+v, want %+v", c.count, got, c.want)
		}
	}
}

// TestOnlyAnswersHaveGrades: a fact has no grades, even when it was saved during an answer.
func TestOnlyAnswersHaveGrades(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	f := newFact("f")
	f.Provenance.QueryID = "q"
	putEntries(t, s, f)
	if all, err := s.Grade(t.Context(), Grade{Query: "q", Critic: ptr(1)}); err != nil || len(all) != 0 {
		t.Errorf("it concerns %v, %v", all, err)
	}
	if g := getEntry(t, s, "f").Grades; g != (subjects.Grades{}) {
		t.Errorf("the fact has %+v", g)
	}
}
