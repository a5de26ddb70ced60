package recall

import (
	"hash/maphash"
	"math"
	"slices"
	"strings"

	"conclave/pkg/text"
	"conclave/subjects"
)

// sameContent is the cosine of two corpora above which only the better row is shown.
const sameContent = 0.97

// sketchSize is how many numbers stand for a vector in a [sketch].
const sketchSize = 64

// sketch is a small random projection of a vector. The cosine of two sketches differs by about 0.01 from that of the
// vectors where it is near 1, which is enough to find duplicates. The vectors themselves are in an index that returns
// none.
type sketch struct {
	sums    [sketchSize]int8
	isValid bool
}

// randomSigns returns one sign (1 or -1) per dimension for [makeSketch]. It is deterministic: the signs are the same on
// every machine and in every run.
func randomSigns(dims int) []float32 {
	list := make([]float32, dims)
	state := uint64(1)
	for i := range list {
		// A step of splitmix64: the same signs on every machine and in every run.
		state += 0x9e3779b97f4a7c15
		z := state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		list[i] = 1 - 2*float32((z^z>>31)&1)
	}
	return list
}

// makeSketch returns the sketch of a vector, all of whose numbers must be finite. signs are those of randomSigns, at
// least as many as v has numbers. The sketch of a vector whose sums are too small or too large to scale is not valid,
// and no duplicate of any other.
func makeSketch(v, signs []float32) (s sketch) {
	var sums [sketchSize]float32
	whole := len(v) / sketchSize * sketchSize
	for i := 0; i < sketchSize; i += 4 { // in this order, because it is done for every row when the system starts
		var a, b, c, d float32
		for at := i; at < whole; at += sketchSize {
			x, sign := (*[4]float32)(v[at:]), (*[4]float32)(signs[at:])
			a, b, c, d = a+x[0]*sign[0], b+x[1]*sign[1], c+x[2]*sign[2], d+x[3]*sign[3]
		}
		sums[i], sums[i+1], sums[i+2], sums[i+3] = a, b, c, d
	}
	for i, x := range v[whole:] {
		sums[i] += x * signs[whole+i]
	}
	most := float32(0)
	for _, x := range sums {
		if x < 0 {
			x = -x
		}
		if x > most {
			most = x
		}
	}
	scale := 127 / most
	if math.IsInf(float64(scale), 0) || scale == 0 { // too small or too large to divide: nothing is taken for its twin
		return s
	}
	for i, x := range sums {
		s.sums[i] = int8(int32(x*scale+127.5) - 127) // rounded: what is cut off is positive
	}
	s.isValid = true
	return s
}

// cosine returns about the cosine of the vectors of a and b, 0 when one of the sketches is not valid.
func (a *sketch) cosine(b *sketch) float64 {
	if !a.isValid || !b.isValid {
		return 0
	}
	var ab, aa, bb int
	for i := range a.sums {
		x, y := int(a.sums[i]), int(b.sums[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return float64(ab) / math.Sqrt(float64(aa)*float64(bb))
}

// selectTop returns the first top rows that are not below the floor and, unless withDuplicates is set, no duplicates of
// a better one. list must be sorted, best first. The result is nil when none is left.
func (r *Recall) selectTop(list []*candidate, top int, withDuplicates bool) (chosen []*candidate) {
	for _, c := range list {
		if len(chosen) == top {
			break
		}
		if !r.isBelowFloor(c) && (withDuplicates || !slices.ContainsFunc(chosen, func(better *candidate) bool {
			return isDuplicate(c.rec, better.rec)
		})) {
			chosen = append(chosen, c)
		}
	}
	return chosen
}

// isDuplicate reports whether two rows have the same content: the same text, or vectors of the corpus with a cosine
// above sameContent. The name does not count. Rows of different speakers or days are no duplicates, except
// untrusted rows with the same text: repeated, it would fill a result. Rows of different states are none, because a
// search for superseded rows shows them beside their successors; nor are rows of different trust, because untrusted
// content must not hide the user's own.
func isDuplicate(a, b *record) bool {
	if a.labels.state != b.labels.state || a.labels.trust != b.labels.trust {
		return false
	}
	sameText := a.content != 0 && a.content == b.content
	if a.speaker != b.speaker || a.dayHappened() != b.dayHappened() {
		return sameText && a.labels.trust == subjects.Untrusted
	}
	return sameText || a.sketch.cosine(&b.sketch) > sameContent
}

// dayHappened returns the number of the day on which a row happened, math.MinInt64 when it is not known.
func (r *record) dayHappened() int64 {
	if r.happened == unknownTime {
		return math.MinInt64
	}
	return r.happened / day.Microseconds()
}

// contentSeed is the seed of hashContent for this process.
var contentSeed = maphash.MakeSeed()

// hashContent returns a hash of a text as duplicates are compared: folded, with single blanks. It is 0 for an empty
// text and for one that may be only the beginning of a longer one.
func hashContent(s string) uint64 {
	if s == "" || len(s) >= maxTextBytes {
		return 0
	}
	return maphash.String(contentSeed, strings.Join(strings.Fields(text.Fold(s)), " ")) | 1
}
