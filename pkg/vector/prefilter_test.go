package vector

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// prefiltered makes the prefilter do its work with few rows.
func prefiltered(t *tuning) { t.prefilterAt, t.candidates, t.measureEvery = 1000, 64, 8 }

// unmeasured are vectors of one kind, in an index with a prefilter that is built and has seen no query.
func unmeasured(t *testing.T, n int, c *clusters, make func(n int) []float32, change ...func(*tuning)) (*Index, naive) {
	t.Helper()
	x := open(t, Options{Dims: c.dims, Threads: 2}, append([]func(*tuning){small, prefiltered}, change...)...)
	vectors, model := make(n), naive{c.dims, map[uint64][]float32{}}
	add(t, x, numbered(0, n), vectors)
	model.add(numbered(0, n), vectors)
	x.background.wait()
	return x, model
}

func TestPrefilterStaysOnWithHighRecall(t *testing.T) {
	levels(t, func(t *testing.T, k kernels) {
		const n, dims = 2000, 128
		c := newClusters(21, 45, dims)
		x, model := unmeasured(t, n, c, c.vectors, with(k))
		if p := x.Path(); !strings.HasPrefix(p, "exact, int8 first pass, "+k.level()+"; 1-bit prefilter on trial: "+
			"recall ") || !strings.HasSuffix(p, " on 32 rows") {
			t.Errorf("built: %s", p)
		}
		bytes := x.Bytes()
		for i := range x.tuning.measureFirst { // each of them is answered exactly
			q := c.vectors(1)
			if hits := nearest(t, x, q, 10, nil); i%4 == 0 {
				model.check(t, q, 10, nil, hits, tolerance(dims))
			}
		}
		if p := x.Path(); !strings.HasPrefix(p, "1-bit prefilter (recall ") ||
			!strings.HasSuffix(p, " on 32 live queries), "+k.level()) {
			t.Fatalf("measured: %s", p)
		}
		var found float64
		for range 16 {
			q := c.vectors(1)
			found += recall(model.nearest(q, nil), nearest(t, x, q, 10, nil), 10, 0) / 16
		}
		if found < 0.99 {
			t.Errorf("recall %v", found)
		}
		if g := x.latest.Load(); g.live.n != 32+16/8 {
			t.Errorf("%d queries were measured", g.live.n)
		}
		// The bits are counted, and there only while they are used.
		x.judgePrefilter(x.latest.Load(), failed(), 1)
		x.background.wait()
		if off := x.Bytes(); off != bytes-n*dims/8 {
			t.Errorf("%d bytes without the bits of %d", off, bytes)
		}
	})
}

// failed is a bad measurement.
func failed() *tally {
	t := new(tally)
	t.add(1, 2)
	return t
}

func TestPrefilterTurnsOffWithLowRecall(t *testing.T) {
	levels(t, func(t *testing.T, k kernels) {
		const dims = 64
		c := newClusters(22, 1, dims)
		x, model := unmeasured(t, 2000, c, c.spread, with(k))
		for range 3 {
			if p := x.Path(); !strings.Contains(p, "; 1-bit prefilter switched off: recall 0.") {
				t.Errorf("random vectors: %s", p)
			}
			q := c.spread(1)
			model.check(t, q, 10, nil, nearest(t, x, q, 10, nil), tolerance(dims))
		}
		x.background.wait()
		now := x.read()
		defer now.drop()
		if now.gen != nil || now.views[0].bits != nil {
			t.Error("the bits are still there")
		}
	})
}

// TestQueryRecallOverridesRowRecall: rows find each other well, but the queries that come are of another kind.
func TestQueryRecallOverridesRowRecall(t *testing.T) {
	const dims = 64
	c := newClusters(23, 50, dims)
	x, model := unmeasured(t, 3000, c, c.vectors)
	if p := x.Path(); !strings.Contains(p, "on trial") {
		t.Fatal(p)
	}
	for range 40 {
		q := c.spread(1)
		model.check(t, q, 10, nil, nearest(t, x, q, 10, nil), tolerance(dims))
	}
	x.background.wait()
	if p := x.Path(); !strings.Contains(p, "switched off: recall 0.") || !strings.HasSuffix(p, "on 32 live queries") {
		t.Error(p)
	}
}

func TestPrefilterIsRebuilt(t *testing.T) {
	const n, dims = 2000, 64
	add32 := func(t *testing.T, x *Index, first int, v []float32) {
		for i := 0; i < len(v)/dims; i += 32 {
			m := min(32, len(v)/dims-i)
			add(t, x, numbered(first+i, m), v[i*dims:(i+m)*dims])
		}
		x.background.wait()
	}
	for name, tt := range map[string]struct {
		change func(t *testing.T, x *Index, c *clusters)
		again  bool
	}{
		"grown by less than half": {func(t *testing.T, x *Index, c *clusters) {
			add32(t, x, n, c.vectors(n/2-50))
		}, false},
		"grown by half": {func(t *testing.T, x *Index, c *clusters) { add32(t, x, n, c.vectors(n/2)) }, true},
		"half replaced": {func(t *testing.T, x *Index, c *clusters) { add32(t, x, 0, c.vectors(n/2)) }, true},
		"half removed, half of that new": {func(t *testing.T, x *Index, c *clusters) {
			x.Remove(numbered(0, n/4)...)
			add32(t, x, n, c.vectors(n/4))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClusters(24, 30, dims)
			x, _ := unmeasured(t, n, c, c.vectors)
			before := x.latest.Load()
			tt.change(t, x, c)
			if again := x.latest.Load() != before; again != tt.again {
				t.Errorf("measured again: %v, want %v; %s", again, tt.again, x.Path())
			}
		})
	}
	t.Run("from useless to useful", func(t *testing.T) {
		c := newClusters(25, 30, dims)
		x, _ := unmeasured(t, n, c, c.spread)
		if p := x.Path(); !strings.Contains(p, "switched off") {
			t.Fatal(p)
		}
		add(t, x, numbered(0, n), c.vectors(n)) // at once: it is not built on some of them
		x.background.wait()
		if p := x.Path(); !strings.Contains(p, "on trial") {
			t.Error(p)
		}
	})
	t.Run("below the number of rows", func(t *testing.T) {
		c := newClusters(26, 30, dims)
		x, _ := unmeasured(t, n, c, c.vectors)
		x.Remove(numbered(0, n*3/4)...)
		x.background.wait()
		if p := x.Path(); strings.Contains(p, "1-bit") {
			t.Error(p)
		}
	})
}

// TestPrefilterAndKeep has the prefilter answer, whatever it is good for, and keep leave less and less.
func TestPrefilterAndKeep(t *testing.T) {
	levels(t, func(t *testing.T, k kernels) {
		const n, dims = 3000, 64
		c := newClusters(27, 40, dims)
		x, model := unmeasured(t, n, c, c.vectors, with(k))
		x.Remove(numbered(100, 200)...)
		for i := range uint64(200) {
			delete(model.of, 100+i)
		}
		r := x.read()
		defer r.drop()
		for name, keep := range map[string]func(uint64) bool{
			"a twentieth": func(k uint64) bool { return k%20 == 0 }, "few": func(k uint64) bool { return k%300 == 1 },
			"one": func(k uint64) bool { return k == 2999 }, "none": func(uint64) bool { return false },
		} {
			q := c.spread(1) // far from all: the bits say little
			p, err := x.prepareQuery(q)
			if err != nil {
				t.Fatal(name, err)
			}
			got := x.hamming(r, r.gen, p, 10, keep, 2)
			want := model.nearest(q, keep)
			if len(got) != min(10, len(want)) {
				t.Errorf("%s: %d found, %d there are", name, len(got), len(want))
			}
			for _, h := range got {
				if !keep(h.Key) {
					t.Errorf("%s: %d does not count", name, h.Key)
				}
			}
			if len(want) <= x.candidateCount(10) { // then all of them are scored
				model.check(t, q, 10, keep, got, tolerance(dims))
			}
		}
	})
}

// TestPrefilterFindsNewRows adds, replaces and removes while the prefilter answers.
func TestPrefilterFindsNewRows(t *testing.T) {
	const n, dims = 2000, 64
	c := newClusters(28, 30, dims)
	x, _ := unmeasured(t, n, c, c.vectors, func(t *tuning) { t.measureEvery = 1 << 30 })
	x.latest.Load().proven.Store(true)
	r := rand.New(rand.NewPCG(9, 9))
	for i := range 300 {
		key := uint64(r.IntN(2 * n))
		v := random(r, 1, dims)
		add(t, x, []uint64{key}, v)
		if hits := nearest(t, x, v, 1, nil); len(hits) != 1 || hits[0].Key != key {
			t.Fatalf("%d: %v, want the key %d that was just added", i, hits, key)
		}
		x.Remove(key)
		if hits := nearest(t, x, v, 1, nil); len(hits) != 1 || hits[0].Key == key {
			t.Fatalf("%d: %v: the key was removed", i, hits)
		}
	}
	if p := x.Path(); !strings.HasPrefix(p, "1-bit") {
		t.Error(p)
	}
}

// TestEveryRowHasSignBits writes in all ways there are, and then makes the bits of all rows again.
func TestEveryRowHasSignBits(t *testing.T) {
	const n, dims = 1500, 70
	c := newClusters(30, 30, dims)
	x, _ := unmeasured(t, n, c, c.vectors)
	add(t, x, []uint64{n}, c.vectors(1))
	add(t, x, numbered(n+1, 300), c.vectors(300)) // new segments
	add(t, x, numbered(100, 50), c.vectors(50))   // replaced
	before := x.nextID
	x.Remove(numbered(300, 250)...)
	if x.nextID == before {
		t.Fatal("nothing was rewritten")
	}
	r := x.read()
	defer r.drop()
	for i := range r.views {
		v, count := &r.views[i], r.count(i)
		if v.bits == nil {
			t.Fatalf("segment %d of %d has no bits", i, len(r.views))
		}
		want := make([]uint64, len(v.bits.bits))
		reference.signs(&v.seg.rows, r.gen.centre, 0, count, want)
		for row := range count {
			for w := range v.seg.stride / 64 {
				if at := (row/8*(v.seg.stride/64)+w)*8 + row%8; v.bits.bits[at] != want[at] {
					t.Fatalf("segment %d of %d: row %d of %d has other bits", i, len(r.views), row, count)
				}
			}
		}
	}
}

func TestPrefilterOff(t *testing.T) {
	c := newClusters(29, 30, 64)
	x := open(t, Options{Dims: 64, Prefilter: Off}, small, prefiltered)
	add(t, x, numbered(0, 3000), c.vectors(3000))
	x.background.wait()
	if p := x.Path(); strings.Contains(p, "1-bit") {
		t.Error(p)
	}
}
