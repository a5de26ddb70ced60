//go:build cgo

package vector

/*
#cgo CFLAGS: -O3
#cgo LDFLAGS: -lm
#cgo noescape cvec_quantize
#cgo nocallback cvec_quantize
#cgo noescape cvec_dots
#cgo nocallback cvec_dots
#cgo noescape cvec_scan
#cgo nocallback cvec_scan
#cgo noescape cvec_score
#cgo nocallback cvec_score
#cgo noescape cvec_signs
#cgo nocallback cvec_signs
#cgo noescape cvec_hamming
#cgo nocallback cvec_hamming
#cgo noescape cvec_gather
#cgo nocallback cvec_gather
#include "kernels.h"
*/
import "C"

import "unsafe"

// compiledC are the kernels in C for one instruction set. A cgo call costs about as much as a row, so each processes
// many.
type compiledC struct {
	number C.int
	name   string
}

// compiled returns the C kernels that this machine can run, the fastest last.
func compiled() (out []kernels) {
	for _, k := range []compiledC{{C.CVEC_PLAIN, "c"}, {C.CVEC_AVX2, "avx2"}, {C.CVEC_AVX512, "avx512-vnni"}} {
		if C.cvec_has(k.number) != 0 {
			out = append(out, k)
		}
	}
	return out
}

func (k compiledC) level() string { return k.name }

func (k compiledC) quantize(src []float32, dims int, to *rows, first, n int) int {
	if n == 0 {
		return 0
	}
	_, at := src[n*dims-1], first*to.stride
	return int(C.cvec_quantize(k.number, (*C.float)(&src[0]), C.long(n), C.long(dims), C.long(to.stride),
		bytes8(to.high[at:]),
		signed8(to.low[at:]), (*C.float)(&to.scale[first]), (*C.float)(&to.err[first])))
}

func (k compiledC) dots(of *rows, first, n int, q *query, out []int32) {
	if n == 0 {
		return
	}
	_ = out[n-1]
	C.cvec_dots(k.number, bytes8(of.high[first*of.stride:(first+n)*of.stride]), C.long(n), C.long(of.stride),
		(*C.int16_t)(&q.codes[0]),
		(*C.int8_t)(&q.planes[0]), C.int32_t(q.bias), (*C.int32_t)(&out[0]))
}

// scan implements [kernels]. It panics when the buffers of b are too small for n rows: C would write beyond them.
func (k compiledC) scan(of *rows, first, n int, q *query, floor float32, b *block) int {
	if n == 0 {
		return 0
	}
	_ = b.which[n+slack-1]
	return int(C.cvec_scan(k.number, bytes8(of.high[first*of.stride:(first+n)*of.stride]), C.long(n), C.long(of.stride),
		(*C.int16_t)(&q.codes[0]), (*C.int8_t)(&q.planes[0]), C.int32_t(q.bias), (*C.float)(&of.scale[first]),
		(*C.float)(&of.err[first]),
		C.float(q.factor), C.float(floor), (*C.int32_t)(&b.dots[0]), (*C.uint32_t)(&b.which[0]),
		(*C.float)(&b.upper[0])))
}

// score implements kernels: out[i] is the cosine of row which[i] with q. It does nothing when which is empty and panics
// when out is shorter than which. Row numbers are not checked: C would read beyond the rows.
func (k compiledC) score(of *rows, q *query, which []uint32, out []float32) {
	if len(which) == 0 {
		return
	}
	_ = out[len(which)-1]
	C.cvec_score(k.number, bytes8(of.high), signed8(of.low), (*C.float)(&of.scale[0]), C.long(of.stride),
		(*C.float)(&q.unit[0]),
		(*C.uint32_t)(&which[0]), C.long(len(which)), (*C.float)(&out[0]))
}

// signs implements [kernels]. It panics when bits is too short for rows up to first+n, rounded up to a group of eight.
func (k compiledC) signs(of *rows, centre []float32, first, n int, bits []uint64) {
	if n == 0 {
		return
	}
	words := of.stride / 64
	_ = bits[(first+n+7)/8*8*words-1]
	C.cvec_signs(k.number, bytes8(of.high), signed8(of.low), (*C.float)(&of.scale[0]), C.long(of.stride), C.long(words),
		(*C.float)(&centre[0]), C.long(first), C.long(n), (*C.uint64_t)(&bits[0]))
}

// hamming implements [kernels]. It panics when a slice is too short for n rows, rounded up to a group of eight.
func (k compiledC) hamming(bits []uint64, words, n int, q []uint64, dist []uint16, histogram []uint32) {
	if n == 0 {
		return
	}
	groups := (n + 7) / 8
	_, _, _, _ = bits[groups*8*words-1], dist[groups*8-1], q[words-1], histogram[words*64]
	C.cvec_hamming(k.number, (*C.uint64_t)(&bits[0]), C.long(words), C.long(n), (*C.uint64_t)(&q[0]),
		(*C.uint16_t)(&dist[0]),
		(*C.uint32_t)(&histogram[0]))
}

func (k compiledC) gather(dist []uint16, from, to uint16, out []uint32) int {
	if len(dist) == 0 {
		return 0
	}
	_ = out[len(dist)+slack-1]
	return int(C.cvec_gather(k.number, (*C.uint16_t)(&dist[0]), C.long(len(dist)), C.uint16_t(from), C.uint16_t(to),
		(*C.uint32_t)(&out[0])))
}

func bytes8(b []byte) *C.uint8_t { return (*C.uint8_t)(&b[0]) }

func signed8(b []byte) *C.int8_t { return (*C.int8_t)(unsafe.Pointer(&b[0])) }
