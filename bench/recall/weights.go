package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// weights are settings of the recall in memory.yaml by name.
type weights map[string]float64

// String returns w as the flag takes it, sorted by name.
func (w weights) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(w)) {
		parts = append(parts, name+"="+strconv.FormatFloat(w[name], 'g', -1, 64))
	}
	return cmp.Or(strings.Join(parts, ","), "as shipped")
}

// settings is w as a part of memory.yaml; "" for none.
func (w weights) settings() string {
	if len(w) == 0 {
		return ""
	}
	return "weights: {" + strings.ReplaceAll(strings.ReplaceAll(w.String(), "=", ": "), ",", ", ") + "}\n"
}

// parseGrid reads "words=0.6/0.8,neighbours=0.5" as every combination of the values. "" is one combination, as shipped.
func parseGrid(s string) ([]weights, error) {
	grid := []weights{{}}
	if s == "" {
		return grid, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		name, values, ok := strings.Cut(part, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("-weights: %q is not name=value or name=value/value", part)
		}
		var next []weights
		for v := range strings.SplitSeq(values, "/") {
			n, err := strconv.ParseFloat(v, 64)
			if err != nil {
				return nil, fmt.Errorf("-weights: the value of %s: %w", name, err)
			}
			for _, w := range grid {
				w = maps.Clone(w)
				w[name] = n
				next = append(next, w)
			}
		}
		grid = next
	}
	return grid, nil
}

// fold is one round of cross-validation: the conversation that was left out, and the index of the weights that were
// best on the others.
type fold struct {
	conversation string
	best         int
}

// crossValidate chooses, for each conversation, the outcome with the highest recall at 10 over the questions of all
// others. Of equal ones the first is chosen. It returns the folds and the mean recall at 5, 10 and 20 and MRR over the
// conversations left out, each with the weights chosen without it.
func crossValidate(conversations []string, outcomes []*outcome) (folds []fold, mean [4]float64) {
	for _, left := range conversations {
		best, high := 0, -1.0
		for i, o := range outcomes {
			var sum figures
			for conv, f := range o.byConversation {
				if conv != left {
					sum.questions += f.questions
					sum.at[1] += f.at[1]
				}
			}
			if r := sum.recall(1); r > high {
				best, high = i, r
			}
		}
		folds = append(folds, fold{left, best})
		if f := outcomes[best].byConversation[left]; f != nil {
			for i, v := range []float64{f.recall(0), f.recall(1), f.recall(2), f.mrr()} {
				mean[i] += v / float64(len(conversations))
			}
		}
	}
	return folds, mean
}
