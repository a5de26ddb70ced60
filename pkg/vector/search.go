package vector

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// Nearest is the k keys with the largest cosine to q, best first, ties by smaller key. keep, when not nil, says which
// keys count; it must be quick. It may be called from other goroutines, but never from two at once.
func (x *Index) Nearest(q []float32, k int, keep func(key uint64) bool) ([]Hit, error) {
	p, err := x.prepare(q)
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
	if g := r.gen; g != nil && !g.off.Load() && x.few(k)*4 <= r.live() {
		return x.filtered(r, g, p, k, keep), nil
	}
	return x.exact(r, p, k, keep, x.threads), nil
}

// Cosines scores these keys (those not there are left out), in the order given.
func (x *Index) Cosines(q []float32, keys []uint64) ([]Hit, error) {
	p, err := x.prepare(q)
	if err != nil {
		return nil, err
	}
	for {
		places := make([]place, len(keys))
		there := make([]bool, len(keys))
		for i, key := range keys {
			places[i], there[i] = x.table.get(key)
		}
		// A place is in the table only while its row is in a snapshot. So the snapshot is taken after it, and only a
		// segment that was rewritten between the two is not found.
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

func (x *Index) cosines(r reading, q *query, keys []uint64, places []place, there []bool) (hits []Hit, ok bool) {
	// By segment, so that each is one call.
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

// clamp takes away what rounding adds to a cosine.
func clamp(c float32) float32 { return max(-1, min(1, c)) }

// candidate is a row that may be among the nearest.
type candidate struct {
	upper float32 // its cosine is at most that
	view  int32
	row   uint32
}

// scratch is what one thread of a search works with.
type scratch struct {
	block     block
	floor     floor
	found     []candidate
	which     []uint32
	cosines   []float32
	dist      []uint16
	histogram []uint32
}

// unitRows is what a thread of a search takes at a time.
const unitRows = 4 * blockRows

// units is the work of a search, for threads to take from.
type units struct {
	reading
	next atomic.Int64
}

// take is some rows of a view that nobody has taken; n is 0 when there are none left.
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

// inParallel calls do for n workers, one of them here. A panic comes out here too.
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
	// The memory that the others read must not go away under them, not even when this one breaks.
	defer func() {
		wait.Wait()
		if p := broken.Load(); p != nil {
			panic(*p)
		}
	}()
	do(0)
}

// workers is how many threads are worth it for so many bytes.
func (x *Index) workers(bytes, most int) int { return max(1, min(most, bytes/x.tuning.threadBytes)) }

// exact reads all rows.
func (x *Index) exact(r reading, q *query, k int, keep func(uint64) bool, threads int) []Hit {
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
			// From the first that cannot be among the best, none can.
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

// score adds the true cosines of these rows to best.
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

// scoreRows adds the true cosines of these rows of a view to best.
func (x *Index) scoreRows(v *view, q *query, which []uint32, w *scratch, best *top) {
	w.cosines = slices.Grow(w.cosines[:0], len(which))[:len(which)]
	x.tuning.kernels.score(&v.seg.rows, q, which, w.cosines)
	for j, row := range which {
		best.add(Hit{v.seg.keys[row], clamp(w.cosines[j])})
	}
}

// exactSearch is what the threads of a search share.
type exactSearch struct {
	x *Index
	units
	q    *query
	k    int
	keep func(uint64) bool

	asking sync.Mutex    // keep is asked by one thread at a time
	floor  atomic.Uint32 // bits of a cosine that k rows reach for certain
}

// work scans until nothing is left.
func (s *exactSearch) work(w *scratch) {
	// At first every row counts, so begin with few.
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

// scan looks at one block.
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
		raise(&s.floor, w.floor.values[0])
	}
}

// raise makes v what is in bits, unless that is more.
func raise(bits *atomic.Uint32, v float32) {
	for {
		old := bits.Load()
		if math.Float32frombits(old) >= v || bits.CompareAndSwap(old, math.Float32bits(v)) {
			return
		}
	}
}
