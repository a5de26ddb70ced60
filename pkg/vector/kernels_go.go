package vector

import "math"

// plainGo are the kernels in Go: for builds without a C compiler, and the reference in tests. The float32 conversions
// around products prevent fused multiply-add, which rounds once where C rounds twice.
type plainGo struct{}

func (plainGo) level() string { return "go" }

// quantize implements [kernels]: codes of 16 bits in two bytes, relative to the largest component. It stops at a vector
// that is zero, too small or not finite. err of a row bounds what its high bytes alone lose.
func (plainGo) quantize(src []float32, dims int, to *rows, first, n int) int {
	for r := range n {
		v := src[r*dims : (r+1)*dims]
		var top uint32 // compared as integers, so that NaN sorts above infinity
		for _, f := range v {
			top = max(top, math.Float32bits(f)&^(1<<31))
		}
		most := math.Float32frombits(top)
		if top >= math.Float32bits(float32(math.Inf(1))) || most < tiny {
			return r
		}
		f := maxCode / most
		at := (first + r) * to.stride
		high, low := to.high[at:at+to.stride], to.low[at:at+to.stride]
		var codes int64
		var rest int32
		for i, x := range v {
			c := int32(math.RoundToEven(float64(float32(x * f))))
			l := int32(int8(c))
			high[i], low[i] = byte((c+128+1<<15)>>8), byte(l)
			codes += int64(c) * int64(c)
			rest += l * l
		}
		for i := dims; i < to.stride; i++ {
			high[i], low[i] = 128, 0
		}
		s := 1 / math.Sqrt(float64(codes))
		to.scale[first+r], to.err[first+r] = float32(s), float32(math.Sqrt(float64(rest))*s)
	}
	return n
}

// dots implements [kernels]. The stride must be even.
func (plainGo) dots(of *rows, first, n int, q *query, out []int32) {
	for r := range n {
		row := of.high[(first+r)*of.stride:][:of.stride]
		codes := q.codes[:len(row)]
		var a, b int32 // may wrap; the difference to the bias fits
		for i := 0; i+1 < len(row); i += 2 {
			a += int32(row[i]) * int32(codes[i])
			b += int32(row[i+1]) * int32(codes[i+1])
		}
		out[r] = a + b - q.bias
	}
}

// score implements [kernels]. The results are not clamped and may exceed 1 slightly.
func (plainGo) score(of *rows, q *query, which []uint32, out []float32) {
	for i, r := range which {
		high, low := of.high[int(r)*of.stride:][:of.stride], of.low[int(r)*of.stride:][:of.stride]
		unit := q.unit[:len(high)]
		low = low[:len(high)]
		var a, b float32
		for j := 0; j+1 < len(high); j += 2 {
			a += float32(code(high[j], low[j])) * unit[j]
			b += float32(code(high[j+1], low[j+1])) * unit[j+1]
		}
		out[i] = (a + b) * of.scale[r]
	}
}

// code joins the two bytes of a code.
func code(high, low byte) int32 { return int32(high)<<8 + int32(int8(low)) - 1<<15 }
