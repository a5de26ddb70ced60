package main

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"time"
)

// dims is the size of a vector, as nomic-embed-text makes them.
const dims = 768

// dataset is the entries and queries of one run. Each follows from the seed and its number, so that every process
// computes its own. The vectors lie in about sqrt(n) clusters; two of one cluster have a cosine of about 0.75, as texts
// about one subject do.
type dataset struct {
	n       int
	seed    uint64
	centres []float32
}

// Streams of random numbers, independent of one another.
const (
	streamCentre = iota + 1
	streamCluster
	streamVector // and the two after it: one for each sort of vector
	_
	_
	streamMember
	streamQuery
	streamDescription
	streamCorpus
	streamSpeaker
)

// Squared lengths of the noise that is added to a vector of length 1.
const (
	spreadRow = 1.0 / 3 // to the centre of a cluster: 1 / (1 + 1/3) = 0.75 between two of them
	// to the vector of the corpus, for that of the description or the name: a cosine of about 0.91
	spreadOther = 0.2
	spreadQuery = 0.25 // to the vector of the entry that a query was made of: about 0.89
)

func newDataset(n int, seed uint64) *dataset {
	clusters := max(1, int(math.Sqrt(float64(n))))
	d := &dataset{n: n, seed: seed, centres: make([]float32, clusters*dims)}
	for c := range clusters {
		v := d.centre(c)
		d.addNoise(v, 1, streamCentre, c)
		normalize(v)
	}
	return d
}

func (d *dataset) centre(c int) []float32 { return d.centres[c*dims : (c+1)*dims] }

// mix is the step of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// number returns the random number of item i of a stream.
func (d *dataset) number(stream, i int) uint64 {
	return mix(mix(d.seed+uint64(stream)<<56) ^ uint64(i))
}

// addNoise adds noise to v whose squared length is about spread. Each component is uniform: the sum of 768 of them is
// as good as normal, and costs a fraction.
func (d *dataset) addNoise(v []float32, spread float64, stream, i int) {
	const deviation = 65536 / 3.4641016151377544 // of a uniform 16-bit number
	scale := float32(math.Sqrt(spread/dims) / deviation)
	state := d.number(stream, i)
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

// normalize scales v to length 1.
func normalize(v []float32) {
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	scale := float32(1 / math.Sqrt(sum))
	for i := range v {
		v[i] *= scale
	}
}

// The sorts of vectors. Every entry has one of its corpus; every fourth has one of its description and every eighth one
// of its name, as where a model wrote these.
const (
	ofCorpus = iota
	ofDescription
	ofName
)

var sorts = [...]struct{ first, step int }{ofCorpus: {0, 1}, ofDescription: {1, 4}, ofName: {2, 8}}

// has reports whether entry i has a vector of this sort.
func has(sort, i int) bool { return i%sorts[sort].step == sorts[sort].first }

// vector writes a vector of entry i to v.
func (d *dataset) vector(sort, i int, v []float32) {
	clusters := len(d.centres) / dims
	copy(v, d.centre(int(d.number(streamCluster, i)%uint64(clusters))))
	d.addNoise(v, spreadRow, streamVector, i)
	if sort != ofCorpus {
		normalize(v)
		d.addNoise(v, spreadOther, streamVector+sort, i)
	}
	normalize(v)
}

// member returns the entry that query j was made of.
func (d *dataset) member(j int) int { return int(d.number(streamMember, j) % uint64(d.n)) }

// queryVector returns the vector of query j.
func (d *dataset) queryVector(j int) []float32 {
	v := make([]float32, dims)
	d.vector(ofCorpus, d.member(j), v)
	d.addNoise(v, spreadQuery, streamQuery, j)
	normalize(v)
	return v
}

// chunk is how many vectors are computed and handed on at a time: 12 MB, so that a million are never in memory twice.
const chunk = 4096

// eachChunk calls each with all vectors of all entries, computed by all cores, chunk by chunk. rows has the entry of
// each vector. The slices are valid during the call.
func (d *dataset) eachChunk(each func(sort int, rows []int, vectors []float32) error) error {
	rows, vectors := make([]int, 0, chunk), make([]float32, chunk*dims)
	for sort, s := range sorts {
		for i := s.first; i < d.n; i += s.step {
			if rows = append(rows, i); len(rows) < chunk && i+s.step < d.n {
				continue
			}
			d.computeVectors(sort, rows, vectors)
			if err := each(sort, rows, vectors[:len(rows)*dims]); err != nil {
				return err
			}
			rows = rows[:0]
		}
	}
	return nil
}

func (d *dataset) computeVectors(sort int, rows []int, out []float32) {
	threads := runtime.GOMAXPROCS(0)
	var wg sync.WaitGroup
	for t := range threads {
		wg.Go(func() {
			for i := t; i < len(rows); i += threads {
				d.vector(sort, rows[i], out[i*dims:(i+1)*dims])
			}
		})
	}
	wg.Wait()
}

// id returns the id of entry i.
func id(i int) string { return fmt.Sprintf("m%08d", i) }

// rowOf is the inverse of id.
func rowOf(id string) (int, error) {
	var i int
	if _, err := fmt.Sscanf(id, "m%08d", &i); err != nil {
		return 0, fmt.Errorf("unknown id %q: %w", id, err)
	}
	return i, nil
}

var speakers = []string{
	"Ana", "Boris", "Chiara", "Dmitri", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kofi",
	"Lena", "Mateo", "Nadia", "Oskar", "Priya",
}

const (
	vocabulary      = 50_000 // words
	shift, exponent = 20, 0.1
)

var lowest = math.Pow(float64(shift+vocabulary)/shift, -exponent)

// word returns one of the words, seven letters, by a Zipf-Mandelbrot law: the most frequent is 0.9 % of a text, as the
// most frequent words beside stop words are.
func word(x uint64) string {
	share := float64(x>>11) / (1 << 53)
	k := min(int(shift*math.Pow(1-share*(1-lowest), -1/exponent))-shift, vocabulary-1)
	var letters [7]byte
	for i, n := 0, mix(uint64(k)); i < len(letters); i, n = i+1, n>>8 {
		set := "bcdfghjklmnprstvwxyz"
		if i%2 == 1 {
			set = "aeiou"
		}
		letters[i] = set[n&255%uint64(len(set))]
	}
	return string(letters[:])
}

func (d *dataset) words(stream, i, count int) string {
	var b strings.Builder
	state := d.number(stream, i)
	for k := range count {
		if k > 0 {
			b.WriteByte(' ')
		}
		state += 0x9e3779b97f4a7c15
		b.WriteString(word(mix(state)))
	}
	return b.String()
}

// The texts of an entry: a name, a sentence, and a corpus of about 600 bytes that does not contain it.
func (d *dataset) name(i int) string        { return d.words(streamDescription, i, 5) }
func (d *dataset) description(i int) string { return d.words(streamDescription, i, 20) }
func (d *dataset) corpus(i int) string      { return d.words(streamCorpus, i, 60) }

// turnsPerConversation is how many entries follow each other in a conversation.
const turnsPerConversation = 50

// conversation returns the conversation of entry i and the position in it.
func (d *dataset) conversation(i int) (id string, position int) {
	return fmt.Sprintf("chat-%d", i/turnsPerConversation), i%turnsPerConversation + 1
}

func (d *dataset) speaker(i int) string {
	return speakers[d.number(streamSpeaker, i)%uint64(len(speakers))]
}

// happened returns the time of entry i: a conversation each day.
func (d *dataset) happened(i int) time.Time {
	return time.Date(2020, 1, 1, 12, i%turnsPerConversation, 0, 0, time.UTC).AddDate(0, 0, i/turnsPerConversation%2000)
}

// queryText returns the text of query j: six words of the entry that it was made of. Every third names the speaker,
// every tenth the day.
func (d *dataset) queryText(j int) string {
	i := d.member(j)
	words := d.words(streamDescription, i, 6)
	switch {
	case j%3 == 1:
		words = "what did " + d.speaker(i) + " say about " + words
	case j%10 == 0:
		words += d.happened(i).Format(" on 2 January 2006")
	}
	return words
}
