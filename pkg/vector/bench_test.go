package vector

import (
	"os"
	"slices"
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

// BenchmarkBounds bounds every cosine, each time beside one read of the same vectors, and says the median of both: the
// ratio holds on a busy machine too.
func BenchmarkBounds(b *testing.B) {
	for name, n := range benchSizes() {
		b.Run(name, func(b *testing.B) {
			d := dataFor(n)
			x := open(b, benchDims)
			add(b, x, numbered(0, n), d.vectors)
			var search, read []time.Duration
			var sum uint64
			for i := 0; b.Loop(); i++ {
				began := time.Now()
				if _, err := x.Bounds(d.query(i)); err != nil {
					b.Fatal(err)
				}
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
			b.Logf("%s (%d)", x.Path(), sum&1)
		})
	}
}

// BenchmarkDots is the first pass of each level over rows that are near the processor: what it could do if memory were
// quick.
func BenchmarkDots(b *testing.B) {
	const n = blockRows
	d := dataFor(1000)
	of, q := quantized(b, d.vectors[:n*benchDims/2], benchDims), queryOf(b, d.query(0))
	for _, k := range available {
		b.Run(k.level(), func(b *testing.B) {
			var found [n]int32
			b.SetBytes(n / 2 * benchDims)
			for b.Loop() {
				k.dots(of, 0, n/2, q, found[:])
			}
		})
	}
}

// BenchmarkAdd is how fast vectors come in.
func BenchmarkAdd(b *testing.B) {
	const n = 20_000
	d := dataFor(n)
	b.ReportAllocs()
	for b.Loop() {
		x := open(b, benchDims)
		add(b, x, numbered(0, n), d.vectors)
		if err := x.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "vectors/s")
}
