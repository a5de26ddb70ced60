package vector

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// reference is what every level is compared with.
var reference = plainGo{}

// levels runs a test for every level that this machine has, Go among them.
func levels(t *testing.T, test func(t *testing.T, k kernels)) {
	for _, k := range available {
		t.Run(k.level(), func(t *testing.T) { test(t, k) })
	}
}

// room makes rows that a kernel can write to, filled with rubbish that it has to overwrite.
func room(n, dims int) *rows {
	stride := (dims + lane - 1) / lane * lane
	return &rows{
		stride: stride, high: slices.Repeat([]byte{0xa5}, n*stride), low: slices.Repeat([]byte{0x5a}, n*stride),
		scale: make([]float32, n), err: make([]float32, n),
	}
}

// quantized are vectors as rows, by the reference implementation.
func quantized(t testing.TB, vectors []float32, dims int) *rows {
	t.Helper()
	n := len(vectors) / dims
	out := room(n, dims)
	if done := reference.quantize(vectors, dims, out, 0, n); done != n {
		t.Fatalf("only %d of %d vectors can be quantized", done, n)
	}
	return out
}

func queryOf(t testing.TB, v []float32) *query {
	t.Helper()
	q, err := open(t, len(v)).prepareQuery(v)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// kernelDims are lengths around those of a processor's vectors, and those of models.
var kernelDims = []int{1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 130, 384, 768, 1024}

func TestQuantizeMatchesGo(t *testing.T) {
	levels(t, func(t *testing.T, k kernels) {
		r := rand.New(rand.NewPCG(1, 1))
		for _, dims := range kernelDims {
			const n = 9
			vectors := random(r, n, dims)
			for i := range dims { // whole and half codes, where rounding shows
				vectors[i] = float32(i%509)/2 - 127
			}
			vectors[0] = maxCode / 256
			for i := range dims { // very large and very small in one
				vectors[dims+i] = float32(math.Ldexp(float64(vectors[dims+i]), i%40-20)) * 1e30
				vectors[2*dims+i] *= 1e-28
			}
			want, got := quantized(t, vectors, dims), room(n+1, dims)
			if done := k.quantize(vectors, dims, got, 1, n); done != n {
				t.Fatalf("%d dimensions: %d of %d done", dims, done, n)
			}
			if s := got.stride; !slices.Equal(got.high[s:], want.high) || !slices.Equal(got.low[s:], want.low) {
				t.Errorf("%d dimensions: other codes", dims)
			}
			if !slices.Equal(got.scale[1:], want.scale) || !slices.Equal(got.err[1:], want.err) {
				t.Errorf("%d dimensions: other scales\n%v %v\n%v %v", dims, got.scale, got.err, want.scale, want.err)
			}
			if got.high[0] != 0xa5 || got.low[got.stride-1] != 0x5a {
				t.Errorf("%d dimensions: the row before was written to", dims)
			}
		}
	})
}

func TestQuantizeStopsAtInvalidVector(t *testing.T) {
	inf := float32(math.Inf(1))
	levels(t, func(t *testing.T, k kernels) {
		for name, bad := range map[string]float32{
			"not a number": float32(math.NaN()), "minus not a number": float32(math.Copysign(math.NaN(), -1)),
			"infinite": inf, "minus infinite": -inf,
			"zero": 0, "minus zero": float32(math.Copysign(0, -1)), "denormal": 1e-44, "tiny": 9e-31,
		} {
			for _, dims := range []int{1, 8, 19, 64, 100} {
				vectors := random(rand.New(rand.NewPCG(1, 2)), 5, dims)
				row := vectors[3*dims : 4*dims]
				if math.Abs(float64(bad)) < 1 {
					clear(row)
				}
				row[dims-1] = bad
				if done := k.quantize(vectors, dims, room(5, dims), 0, 5); done != 3 {
					t.Errorf("%s, %d dimensions: %d done, want 3", name, dims, done)
				}
			}
		}
	})
}

func TestDotsMatchGo(t *testing.T) {
	levels(t, func(t *testing.T, k kernels) {
		r := rand.New(rand.NewPCG(1, 3))
		for _, dims := range append(kernelDims, 4096, MaxDims) {
			n := 7
			vectors := random(r, n, dims)
			for i := range dims { // what adds up to the most there can be, both ways
				vectors[i], vectors[dims+i] = 1, -1
			}
			of := quantized(t, vectors, dims)
			q := random(r, 1, dims)
			for _, v := range [][]float32{q, vectors[:dims], vectors[dims : 2*dims]} {
				q := queryOf(t, v)
				want, got := make([]int32, n), make([]int32, n)
				for row := range n {
					var sum int64
					for i := range dims {
						sum += (int64(of.high[row*of.stride+i]) - 128) * int64(q.codes[i])
					}
					if want[row] = int32(sum); int64(want[row]) != sum {
						t.Fatalf("%d dimensions: %d does not fit", dims, sum)
					}
				}
				for first := range 3 {
					k.dots(of, first, n-first, q, got[first:])
					if !slices.Equal(got, want) && first == 0 {
						t.Errorf("%d dimensions: %v, want %v", dims, got, want)
					}
				}
			}
		}
	})
}

func TestScoresAreCosines(t *testing.T) {
	levels(t, func(t *testing.T, k kernels) {
		r := rand.New(rand.NewPCG(1, 5))
		for _, dims := range kernelDims {
			vectors := random(r, 20, dims)
			of := quantized(t, vectors, dims)
			v := random(r, 1, dims)
			which := []uint32{3, 19, 0, 3, 7}
			want, got := make([]float32, 5), make([]float32, 5)
			q := queryOf(t, v)
			k.score(of, q, which, got)
			reference.score(of, q, which, want)
			for i, row := range which {
				if math.Abs(float64(got[i]-want[i])) > 1e-6 {
					t.Errorf("%d dimensions: row %d: %v, the reference says %v", dims, row, got[i], want[i])
				}
				// Every number may be off by half a code, and the length by as much again.
				off := 1e-6
				for _, f := range q.unit {
					off += math.Abs(float64(f * of.scale[row]))
				}
				c := cosine(v, vectors[int(row)*dims:][:dims])
				if d := math.Abs(float64(got[i]) - c); d > off || dims >= 64 && d > 1e-5 {
					t.Errorf("%d dimensions: row %d: %v, not %v", dims, row, got[i], c)
				}
			}
			if got[0] != got[3] {
				t.Errorf("the same row has the cosines %v and %v", got[0], got[3])
			}
		}
	})
}

// FuzzKernels gives the levels numbers that no model makes.
func FuzzKernels(f *testing.F) {
	f.Add(uint8(3), []byte{0, 0, 128, 63, 0, 0, 0, 0, 1, 0, 0, 0})
	f.Add(uint8(1), []byte{255, 255, 127, 127, 0, 0, 192, 127, 0, 0, 128, 255})
	f.Add(uint8(17), slices.Repeat([]byte{1, 2, 3, 60}, 40))
	f.Fuzz(func(t *testing.T, size uint8, raw []byte) {
		dims := int(size)%150 + 1
		vectors := make([]float32, min(len(raw)/4, 20*dims)/dims*dims)
		for i := range vectors {
			vectors[i] = math.Float32frombits(
				uint32(raw[4*i]) | uint32(raw[4*i+1])<<8 | uint32(raw[4*i+2])<<16 | uint32(raw[4*i+3])<<24)
		}
		n := len(vectors) / dims
		want := room(n, dims)
		done := reference.quantize(vectors, dims, want, 0, n)
		for _, k := range available[1:] {
			got := room(n, dims)
			if d := k.quantize(vectors, dims, got, 0, n); d != done {
				t.Fatalf("%s: %d done, want %d", k.level(), d, done)
			}
			if !slices.Equal(got.high[:done*got.stride], want.high[:done*got.stride]) ||
				!slices.Equal(got.low[:done*got.stride], want.low[:done*got.stride]) ||
				!slices.Equal(got.scale[:done], want.scale[:done]) || !slices.Equal(got.err[:done], want.err[:done]) {
				t.Fatal(k.level(), "makes other rows")
			}
		}
		if done == 0 {
			return
		}
		q, err := (&Index{dims: dims, stride: want.stride}).prepareQuery(vectors[(done-1)*dims : done*dims])
		if err != nil {
			t.Fatal(err)
		}
		wantDots, gotDots := make([]int32, done), make([]int32, done)
		reference.dots(want, 0, done, q, wantDots)
		for _, k := range available[1:] {
			if k.dots(want, 0, done, q, gotDots); !slices.Equal(gotDots, wantDots) {
				t.Fatal(fmt.Sprint(k.level(), " makes ", gotDots, ", want ", wantDots))
			}
		}
	})
}
