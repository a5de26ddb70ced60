package vector

// kernels are the inner loops of one level of the processor. What they promise stands in kernels.h; the one in Go is
// the measure for the others.
type kernels interface {
	// level is the name for a person: "avx512-vnni".
	level() string
	// quantize makes rows of the vectors in src, from the row first on, and returns how many it made before one that has no
	// largest number between tiny and infinity.
	quantize(src []float32, dims int, to *rows, first, n int) int
	// dots is the product of the high bytes of n rows from first on with the query's codes.
	dots(of *rows, first, n int, q *query, out []int32)
	// scan writes to b the rows of the block that may be as near as floor, and how near each may be at most.
	scan(of *rows, first, n int, q *query, floor float32, b *block) int
	// score is the cosine of each of these rows.
	score(of *rows, q *query, which []uint32, out []float32)
	// signs writes the bits of n rows from first on.
	signs(of *rows, centre []float32, first, n int, bits []uint64)
	// hamming counts in how many bits n rows differ from q. bits begins at a group of eight.
	hamming(bits []uint64, words, n int, q []uint64, dist []uint16, histogram []uint32)
	// gather writes the numbers of those in dist that are between from and to, both included, and returns how many.
	gather(dist []uint16, from, to uint16, out []uint32) int
}

const (
	// maxCode is the largest code: 127 * 256, so that a high byte is between -127 and 127.
	maxCode = 32512
	// tiny is the largest number of a vector that is scaled before it is quantized.
	tiny = 1e-30
	// lane is what strides are a multiple of: a vector of the widest level, in bytes.
	lane = 64
	// slack is what the loops may write behind what they return.
	slack = 32
)

// rows are vectors as the loops see them.
type rows struct {
	stride int       // bytes from row to row of a plane
	high   []byte    // code / 256, rounded, plus 128
	low    []byte    // the rest, signed
	scale  []float32 // 1 / length of the codes: what makes a cosine of a product
	err    []float32 // how far the high bytes alone may be off
}

// block is the room for what a scan of one block finds.
type block struct {
	dots  [blockRows + slack]int32
	which [blockRows + slack]uint32
	upper [blockRows + slack]float32
}

// blockRows is how many rows are scanned between two looks at the floor.
const blockRows = 1024

// available are the levels that this build and this machine have, the best last. The first is Go.
var available = append([]kernels{plainGo{}}, compiled()...)
