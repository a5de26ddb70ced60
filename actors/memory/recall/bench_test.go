package recall

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"conclave/subjects"
)

// crowd is rows as an assistant gathers them: texts of a language whose words are as frequent as those of any, vectors of
// 768 numbers around some hundred subjects.
type crowd struct {
	rng     *rand.Rand
	zipf    *rand.Zipf
	centres [][]float32
}

const crowdDims = 768

func newCrowd(seed uint64, subjectsOf int) *crowd {
	c := &crowd{rng: rand.New(rand.NewPCG(seed, 1))}
	c.zipf = rand.NewZipf(c.rng, 1.1, 20, 50_000)
	for range subjectsOf {
		c.centres = append(c.centres, c.direction(nil, 0))
	}
	return c
}

// direction is a random vector, around another one when there is one.
func (c *crowd) direction(around []float32, noise float64) []float32 {
	v := make([]float32, crowdDims)
	for i := range v {
		x := c.rng.NormFloat64()
		if around != nil {
			x = float64(around[i]) + noise*x/math.Sqrt(crowdDims)
		} else {
			x /= math.Sqrt(crowdDims)
		}
		v[i] = float32(x)
	}
	return v
}

func (c *crowd) text(n int) string {
	words := make([]string, n)
	for i := range words {
		words[i] = fmt.Sprintf("word%d", c.zipf.Uint64())
	}
	return strings.Join(words, " ")
}

func (c *crowd) row(key uint64) (Row, []float32, []float32) {
	about := c.centres[c.rng.IntN(len(c.centres))]
	return Row{
		Key: key, ID: fmt.Sprintf("01890000-0000-7000-8000-%012d", key), Kind: subjects.KindEngram, State: subjects.MemoryActive,
		Trust: "trusted", Source: subjects.SourceConversation, Name: c.text(5), Description: c.text(15), Respondent: "generator",
		Tags: []string{c.text(1), c.text(1)}, Created: time.Unix(1_700_000_000+int64(key), 0),
	}, c.direction(about, 0.6), c.direction(about, 0.6)
}

func BenchmarkFind(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(fmt.Sprintf("%dk", n/1000), func(b *testing.B) {
			c := newCrowd(1, 300)
			var before runtime.MemStats
			rows := make([]Row, n)
			names, abouts := make([][]float32, n), make([][]float32, n)
			for i := range rows {
				rows[i], names[i], abouts[i] = c.row(uint64(i + 1))
			}
			runtime.GC()
			runtime.ReadMemStats(&before)
			r, err := New(Options{Dims: crowdDims, Hybrid: true, Now: func() time.Time { return time.Unix(1_800_000_000, 0) }})
			if err != nil {
				b.Fatal(err)
			}
			defer r.Close()
			start := time.Now()
			if _, err := r.Load(func(put func(Row, []float32, []float32) error) error {
				for i, row := range rows {
					if err := put(row, names[i], abouts[i]); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				b.Fatal(err)
			}
			load := time.Since(start)
			runtime.GC()
			var mid, after runtime.MemStats
			runtime.ReadMemStats(&mid)
			start = time.Now()
			if err := r.Warm(context.Background()); err != nil {
				b.Fatal(err)
			}
			warm := time.Since(start)
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.Logf("load %v, warm %v, rows %d bytes each, words %d bytes each, %+v", load, warm, (int(mid.HeapAlloc)-int(before.HeapAlloc))/n, (int(after.HeapAlloc)-int(mid.HeapAlloc))/n, r.Stats())
			queries := make([]Query, 64)
			for i := range queries {
				_, v, _ := c.row(0)
				queries[i] = Query{Text: c.text(8), Vector: v}
			}
			b.Run("nearest", func(b *testing.B) {
				for i := range b.N {
					if _, err := r.names.Nearest(queries[i%64].Vector, 20, nil); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("nearest60", func(b *testing.B) {
				for i := range b.N {
					if _, err := r.names.Nearest(queries[i%64].Vector, 60, nil); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("words", func(b *testing.B) {
				for i := range b.N {
					r.words.search(queries[i%64].Text, 60, nil, nil)
				}
			})
			b.Run("find", func(b *testing.B) {
				for i := range b.N {
					if _, err := r.Find(queries[i%64]); err != nil {
						b.Fatal(err)
					}
				}
			})
			runtime.KeepAlive(rows)
			runtime.KeepAlive(names)
			runtime.KeepAlive(abouts)
		})
	}
}
