package recall

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/date"
	"conclave/subjects"
)

// world is random rows of every sort, with a plain way to search them.
type world struct {
	t       testing.TB
	rng     *rand.Rand
	zipf    *rand.Zipf
	r       *Recall
	rows    map[uint64]subjects.MemoryEntry
	centres [][]float32
	now     time.Time
	cosines map[uint64]float64 // of the query at hand, the best of each row
	bases   map[uint64]float64
}

const worldDims = 32

var worldSpeakers = []string{"", "", "Melanie", "Caroline", "Anna Schmidt", "Ben"}

func newWorld(t testing.TB, seed uint64, n int, w Weights) *world {
	x := &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), rows: make(map[uint64]subjects.MemoryEntry, n),
		now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
	}
	x.zipf = rand.NewZipf(x.rng, 1.1, 4, uint64(max(200, n/20)))
	for range 20 {
		x.centres = append(x.centres, x.around(make([]float32, worldDims), 1))
	}
	var err error
	if x.r, err = New(Options{Dims: worldDims, Hybrid: true, Hashed: w.Hashed > 0, Weights: w, Now: func() time.Time {
		return x.now
	}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.r.Close() })
	var before subjects.MemoryEntry
	var was Vectors
	for key := uint64(1); key <= uint64(n); key++ {
		row, v := x.row(key), x.vectors()
		if x.rng.IntN(20) == 0 && before.ID != "" { // a duplicate
			row.Corpus, row.Speaker, row.Happened, v = before.Corpus, before.Speaker, before.Happened, was
		}
		if err := x.r.Put(key, row, v); err != nil {
			t.Fatal(err)
		}
		x.rows[key] = row
		before, was = row, v
	}
	return x
}

func (x *world) around(centre []float32, noise float64) []float32 {
	v := make([]float32, worldDims)
	for i := range v {
		v[i] = centre[i] + float32(noise*x.rng.NormFloat64()/math.Sqrt(worldDims))
	}
	return v
}

func (x *world) vector() []float32 { return x.around(x.centres[x.rng.IntN(len(x.centres))], 0.8) }

func (x *world) text(n int) string {
	words := make([]string, n)
	for i := range words {
		words[i] = fmt.Sprintf("w%d", x.zipf.Uint64())
	}
	return strings.Join(words, " ")
}

// vectors are none, of the corpus alone, or of all texts.
func (x *world) vectors() (v Vectors) {
	if x.rng.IntN(10) > 0 {
		v.Corpus = x.vector()
		if x.rng.IntN(4) == 0 {
			v.Description = x.around(v.Corpus, 0.5)
		}
		if x.rng.IntN(8) == 0 {
			v.Name = x.vector()
		}
	}
	return v
}

func (x *world) row(key uint64) subjects.MemoryEntry {
	r := subjects.MemoryEntry{
		ID: fmt.Sprint("m", key), Kind: subjects.KindEngram, State: subjects.MemoryActive,
		Provenance: subjects.Provenance{Trust: subjects.Trusted, Source: subjects.SourceConversation},
		Name:       x.text(2), Description: x.text(4), Corpus: x.text(5 + x.rng.IntN(15)), Respondent: "a",
		Created: x.now.AddDate(0, 0, -x.rng.IntN(400)),
		Speaker: worldSpeakers[x.rng.IntN(len(worldSpeakers))],
	}
	if x.rng.IntN(5) == 0 {
		r.Kind = []string{subjects.KindFact, subjects.KindDocument, "other"}[x.rng.IntN(3)]
	}
	if x.rng.IntN(4) == 0 {
		r.Provenance.Trust = subjects.Untrusted
	}
	if x.rng.IntN(10) == 0 {
		r.State = []string{subjects.MemorySuperseded, subjects.MemoryCandidate}[x.rng.IntN(2)]
	}
	if x.rng.IntN(3) > 0 {
		r.Conversation, r.Position = fmt.Sprint("c", key/10), int(key%10)*x.rng.IntN(2)+x.rng.IntN(12)
	}
	if x.rng.IntN(3) > 0 {
		r.Happened = x.now.Add(-time.Duration(x.rng.IntN(60*24)) * time.Hour)
	}
	if x.rng.IntN(3) == 0 {
		r.Grades = subjects.Grades{
			Critic: x.rng.IntN(6), Pairwise: []string{"", "a", "b", "tie"}[x.rng.IntN(4)],
			Reward: x.rng.Float64()*2 - 1, Rewards: x.rng.IntN(2),
		}
	}
	r.Pinned = x.rng.IntN(10) == 0
	return r
}

// query is a random one, with whom it names and when it asks about.
func (x *world) query() (q Query, who []string, when []date.Range) {
	q = Query{
		Text: x.text(1 + x.rng.IntN(6)), Top: []int{1, 3, 5, 20}[x.rng.IntN(4)], All: x.rng.IntN(4) == 0,
		Trusted: x.rng.IntN(4) == 0, Duplicates: x.rng.IntN(4) == 0, Alone: x.rng.IntN(4) == 0,
	}
	if x.rng.IntN(5) > 0 {
		q.Vector = x.vector()
	}
	if x.rng.IntN(4) == 0 {
		q.Kind = []string{subjects.KindEngram, subjects.KindFact, "other"}[x.rng.IntN(3)]
	}
	switch x.rng.IntN(4) {
	case 0:
		q.Text, who = "what did Mel say about "+q.Text, []string{"Melanie"}
	case 1:
		q.Text, who = "Anna and Ben's "+q.Text, []string{"Anna Schmidt", "Ben"}
	}
	if x.rng.IntN(3) == 0 {
		at := time.Date(2026, 2, 1+x.rng.IntN(28), 0, 0, 0, 0, time.UTC)
		q.Text, when = q.Text+" on "+at.Format(time.DateOnly), []date.Range{
			{From: at, Until: at.AddDate(0, 0, 1)},
		}
	}
	return q, who, when
}

// ranked is a row with its score.
type ranked struct {
	key         uint64
	near, score float64
	share       float32
}

// exhaustive is the definition: it scores every row that the query admits.
func (x *world) exhaustive(q Query, who []string, when []date.Range) (list []ranked) {
	admitted := map[uint64]bool{}
	for key, row := range x.rows {
		admitted[key] = (q.Kind == "" || row.Kind == q.Kind) && (q.All || row.State == subjects.MemoryActive) &&
			(!q.Trusted || row.Provenance.Trust == subjects.Trusted)
	}
	w, words := x.r.o.Weights, x.r.words.search(q.Text)
	defer words.release()
	x.compareAll(q)
	x.bases = map[uint64]float64{}
	lifts := map[uint64]bool{} // something could be compared
	for key := range x.rows {
		share := float64(words.match(x.r.rows.get(key).number).share)
		cosine, ok := x.cosines[key]
		if cosine *= w.cosine; !ok {
			cosine = w.Alone * share
		}
		x.bases[key], lifts[key] = cosine+w.Words*share, ok || share > 0
	}
	beside := x.neighbours(admitted)
	for key, row := range x.rows {
		if !admitted[key] {
			continue
		}
		best := x.bases[key]
		for _, n := range beside[key] {
			if !lifts[n] || q.Alone {
				continue
			}
			if gap := row.Happened.Sub(x.rows[n].Happened).Abs(); row.Happened.IsZero() ||
				x.rows[n].Happened.IsZero() || gap <= 24*time.Hour {
				best = max(best, x.bases[n])
			}
		}
		near := x.bases[key] + w.Neighbours*(best-x.bases[key])
		score := near + x.extras(key, who, when)
		list = append(list, ranked{key, near, score, words.match(x.r.rows.get(key).number).share})
	}
	slices.SortFunc(list, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.key, b.key))
	})
	return x.distinct(list, q)
}

// compareAll sets the best cosine of every row that has a vector.
func (x *world) compareAll(q Query) {
	x.cosines = map[uint64]float64{}
	if q.Vector == nil {
		return
	}
	all := make([]uint64, 0, len(x.rows))
	for key := range x.rows {
		all = append(all, key)
	}
	for _, index := range x.r.vectors {
		hits, err := index.Cosines(q.Vector, all)
		if err != nil {
			x.t.Fatal(err)
		}
		for _, h := range hits {
			if was, ok := x.cosines[h.Key]; !ok || float64(h.Cosine) > was {
				x.cosines[h.Key] = float64(h.Cosine)
			}
		}
	}
}

// neighbours are the admitted rows of the same trust next to each row, with at most eight others between.
func (x *world) neighbours(admitted map[uint64]bool) map[uint64][]uint64 {
	conversations := map[string][]uint64{}
	for key, row := range x.rows {
		if row.Conversation != "" && row.Position > 0 {
			id := row.Provenance.Trust + row.Conversation
			conversations[id] = append(conversations[id], key)
		}
	}
	beside := map[uint64][]uint64{}
	for _, keys := range conversations {
		slices.SortFunc(keys, func(a, b uint64) int {
			return cmp.Or(cmp.Compare(x.rows[a].Position, x.rows[b].Position), cmp.Compare(a, b))
		})
		last := -1
		for i, key := range keys {
			if !admitted[key] {
				continue
			}
			if last >= 0 && i-last <= 9 {
				beside[key], beside[keys[last]] = append(beside[key], keys[last]), append(beside[keys[last]], key)
			}
			last = i
		}
	}
	return beside
}

// extras are what speaker, time and shifts add to a row.
func (x *world) extras(key uint64, who []string, when []date.Range) (sum float64) {
	w, row := x.r.o.Weights, x.rows[key]
	if slices.Contains(who, row.Speaker) {
		sum += w.Speaker
	}
	at := row.Happened
	if at.IsZero() {
		at = row.Created
	}
	sum += w.When * rateCloseness(when, at)
	return sum + sumReasons(w.appendShifts(nil, x.r.rows.get(key), x.now))
}

// distinct is the first rows of list that are shown.
func (x *world) distinct(list []ranked, q Query) (out []ranked) {
	for _, c := range list {
		if len(out) == q.Top {
			break
		}
		if c.share == 0 && (c.near < x.r.floor || c.near == 0) {
			continue
		}
		if !q.Duplicates && slices.ContainsFunc(out, func(better ranked) bool {
			return x.r.isDuplicate(x.r.rows.get(c.key), x.r.rows.get(better.key))
		}) {
			continue
		}
		out = append(out, c)
	}
	return out
}

// check compares a search, and the exhaustive one, with the definition.
func (x *world) check() {
	x.t.Helper()
	q, who, when := x.query()
	want := x.exhaustive(q, who, when)
	for _, q.Exhaustive = range []bool{false, true} {
		found, err := x.r.Find(q)
		if err != nil {
			x.t.Fatal(err)
		}
		isSame := len(want) == len(found.Top)
		for i := 0; isSame && i < len(want); i++ {
			isSame = math.Abs(want[i].score-found.Top[i].Score) < 1e-9 &&
				(fmt.Sprint("m", want[i].key) == found.Top[i].Entry.ID || i+1 < len(want) &&
					math.Abs(want[i].score-want[i+1].score) < 1e-12 || i > 0 &&
					math.Abs(want[i].score-want[i-1].score) < 1e-12)
		}
		if isSame {
			continue
		}
		var got []string
		for _, c := range found.Top {
			got = append(got, fmt.Sprintf("%s %.6f", c.Entry.ID, c.Score))
		}
		q.Vector = nil
		x.t.Fatalf("%+v (names %v, dates %v)\n got %v\nwant %+v", q, who, when, got, want)
	}
}

// TestTopEqualsExhaustiveScoring: whatever the search leaves out, the result is that of scoring every row.
// CONCLAVE_CHAOS=1 adds 100,000 and a million rows.
func TestTopEqualsExhaustiveScoring(t *testing.T) {
	sizes := map[int]int{0: 2, 1: 5, 30: 60, 1000: 40, 5000: 6}
	if os.Getenv("CONCLAVE_CHAOS") != "" {
		sizes[100_000], sizes[1_000_000] = 40, 10
	}
	heavy := DefaultWeights()
	heavy.Neighbours, heavy.Speaker, heavy.When, heavy.Bound, heavy.Critic = 1, 0.4, 0.5, 0.5, 0.4
	for n, queries := range sizes {
		for name, w := range map[string]Weights{"default weights": {}, "heavy extras, hashed vectors": heavy} {
			t.Run(fmt.Sprintf("%d rows, %s", n, name), func(t *testing.T) {
				t.Parallel()
				x := newWorld(t, uint64(n), n, w)
				for range queries {
					x.check()
				}
				if n == 0 || n > 5000 {
					return
				}
				for range 10 { // rows that are written, removed, graded and pinned since
					key := uint64(1 + x.rng.IntN(n))
					row := x.row(key)
					if err := x.r.Put(key, row, x.vectors()); err != nil {
						t.Fatal(err)
					}
					x.rows[key] = row
					if gone := uint64(1 + x.rng.IntN(n)); x.rng.IntN(2) == 0 {
						x.r.Remove(gone)
						delete(x.rows, gone)
					}
					x.check()
				}
			})
		}
	}
}
