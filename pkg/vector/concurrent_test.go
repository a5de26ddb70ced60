package vector

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// TestConcurrentAddRemoveAndSearch has searches at work while everything around a few keys is added, replaced, removed
// and rewritten. What was there throughout is always found; what is replaced is there exactly once.
func TestConcurrentAddRemoveAndSearch(t *testing.T) {
	levels(t, func(t *testing.T, k kernels) {
		const dims, stays, moves = 24, 1 << 50, 1<<50 + 1
		x := open(t, dims, threads(2), small, with(k))
		best := make([]float32, dims)
		best[0] = 1
		second := []([]float32){
			append([]float32{1, 0.05}, make([]float32, dims-2)...),
			append([]float32{1, 0, 0.05}, make([]float32, dims-3)...),
		}
		noise := func(r *rand.Rand, n int) []float32 {
			v := random(r, n, dims)
			for i := range n {
				v[i*dims] = 0 // never near
			}
			return v
		}
		r := rand.New(rand.NewPCG(8, 8))
		add(t, x, numbered(0, 300), noise(r, 300))
		add(t, x, []uint64{stays, moves}, append(append([]float32{}, best...), second[0]...))

		done := make(chan struct{})
		var searches sync.WaitGroup
		for range 2 {
			searches.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-done:
						if n > 20 { // on a slow machine too
							return
						}
					default:
					}
					hits, err := x.Bounds(best)
					slices.SortFunc(hits, compareHits)
					if err != nil || len(hits) < 3 || hits[0].Key != stays || hits[1].Key != moves ||
						hits[2].Cosine > 0.1 {
						t.Errorf("search %d: %v, %v", n, hits, err)
						return
					}
					cosines, err := x.Cosines(best, []uint64{moves, stays})
					if err != nil || len(cosines) != 2 || cosines[0].Cosine < 0.99 || cosines[1].Cosine < 0.9999 {
						t.Errorf("search %d: %v, %v", n, cosines, err)
						return
					}
				}
			})
		}
		for i := range 150 {
			switch i % 3 {
			case 0:
				add(t, x, numbered(r.IntN(600), 60), noise(r, 60))
			case 1:
				x.Remove(numbered(r.IntN(600), 90)...)
			}
			add(t, x, []uint64{moves}, second[i%2])
		}
		close(done)
		searches.Wait()
	})
}

func TestClose(t *testing.T) {
	x := open(t, 8)
	v := random(rand.New(rand.NewPCG(1, 1)), 5000, 8)
	add(t, x, numbered(0, 5000), v)
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Bounds(v[:8]); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := x.Cosines(v[:8], []uint64{1}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := x.Add(1, v[:8]); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	x.Remove(1)
	if x.Len() != 0 || x.Close() != nil {
		t.Error("something is left")
	}
}

// TestCloseDuringSearches takes the index away while it is searched and written to.
func TestCloseDuringSearches(t *testing.T) {
	v := random(rand.New(rand.NewPCG(1, 1)), 2000, 32)
	for range 8 {
		x := open(t, 32, threads(2), small)
		add(t, x, numbered(0, 1500), v[:1500*32])
		var users sync.WaitGroup
		began := time.Now()
		for i := range 3 {
			users.Go(func() {
				// until it is closed: on a busy machine that may take a while
				for n := 0; time.Since(began) < 30*time.Second; n++ {
					var err error
					if i == 0 {
						at := n % 400
						err = x.Add(uint64(at), v[at*32:(at+1)*32])
					} else {
						_, err = x.Bounds(v[:32])
					}
					if errors.Is(err, ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
				t.Error("it was never closed")
			})
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		users.Wait()
	}
}
