package vector

import (
	"fmt"
	"unsafe"
)

// largeMemory is the size from which large pages are requested.
const largeMemory = 8 << 20

// carve takes n values from the front of b, padded to a multiple of lane, so that the next ones are aligned.
func carve[T any](b *[]byte, n int) []T {
	var zero T
	size := (n*int(unsafe.Sizeof(zero)) + lane - 1) / lane * lane
	out := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(*b))), n)
	*b = (*b)[size:]
	return out
}

// segment is a block of rows of fixed capacity, in memory outside of the heap.
type segment struct {
	memory     []byte
	first      int // number of the first row among those of all segments
	room, used int // rows
	rows
	keys []uint64
}

// rowBytes returns the size of a row in a segment.
func rowBytes(stride int) int { return 2*stride + 4 + 4 + 8 }

// newSegment returns an empty segment for room rows behind first others, whose memory the caller releases. stride must
// be a multiple of lane. It fails when memory is short.
func newSegment(first, room, stride int) (*segment, error) {
	size := room*rowBytes(stride) + 5*lane
	memory, err := allocateMemory(size)
	if err != nil {
		return nil, fmt.Errorf("allocating %d MB for vectors: %w; free memory or store fewer entries", size>>20, err)
	}
	b := memory
	return &segment{
		memory: memory, first: first, room: room,
		rows: rows{
			stride: stride,
			high:   carve[byte](&b, room*stride), low: carve[byte](&b, room*stride),
			scale: carve[float32](&b, room), err: carve[float32](&b, room),
		},
		keys: carve[uint64](&b, room),
	}, nil
}
