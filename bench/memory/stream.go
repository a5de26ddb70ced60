package main

import "unsafe"

// readOnce adds up the bytes of v as words of eight bytes, eight of them at a step: on one thread memory is then the limit.
func readOnce(v []float32) uint64 {
	words := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(v))), len(v)/2)
	var a, b, c, d uint64
	for len(words) >= 8 {
		p := (*[8]uint64)(words)
		a += p[0] + p[4]
		b += p[1] + p[5]
		c += p[2] + p[6]
		d += p[3] + p[7]
		words = words[8:]
	}
	return a ^ b ^ c ^ d
}
