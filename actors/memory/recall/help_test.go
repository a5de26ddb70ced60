package recall_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"conclave/actors/memory/recall"
	"conclave/subjects"
)

// now is the time of every test.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func clock() time.Time { return now }

// dims is the size of vectors here. The first is the query's; every row has one of its own besides, so that no two rows
// are near to each other unless a test says so.
const dims = 64

// cacheQuery is a key in the form that is compared.
func cacheQuery() []float32 { return near(1, 0) }

// near is a vector with this cosine to the query, that goes the rest of its way in a direction of its own.
func near(cosine float64, own int) []float32 {
	v := make([]float32, dims)
	v[0] = float32(cosine)
	v[1+own%(dims-1)] += float32(math.Sqrt(1 - cosine*cosine))
	return v
}

// entry is an entry with its row number.
type entry struct {
	Key uint64
	subjects.MemoryEntry
}

// row is an active engram of today.
func row(key uint64, name, description string, change ...func(*entry)) entry {
	r := entry{key, subjects.MemoryEntry{
		ID: fmt.Sprintf("m%d", key), Kind: subjects.KindEngram, State: subjects.MemoryActive,
		Provenance: subjects.Provenance{Trust: subjects.Trusted, Source: subjects.SourceConversation},
		Name:       name, Description: description, Respondent: "a", Created: now,
	}}
	for _, f := range change {
		f(&r)
	}
	return r
}

func kind(k string) func(*entry)            { return func(r *entry) { r.Kind = k } }
func state(s string) func(*entry)           { return func(r *entry) { r.State = s } }
func graded(g subjects.Grades) func(*entry) { return func(r *entry) { r.Grades = g } }
func days(n int) func(*entry)               { return func(r *entry) { r.Created = now.AddDate(0, 0, -n) } }
func text(s string) func(*entry)            { return func(r *entry) { r.Corpus = s } }
func tagged(tags ...string) func(*entry)    { return func(r *entry) { r.Tags = tags } }
func trust(t string) func(*entry)           { return func(r *entry) { r.Provenance.Trust = t } }
func by(speaker string) func(*entry)        { return func(r *entry) { r.Speaker = speaker } }

func said(conversation string, position int) func(*entry) {
	return func(r *entry) { r.Conversation, r.Position = conversation, position }
}

func on(day string) func(*entry) {
	at, err := time.Parse(time.DateOnly, day)
	if err != nil {
		panic(err)
	}
	return func(r *entry) { r.Happened = at }
}
func pinned(r *entry) { r.Pinned = true }

// mind is a recall to test with.
type mind struct {
	*recall.Recall
	t testing.TB
}

func newMind(t testing.TB, change ...func(*recall.Options)) mind {
	t.Helper()
	o := recall.Options{Dims: dims, Hybrid: true, Now: clock}
	for _, f := range change {
		f(&o)
	}
	r, err := recall.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return mind{r, t}
}

// vectors are those of a row whose corpus and description have these cosines to the query.
func vectors(key uint64, corpus, description float64) recall.Vectors {
	v := recall.Vectors{Corpus: near(corpus, int(key))}
	if description != corpus {
		v.Description = near(description, int(key))
	}
	return v
}

// put adds a row whose corpus and description have these cosines to the query.
func (m mind) put(r entry, corpus, description float64) {
	m.t.Helper()
	if err := m.Put(r.Key, r.MemoryEntry, vectors(r.Key, corpus, description)); err != nil {
		m.t.Fatal(err)
	}
}

// bare adds a row without vectors.
func (m mind) bare(r entry) {
	m.t.Helper()
	if err := m.Put(r.Key, r.MemoryEntry, recall.Vectors{}); err != nil {
		m.t.Fatal(err)
	}
}

func (m mind) find(q recall.Query) recall.Found {
	m.t.Helper()
	f, err := m.Find(q)
	if err != nil {
		m.t.Fatal(err)
	}
	return f
}

// ids are the candidates' in their order.
func ids(list []subjects.MemoryHit) string {
	var out []string
	for _, c := range list {
		out = append(out, c.Entry.ID)
	}
	return strings.Join(out, " ")
}

// reason is the one of this sort.
func reason(c subjects.MemoryHit, what string) (r subjects.MemoryReason, ok bool) {
	for _, r := range c.Reasons {
		if r.What == what {
			return r, true
		}
	}
	return r, false
}

// addUp reports whether the reasons do.
func addUp(c subjects.MemoryHit) bool {
	sum := 0.0
	for _, r := range c.Reasons {
		sum += r.Value
	}
	return math.Abs(sum-c.Score) < 1e-9
}
