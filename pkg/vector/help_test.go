package vector

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// normals are numbers to draw from: quicker than to make each, and as good for a test.
var normals = func() []float32 {
	r := rand.New(rand.NewPCG(7, 7))
	out := make([]float32, 1<<16)
	for i := range out {
		out[i] = float32(r.NormFloat64())
	}
	return out
}()

// random makes vectors in every direction.
func random(r *rand.Rand, n, dims int) []float32 {
	out := make([]float32, n*dims)
	for i := 0; i < len(out); {
		for u, j := r.Uint64(), 0; j < 4 && i < len(out); i, j, u = i+1, j+1, u>>16 {
			out[i] = normals[u&0xffff]
		}
	}
	return out
}

// clusters makes vectors as real ones are: around centres, with a cosine of about 0.75 between two of the same.
type clusters struct {
	r       *rand.Rand
	dims    int
	centres []float32
}

func newClusters(seed uint64, n, dims int) *clusters {
	r := rand.New(rand.NewPCG(seed, 1))
	return &clusters{r, dims, random(r, n, dims)}
}

func (c *clusters) vectors(n int) []float32 {
	out := random(c.r, n, c.dims)
	noise := float32(math.Sqrt(1. / 3))
	for i := range n {
		centre := c.centres[c.r.IntN(len(c.centres)/c.dims)*c.dims:]
		v := out[i*c.dims : (i+1)*c.dims]
		for j := range v {
			v[j] = v[j]*noise + centre[j]
		}
	}
	return out
}

// numbered are the keys first, first+1, ...
func numbered(first, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = uint64(first + i)
	}
	return out
}

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return ab / math.Sqrt(aa*bb)
}

// naive is the index as a map: slow and right.
type naive struct {
	dims int
	of   map[uint64][]float32
}

func (n naive) add(keys []uint64, vectors []float32) {
	for i, k := range keys {
		n.of[k] = slices.Clone(vectors[i*n.dims : (i+1)*n.dims])
	}
}

type exactHit struct {
	key    uint64
	cosine float64
}

// nearest is every key, best first.
func (n naive) nearest(q []float32) []exactHit {
	var out []exactHit
	for k, v := range n.of {
		out = append(out, exactHit{k, cosine(q, v)})
	}
	slices.SortFunc(out, func(a, b exactHit) int {
		switch {
		case a.cosine > b.cosine || a.cosine == b.cosine && a.key < b.key:
			return -1
		default:
			return 1
		}
	})
	return out
}

// check compares an answer with the right one.
func (n naive) check(t testing.TB, q []float32, k int, got []Hit, off float64) {
	t.Helper()
	compare(t, n.nearest(q), k, got, off)
}

// compare asks for as many hits as there are, in order, each with its own cosine, and none left out that is better than
// one that is there by more than off.
func compare(t testing.TB, want []exactHit, k int, got []Hit, off float64) {
	t.Helper()
	if len(got) != max(0, min(k, len(want))) {
		t.Fatalf("%d hits, want %d of %d", len(got), k, len(want))
	}
	right := make(map[uint64]float64, len(want))
	for _, w := range want {
		right[w.key] = w.cosine
	}
	for i, h := range got {
		c, ok := right[h.Key]
		if !ok {
			t.Fatalf("hit %d: key %d does not count, or was there before", i, h.Key)
		}
		delete(right, h.Key)
		if math.Abs(c-float64(h.Cosine)) > off {
			t.Fatalf("hit %d: key %d has the cosine %v, not %v", i, h.Key, c, h.Cosine)
		}
		if math.Abs(want[i].cosine-float64(h.Cosine)) > off {
			t.Fatalf("hit %d: cosine %v, want %v (key %d)", i, h.Cosine, want[i].cosine, want[i].key)
		}
		if i > 0 && compareHits(got[i-1], h) >= 0 {
			t.Fatalf("hit %d: %v after %v", i, h, got[i-1])
		}
	}
}

// spread makes vectors in every direction.
func (c *clusters) spread(n int) []float32 { return random(c.r, n, c.dims) }

// recall is which part of the first k of want is in got; those whose cosines differ by at most off count for one
// another.
func recall(want []exactHit, got []Hit, k int, off float64) float64 {
	k = min(k, len(want))
	found := 0
	for _, h := range got {
		i := slices.IndexFunc(want, func(w exactHit) bool { return w.key == h.Key })
		if i >= 0 && want[i].cosine >= want[k-1].cosine-off {
			found++
		}
	}
	return float64(found) / float64(k)
}

// open makes an index that is closed at the end of the test.
func open(t testing.TB, dims int, change ...func(*tuning)) *Index {
	t.Helper()
	u := defaultTuning()
	for _, c := range change {
		c(&u)
	}
	x, err := newIndex(dims, u)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

// threads sets how many threads a search has.
func threads(n int) func(*tuning) { return func(t *tuning) { t.threads = n } }

func add(t testing.TB, x *Index, keys []uint64, vectors []float32) {
	t.Helper()
	for i, key := range keys {
		if err := x.Add(key, vectors[i*x.dims:(i+1)*x.dims]); err != nil {
			t.Fatal(err)
		}
	}
}

// has reports whether the index has a vector of key.
func has(t testing.TB, x *Index, key uint64) bool {
	t.Helper()
	q := make([]float32, x.dims)
	q[0] = 1
	hits, err := x.Cosines(q, []uint64{key})
	if err != nil {
		t.Fatal(err)
	}
	return len(hits) == 1
}

// nearest returns the best k of all keys, best first, of equal ones the smaller key.
func nearest(t testing.TB, x *Index, q []float32, k int) []Hit {
	t.Helper()
	bounds, err := x.Bounds(q)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]uint64, len(bounds))
	for i, b := range bounds {
		keys[i] = b.Key
	}
	hits, err := x.Cosines(q, keys)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(hits, compareHits)
	return hits[:min(k, len(hits))]
}

// compareHits orders hits: the larger cosine first, of equal ones the smaller key.
func compareHits(a, b Hit) int {
	return cmp.Or(cmp.Compare(b.Cosine, a.Cosine), cmp.Compare(a.Key, b.Key))
}
