package recall_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"conclave/actors/memory/recall"
	"conclave/subjects"
)

// TestDuplicatesAreShownOnce: of rows with the same content only the best is shown. The name does not count.
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
		row    entry
		corpus []float32
	}
	ana, may := by("Ana"), on("2026-02-08")
	best := put{row(1, "one", "x", text("Coffee, black"), ana, may), near(0.8, 1)}
	long := text("Coffee, black " + strings.Repeat("and more of it ", 200))
	for _, tt := range []struct {
		name  string
		other put
		all   bool
		want  string
	}{
		{"another subject", put{row(2, "two", "y", text("tea"), ana, may), near(0.7, 2)}, false, "m1 m2"},
		{"nearly the same", put{row(2, "two", "y", text("tea"), ana, may), beside(0.98)}, false, "m1"},
		{"much the same", put{row(2, "two", "y", text("tea"), ana, may), beside(0.95)}, false, "m1 m2"},
		{
			"nearly the same, of another speaker",
			put{row(2, "two", "y", text("tea"), by("Ben"), may), beside(0.98)},
			false, "m1 m2",
		},
		{
			"nearly the same, on another day",
			put{row(2, "two", "y", text("tea"), ana, on("2026-02-09")), beside(0.98)},
			false, "m1 m2",
		},
		{"nearly the same, of nobody", put{row(2, "two", "y", text("tea"), may), beside(0.98)}, false, "m1 m2"},
		{"the same text", put{row(2, "two", "y", text(" coffee,  BLACK"), ana, may), near(0.7, 2)}, false, "m1"},
		{"the same text on another day", put{
			row(2, "two", "y", text("Coffee, black"), ana, on("2026-02-01")),
			near(0.7, 2),
		}, false, "m1 m2"},
		{"the same text, and no vectors", put{row(2, "two", "y", text("coffee, black"), ana, may), nil}, false, "m1"},
		{
			"the better one stays",
			put{row(2, "two", "y", text("coffee, black"), ana, may, graded(subjects.Grades{Critic: 5})), near(0.8, 2)},
			false, "m2",
		},
		{"trick: the same name", put{row(2, "one", "x", text("tea"), ana, may), near(0.7, 2)}, false, "m1 m2"},
		{"trick: two rows without a text", put{row(2, "two", "y", ana, may), near(0.7, 2)}, false, "m1 m2"},
		{
			"trick: untrusted content beside the user's own",
			put{row(2, "two", "y", text("Coffee, black"), ana, may, untrusted), near(0.8, 1)},
			false, "m1 m2",
		},
		{
			"what was superseded, beside what took its place",
			put{row(2, "one", "x", text("Coffee, black"), ana, may, state(subjects.MemorySuperseded)), near(0.8, 1)},
			true, "m1 m2",
		},
	} {
		m := newMind(t)
		for _, p := range []put{best, tt.other} {
			if err := m.Put(p.row.Key, p.row.MemoryEntry, recall.Vectors{Corpus: p.corpus}); err != nil {
				t.Fatal(err)
			}
		}
		if got := ids(m.find(recall.Query{Text: "coffee", Vector: cacheQuery(), All: tt.all}).Top); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if got := m.find(recall.Query{Text: "coffee", Vector: cacheQuery(), All: tt.all, Duplicates: true}).
			Top; len(got) != 2 {
			t.Errorf("%s, and duplicates are wanted: %s", tt.name, ids(got))
		}
	}
	m := newMind(t)
	m.put(row(1, "one", "x", long), 0.8, 0.8)
	m.put(row(2, "two", "y", long), 0.7, 0.7)
	if got := ids(m.find(recall.Query{Text: "coffee", Vector: cacheQuery()}).Top); got != "m1 m2" {
		t.Errorf("texts that only begin alike: %s", got)
	}
}

func untrusted(r *entry) { r.Provenance.Trust = subjects.Untrusted }

// TestRowsOfOneNameAreAllFound: without a model the name is the beginning of the text, so that many entries share one.
func TestRowsOfOneNameAreAllFound(t *testing.T) {
	t.Parallel()
	m := newMind(t)
	for key := range uint64(30) {
		m.put(row(key+1, "weather", "", text(fmt.Sprint("of day ", key))), 0.8, 0.8)
	}
	if f := m.find(recall.Query{Text: "...", Vector: cacheQuery(), Top: 20}); len(f.Top) != 20 || len(f.Names) < 20 {
		t.Errorf("%d names, %s", len(f.Names), ids(f.Top))
	}
}

// TestUnseen: what was answered in respondent B is found only where it was the better answer, and by who looks for all.
func TestUnseen(t *testing.T) {
	t.Parallel()
	from := func(who string) func(*entry) { return func(r *entry) { r.Respondent = who } }
	m := newMind(t)
	m.put(row(1, "coffee", "black", from(subjects.Generator)), 0.8, 0.8)
	m.put(row(2, "coffee", "white", from(subjects.RespondentB)), 0.9, 0.9)
	for _, tt := range []struct {
		name   string
		winner string
		want   string
	}{
		{"not compared yet", "", "m1"},
		{"even", subjects.Tie, "m1"},
		{"the other was better", subjects.Generator, "m1"},
		{"it was better", subjects.RespondentB, "m2 m1"},
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
		if got := m.find(recall.Query{Text: "coffee", Vector: cacheQuery(), All: true, Duplicates: true}).
			Top; len(got) != 2 {
			t.Errorf("%s: who looks for all finds %s", tt.name, ids(got))
		}
	}
}

// One untrusted sentence that is repeated under other names and dates is shown once, and leaves room for others.
func TestRepeatedUntrustedTextIsShownOnce(t *testing.T) {
	t.Parallel()
	m := newMind(t)
	for i, change := range []func(*entry){by("Ana"), by("Ben"), on("2026-02-01")} {
		if err := m.Put(uint64(i+1), row(uint64(i+1), "one", "x", text("Coffee, black"), change, untrusted).MemoryEntry,
			recall.Vectors{Corpus: near(0.8, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.find(recall.Query{Text: "coffee", Vector: cacheQuery()}).Top; len(got) != 1 {
		t.Errorf("%s", ids(got))
	}
}
