package vector

import (
	"sync"
	"sync/atomic"
)

// Cosines scores keys in the order given, a repeated one each time. Keys that are not in the index are left out. It
// rejects a q of other dimensions, zero or not finite.
func (x *Index) Cosines(q []float32, keys []uint64) ([]Hit, error) {
	p, err := x.prepareQuery(q)
	if err != nil {
		return nil, err
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.closed {
		return nil, ErrClosed
	}
	hits := make([]Hit, 0, len(keys))
	rows, which := make([][]uint32, len(x.segments)), make([][]int, len(x.segments)) // one kernel call per segment
	for _, key := range keys {
		if at, there := x.places[key]; there {
			rows[at.segment] = append(rows[at.segment], at.row)
			which[at.segment] = append(which[at.segment], len(hits))
			hits = append(hits, Hit{Key: key})
		}
	}
	cosines := make([]float32, len(hits))
	for i, seg := range x.segments {
		x.tuning.kernels.score(&seg.rows, p, rows[i], cosines)
		for j, hit := range which[i] {
			hits[hit].Cosine = clamp(cosines[j])
		}
	}
	return hits, nil
}

// Similarity returns the cosine of the vectors of two keys, 0 when one of them has none.
func (x *Index) Similarity(a, b uint64) float32 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	p, one := x.places[a]
	q, two := x.places[b]
	if !one || !two {
		return 0
	}
	s, t := x.segments[p.segment], x.segments[q.segment]
	i, j, dot := int(p.row)*x.stride, int(q.row)*x.stride, int64(0)
	for d := range x.dims {
		dot += int64(code(s.high[i+d], s.low[i+d])) * int64(code(t.high[j+d], t.low[j+d]))
	}
	return clamp(float32(dot) * s.scale[p.row] * t.scale[q.row])
}

// clamp limits a cosine to [-1, 1] after rounding.
func clamp(c float32) float32 { return max(-1, min(1, c)) }

// Bounds returns an upper bound of the cosine of every key to q, in no order. It exceeds the cosine by the error of the
// high bytes at most. It rejects a q of other dimensions, zero or not finite.
func (x *Index) Bounds(q []float32) ([]Hit, error) {
	p, err := x.prepareQuery(q)
	if err != nil {
		return nil, err
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.closed {
		return nil, ErrClosed
	}
	out := make([]Hit, len(x.places))
	type block struct {
		seg   *segment
		first int
	}
	var blocks []block
	for _, seg := range x.segments {
		for first := 0; first < seg.used; first += blockRows {
			blocks = append(blocks, block{seg, first})
		}
	}
	var next atomic.Int64
	scan := func() {
		var dots [blockRows]int32
		for i := next.Add(1) - 1; i < int64(len(blocks)); i = next.Add(1) - 1 {
			seg, first := blocks[i].seg, blocks[i].first
			n := min(blockRows, seg.used-first)
			x.tuning.kernels.dots(&seg.rows, first, n, p, dots[:])
			p.bound(seg, first, dots[:n], out[seg.first+first:])
		}
	}
	var wait sync.WaitGroup
	for range min(x.tuning.threads, len(out)*x.stride/x.tuning.threadBytes) - 1 {
		wait.Go(scan)
	}
	scan()
	wait.Wait()
	return out, nil
}

// bound writes the upper bounds of the rows of seg from first on, whose high bytes have these dot products.
func (q *query) bound(seg *segment, first int, dots []int32, out []Hit) {
	keys, scale, err := seg.keys[first:], seg.scale[first:], seg.err[first:]
	for i, d := range dots {
		out[i] = Hit{keys[i], clamp(float32(d)*(scale[i]*q.factor) + err[i] + q.off)}
	}
}
