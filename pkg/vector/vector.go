// Package vector is an in-memory index for exact nearest-neighbor search by cosine.
//
// Vectors are quantized to 16-bit codes in two byte planes. A search scans the plane of high bytes with several
// threads. The error bound of that first pass is known for every row, so only rows that cannot be among the nearest are
// pruned; the others are scored with both planes. The result equals scoring every row, with cosines within about 1e-5
// of the input.
//
// Above some hundred thousand rows a prefilter with one sign bit per dimension may replace the scan. It is used only
// while its recall against the exact search is at least 0.99, measured on the data and on live queries; see
// [Index.Path].
//
// The inner loops are in C, chosen by the instruction set, with a Go implementation for builds without a C compiler.
package vector

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
)

// MaxDims is the maximum of [Options.Dims].
const MaxDims = 1 << 15

// Errors of [Index.Add], which then adds nothing, and of searches.
var (
	ErrDims      = errors.New("the vector does not have the index's number of dimensions; use vectors of one model")
	ErrNotFinite = errors.New("the vector holds NaN or infinity; embed the text again")
	ErrZero      = errors.New("the vector is zero; embed the text again")
	ErrClosed    = errors.New("the index is closed")
)

// Prefilter selects whether large indexes may use the 1-bit prefilter.
type Prefilter int

// Values of [Prefilter].
const (
	Auto Prefilter = iota // while its recall is at least 0.99
	Off                   // never
)

// Options configure an index.
type Options struct {
	Dims      int
	Threads   int // per search; 0 = GOMAXPROCS
	Prefilter Prefilter
}

// Hit is a key and the cosine of its vector to the query.
type Hit struct {
	Key    uint64
	Cosine float32
}

// Index holds one vector per key. Readers never block on writers; writers are serialized. The zero value is not usable.
// Its memory is outside of the Go heap: [Index.Close] releases it.
type Index struct {
	dims, stride int
	threads      int
	prefilter    Prefilter
	tuning       tuning

	current atomic.Pointer[snapshot]
	table   *table
	mapped  atomic.Int64 // bytes allocated outside of the heap
	scratch sync.Pool    // of *scratch

	mu     sync.Mutex // of writers
	nextID uint32     // of segments

	latest    atomic.Pointer[generation] // of the prefilter, also when it is off
	building  bool                       // a new generation is being built; guarded by mu
	changes   int                        // rows added or removed since it was built; guarded by mu
	notBefore int                        // rows needed for the next attempt after a failed build; guarded by mu

	background background
}

// tuning holds the thresholds that tests lower.
type tuning struct {
	kernels      kernels
	firstRows    int // capacity of the first segment
	mostRows     int // capacity of the largest
	fewDead      int // dead rows up to which a segment is not rewritten
	threadBytes  int // minimum bytes to scan per thread
	prefilterAt  int // rows from which the prefilter is built
	candidates   int // minimum that pass the prefilter
	measureRows  int // rows used as queries to measure a new prefilter
	measureFirst int // live queries measured before it is used
	measureEvery int // one in so many queries is measured after that
}

func defaultTuning() tuning {
	return tuning{
		kernels: available[len(available)-1], firstRows: 4096, mostRows: 1 << 16, fewDead: 64, threadBytes: 2 << 20,
		prefilterAt: 300_000, candidates: 2048, measureRows: 32, measureFirst: 32, measureEvery: 64,
	}
}

// New returns an empty index.
func New(o Options) (*Index, error) { return newIndex(o, defaultTuning()) }

// newIndex is [New] with a tuning, which tests vary. It rejects dimensions beyond 1 to [MaxDims], negative threads (0 =
// all processors) and an unknown prefilter option.
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

// Has reports whether the index has a vector of key.
func (x *Index) Has(key uint64) bool {
	_, ok := x.table.get(key)
	return ok
}

// Len returns the number of vectors.
func (x *Index) Len() int { return int(x.table.live.Load()) }

// Bytes returns the memory in use by rows, dead ones included, their sign bits and the table. Capacity that is not used
// yet does not count.
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

// Close releases the memory once running searches are done; it does not wait for them, but for background work. Later
// calls fail with [ErrClosed]. It is idempotent.
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

// measureExtent returns the largest absolute component of v and its squared length, or [ErrNotFinite] or [ErrZero].
func measureExtent(v []float32) (most float32, square float64, err error) {
	var top uint32 // compared as integers, so that NaN sorts above infinity
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

// query is a query vector in the forms that the kernels need.
type query struct {
	unit   []float32 // of length 1, with zeros up to the stride
	codes  []int16
	planes []int8 // the codes' high bytes and then their low bytes
	bias   int32  // 128 times the sum of the codes: rows have 128 added to their high bytes
	factor float32
	off    float32 // error bound of the first pass, in addition to that of each row
}

// prepareQuery validates and quantizes a query vector. It rejects other dimensions with [ErrDims], and with
// [ErrNotFinite] or [ErrZero] vectors without a direction.
func (x *Index) prepareQuery(q []float32) (*query, error) {
	if len(q) != x.dims {
		return nil, fmt.Errorf("%w: %d, not %d", ErrDims, len(q), x.dims)
	}
	most, square, err := measureExtent(q)
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
	// Twice the quantization error of the query, because the high bytes of a row alone may be slightly longer than 1.
	// The rest bounds the rounding of sums.
	out.off = float32(2*math.Sqrt(lost)*perLength + 4e-6 + 1e-9*float64(x.dims))
	return out, nil
}
