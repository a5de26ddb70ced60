package vector

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// FuzzIndex does what the bytes say to an index and to a map, and asks both.
func FuzzIndex(f *testing.F) {
	f.Add([]byte{0, 0, 200, 1, 10, 3, 5, 2, 7, 1, 90, 4, 9})
	f.Add([]byte{5, 8, 250, 8, 250, 8, 250, 9, 100, 12, 33, 10, 1, 8, 250, 9, 255, 11, 20})
	f.Add([]byte{3, 0, 255, 1, 255, 1, 255, 2, 3, 0, 60, 1, 60, 3, 0})
	f.Add([]byte{30, 16, 255, 16, 255, 18, 9, 19, 40, 20, 70, 18, 200, 17, 128, 18, 3})
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) < 2 {
			return
		}
		dims := int(ops[0])%9 + 1
		level := available[int(ops[0]/9)%len(available)]
		x := open(t, dims, threads(int(ops[0])%3+1), with(level), func(u *tuning) {
			u.firstRows, u.mostRows, u.threadBytes = 8, 40, 1<<11
		})
		model := naive{dims, map[uint64][]float32{}}
		r := rand.New(rand.NewPCG(uint64(ops[0]), uint64(len(ops))))
		for ops = ops[1:min(len(ops), 40)]; len(ops) >= 2; ops = ops[2:] {
			op, n := ops[0]%5, int(ops[1])
			switch op {
			case 0: // many, with some keys twice
				keys := make([]uint64, n%64)
				for i := range keys {
					keys[i] = r.Uint64N(100)
				}
				vectors := coarse(r, len(keys)*dims)
				add(t, x, keys, vectors)
				model.add(keys, vectors)
			case 1: // some, from one key on
				keys := numbered(n, 7)
				if n%2 == 0 {
					slices.Reverse(keys)
				}
				vectors := coarse(r, len(keys)*dims)
				add(t, x, keys, vectors)
				model.add(keys, vectors)
			case 2:
				keys := numbered(n%100, n%30)
				for _, k := range keys {
					delete(model.of, k)
				}
				x.Remove(keys...)
			case 3:
				q := coarse(r, dims)
				model.check(t, q, n%40, nearest(t, x, q, n%40), tolerance(dims))
			case 4:
				q, keys := coarse(r, dims), numbered(n%90, 20)
				hits, err := x.Cosines(q, keys)
				if err != nil {
					t.Fatal(err)
				}
				for _, key := range keys {
					v, ok := model.of[key]
					if has(t, x, key) != ok {
						t.Fatalf("has %d: %v", key, !ok)
					}
					if !ok {
						continue
					}
					if len(hits) == 0 || hits[0].Key != key ||
						abs(cosine(q, v)-float64(hits[0].Cosine)) > tolerance(dims) {
						t.Fatalf("%v, want the key %d with %v", hits, key, cosine(q, v))
					}
					hits = hits[1:]
				}
				if len(hits) > 0 {
					t.Fatalf("%v left over", hits)
				}
			}
			if x.Len() != len(model.of) {
				t.Fatalf("%d vectors, want %d", x.Len(), len(model.of))
			}
		}
	})
}

// coarse makes vectors of few different numbers, so that many are as near as one another. None is zero.
func coarse(r *rand.Rand, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(r.IntN(4)) - 1.5
	}
	return out
}

func abs(f float64) float64 { return max(f, -f) }
