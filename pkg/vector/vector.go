// Package vector finds the nearest of many vectors by their cosine, exactly, in memory.
//
// A vector is kept as codes of 16 bits in two planes. A search reads the plane of high bytes from end to end with several
// threads. How far such a short look may be off is known for every row, so rows that cannot be among the nearest are left
// out for certain; the others are scored by both planes. What comes out is what scoring every row would give: cosines
// within about 1e-5 of those of the vectors that came in.
//
// Above some hundred thousand rows a first look at one bit per number can be enough. It is used only while it finds at
// least 0.99 of what the exact search finds, which is measured on the data and on the queries that come; see [Index.Path].
//
// The inner loops are in C, chosen by what the processor can do, with a twin in Go for builds without a C compiler.
package vector

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
)

// MaxDims is how many numbers a vector may have.
const MaxDims = 1 << 15

// What can be wrong with vectors. Nothing is added and nothing is found then.
var (
	ErrDims      = errors.New("the vector does not have the index's number of dimensions; use vectors of one model")
	ErrNotFinite = errors.New("the vector has a number that is infinite or none; make it again")
	ErrZero      = errors.New("the vector is all zeros and points nowhere; make it again")
	ErrClosed    = errors.New("the index is closed")
)

// Prefilter says whether large indexes may look at one bit per number first.
type Prefilter int

// What [Options] can ask for.
const (
	Auto Prefilter = iota // while it finds at least 0.99 of what there is
	Off                   // never
)

// Options say how an index works.
type Options struct {
	Dims      int
	Threads   int // that one search uses; 0 = as many as Go has
	Prefilter Prefilter
}

// Hit is one key that was found.
type Hit struct {
	Key    uint64
	Cosine float32
}

// Index holds one vector per key and finds the nearest. Readers never wait for writers. Writers wait for one another.
// The zero value is not usable. Its memory is not the heap's: [Index.Close] gives it back.
type Index struct {
	dims, stride int
	threads      int
	prefilter    Prefilter
	tuning       tuning

	current atomic.Pointer[snapshot]
	table   *table
	mapped  atomic.Int64 // bytes reserved
	scratch sync.Pool    // of *scratch

	mu     sync.Mutex // of writers
	nextID uint32     // of segments

	latest    atomic.Pointer[generation] // of the prefilter, also when it is off
	building  bool                       // a new one; the writers'
	changes   int                        // rows that came or went since it was built; the writers'
	notBefore int                        // rows, after building one failed; the writers'

	background background
}

// tuning is what tests make small.
type tuning struct {
	kernels      kernels
	firstRows    int // room of the first segment
	mostRows     int // room of the largest
	fewDead      int // dead rows that are never worth rewriting a segment
	threadBytes  int // that one thread reads rather than start another
	prefilterAt  int // rows
	candidates   int // of the prefilter, at least
	measureRows  int // rows that are searched for when the prefilter is built
	measureFirst int // queries that are measured then
	measureEvery int // one in so many after that
}

func usual() tuning {
	return tuning{
		kernels: available[len(available)-1], firstRows: 4096, mostRows: 1 << 16, fewDead: 64, threadBytes: 2 << 20,
		prefilterAt: 300_000, candidates: 2048, measureRows: 32, measureFirst: 32, measureEvery: 64,
	}
}

// New returns an empty index.
func New(o Options) (*Index, error) { return newIndex(o, usual()) }

func newIndex(o Options, t tuning) (*Index, error) {
	switch {
	case o.Dims < 1 || o.Dims > MaxDims:
		return nil, fmt.Errorf("vectors of %d dimensions: give between 1 and %d", o.Dims, MaxDims)
	case o.Threads < 0:
		return nil, fmt.Errorf("%d threads: give a number above 0, or 0 for all", o.Threads)
	case o.Prefilter != Auto && o.Prefilter != Off:
		return nil, fmt.Errorf("prefilter %d: give Auto or Off", o.Prefilter)
	}
	x := &Index{
		dims: o.Dims, stride: (o.Dims + lane - 1) / lane * lane, threads: o.Threads, prefilter: o.Prefilter, tuning: t,
		table: newTable(),
	}
	if x.threads == 0 {
		x.threads = runtime.GOMAXPROCS(0)
	}
	x.scratch.New = func() any { return new(scratch) }
	x.background.init()
	empty := new(snapshot)
	empty.refs.Store(1)
	x.current.Store(empty)
	return x, nil
}

// Has reports whether there is a vector of key.
func (x *Index) Has(key uint64) bool {
	_, ok := x.table.get(key)
	return ok
}

// Len is how many vectors there are.
func (x *Index) Len() int { return int(x.table.live.Load()) }

// Bytes is how much memory the index has in use.
func (x *Index) Bytes() int64 {
	r := x.read()
	defer r.drop()
	total := x.table.bytes()
	for i := range r.views {
		v := &r.views[i]
		total += int64(r.count(i)*rowBytes(x.stride) + len(v.dead)*8)
		if v.bits != nil {
			total += int64(r.count(i) * x.stride / 8)
		}
	}
	return total
}

// Close gives the memory back, as soon as the searches under way are done. Nothing is found any more.
func (x *Index) Close() error {
	x.background.close()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.current.Load().closed {
		return nil
	}
	x.publish(&snapshot{closed: true})
	x.table.clear()
	x.latest.Store(nil)
	return nil
}

// extent is the largest number of a vector and the square of its length, or what is wrong with it.
func extent(v []float32) (most float32, square float64, err error) {
	var top uint32 // as integers, so that what is no number comes out above infinity
	for _, f := range v {
		top = max(top, math.Float32bits(f)&^(1<<31))
		square += float64(f) * float64(f)
	}
	switch {
	case top >= math.Float32bits(float32(math.Inf(1))):
		return 0, 0, ErrNotFinite
	case top == 0:
		return 0, 0, ErrZero
	}
	return math.Float32frombits(top), square, nil
}

// query is a vector that is looked for, in the forms that the loops need.
type query struct {
	unit   []float32 // of length 1, with zeros up to the stride
	codes  []int16
	planes []int8 // the codes' high bytes and then their low bytes
	bias   int32  // 128 times the sum of the codes: rows have 128 added to their high bytes
	factor float32
	off    float32 // how far a first look may be off, beside what each row says
}

// prepare makes a query of q.
func (x *Index) prepare(q []float32) (*query, error) {
	if len(q) != x.dims {
		return nil, fmt.Errorf("%w: %d, not %d", ErrDims, len(q), x.dims)
	}
	most, square, err := extent(q)
	if err != nil {
		return nil, err
	}
	// The sum of all products has to fit into 32 bits, so with many dimensions the codes are smaller.
	limit := min(maxCode, float64(math.MaxInt32/(127*x.stride)))
	length, step := math.Sqrt(square), float64(most)/limit
	perLength, perStep := 1/length, 1/step
	out := &query{unit: make([]float32, x.stride), codes: make([]int16, x.stride), planes: make([]int8, 2*x.stride)}
	high, low := out.planes[:len(q)], out.planes[x.stride:][:len(q)]
	var lost float64
	for i, f := range q {
		c := int32(math.RoundToEven(float64(f) * perStep))
		out.unit[i], out.codes[i] = float32(float64(f)*perLength), int16(c)
		high[i], low[i] = int8((c+128)>>8), int8(c)
		out.bias += c * 128
		d := float64(f) - float64(c)*step
		lost += d * d
	}
	out.factor = float32(256 * step * perLength)
	// Twice what the query's own codes lose, because a row's high bytes alone may be a bit longer than 1. The rest is for
	// sums that are rounded.
	out.off = float32(2*math.Sqrt(lost)*perLength + 4e-6 + 1e-9*float64(x.dims))
	return out, nil
}
