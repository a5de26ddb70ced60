package vector

import "slices"

// candidateCount returns how many rows pass the prefilter for k hits.
func (x *Index) candidateCount(k int) int { return max(x.tuning.candidates, 16*k) }

// searchPrefiltered searches with the prefilter once its recall is proven. Until then, and for one in measureEvery
// queries, it searches exactly and measures the prefilter.
func (x *Index) searchPrefiltered(r reading, g *generation, q *query, k int, keep func(uint64) bool) []Hit {
	if g.proven.Load() && g.queries.Add(1)%uint64(x.tuning.measureEvery) != 0 {
		return x.hamming(r, g, q, k, keep, x.threads)
	}
	out := x.compare(r, g, q, k, keep, x.threads, &g.live)
	x.judgePrefilter(g, &g.live, x.tuning.measureFirst)
	return out
}

// hamming returns the k best of the rows with the smallest Hamming distance to the query, with exact cosines, best
// first; rows beyond these candidates are not found. keep nil keeps all. Every view of r must have the sign bits of g.
func (x *Index) hamming(r reading, g *generation, q *query, k int, keep func(uint64) bool, threads int) []Hit {
	bits := make([]uint64, x.stride/64)
	for i := range x.dims {
		if q.unit[i] > g.centre[i] {
			bits[i/64] |= 1 << (i % 64)
		}
	}
	// The distances of all views are concatenated, each view aligned to a group of eight.
	starts, total := make([]int, len(r.views)), 0
	for i := range r.views {
		starts[i] = total
		total += (r.count(i) + 7) / 8 * 8
	}
	all := make([]*scratch, x.workers(total*x.stride/8, threads))
	for i := range all {
		all[i] = x.scratch.Get().(*scratch)
		all[i].histogram = slices.Grow(all[i].histogram[:0], x.stride+1)[:x.stride+1]
		clear(all[i].histogram)
	}
	w := all[0]
	w.dist = slices.Grow(w.dist[:0], total)[:total]
	u := units{reading: r}
	inParallel(len(all), func(i int) {
		for {
			view, first, n := u.take()
			if n == 0 {
				return
			}
			words := r.views[view].bits.bits[first*len(bits):]
			x.tuning.kernels.hamming(words, len(bits), n, bits, w.dist[starts[view]+first:], all[i].histogram)
		}
	})
	for _, other := range all[1:] {
		for d, n := range other.histogram {
			w.histogram[d] += n
		}
		x.scratch.Put(other)
	}
	hits := x.scoreClosest(r, q, k, keep, w, starts)
	x.scratch.Put(w)
	return hits
}

// scoreClosest scores rows by ascending distance until candidateCount(k) live rows that keep accepts were scored, or
// none are left, and returns the best k. w holds the distances and their histogram, starts where those of each view
// begin.
func (x *Index) scoreClosest(r reading, q *query, k int, keep func(uint64) bool, w *scratch, starts []int) []Hit {
	best, want, seen := top{k: k}, x.candidateCount(k), 0
	// Each round takes more rows than the one before, because dead rows and those that keep rejects do not count.
	for from, round := 0, want; from <= x.stride && seen < want; round *= 4 {
		to, in := from, 0
		for ; to < x.stride; to++ {
			if in += int(w.histogram[to]); in >= round {
				break
			}
		}
		for i := range r.views {
			v := &r.views[i]
			count := r.count(i)
			w.which = slices.Grow(w.which[:0], count+slack)[:count+slack]
			n := x.tuning.kernels.gather(w.dist[starts[i]:starts[i]+count], uint16(from), uint16(to), w.which)
			counts := w.which[:0]
			for _, row := range w.which[:n] {
				if !v.isDead(row) && (keep == nil || keep(v.seg.keys[row])) {
					counts = append(counts, row)
				}
			}
			seen += len(counts)
			x.scoreRows(v, q, counts, w, &best)
		}
		from = to + 1
	}
	return best.sorted()
}
