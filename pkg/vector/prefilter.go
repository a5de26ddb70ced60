package vector

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// enough is the minimum recall of the prefilter.
const enough = 0.99

// remembered is how many of the latest measurements are averaged.
const remembered = 64

// centreRows is how many rows are averaged for the centre.
const centreRows = 4096

// generation is one build of the prefilter: a centre, relative to which the sign bits of all rows are taken.
type generation struct {
	centre  []float32     // infinity in the padding, so that its bits are 0 in every row
	built   int           // number of rows when it was built
	off     atomic.Bool   // recall too low
	proven  atomic.Bool   // recall on live queries is high enough
	queries atomic.Uint64 // since it was proven

	mu         sync.Mutex
	rows, live tally
}

// tally holds the latest recall measurements.
type tally struct {
	found, wanted [remembered]int
	n             int
}

func (t *tally) add(found, wanted int) {
	t.found[t.n%remembered], t.wanted[t.n%remembered] = found, wanted
	t.n++
}

// recall returns the average recall of the last measurements, from 0 to 1, and how many they are; 1 and 0 when there
// are none.
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

// verdict describes the measured recall for display: that on live queries, or on rows while there are no queries or
// when only the rows are below enough. Recall on rows can only disqualify the prefilter.
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

// Path describes the current search method for display: exact or with the 1-bit prefilter, its measured recall, and the
// instruction set. The text is not meant to be parsed.
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

// schedulePrefilter schedules a build of the prefilter when there are enough rows, and a rebuild when half as many were
// added or removed as it was built with. It does nothing while one is scheduled or with the option [Off]. The caller
// holds mu.
func (x *Index) schedulePrefilter() {
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

// build computes the sign bits of all rows, installs the new generation and measures it. It runs concurrently with
// writers and readers. With too few rows, without memory or when the index closes, there is no prefilter afterwards.
func (x *Index) build() {
	r := x.read()
	planes := map[*segment]*plane{}
	defer func() {
		r.drop()
		for _, p := range planes {
			p.mem.drop() // a snapshot that uses it holds its own reference
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
	if x.installGeneration(g, planes) {
		x.measure(g)
	}
}

// bits writes the missing sign bits of the first count rows of a segment to its plane in planes, which it creates if
// needed. It reports false when there is no memory or the index is closing.
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

// installGeneration installs g as the current generation, with the sign bits of rows that were added meanwhile. It
// reports false when g is unusable, which removes the prefilter, or the index is closed. After a lack of memory the
// next build waits for half as many rows more.
func (x *Index) installGeneration(g *generation, planes map[*segment]*plane) bool {
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
		usable = usable && x.bits(planes, v.seg, v.seg.used, g) // rows added meanwhile
		v.bits = planes[v.seg]
	}
	if !usable {
		e.s.removePrefilter()
		if g.centre != nil { // enough rows, so memory was short
			x.notBefore = g.built + g.built/2
		}
		g = nil
	}
	x.publish(e.s)
	x.latest.Store(g)
	return usable
}

// removePrefilter removes the prefilter from an unpublished snapshot.
func (s *snapshot) removePrefilter() {
	s.gen = nil
	for i := range s.views {
		s.views[i].bits = nil
	}
}

// centre returns the mean of a sample of about centreRows rows, with infinity beyond dims: there a sign bit is never
// set.
func (x *Index) centre(r reading) []float32 {
	sum, n := make([]float64, x.stride), 0
	step := max(1, r.live()/centreRows)
	r.eachSample(step, func(v *view, row int) bool {
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

// eachSample calls f for every step-th live row, from 1, until f returns false. v is valid while r is held.
func (r reading) eachSample(step int, f func(v *view, row int) bool) {
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

// measureK is how many neighbors of a row are searched for.
const measureK = 20

// measure searches for the neighbors of sample rows, as a first measurement of a new generation, and turns g off when
// its recall is too low. It does nothing when g is not current. Live queries decide: they need not be distributed like
// rows.
func (x *Index) measure(g *generation) {
	r := x.read()
	defer r.drop()
	if r.gen != g {
		return
	}
	step := max(1, r.live()/x.tuning.measureRows)
	r.eachSample(step, func(v *view, row int) bool {
		if x.background.stopped() || g.off.Load() {
			return false
		}
		q := make([]float32, x.dims)
		for i := range q {
			q[i] = float32(code(v.seg.high[row*x.stride+i], v.seg.low[row*x.stride+i]))
		}
		p, err := x.prepareQuery(q)
		if err != nil {
			return false // a row is never zero
		}
		self := v.seg.keys[row]
		other := func(key uint64) bool { return key != self } // a row always finds itself
		k := min(measureK, r.live()-1)
		x.compare(r, g, p, k, other, 1, &g.rows)
		return true
	})
	x.judgePrefilter(g, &g.rows, 1)
}

// compare searches exactly and with the prefilter, records the recall in to, which belongs to g, and returns the exact
// hits. Without hits it records nothing. An equal cosine counts as found.
func (x *Index) compare(r reading, g *generation, q *query, k int, keep func(uint64) bool, threads int,
	to *tally,
) []Hit {
	right := x.searchExact(r, q, k, keep, threads)
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

// judgePrefilter turns the prefilter off when its recall is below enough, given at least least measurements. Live
// queries with a sufficient recall prove it. by is g.live or g.rows. It does not wait for the release of memory.
func (x *Index) judgePrefilter(g *generation, by *tally, least int) {
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

// dropBits releases the memory of the sign bits of g. It does nothing when g is not current.
func (x *Index) dropBits(g *generation) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.current.Load().gen != g {
		return
	}
	e := edit{x: x}
	e.begin()
	e.s.removePrefilter()
	x.publish(e.s)
}
