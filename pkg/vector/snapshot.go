package vector

import "sync/atomic"

// snapshot is what a reader sees: segments, and which of their rows are dead. It is never changed once it is published,
// except that rows may still be appended to the last segment.
type snapshot struct {
	refs    atomic.Int64
	views   []view
	retired []view // rewritten, but [table] may still point there
	gen     *generation
	closed  bool
}

// view is a segment in a snapshot.
type view struct {
	seg   *segment
	count int      // of rows; the last view may have got more
	dead  []uint64 // a bit for each that does not count any more; nil = none
	deads int
	bits  *plane // nil without a prefilter
}

func (v *view) isDead(row uint32) bool {
	return v.dead != nil && v.dead[row>>6]&(1<<(row&63)) != 0
}

// regions calls f for all memory that s needs.
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

// hold counts a reader in, unless s is gone already.
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

// reading is a snapshot in use by a reader, who calls drop when done.
type reading struct {
	*snapshot
	last int // rows of the last view
}

// read takes what there is now. It waits for nobody: it only tries again when a writer published something meanwhile.
//
// Rows that replace none are appended without a new snapshot. A row that replaces one is published with the snapshot in
// which the other is dead, and only then counted in its segment: who counts it there with an older snapshot in hand
// notices below, so that nobody ever sees both or neither.
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

// count is how many rows the view i has for this reader.
func (r reading) count(i int) int {
	if i == len(r.views)-1 {
		return r.last
	}
	return r.views[i].count
}

// total is the number of rows of all views, dead ones too.
func (r reading) total() (n int) {
	for i := range r.views {
		n += r.count(i)
	}
	return n
}

// live is how many rows count.
func (r reading) live() int {
	n := r.total()
	for i := range r.views {
		n -= r.views[i].deads
	}
	return n
}

// find is the view of a place, nil when it is not in this snapshot.
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

// publish makes s what readers see from now on.
func (x *Index) publish(s *snapshot) {
	s.refs.Store(1)
	s.regions((*region).hold)
	x.current.Swap(s).drop()
}
