// Package vector is an in-memory index for exact search by cosine.
//
// Vectors are quantized to 16-bit codes in two byte planes. [Index.Bounds] scans the plane of high bytes with several
// threads. The error of that first pass is known for every row, so it gives an upper bound of each cosine;
// [Index.Cosines] scores the rows that the caller does not rule out by that with both planes, within about 1e-5 of the
// input.
//
// The inner loops are in C, chosen by the instruction set, with a Go implementation for builds without a C compiler.
package vector

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
)

// MaxDims is the maximum number of dimensions.
const MaxDims = 1 << 15

// Errors of [Index.Add], which then adds nothing, and of searches.
var (
	ErrDims      = errors.New("the vector does not have the index's number of dimensions; use vectors of one model")
	ErrNotFinite = errors.New("the vector holds NaN or infinity; embed the text again")
	ErrZero      = errors.New("the vector is zero; embed the text again")
	ErrClosed    = errors.New("the index is closed")
)

// Hit is a key and the cosine of its vector to the query.
type Hit struct {
	Key    uint64
	Cosine float32
}

// Index holds one vector per key. Searches run at the same time; a writer waits for them, and they for the writer. The
// zero value is not usable. Its memory is outside of the Go heap: [Index.Close] releases it.
type Index struct {
	dims, stride int
	tuning       tuning

	mu       sync.RWMutex // held for reading by searches
	closed   bool
	segments []*segment // all but the last are full
	places   map[uint64]place
}

// place is the position of a row.
type place struct{ segment, row uint32 }

// tuning holds the thresholds that tests lower.
type tuning struct {
	kernels     kernels
	threads     int // per search
	firstRows   int // capacity of the first segment
	mostRows    int // capacity of the largest
	threadBytes int // minimum bytes to scan per thread
}

func defaultTuning() tuning {
	return tuning{
		kernels: available[len(available)-1], threads: runtime.GOMAXPROCS(0), firstRows: 4096, mostRows: 1 << 16,
		threadBytes: 2 << 20,
	}
}

// New returns an empty index for vectors of 1 to [MaxDims] dimensions.
func New(dims int) (*Index, error) { return newIndex(dims, defaultTuning()) }

// newIndex is [New] with a tuning, which tests vary.
func newIndex(dims int, t tuning) (*Index, error) {
	if dims < 1 || dims > MaxDims {
		return nil, fmt.Errorf("vectors of %d dimensions: give between 1 and %d", dims, MaxDims)
	}
	stride := (dims + lane - 1) / lane * lane
	return &Index{dims: dims, stride: stride, tuning: t, places: map[uint64]place{}}, nil
}

// Path describes the search method for display. The text is not meant to be parsed.
func (x *Index) Path() string { return "exact, int8 first pass, " + x.tuning.kernels.level() }

// Len returns the number of vectors.
func (x *Index) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.places)
}

// Bytes returns the memory in use by rows and their keys. Capacity that is not used yet does not count.
func (x *Index) Bytes() int64 { return int64(x.Len() * (rowBytes(x.stride) + 16)) }

// Close releases the memory once running searches are done. Later calls fail with [ErrClosed]. It is idempotent.
func (x *Index) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	var errs []error
	for _, seg := range x.segments {
		errs = append(errs, releaseMemory(seg.memory))
	}
	x.closed, x.segments, x.places = true, nil, nil
	return errors.Join(errs...)
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

// Check rejects a vector of other dimensions with [ErrDims], and one without a direction with [ErrNotFinite] or
// [ErrZero].
func Check(v []float32, dims int) error {
	if len(v) != dims {
		return fmt.Errorf("%w: %d, not %d", ErrDims, len(v), dims)
	}
	_, _, err := measureExtent(v)
	return err
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
