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
	before, after := opened(t), opened(t)
	critic := func(q, r string, n int) Grade {
		return Grade{Query: q, Respondent: r, Critic: &n, Feedback: ptr(fmt.Sprint("words ", n))}
	}
	reward := func(q, r string, v float64) Grade { return Grade{Query: q, Respondent: r, Reward: &v} }
	winner := func(q, w string) Grade { return Grade{Query: q, Pairwise: &w} }
	for row, c := range []struct {
		name   string
		grades []Grade
		one    subjects.Grades // of the answer of one to q
		two    subjects.Grades
		last   string // whom the last one concerned
	}{
		{"a critic", []Grade{critic("q", "one", 4)}, subjects.Grades{Critic: 4, Feedback: "words 4"}, subjects.Grades{}, "[a]"},
		{"a critic thinks again", []Grade{critic("q", "one", 4), critic("q", "one", 2)}, subjects.Grades{Critic: 2, Feedback: "words 2"}, subjects.Grades{}, "[a]"},
		{"of nobody in particular", []Grade{critic("q", "", 3)}, subjects.Grades{Critic: 3, Feedback: "words 3"}, subjects.Grades{Critic: 3, Feedback: "words 3"}, "[a b]"},
		{"of one beside all", []Grade{critic("q", "one", 5), critic("q", "", 3)}, subjects.Grades{Critic: 5, Feedback: "words 5"}, subjects.Grades{Critic: 3, Feedback: "words 3"}, "[a b]"},
		{"a winner concerns both", []Grade{winner("q", "two")}, subjects.Grades{Pairwise: "two"}, subjects.Grades{Pairwise: "two"}, "[a b]"},
		{"a winner named with a respondent concerns both", []Grade{{Query: "q", Respondent: "one", Pairwise: ptr("two")}}, subjects.Grades{Pairwise: "two"}, subjects.Grades{Pairwise: "two"}, "[a b]"},
		{"rewards are a mean", []Grade{reward("q", "one", 1), reward("q", "one", -1), reward("q", "one", 0.75)}, subjects.Grades{Reward: 0.25, Rewards: 3}, subjects.Grades{}, "[a]"},
		{"rewards of one and of all", []Grade{reward("q", "one", 1), reward("q", "", 0)}, subjects.Grades{Reward: 0.5, Rewards: 2}, subjects.Grades{Reward: 0, Rewards: 1}, "[a b]"},
		{"another question", []Grade{critic("other", "one", 1)}, subjects.Grades{}, subjects.Grades{}, "[]"},
		{"a question that only begins so", []Grade{critic("q ", "one", 1)}, subjects.Grades{}, subjects.Grades{}, "[]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Questions and answers of its own: "q" stands for this row's.
			own := func(q string) string { return fmt.Sprintf("r%d%s", row, q) }
			a, b := own("a"), own("b")
			answers := func(s *Store) { put(t, s, engram(a, own("q"), "one"), engram(b, own("q"), "two")) }
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
						if e := one(t, before, w.ID); e.Grades != w.Grades {
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
				if ga, gb := one(t, s, a).Grades, one(t, s, b).Grades; ga != c.one || gb != c.two {
					t.Errorf("%s: got %+v and %+v\nwant %+v and %+v", name, ga, gb, c.one, c.two)
				}
				got, err := s.Lights(t.Context(), "", a)
				want := c.one
				want.Feedback = ""
				if err != nil || got[0].Grades != want {
					t.Errorf("%s: the light one has %+v, %v", name, got[0].Grades, err)
				}
				err = s.Load(t.Context(), "", func(l Light) error {
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

func TestGradeRefuses(t *testing.T) {
	t.Parallel()
	s := opened(t)
	for name, g := range map[string]Grade{
		"no question":                           {Critic: ptr(3)},
		"a question of two lines":               {Query: "q\none", Critic: ptr(3)},
		"six of five":                           {Query: "q", Critic: ptr(6)},
		"none of five":                          {Query: "q", Critic: ptr(0)},
		"a reward of two":                       {Query: "q", Reward: ptr(2.0)},
		"a reward that is no number":            {Query: "q", Reward: ptr(math.NaN())},
		"an event that is nothing one can name": {Query: "q", Event: "\x00"},
	} {
		if _, err := s.Grade(t.Context(), g); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := count(t, s, "SELECT count(*) FROM grades"); n != 0 {
		t.Errorf("%d grades", n)
	}
}

// A fact is no answer, even when it was said during one.
func TestGradesAreOfAnswers(t *testing.T) {
	t.Parallel()
	s := opened(t)
	f := fact("f")
	f.Provenance.QueryID = "q"
	put(t, s, f)
	if all, err := s.Grade(t.Context(), Grade{Query: "q", Critic: ptr(1)}); err != nil || len(all) != 0 {
		t.Errorf("it concerns %v, %v", all, err)
	}
	if g := one(t, s, "f").Grades; g != (subjects.Grades{}) {
		t.Errorf("the fact has %+v", g)
	}
}
