package recall

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"conclave/pkg/text"
	"conclave/subjects"
)

// sketchSize is how many numbers stand for a vector in a [sketch].
const sketchSize = 64

// sketch is a vector made small: its numbers are added up in some few heaps, each with a sign of its own that looks
// random. The cosine of two sketches is that of the vectors give or take 0.01 where it is near to 1, which is enough to
// tell whether two texts say the same. The vectors themselves are in an index that gives none away.
type sketch struct {
	sums [sketchSize]int8
	made bool
}

// signs are those by which vectors of a size are added up.
func signs(dims int) []float32 {
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

// sketchOf makes the sketch of a vector, all of whose numbers are good.
func sketchOf(v, signs []float32) (s sketch) {
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
	s.made = true
	return s
}

// cosine of the vectors that a and b were made of, about; 0 when there is none.
func (a *sketch) cosine(b *sketch) float64 {
	if !a.made || !b.made {
		return 0
	}
	var ab, aa, bb int
	for i := range a.sums {
		x, y := int(a.sums[i]), int(b.sums[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return float64(ab) / math.Sqrt(float64(aa)*float64(bb))
}

// apart leaves out what has too little to do with the query, and, unless twins are wanted, of rows that say the same all but
// the best, until there are enough. list is ordered, best first.
func (r *Recall) apart(list []*candidate, top int, twins bool) (chosen []*candidate) {
	for _, c := range list {
		if len(chosen) == top {
			break
		}
		if !r.low(c) && (twins || !slices.ContainsFunc(chosen, func(better *candidate) bool { return r.twin(c.rec, better.rec) })) {
			chosen = append(chosen, c)
		}
	}
	return chosen
}

// twin reports whether two rows say the same. Rows of different states never do: who asks for what was superseded wants to
// see it beside what took its place. Nor do rows of different trust: a stranger must not hide what the user said by
// saying something under the same name.
func (r *Recall) twin(a, b *record) bool {
	if a.is.state != b.is.state || a.is.trust != b.is.trust {
		return false
	}
	name := nameOf(a)
	return name != "" && name == nameOf(b) || a.description() != "" && a.description() == b.description() || a.sketch.cosine(&b.sketch) > r.o.Twins
}

// fewOfName leaves of rows with the same name only the few best, and of all the first most. What others thought of them
// counts here already: among answers to the same question hardly anything else tells them apart.
func (r *Recall) fewOfName(list []*candidate, most int, now time.Time) (chosen []*candidate) {
	type group struct{ name, state, trust string }
	groups := map[group][]*candidate{}
	for _, c := range list {
		if name := nameOf(c.rec); name != "" {
			g := group{name, c.rec.is.state, c.rec.is.trust}
			groups[g] = append(groups[g], c)
		}
	}
	out := map[*candidate]bool{}
	for _, g := range groups {
		if len(g) <= mostOfName {
			continue
		}
		worth := make(map[*candidate]float64, len(g))
		for _, c := range g {
			worth[c] = c.sim + total(r.o.Weights.shifts(nil, c.rec, now))
		}
		slices.SortStableFunc(g, func(a, b *candidate) int { return cmp.Compare(worth[b], worth[a]) })
		for _, c := range g[mostOfName:] {
			out[c] = true
		}
	}
	for _, c := range list {
		if len(chosen) == most {
			break
		}
		if !out[c] {
			chosen = append(chosen, c)
		}
	}
	return chosen
}

// nameOf is a name as names are compared, "" = it says nothing about being the same. Pieces of a document have the name of
// their heading, which several may stand under.
func nameOf(rec *record) string {
	if rec.is.kind == subjects.KindDocument {
		return ""
	}
	return strings.TrimSpace(text.Fold(rec.name()))
}
