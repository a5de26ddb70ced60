//go:build !unix

package vector

import "unsafe"

// allocateMemory allocates from the heap, in words for alignment: there is no mmap.
func allocateMemory(size int) ([]byte, error) {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(make([]uint64, (size+7)/8)))), size), nil
}

// releaseMemory leaves it to the garbage collector.
func releaseMemory([]byte) error { return nil }
