package recall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"conclave/subjects"
)

// errScores means that the scores of a model are unusable.
var errScores = errors.New("the model's scores cannot be used")

// Rerank reorders hits by the scores that a model gives their names and descriptions, higher is better. Only the order
// of the scores counts: the hits share the values that they have, and equal ones keep their order. Each gets a reason,
// and the reasons still add up. in is not changed; less than two hits are returned without calling score.
//
// When score fails, or does not return one finite score for each text, Rerank returns the hits unchanged with the
// error.
func Rerank(ctx context.Context, query string, in []subjects.MemoryHit, score func(ctx context.Context, query string,
	texts []string) ([]float64, error),
) ([]subjects.MemoryHit, error) {
	if len(in) < 2 {
		return in, nil
	}
	texts := make([]string, len(in))
	for i, h := range in {
		texts[i] = h.Entry.Name + "\n" + h.Entry.Description
	}
	scores, err := score(ctx, query, texts)
	switch {
	case err != nil:
		return in, fmt.Errorf("reranking: %w", err)
	case len(scores) != len(in):
		return in, fmt.Errorf("%w: %d for %d texts", errScores, len(scores), len(in))
	}
	for _, s := range scores {
		if math.IsNaN(s) || math.IsInf(s, 0) {
			return in, fmt.Errorf("%w: %v is not finite", errScores, s)
		}
	}
	order := make([]int, len(in))
	values := make([]float64, len(in))
	for i, h := range in {
		order[i], values[i] = i, h.Score
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	slices.SortFunc(values, func(a, b float64) int { return cmp.Compare(b, a) })
	out := make([]subjects.MemoryHit, len(in))
	for i, was := range order {
		h := in[was]
		h.Reasons = append(slices.Clone(h.Reasons), subjects.MemoryReason{
			What: whatRerank, Value: values[i] - h.Score, Text: fmt.Sprintf("the model put it in place %d, before it "+
				"was %d", i+1, was+1),
		})
		h.Score = sumReasons(h.Reasons)
		out[i] = h
	}
	return out, nil
}
