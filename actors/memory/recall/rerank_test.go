package recall_test

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"conclave/actors/memory/recall"
	"conclave/subjects"
)

// hits are candidates with the description that each row was given.
func hits(list []subjects.MemoryHit) (out []subjects.MemoryHit) {
	about := map[string]string{"one": "x", "two": "y", "three": "z"}
	for _, c := range list {
		out = append(out,
			subjects.MemoryHit{
				Entry:      subjects.MemoryEntry{ID: c.Entry.ID, Name: c.Entry.Name, Description: about[c.Entry.Name]},
				Similarity: c.Similarity, Score: c.Score, Reasons: c.Reasons,
			})
	}
	return out
}

func hitIDs(list []subjects.MemoryHit) string {
	var out []string
	for _, h := range list {
		out = append(out, h.Entry.ID)
	}
	return strings.Join(out, " ")
}

// TestRerank: a model's numbers order anew, and whatever else it says changes nothing.
func TestRerank(t *testing.T) {
	t.Parallel()
	m := newMind(t)
	m.put(row(1, "one", "x"), 0.8, 0.8)
	m.put(row(2, "two", "y"), 0.7, 0.7)
	m.put(row(3, "three", "z", graded(subjects.Grades{Critic: 4})), 0.6, 0.6)
	in := hits(m.find(recall.Query{Text: "numbers", Vector: cacheQuery()}).Top)
	before := slices.Clone(in)
	broken := errors.New("the model is away")
	for _, tt := range []struct {
		name   string
		scores []float64
		err    error
		want   string
		fails  bool
	}{
		{"turned round", []float64{1, 2, 3}, nil, "m3 m2 m1", false},
		{"as it was", []float64{3, 2, 1}, nil, "m1 m2 m3", false},
		{"numbers of any size", []float64{-1e9, 1e300, -2}, nil, "m2 m3 m1", false},
		{"equals stay in their order", []float64{0, 1, 1}, nil, "m2 m3 m1", false},
		{"all equal", []float64{0, 0, 0}, nil, "m1 m2 m3", false},
		{"the model fails", nil, broken, "m1 m2 m3", true},
		{"trick: scores beside an error", []float64{1, 2, 3}, broken, "m1 m2 m3", true},
		{"trick: too few", []float64{1, 2}, nil, "m1 m2 m3", true},
		{"trick: too many", []float64{1, 2, 3, 4}, nil, "m1 m2 m3", true},
		{"trick: none", nil, nil, "m1 m2 m3", true},
		{"trick: no number", []float64{1, math.NaN(), 3}, nil, "m1 m2 m3", true},
		{"trick: infinite", []float64{1, 2, math.Inf(1)}, nil, "m1 m2 m3", true},
	} {
		var texts []string
		out, err := recall.Rerank(t.Context(), "numbers", in,
			func(_ context.Context, query string, of []string) ([]float64, error) {
				texts = append(of, query)
				return tt.scores, tt.err
			})
		if got := hitIDs(out); got != tt.want || (err != nil) != tt.fails || tt.err != nil && !errors.Is(err, tt.err) {
			t.Errorf("%s: %s, %v", tt.name, got, err)
		}
		if got := strings.Join(texts, "|"); got != "one\nx|two\ny|three\nz|numbers" {
			t.Errorf("%s: the model was asked %q", tt.name, got)
		}
		for i, c := range out {
			r, ok := reason(subjects.MemoryHit{Reasons: c.Reasons}, "rerank")
			if !addUp(subjects.MemoryHit{Score: c.Score, Reasons: c.Reasons}) || ok == tt.fails || ok && r.Text == "" ||
				i > 0 && c.Score > out[i-1].Score+1e-12 ||
				c.Similarity != before[slices.IndexFunc(before, func(b subjects.MemoryHit) bool {
					return b.Entry.ID == c.Entry.ID
				})].Similarity {
				t.Errorf("%s: %+v", tt.name, c)
			}
		}
		if hitIDs(in) != hitIDs(before) || len(in[0].Reasons) != len(before[0].Reasons) {
			t.Fatalf("%s: what was given was changed: %+v", tt.name, in)
		}
	}
	for _, few := range [][]subjects.MemoryHit{nil, in[:1]} {
		out, err := recall.Rerank(t.Context(), "numbers", few, func(context.Context, string, []string) ([]float64,
			error,
		) {
			t.Error("asked for nothing")
			return nil, nil
		})
		if err != nil || hitIDs(out) != hitIDs(few) {
			t.Errorf("%d: %v, %v", len(few), out, err)
		}
	}
}

// TestRerankScores: the candidates share the scores that they had, whatever the model says.
func TestRerankScores(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		given := rapid.SliceOfN(rapid.Float64Range(-1, 1), 2, 8).Draw(rt, "had")
		slices.SortFunc(given, func(a, b float64) int { return cmp.Compare(b, a) })
		var in []subjects.MemoryHit
		for i, s := range given {
			reasons := make([]subjects.MemoryReason, 2, 3) // the third is somebody else's
			reasons[0], reasons[1] = subjects.MemoryReason{What: "name", Value: s / 2},
				subjects.MemoryReason{What: "words", Value: s / 2}
			in = append(in, subjects.MemoryHit{Entry: subjects.MemoryEntry{Position: i}, Score: s, Reasons: reasons})
		}
		said := rapid.SliceOfN(rapid.Float64Range(-10, 10), len(in), len(in)).Draw(rt, "said")
		out, err := recall.Rerank(t.Context(), "q", in, func(context.Context, string, []string) ([]float64, error) {
			return said, nil
		})
		if err != nil {
			rt.Fatal(err)
		}
		for i, c := range out {
			if in[i].Reasons[:3][2].What != "" {
				rt.Errorf("%+v was written behind what was given", in[i].Reasons[:3][2])
			}
			if !addUp(subjects.MemoryHit{Score: c.Score, Reasons: c.Reasons}) || math.Abs(c.Score-given[i]) > 1e-9 ||
				i > 0 && said[c.Entry.Position] > said[out[i-1].Entry.Position] {
				rt.Errorf("%d: %+v", i, c)
			}
		}
	})
}
