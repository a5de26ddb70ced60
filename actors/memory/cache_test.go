package memory

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/subjects"
)

// TestCache: a cached recall serves the same question in the same scope, until a write could change its result.
func TestCache(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	q := subjects.MemoryQuery{Query: "Where stands the bicycle?"}
	var fact, candidate string
	seq := uint64(100)
	for _, tt := range []struct {
		name   string
		act    func() error
		q      func(*subjects.MemoryQuery)
		cached bool
		has    string // words in what is recalled then
		not    string
	}{
		{name: "no change", cached: true, has: "cellar"},
		{name: "in capitals", q: func(q *subjects.MemoryQuery) {
			q.Query = "WHERE STANDS THE BICYCLE"
		}, cached: true, has: "cellar"},
		{name: "words in another order", q: func(q *subjects.MemoryQuery) {
			q.Query = "the bicycle stands where"
		}, has: "cellar"},
		{name: "unrelated write", act: func() error {
			w.storeFact("Xylophones are made of rosewood.")
			return nil
		}, has: "cellar"},
		{name: "fresh requested", q: func(q *subjects.MemoryQuery) { q.Fresh = true }, has: "cellar"},
		{name: "trick: another question with the same words", q: func(q *subjects.MemoryQuery) {
			q.Query = "Where stands the bicycle not?"
		}, has: "cellar"},
		{name: "of one kind", q: func(q *subjects.MemoryQuery) { q.Kind = "engram" }, not: "cellar"},
		{name: "fewer", q: func(q *subjects.MemoryQuery) { q.Max = 1 }, has: "cellar"},
		{name: "whole", q: func(q *subjects.MemoryQuery) { q.Whole = true }, has: "cellar"},
		{name: "all", q: func(q *subjects.MemoryQuery) { q.All = true }, has: "cellar"},
		{name: "edited", act: func() error {
			_, err := w.admin(subjects.MemoryAdminRequest{
				Op: "edit", IDs: []string{fact},
				Edit: &subjects.MemoryEdit{Corpus: new("The bicycle stands in the barn.")},
			})
			return err
		}, has: "barn", not: "cellar"},
		{name: "pinned", act: func() error {
			_, err := w.admin(subjects.MemoryAdminRequest{Op: "pin", IDs: []string{fact}})
			return err
		}, has: "cellar"},
		{name: "related write", act: func() error {
			w.storeFact("The old bicycle was sold, and the new bicycle stands outside.")
			return nil
		}, has: "outside"},
		{name: "candidate", act: func() error {
			res := w.callTool("save_memory", subjects.ToolOrder{
				Spawned: true, Labels: trusted(),
				Args: json.RawMessage(`{"content":"The bicycle stands on the roof."}`),
			})
			candidate = last(res.Recalls)
			return nil
		}, has: "cellar", not: "roof"},
		{name: "accepted candidate", act: func() error {
			_, err := w.admin(subjects.MemoryAdminRequest{Op: "accept", IDs: []string{candidate}})
			return err
		}, has: "roof"},
		{name: "a document", act: func() error {
			w.importPieces("a.md", "The bicycle stands under the stairs.")
			return nil
		}, has: "stairs"},
		{name: "changed document", act: func() error {
			w.importPieces("a.md", "The bicycle stands over the stairs.")
			return nil
		}, has: "over the stairs", not: "under the stairs"},
		{name: "an answer", act: func() error {
			w.storeAnswer("qx", "Where stands the bicycle?", "It stands in the garage.")
			return nil
		}, has: "garage"},
		{name: "a grade", act: func() error {
			seq++
			return w.critique(seq, subjects.Critique{QueryID: "qx", RespondentID: "generator", Score: 1})
		}, has: "cellar"},
		{name: "another model", act: func() error {
			w.embed = wordEmbedder("words-2", 128)
			return nil
		}, has: "cellar"},
		{name: "expired", act: func() error { w.advance(25 * time.Hour); return nil }, has: "cellar"},
		{name: "forgotten", act: func() error {
			_, err := w.admin(subjects.MemoryAdminRequest{Op: "forget", IDs: []string{fact}})
			return err
		}, not: "cellar"},
	} {
		if fact == "" || !slices.Contains(w.recallIDs("bicycle cellar stands"), fact) || tt.name == "pinned" {
			if fact != "" {
				if _, err := w.admin(subjects.MemoryAdminRequest{Op: "forget", IDs: []string{fact}}); err != nil {
					t.Fatal(err)
				}
			}
			fact = w.storeFact("The bicycle stands in the cellar.")
		}
		for i := range 2 {
			if r, err := one(w.recallStages(q)); err != nil || i == 1 && !r.Cached {
				t.Fatalf("%s: before, the %d. time: %+v, %v", tt.name, i+1, r, err)
			}
		}
		if tt.act != nil {
			if err := tt.act(); err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
		}
		mine := q
		if tt.q != nil {
			tt.q(&mine)
		}
		had := len(w.events("memory.recalled"))
		replies, err := w.recallStages(mine)
		r := last(replies)
		if err != nil || r.Cached != tt.cached || !r.Done {
			t.Errorf("%s: cached %t, %v", tt.name, r.Cached, err)
		}
		if tt.cached && (len(replies) != 1 || r.Stage != "corpus") {
			t.Errorf("%s: %d stages, the last is %q", tt.name, len(replies), r.Stage)
		}
		if ev := w.events("memory.recalled")[had:]; len(ev) != 1 || ev[0].Cached != tt.cached ||
			len(ev[0].IDs) != len(r.Hits) {
			t.Errorf("%s: it tells %+v", tt.name, ev)
		}
		said := ""
		for _, h := range r.Hits {
			said += h.Segment + h.Entry.Corpus + "\n"
		}
		if tt.has != "" && !strings.Contains(said, tt.has) || tt.not != "" && strings.Contains(said, tt.not) {
			t.Errorf("%s: recalls %q, want %q and not %q", tt.name, said, tt.has, tt.not)
		}
	}
}

// TestCacheScopes: results for the user are not served to an agent, nor the reverse.
func TestCacheScopes(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.storeFact("The bicycle stands in the cellar.")
	const words = "Where stands the bicycle?"
	person := func() bool {
		r, err := one(w.recallStages(subjects.MemoryQuery{Query: words}))
		if err != nil || len(r.Hits) != 1 {
			t.Fatalf("the user gets %+v, %v", r, err)
		}
		return r.Cached
	}
	agent := func() bool {
		if res := w.callTool("search_memory",
			subjects.ToolOrder{Args: json.RawMessage(`{"query":"` + words + `"}`)}); res.Error != nil ||
			!strings.Contains(res.Result, "cellar") {
			t.Fatalf("the agent gets %+v", res)
		}
		return last(w.events("memory.recalled")).Cached
	}
	for i, tt := range []struct {
		ask  func() bool
		want bool
	}{{person, false}, {agent, false}, {person, true}, {agent, true}} {
		if got := tt.ask(); got != tt.want {
			t.Errorf("%d. cached %t, want %t", i+1, got, tt.want)
		}
	}
}
