package main

import (
	"cmp"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// How many rows each stage leaves.
const (
	names = 20
	top   = 5
)

// mixName and mixDescription are what the cosines of a name and of a description count in the second stage, for everyone.
const (
	mixName        = 0.4
	mixDescription = 0.6
)

// scored is a row and its score.
type scored struct {
	row   int
	score float64
}

// better orders by score, and by row where it is equal.
func better(a, b scored) int {
	return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.row, b.row))
}

// best keeps the best of what it is shown, in order.
type best struct {
	k    int
	rows []scored
}

func (b *best) show(s scored) {
	if len(b.rows) == b.k && better(s, b.rows[b.k-1]) >= 0 {
		return
	}
	at, _ := slices.BinarySearchFunc(b.rows, s, better)
	if len(b.rows) == b.k {
		b.rows = b.rows[:b.k-1]
	}
	b.rows = slices.Insert(b.rows, at, s)
}

// tie is how near two cosines are that single precision cannot tell apart: either row is right then.
const tie = 1e-6

// spare is how many rows more than asked for the exact search keeps, so that those that tie with the last one are known.
const spare = 12

// truth is what an exact search finds: for each query the names' best and some more, scanned in double precision over every
// row.
func truth(w *world, queries [][]float32) [][]scored {
	wide := make([]float64, len(queries)*dims)
	for j, q := range queries {
		widen(wide[j*dims:(j+1)*dims], q)
	}
	const block = 256
	var next atomic.Int64
	var wg sync.WaitGroup
	parts := make([][]best, runtime.GOMAXPROCS(0))
	for t := range parts {
		parts[t] = make([]best, len(queries))
		for j := range parts[t] {
			parts[t][j].k = names + spare
		}
		wg.Go(func() {
			row, narrow := make([]float64, dims), make([]float32, dims)
			for {
				first := int(next.Add(block)) - block
				if first >= w.n {
					return
				}
				for i := first; i < min(first+block, w.n); i++ {
					w.name(i, narrow)
					widen(row, narrow)
					show(parts[t], wide, row, i)
				}
			}
		})
	}
	wg.Wait()
	out := make([][]scored, len(queries))
	for j := range out {
		all := best{k: names + spare}
		for _, part := range parts {
			for _, s := range part[j].rows {
				all.show(s)
			}
		}
		out[j] = all.rows
	}
	return out
}

// widen writes v to out in double precision and with the length one.
func widen(out []float64, v []float32) {
	var sum float64
	for i, x := range v {
		out[i] = float64(x)
		sum += out[i] * out[i]
	}
	scale := 1 / math.Sqrt(sum)
	for i := range out {
		out[i] *= scale
	}
}

// show scores one row for all queries, four at a time: what is loaded of the row is then used four times.
func show(all []best, queries, row []float64, i int) {
	j := 0
	for ; j+4 <= len(all); j += 4 {
		q := queries[j*dims : (j+4)*dims]
		a, b, c, d := q[:dims], q[dims:2*dims], q[2*dims:3*dims], q[3*dims:4*dims]
		var s0, s1, s2, s3 float64
		for k, x := range row[:dims] {
			s0 += x * a[k]
			s1 += x * b[k]
			s2 += x * c[k]
			s3 += x * d[k]
		}
		all[j].show(scored{i, s0})
		all[j+1].show(scored{i, s1})
		all[j+2].show(scored{i, s2})
		all[j+3].show(scored{i, s3})
	}
	for ; j < len(all); j++ {
		all[j].show(scored{i, dot(row, queries[j*dims:(j+1)*dims])})
	}
}

func dot(a, b []float64) float64 {
	var s float64
	for i, x := range a {
		s += x * b[i]
	}
	return s
}

// answer is what has to be found for one query.
type answer struct {
	k     int
	exact map[int]float64 // scores of the rows that may be found
	sure  []int           // those that must be
}

// answerOf are the k best of all, which is in order, and what ties with the last of them.
func answerOf(all []scored, k int) answer {
	k = min(k, len(all))
	a := answer{k: k, exact: map[int]float64{}}
	last := all[k-1].score
	for _, s := range all {
		if s.score >= last-tie {
			a.exact[s.row] = s.score
		}
		if s.score > last+tie {
			a.sure = append(a.sure, s.row)
		}
	}
	return a
}

// judge says how many of what was found is right, whether that is all of it, and whether it is in order.
func (a answer) judge(found []int) (hits int, same, ordered bool) {
	seen := map[int]bool{}
	ordered = true
	for i, row := range found {
		score, right := a.exact[row]
		if right && !seen[row] {
			hits++
		}
		seen[row] = true
		if i > 0 && score > a.exact[found[i-1]]+tie {
			ordered = false
		}
	}
	same = hits == a.k && len(found) == a.k
	for _, row := range a.sure {
		same = same && seen[row]
	}
	return min(hits, a.k), same, same && ordered
}

// staged is what the second stage has to leave of the first's.
func staged(w *world, query []float32, first []scored) answer {
	q, d, narrow := make([]float64, dims), make([]float64, dims), make([]float32, dims)
	widen(q, query)
	all := best{k: names + spare}
	last := first[names-1].score
	for _, s := range first {
		if s.score < last-tie {
			break
		}
		w.description(s.row, narrow)
		widen(d, narrow)
		all.show(scored{s.row, mixName*s.score + mixDescription*dot(q, d)})
	}
	return answerOf(all.rows, top)
}

func rows(all []scored) []int {
	out := make([]int, len(all))
	for i, s := range all {
		out[i] = s.row
	}
	return out
}
