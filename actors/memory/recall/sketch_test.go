package recall

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestSketch: a sketch's cosine is that of the vectors, well enough to tell twins.
func TestSketch(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, dims := range []int{1, 7, 64, 65, 384, 768} {
		signs := randomSigns(dims)
		for _, cosine := range []float64{1, 0.99, 0.97, 0.9, 0.5, 0, -1} {
			if dims == 1 && cosine != 1 && cosine != -1 {
				continue
			}
			worst, sum := 0.0, 0.0
			const tries = 60
			for range tries {
				a, b := pair(rng, dims, cosine)
				x, y := makeSketch(a, signs), makeSketch(b, signs)
				off := math.Abs(x.cosine(&y) - cosine)
				worst, sum = max(worst, off), sum+off*off
			}
			// What is added up by chance has this standard deviation, and bytes are a bit coarse.
			deviation := (1-cosine*cosine)/math.Sqrt(min(sketchSize, float64(dims))) + 0.003
			if mean := math.Sqrt(sum / tries); mean > 1.3*deviation || worst > 5*deviation {
				t.Errorf("%d numbers, cosine %v: off by %.4f, at most %.4f, expected %.4f", dims, cosine, mean, worst,
					deviation)
			}
		}
	}
	var none sketch
	if some := makeSketch([]float32{1, 2, 3}, randomSigns(3)); some.cosine(&none) != 0 || none.cosine(&none) != 0 ||
		!some.isValid {
		t.Error("what has no vector has a twin")
	}
	for _, odd := range [][]float32{{0, 0}, {math.MaxFloat32, math.MaxFloat32}, {1e-45, 0}} {
		a := makeSketch(odd, []float32{1, 1})
		if c := a.cosine(&a); c != 0 && math.Abs(c-1) > 0.01 {
			t.Errorf("%v: %v", odd, c)
		}
	}
}

// pair is two vectors with a cosine.
func pair(rng *rand.Rand, dims int, cosine float64) (a, b []float32) {
	x, y := make([]float64, dims), make([]float64, dims)
	length := func(v []float64) (l float64) {
		for _, f := range v {
			l += f * f
		}
		return math.Sqrt(l)
	}
	for i := range x {
		x[i], y[i] = rng.NormFloat64(), rng.NormFloat64()
	}
	l, along := length(x), 0.0
	for i := range x {
		x[i] /= l
		along += x[i] * y[i]
	}
	for i := range y {
		y[i] -= along * x[i]
	}
	l = length(y)
	for i := range x {
		a = append(a, float32(x[i]))
		across := 0.0
		if dims > 1 {
			across = math.Sqrt(1-cosine*cosine) * y[i] / l
		}
		b = append(b, float32(cosine*x[i]+across))
	}
	return a, b
}
