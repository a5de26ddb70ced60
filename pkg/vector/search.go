package vector

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// Nearest returns the k keys with the largest cosine to q, best first, ties by smaller key; fewer when there are fewer,
// nil when k is 0 or less. keep, when not nil, filters keys; it must be fast, and is called from several goroutines but
// never concurrently. It rejects a q of other dimensions, zero or not finite. With the prefilter a few of the best may
// be missing.
func (x *Index) Nearest(q []float32, k int, keep func(key uint64) bool) ([]Hit, error) {
	p, err := x.prepareQuery(q)
	if err != nil {
		return nil, err
	}
	r := x.read()
	defer r.drop()
	if r.closed {
		return nil, ErrClosed
	}
	if k = min(k, r.live()); k <= 0 {
		return nil, nil
	}
	if g := r.gen; g != nil && !g.off.Load() && x.candidateCount(k)*4 <= r.live() {
		return x.searchPrefiltered(r, g, p, k, keep), nil
	}
	return x.searchExact(r, p, k, keep, x.threads), nil
}

// Cosines scores keys in the order given, a repeated one each time. Keys that are not in the index are left out. It
// rejects a q of other dimensions, zero or not finite.
func (x *Index) Cosines(q []float32, keys []uint64) ([]Hit, error) {
	p, err := x.prepareQuery(q)
	if err != nil {
		return nil, err
	}
	for {
		places := make([]place, len(keys))
		there := make([]bool, len(keys))
		for i, key := range keys {
			places[i], there[i] = x.table.get(key)
		}
		// A place is in the table only while its row is in a snapshot. The snapshot is read after it, so that only a
		// segment rewritten in between is not found; then it retries.
		r := x.read()
		if r.closed {
			r.drop()
			return nil, ErrClosed
		}
		hits, ok := x.cosines(r, p, keys, places, there)
		r.drop()
		if ok {
			return hits, nil
		}
	}
}

// cosines scores the rows at places; there says which keys have one. It reports false when a place is not in the
// snapshot, and the caller must look the places up again.
func (x *Index) cosines(r reading, q *query, keys []uint64, places []place, there []bool) (hits []Hit, ok bool) {
	// One kernel call per segment.
	wanted := map[*segment][]int{}
	for i := range keys {
		if !there[i] {
			continue
		}
		v := r.find(places[i])
		if v == nil {
			return nil, false
		}
		wanted[v.seg] = append(wanted[v.seg], i)
	}
	cosines := make([]float32, len(keys))
	for seg, which := range wanted {
		rows, out := make([]uint32, len(which)), make([]float32, len(which))
		for j, i := range which {
			rows[j] = places[i].row()
		}
		x.tuning.kernels.score(&seg.rows, q, rows, out)
		for j, i := range which {
			cosines[i] = clamp(out[j])
		}
	}
	for i, key := range keys {
		if there[i] {
			hits = append(hits, Hit{key, cosines[i]})
		}
	}
	return hits, true
}

// clamp limits a cosine to [-1, 1] after rounding.
func clamp(c float32) float32 { return max(-1, min(1, c)) }

// Visit calls visit for every key whose cosine to q may be at least floor, with an upper bound of that cosine, in no
// order. No key whose cosine reaches floor is left out; the bound exceeds the cosine by the error of the first pass at
// most. It never uses the prefilter. visit is called from several goroutines but never concurrently, and must not call
// the index. Visit rejects a q of other dimensions, zero or not finite.
func (x *Index) Visit(q []float32, floor float32, visit func(key uint64, upper float32)) error {
	p, err := x.prepareQuery(q)
	if err != nil {
		return err
	}
	r := x.read()
	defer r.drop()
	if r.closed {
		return ErrClosed
	}
	all := units{reading: r}
	var visiting sync.Mutex
	inParallel(x.workers(r.total()*x.stride, x.threads), func(int) {
		w := x.scratch.Get().(*scratch)
		defer x.scratch.Put(w)
		for view, first, n := all.take(); n > 0; view, first, n = all.take() {
			for end := first + n; first < end; first += blockRows {
				x.visitBlock(&r.views[view], p, first, min(blockRows, end-first), floor, w, &visiting, visit)
			}
		}
	})
	return nil
}

// visitBlock visits n rows of a view, first and following, at most blockRows.
func (x *Index) visitBlock(v *view, q *query, first, n int, floor float32, w *scratch, visiting *sync.Mutex,
	visit func(key uint64, upper float32),
) {
	n = x.tuning.kernels.scan(&v.seg.rows, first, n, q, floor-q.off, &w.block)
	if n == 0 {
		return
	}
	visiting.Lock()
	defer visiting.Unlock()
	for i, row := range w.block.which[:n] {
		if row += uint32(first); !v.isDead(row) {
			visit(v.seg.keys[row], clamp(w.block.upper[i]+q.off))
		}
	}
}

// candidate is a row that may be among the nearest.
type candidate struct {
	upper float32 // upper bound of its cosine
	view  int32
	row   uint32
}

// scratch holds the reusable buffers of one search thread.
type scratch struct {
	block     block
	floor     floor
	found     []candidate
	which     []uint32
	cosines   []float32
	dist      []uint16
	histogram []uint32
}

// unitRows is how many rows a search thread takes at a time.
const unitRows = 4 * blockRows

// units distributes the rows of a search among threads.
type units struct {
	reading
	next atomic.Int64
}

// take returns the next rows to scan; n is 0 when none are left. It is safe for concurrent use.
func (u *units) take() (view, first, n int) {
	unit := int(u.next.Add(1) - 1)
	for i := range u.views {
		count := u.count(i)
		if all := (count + unitRows - 1) / unitRows; unit >= all {
			unit -= all
			continue
		}
		return i, unit * unitRows, min(unitRows, count-unit*unitRows)
	}
	return 0, 0, 0
}

// inParallel calls do for n workers, the first in this goroutine, and returns when all are done. It re-panics a
// worker's panic.
func inParallel(n int, do func(worker int)) {
	var wait sync.WaitGroup
	var broken atomic.Pointer[any]
	for i := 1; i < n; i++ {
		wait.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					broken.Store(&p)
				}
			}()
			do(i)
		})
	}
	// Also on a panic here: the others still read memory that the caller releases.
	defer func() {
		wait.Wait()
		if p := broken.Load(); p != nil {
			panic(*p)
		}
	}()
	do(0)
}

// workers returns how many threads to use for scanning so many bytes, at most most.
func (x *Index) workers(bytes, most int) int { return max(1, min(most, bytes/x.tuning.threadBytes)) }

// searchExact scans all rows, prunes those whose upper bound is below the k-th best lower bound, and scores the rest by
// descending upper bound until no other can be among the best k. It returns these, best first, fewer when keep accepts
// fewer. k must be at least 1; keep nil keeps all.
func (x *Index) searchExact(r reading, q *query, k int, keep func(uint64) bool, threads int) []Hit {
	s := exactSearch{x: x, units: units{reading: r}, q: q, k: k, keep: keep}
	s.floor.Store(math.Float32bits(float32(math.Inf(-1))))
	all := make([]*scratch, x.workers(r.total()*x.stride, threads))
	for i := range all {
		all[i] = x.scratch.Get().(*scratch)
		all[i].floor = floor{k: k, values: all[i].floor.values[:0]}
		all[i].found = all[i].found[:0]
	}
	inParallel(len(all), func(i int) { s.work(all[i]) })

	w := all[0]
	for _, other := range all[1:] {
		for _, v := range other.floor.values {
			w.floor.add(v)
		}
		w.found = append(w.found, other.found...)
	}
	if w.floor.full() {
		w.found = slices.DeleteFunc(w.found, func(c candidate) bool { return c.upper < w.floor.values[0] })
	}
	slices.SortFunc(w.found, func(a, b candidate) int { return cmp.Compare(b.upper, a.upper) })
	best := top{k: k}
	for rest, batch := w.found, max(2*k, 64); len(rest) > 0; batch *= 2 {
		n := min(batch, len(rest))
		if best.full() {
			// Candidates are sorted by upper bound: none after the first below worst can be among the best.
			worst := best.worst()
			n, _ = slices.BinarySearchFunc(rest[:n], worst, func(c candidate, worst float32) int {
				if c.upper < worst {
					return 1
				}
				return -1
			})
			if n == 0 {
				break
			}
		}
		x.score(r, q, rest[:n], w, &best)
		rest = rest[n:]
	}
	for _, w := range all {
		x.scratch.Put(w)
	}
	return best.sorted()
}

// score adds the candidates to best with their exact cosines. Their order does not matter.
func (x *Index) score(r reading, q *query, of []candidate, w *scratch, best *top) {
	for i := range r.views {
		w.which = w.which[:0]
		for _, c := range of {
			if int(c.view) == i {
				w.which = append(w.which, c.row)
			}
		}
		x.scoreRows(&r.views[i], q, w.which, w, best)
	}
}

// scoreRows adds rows of a view to best with their exact cosines.
func (x *Index) scoreRows(v *view, q *query, which []uint32, w *scratch, best *top) {
	w.cosines = slices.Grow(w.cosines[:0], len(which))[:len(which)]
	x.tuning.kernels.score(&v.seg.rows, q, which, w.cosines)
	for j, row := range which {
		best.add(Hit{v.seg.keys[row], clamp(w.cosines[j])})
	}
}

// exactSearch is the shared state of the threads of an exact search.
type exactSearch struct {
	x *Index
	units
	q    *query
	k    int
	keep func(uint64) bool

	asking sync.Mutex    // serializes calls of keep
	floor  atomic.Uint32 // float32 bits of a cosine that at least k rows reach
}

// work scans units until none are left. Each worker needs a scratch w of its own, with a floor of k values.
func (s *exactSearch) work(w *scratch) {
	// Blocks are small until there is a floor, because every row passes until then.
	size := min(blockRows, max(128, 2*s.k))
	for {
		view, first, n := s.take()
		if n == 0 {
			return
		}
		for end := first + n; first < end; first += size {
			if w.floor.full() {
				size = blockRows
			}
			s.scan(w, view, first, min(size, end-first))
		}
	}
}

// scan adds the candidates of n rows of a view, first and following, to w and raises the shared floor. Dead rows and
// those that keep rejects are no candidates.
func (s *exactSearch) scan(w *scratch, view, first, n int) {
	v := &s.views[view]
	floor := math.Float32frombits(s.floor.Load())
	n = s.x.tuning.kernels.scan(&v.seg.rows, first, n, s.q, floor-s.q.off, &w.block)
	if n == 0 {
		return
	}
	if s.keep != nil {
		s.asking.Lock()
		defer s.asking.Unlock()
	}
	for i, row := range w.block.which[:n] {
		row += uint32(first)
		if v.isDead(row) || (s.keep != nil && !s.keep(v.seg.keys[row])) {
			continue
		}
		up := w.block.upper[i]
		w.floor.add(up - 2*v.seg.err[row] - s.q.off)
		w.found = append(w.found, candidate{up + s.q.off, int32(view), row})
	}
	if w.floor.full() {
		raiseFloor(&s.floor, w.floor.values[0])
	}
}

// raiseFloor atomically sets bits to those of v if v is larger.
func raiseFloor(bits *atomic.Uint32, v float32) {
	for {
		old := bits.Load()
		if math.Float32frombits(old) >= v || bits.CompareAndSwap(old, math.Float32bits(v)) {
			return
		}
	}
}
