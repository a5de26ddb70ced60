package vector

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// enough is the part of the exact answer that the prefilter must find to be used.
const enough = 0.99

// remembered is how many measured queries count.
const remembered = 64

// centreRows is how many rows the centre is the mean of.
const centreRows = 4096

// generation is the prefilter as it was built once: a centre, and the bits of all rows by it.
type generation struct {
	centre  []float32     // infinity behind the dimensions, so that there every row has the bit 0
	built   int           // rows there were
	off     atomic.Bool   // it found too little
	proven  atomic.Bool   // it found enough, for queries
	queries atomic.Uint64 // since then

	mu         sync.Mutex
	rows, live tally
}

// tally is what was found of what there was.
type tally struct {
	found, wanted [remembered]int
	n             int
}

func (t *tally) add(found, wanted int) {
	t.found[t.n%remembered], t.wanted[t.n%remembered] = found, wanted
	t.n++
}

// recall is the part that was found, and of how many queries.
func (t *tally) recall() (float64, int) {
	found, wanted := 0, 0
	for i, w := range t.wanted {
		wanted += w
		found += t.found[i]
	}
	if wanted == 0 {
		return 1, 0
	}
	return float64(found) / float64(wanted), min(t.n, remembered)
}

// verdict says how good the prefilter is. Rows can only speak against it.
func (g *generation) verdict() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	onQueries, queries := g.live.recall()
	onRows, rows := g.rows.recall()
	if rows > 0 && (queries == 0 || onRows < enough && onQueries >= enough) {
		return fmt.Sprintf("recall %.3f on %d rows", onRows, rows)
	}
	return fmt.Sprintf("recall %.3f on %d live queries", onQueries, queries)
}

// Path says which path a search takes now, in words for a person.
func (x *Index) Path() string {
	level := x.tuning.kernels.level()
	g := x.latest.Load()
	switch {
	case g == nil:
		return "exact, int8 first pass, " + level
	case g.off.Load():
		return fmt.Sprintf("exact, int8 first pass, %s; 1-bit prefilter switched off: %s", level, g.verdict())
	case !g.proven.Load():
		return fmt.Sprintf("exact, int8 first pass, %s; 1-bit prefilter on trial: %s", level, g.verdict())
	}
	return fmt.Sprintf("1-bit prefilter (%s), %s", g.verdict(), level)
}

// tend has the prefilter built when there are enough rows, and again when half as many have come or gone as there were.
// The caller is a writer.
func (x *Index) tend() {
	if x.prefilter != Auto {
		return
	}
	g := x.latest.Load()
	due := x.Len() >= max(x.tuning.prefilterAt, x.notBefore)
	if g != nil {
		due = x.changes*2 >= g.built
	}
	if due && !x.building {
		x.building = true
		x.background.start(x.build)
	}
}

// build makes the bits of all rows, and measures what they are good for. It works beside writers and readers.
func (x *Index) build() {
	r := x.read()
	planes := map[*segment]*plane{}
	defer func() {
		r.drop()
		for _, p := range planes {
			p.mem.drop() // the snapshots hold it, if any
		}
	}()
	g := &generation{}
	if r.live() >= x.tuning.prefilterAt {
		g.centre = x.centre(r)
		for i := range r.views {
			if !x.bits(planes, r.views[i].seg, r.count(i), g) {
				break
			}
		}
	}
	if x.replace(g, planes) {
		x.measure(g)
	}
}

// bits writes those bits of a segment that are missing, and reports false when that is not possible or not wanted.
func (x *Index) bits(planes map[*segment]*plane, seg *segment, count int, g *generation) bool {
	p := planes[seg]
	if p == nil {
		var err error
		if p, err = newPlane(seg, &x.mapped); err != nil {
			return false
		}
		planes[seg] = p
	}
	for p.used < count {
		if x.background.stopped() {
			return false
		}
		n := min(unitRows, count-p.used)
		x.tuning.kernels.signs(&seg.rows, g.centre, p.used, n, p.bits)
		p.used += n
	}
	return true
}

// replace puts g in the place of the generation before. It reports whether there is anything to measure.
func (x *Index) replace(g *generation, planes map[*segment]*plane) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.building, x.changes = false, 0
	now := x.current.Load()
	if now.closed {
		return false
	}
	e := edit{x: x}
	e.begin()
	e.s.gen = g
	g.built = x.Len()
	usable := g.centre != nil
	for i := range e.s.views {
		v := &e.s.views[i]
		usable = usable && x.bits(planes, v.seg, v.seg.used, g) // those that came meanwhile
		v.bits = planes[v.seg]
	}
	if !usable {
		e.s.strip()
		if g.centre != nil { // there were enough rows, so it was not possible
			x.notBefore = g.built + g.built/2
		}
		g = nil
	}
	x.publish(e.s)
	x.latest.Store(g)
	return usable
}

// strip takes the prefilter out of a snapshot that is not published yet.
func (s *snapshot) strip() {
	s.gen = nil
	for i := range s.views {
		s.views[i].bits = nil
	}
}

// centre is the mean of rows from everywhere.
func (x *Index) centre(r reading) []float32 {
	sum, n := make([]float64, x.stride), 0
	step := max(1, r.live()/centreRows)
	r.some(step, func(v *view, row int) bool {
		high, low := v.seg.high[row*x.stride:], v.seg.low[row*x.stride:]
		for i := range x.dims {
			sum[i] += float64(code(high[i], low[i])) * float64(v.seg.scale[row])
		}
		n++
		return true
	})
	out := make([]float32, x.stride)
	for i := range out {
		out[i] = float32(sum[i] / float64(max(n, 1)))
		if i >= x.dims {
			out[i] = float32(math.Inf(1))
		}
	}
	return out
}

// some calls f for one live row in every step of them, until f has seen enough.
func (r reading) some(step int, f func(v *view, row int) bool) {
	n := 0
	for i := range r.views {
		v := &r.views[i]
		for row := range r.count(i) {
			if v.isDead(uint32(row)) {
				continue
			}
			if n++; n%step == 0 && !f(v, row) {
				return
			}
		}
	}
}

// measureK is how many neighbours of a row are looked for.
const measureK = 20

// measure looks for neighbours of rows, as the first word on a new generation. Queries say more: they need not look like rows.
func (x *Index) measure(g *generation) {
	r := x.read()
	defer r.drop()
	if r.gen != g {
		return
	}
	step := max(1, r.live()/x.tuning.measureRows)
	r.some(step, func(v *view, row int) bool {
		if x.background.stopped() || g.off.Load() {
			return false
		}
		q := make([]float32, x.dims)
		for i := range q {
			q[i] = float32(code(v.seg.high[row*x.stride+i], v.seg.low[row*x.stride+i]))
		}
		p, err := x.prepare(q)
		if err != nil {
			return false // a row is never zero
		}
		self := v.seg.keys[row]
		other := func(key uint64) bool { return key != self } // it would be found by anything
		k := min(measureK, r.live()-1)
		x.compare(r, g, p, k, other, 1, &g.rows)
		return true
	})
	x.judge(g, &g.rows, 1)
}

// compare searches both ways, notes how much of the exact answer the other found, and returns the exact one.
func (x *Index) compare(r reading, g *generation, q *query, k int, keep func(uint64) bool, threads int, to *tally) []Hit {
	right := x.exact(r, q, k, keep, threads)
	if len(right) == 0 {
		return nil
	}
	fast := x.hamming(r, g, q, k, keep, threads)
	found := 0
	for _, h := range fast {
		if h.Cosine >= right[len(right)-1].Cosine {
			found++
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	to.add(found, len(right))
	return right
}

// judge decides on the prefilter when there are at least so many measurements: below 0.99 it is off, and queries above it
// prove it.
func (x *Index) judge(g *generation, by *tally, least int) {
	g.mu.Lock()
	recall, _ := by.recall()
	n := by.n
	g.mu.Unlock()
	switch {
	case n < least:
	case recall >= enough:
		if by == &g.live {
			g.proven.Store(true)
		}
	case g.off.CompareAndSwap(false, true):
		x.background.start(func() { x.dropBits(g) })
	}
}

// dropBits gives the memory of the bits back.
func (x *Index) dropBits(g *generation) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.current.Load().gen != g {
		return
	}
	e := edit{x: x}
	e.begin()
	e.s.strip()
	x.publish(e.s)
}
