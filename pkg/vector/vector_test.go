package vector

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// small makes everything happen with few rows: many segments, several threads.
func small(t *tuning) {
	t.firstRows, t.mostRows, t.threadBytes = 32, 128, 1<<12
}

// with chooses the level.
func with(k kernels) func(*tuning) { return func(t *tuning) { t.kernels = k } }

func TestNearestMatchesFullScan(t *testing.T) {
	for _, tt := range []struct{ n, dims int }{
		{0, 768},
		{1, 768},
		{19, 768},
		{20, 768},
		{21, 768},
		{127, 384},
		{1023, 32},
		{1024, 32},
		{1025, 32},
		{4097, 16},
		{300, 1},
		{500, 7},
		{250, 1024},
		{2300, 70},
	} {
		c := newClusters(uint64(tt.n), 8, tt.dims)
		keys, vectors, queries := numbered(0, tt.n), c.vectors(tt.n), c.vectors(4)
		model := naive{tt.dims, map[uint64][]float32{}}
		model.add(keys, vectors)
		var want [4][]exactHit
		for i := range want {
			want[i] = model.nearest(queries[i*tt.dims : (i+1)*tt.dims])
		}
		for name, change := range map[string]func(*tuning){"one segment": func(*tuning) {}, "many": small} {
			for _, level := range available {
				t.Run(fmt.Sprintf("%d of %d, %s, %s", tt.n, tt.dims, name, level.level()), func(t *testing.T) {
					x := open(t, tt.dims, threads(3), change, with(level))
					for first := 0; first < tt.n; first += 777 {
						end := min(first+777, tt.n)
						add(t, x, keys[first:end], vectors[first*tt.dims:end*tt.dims])
					}
					if x.Len() != tt.n {
						t.Fatalf("%d vectors, want %d", x.Len(), tt.n)
					}
					for i, k := range []int{1, 20, tt.n, tt.n + 5} {
						compare(t, want[i], k, nearest(t, x, queries[i*tt.dims:(i+1)*tt.dims], k),
							tolerance(tt.dims))
					}
				})
			}
		}
	}
}

// tolerance is how far a cosine may be off: more where few numbers share what rounding takes.
func tolerance(dims int) float64 {
	if dims < 256 {
		return 6e-5
	}
	return 1e-5
}

func TestRecall(t *testing.T) {
	for name, tt := range map[string]struct {
		make func(c *clusters, n int) []float32
		off  float64 // cosines that are this near count for one another
	}{
		"clustered": {(*clusters).vectors, 0},
		"random":    {(*clusters).spread, 0},
		"a number that stands out": {func(c *clusters, n int) []float32 { // and makes the codes of the others coarse
			out := c.vectors(n)
			for i := 3; i < len(out); i += c.dims {
				out[i] = 15
			}
			return out
		}, 1e-5},
	} {
		t.Run(name, func(t *testing.T) {
			const n, dims, queries = 1500, 768, 8
			c := newClusters(11, 40, dims)
			vectors := tt.make(c, n)
			x, model := open(t, dims), naive{dims, map[uint64][]float32{}}
			add(t, x, numbered(0, n), vectors)
			model.add(numbered(0, n), vectors)
			var found float64
			for range queries {
				q := tt.make(c, 1)
				found += recall(model.nearest(q), nearest(t, x, q, 20), 20, tt.off) / queries
			}
			if found < 0.999 {
				t.Errorf("recall %v", found)
			}
		})
	}
}

func TestAddReplaces(t *testing.T) {
	x := open(t, 3, small)
	model := naive{3, map[uint64][]float32{}}
	r := rand.New(rand.NewPCG(2, 1))
	for range 40 { // far more than stay
		keys := make([]uint64, 30)
		for i := range keys {
			keys[i] = r.Uint64N(100) << 40
		}
		vectors := random(r, len(keys), 3) // a key that comes twice has the last
		add(t, x, keys, vectors)
		model.add(keys, vectors)
		if x.Len() != len(model.of) {
			t.Fatalf("%d vectors, want %d", x.Len(), len(model.of))
		}
		q := random(r, 1, 3)
		model.check(t, q, 30, nearest(t, x, q, 30), tolerance(3))
	}
	if n := len(x.segments); n > 3 {
		t.Errorf("%d segments for %d keys: what was replaced keeps its row", n, x.Len())
	}
}

func TestRemove(t *testing.T) {
	const n = 1000
	x := open(t, 16, small)
	model := naive{16, map[uint64][]float32{}}
	r := rand.New(rand.NewPCG(2, 2))
	vectors := random(r, n, 16)
	add(t, x, numbered(0, n), vectors)
	model.add(numbered(0, n), vectors)
	before := x.Bytes()
	x.Remove(5, 5, 7, 4000)
	if has(t, x, 5) || !has(t, x, 6) || x.Len() != n-2 {
		t.Errorf("has 5: %v, has 6: %v, %d left", has(t, x, 5), has(t, x, 6), x.Len())
	}
	for k := range uint64(n) {
		if k%10 != 3 {
			x.Remove(k)
			delete(model.of, k)
		}
		if k%97 == 0 {
			q := random(r, 1, 16)
			delete(model.of, 5)
			delete(model.of, 7)
			model.check(t, q, 20, nearest(t, x, q, 20), tolerance(16))
		}
	}
	if x.Len() != n/10 {
		t.Errorf("%d left", x.Len())
	}
	if after := x.Bytes(); after > before/2 {
		t.Errorf("%d of %d bytes still in use for a tenth of the rows", after, before)
	}
	for k := range uint64(n) {
		x.Remove(k)
	}
	if hits := nearest(t, x, vectors[:16], 5); len(hits) != 0 || x.Len() != 0 {
		t.Errorf("%v found where nothing is", hits)
	}
	add(t, x, []uint64{3}, vectors[:16])
	if hits := nearest(t, x, vectors[:16], 5); len(hits) != 1 || hits[0].Key != 3 {
		t.Errorf("%v, want the key that came back", hits)
	}
}

func TestInvalidVectorsAreRejected(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for name, tt := range map[string]struct {
		vector []float32
		want   error
	}{
		"too short":           {[]float32{1, 2}, ErrDims},
		"too long":            {[]float32{1, 2, 3, 4}, ErrDims},
		"none":                {nil, ErrDims},
		"not a number":        {[]float32{1, nan, 0}, ErrNotFinite},
		"zeros and no number": {[]float32{0, 0, nan}, ErrNotFinite},
		"infinite":            {[]float32{inf, 1, 0}, ErrNotFinite},
		"zero":                {[]float32{0, 0, 0}, ErrZero},
		"minus zero":          {[]float32{0, float32(math.Copysign(0, -1)), 0}, ErrZero},
		"denormal is fine":    {[]float32{0, 1e-45, 0}, nil},
		"tiny is fine":        {[]float32{0, -1e-36, 2e-36}, nil},
		"huge is fine":        {[]float32{math.MaxFloat32, -math.MaxFloat32, 0}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			levels(t, func(t *testing.T, k kernels) {
				x := open(t, 3, with(k))
				add(t, x, []uint64{1}, []float32{1, 2, 3})
				if err := x.Add(2, tt.vector); !errors.Is(err, tt.want) {
					t.Errorf("Add: %v, want %v", err, tt.want)
				}
				if _, err := x.Bounds(tt.vector); !errors.Is(err, tt.want) {
					t.Errorf("Bounds: %v, want %v", err, tt.want)
				}
				hits, err := x.Cosines(tt.vector, []uint64{2})
				if !errors.Is(err, tt.want) {
					t.Errorf("Cosines: %v, want %v", err, tt.want)
				}
				if tt.want == nil {
					if len(hits) != 1 || hits[0].Cosine < 0.99999 {
						t.Errorf("%v, want the vector itself", hits)
					}
				} else if x.Len() != 1 || has(t, x, 2) {
					t.Error("it was added all the same")
				}
			})
		})
	}
}

func TestFailedAddChangesNothing(t *testing.T) {
	x := open(t, 5, small)
	r := rand.New(rand.NewPCG(4, 4))
	old := random(r, 30, 5)
	add(t, x, numbered(0, 30), old)
	bad := random(r, 1, 5)
	bad[2] = float32(math.NaN())
	for _, key := range []uint64{10, 30} { // one that is there, and a new one
		if err := x.Add(key, bad); !errors.Is(err, ErrNotFinite) {
			t.Fatal(err)
		}
	}
	if x.Len() != 30 || has(t, x, 30) {
		t.Errorf("%d vectors", x.Len())
	}
	model := naive{5, map[uint64][]float32{}}
	model.add(numbered(0, 30), old)
	model.check(t, old[:5], 30, nearest(t, x, old[:5], 30), tolerance(5))
	more := random(r, 500, 5)
	add(t, x, numbered(10, 500), more)
	model.add(numbered(10, 500), more)
	model.check(t, old[:5], 1000, nearest(t, x, old[:5], 1000), tolerance(5))
}

func TestNew(t *testing.T) {
	for _, dims := range []int{0, -1, MaxDims + 1} {
		if _, err := New(dims); err == nil {
			t.Errorf("%d dimensions pass", dims)
		}
	}
	x, err := New(2)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if hits, err := x.Bounds([]float32{1, 0}); err != nil || len(hits) != 0 {
		t.Errorf("an empty index finds %v, %v", hits, err)
	}
	add(t, x, []uint64{0, 1}, []float32{1, 0, 0, 1}) // 0 is a key like any other
	if hits := nearest(t, x, []float32{1, 0}, 3); len(hits) != 2 || hits[0] != (Hit{0, 1}) || hits[1] != (Hit{1, 0}) {
		t.Errorf("%v", hits)
	}
	if p := x.Path(); p != "exact, int8 first pass, "+available[len(available)-1].level() {
		t.Error(p)
	}
}

func TestCosines(t *testing.T) {
	levels(t, func(t *testing.T, k kernels) {
		const n, dims = 400, 96
		x := open(t, dims, small, with(k))
		r := rand.New(rand.NewPCG(5, 5))
		vectors := random(r, n, dims)
		add(t, x, numbered(100, n), vectors)
		x.Remove(numbered(100, 200)...)
		q := random(r, 1, dims)
		hits, err := x.Cosines(q, []uint64{499, 7, 350, 100, 499, 301})
		if err != nil {
			t.Fatal(err)
		}
		want := []uint64{499, 350, 499, 301}
		if len(hits) != len(want) {
			t.Fatalf("%v, want the keys %v", hits, want)
		}
		for i, h := range hits {
			v := vectors[(want[i]-100)*dims:][:dims]
			if h.Key != want[i] || math.Abs(cosine(q, v)-float64(h.Cosine)) > 1e-5 {
				t.Errorf("hit %d is %v, want the key %d with %v", i, h, want[i], cosine(q, v))
			}
		}
	})
}

// TestBounds: every key is there once, unless it was removed, and the bounds hold.
func TestBounds(t *testing.T) {
	levels(t, func(t *testing.T, k kernels) {
		for _, dims := range kernelDims {
			const rows = 1200
			data := newClusters(11, 30, dims)
			vectors := data.vectors(rows)
			for i := range vectors { // some numbers stand out, as in the vectors of some models
				if data.r.IntN(50) == 0 {
					vectors[i] *= 20
				}
			}
			x := open(t, dims, threads(3), small, with(k))
			add(t, x, numbered(1, rows), vectors)
			x.Remove(7, 8, 9)
			q := data.vectors(1)
			bounds, err := x.Bounds(q)
			if err != nil || len(bounds) != rows-3 {
				t.Fatalf("%d dimensions: %d bounds, %v", dims, len(bounds), err)
			}
			keys := make([]uint64, len(bounds))
			for i, b := range bounds {
				keys[i] = b.Key
			}
			hits, err := x.Cosines(q, keys)
			if err != nil {
				t.Fatal(err)
			}
			for i, h := range hits {
				at := x.places[h.Key]
				most := h.Cosine + 2*(x.segments[at.segment].err[at.row]+1e-4)
				if h.Key != keys[i] || bounds[i].Cosine < h.Cosine || bounds[i].Cosine > most {
					t.Fatalf("%d dimensions: row %d with the cosine %v has the bound %v", dims, h.Key, h.Cosine,
						bounds[i])
				}
			}
			slices.Sort(keys)
			if len(slices.Compact(keys)) != rows-3 {
				t.Errorf("%d dimensions: a key is there twice", dims)
			}
		}
	})
}
