package recall_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"conclave/actors/memory/recall"
	"conclave/pkg/vector"
	"conclave/subjects"
)

// load puts rows in at once, all near to the query.
func (m mind) load(rows ...recall.Row) {
	m.t.Helper()
	bad, err := m.Load(func(put func(recall.Row, recall.Vectors) error) error {
		for _, r := range rows {
			if err := put(r, vectors(r.Key, 0.6, 0.6)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || len(bad) > 0 {
		m.t.Fatal(bad, err)
	}
}

// TestLoad: rows are found by their vectors at once, and by their words when they were read.
func TestLoad(t *testing.T) {
	t.Parallel()
	m := newMind(t)
	var rows []recall.Row
	for key := range uint64(300) {
		rows = append(rows, row(key+1, fmt.Sprint("name", key), fmt.Sprint("about", key), func(r *recall.Row) {
			r.Words = fmt.Sprint("begin", key)
		}))
	}
	m.load(rows...)
	if s := m.Stats(); s != (recall.Stats{Rows: 300, Active: 300, Vectors: 300, Waiting: 300, Bytes: s.Bytes}) ||
		s.Bytes == 0 {
		t.Errorf("%+v", s)
	}
	if p := m.DescribeSearch(); !strings.Contains(p, "300 texts: exact") ||
		!strings.Contains(p, "words of 0 rows, 300 are still being read") {
		t.Error(p)
	}
	if f := m.find(recall.Query{Text: "name7", Vector: cacheQuery()}); len(f.Top) != 5 || f.Waiting != 300 {
		t.Errorf("%s, %d waiting", ids(f.Top), f.Waiting)
	}

	// What is written meanwhile is read at once, and not overwritten by what waits.
	m.put(row(2, "newer", "newer"), 0.6, 0.6)
	m.Remove(3)
	m.Grade(4, subjects.Grades{Critic: 5})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Warm(ended); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := m.Warm(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := m.Stats(); s.Rows != 299 || s.Words != 299 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
	if p := m.DescribeSearch(); !strings.HasSuffix(p, "; words of 299 rows") {
		t.Error(p)
	}
	for text, want := range map[string]string{
		"name0": "m1", "about0": "m1", "begin0": "m1", "newer": "m2", "name1": "",
		"begin1": "", "name2": "", "name3": "m4", "name299": "m300",
	} {
		if got := ids(m.find(recall.Query{Text: text}).Top); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// TestLoadWordsOnly: a query without a vector does not overlook rows whose words were not read yet.
func TestLoadWordsOnly(t *testing.T) {
	t.Parallel()
	m := newMind(t)
	var rows []recall.Row
	for key := range uint64(300) {
		rows = append(rows, row(key+1, fmt.Sprint("name", key), "x"))
	}
	m.load(rows...)
	if f := m.find(recall.Query{Text: "name299"}); ids(f.Top) != "m300" || f.Waiting != 0 {
		t.Errorf("%s, %d waiting", ids(f.Top), f.Waiting)
	}
}

// TestLoadTwice: the later row counts, with its words, its vectors or their absence.
func TestLoadTwice(t *testing.T) {
	t.Parallel()
	for _, warm := range []bool{false, true} {
		m := newMind(t)
		m.put(row(9, "there before", "x"), 0.9, 0.9)
		m.load(row(1, "coffee", "x"), row(2, "tea", "y"), row(1, "cocoa", "z"))
		if warm {
			if err := m.Warm(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		bad, err := m.Load(func(put func(recall.Row, recall.Vectors) error) error {
			return errors.Join(put(row(2, "milk", "y"), recall.Vectors{}),
				put(row(9, "water", "w"), vectors(9, 0.5, 0.5)))
		})
		if err != nil || len(bad) > 0 {
			t.Fatal(bad, err)
		}
		for _, c := range m.find(recall.Query{Text: "before", Vector: cacheQuery()}).Names {
			if r, ok := reason(c, "words"); ok {
				t.Errorf("%s was found by what it was: %s", c.ID, r.Text)
			}
		}
		for text, want := range map[string]string{
			"coffee": "", "cocoa": "m1", "tea": "", "milk": "m2", "before": "",
			"water": "m9",
		} {
			if got := ids(m.find(recall.Query{Text: text}).Top); got != want {
				t.Errorf("%s: %s, want %s", text, got, want)
			}
		}
		f := m.find(recall.Query{Vector: cacheQuery()})
		if s := m.Stats(); ids(f.Top) != "m1 m9" || s.Rows != 3 || s.Vectors != 2 || s.Words != 3 {
			t.Errorf("%s, %+v", ids(f.Top), s)
		}
	}
}

// TestLoadBad: vectors that are none do not keep the system from starting.
func TestLoadBad(t *testing.T) {
	t.Parallel()
	m := newMind(t)
	nan := near(0.5, 1)
	nan[2] = float32(math.NaN())
	stop := errors.New("the database is gone")
	bad, err := m.Load(func(put func(recall.Row, recall.Vectors) error) error {
		if err := errors.Join(
			put(row(1, "coffee", "x"), vectors(1, 0.6, 0.6)), put(row(2, "tea", "y"),
				recall.Vectors{Corpus: nan, Name: near(0.6, 2)}),
			put(row(3, "milk", "z"), recall.Vectors{Corpus: near(0.6, 3), Description: make([]float32, dims)}),
			put(row(4, "water", "w"), recall.Vectors{}),
		); err != nil {
			return err
		}
		for _, refused := range []error{
			put(recall.Row{Key: 5}, recall.Vectors{}), put(row(6, "six", "x"), recall.Vectors{Name: near(0.5, 6)}),
			put(row(7, "seven", "x"), recall.Vectors{Corpus: make([]float32, 3)}), put(row(1<<40, "far", "x"),
				recall.Vectors{}),
		} {
			if !errors.Is(refused, recall.ErrRow) && !errors.Is(refused, recall.ErrVectors) &&
				!errors.Is(refused, vector.ErrDims) {
				t.Errorf("%v", refused)
			}
		}
		return stop
	})
	if !slices.Equal(bad, []uint64{2, 3}) || !errors.Is(err, stop) {
		t.Errorf("bad %v, %v", bad, err)
	}
	if s := m.Stats(); s.Rows != 4 || s.Vectors != 1 {
		t.Errorf("%+v", s)
	}
	if got := ids(m.find(recall.Query{Text: "tea milk", Vector: cacheQuery()}).Top); got != "m1 m2 m3" {
		t.Errorf("%s", got)
	}
}
