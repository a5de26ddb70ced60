package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/blevesearch/snowballstem"
	"github.com/blevesearch/snowballstem/english"

	"conclave/pkg/model"
)

// Parameters of BM25 for short texts.
const (
	bm25K = 0.9
	bm25B = 0.4
)

// stopWords are left out of a question, unless it has no others.
var stopWords = func() map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(`a an the and or but if so of to in on at for with from by as about is are was
	were be been am have has had do did does can could would will not no yes i me my you your he him his she her it we
	our they their this that these those what how when where who why which`) {
		set[w] = true
	}
	return set
}()

// splitStems returns the stems of the words of s, those of stop words only when withStops.
func splitStems(s string, withStops bool) []string {
	var out []string
	for _, w := range strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		if withStops || !stopWords[w] {
			env := snowballstem.NewEnv(w)
			english.Stem(env)
			out = append(out, env.Current())
		}
	}
	return out
}

// bm25 ranks texts by the words of a question.
type bm25 struct {
	postings map[string]map[int]int // how often a stem is in a text, by text
	lengths  []float64
	mean     float64
}

func newBM25(texts []string) *bm25 {
	b := &bm25{postings: map[string]map[int]int{}, lengths: make([]float64, len(texts))}
	for i, t := range texts {
		stems := splitStems(t, true)
		b.lengths[i] = float64(len(stems))
		b.mean += b.lengths[i] / float64(len(texts))
		for _, w := range stems {
			if b.postings[w] == nil {
				b.postings[w] = map[int]int{}
			}
			b.postings[w][i]++
		}
	}
	return b
}

// rank returns the indexes of the best texts, best first, at most most. Texts without a word of the question are left
// out.
func (b *bm25) rank(question string, most int) []int {
	words := splitStems(question, false)
	if len(words) == 0 {
		words = splitStems(question, true)
	}
	slices.Sort(words)
	scores := make([]float64, len(b.lengths))
	for _, w := range slices.Compact(words) {
		in := b.postings[w]
		idf := math.Log(1 + (float64(len(b.lengths)-len(in))+0.5)/(float64(len(in))+0.5))
		for i, n := range in {
			tf := float64(n)
			scores[i] += idf * tf * (bm25K + 1) / (tf + bm25K*(1-bm25B+bm25B*b.lengths[i]/b.mean))
		}
	}
	return rankScores(scores, most, 0)
}

// rankScores returns the indexes of the highest scores above floor, best first, at most most; equal ones in order.
func rankScores(scores []float64, most int, floor float64) []int {
	var order []int
	for i, s := range scores {
		if s > floor {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	return order[:min(most, len(order))]
}

// embedBatch is how many texts are embedded in one request.
const embedBatch = 64

// embedAll returns a vector of length 1 for each text.
func embedAll(ctx context.Context, e model.Embedder, name string, texts []string) ([][]float32, error) {
	var out [][]float32
	for part := range slices.Chunk(texts, embedBatch) {
		v, err := e.Embed(ctx, name, part)
		if err != nil {
			return nil, fmt.Errorf("embedding for the cosine baseline: %w", err)
		}
		out = append(out, v.Values...)
	}
	for _, v := range out {
		length := math.Sqrt(dot(v, v))
		for i := range v {
			v[i] /= float32(max(length, 1e-9))
		}
	}
	return out, nil
}

func dot(a, b []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// rankCosine returns the indexes of the nearest vectors, nearest first, at most most.
func rankCosine(vectors [][]float32, q []float32, most int) []int {
	scores := make([]float64, len(vectors))
	for i, v := range vectors {
		scores[i] = dot(v, q)
	}
	return rankScores(scores, most, math.Inf(-1))
}
