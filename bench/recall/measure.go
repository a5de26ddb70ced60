package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// depth is how many entries are asked for.
const depth = 20

// figures are sums over questions; see the methods for means in percent.
type figures struct {
	questions  int
	at         [3]float64 // recall at 5, 10, 20: share of the evidence that is found
	reciprocal float64    // of the rank of the first evidence, 0 when none is found
}

var depths = [3]int{5, 10, depth}

// add counts one question. ranks are the ranks of its evidence from 0, negative when not found.
func (f *figures) add(ranks []int) {
	f.questions++
	best := -1
	for _, r := range ranks {
		if r < 0 {
			continue
		}
		for i, k := range depths {
			if r < k {
				f.at[i] += 1 / float64(len(ranks))
			}
		}
		if best < 0 || r < best {
			best = r
		}
	}
	if best >= 0 {
		f.reciprocal += 1 / float64(best+1)
	}
}

func (f figures) recall(i int) float64 { return 100 * f.at[i] / float64(max(1, f.questions)) }
func (f figures) mrr() float64         { return 100 * f.reciprocal / float64(max(1, f.questions)) }

// outcome is a ranking of every question by one method.
type outcome struct {
	name           string
	all            figures
	byCategory     map[string]*figures
	byConversation map[string]*figures
	times          []time.Duration // of each search; nil for the baselines
}

// evaluate asks rank for every question and compares with the evidence. rank returns the position of a turn in the
// result by its index; a turn that is missing was not found.
func (d *dataset) evaluate(name string, rank func(i int, q question) (map[int]int, error)) (*outcome, error) {
	o := &outcome{name: name, byCategory: map[string]*figures{}, byConversation: map[string]*figures{}}
	for i, q := range d.questions {
		found, err := rank(i, q)
		if err != nil {
			return nil, fmt.Errorf("asking %q: %w", q.text, err)
		}
		ranks := make([]int, len(q.evidence))
		for n, e := range q.evidence {
			ranks[n] = -1
			if at, ok := found[e]; ok {
				ranks[n] = at
			}
		}
		o.all.add(ranks)
		addTo(o.byCategory, q.category, ranks)
		addTo(o.byConversation, q.conv, ranks)
	}
	return o, nil
}

func addTo(sums map[string]*figures, key string, ranks []int) {
	if sums[key] == nil {
		sums[key] = &figures{}
	}
	sums[key].add(ranks)
}

// positions maps the indexes in an order to their positions.
func positions(order []int) map[int]int {
	out := make(map[int]int, len(order))
	for at, i := range order {
		out[i] = at
	}
	return out
}

// percentile returns the p-th percentile of times, in milliseconds.
func percentile(times []time.Duration, p int) float64 {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	return float64(sorted[min(len(sorted)-1, len(sorted)*p/100)].Microseconds()) / 1000
}

// printTable prints the outcomes beside each other, recall in percent.
func printTable(w io.Writer, all ...*outcome) {
	categories := slices.Sorted(maps.Keys(all[0].byCategory))
	fmt.Fprintf(w, "| | R@5 | R@10 | R@20 | MRR | %s | p50 | p95 |\n", "R@10 "+strings.Join(categories, " | R@10 "))
	fmt.Fprintln(w, "|---|---|---|---|---|"+strings.Repeat("---|", len(categories))+"---|---|")
	for _, o := range all {
		fmt.Fprintf(w, "| %s | %.1f | %.1f | %.1f | %.1f |", o.name, o.all.recall(0), o.all.recall(1), o.all.recall(2),
			o.all.mrr())
		for _, c := range categories {
			fmt.Fprintf(w, " %.1f |", o.byCategory[c].recall(1))
		}
		if o.times == nil {
			fmt.Fprintln(w, " | |")
		} else {
			fmt.Fprintf(w, " %.1f ms | %.1f ms |\n", percentile(o.times, 50), percentile(o.times, 95))
		}
	}
}
