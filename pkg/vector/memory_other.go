//go:build !unix

package vector

import "unsafe"

// reserve takes memory from the heap, where nothing else can be had. In words, so that it is aligned for any number.
func reserve(size int) ([]byte, error) {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(make([]uint64, (size+7)/8)))), size), nil
}

// giveBack leaves it to the collector.
func giveBack([]byte) error { return nil }
