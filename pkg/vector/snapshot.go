package vector

import "sync/atomic"

// snapshot is the state that a reader sees: segments and their dead rows. It is immutable once published, except that
// rows may be appended to the last segment.
type snapshot struct {
	refs    atomic.Int64
	views   []view
	retired []view // rewritten segments that [table] may still refer to
	gen     *generation
	closed  bool
}

// view is a segment in a snapshot.
type view struct {
	seg   *segment
	count int      // of rows; the last view may have more since
	dead  []uint64 // bitmap of dead rows; nil = none
	deads int
	bits  *plane // nil without a prefilter
}

func (v *view) isDead(row uint32) bool {
	return v.dead != nil && v.dead[row>>6]&(1<<(row&63)) != 0
}

// regions calls f for all memory that s refers to, once for each reference that s holds.
func (s *snapshot) regions(f func(*region)) {
	for _, list := range [][]view{s.views, s.retired} {
		for i := range list {
			f(list[i].seg.mem)
			if list[i].bits != nil {
				f(list[i].bits.mem)
			}
		}
	}
}

// hold adds a reference. It reports false when s was already released.
func (s *snapshot) hold() bool {
	for {
		n := s.refs.Load()
		if n == 0 {
			return false
		}
		if s.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (s *snapshot) drop() {
	if s.refs.Add(-1) == 0 {
		s.regions((*region).drop)
	}
}

// reading is a snapshot held by a reader, which must call drop.
type reading struct {
	*snapshot
	last int // rows of the last view
}

// read holds the current snapshot. It is lock-free: it retries only when a writer published a snapshot meanwhile.
//
// New keys are appended without a new snapshot. A row that replaces another is published with the snapshot in which the
// other is dead, and only then counted in its segment: a reader that counts it with an older snapshot notices that
// below, so no reader sees both rows or neither.
func (x *Index) read() reading {
	for {
		s := x.current.Load()
		if !s.hold() {
			continue
		}
		last := 0
		if n := len(s.views); n > 0 {
			last = max(s.views[n-1].count, int(s.views[n-1].seg.published.Load()))
		}
		if x.current.Load() == s {
			return reading{s, last}
		}
		s.drop()
	}
}

// count returns how many rows of view i this reader sees.
func (r reading) count(i int) int {
	if i == len(r.views)-1 {
		return r.last
	}
	return r.views[i].count
}

// total returns the number of rows of all views, dead ones included.
func (r reading) total() (n int) {
	for i := range r.views {
		n += r.count(i)
	}
	return n
}

// live returns the number of rows that are not dead.
func (r reading) live() int {
	n := r.total()
	for i := range r.views {
		n -= r.views[i].deads
	}
	return n
}

// find returns the view of a place, also of a retired segment, or nil when it is not in this snapshot.
func (s *snapshot) find(at place) *view {
	for _, list := range [][]view{s.views, s.retired} {
		for i := range list {
			if list[i].seg.id == at.segment() {
				return &list[i]
			}
		}
	}
	return nil
}

// publish makes s the current snapshot and drops the former one.
func (x *Index) publish(s *snapshot) {
	s.refs.Store(1)
	s.regions((*region).hold)
	x.current.Swap(s).drop()
}
