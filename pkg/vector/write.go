package vector

import (
	"fmt"
	"math"
	"slices"
)

// Add puts in the vector of each key; vectors are one after the other. A key that is there is replaced, and of a key that
// is given twice the last counts. All of them are there for readers at once, or with an error none.
func (x *Index) Add(keys []uint64, vectors []float32) error {
	if len(vectors) != len(keys)*x.dims {
		return fmt.Errorf("%w: %d numbers for %d vectors of %d", ErrDims, len(vectors), len(keys), x.dims)
	}
	if len(keys) == 0 {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.current.Load().closed {
		return ErrClosed
	}
	b, err := x.write(keys, vectors)
	if err != nil {
		return err
	}
	if err := x.commit(b); err != nil {
		return err
	}
	x.changed(len(keys))
	return nil
}

// run is rows that stand one after the other in a segment.
type run struct {
	seg      *segment
	first, n int
}

// batch is what one Add wrote, before readers see it.
type batch struct {
	tail  *segment // the segment that was there to write to; nil when there was none
	fresh []*segment
	runs  []run
}

// abandon forgets what was written.
func (b *batch) abandon() {
	if b.tail != nil {
		b.tail.used = int(b.tail.published.Load())
	}
	b.done()
}

// done gives the new segments into the hands of the snapshots that hold them, if any.
func (b *batch) done() {
	for _, s := range b.fresh {
		s.mem.drop()
	}
}

// write puts the vectors behind what readers see.
func (x *Index) write(keys []uint64, vectors []float32) (*batch, error) {
	b := new(batch)
	if v := x.current.Load().views; len(v) > 0 {
		b.tail = v[len(v)-1].seg
	}
	seg := b.tail
	again := repeated(keys)
	for i := 0; i < len(keys); {
		if again != nil && again[i] {
			i++
			continue
		}
		if seg == nil || seg.used == seg.room {
			var err error
			if seg, err = x.addSegment(x.roomFor(len(keys) - i)); err != nil {
				b.abandon()
				return nil, err
			}
			b.fresh = append(b.fresh, seg)
		}
		n := 1
		for n < min(len(keys)-i, seg.room-seg.used) && (again == nil || !again[i+n]) {
			n++
		}
		if bad, err := x.quantize(seg, vectors[i*x.dims:(i+n)*x.dims], n); err != nil {
			b.abandon()
			return nil, fmt.Errorf("vector of key %d: %w", keys[i+bad], err)
		}
		copy(seg.keys[seg.used:], keys[i:i+n])
		b.runs = append(b.runs, run{seg, seg.used, n})
		seg.used += n
		i += n
	}
	return b, nil
}

// repeated marks the keys that come again later; nil when none does.
func repeated(keys []uint64) []bool {
	if len(keys) < 2 {
		return nil
	}
	sorted := keys
	if !slices.IsSorted(keys) {
		sorted = slices.Clone(keys)
		slices.Sort(sorted)
	}
	if !twice(sorted) {
		return nil
	}
	out := make([]bool, len(keys))
	seen := make(map[uint64]bool, len(keys))
	for i := len(keys) - 1; i >= 0; i-- {
		out[i] = seen[keys[i]]
		seen[keys[i]] = true
	}
	return out
}

// twice reports whether a sorted list has something twice.
func twice(sorted []uint64) bool {
	for i := 1; i < len(sorted); i++ {
		if sorted[i] == sorted[i-1] {
			return true
		}
	}
	return false
}

// roomFor is the room of a segment that n rows are to be written to now, and more later. It doubles with the index.
func (x *Index) roomFor(n int) int {
	return max(x.tuning.firstRows, min(x.tuning.mostRows, max(n, x.Len())))
}

func (x *Index) addSegment(room int) (*segment, error) {
	x.nextID++
	return newSegment(x.nextID, room, x.stride, &x.mapped)
}

// quantize writes n vectors behind the rows that seg has. Of an error it says at which vector.
func (x *Index) quantize(seg *segment, vectors []float32, n int) (bad int, err error) {
	for done := 0; done < n; {
		done += x.tuning.kernels.quantize(vectors[done*x.dims:], x.dims, &seg.rows, seg.used+done, n-done)
		if done == n {
			break
		}
		v := vectors[done*x.dims : (done+1)*x.dims]
		if _, _, err := extent(v); err != nil {
			return done, err
		}
		// So small that one divided by it would be infinite. Its direction is as good as any.
		large := make([]float32, len(v))
		for i, f := range v {
			large[i] = float32(math.Ldexp(float64(f), 100))
		}
		x.tuning.kernels.quantize(large, x.dims, &seg.rows, seg.used+done, 1)
		done++
	}
	return 0, nil
}

// commit lets readers see what was written, and nothing else of the same keys.
func (x *Index) commit(b *batch) error {
	e := edit{x: x}
	defer e.done()
	for _, r := range b.runs {
		for _, key := range r.seg.keys[r.first : r.first+r.n] {
			if at, ok := x.table.get(key); ok {
				e.kill(at)
			}
		}
	}
	for _, seg := range b.fresh {
		if err := e.append(seg); err != nil {
			b.abandon()
			return err
		}
	}
	if e.s == nil {
		now := x.current.Load()
		x.bitsOf(&now.views[len(now.views)-1], now.gen)
	} else {
		for i := range e.s.views {
			v := &e.s.views[i]
			x.bitsOf(v, e.s.gen)
			v.count = v.seg.used
		}
		x.publish(e.s)
	}
	for _, r := range b.runs {
		r.seg.published.Store(int64(r.seg.used))
	}
	for _, r := range b.runs {
		for i, key := range r.seg.keys[r.first : r.first+r.n] {
			x.table.put(key, placeOf(r.seg.id, r.first+i))
		}
	}
	b.done()
	return nil
}

// bitsOf writes the bits of those rows of v that have none yet.
func (x *Index) bitsOf(v *view, g *generation) {
	if v.bits == nil {
		return
	}
	if n := v.seg.used - v.bits.used; n > 0 {
		x.tuning.kernels.signs(&v.seg.rows, g.centre, v.bits.used, n, v.bits.bits)
		v.bits.used = v.seg.used
	}
}

// Remove takes keys out, and returns how many were there.
func (x *Index) Remove(keys ...uint64) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.current.Load().closed {
		return 0
	}
	e := edit{x: x}
	gone := make(map[uint64]bool, len(keys))
	for _, key := range keys {
		if at, ok := x.table.get(key); ok && !gone[key] {
			gone[key] = true
			e.kill(at)
		}
	}
	if len(gone) == 0 {
		return 0
	}
	x.publish(e.s)
	for key := range gone {
		x.table.remove(key)
	}
	x.changed(len(gone))
	return len(gone)
}

// changed looks after the index when n rows came or went.
func (x *Index) changed(n int) {
	// Without memory to rewrite segments the dead rows stay where they are. They are dead all the same.
	_ = x.compact()
	x.changes += n
	x.tend()
}

// edit is the next snapshot in the making; s is nil while nothing differs from the one before.
type edit struct {
	x      *Index
	s      *snapshot
	own    []bool   // of a view: its marks of the dead are not shared with the snapshot before
	planes []*plane // made here
}

// begin makes e a copy of what readers see.
func (e *edit) begin() {
	if e.s != nil {
		return
	}
	now := e.x.current.Load()
	e.s = &snapshot{views: slices.Clone(now.views), gen: now.gen}
	if n := len(e.s.views); n > 0 {
		e.s.views[n-1].count = int(e.s.views[n-1].seg.published.Load())
	}
	e.own = make([]bool, len(e.s.views))
}

// kill marks the row at a place as dead.
func (e *edit) kill(at place) {
	e.begin()
	i := slices.IndexFunc(e.s.views, func(v view) bool { return v.seg.id == at.segment() })
	v := &e.s.views[i]
	if !e.own[i] {
		marks := make([]uint64, (v.seg.room+63)/64)
		copy(marks, v.dead)
		v.dead, e.own[i] = marks, true
	}
	v.dead[at.row()>>6] |= 1 << (at.row() & 63)
	v.deads++
}

// append puts a segment behind the others, with room for bits if the others have them.
func (e *edit) append(seg *segment) error {
	e.begin()
	v := view{seg: seg, count: seg.used}
	if e.s.gen != nil {
		var err error
		if v.bits, err = newPlane(seg, &e.x.mapped); err != nil {
			return err
		}
		e.planes = append(e.planes, v.bits)
	}
	e.s.views = append(e.s.views, v)
	e.own = append(e.own, true)
	return nil
}

// done gives the new planes into the hands of the snapshots that hold them, if any.
func (e *edit) done() {
	for _, p := range e.planes {
		p.mem.drop()
	}
}
