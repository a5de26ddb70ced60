package vector

import (
	"fmt"
	"math"
	"slices"
)

// Add stores the vector of each key; vectors are concatenated in the order of keys. An existing key is replaced, and of
// a key given twice the last vector wins. Readers see all of them at once, or none on an error: a wrong number of
// components, a vector that is zero or not finite, or lack of memory.
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
	x.maintain(len(keys))
	return nil
}

// run is a range of consecutive rows of a segment.
type run struct {
	seg      *segment
	first, n int
}

// batch is what one Add wrote before it is published.
type batch struct {
	tail  *segment // the existing segment that rows are appended to; nil when there is none
	fresh []*segment
	runs  []run
}

// abandon discards the unpublished rows.
func (b *batch) abandon() {
	if b.tail != nil {
		b.tail.used = int(b.tail.published.Load())
	}
	b.done()
}

// done drops the writer's references to the new segments. A published snapshot holds its own.
func (b *batch) done() {
	for _, s := range b.fresh {
		s.mem.drop()
	}
}

// write quantizes the vectors into rows that readers do not see yet, of a repeated key only the last. After an error,
// for an invalid vector or lack of memory, the rows are given back. The caller holds mu and commits the batch.
func (x *Index) write(keys []uint64, vectors []float32) (*batch, error) {
	b := new(batch)
	if v := x.current.Load().views; len(v) > 0 {
		b.tail = v[len(v)-1].seg
	}
	seg := b.tail
	again := markRepeated(keys)
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

// markRepeated marks the keys that occur again later, by index; nil when none does. It does not change keys.
func markRepeated(keys []uint64) []bool {
	if len(keys) < 2 {
		return nil
	}
	sorted := keys
	if !slices.IsSorted(keys) {
		sorted = slices.Clone(keys)
		slices.Sort(sorted)
	}
	if !hasDuplicates(sorted) {
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

// hasDuplicates reports whether a sorted list has duplicates.
func hasDuplicates(sorted []uint64) bool {
	for i := 1; i < len(sorted); i++ {
		if sorted[i] == sorted[i-1] {
			return true
		}
	}
	return false
}

// roomFor returns the capacity of a new segment for n rows now and more later. It grows with the index.
func (x *Index) roomFor(n int) int {
	return max(x.tuning.firstRows, min(x.tuning.mostRows, max(n, x.Len())))
}

func (x *Index) addSegment(room int) (*segment, error) {
	x.nextID++
	return newSegment(x.nextID, room, x.stride, &x.mapped)
}

// quantize appends n vectors to seg without counting them as used; seg must have room. On an error, bad is the index of
// the rejected vector, which is zero or not finite.
func (x *Index) quantize(seg *segment, vectors []float32, n int) (bad int, err error) {
	for done := 0; done < n; {
		done += x.tuning.kernels.quantize(vectors[done*x.dims:], x.dims, &seg.rows, seg.used+done, n-done)
		if done == n {
			break
		}
		v := vectors[done*x.dims : (done+1)*x.dims]
		if _, _, err := measureExtent(v); err != nil {
			return done, err
		}
		// So small that its reciprocal would be infinite: scaled up, which keeps its direction.
		large := make([]float32, len(v))
		for i, f := range v {
			large[i] = float32(math.Ldexp(float64(f), 100))
		}
		x.tuning.kernels.quantize(large, x.dims, &seg.rows, seg.used+done, 1)
		done++
	}
	return 0, nil
}

// commit publishes a batch and marks the former rows of its keys dead. On an error, for lack of memory, the batch is
// abandoned and readers see no change. The caller holds mu.
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
		x.fillSigns(&now.views[len(now.views)-1], now.gen)
	} else {
		for i := range e.s.views {
			v := &e.s.views[i]
			x.fillSigns(v, e.s.gen)
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

// fillSigns writes the missing sign bits of the rows of v, relative to the centre of g; without a prefilter it does
// nothing.
func (x *Index) fillSigns(v *view, g *generation) {
	if v.bits == nil {
		return
	}
	if n := v.seg.used - v.bits.used; n > 0 {
		x.tuning.kernels.signs(&v.seg.rows, g.centre, v.bits.used, n, v.bits.bits)
		v.bits.used = v.seg.used
	}
}

// Remove deletes keys and returns how many existed, 0 after Close. A key given twice counts once.
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
	x.maintain(len(gone))
	return len(gone)
}

// maintain compacts the index and schedules the prefilter after n rows were added or removed. The caller holds mu.
func (x *Index) maintain(n int) {
	// It fails only for lack of memory; then dead rows keep their space.
	_ = x.compact()
	x.changes += n
	x.schedulePrefilter()
}

// edit builds the next snapshot; s is nil while nothing differs from the current one.
type edit struct {
	x      *Index
	s      *snapshot
	own    []bool   // by view: its bitmap of dead rows is not shared with the current snapshot
	planes []*plane // created by this edit
}

// begin copies the current snapshot into e, once; further calls do nothing. The caller holds mu.
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

// kill marks the row at a place as dead. The place must be in the current snapshot and its row alive.
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

// append adds a segment as the last one, with a plane of sign bits if there is a prefilter. It fails when there is no
// memory for that plane.
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

// done drops the writer's references to the new planes. A published snapshot holds its own.
func (e *edit) done() {
	for _, p := range e.planes {
		p.mem.drop()
	}
}
