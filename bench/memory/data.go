package main

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
)

// dims is the length of a vector, as nomic-embed-text makes them.
const dims = 768

// world is the data of one run: every row, query and word of it follows from the seed and a number, so that each process
// makes its own and nothing has to be kept or passed on. Rows stand in about sqrt(n) clusters; two rows of one cluster have
// a cosine of about 0.75, as texts about one thing do.
type world struct {
	n       int
	seed    uint64
	centres []float32
}

// The streams of numbers, apart from one another.
const (
	streamCentre = iota + 1
	streamCluster
	streamName
	streamDescription
	streamMember
	streamQuery
	streamWords
	streamCorpus
)

// How far things are scattered: the squared length of the noise beside a vector of length one.
const (
	spreadRow         = 1.0 / 3 // a row from its centre: 1 / (1 + 1/3) = 0.75 between two of them
	spreadDescription = 0.2     // a description from its name: a cosine of about 0.91
	spreadQuery       = 0.25    // a query from the row that it was made of: about 0.89
)

func newWorld(n int, seed uint64) *world {
	clusters := max(1, int(math.Sqrt(float64(n))))
	w := &world{n: n, seed: seed, centres: make([]float32, clusters*dims)}
	for c := range clusters {
		v := w.centre(c)
		w.scatter(v, 1, streamCentre, c)
		unit(v)
	}
	return w
}

func (w *world) centre(c int) []float32 { return w.centres[c*dims : (c+1)*dims] }

// mix is the step of splitmix64: a number that looks like chance and always is the same.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// number is the start of the stream of one thing.
func (w *world) number(stream, i int) uint64 {
	return mix(mix(w.seed+uint64(stream)<<56) ^ uint64(i))
}

// scatter adds noise to v whose squared length is about spread. Each component is even between two bounds: of 768 of them
// nobody can tell it from a bell, and it costs a fraction.
func (w *world) scatter(v []float32, spread float64, stream, i int) {
	const deviation = 65536 / 3.4641016151377544 // of an even 16-bit number
	scale := float32(math.Sqrt(spread/dims) / deviation)
	state := w.number(stream, i)
	for len(v) >= 4 {
		state += 0x9e3779b97f4a7c15
		x := mix(state)
		v[0] += float32(int16(x)) * scale
		v[1] += float32(int16(x>>16)) * scale
		v[2] += float32(int16(x>>32)) * scale
		v[3] += float32(int16(x>>48)) * scale
		v = v[4:]
	}
}

// unit gives v the length one.
func unit(v []float32) {
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	scale := float32(1 / math.Sqrt(sum))
	for i := range v {
		v[i] *= scale
	}
}

// name writes the vector of a row's name to v.
func (w *world) name(i int, v []float32) {
	clusters := len(w.centres) / dims
	copy(v, w.centre(int(w.number(streamCluster, i)%uint64(clusters))))
	w.scatter(v, spreadRow, streamName, i)
	unit(v)
}

// description writes the vector of a row's description to v: near its name, and not the same.
func (w *world) description(i int, v []float32) {
	w.name(i, v)
	w.scatter(v, spreadDescription, streamDescription, i)
	unit(v)
}

// member is the row that query j was made of.
func (w *world) member(j int) int { return int(w.number(streamMember, j) % uint64(w.n)) }

// query is the vector of query j.
func (w *world) query(j int) []float32 {
	v := make([]float32, dims)
	w.name(w.member(j), v)
	w.scatter(v, spreadQuery, streamQuery, j)
	unit(v)
	return v
}

// queries are the first count of them.
func (w *world) queries(count int) [][]float32 {
	all := make([][]float32, count)
	for j := range all {
		all[j] = w.query(j)
	}
	return all
}

// chunk is how many rows are made and handed on at a time: 12 MB, so that a million rows never stand in memory twice.
const chunk = 4096

// stream makes the vectors of all rows with all cores, chunk by chunk in order. what writes one row; the slice is used again.
func (w *world) stream(what func(i int, v []float32), each func(first int, vectors []float32) error) error {
	buf := make([]float32, min(chunk, w.n)*dims)
	for first := 0; first < w.n; first += chunk {
		rows := min(chunk, w.n-first)
		w.fill(what, first, buf[:rows*dims])
		if err := each(first, buf[:rows*dims]); err != nil {
			return err
		}
	}
	return nil
}

// fill makes the rows from first on.
func (w *world) fill(what func(i int, v []float32), first int, out []float32) {
	rows, threads := len(out)/dims, runtime.GOMAXPROCS(0)
	var wg sync.WaitGroup
	for t := range threads {
		wg.Go(func() {
			for i := t * rows / threads; i < (t+1)*rows/threads; i++ {
				what(first+i, out[i*dims:(i+1)*dims])
			}
		})
	}
	wg.Wait()
}

// id is the name of a row in every store.
func id(i int) string { return fmt.Sprintf("m%08d", i) }

// rowOf is the way back.
func rowOf(id string) (int, error) {
	var i int
	if _, err := fmt.Sscanf(id, "m%08d", &i); err != nil {
		return 0, fmt.Errorf("odd id %q: %w", id, err)
	}
	return i, nil
}

// syllables make words that mean nothing.
var syllables = []string{"ba", "ko", "ri", "ten", "lu", "mas", "ve", "dor", "shi", "pan", "ga", "nel", "ot", "fi", "rus", "ka"}

// word is one of about four thousand, the first ones often and the last ones seldom, as words are.
func word(x uint64) string {
	share := float64(x>>11) / (1 << 53)
	k := int(4096 * share * share * share)
	return syllables[k>>8] + syllables[k>>4&15] + syllables[k&15]
}

func (w *world) words(stream, i, count int) string {
	var b strings.Builder
	state := w.number(stream, i)
	for k := range count {
		if k > 0 {
			b.WriteByte(' ')
		}
		state += 0x9e3779b97f4a7c15
		b.WriteString(word(mix(state)))
	}
	return b.String()
}

// Texts of a row: a name as a user would see it, a sentence, and a corpus of somewhat over a kilobyte.
func (w *world) nameText(i int) string        { return fmt.Sprintf("%s %d", w.words(streamWords, i, 4), i) }
func (w *world) descriptionText(i int) string { return w.words(streamWords, i, 20) }
func (w *world) corpusText(i int) string      { return w.words(streamCorpus, i, 180) }

// queryText is what query j asks in words: some of those of the row that it was made of.
func (w *world) queryText(j int) string { return w.words(streamWords, w.member(j), 6) }
