//go:build cgo

package store

import (
	"testing"

	"conclave/subjects"
)

func TestSmoke(t *testing.T) {
	s := opened(t)
	rows := put(t, s, fact("a"), engram("b", "q1", "gen"), fact("c"), fact("d"))
	t.Log(rows)
	e := fact("e")
	e.Supersedes = []string{"a"}
	e.Correlating = []string{"b", "c"}
	e.Tags = []string{"x", "y"}
	put(t, s, e)
	five := 5
	w := "words"
	g, err := s.Grade(t.Context(), Grade{Query: "q1", Respondent: "gen", Critic: &five, Feedback: &w, Event: "1"})
	t.Log(g, err)
	t.Logf("%+v", one(t, s, "b"))
	t.Logf("%+v", one(t, s, "e"))
	t.Logf("%+v", one(t, s, "a"))
	if err := s.Touch(t.Context(), noon, "a", "b", "zz"); err != nil {
		t.Fatal(err)
	}
	name := "new"
	u, err := s.Update(t.Context(), "c", subjects.MemoryEdit{Name: &name}, nil, noon)
	t.Logf("%+v %v", u, err)
	s = reopened(t, s)
	t.Logf("%+v", one(t, s, "a"))
	t.Log(s.Forget(t.Context(), "b", "nope", "e"))
	t.Log(s.Known(t.Context(), "q1", "gen"))
	err = s.Load(t.Context(), "m", func(l Light) error { t.Logf("%+v", l); return nil })
	t.Log(err)
	l, next, err := s.List(t.Context(), Filter{Limit: 2})
	t.Log(ids(l), next, err)
	st, err := s.Stats(t.Context())
	t.Logf("%+v %v", st, err)
	s = reopened(t, s)
	t.Logf("%+v", one(t, s, "a"))
}
