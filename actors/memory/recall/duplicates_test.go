package recall_test

import (
	"fmt"
	"math"
	"testing"

	"conclave/actors/memory/recall"
	"conclave/subjects"
)

// TestDuplicatesAreShownOnce: of rows that say the same only the best is shown.
func TestDuplicatesAreShownOnce(t *testing.T) {
	t.Parallel()
	// beside is a vector whose cosine to near(0.8, 1) is this one.
	beside := func(cosine float64) []float32 {
		base, v := near(0.8, 1), make([]float32, dims)
		for i := range v {
			v[i] = float32(cosine) * base[i]
		}
		v[40] = float32(math.Sqrt(1 - cosine*cosine))
		return v
	}
	type put struct {
		row               recall.Row
		name, description []float32
	}
	best := put{row(1, "one", "x"), near(0.9, 1), near(0.8, 1)}
	for _, tt := range []struct {
		name  string
		other put
		all   bool
		want  string
	}{
		{"another subject", put{row(2, "two", "y"), near(0.7, 2), near(0.7, 2)}, false, "m1 m2"},
		{"nearly the same description", put{row(2, "two", "y"), near(0.7, 2), beside(0.98)}, false, "m1"},
		{"much the same description", put{row(2, "two", "y"), near(0.7, 2), beside(0.95)}, false, "m1 m2"},
		{"the same name", put{row(2, "one", "y"), near(0.7, 2), near(0.7, 2)}, false, "m1"},
		{"the same name, written otherwise", put{row(2, " ONÉ ", "y"), near(0.7, 2), near(0.7, 2)}, false, "m1"},
		{"the same words of description, and no vectors", put{row(2, "coffee", "x"), nil, nil}, false, "m1"},
		{"the better one stays", put{row(2, "one", "y", graded(subjects.Grades{Critic: 5})), near(0.9, 2), near(0.8, 2)}, false, "m2"},
		{"trick: two rows without a name", put{row(2, "", "y"), near(0.7, 2), near(0.7, 2)}, false, "m1 m2"},
		{"trick: pieces under one heading", put{row(2, "one", "y", kind(subjects.KindDocument)), near(0.7, 2), near(0.7, 2)}, false, "m1 m2"},
		{"trick: the same piece twice", put{row(2, "two", "y", kind(subjects.KindDocument)), near(0.7, 2), beside(0.99)}, false, "m1"},
		{"what was superseded, beside what took its place", put{row(2, "one", "x", state(subjects.MemorySuperseded)), near(0.9, 1), near(0.8, 1)}, true, "m1 m2"},
	} {
		m := newMind(t)
		for _, p := range []put{best, tt.other} {
			if err := m.Put(p.row, p.name, p.description); err != nil {
				t.Fatal(err)
			}
		}
		if got := ids(m.find(recall.Query{Text: "coffee", Vector: cacheQuery(), All: tt.all}).Top); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if got := m.find(recall.Query{Text: "coffee", Vector: cacheQuery(), All: tt.all, Duplicates: true}).Top; len(got) != 2 {
			t.Errorf("%s, and duplicates are wanted: %s", tt.name, ids(got))
		}
	}
}

// TestSameName: many rows of one name leave places for others.
func TestSameName(t *testing.T) {
	t.Parallel()
	m := newMind(t)
	for key := range uint64(30) {
		m.put(row(key+1, "weather", fmt.Sprint("of day ", key)), 0.9, 0.8)
	}
	for key := range uint64(4) {
		m.put(row(key+31, fmt.Sprint("other ", key), fmt.Sprint("thing ", key)), 0.5, 0.5)
	}
	f := m.find(recall.Query{Text: "...", Vector: cacheQuery()})
	if got := ids(f.Top); got != "m1 m31 m32 m33 m34" {
		t.Errorf("%s", got)
	}
	if got := ids(f.Names); got != "m1 m2 m3 m31 m32 m33 m34" {
		t.Errorf("names %s", got)
	}
	if f := m.find(recall.Query{Text: "...", Vector: cacheQuery(), Names: 40, Top: 40, Duplicates: true}); len(f.Names) != 34 || len(f.Top) != 34 {
		t.Errorf("duplicates are wanted: %d names, %s", len(f.Names), ids(f.Top))
	}
}

// TestSameNameBest: the best answer to a question is found, however many worse ones were given before it.
func TestSameNameBest(t *testing.T) {
	t.Parallel()
	m := newMind(t)
	for key := range uint64(5) {
		m.put(row(key+1, "tides", fmt.Sprint("bad ", key), graded(subjects.Grades{Critic: 1, Reward: -1, Rewards: 1})), 0.9, 0.8)
	}
	m.put(row(6, "tides", "the moon pulls the sea", graded(subjects.Grades{Critic: 5})), 0.9, 0.8)
	if got := ids(m.find(recall.Query{Text: "...", Vector: cacheQuery()}).Top); got != "m6" {
		t.Errorf("%s, want m6", got)
	}
}

// TestUnseen: what was answered in respondent B is found only where it was the better answer, and by who looks for all.
func TestUnseen(t *testing.T) {
	t.Parallel()
	by := func(who string) func(*recall.Row) { return func(r *recall.Row) { r.Respondent = who } }
	m := newMind(t)
	m.put(row(1, "coffee", "black", by(subjects.Generator)), 0.8, 0.8)
	m.put(row(2, "coffee", "white", by(subjects.RespondentB)), 0.9, 0.9)
	for _, tt := range []struct {
		name   string
		winner string
		want   string
	}{
		{"not compared yet", "", "m1"},
		{"even", subjects.Tie, "m1"},
		{"the other was better", subjects.Generator, "m1"},
		{"it was better", subjects.RespondentB, "m2"},
		{"and then it was not", subjects.Generator, "m1"},
	} {
		for _, key := range []uint64{1, 2} {
			m.Grade(key, subjects.Grades{Pairwise: tt.winner})
		}
		for _, q := range []recall.Query{{Text: "coffee", Vector: cacheQuery()}, {Text: "coffee"}} {
			if got := ids(m.find(q).Top); got != tt.want {
				t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
			}
		}
		if got := m.find(recall.Query{Text: "coffee", Vector: cacheQuery(), All: true, Duplicates: true}).Top; len(got) != 2 {
			t.Errorf("%s: who looks for all finds %s", tt.name, ids(got))
		}
	}
}
