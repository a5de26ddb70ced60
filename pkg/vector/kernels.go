package vector

// kernels are the inner loops for one instruction set. kernels.h states their contracts; the Go implementation is the
// reference that the others are tested against.
type kernels interface {
	// level names the instruction set for display: "avx512-vnni".
	level() string
	// quantize writes n vectors of src to rows first and following. It returns how many it wrote before a vector whose
	// largest component is not between tiny and infinity.
	quantize(src []float32, dims int, to *rows, first, n int) int
	// dots writes the dot products of the high bytes of n rows with the codes of the query.
	dots(of *rows, first, n int, q *query, out []int32)
	// score writes the cosine of each row in which.
	score(of *rows, q *query, which []uint32, out []float32)
}

const (
	// maxCode is the largest code: 127 * 256, so that a high byte is between -127 and 127.
	maxCode = 32512
	// tiny: a vector with no larger component is scaled up before it is quantized.
	tiny = 1e-30
	// lane is the width of the widest instruction set in bytes; strides are multiples of it.
	lane = 64
	// blockRows is how many rows a thread scans at a time.
	blockRows = 1024
)

// rows are quantized vectors as the kernels read them.
type rows struct {
	stride int       // bytes from row to row of a plane
	high   []byte    // code / 256, rounded, plus 128
	low    []byte    // the rest, signed
	scale  []float32 // 1 / length of the codes: turns a dot product into a cosine
	err    []float32 // error bound of the high bytes alone
}

// available are the kernels that this build and machine support, the fastest last. The first is Go.
var available = append([]kernels{plainGo{}}, compiled()...)
