//go:build cgo

package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"conclave/subjects"
)

// whole is an entry with something in every field.
func whole(id string) subjects.MemoryEntry {
	return subjects.MemoryEntry{
		ID: id, Kind: subjects.KindEngram, Name: "coffee", Description: "how Anna drinks it",
		Corpus: "Black, without sugar. \u00dcber alles \u2615 \u65e5\u672c\u8a9e",
		Tags:   []string{"food", "anna", "caf\u00e9"}, Intent: "ask", Entities: []string{"Anna", "B\u00f6rse"},
		Sentiment: "positive", Respondent: "generator",
		Provenance: subjects.Provenance{
			Source: subjects.SourceExternal, Trust: subjects.Untrusted, Agent: "generator", SessionID: "s1",
			QueryID: "q1", From: "https://example.org/a?b=c", Part: 3,
			Model: "qwen", Digest: "model", Flags: []string{"imperative"},
		},
		Grades:       subjects.Grades{Critic: 4, Feedback: "good", Pairwise: "generator", Reward: 0.5, Rewards: 2},
		Conversation: "chat 7", Position: 12, Speaker: "Zoë", Happened: testTime.Add(-48 * time.Hour),
		State: subjects.MemoryActive, Pinned: true, Created: testTime, Updated: testTime.Add(time.Hour),
		Accessed: testTime.Add(2 * time.Hour), Accesses: 7,
	}
}

// kept is an entry as it comes back: times to the microsecond.
func kept(e subjects.MemoryEntry) subjects.MemoryEntry {
	e.Created, e.Updated = truncateTime(e.Created), truncateTime(e.Updated)
	if !e.Happened.IsZero() {
		e.Happened = truncateTime(e.Happened)
	}
	if !e.Accessed.IsZero() {
		e.Accessed = truncateTime(e.Accessed)
	}
	return e
}

func TestPutRoundTrip(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("other"), newFact("old"))
	e := whole("a")
	e.Provenance.Trust = subjects.Trusted
	e.Correlating, e.Supersedes = []string{"other"}, []string{"old"}
	e.Created = testTime.In(time.FixedZone("somewhere", -5*3600))
	_, err := s.Put(t.Context(), Item{Entry: e, Vectors: randomVectors("m", 4, 1)})
	if err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"at once", "after a restart"} {
		if got := getEntry(t, s, "a"); !reflect.DeepEqual(got, kept(e)) {
			t.Errorf("%s:\n got %+v\nwant %+v", when, got, kept(e))
		}
		if old := getEntry(t, s, "old"); old.State != subjects.MemorySuperseded || old.SupersededBy != "a" {
			t.Errorf("%s: old is %s by %q", when, old.State, old.SupersededBy)
		}
		if other := getEntry(t, s, "other"); !reflect.DeepEqual(other.Correlating, []string{"a"}) {
			t.Errorf("%s: other goes with %v", when, other.Correlating)
		}
		s = reopenStore(t, s)
	}
}

func TestPutAnyText(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		e := newFact(fmt.Sprintf("id%d", n))
		any := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-z \x00'"%;?\\]{0,40}`),
			rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 40), func(b []byte) string { return string(b) }))
		e.Name, e.Description, e.Corpus = "n"+any.Draw(r, "name"), any.Draw(r, "description"), any.Draw(r, "corpus")
		e.Tags = rapid.SliceOfNDistinct(any, 0, 4, sanitize).Draw(r, "tags")
		e.Entities, e.Intent = rapid.SliceOfN(any, 0, 3).Draw(r, "entities"), any.Draw(r, "intent")
		e.Provenance.From, e.Provenance.Agent = any.Draw(r, "from"), any.Draw(r, "agent")
		if _, err := s.Put(context.Background(), Item{Entry: e}); err != nil {
			r.Fatal(err)
		}
		all, err := s.Get(context.Background(), e.ID)
		if err != nil || len(all) != 1 {
			r.Fatal(len(all), err)
		}
		want := kept(e)
		want.Name, want.Description, want.Corpus, want.Intent = sanitize(e.Name), sanitize(e.Description),
			sanitize(e.Corpus), sanitize(e.Intent)
		want.Provenance.From, want.Provenance.Agent = sanitize(e.Provenance.From), sanitize(e.Provenance.Agent)
		want.Tags, want.Entities = none(sanitizeAll(e.Tags)), none(sanitizeAll(e.Entities))
		if !reflect.DeepEqual(all[0], want) {
			r.Fatalf("got %+v\nwant %+v", all[0], want)
		}
	})
}

// none is a list that is nil when it is empty.
func none(l []string) []string {
	if len(l) == 0 {
		return nil
	}
	return l
}

func TestPutRejectsInvalidItems(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	stranger := newFact("stranger")
	stranger.Provenance.Trust = subjects.Untrusted
	putEntries(t, s, newFact("there"), newEngram("answer", "q1", "gen"), newEngram("gone", "q2", "gen"), stranger)
	forgetEntries(t, s, "gone")
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		name   string
		change func(*Item)
		want   error
	}{
		{"no id", func(i *Item) { i.Entry.ID = "" }, ErrInvalid},
		{"an id of two lines", func(i *Item) { i.Entry.ID = "a\nb" }, ErrInvalid},
		{"an id with a NUL", func(i *Item) { i.Entry.ID = "a\x00" }, ErrInvalid},
		{"id not UTF-8", func(i *Item) { i.Entry.ID = "a\xff" }, ErrInvalid},
		{"invisible id", func(i *Item) { i.Entry.ID = "\u200b" }, ErrInvalid},
		{"id too long", func(i *Item) { i.Entry.ID = strings.Repeat("a", maxID+1) }, ErrInvalid},
		{"no name", func(i *Item) { i.Entry.Name = "" }, ErrInvalid},
		{"no kind", func(i *Item) { i.Entry.Kind = "" }, ErrInvalid},
		{"unknown kind", func(i *Item) { i.Entry.Kind = "Fact" }, ErrInvalid},
		{"conversation with a line break", func(i *Item) { i.Entry.Conversation = "a\nb" }, ErrInvalid},
		{"speaker with a control character", func(i *Item) { i.Entry.Speaker = "A\x1b[2J" }, ErrInvalid},
		{"negative position", func(i *Item) { i.Entry.Position = -1 }, ErrInvalid},
		{"happened out of range", func(i *Item) {
			i.Entry.Happened = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
		}, ErrInvalid},
		{"no state", func(i *Item) { i.Entry.State = "" }, ErrInvalid},
		{"no trust", func(i *Item) { i.Entry.Provenance.Trust = "" }, ErrInvalid},
		{"trust with a blank", func(i *Item) { i.Entry.Provenance.Trust = "trusted " }, ErrInvalid},
		{"no source", func(i *Item) { i.Entry.Provenance.Source = "" }, ErrInvalid},
		{"query id with a line break", func(i *Item) { i.Entry.Provenance.QueryID = "q\ngen" }, ErrInvalid},
		{"respondent with a line break", func(i *Item) { i.Entry.Respondent = "\ngen" }, ErrInvalid},
		{"active and superseded", func(i *Item) { i.Entry.SupersededBy = "b" }, ErrInvalid},
		{"link to an empty id", func(i *Item) { i.Entry.Correlating = []string{""} }, ErrInvalid},
		{"year out of range", func(i *Item) {
			i.Entry.Created = time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)
		}, ErrInvalid},
		{"critic grade out of range", func(i *Item) { i.Entry.Grades.Critic = 6 }, ErrInvalid},
		{"reward NaN", func(i *Item) { i.Entry.Grades.Reward = math.NaN() }, ErrInvalid},
		{"negative access count", func(i *Item) { i.Entry.Accesses = -1 }, ErrInvalid},
		{"corpus too long", func(i *Item) { i.Entry.Corpus = strings.Repeat("a", maxText+1) }, ErrInvalid},
		{"vectors of no model", func(i *Item) { i.Vectors.Model = "" }, ErrInvalid},
		{"no corpus vector", func(i *Item) { i.Vectors.Corpus = nil }, ErrVector},
		{"vectors of two lengths", func(i *Item) { i.Vectors.Name = i.Vectors.Name[:3] }, ErrDims},
		{"a vector longer than others of its model", func(i *Item) { i.Vectors = randomVectors("m", 5, 1) }, ErrDims},
		{"vector with NaN", func(i *Item) { i.Vectors.Name[2] = nan }, ErrVector},
		{"vector with infinity", func(i *Item) { i.Vectors.Corpus[0] = inf }, ErrVector},
		{"zero vector", func(i *Item) { clear(i.Vectors.Description) }, ErrVector},
		{"existing id", func(i *Item) { i.Entry.ID = "there" }, ErrExists},
		{"existing answer", func(i *Item) { i.Entry = newEngram("again", "q1", "gen") }, ErrKnown},
		{"existing answer, restore", func(i *Item) {
			i.Entry, i.Restore = newEngram("again", "q1", "gen"), true
		}, ErrKnown},
		{"forgotten answer", func(i *Item) { i.Entry = newEngram("again", "q2", "gen") }, ErrForgotten},
		{"untrusted supersedes trusted", func(i *Item) {
			i.Entry.Provenance.Trust, i.Entry.Supersedes = subjects.Untrusted, []string{"stranger", "there"}
		}, ErrTrust},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := queryCount(t, s, "SELECT count(*) FROM entries")
			it := Item{Entry: newFact("new"), Vectors: randomVectors("m", 4, 9)}
			c.change(&it)
			// A good one beside it is not stored either.
			_, err := s.Put(t.Context(), Item{Entry: newFact("good"), Vectors: randomVectors("m", 4, 3)}, it)
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if after := queryCount(t, s, "SELECT count(*) FROM entries"); after != before {
				t.Errorf("%d entries became %d", before, after)
			}
			if got := getEntry(t, s, "there"); got.State != subjects.MemoryActive {
				t.Errorf("the trusted one is %s", got.State)
			}
		})
	}
}

func TestPutTwiceInOneCall(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if _, err := s.Put(t.Context(), Item{Entry: newFact("a")}, Item{Entry: newFact("a")}); !errors.Is(err, ErrExists) {
		t.Error(err)
	}
	if _, err := s.Put(t.Context(), Item{Entry: newEngram("a", "q", "g")},
		Item{Entry: newEngram("b", "q", "g")}); !errors.Is(err, ErrKnown) {
		t.Error(err)
	}
	// Two answers of two respondents, and two of the kind that have no question, are no repetition.
	putEntries(t, s, newEngram("a", "q", "g"), newEngram("b", "q", "h"), newEngram("c", "", "g"),
		newEngram("d", "", "g"))
}

func TestRowNumbersAreNeverReused(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	rows := putEntries(t, s, newFact("a"), newFact("b"), newFact("c"))
	if fmt.Sprint(rows) != "[1 2 3]" {
		t.Fatalf("rows are %v", rows)
	}
	if gone := forgetEntries(t, s, "c", "b"); fmt.Sprint(gone) != "[{c 3} {b 2}]" {
		t.Errorf("gone are %v", gone)
	}
	if r := putEntries(t, s, newFact("d")); r[0] != 4 {
		t.Errorf("d has %d", r[0])
	}
	forgetEntries(t, s, "d", "a")
	s = reopenStore(t, s) // rewritten: only the mark is left
	if r := putEntries(t, s, newFact("a")); r[0] != 5 {
		t.Errorf("after a restart a has %d", r[0])
	}
}

func TestSupersede(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("a"), newFact("b"))
	c := newFact("c")
	c.Supersedes = []string{"a", "missing", "c"}
	putEntries(t, s, c)
	d := newFact("d") // a has lost its place already
	d.Supersedes = []string{"a", "c"}
	putEntries(t, s, d)
	for id, by := range map[string]string{"a": "c", "c": "d", "b": "", "d": ""} {
		want := subjects.MemorySuperseded
		if by == "" {
			want = subjects.MemoryActive
		}
		if e := getEntry(t, s, id); e.SupersededBy != by || e.State != want {
			t.Errorf("%s is %s by %q, want %s by %q", id, e.State, e.SupersededBy, want, by)
		}
	}
	if e := getEntry(t, s, "d"); fmt.Sprint(e.Supersedes) != "[c]" {
		t.Errorf("d superseded %v", e.Supersedes)
	}
	// What says the same as something that is not there is superseded by nobody.
	same := newFact("same")
	same.State, same.SupersededBy = subjects.MemorySuperseded, "missing"
	putEntries(t, s, same)
	if e := getEntry(t, s, "same"); e.SupersededBy != "" || e.State != subjects.MemorySuperseded {
		t.Errorf("same is %s by %q", e.State, e.SupersededBy)
	}
	// Nothing takes its own place by way of another.
	x := newFact("x")
	x.State, x.SupersededBy, x.Supersedes = subjects.MemorySuperseded, "b", []string{"b"}
	if _, err := s.Put(t.Context(), Item{Entry: x}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a circle: %v", err)
	}
}

// TestRestoreInAnyOrder: an export restored into an empty memory in any order gives the same memory.
func TestRestoreInAnyOrder(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a, b, c, d := newFact("a"), whole("b"), newEngram("c", "q9", "gen"), newFact("d")
	b.Provenance.Trust = subjects.Trusted
	putEntries(t, s, a, b, c)
	d.Supersedes, d.Correlating = []string{"a", "c"}, []string{"b", "c"}
	putEntries(t, s, d)
	all, _, err := s.List(t.Context(), Filter{})
	if err != nil || len(all) != 4 {
		t.Fatal(len(all), err)
	}
	for range 3 {
		to := newStore(t)
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, e := range all {
			if _, err := to.Put(t.Context(), Item{Entry: e, Restore: true}); err != nil {
				t.Fatal(err)
			}
		}
		for _, e := range all {
			if got := getEntry(t, to, e.ID); !reflect.DeepEqual(got, e) {
				t.Errorf("in the order %s:\n got %+v\nwant %+v", ids(all), got, e)
			}
		}
	}
}

func TestRestoreForgottenAnswer(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	e := newEngram("a", "q1", "gen")
	e.Grades = subjects.Grades{Critic: 5, Feedback: "yes"}
	putEntries(t, s, e, newEngram("c", "q2", "gen"))
	forgetEntries(t, s, "a")
	if _, err := s.Put(t.Context(), Item{Entry: e}); !errors.Is(err, ErrForgotten) || !errors.Is(err, ErrKnown) {
		t.Errorf("a repeated event: %v", err)
	}
	// It comes back even when something that goes with it fails.
	wait, release := paused(t, s)
	var all sync.WaitGroup
	all.Go(func() {
		if _, err := s.Put(context.Background(), Item{Entry: e, Restore: true}); err != nil {
			t.Error(err)
		}
	})
	all.Go(func() {
		if _, err := s.Put(context.Background(), Item{Entry: newEngram("b", "q2", "gen")}); !errors.Is(err, ErrKnown) {
			t.Error(err)
		}
	})
	wait(2)
	release()
	all.Wait()
	if id, state, err := s.FindAnswer(t.Context(), "q1", "gen"); id != "a" || state != Stored || err != nil {
		t.Errorf("known as %q %q, %v", id, state, err)
	}
	if got := getEntry(t, s, "a"); got.Grades != e.Grades {
		t.Errorf("grades are %+v", got.Grades)
	}
}

// TestFindPosition: answers to one query have one position, a new query follows the last entry of its conversation and
// trust.
func TestFindPosition(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a, b, c := newEngram("a", "q1", "gen"), newFact("b"), newFact("c")
	a.Conversation, a.Position, b.Conversation, b.Position = "s1", 4, "s2", 9
	c.Conversation, c.Position, c.Provenance.Trust, c.Provenance.Source = "s1", subjects.MaxPosition,
		subjects.Untrusted, subjects.SourceExternal
	putEntries(t, s, a, b, c)
	for _, tt := range []struct {
		conversation, trust, query string
		want                       int
	}{
		{"s1", subjects.Trusted, "q1", 4},
		{"s1", subjects.Trusted, "q2", 5},
		{"s1", subjects.Trusted, "", 5},
		{"s2", subjects.Trusted, "q1", 10},
		{"s3", subjects.Trusted, "q1", 1},
		{"s2", subjects.Untrusted, "q1", 1},
		{"s1", subjects.Untrusted, "", subjects.MaxPosition},
	} {
		if n, err := s.FindPosition(t.Context(), tt.conversation, tt.trust, tt.query); err != nil || n != tt.want {
			t.Errorf("position of %q in %q is %d, %v; want %d", tt.query, tt.conversation, n, err, tt.want)
		}
	}
}
