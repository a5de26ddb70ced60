//go:build cgo

package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"conclave/subjects"
)

// line1 is a line that is, said at noon.
func line1(id, entry, subject, predicate, object string) subjects.Relation {
	return subjects.Relation{
		ID: id, Entry: entry, Subject: subject, Predicate: predicate, Object: object,
		Kind: "place", Tense: subjects.TenseIs, Trust: subjects.Trusted, Said: testTime,
	}
}

// graph shows what is found: object tense until.
func graph(t *testing.T, s *Store, q GraphQuery) string {
	t.Helper()
	all, err := s.Relations(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range all {
		out = append(out, strings.TrimSpace(r.Object+" "+r.Tense+" "+r.Until))
	}
	return strings.Join(out, ", ")
}

func TestSingleRelations(t *testing.T) {
	type said struct {
		object string
		hours  int
		entry  string // trusted, stranger
		from   string
		many   bool
		tense  string
	}
	t.Parallel()
	s := newStore(t)
	stranger := newFact("stranger")
	stranger.Provenance.Trust = subjects.Untrusted
	putEntries(t, s, newFact("trusted"), newFact("trusted2"), stranger)
	for row, c := range []struct {
		name  string
		lines []said
		want  string
	}{
		{
			"newer relation ends older",
			[]said{{object: "Berlin"}, {object: "Paris", hours: 30}},
			"Paris is, Berlin was 2026-05-05",
		},
		{
			"newer relation with a start date",
			[]said{{object: "Berlin"}, {object: "Paris", hours: 1, from: "2025"}},
			"Paris is, Berlin was 2025",
		},
		{
			"repeated relation ends nothing",
			[]said{{object: "Berlin"}, {object: "BERLIN", hours: 1, entry: "trusted2"}},
			"Berlin is, Berlin is",
		},
		{
			"not single: both stay current",
			[]said{{object: "Berlin", many: true}, {object: "Paris", hours: 1, many: true}},
			"Paris is, Berlin is",
		},
		{
			"past relation ends nothing",
			[]said{{object: "Berlin"}, {object: "Paris", hours: 1, tense: subjects.TenseWas}},
			"Berlin is, Paris was",
		},
		{
			"untrusted does not end trusted",
			[]said{{object: "Berlin"}, {object: "Paris", hours: 1, entry: "stranger"}},
			"Paris is, Berlin is",
		},
		{
			"untrusted entry claiming trust does not end trusted",
			[]said{{object: "Berlin"}, {object: "Paris", hours: 1, entry: "stranger"}},
			"Paris is, Berlin is",
		},
		{
			"trusted ends untrusted",
			[]said{{object: "Berlin", entry: "stranger"}, {object: "Paris", hours: 1}},
			"Paris is, Berlin was 2026-05-04",
		},
		{"untrusted ends untrusted", []said{
			{object: "Berlin", entry: "stranger"},
			{object: "Paris", hours: 1, entry: "stranger"},
		}, "Paris is, Berlin was 2026-05-04"},
		{
			"older relation arrives late",
			[]said{{object: "Paris", hours: 30, from: "2024-03"}, {object: "Berlin"}},
			"Paris is, Berlin was 2024-03",
		},
		{"later untrusted does not end trusted", []said{
			{object: "Paris", hours: 30, entry: "stranger"},
			{object: "Berlin"},
		}, "Paris is, Berlin is"},
		{
			"three times",
			[]said{{object: "A"}, {object: "C", hours: 60}, {object: "B", hours: 30}},
			"C is, B was 2026-05-07, A was 2026-05-07",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			who := fmt.Sprintf("Anna M\u00fcller%d", row) // somebody else in each row
			for i, l := range c.lines {
				if l.entry == "" {
					l.entry = "trusted"
				}
				// Every line says that it is trusted: what counts is its entry.
				r := line1(fmt.Sprintf("r%d-%d", row, i), l.entry, who, "lives in", l.object)
				r.Said, r.From = testTime.Add(time.Duration(l.hours)*time.Hour), l.from
				if l.tense != "" {
					r.Tense = l.tense
				}
				if i%2 == 1 {
					r.Subject, r.Predicate = strings.ToUpper(who), "Lives in"
				}
				if err := s.PutRelations(t.Context(), RelationWrite{Relation: r, Single: !l.many}); err != nil {
					t.Fatal(err)
				}
			}
			if got := graph(t, s, GraphQuery{People: []string{fmt.Sprint("anna muller", row)}}); got != c.want {
				t.Errorf("got %s\nwant %s", got, c.want)
			}
		})
	}
	all, err := s.Relations(t.Context(), GraphQuery{Limit: maxPageSize})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		want := subjects.Trusted
		if r.Entry == "stranger" {
			want = subjects.Untrusted
		}
		if r.Trust != want {
			t.Errorf("%s of %s is %s", r.Object, r.Entry, r.Trust)
		}
	}
}

func TestRelationsMatchNamesAndWords(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("e"))
	for i, l := range [][3]string{
		{"Anna M\u00fcller", "lives in", "Berlin"},
		{"Anna M\u00fcller", "works at", "Siemens"},
		{"Bob", "lives in", "Paris"},
		{"Hannah", "knows", "Bob"},
		{"\u7530\u4e2d", "lives in", "\u6771\u4eac"},
		{"Anna M\u00fcller", "is married to", "Bob"},
		{"Stra\u00dfe", "is", "long"},
	} {
		r := line1(fmt.Sprint("r", i), "e", l[0], l[1], l[2])
		r.Said = testTime.Add(time.Duration(i) * time.Minute)
		if err := s.PutRelations(t.Context(), RelationWrite{Relation: r}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		q    GraphQuery
		want string
	}{
		{"everything, the newest first", GraphQuery{}, "long is, Bob is, \u6771\u4eac is, Bob is, Paris is, Siemens " +
			"is, Berlin is"},
		{"a page", GraphQuery{Limit: 2}, "long is, Bob is"},
		{"a person", GraphQuery{People: []string{"Anna Muller"}}, "Bob is, Siemens is, Berlin is"},
		{"a part of a name", GraphQuery{People: []string{"m\u00dcLLER"}}, "Bob is, Siemens is, Berlin is"},
		{"part of a word does not match", GraphQuery{People: []string{"Hann", "Ann"}}, ""},
		{"a place", GraphQuery{Places: []string{"berlin"}}, "Berlin is"},
		{
			"two people, relation of both first",
			GraphQuery{People: []string{"Anna M\u00fcller", "Bob"}},
			"Bob is, Bob is, Paris is, Siemens is, Berlin is",
		},
		{"a name in a question", GraphQuery{Words: "Where does Hannah live?"}, "Bob is"},
		{
			"a name in a question without blanks",
			GraphQuery{Words: "\u7530\u4e2d\u3055\u3093\u306f\u3069\u3053"},
			"\u6771\u4eac is",
		},
		{"words", GraphQuery{Words: "who works where"}, "Siemens is"},
		{"sharp s", GraphQuery{People: []string{"STRASSE"}}, "long is"},
		{"unknown person", GraphQuery{People: []string{"Carol"}}, ""},
		{"SQL", GraphQuery{People: []string{"' OR true --"}, Words: "%"}, ""},
		{"punctuation as a name", GraphQuery{People: []string{"?!"}, Limit: 1}, "long is"},
	} {
		if got := graph(t, s, c.q); got != c.want {
			t.Errorf("%s: got %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestRelationsRejectInvalid(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("e"))
	for name, change := range map[string]func(*subjects.Relation){
		"no id":                func(r *subjects.Relation) { r.ID = "" },
		"no subject":           func(r *subjects.Relation) { r.Subject = " " },
		"a subject of signs":   func(r *subjects.Relation) { r.Subject = "?!" },
		"no predicate":         func(r *subjects.Relation) { r.Predicate = "" },
		"no object":            func(r *subjects.Relation) { r.Object = "" },
		"no tense":             func(r *subjects.Relation) { r.Tense = "" },
		"no trust":             func(r *subjects.Relation) { r.Trust = "" },
		"no entry":             func(r *subjects.Relation) { r.Entry = "" },
		"a year out of bounds": func(r *subjects.Relation) { r.Said = time.Date(-3, 1, 1, 0, 0, 0, 0, time.UTC) },
	} {
		r := line1("r", "e", "Anna", "lives in", "Berlin")
		change(&r)
		if err := s.PutRelations(t.Context(), RelationWrite{Relation: line1("good", "e", "A", "b", "C")},
			RelationWrite{Relation: r}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.PutRelations(t.Context(), RelationWrite{Relation: line1("r", "missing", "A", "b", "C")}); !errors.Is(
		err, ErrNotFound) {
		t.Error(err)
	}
	if got := graph(t, s, GraphQuery{}); got != "" {
		t.Errorf("written was %s", got)
	}
}

func TestRelationsRepeatedAndForgotten(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("e"), newFact("f"))
	old, now := line1("r1", "e", "Anna", "lives in", "Berlin"), line1("r2", "f", "Anna", "lives in", "Paris")
	now.Said, now.From = testTime.Add(time.Hour), "2026"
	for range 2 {
		if err := s.PutRelations(t.Context(), RelationWrite{old, true}, RelationWrite{now, true}); err != nil {
			t.Fatal(err)
		}
	}
	if got := graph(t, s, GraphQuery{}); got != "Paris is, Berlin was 2026" {
		t.Errorf("got %s", got)
	}
	forgetEntries(t, s, "f") // since when was in what is forgotten
	if got := graph(t, s, GraphQuery{}); got != "Berlin was" {
		t.Errorf("got %s", got)
	}
	if n := queryCount(t, s, "SELECT count(*) FROM entities"); n != 2 {
		t.Errorf("%d are in the graph, want Anna and Berlin", n)
	}
	forgetEntries(t, s, "e")
	if n := queryCount(t, s, "SELECT count(*) FROM entities"); n != 0 {
		t.Errorf("%d are in the graph", n)
	}
}

// TestRelationsOfSupersededEntries: relations of a superseded entry are past.
func TestRelationsOfSupersededEntries(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("e"))
	if err := s.PutRelations(t.Context(),
		RelationWrite{Relation: line1("r1", "e", "Anna", "lives in", "Berlin")}); err != nil {
		t.Fatal(err)
	}
	f := newFact("f")
	f.Supersedes = []string{"e"}
	putEntries(t, s, f)
	if got := graph(t, s, GraphQuery{}); got != "Berlin was" {
		t.Errorf("got %s", got)
	}
}
