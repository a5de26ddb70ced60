package vector

import (
	"cmp"
	"slices"
)

// compareHits orders hits: the larger cosine first, of equal ones the smaller key.
func compareHits(a, b Hit) int {
	if c := cmp.Compare(b.Cosine, a.Cosine); c != 0 {
		return c
	}
	return cmp.Compare(a.Key, b.Key)
}

// top keeps the best k hits in a heap whose root is the worst of them.
type top struct {
	k    int
	hits []Hit
}

func (t *top) full() bool { return len(t.hits) == t.k }

// worst returns the smallest cosine kept. Only valid when full.
func (t *top) worst() float32 { return t.hits[0].Cosine }

// add keeps h if it is among the best k so far, and drops the worst for it. k must be at least 1.
func (t *top) add(h Hit) {
	if !t.full() {
		t.hits = append(t.hits, h)
		for i := len(t.hits) - 1; i > 0; {
			parent := (i - 1) / 2
			if compareHits(t.hits[parent], t.hits[i]) > 0 {
				break
			}
			t.hits[i], t.hits[parent] = t.hits[parent], t.hits[i]
			i = parent
		}
		return
	}
	if compareHits(h, t.hits[0]) > 0 {
		return
	}
	t.hits[0] = h
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(t.hits) {
			return
		}
		if child+1 < len(t.hits) && compareHits(t.hits[child+1], t.hits[child]) > 0 {
			child++
		}
		if compareHits(t.hits[i], t.hits[child]) > 0 {
			return
		}
		t.hits[i], t.hits[child] = t.hits[child], t.hits[i]
		i = child
	}
}

// sorted returns the kept hits, best first.
func (t *top) sorted() []Hit {
	slices.SortFunc(t.hits, compareHits)
	return t.hits
}

// floor keeps the k largest values in a heap whose root is the smallest of them.
type floor struct {
	k      int
	values []float32
}

func (f *floor) full() bool { return len(f.values) == f.k }

// add keeps v if it is among the k largest values so far, and drops the smallest for it. k must be at least 1.
func (f *floor) add(v float32) {
	h := f.values
	if len(h) < f.k {
		f.values = append(h, v)
		h = f.values
		for i := len(h) - 1; i > 0; {
			parent := (i - 1) / 2
			if h[parent] <= h[i] {
				break
			}
			h[i], h[parent] = h[parent], h[i]
			i = parent
		}
		return
	}
	if v <= h[0] {
		return
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if v <= h[child] {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = v
}
