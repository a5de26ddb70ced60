//go:build cgo

package vector

/*
#cgo CFLAGS: -O3
#cgo LDFLAGS: -lm
#cgo noescape cvec_quantize
#cgo nocallback cvec_quantize
#cgo noescape cvec_dots
#cgo nocallback cvec_dots
#cgo noescape cvec_score
#cgo nocallback cvec_score
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

func bytes8(b []byte) *C.uint8_t { return (*C.uint8_t)(&b[0]) }

func signed8(b []byte) *C.int8_t { return (*C.int8_t)(unsafe.Pointer(&b[0])) }
