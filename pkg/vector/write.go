package vector

import (
	"fmt"
	"math"
)

// Add stores the vector of a key in place of a former one. It changes nothing on an error: a wrong number of
// components, a vector that is zero or not finite, or lack of memory.
func (x *Index) Add(key uint64, v []float32) error {
	if err := Check(v, x.dims); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return ErrClosed
	}
	at, there := x.places[key]
	if !there {
		var err error
		if at, err = x.appendRow(key); err != nil {
			return err
		}
	}
	rows := &x.segments[at.segment].rows
	if x.tuning.kernels.quantize(v, x.dims, rows, int(at.row), 1) == 1 {
		return nil
	}
	// So small that its reciprocal would be infinite: scaled up, which keeps its direction.
	large := make([]float32, len(v))
	for i, f := range v {
		large[i] = float32(math.Ldexp(float64(f), 100))
	}
	x.tuning.kernels.quantize(large, x.dims, rows, int(at.row), 1)
	return nil
}

// appendRow adds a row for a key that has none, which the caller writes. New segments grow with the index. It fails
// only for lack of memory. The caller holds mu.
func (x *Index) appendRow(key uint64) (place, error) {
	n := len(x.segments)
	if n == 0 || x.segments[n-1].used == x.segments[n-1].room {
		seg, err := newSegment(len(x.places), max(x.tuning.firstRows, min(x.tuning.mostRows, len(x.places))), x.stride)
		if err != nil {
			return place{}, err
		}
		x.segments = append(x.segments, seg)
		n++
	}
	seg := x.segments[n-1]
	at := place{uint32(n - 1), uint32(seg.used)}
	seg.keys[seg.used] = key
	seg.used++
	x.places[key] = at
	return at, nil
}

// Remove deletes keys; those that do not exist are ignored. The last row takes the place of a deleted one.
func (x *Index) Remove(keys ...uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, key := range keys {
		at, there := x.places[key]
		if !there {
			continue
		}
		n := len(x.segments) - 1
		last := x.segments[n]
		last.used--
		if moved := last.keys[last.used]; moved != key {
			x.segments[at.segment].copyRow(int(at.row), last, last.used)
			x.places[moved] = at
		}
		delete(x.places, key)
		if last.used == 0 {
			// Unmapping fails only for a wrong address: a bug after which memory is not safe to use.
			if err := releaseMemory(last.memory); err != nil {
				panic(fmt.Sprintf("vector: releasing memory: %v", err))
			}
			x.segments = x.segments[:n]
		}
	}
}

// copyRow overwrites row to of s by row from of other, with its key.
func (s *segment) copyRow(to int, other *segment, from int) {
	copy(s.high[to*s.stride:(to+1)*s.stride], other.high[from*s.stride:])
	copy(s.low[to*s.stride:(to+1)*s.stride], other.low[from*s.stride:])
	s.scale[to], s.err[to], s.keys[to] = other.scale[from], other.err[from], other.keys[from]
}
