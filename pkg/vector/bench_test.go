package vector

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"
)

// benchDims is how many numbers the vectors of the usual model have.
const benchDims = 768

// benchSizes are the indexes that are measured. The largest takes 5 GB and a minute to make, so it has to be asked for:
// CONCLAVE_VECTOR_MILLION=1.
func benchSizes() map[string]int {
	out := map[string]int{"1k": 1_000, "10k": 10_000, "100k": 100_000}
	if os.Getenv("CONCLAVE_VECTOR_MILLION") != "" {
		out = map[string]int{"1M": 1_000_000}
	}
	return out
}

// benchData is clustered vectors and queries like them. It is made once per size.
type benchData struct{ vectors, queries []float32 }

var benchMade sync.Map

func dataFor(n int) benchData {
	made, _ := benchMade.LoadOrStore(n, sync.OnceValue(func() benchData {
		size := 1
		for size*size < n {
			size++
		}
		c := newClusters(uint64(n), size, benchDims)
		return benchData{c.vectors(n), c.vectors(64)}
	}))
	return made.(func() benchData)()
}

func benchIndex(b *testing.B, n int, o Options) (*Index, benchData) {
	d := dataFor(n)
	x := open(b, o)
	for first := 0; first < n; first += 10_000 {
		m := min(10_000, n-first)
		add(b, x, numbered(first, m), d.vectors[first*benchDims:(first+m)*benchDims])
	}
	x.background.wait()
	return x, d
}

func (d benchData) query(i int) []float32 {
	n := len(d.queries) / benchDims
	return d.queries[i%n*benchDims : (i%n+1)*benchDims]
}

// stream reads all vectors once with one thread: what a search of plain numbers could not beat.
func (d benchData) stream() uint64 {
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&d.vectors[0])), len(d.vectors)/2)
	var s, t, u, v uint64 // apart: one sum would wait for itself rather than for memory
	for ; len(words) >= 8; words = words[8:] {
		s += words[0] + words[4]
		t += words[1] + words[5]
		u += words[2] + words[6]
		v += words[3] + words[7]
	}
	return s + t + u + v
}

// recall compares some answers with those that plain numbers give.
func (d benchData) recall(b *testing.B, x *Index, queries int) (sum float64) {
	for i := range queries {
		q := d.query(i)
		want := top{k: 20}
		for key := range len(d.vectors) / benchDims {
			want.add(Hit{uint64(key), float32(cosine(q, d.vectors[key*benchDims:][:benchDims]))})
		}
		for _, h := range nearest(b, x, q, 20, nil) {
			if slices.ContainsFunc(want.hits, func(w Hit) bool { return w.Key == h.Key }) {
				sum += 1. / 20
			}
		}
	}
	return sum / float64(queries)
}

// BenchmarkNearest looks for 20 of each size, every search beside one read of the same vectors, and says the median of
// both: the ratio holds on a busy machine too.
func BenchmarkNearest(b *testing.B) {
	for name, n := range benchSizes() {
		for _, p := range []Prefilter{Off, Auto} {
			path := "exact"
			if p == Auto {
				if path = "1bit"; n < defaultTuning().prefilterAt {
					continue
				}
			}
			b.Run(name+"/"+path, func(b *testing.B) {
				x, d := benchIndex(b, n, Options{Dims: benchDims, Prefilter: p})
				for i := range 2 * defaultTuning().measureFirst { // until it is proven
					nearest(b, x, d.query(i), 20, nil)
				}
				if p == Auto && !strings.HasPrefix(x.Path(), "1-bit") {
					b.Fatal(x.Path())
				}
				var search, read []time.Duration
				var sum uint64
				for i := 0; b.Loop(); i++ {
					began := time.Now()
					nearest(b, x, d.query(i), 20, nil)
					search = append(search, time.Since(began))
					if n < 1_000_000 || i%8 == 0 {
						began = time.Now()
						sum += d.stream()
						read = append(read, time.Since(began))
					}
				}
				slices.Sort(search)
				slices.Sort(read)
				b.ReportMetric(search[len(search)/2].Seconds()*1e3, "p50-ms")
				b.ReportMetric(read[len(read)/2].Seconds()*1e3, "read-ms")
				b.ReportMetric(float64(search[len(search)/2])/float64(read[len(read)/2]), "ratio")
				b.ReportMetric(float64(x.Bytes())/float64(n), "B/row")
				b.ReportMetric(d.recall(b, x, 8), "recall@20")
				b.Logf("%s (%d)", x.Path(), sum&1)
			})
		}
	}
}

// BenchmarkKeep looks for 20 among the few that count.
func BenchmarkKeep(b *testing.B) {
	for name, n := range benchSizes() {
		for _, one := range []uint64{2, 100, 10_000} {
			b.Run(fmt.Sprintf("%s/1 in %d", name, one), func(b *testing.B) {
				x, d := benchIndex(b, n, Options{Dims: benchDims})
				for i := 0; b.Loop(); i++ {
					nearest(b, x, d.query(i), 20, func(k uint64) bool { return k%one == 0 })
				}
			})
		}
	}
}

// BenchmarkScan is the first pass of each level over rows that are near the processor: what it could do if memory were
// quick.
func BenchmarkScan(b *testing.B) {
	const n = blockRows
	d := dataFor(1000)
	of, q := quantized(b, d.vectors[:n*benchDims/2], benchDims), queryOf(b, d.query(0))
	for _, k := range available {
		b.Run(k.level(), func(b *testing.B) {
			var found block
			b.SetBytes(n / 2 * benchDims)
			for b.Loop() {
				k.scan(of, 0, n/2, q, 2, &found)
			}
		})
	}
}

// BenchmarkAdd is how fast vectors come in: many at once, and one by one.
func BenchmarkAdd(b *testing.B) {
	const n = 20_000
	d := dataFor(n)
	for _, size := range []int{1, 1000, n} {
		b.Run(fmt.Sprintf("by%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				x := open(b, Options{Dims: benchDims})
				for i := 0; i < n; i += size {
					add(b, x, numbered(i, size), d.vectors[i*benchDims:(i+size)*benchDims])
				}
				if err := x.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "vectors/s")
		})
	}
}
