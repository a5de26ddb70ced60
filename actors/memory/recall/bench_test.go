package recall

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"conclave/subjects"
)

// crowd makes rows as an assistant gathers them: texts of a language with some frequent and many rare words, and
// vectors of 768 numbers around some hundred subjects.
type crowd struct {
	rng     *rand.Rand
	zipf    *rand.Zipf
	centres [][]float32
}

const crowdDims = 768

func newCrowd() *crowd {
	c := &crowd{rng: rand.New(rand.NewPCG(1, 1))}
	c.zipf = rand.NewZipf(c.rng, 1.1, 20, 50_000)
	for range 300 {
		c.centres = append(c.centres, c.around(make([]float32, crowdDims), 1))
	}
	return c
}

// around is a vector near another one.
func (c *crowd) around(centre []float32, noise float64) []float32 {
	v := make([]float32, crowdDims)
	for i := range v {
		v[i] = centre[i] + float32(noise*c.rng.NormFloat64()/math.Sqrt(crowdDims))
	}
	return v
}

func (c *crowd) vector() []float32 { return c.around(c.centres[c.rng.IntN(len(c.centres))], 0.6) }

func (c *crowd) text(n int) string {
	words := make([]string, n)
	for i := range words {
		words[i] = fmt.Sprintf("word%d", c.zipf.Uint64())
	}
	return strings.Join(words, " ")
}

func (c *crowd) row(key uint64) subjects.MemoryEntry {
	return subjects.MemoryEntry{
		ID: fmt.Sprintf("01890000-0000-7000-8000-%012d", key), Kind: subjects.KindEngram,
		State: subjects.MemoryActive, Name: c.text(5), Corpus: c.text(15), Respondent: "generator",
		Provenance: subjects.Provenance{Trust: subjects.Trusted, Source: subjects.SourceConversation},
		Tags:       []string{c.text(1), c.text(1)}, Created: time.Unix(1_700_000_000+int64(key), 0),
	}
}

func (c *crowd) recall(b *testing.B) *Recall {
	b.Helper()
	r, err := New(Options{Dims: crowdDims, Hybrid: true, Now: func() time.Time { return time.Unix(1_800_000_000, 0) }})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := r.Close(); err != nil {
			b.Error(err)
		}
	})
	return r
}

// BenchmarkFind: a whole search beside the scan of the vectors and the search for words that are in it.
func BenchmarkFind(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("%dk", n/1000), func(b *testing.B) {
			c := newCrowd()
			r := c.recall(b)
			for key := uint64(1); key <= uint64(n); key++ {
				if err := r.Put(key, c.row(key), Vectors{Corpus: c.vector()}); err != nil {
					b.Fatal(err)
				}
			}
			queries := make([]Query, 64)
			for i := range queries {
				queries[i] = Query{Text: c.text(8), Vector: c.vector()}
			}
			b.Run("bounds", func(b *testing.B) {
				for i := range b.N {
					if _, err := r.vectors[ofCorpus].Bounds(queries[i%64].Vector); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("words", func(b *testing.B) {
				for i := range b.N {
					r.words.search(queries[i%64].Text).release()
				}
			})
			b.Run("find", func(b *testing.B) {
				for i := range b.N {
					if _, err := r.Find(queries[i%64]); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// BenchmarkLoad: what a row costs when the system starts, and how many bytes it takes on the heap.
func BenchmarkLoad(b *testing.B) {
	c := newCrowd()
	rows := make([]subjects.MemoryEntry, 100_000)
	for i := range rows {
		rows[i] = c.row(uint64(i + 1))
	}
	vectors := make([][]float32, 100) // as the database hands them over: just read
	for i := range vectors {
		vectors[i] = c.vector()
	}
	for _, what := range []string{"rows", "vectors"} {
		vectored := what == "vectors"
		b.Run(what, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				r := c.recall(b)
				empty := heap()
				b.StartTimer()
				for i, row := range rows {
					var v []float32
					if vectored {
						v = vectors[i%len(vectors)]
					}
					if err := r.Put(uint64(i+1), row, Vectors{Corpus: v}); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				b.ReportMetric(float64(heap()-empty)/float64(len(rows)), "B/row")
				runtime.KeepAlive(r)
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(rows)), "ns/row")
		})
	}
	runtime.KeepAlive(rows)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkCache: asking in vain, with as many results as are usually kept.
func BenchmarkCache(b *testing.B) {
	c := newCrowd()
	at := time.Unix(1_800_000_000, 0)
	cache := NewCache(func() time.Time { return at })
	key := func() Key { return Key{Text: "tell me about " + c.text(6), Vector: c.vector()} }
	hit := subjects.MemoryReply{
		Hits: []subjects.MemoryHit{{Entry: subjects.MemoryEntry{ID: "m1", Kind: subjects.KindFact}, Score: 0.9}},
	}
	for range maxResults {
		cache.Put(key(), hit, cache.Generation())
	}
	missed := key()
	b.Run("get", func(b *testing.B) {
		for b.Loop() {
			cache.Get(missed)
		}
	})
}
