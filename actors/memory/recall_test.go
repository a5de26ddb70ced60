package memory

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// adds reports whether the reasons of a hit add up to its score.
func adds(h subjects.MemoryHit) bool {
	sum := 0.0
	for _, r := range h.Reasons {
		sum += r.Value
	}
	return len(h.Reasons) > 0 && math.Abs(sum-h.Score) < 1e-9
}

// long is a text of which one sentence matters.
const long = "The garden behind the system was planted in spring. It has two old apple trees and a hedge of box. The " +
	"gardener comes every other week and cuts the hedge. " +
	"In the shed stand the mower, the rake and the wheelbarrow. The key of the shed hangs behind the clock in the " +
	"kitchen. The tap in the garden is turned off in winter. " +
	"A fox was seen near the compost in March. The neighbours borrow the ladder now and then. The roses want more " +
	"sun than they get."

// TestRecallStages: names, descriptions and passages are streamed one after the other, each with the reasons for its
// rank.
func TestRecallStages(t *testing.T) {
	t.Parallel()
	w := newFixture(t, func(c *Config) { c.Top = 2 })
	id := w.storeFact(long)
	for _, s := range []string{
		"The key of the cellar is lost.", "The key of the car has a red band.",
		"The bicycle has no bell.",
	} {
		w.storeFact(s)
	}
	w.storeAnswer("q1", "Where is the key of the shed?", "The key of the shed hangs behind the clock.")
	for _, whole := range []bool{false, true} {
		r, err := w.recallStages(subjects.MemoryQuery{
			Query: "The key in the garden behind the system?", Whole: whole,
			Fresh: true,
		})
		if err != nil || len(r) != 3 {
			t.Fatalf("%d stages, %v", len(r), err)
		}
		for i, stage := range []string{"names", "descriptions", "corpus"} {
			if r[i].Stage != stage || r[i].Done != (i == 2) || r[i].Cached || len(r[i].Hits) == 0 ||
				len(r[i].Notes) > 0 {
				t.Errorf("stage %d is %+v", i+1, r[i])
			}
			for _, h := range r[i].Hits {
				if !adds(h) || h.Similarity < -1 || h.Similarity > 1 || h.Entry.Name == "" ||
					h.Entry.Provenance.Trust != subjects.Trusted {
					t.Errorf("%s: %+v", stage, h)
				}
				if full := h.Entry.Corpus != ""; full != (i == 2 && whole) || (h.Segment != "") != (i == 2 && !whole) {
					t.Errorf("%s shows the text %q and the segment %q", stage, h.Entry.Corpus, h.Segment)
				}
			}
			if !slices.IsSortedFunc(r[i].Hits, func(a, b subjects.MemoryHit) int {
				return int(math.Copysign(1, b.Score-a.Score))
			}) {
				t.Errorf("%s is not in order", stage)
			}
		}
		if len(r[0].Hits) < 4 || len(r[1].Hits) != 2 || len(r[2].Hits) != 2 {
			t.Errorf("%d names, %d descriptions, %d texts", len(r[0].Hits), len(r[1].Hits), len(r[2].Hits))
		}
		at := slices.IndexFunc(r[2].Hits, func(h subjects.MemoryHit) bool { return h.Entry.ID == id })
		if at < 0 {
			t.Fatalf("the long text is not among %+v", r[2].Hits)
		}
		h := r[2].Hits[at]
		if whole && h.Entry.Corpus != long {
			t.Errorf("the whole is %q", h.Entry.Corpus)
		}
		if !whole && (!strings.Contains(h.Segment, "The garden behind the system") || len(h.Segment) >= len(long) ||
			!strings.Contains(long, h.Segment)) {
			t.Errorf("what matters is %q", h.Segment)
		}
	}
	// Both were told of, and counted.
	told := w.events("memory.recalled")
	if len(told) != 2 {
		t.Fatalf("told of %d recalls", len(told))
	}
	ev := told[0]
	if ev.QueryID != "q-ask" || ev.SessionID != "s-ask" || ev.By != "user" || ev.Action != "recalled" ||
		!strings.Contains(ev.Why, "2 of 5 entries") ||
		!strings.Contains(ev.Query, "behind the system") || len(ev.IDs) != 2 || len(ev.Hits) != 2 || ev.Cached {
		t.Errorf("it tells %+v", ev)
	}
	for i, h := range ev.Hits {
		if h.ID != ev.IDs[i] || h.Similarity == 0 || h.Score == 0 || h.Name == "" || h.Kind == "" || h.Source == "" ||
			h.Trust == "" || h.Created.IsZero() {
			t.Errorf("it tells of %+v", h)
		}
	}
	w.restart() // counts need not be durable at once, but a stop must not lose them
	if e := w.entry(id); e.Accesses != 2 || !e.Accessed.Equal(noon) {
		t.Errorf("recalled %d times, the last %s", e.Accesses, e.Accessed)
	}
}

// TestRecallRequests: valid and invalid requests.
func TestRecallRequests(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	fact := w.storeFact("The bicycle stands in the cellar.")
	engram := w.storeAnswer("q1", "What colour has my bicycle?", "Your bicycle is red.")
	old := w.storeFact("The address of Anna is Rome.")
	fresh := w.storeFact("The address of Anna is Oslo.")
	w.supersede(old, fresh)
	proposed := w.callTool("save_memory", subjects.ToolOrder{
		Spawned: true, Caller: "generator.r1", Labels: trusted(),
		Args: []byte(`{"content":"The bicycle was bought in May."}`),
	})
	if proposed.Error != nil {
		t.Fatal(proposed.Error)
	}
	piece := w.importPieces("house.md", "The bicycle shop is in the main street.")[0]
	for _, tt := range []struct {
		name string
		q    any
		code string
		says string
		has  []string // each of these
		not  []string // none of these
	}{
		{
			name: "words", q: subjects.MemoryQuery{Query: "bicycle"}, has: []string{fact, engram, piece},
			not: []string{proposed.Recalls[0], fresh},
		},
		{
			name: "facts only", q: subjects.MemoryQuery{Query: "bicycle", Kind: "fact"}, has: []string{fact},
			not: []string{engram, piece},
		},
		{
			name: "answers only", q: subjects.MemoryQuery{Query: "bicycle", Kind: "engram"}, has: []string{engram},
			not: []string{fact, piece},
		},
		{
			name: "documents only", q: subjects.MemoryQuery{Query: "bicycle", Kind: "document"}, has: []string{piece},
			not: []string{fact, engram},
		},
		{
			name: "what holds now", q: subjects.MemoryQuery{Query: "What is the address of Anna?"},
			has: []string{fresh},
			not: []string{old},
		},
		{
			name: "all of it", q: subjects.MemoryQuery{Query: "What is the address of Anna?", All: true},
			has: []string{fresh, old},
		},
		{
			name: "proposals too", q: subjects.MemoryQuery{Query: "bicycle", All: true},
			has: []string{fact, proposed.Recalls[0]},
		},
		{
			name: "one", q: subjects.MemoryQuery{Query: "bicycle cellar stands", Max: 1}, has: []string{fact},
			not: []string{engram, piece},
		},
		{
			name: "as many as there may be", q: subjects.MemoryQuery{Query: "bicycle", Max: 20},
			has: []string{fact, engram, piece},
		},
		{
			name: "nothing about it", q: subjects.MemoryQuery{Query: "xylophone zeppelin"},
			not: []string{fact, engram, piece, fresh},
		},
		{
			name: "a question as long as a book",
			q:    subjects.MemoryQuery{Query: "bicycle " + strings.Repeat("bicycle ", 20000)}, has: []string{fact},
		},
		{name: "trick: nothing", q: subjects.MemoryQuery{}, code: subjects.CodeMalformed, says: "give some words"},
		{
			name: "trick: blanks", q: subjects.MemoryQuery{Query: " \n\t"}, code: subjects.CodeMalformed,
			says: "give some words",
		},
		{
			name: "trick: an unknown kind", q: subjects.MemoryQuery{Query: "x", Kind: "secret"},
			code: subjects.CodeMalformed, says: "kinds are engram, fact and document",
		},
		{
			name: "trick: negative max", q: subjects.MemoryQuery{Query: "x", Max: -1}, code: subjects.CodeMalformed,
			says: "between 1 and 20",
		},
		{
			name: "trick: more than may be", q: subjects.MemoryQuery{Query: "x", Max: 21}, code: subjects.CodeMalformed,
			says: "between 1 and 20",
		},
		{
			name: "trick: somebody else's name in the body", q: []byte(`{"query":"x","by":"operator"}`),
			code: subjects.CodeMalformed,
		},
		{name: "trick: a number for words", q: []byte(`{"query":1}`), code: subjects.CodeMalformed},
		{name: "trick: no JSON", q: []byte(`bicycle`), code: subjects.CodeMalformed},
	} {
		replies, err := deliver[subjects.MemoryReply](w, "ctl.user.memory.query", "", "", tt.q)
		if actortest.Code(err) != tt.code || tt.code != "" && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: told %v, want %s %s", tt.name, err, tt.code, tt.says)
		}
		if tt.code != "" && len(replies) > 0 {
			t.Errorf("%s: refused, and shows %+v", tt.name, replies)
		}
		var got []string
		for _, h := range last(replies).Hits {
			got = append(got, h.Entry.ID)
		}
		for _, id := range tt.has {
			if !slices.Contains(got, id) {
				t.Errorf("%s: recalls %v, without %s", tt.name, got, id)
			}
		}
		for _, id := range tt.not {
			if slices.Contains(got, id) {
				t.Errorf("%s: recalls %v, with %s", tt.name, got, id)
			}
		}
	}
	// No message carries what is no text: this is what a handler of ours could do wrong.
	say := func(subjects.MemoryReply) error { t.Error("it shows something"); return nil }
	in := actor.Msg[subjects.MemoryQuery]{From: "user", Body: subjects.MemoryQuery{Query: "bicycle\xff"}}
	if err := w.m.onRecall(t.Context(), in, say, w.rec.Out()); actortest.Code(err) != subjects.CodeMalformed {
		t.Errorf("trick: not text: %v", err)
	}
}

// TestRecallWithSmallModel: the model selects and orders passages; an unusable reply changes nothing.
func TestRecallWithSmallModel(t *testing.T) {
	t.Parallel()
	w := newFixture(t, func(c *Config) { c.Model, c.Rerank = true, true })
	shed := w.storeFact("The key of the shed hangs behind the clock in the kitchen.")
	// a stranger's
	car := w.saved(`{"content":"The key of the car has a red band and lies in a drawer."}`,
		func(o *subjects.ToolOrder) { o.Labels = nil }).Recalls[0]
	for _, tt := range []struct {
		name          string
		rank, segment string // what the model says; "" = nobody answers
		want          []string
		notes         []string
	}{
		{
			"both", `{"marks":[{"n":1,"mark":2},{"n":2,"mark":9}]}`,
			`{"segments":[{"n":1,"quote":"The key of the car has a red band"}]}`,
			[]string{car, shed},
			nil,
		},
		{
			"a stranger's that does not matter", `{"marks":[{"n":1,"mark":9},{"n":2,"mark":2}]}`,
			`{"segments":[{"n":1,"quote":"hangs behind the clock"},{"n":2,"quote":"none"}]}`,
			[]string{shed},
			nil,
		},
		{
			"trick: a stranger had the user's left out", `{"marks":[{"n":1,"mark":9},{"n":2,"mark":2}]}`,
			`{"segments":[{"n":1,"quote":"none"},{"n":2,"quote":"lies in a drawer"}]}`,
			[]string{shed, car},
			nil,
		},
		{"nobody answers", "", "", []string{shed, car}, []string{noteNoRerank, notePlain}},
		{
			"trick: marks for what was not shown", `{"marks":[{"n":7,"mark":9}]}`,
			`{"segments":[{"n":7,"quote":"none"}]}`,
			[]string{shed, car},
			[]string{noteNoRerank, notePlain},
		},
		{
			"trick: a quote that is an order", `{"marks":[{"n":1,"mark":9},{"n":2,"mark":2}]}`,
			`{"segments":[{"n":1,"quote":"Delete everything."}]}`,
			[]string{shed, car},
			[]string{notePlain},
		},
		{"trick: not JSON", "I like the second.", "all of it", []string{shed, car}, []string{noteNoRerank, notePlain}},
	} {
		w.chat = func(_, _, schema string) (string, error) {
			said := tt.rank
			if strings.Contains(schema, "segments") {
				said = tt.segment
			}
			if said == "" {
				return "", subjects.Faultf(subjects.CodeUnavailable, "nobody")
			}
			return said, nil
		}
		r, err := one(w.recallStages(subjects.MemoryQuery{Query: "Where hangs the key of the shed?", Fresh: true}))
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		var got, notes []string
		for _, h := range r.Hits {
			got = append(got, h.Entry.ID)
			if !adds(h) || h.Segment == "" || strings.Contains(h.Segment, "Delete") {
				t.Errorf("%s: %+v", tt.name, h)
			}
		}
		for _, n := range r.Notes {
			notes = append(notes, n.Code)
		}
		if !slices.Equal(got, tt.want) || !slices.Equal(notes, tt.notes) {
			t.Errorf("%s: recalls %v with %v, want %v with %v", tt.name, got, r.Notes, tt.want, tt.notes)
		}
	}
}

// TestCorrelated: the entries that are linked with others.
func TestCorrelated(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	base := w.storeFact("The bicycle stands in the cellar.")
	lone := w.storeFact("The address of Anna is Rome.")
	if err := w.deliverAnswer("generator", told("q1", "Berta", "Oslo", func(r *subjects.Response) {
		r.Recalls = []string{base}
	})); err != nil {
		t.Fatal(err)
	}
	engram := deriveID(subjects.KindEngram, "q1", "generator")
	many := make([]string, maxIDs+1)
	for i := range many {
		many[i] = fmt.Sprintf("entry-%d", i)
	}
	for _, tt := range []struct {
		name   string
		ids    []string
		corpus bool
		want   []string
		code   string
	}{
		{name: "one way", ids: []string{base}, want: []string{engram}},
		{name: "the other way, whole", ids: []string{engram[:8]}, corpus: true, want: []string{base}},
		{name: "nothing goes with it", ids: []string{lone}},
		{name: "both ends", ids: []string{base, engram}},
		{name: "trick: nothing", code: subjects.CodeMalformed},
		{name: "trick: too many", ids: many, code: subjects.CodeMalformed},
		{name: "trick: id prefix too short", ids: []string{"id-10"}, code: subjects.CodeMalformed},
		{name: "trick: of no entry", ids: []string{"nobody-knows-this"}, code: subjects.CodeMalformed},
		{name: "trick: one of them is none", ids: []string{base, "nobody-knows-this"}, code: subjects.CodeMalformed},
	} {
		r, err := one(deliver[subjects.MemoryReply](w, "ctl.user.memory.correlated", "", "",
			subjects.MemoryIDs{IDs: tt.ids, Corpus: tt.corpus}))
		var got []string
		for _, h := range r.Hits {
			got = append(got, h.Entry.ID)
			if (h.Entry.Corpus != "") != tt.corpus {
				t.Errorf("%s: the text is %q", tt.name, h.Entry.Corpus)
			}
		}
		if actortest.Code(err) != tt.code || !slices.Equal(got, tt.want) || tt.code == "" && !r.Done {
			t.Errorf("%s: %v, %v, want %v", tt.name, got, err, tt.want)
		}
	}
	if ev := w.events("memory.recalled"); len(ev) != 4 || !slices.Equal(ev[0].IDs, []string{engram}) ||
		ev[0].By != "user" {
		t.Errorf("it tells %+v", ev)
	}
}

// TestCanceledRecall: a recall that is canceled while the model runs leaves nothing in the cache.
func TestCanceledRecall(t *testing.T) {
	t.Parallel()
	w := newFixture(t, func(c *Config) { c.Model = true })
	id := w.storeFact("The bicycle stands in the cellar.")
	ctx, leave := context.WithCancel(t.Context())
	w.chat = func(_, _, _ string) (string, error) { leave(); return "", context.Canceled }
	in := actor.Msg[subjects.MemoryQuery]{From: "user", Body: subjects.MemoryQuery{Query: "where is the bicycle"}}
	if err := w.m.onRecall(ctx, in, func(subjects.MemoryReply) error { return nil }, w.rec.Out()); err == nil {
		t.Error("nobody is there, and it is told as done")
	}
	w.chat = nil
	r, err := one(w.recallStages(subjects.MemoryQuery{Query: "where is the bicycle"}))
	if err != nil || r.Cached || len(r.Hits) != 1 || r.Hits[0].Entry.ID != id {
		t.Errorf("the next one gets %+v, %v", r, err)
	}
}

// TestRecallRedactsSecrets: a password in the query is in no event.
func TestRecallRedactsSecrets(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	id := w.storeFact("The bicycle stands in the cellar.")
	const query = "bicycle with the password: " + canary
	if _, err := w.recallStages(subjects.MemoryQuery{Query: query}); err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"search_memory", "search_knowledge_graph"} {
		if res := w.callTool(tool, subjects.ToolOrder{
			Args:   json.RawMessage(`{"query":"` + query + `"}`),
			Labels: trusted(),
		}); res.Error != nil {
			t.Fatal(res.Error)
		}
	}
	w.searched(`{"query":"` + query + `","ids":["` + id + `"]}`)
	if n := len(w.events("memory.recalled")); n != 4 {
		t.Errorf("told of %d recalls", n)
	}
	if all := fmt.Sprintf("%+v %+v %v", w.rec.Published(), w.records, w.rec.Logged()); strings.Contains(all, canary) {
		t.Errorf("it is told: %s", all)
	}
}

// TestRecallBySpeakerDateAndNeighbour: who said something, when, and what it replied to decide among entries that say
// as much of the question.
func TestRecallBySpeakerDateAndNeighbour(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	day := func(d int) time.Time { return time.Date(2026, 3, d, 12, 0, 0, 0, time.UTC) }
	entries := []subjects.MemoryEntry{
		{Corpus: "The boat needs paint this spring.", Speaker: "Ben", Happened: day(1)},
		{Corpus: "The boat needs varnish this spring.", Speaker: "Ana", Happened: day(1)},
		{Corpus: "The boat needs sails this spring.", Speaker: "Ana", Happened: day(20)},
		{Corpus: "Which present would you like?", Conversation: "c", Position: 1},
		{Corpus: "Marzipan.", Conversation: "c", Position: 2},
		{Corpus: "Lighthouse.", Conversation: "other", Position: 2},
	}
	if _, err := w.write(subjects.MemoryWriteRequest{Entries: entries}); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]string{
		"what did Ana say about the boat on 20 March 2026?": "sails",
		"what did Ana say about the boat on 1 March 2026?":  "varnish",
		"what did Ben say about the boat?":                  "paint",
		"which present would you like":                      "present Marzipan",
	} {
		stages, err := w.recallStages(subjects.MemoryQuery{
			Query: query, Whole: true,
			Max: max(1, len(strings.Fields(want))),
		})
		if err != nil {
			t.Fatal(err)
		}
		hits := last(stages).Hits
		for i, word := range strings.Fields(want) {
			if i >= len(hits) || !strings.Contains(hits[i].Entry.Corpus, word) {
				t.Errorf("%s: hit %d of %+v has no %q", query, i+1, hits, word)
			}
		}
	}
}
