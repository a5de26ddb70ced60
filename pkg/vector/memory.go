package vector

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// largeMemory is the size from which large pages are requested.
const largeMemory = 8 << 20

// region is reference-counted memory outside of the heap. It is released when the last snapshot that holds it is
// dropped.
type region struct {
	data  []byte
	refs  atomic.Int64
	total *atomic.Int64 // of the index
}

// newRegion allocates size bytes outside of the heap, with one reference, which the caller drops, and adds them to
// total. It fails when memory is short.
func newRegion(size int, total *atomic.Int64) (*region, error) {
	data, err := allocateMemory(size)
	if err != nil {
		return nil, fmt.Errorf("allocating %d MB for vectors: %w; free memory or store fewer entries", size>>20, err)
	}
	total.Add(int64(len(data)))
	r := &region{data: data, total: total}
	r.refs.Store(1)
	return r, nil
}

func (r *region) hold() { r.refs.Add(1) }

// drop releases one reference, and the memory with the last one. It must not be used after that. A failed release
// panics.
func (r *region) drop() {
	if r.refs.Add(-1) > 0 {
		return
	}
	r.total.Add(-int64(len(r.data)))
	// Unmapping fails only for a wrong address: a bug after which memory is not safe to use.
	if err := releaseMemory(r.data); err != nil {
		panic(fmt.Sprintf("vector: releasing memory: %v", err))
	}
}

// carve takes n values from the front of b, padded to a multiple of lane, so that the next ones are aligned.
func carve[T any](b *[]byte, n int) []T {
	var zero T
	size := (n*int(unsafe.Sizeof(zero)) + lane - 1) / lane * lane
	out := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(*b))), n)
	*b = (*b)[size:]
	return out
}

// segment is a block of rows of fixed capacity. Rows are only appended; a replaced or removed row stays, marked dead in
// the view.
type segment struct {
	id   uint32
	room int
	mem  *region
	rows
	keys []uint64

	used      int          // rows written; guarded by Index.mu
	published atomic.Int64 // rows visible to readers
}

// rowBytes returns the size of a row in a segment.
func rowBytes(stride int) int { return 2*stride + 4 + 4 + 8 }

// newSegment returns an empty segment for room rows, whose memory the caller drops. stride must be a multiple of lane.
// It fails when memory is short.
func newSegment(id uint32, room, stride int, total *atomic.Int64) (*segment, error) {
	mem, err := newRegion(room*rowBytes(stride)+5*lane, total)
	if err != nil {
		return nil, err
	}
	b := mem.data
	return &segment{
		id: id, room: room, mem: mem,
		rows: rows{
			stride: stride,
			high:   carve[byte](&b, room*stride), low: carve[byte](&b, room*stride),
			scale: carve[float32](&b, room), err: carve[float32](&b, room),
		},
		keys: carve[uint64](&b, room),
	}, nil
}

// plane holds the sign bits of the rows of a segment, for the prefilter.
type plane struct {
	mem  *region
	bits []uint64
	used int // rows written; guarded by Index.mu
}

// newPlane returns a plane without sign bits, with room for those of every row of a segment. The caller drops its
// memory.
func newPlane(of *segment, total *atomic.Int64) (*plane, error) {
	words := (of.room + 7) / 8 * 8 * (of.stride / 64)
	mem, err := newRegion(words*8, total)
	if err != nil {
		return nil, err
	}
	b := mem.data
	return &plane{mem: mem, bits: carve[uint64](&b, words)}, nil
}
