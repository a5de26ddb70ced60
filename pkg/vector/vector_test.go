package vector

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// small makes everything happen with few rows: many segments, rewriting, several threads.
func small(t *tuning) {
	t.firstRows, t.mostRows, t.fewDead, t.threadBytes = 32, 128, 4, 1<<12
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
			want[i] = model.nearest(queries[i*tt.dims:(i+1)*tt.dims], nil)
		}
		for name, change := range map[string]func(*tuning){"one segment": func(*tuning) {}, "many": small} {
			for _, level := range available {
				t.Run(fmt.Sprintf("%d of %d, %s, %s", tt.n, tt.dims, name, level.level()), func(t *testing.T) {
					x := open(t, Options{Dims: tt.dims, Threads: 3}, change, with(level))
					for first := 0; first < tt.n; first += 777 {
						end := min(first+777, tt.n)
						add(t, x, keys[first:end], vectors[first*tt.dims:end*tt.dims])
					}
					if x.Len() != tt.n {
						t.Fatalf("%d vectors, want %d", x.Len(), tt.n)
					}
					for i, k := range []int{1, 20, tt.n, tt.n + 5} {
						compare(t, want[i], k, nearest(t, x, queries[i*tt.dims:(i+1)*tt.dims], k, nil),
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
			x, model := open(t, Options{Dims: dims}), naive{dims, map[uint64][]float32{}}
			add(t, x, numbered(0, n), vectors)
			model.add(numbered(0, n), vectors)
			var found float64
			for range queries {
				q := tt.make(c, 1)
				found += recall(model.nearest(q, nil), nearest(t, x, q, 20, nil), 20, tt.off) / queries
			}
			if found < 0.999 {
				t.Errorf("recall %v", found)
			}
		})
	}
}

func TestAddReplaces(t *testing.T) {
	x := open(t, Options{Dims: 3}, small)
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
		model.check(t, q, 30, nil, nearest(t, x, q, 30, nil), tolerance(3))
	}
	now := x.read()
	defer now.drop()
	if n := now.total(); n > 100+100/2+32 {
		t.Errorf("%d rows for %d keys: what was replaced is never rewritten", n, x.Len())
	}
}

func TestRemove(t *testing.T) {
	const n = 1000
	x := open(t, Options{Dims: 16}, small)
	model := naive{16, map[uint64][]float32{}}
	r := rand.New(rand.NewPCG(2, 2))
	vectors := random(r, n, 16)
	add(t, x, numbered(0, n), vectors)
	model.add(numbered(0, n), vectors)
	before := x.Bytes()
	if got := x.Remove(5, 5, 7, 4000); got != 2 {
		t.Errorf("removed %d, want 2", got)
	}
	if x.Has(5) || !x.Has(6) || x.Len() != n-2 {
		t.Errorf("has 5: %v, has 6: %v, %d left", x.Has(5), x.Has(6), x.Len())
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
			model.check(t, q, 20, nil, nearest(t, x, q, 20, nil), tolerance(16))
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
	if hits := nearest(t, x, vectors[:16], 5, nil); len(hits) != 0 || x.Len() != 0 {
		t.Errorf("%v found where nothing is", hits)
	}
	add(t, x, []uint64{3}, vectors[:16])
	if hits := nearest(t, x, vectors[:16], 5, nil); len(hits) != 1 || hits[0].Key != 3 {
		t.Errorf("%v, want the key that came back", hits)
	}
}

func TestKeep(t *testing.T) {
	levels(t, func(t *testing.T, k kernels) {
		const n, dims = 3000, 32
		c := newClusters(4, 10, dims)
		vectors := c.vectors(n)
		x, model := open(t, Options{Dims: dims, Threads: 4}, small, with(k)), naive{dims, map[uint64][]float32{}}
		add(t, x, numbered(0, n), vectors)
		model.add(numbered(0, n), vectors)
		for name, keep := range map[string]func(uint64) bool{
			"all": func(uint64) bool {
				return true
			}, "none": func(uint64) bool { return false }, "half": func(k uint64) bool { return k%2 == 0 },
			"few": func(k uint64) bool { return k%500 == 7 }, "one": func(k uint64) bool { return k == 2999 },
		} {
			t.Run(name, func(t *testing.T) {
				calls := 0 // not atomic: it is never asked by two at once
				q := c.vectors(1)
				model.check(t, q, 20, keep, nearest(t, x, q, 20, func(k uint64) bool { calls++; return keep(k) }),
					tolerance(dims))
				if calls == 0 {
					t.Error("it was not asked")
				}
			})
		}
	})
}

func TestPanicInKeepIsPropagated(t *testing.T) {
	x := open(t, Options{Dims: 8, Threads: 4}, small)
	v := random(rand.New(rand.NewPCG(1, 1)), 2000, 8)
	add(t, x, numbered(0, 2000), v)
	func() {
		defer func() {
			if p := recover(); p != "no" {
				t.Errorf("recovered %v", p)
			}
		}()
		_, _ = x.Nearest(v[:8], 20, func(k uint64) bool {
			if k == 1500 {
				panic("no")
			}
			return false
		})
	}()
	if hits := nearest(t, x, v[:8], 1, nil); len(hits) != 1 || hits[0].Key != 0 {
		t.Errorf("%v after it", hits)
	}
}

func TestTiesGoToTheSmallerKey(t *testing.T) {
	levels(t, func(t *testing.T, k kernels) {
		x := open(t, Options{Dims: 70, Threads: 3}, small, with(k))
		v := random(rand.New(rand.NewPCG(3, 3)), 1, 70)
		keys := rand.New(rand.NewPCG(3, 4)).Perm(700)
		for i, key := range keys {
			scaled := slices.Clone(v)
			for j := range scaled {
				scaled[j] *= float32(int(1) << (i % 9)) // the length says nothing
			}
			add(t, x, []uint64{uint64(key)}, scaled)
		}
		hits := nearest(t, x, v, 25, nil)
		for i, h := range hits {
			if h.Key != uint64(i) || math.Abs(float64(h.Cosine)-1) > 1e-6 {
				t.Fatalf("hit %d is %v", i, h)
			}
		}
		if len(hits) != 25 {
			t.Errorf("%d hits", len(hits))
		}
	})
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
				x := open(t, Options{Dims: 3}, with(k))
				add(t, x, []uint64{1}, []float32{1, 2, 3})
				if err := x.Add([]uint64{2}, tt.vector); !errors.Is(err, tt.want) {
					t.Errorf("Add: %v, want %v", err, tt.want)
				}
				hits, err := x.Nearest(tt.vector, 1, nil)
				if !errors.Is(err, tt.want) {
					t.Errorf("Nearest: %v, want %v", err, tt.want)
				}
				if _, err := x.Cosines(tt.vector, []uint64{1}); !errors.Is(err, tt.want) {
					t.Errorf("Cosines: %v, want %v", err, tt.want)
				}
				if tt.want == nil {
					if len(hits) != 1 || hits[0].Key != 2 || hits[0].Cosine < 0.99999 {
						t.Errorf("%v, want the vector itself", hits)
					}
				} else if x.Len() != 1 || x.Has(2) {
					t.Error("it was added all the same")
				}
			})
		})
	}
}

func TestFailedAddChangesNothing(t *testing.T) {
	for _, bad := range []int{0, 20, 40, 400} {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			x := open(t, Options{Dims: 5}, small)
			r := rand.New(rand.NewPCG(4, 4))
			old := random(r, 30, 5)
			add(t, x, numbered(0, 30), old)
			mapped := x.mapped.Load()
			vectors := random(r, 500, 5) // over several segments, and keys that are there
			vectors[bad*5+2] = float32(math.NaN())
			err := x.Add(numbered(10, 500), vectors)
			if !errors.Is(err, ErrNotFinite) || !strings.Contains(err.Error(), fmt.Sprint("key ", bad+10)) {
				t.Fatalf("%v, want the key %d", err, bad+10)
			}
			if x.Len() != 30 || x.Has(30) || x.mapped.Load() != mapped {
				t.Errorf("%d vectors, %d bytes more", x.Len(), x.mapped.Load()-mapped)
			}
			model := naive{5, map[uint64][]float32{}}
			model.add(numbered(0, 30), old)
			model.check(t, old[:5], 30, nil, nearest(t, x, old[:5], 30, nil), tolerance(5))
			more := random(r, 500, 5)
			add(t, x, numbered(10, 500), more)
			model.add(numbered(10, 500), more)
			model.check(t, old[:5], 1000, nil, nearest(t, x, old[:5], 1000, nil), tolerance(5))
		})
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"no dimensions": {}, "fewer than none": {Dims: -1}, "too many": {Dims: MaxDims + 1},
		"threads":   {Dims: 3, Threads: -1},
		"prefilter": {Dims: 3, Prefilter: 2},
	} {
		if _, err := New(o); err == nil {
			t.Error(name, "passes")
		}
	}
	x, err := New(Options{Dims: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if hits, err := x.Nearest([]float32{1, 0}, 3, nil); err != nil || len(hits) != 0 {
		t.Errorf("an empty index finds %v, %v", hits, err)
	}
	add(t, x, []uint64{0, 1}, []float32{1, 0, 0, 1}) // 0 is a key like any other
	for _, k := range []int{0, -1, math.MinInt} {
		if hits, err := x.Nearest([]float32{1, 0}, k, nil); err != nil || len(hits) != 0 {
			t.Errorf("k = %d: %v, %v", k, hits, err)
		}
	}
	if hits := nearest(t, x, []float32{1, 0}, math.MaxInt, nil); len(hits) != 2 || hits[0] != (Hit{0, 1}) ||
		hits[1] != (Hit{1, 0}) {
		t.Errorf("%v", hits)
	}
	if p := x.Path(); p != "exact, int8 first pass, "+available[len(available)-1].level() {
		t.Error(p)
	}
	if err := x.Add(nil, nil); err != nil {
		t.Error(err)
	}
}

func TestCosines(t *testing.T) {
	levels(t, func(t *testing.T, k kernels) {
		const n, dims = 400, 96
		x := open(t, Options{Dims: dims}, small, with(k))
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
		near := nearest(t, x, q, 50, nil)
		for _, h := range near {
			if same, err := x.Cosines(q, []uint64{h.Key}); err != nil || len(same) != 1 || same[0] != h {
				t.Errorf("%v, %v, but Nearest says %v", same, err, h)
			}
		}
	})
}

// TestVisitFindsEveryRowAboveTheFloor: no row that reaches the floor is left out, bounds hold, and removed rows are not
// visited.
func TestVisitFindsEveryRowAboveTheFloor(t *testing.T) {
	t.Parallel()
	const dims, rows = 48, 5000
	data := newClusters(11, 30, dims)
	x, err := New(Options{Dims: dims, Prefilter: Off})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	vectors := data.vectors(rows)
	if err := x.Add(numbered(1, rows), vectors); err != nil {
		t.Fatal(err)
	}
	x.Remove(7, 8, 9)
	q := data.vectors(1)
	for _, floor := range []float32{-2, -0.2, 0, 0.3, 0.6, 0.9} {
		visited := map[uint64]float32{}
		if err := x.Visit(q, floor, func(key uint64, upper float32) {
			if _, twice := visited[key]; twice {
				t.Errorf("row %d is visited twice", key)
			}
			visited[key] = upper
		}); err != nil {
			t.Fatal(err)
		}
		hits, err := x.Cosines(q, numbered(1, rows))
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range hits {
			upper, ok := visited[h.Key]
			if !ok && h.Cosine >= floor || ok && upper < h.Cosine || ok && upper > h.Cosine+0.1 {
				t.Fatalf("floor %v: row %d with the cosine %v is visited %v with the bound %v", floor, h.Key, h.Cosine,
					ok, upper)
			}
		}
		if _, ok := visited[8]; ok || len(visited) > rows-3 {
			t.Errorf("floor %v: %d rows are visited", floor, len(visited))
		}
	}
	if err := x.Visit(q[:3], 0, nil); !errors.Is(err, ErrDims) {
		t.Errorf("a query of another size: %v", err)
	}
}
