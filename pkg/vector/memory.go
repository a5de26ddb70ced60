package vector

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// largeMemory is from where large pages are worth it: several of them fit.
const largeMemory = 8 << 20

// region is memory outside the heap. It is given back when the last snapshot that holds it is done with.
type region struct {
	data  []byte
	refs  atomic.Int64
	total *atomic.Int64 // of the index
}

// newRegion reserves size bytes. The caller holds it.
func newRegion(size int, total *atomic.Int64) (*region, error) {
	data, err := reserve(size)
	if err != nil {
		return nil, fmt.Errorf("taking %d MB for vectors: %w; end other programs or remember less", size>>20, err)
	}
	total.Add(int64(len(data)))
	r := &region{data: data, total: total}
	r.refs.Store(1)
	return r, nil
}

func (r *region) hold() { r.refs.Add(1) }

func (r *region) drop() {
	if r.refs.Add(-1) > 0 {
		return
	}
	r.total.Add(-int64(len(r.data)))
	// An error here would mean that the address is not ours: a mistake that must not pass.
	if err := giveBack(r.data); err != nil {
		panic(fmt.Sprintf("vector: giving memory back: %v", err))
	}
}

// carve cuts n values off the front of b. Sizes are multiples of 64 but for the last, so that all are aligned.
func carve[T any](b *[]byte, n int) []T {
	var zero T
	size := (n*int(unsafe.Sizeof(zero)) + lane - 1) / lane * lane
	out := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(*b))), n)
	*b = (*b)[size:]
	return out
}

// segment is room for a number of rows. Rows are only ever appended; one that is replaced or removed stays, dead.
type segment struct {
	id   uint32
	room int
	mem  *region
	rows
	keys []uint64

	used      int          // rows written; the writer's
	published atomic.Int64 // rows that readers may see
}

// rowBytes is what a row takes in a segment.
func rowBytes(stride int) int { return 2*stride + 4 + 4 + 8 }

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

// plane is the bits of a segment's rows, for the prefilter.
type plane struct {
	mem  *region
	bits []uint64
	used int // rows written; the writer's
}

func newPlane(of *segment, total *atomic.Int64) (*plane, error) {
	words := (of.room + 7) / 8 * 8 * (of.stride / 64)
	mem, err := newRegion(words*8, total)
	if err != nil {
		return nil, err
	}
	b := mem.data
	return &plane{mem: mem, bits: carve[uint64](&b, words)}, nil
}
