package memory

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/actors/memory/digest"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// TestAdminRejectsInvalidRequests: each request is rejected and changes nothing.
func TestAdminRejectsInvalidRequests(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	id, other := w.storeFact("The bicycle stands in the cellar."), w.storeFact("The address of Anna is Rome.")
	long := strings.Repeat("x", maxCorpus+1)
	edit := func(e subjects.MemoryEdit) subjects.MemoryAdminRequest {
		return subjects.MemoryAdminRequest{Op: "edit", IDs: []string{id}, Edit: &e}
	}
	before := w.everything()
	for _, tt := range []struct {
		name string
		op   any
		says string
	}{
		{"nothing", subjects.MemoryAdminRequest{}, `memory has no operation ""`},
		{"unknown operation", subjects.MemoryAdminRequest{Op: "drop table"}, `memory has no operation "drop table"`},
		{
			"trick: operation in upper case",
			subjects.MemoryAdminRequest{Op: "FORGET", IDs: []string{id}},
			"memory has no operation",
		},
		{"trick: unknown field", []byte(`{"op":"forget","ids":["` + id + `"],"as":"operator"}`), ""},
		{"trick: duplicate field", []byte(`{"op":"list","op":"forget","ids":["` + id + `"]}`), ""},
		{"show nothing", subjects.MemoryAdminRequest{Op: "show"}, "name between 1 and 500"},
		{
			"show unknown id",
			subjects.MemoryAdminRequest{Op: "show", IDs: []string{"nobody-knows"}},
			"there is no entry nobody-knows; conclave memory list",
		},
		{"show prefix too short", subjects.MemoryAdminRequest{Op: "show", IDs: []string{id[:5]}}, "at least 6"},
		{"show ambiguous prefix", subjects.MemoryAdminRequest{Op: "show", IDs: []string{id[:6]}}, id + " or " + other +
			": give more characters"},
		{
			"trick: SQL wildcard as id",
			subjects.MemoryAdminRequest{Op: "show", IDs: []string{"%%%%%%"}},
			"is not a valid id",
		},
		{
			"trick: SQL injection as id",
			subjects.MemoryAdminRequest{Op: "show", IDs: []string{"' OR 1=1 --"}},
			"is not a valid id",
		},
		{"edit nothing", subjects.MemoryAdminRequest{Op: "edit", IDs: []string{id}}, "what to change"},
		{"trick: empty edit", edit(subjects.MemoryEdit{}), "what to change"},
		{"edit two", subjects.MemoryAdminRequest{
			Op: "edit", IDs: []string{id, other},
			Edit: &subjects.MemoryEdit{Name: new("x")},
		}, "name one entry"},
		{"edit unknown id", subjects.MemoryAdminRequest{
			Op: "edit", IDs: []string{"nobody-knows"},
			Edit: &subjects.MemoryEdit{Name: new("x")},
		}, "there is no entry"},
		{"edit to a blank name", edit(subjects.MemoryEdit{Name: new(" ")}), "needs a name"},
		{"edit name too long", edit(subjects.MemoryEdit{Name: new(long)}), "the limit"},
		{"edit text too long", edit(subjects.MemoryEdit{Corpus: &long}), "the limit"},
		{"trick: edit with NUL", edit(subjects.MemoryEdit{Description: new("a\x00b")}), "not text"},
		{
			"trick: edit with a password", edit(subjects.MemoryEdit{Corpus: new("password: " + canary)}),
			"conclave secret set",
		},
		{
			"trick: edit a password into a name", edit(subjects.MemoryEdit{Name: new("api_key=" + canary)}),
			"conclave secret set",
		},
		{
			"trick: edit a password into a tag", edit(subjects.MemoryEdit{Tags: &[]string{"api_key=" + canary}}),
			"conclave secret set",
		},
		{"pin unknown id", subjects.MemoryAdminRequest{Op: "pin", IDs: []string{"nobody-knows"}}, "there is no entry"},
		{"unpin nothing", subjects.MemoryAdminRequest{Op: "unpin"}, "name between"},
		{"forget nothing", subjects.MemoryAdminRequest{Op: "forget"}, "either ids or words"},
		{"trick: forget by ids and words", subjects.MemoryAdminRequest{
			Op: "forget", IDs: []string{id},
			Query: "bicycle",
		}, "either ids or words"},
		{
			"trick: forget unknown ids",
			subjects.MemoryAdminRequest{Op: "forget", IDs: []string{"nobody-knows", "neither-this"}},
			"there is no entry nobody-knows",
		},
		{
			"trick: forget one and an invalid id",
			subjects.MemoryAdminRequest{Op: "forget", IDs: []string{id, "*"}},
			"is not a valid id",
		},
		{
			"trick: show one and an unknown id",
			subjects.MemoryAdminRequest{Op: "show", IDs: []string{id, "nobody-knows"}},
			"there is no entry nobody-knows",
		},
		{"forget by blanks", subjects.MemoryAdminRequest{Op: "forget", Query: "  "}, "give some words"},
		{
			"forget unknown kind",
			subjects.MemoryAdminRequest{Op: "forget", Query: "bicycle", Kind: "all"},
			"there is no kind",
		},
		{
			"accept an active entry",
			subjects.MemoryAdminRequest{Op: "accept", IDs: []string{id}},
			"is not a candidate: it is active",
		},
		{
			"trick: reject an active entry",
			subjects.MemoryAdminRequest{Op: "reject", IDs: []string{id}},
			"is not a candidate",
		},
		{
			"accept unknown id",
			subjects.MemoryAdminRequest{Op: "accept", IDs: []string{"nobody-knows"}},
			"there is no entry",
		},
		{"list with invalid cursor", subjects.MemoryAdminRequest{Op: "list", After: "the beginning"}, "invalid cursor"},
	} {
		_, err := deliver[any](w, "ctl.user.memory.admin", "", "", tt.op)
		if code := actortest.Code(err); code != subjects.CodeMalformed && code != subjects.CodeTooLarge ||
			!strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.says)
		}
	}
	if after := w.everything(); !reflect.DeepEqual(before, after) {
		t.Errorf("there was\n%+v, and now\n%+v", before, after)
	}
	if got := w.storedActions(); len(got) != 2 {
		t.Errorf("it tells of %v", got)
	}
	w.assertAbsent(canary)
}

// TestList: pages, filters, and how much of a text is shown.
func TestList(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	var all []subjects.MemoryEntry
	for i := range 12 {
		e := subjects.MemoryEntry{
			ID: fmt.Sprintf("entry-%02d", i), Kind: subjects.KindFact, State: subjects.MemoryActive,
			Name: fmt.Sprintf("name %d", i), Description: "d", Corpus: fmt.Sprintf("Text %d ", i) +
				strings.Repeat("word ", 12000),
			Created: noon.Add(time.Duration(i) * time.Minute), Updated: noon, Provenance: subjects.Provenance{
				Source: subjects.SourceUser, Trust: subjects.Trusted,
			},
		}
		switch i {
		case 1:
			e.State = subjects.MemoryCandidate
		case 2:
			e.Provenance.Trust, e.Provenance.Source = subjects.Untrusted, subjects.SourceExternal
		case 3:
			e.Tags = []string{"family"}
		case 4:
			e.Kind, e.Provenance.From, e.Provenance.Part = subjects.KindDocument, "/notes.md", 1
		case 5:
			e.Corpus = "Žofie čte."
		}
		all = append(all, e)
	}
	for part := range slices.Chunk(all, 6) { // as much as a message holds
		if got, err := w.write(subjects.MemoryWriteRequest{Entries: part, Restore: true, Trusted: true}); err != nil ||
			len(got.Results) != 6 {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		q    subjects.MemoryAdminRequest
		want string // numbers of the entries, in order
		next bool
	}{
		{"all, the newest first", subjects.MemoryAdminRequest{}, "11 10 09 08 07 06 05 04 03 02 01 00", false},
		{"a page", subjects.MemoryAdminRequest{Limit: 2}, "11 10", true},
		{"trick: negative limit", subjects.MemoryAdminRequest{Limit: -1}, "11 10 09 08 07 06 05 04 03 02 01 00", false},
		{"a state", subjects.MemoryAdminRequest{State: subjects.MemoryCandidate}, "01", false},
		{"a trust", subjects.MemoryAdminRequest{Trust: subjects.Untrusted}, "02", false},
		{"a tag", subjects.MemoryAdminRequest{Tag: "Family"}, "03", false},
		{"a kind", subjects.MemoryAdminRequest{Kind: subjects.KindDocument}, "04", false},
		{"a file", subjects.MemoryAdminRequest{From: "/notes.md"}, "04", false},
		{"substring", subjects.MemoryAdminRequest{Text: "zofie"}, "05", false},
		{"trick: SQL wildcard in text", subjects.MemoryAdminRequest{Text: "%"}, "", false},
		{"two filters", subjects.MemoryAdminRequest{Kind: subjects.KindFact, Trust: subjects.Untrusted}, "02", false},
		{"no match", subjects.MemoryAdminRequest{Kind: "rumour"}, "", false},
	} {
		tt.q.Op = "list"
		got, err := w.admin(tt.q)
		var ids []string
		for _, e := range got.Entries {
			ids = append(ids, strings.TrimPrefix(e.ID, "entry-"))
			if len(e.Corpus) > maxListedText+3 {
				t.Errorf("%s: a text of %d bytes", tt.name, len(e.Corpus))
			}
		}
		if err != nil || strings.Join(ids, " ") != tt.want || (got.Next != "") != tt.next {
			t.Errorf("%s: %v next %q, %v, want %s", tt.name, ids, got.Next, err, tt.want)
		}
	}
	// Whole texts of 60 KB: a page ends where the message is full, and the pages are all there is, each once.
	var seen []string
	pages := 0
	for q := (subjects.MemoryAdminRequest{Op: "list", Whole: true}); ; pages++ {
		page, err := w.admin(q)
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for _, e := range page.Entries {
			seen = append(seen, strings.TrimPrefix(e.ID, "entry-"))
			size += len(e.Corpus)
		}
		if size > maxPageBytes {
			t.Errorf("a page of %d bytes", size)
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	if got := strings.Join(seen, " "); got != "11 10 09 08 07 06 05 04 03 02 01 00" || pages < 1 {
		t.Errorf("%d pages: %s", pages+1, got)
	}
	if shown,
		err := w.admin(subjects.MemoryAdminRequest{Op: "show", IDs: []string{"entry-07", "entry-05"}}); err != nil ||
		len(shown.Entries) != 2 || shown.Entries[0].Corpus != all[7].Corpus {
		t.Errorf("shown %d, %v", len(shown.Entries), err)
	}
	ids := make([]string, 12)
	for i := range ids {
		ids[i] = all[i].ID
	}
	if _, err := w.admin(subjects.MemoryAdminRequest{Op: "show", IDs: ids}); actortest.Code(
		err) != subjects.CodeTooLarge {
		t.Errorf("more than fits: %v", err)
	}
}

// TestEdit: an edited entry is found by its new words and not by its old ones; everything else of it is unchanged.
func TestEdit(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	id := w.saved(`{"content":"The canoe lies at the lake.","tags":["boat"]}`, func(o *subjects.ToolOrder) {
		o.Labels = nil
	}).Recalls[0]
	was := w.entry(id)
	w.advance(time.Minute)
	got, err := w.admin(subjects.MemoryAdminRequest{Op: "edit", IDs: []string{id[:6]}, Edit: &subjects.MemoryEdit{
		Name: new("sledge"), Description: new("where the sledge is"), Corpus: new("The sledge hangs under the roof."),
		Tags: &[]string{"Winter", "winter"},
	}})
	if err != nil || got.Changed != 1 || len(got.Entries) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	want := was
	want.Name, want.Description, want.Corpus, want.Tags, want.Updated = "sledge", "where the sledge is",
		"The sledge hangs under the roof.", []string{"winter"}, noon.Add(time.Minute)
	if now := w.entry(id); !reflect.DeepEqual(now, want) || !reflect.DeepEqual(got.Entries[0], want) {
		t.Errorf("it is\n%+v, want\n%+v", now, want)
	}
	if now := w.recallIDs("where is the sledge"); !slices.Equal(now, []string{id}) {
		t.Errorf("by its new words: %v", now)
	}
	if now := w.recallIDs("canoe lies lake"); len(now) != 0 {
		t.Errorf("by its old words: %v", now)
	}
	if want.Provenance.Trust != subjects.Untrusted {
		t.Error("a stranger's word is trusted because it was edited")
	}
	// Tags alone, and once more at the same time: each is told of.
	for range 2 {
		if _,
			err := w.admin(subjects.MemoryAdminRequest{
			Op: "edit", IDs: []string{id},
			Edit: &subjects.MemoryEdit{Tags: &[]string{}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	if e := w.entry(id); len(e.Tags) != 0 || e.Name != "sledge" {
		t.Errorf("%+v", e)
	}
	if got := w.storedActions(); !slices.Equal(got, []string{"stored", "edited", "edited", "edited"}) {
		t.Errorf("it tells of %v", got)
	}
}

// TestPin: a pin is durable, and counted only when it is new.
func TestPin(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	id := w.storeFact("The bicycle stands in the cellar.")
	for i, tt := range []struct {
		op      string
		changed int
		pinned  bool
	}{{"pin", 1, true}, {"pin", 0, true}, {"unpin", 1, false}, {"unpin", 0, false}, {"pin", 1, true}} {
		got, err := w.admin(subjects.MemoryAdminRequest{Op: tt.op, IDs: []string{id}})
		if err != nil || got.Changed != tt.changed || w.entry(id).Pinned != tt.pinned {
			t.Errorf("%d. %s: %+v, %v", i+1, tt.op, got, err)
		}
	}
	if got := w.storedActions()[1:]; !slices.Equal(got, []string{"pinned", "unpinned", "pinned"}) {
		t.Errorf("it tells of %v", got)
	}
	r, err := one(w.recallStages(subjects.MemoryQuery{Query: "bicycle"}))
	if err != nil || len(r.Hits) != 1 || !slices.ContainsFunc(r.Hits[0].Reasons, func(r subjects.MemoryReason) bool {
		return r.What == "pinned"
	}) {
		t.Errorf("recalled as %+v, %v", r.Hits, err)
	}
}

// TestForgetAgain: a memory from a backup forgets what it was made to forget later, and does not learn it again.
func TestForgetAgain(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	kept, gone := w.storeFact("The bicycle stands in the cellar."), w.storeFact("The address of Anna is Rome.")
	answer := w.storeAnswer("q1", answer1().Query, answer1().Answer)
	cfg := w.m.cfg
	w.close()
	later := deriveID(subjects.KindEngram, "q2", "generator") // of an answer after the backup
	data := filepath.Dir(filepath.Dir(w.path))
	if err := ForgetAgain(t.Context(), data, []string{gone, later, "unknown"},
		[]Answer{{"q1", "generator"}, {"q2", "generator"}}); err != nil {
		t.Fatal(err)
	}
	w.open(cfg)
	r := answer1()
	r.QueryID = "q2"
	if err := w.deliverAnswer("generator", r); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]int{kept: 1, answer: 1, gone: 0, later: 0} {
		if found, err := w.db.Get(t.Context(), id); err != nil || len(found) != want {
			t.Errorf("%s: %d entries, %v, want %d", id, len(found), err, want)
		}
	}
}

// TestForget: entries are forgotten by id and by words, and no others.
func TestForget(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	bicycle, bell := w.storeFact("The bicycle stands in the cellar."), w.storeFact("The bell of the bicycle is broken.")
	rome, oslo := w.storeFact("The address of Anna is Rome."), w.storeFact("The address of Anna is Oslo.")
	sledge := w.storeFact("The sledge stands in the barn.")
	// Near by its vector, and without a word of it: such as a model finds of anything.
	vague := func(texts []string) (subjects.EmbedReply, error) {
		r, err := wordEmbedder("words-1", 256)(texts)
		for _, v := range r.Vectors {
			for i := range v {
				v[i] = v[i]*0.3 + 3
			}
		}
		return r, err
	}
	if got, err := w.admin(subjects.MemoryAdminRequest{Op: "forget", Query: "the bicycle", Dry: true}); err != nil ||
		got.Changed != 0 || len(got.Entries) != 2 || w.count() != 5 {
		t.Errorf("dry: %d would go, %d went, %v", len(got.Entries), got.Changed, err)
	}
	if len(w.storedActions()) != 5 {
		t.Errorf("dry: it tells of %v", w.storedActions())
	}
	w.embed = vague
	got, err := w.admin(subjects.MemoryAdminRequest{Op: "forget", Query: "the bicycle"})
	if err != nil || got.Changed != 2 || len(got.Entries) != 2 {
		t.Errorf("by words: %+v, %v", got, err)
	}
	w.embed = wordEmbedder("words-1", 256)
	for _, id := range []string{bicycle, bell} {
		if entries, err := w.db.Get(t.Context(), id); err != nil || len(entries) > 0 {
			t.Errorf("still there: %+v, %v", entries, err)
		}
	}
	w.entry(sledge)
	if got, err := w.admin(subjects.MemoryAdminRequest{Op: "forget", Query: "xylophone"}); err != nil ||
		got.Changed != 0 {
		t.Errorf("nothing of it: %+v, %v", got, err)
	}
	// What lost its place goes too: it must not come back from the past.
	if got, err := w.admin(subjects.MemoryAdminRequest{Op: "forget", Query: "Anna Rome Oslo"}); err != nil ||
		got.Changed != 2 {
		t.Errorf("of the past: %+v, %v", got, err)
	}
	for _, id := range []string{rome, oslo} {
		if entries, _ := w.db.Get(t.Context(), id); len(entries) > 0 {
			t.Errorf("still there: %+v", entries)
		}
	}
	if got := w.recallIDs("Where does Anna live?"); len(got) > 0 {
		t.Errorf("it recalls %v", got)
	}
	if got, err := w.admin(subjects.MemoryAdminRequest{Op: "graph", Query: "Anna"}); err != nil ||
		len(got.Relations) > 0 {
		t.Errorf("the graph: %+v, %v", got.Relations, err)
	}
	// Who names one that is gone is told so, and the others go.
	if got, err := w.admin(subjects.MemoryAdminRequest{Op: "forget", IDs: []string{rome, sledge}}); err != nil ||
		got.Changed != 1 || !slices.Equal(got.Missing, []string{rome}) {
		t.Errorf("one of two: %+v, %v", got, err)
	}
	if got := w.storedActions()[5:]; !slices.Equal(got, []string{"forgotten", "forgotten", "forgotten"}) ||
		w.count() != 0 {
		t.Errorf("it tells of %v, and %d are left", got, w.count())
	}
}

// TestProposals: the user accepts or rejects candidates. An accepted one is compared like a new entry.
func TestProposals(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	propose := func(s string) string {
		return w.saved(`{"content":"`+s+`"}`, func(o *subjects.ToolOrder) { o.Spawned = true }).Recalls[0]
	}
	train, ferry := propose("The train leaves at nine."), propose("The ferry leaves at ten.")
	if got, err := w.admin(subjects.MemoryAdminRequest{Op: "accept", IDs: []string{train}}); err != nil ||
		got.Changed != 1 || w.entry(deriveID("accepted", train)).State != subjects.MemoryActive {
		t.Errorf("accepted: %+v, %v", got, err)
	}
	if got, err := w.admin(subjects.MemoryAdminRequest{Op: "reject", IDs: []string{ferry}}); err != nil ||
		got.Changed != 1 || w.count() != 1 {
		t.Errorf("rejected: %+v, %v, %d entries", got, err, w.count())
	}
	// One of them is no proposal: nobody is decided upon.
	bus := propose("The bus leaves at eleven.")
	if _,
		err := w.admin(subjects.MemoryAdminRequest{
		Op:  "accept",
		IDs: []string{bus, deriveID("accepted", train)},
	}); err == nil ||
		w.entry(bus).State != subjects.MemoryCandidate {
		t.Errorf("trick: with one that is none: %v", err)
	}
	if got := w.recallIDs("When leaves the train?"); !slices.Equal(got, []string{deriveID("accepted", train)}) {
		t.Errorf("it recalls %v", got)
	}
	rome := w.storeFact("The address of Anna is Rome.")
	again := propose("The address of Anna is Rome.")
	if _, err := w.admin(subjects.MemoryAdminRequest{Op: "accept", IDs: []string{again}}); err != nil {
		t.Fatal(err)
	}
	if e := w.entry(deriveID("accepted", again)); e.SupersededBy != rome {
		t.Errorf("what it repeats is not known: %+v", e)
	}
}

// TestStatus: the counts and versions that the status reports.
func TestStatus(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	rome, oslo := w.storeFact("The address of Anna is Rome."), w.storeFact("The address of Anna is Oslo.")
	w.supersede(rome, oslo)
	w.relate(oslo, digest.Relation{
		Subject: "Anna", Predicate: "lives in", Object: "Oslo", Kind: "place", Tense: subjects.TenseIs,
	})
	w.storeAnswer("q1", "What colour has the bicycle?", "The bicycle is red.")
	w.importPieces("/notes.md", "The tent has nine pegs.")
	w.embed = nil
	w.storeFact("The lamp is broken.")
	w.embed = wordEmbedder("words-1", 256)
	if _, err := w.recallStages(subjects.MemoryQuery{Query: "tent"}); err != nil {
		t.Fatal(err)
	}
	got, err := w.admin(subjects.MemoryAdminRequest{Op: "status"})
	if err != nil || got.Status == nil {
		t.Fatalf("%+v, %v", got, err)
	}
	s := *got.Status
	if !reflect.DeepEqual(s.Entries, map[string]int{"fact": 3, "engram": 1, "document": 1}) ||
		!reflect.DeepEqual(s.States, map[string]int{"active": 4, "superseded": 1}) {
		t.Errorf("%v, %v", s.Entries, s.States)
	}
	if s.Relations != 1 || s.Documents != 1 || s.Bytes == 0 || s.Schema == 0 || s.DuckDB == "" || s.Search == "" ||
		s.Model != "words-1" || s.Unembedded != 1 || s.Resident == 0 || s.Cached != 1 {
		t.Errorf("%+v", s)
	}
	if g, err := w.admin(subjects.MemoryAdminRequest{Op: "graph", Limit: 1}); err != nil || len(g.Relations) != 1 ||
		g.Relations[0].Tense != subjects.TenseIs {
		t.Errorf("the graph: %+v, %v", g.Relations, err)
	}
	data, err := json.Marshal(got)
	if err != nil || !strings.Contains(string(data), `"entries":[]`) {
		t.Errorf("a list that is empty is said as one: %s, %v", data, err)
	}
}
