package vector

import (
	"cmp"
	"slices"
)

// compact rewrites segments of which more than a quarter is dead, and more than fewDead rows, together with other small
// ones. It does nothing when there is none. It fails only for lack of memory, and then changes nothing. The caller
// holds mu.
func (x *Index) compact() error {
	views := x.current.Load().views
	var which []int
	total := 0
	for i := range views {
		if v := &views[i]; v.deads > x.tuning.fewDead && v.deads*4 > v.seg.used {
			which = append(which, i)
			total += v.seg.used - v.deads
		}
	}
	if which == nil {
		return nil
	}
	for i := range views[:len(views)-1] {
		n := views[i].seg.used - views[i].deads
		if n <= x.tuning.mostRows/8 && total+n <= x.tuning.mostRows && !slices.Contains(which, i) {
			which = append(which, i)
			total += n
		}
	}
	return x.rewriteSegments(which, total)
}

// rewriteSegments moves the live rows of the views with these indexes, total of them, to new segments. Readers see
// either the old rows or the new ones. On an error, for lack of memory, nothing changes. The caller holds mu.
func (x *Index) rewriteSegments(which []int, total int) error {
	now := x.current.Load()
	e := edit{x: x, s: &snapshot{gen: now.gen}}
	defer e.done()
	var last []view // the segment that rows are appended to, which must stay the last
	for i, v := range now.views {
		switch {
		case slices.Contains(which, i):
			v.count = v.seg.used
			e.s.retired = append(e.s.retired, v)
		case i == len(now.views)-1:
			last = []view{v}
		default:
			e.s.views = append(e.s.views, v)
		}
	}
	slices.SortFunc(e.s.retired, func(a, b view) int { return cmp.Compare(a.seg.id, b.seg.id) })

	b := new(batch)
	defer b.done()
	if err := x.copyLive(b, e.s.retired, total, last == nil); err != nil {
		return err
	}
	for _, seg := range b.fresh {
		seg.published.Store(int64(seg.used))
		if err := e.append(seg); err != nil {
			return err
		}
		x.fillSigns(&e.s.views[len(e.s.views)-1], e.s.gen)
	}
	if last != nil {
		last[0].count = last[0].seg.used
	}
	e.s.views = append(e.s.views, last...)
	x.publish(e.s)
	for _, seg := range b.fresh {
		for i, key := range seg.keys[:seg.used] {
			x.table.put(key, placeOf(seg.id, i))
		}
	}
	// The table no longer refers to the old segments.
	x.publish(&snapshot{views: e.s.views, gen: e.s.gen})
	return nil
}

// copyLive copies the live rows of views, total of them, to new segments of b. With spare, these have room for later
// rows too. On an error b holds the segments so far, which the caller drops.
func (x *Index) copyLive(b *batch, views []view, total int, spare bool) error {
	for i := range views {
		for _, r := range liveRuns(&views[i]) {
			for r.n > 0 {
				n := len(b.fresh)
				if n == 0 || b.fresh[n-1].used == b.fresh[n-1].room {
					room := min(total, x.tuning.mostRows)
					if spare {
						room = x.roomFor(total)
					}
					seg, err := x.addSegment(room)
					if err != nil {
						return err
					}
					b.fresh = append(b.fresh, seg)
					n++
				}
				r = b.fresh[n-1].take(r, &total)
			}
		}
	}
	return nil
}

// liveRuns returns the live rows of v as runs of neighbouring rows, in order; nil when all are dead.
func liveRuns(v *view) (out []run) {
	for i := 0; i < v.seg.used; i++ {
		if v.isDead(uint32(i)) {
			continue
		}
		if n := len(out); n > 0 && out[n-1].first+out[n-1].n == i {
			out[n-1].n++
		} else {
			out = append(out, run{v.seg, i, 1})
		}
	}
	return out
}

// take copies as many rows of r as fit, subtracts their number from left, and returns the rest of r, of 0 rows when all
// fit. The rows must have the same stride. Readers must not see s yet.
func (s *segment) take(r run, left *int) run {
	n := min(r.n, s.room-s.used)
	from, to := r.first, s.used
	copy(s.high[to*s.stride:], r.seg.high[from*s.stride:(from+n)*s.stride])
	copy(s.low[to*s.stride:], r.seg.low[from*s.stride:(from+n)*s.stride])
	copy(s.scale[to:], r.seg.scale[from:from+n])
	copy(s.err[to:], r.seg.err[from:from+n])
	copy(s.keys[to:], r.seg.keys[from:from+n])
	s.used += n
	*left -= n
	return run{r.seg, r.first + n, r.n - n}
}
