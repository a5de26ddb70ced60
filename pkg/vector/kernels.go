package vector

// kernels are the inner loops for one instruction set. kernels.h states their contracts; the Go implementation is the
// reference that the others are tested against.
type kernels interface {
	// level names the instruction set for display: "avx512-vnni".
	level() string
	// quantize writes n vectors of src to rows first and following. It returns how many it wrote before a vector whose
	// largest component is not between tiny and infinity.
	quantize(src []float32, dims int, to *rows, first, n int) int
	// dots writes the dot products of the high bytes of n rows with the codes of the query. Only tests call it by
	// itself.
	dots(of *rows, first, n int, q *query, out []int32)
	// scan writes to b the rows whose cosine may reach floor, with an upper bound for each, and returns how many.
	scan(of *rows, first, n int, q *query, floor float32, b *block) int
	// score writes the cosine of each row in which.
	score(of *rows, q *query, which []uint32, out []float32)
	// signs writes the sign bits, relative to centre, of n rows from first on.
	signs(of *rows, centre []float32, first, n int, bits []uint64)
	// hamming writes the Hamming distances of n rows to q and counts them in histogram. bits begins at a group of
	// eight.
	hamming(bits []uint64, words, n int, q []uint64, dist []uint16, histogram []uint32)
	// gather writes the indexes of the distances between from and to, inclusive, and returns how many.
	gather(dist []uint16, from, to uint16, out []uint32) int
}

const (
	// maxCode is the largest code: 127 * 256, so that a high byte is between -127 and 127.
	maxCode = 32512
	// tiny: a vector with no larger component is scaled up before it is quantized.
	tiny = 1e-30
	// lane is the width of the widest instruction set in bytes; strides are multiples of it.
	lane = 64
	// slack is how many elements the kernels may write behind their result.
	slack = 32
)

// rows are quantized vectors as the kernels read them.
type rows struct {
	stride int       // bytes from row to row of a plane
	high   []byte    // code / 256, rounded, plus 128
	low    []byte    // the rest, signed
	scale  []float32 // 1 / length of the codes: turns a dot product into a cosine
	err    []float32 // error bound of the high bytes alone
}

// block is the output buffer of a scan.
type block struct {
	dots  [blockRows + slack]int32
	which [blockRows + slack]uint32
	upper [blockRows + slack]float32
}

// blockRows is how many rows are scanned between two reads of the shared floor.
const blockRows = 1024

// available are the kernels that this build and machine support, the fastest last. The first is Go.
var available = append([]kernels{plainGo{}}, compiled()...)
