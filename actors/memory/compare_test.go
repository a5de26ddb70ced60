package memory

import (
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/actors/memory/digest"
	"conclave/subjects"
)

// told is an answer about a place of somebody's.
func told(query, who, place string, change ...func(*subjects.Response)) subjects.Response {
	r := subjects.Response{
		SessionID: "s1", QueryID: query, Query: "What is the address of " + who + "?", Answer: "The address of " + who +
			" is " + place + ".",
		GeneratorID: "generator", RespondentID: "generator", Model: "gemma", Labels: trusted(),
	}
	for _, c := range change {
		c(&r)
	}
	return r
}

func untrusted(r *subjects.Response) { r.Labels = &subjects.Labels{Trust: subjects.Untrusted} }

// TestNewEntryIsComparedWithSimilar: a duplicate of the same trust is merged.
func TestNewEntryIsComparedWithSimilar(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	for _, tt := range []struct {
		name, who     string
		first, second subjects.Response
		account       string // of the second
		pinned        bool
		action        string
		states        string   // of both, at the end
		recalled      []string // which of the two, best first
	}{
		{
			name: "the same", who: "Anna", first: told("a1", "Anna", "Rome"), second: told("a2", "Anna", "Rome"),
			action: "merged", states: "active superseded", recalled: []string{"a1"},
		},
		{
			name: "other content", who: "Berta", first: told("b1", "Berta", "Rome"), second: told("b2", "Berta",
				"Oslo"),
			action: "stored", states: "active active",
		},
		{
			name: "another person", who: "Clara", first: told("c1", "Clara", "Rome"),
			second: told("c2", "Clarissa", "Rome"), action: "stored", states: "active active",
		},
		{
			name: "another respondent, same answer", who: "Doris", first: told("d1", "Doris", "Rome"),
			second: told("d1", "Doris", "Rome"), account: "respondent_b",
			action: "stored", states: "active active",
		},
		{
			name: "trick: untrusted duplicate", who: "Greta", first: told("g1", "Greta", "Rome"),
			second: told("g2", "Greta", "Rome", untrusted), action: "stored", states: "active active",
		},
		{
			name: "duplicate of a pinned entry", who: "Julia", first: told("j1", "Julia", "Rome"),
			second: told("j2", "Julia", "Rome"), pinned: true, action: "merged", states: "active superseded",
		},
	} {
		account := "generator"
		if tt.account != "" {
			account = tt.account
		}
		if err := w.deliverAnswer("generator", tt.first); err != nil {
			t.Fatal(err)
		}
		one, two := deriveID(subjects.KindEngram, tt.first.QueryID, "generator"), deriveID(subjects.KindEngram,
			tt.second.QueryID, account)
		if tt.pinned {
			if _, err := w.admin(subjects.MemoryAdminRequest{Op: "pin", IDs: []string{one}}); err != nil {
				t.Fatal(err)
			}
		}
		w.advance(1)
		if err := w.deliverAnswer(account, tt.second); err != nil {
			t.Fatal(err)
		}
		// Both are there to be seen.
		shown, err := w.admin(subjects.MemoryAdminRequest{Op: "show", IDs: []string{one, two}})
		if err != nil || len(shown.Entries) != 2 {
			t.Errorf("%s: shown %+v, %v", tt.name, shown, err)
			continue
		}
		a, b := shown.Entries[0], shown.Entries[1]
		if got := a.State + " " + b.State; got != tt.states {
			t.Errorf("%s: they are %s, want %s", tt.name, got, tt.states)
		}
		ev := last(w.events("memory.stored"))
		if ev.Action != tt.action || ev.IDs[0] != two || ev.Why == "" {
			t.Errorf("%s: it tells %+v, want %s", tt.name, ev, tt.action)
		}
		if tt.action == "merged" && (b.SupersededBy != one || len(ev.IDs) != 2 || ev.IDs[1] != one) {
			t.Errorf("%s: the new one was merged into %q, and it tells of %v", tt.name, b.SupersededBy, ev.IDs)
		}
		if tt.recalled == nil {
			continue
		}
		got := w.recallIDs("What is the address of " + tt.who + "?")
		if len(got) == 0 || got[0] != deriveID(subjects.KindEngram, tt.recalled[0], "generator") ||
			slices.Contains(got, one) && slices.Contains(got, two) {
			t.Errorf("%s: it recalls %v, want %v", tt.name, got, tt.recalled)
		}
	}
}

// TestMergeAddsTagsAndLinks: the remaining entry gets the tags, entities and links of its duplicate.
func TestMergeAddsTagsAndLinks(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	other := w.storeFact("The red bicycle has no bell.")
	if err := w.deliverAnswer("generator", told("q1", "Berta", "Rome")); err != nil {
		t.Fatal(err)
	}
	one := w.storeFact("The address of Anna is Rome.")
	got, err := w.write(subjects.MemoryWriteRequest{Entries: []subjects.MemoryEntry{{Corpus: "The address of Anna " +
		"is Rome.", Tags: []string{"Family", "family", " "}}}})
	if err != nil || got.Results[0].Action != "merged" || got.Results[0].Other != one {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := w.deliverAnswer("generator", told("q2", "Berta", "Rome", func(r *subjects.Response) {
		r.Recalls = []string{other}
	})); err != nil {
		t.Fatal(err)
	}
	if e := w.entry(one); !slices.Equal(e.Tags, []string{"family"}) || e.State != subjects.MemoryActive {
		t.Errorf("it knows %+v", e)
	}
	if e := w.entry(deriveID(subjects.KindEngram, "q1", "generator")); !slices.Equal(e.Correlating, []string{other}) {
		t.Errorf("it goes with %v", e.Correlating)
	}
}

// TestChangeDuringComparison: if the user changes a compared entry before the new one is stored, the comparison is
// void.
func TestChangeDuringComparison(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	for name, tt := range map[string]struct {
		hand  subjects.MemoryAdminRequest
		holds bool
	}{
		"forgotten": {subjects.MemoryAdminRequest{Op: "forget"}, false},
		"edited": {
			subjects.MemoryAdminRequest{Op: "edit", Edit: &subjects.MemoryEdit{Corpus: new("Nobody knows.")}}, false,
		},
		"pinned": {subjects.MemoryAdminRequest{Op: "pin"}, true},
		"shown":  {subjects.MemoryAdminRequest{Op: "show"}, true},
	} {
		old := w.entry(w.storeFact("A kayak hangs below our garage ceiling, as " + name + "."))
		tt.hand.IDs = []string{old.ID}
		if _, err := w.admin(tt.hand); err != nil {
			t.Fatal(err)
		}
		if got := isUnchanged(t.Context(), w.rec.Out(), &access{w.db}, old); got != tt.holds {
			t.Errorf("%s meanwhile: %t", name, got)
		}
	}
}

// TestRepeatedWordsOnAnotherDayStand: neither a repeated thank-you nor an entry of the same name supersedes another.
func TestRepeatedWordsOnAnotherDayStand(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	for _, tt := range []struct{ name, first, second, action string }{
		{
			"another day", `(1:56 pm on 8 May, 2023) Caroline said, "Thanks so much for the kind words, Mel."`,
			`(2:10 pm on 25 May, 2023) Caroline said, "Thanks so much for the kind words, Mel."`, "stored",
		},
		{
			"another speaker", `(1:56 pm on 9 May, 2023) Caroline said, "The lake looked great yesterday."`,
			`(1:56 pm on 9 May, 2023) Melanie said, "The lake looked great yesterday."`, "stored",
		},
		{
			"the same turn", `(1:56 pm on 10 May, 2023) Caroline said, "Our choir sings on Fridays."`,
			`(1:56 pm on 10 May, 2023) Caroline said, "Our choir sings on Fridays."`, "merged",
		},
	} {
		w.storeFact(tt.first)
		got, err := w.write(subjects.MemoryWriteRequest{Entries: []subjects.MemoryEntry{{Corpus: tt.second}}})
		if err != nil || got.Results[0].Action != tt.action {
			t.Errorf("%s: %+v, %v, want %s", tt.name, got, err, tt.action)
		}
	}
	for _, text := range []string{"The boat needs paint.", "The cellar is damp in spring."} {
		got,
			err := w.write(
			subjects.MemoryWriteRequest{Entries: []subjects.MemoryEntry{{Corpus: text, Name: "house and boat"}}})
		if err != nil || got.Results[0].Action != "stored" {
			t.Errorf("%q of the same name: %+v, %v", text, got, err)
		}
	}
}

// TestAttributionFillsTheContextOfAnEntry: speaker, time, conversation and position, unless the caller gave them.
func TestAttributionFillsTheContextOfAnEntry(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	at := time.Date(2023, time.May, 8, 13, 56, 0, 0, time.UTC)
	for i, text := range []string{
		`(1:56 pm on 8 May, 2023) Caroline said, "I went to a concert."`,
		`[2023-05-08 13:56] Melanie: I love live music.`,
	} {
		e := w.entry(w.storeFact(text))
		if e.Speaker != []string{"Caroline", "Melanie"}[i] || !e.Happened.Equal(at) ||
			e.Conversation != "said 2023-05-08T13:56:00Z" || e.Position != i+1 || e.Corpus != text ||
			strings.Contains(e.Name, "2023") {
			t.Errorf("%q: %+v", text, e)
		}
	}
	got,
		err := w.write(
		subjects.MemoryWriteRequest{Entries: []subjects.MemoryEntry{{
			Corpus: `Caroline said, "I swim."`, Speaker: "Ana",
			Conversation: "club", Position: 7, Happened: at.AddDate(1, 0, 0),
		}}})
	if err != nil {
		t.Fatal(err)
	}
	if e := w.entry(got.Results[0].ID); e.Speaker != "Ana" || e.Conversation != "club" || e.Position != 7 ||
		!e.Happened.Equal(at.AddDate(1, 0, 0)) {
		t.Errorf("the caller's context is replaced: %+v", e)
	}
	saved := w.saved(`{"content":"Tom said, \"I play the piano.\""}`)
	if e := w.entry(saved.Recalls[0]); e.Speaker != "Tom" {
		t.Errorf("save_memory: %+v", e)
	}
}

// TestTimeInTheFutureDoesNotOutlastLaterEntries: a time more than a day ahead is rejected, in an attribution and an
// export it is dropped, and one that an earlier version stored does not count.
func TestTimeInTheFutureDoesNotOutlastLaterEntries(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	far := time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)
	for at, want := range map[time.Time]string{
		far: "refused", noon.Add(25 * time.Hour): "refused",
		noon.Add(23 * time.Hour): "stored",
	} {
		for _, external := range []bool{false, true} {
			e := subjects.MemoryEntry{Corpus: "The parcel " + letters(at.Year()) + " arrived.", Happened: at}
			got, err := w.write(subjects.MemoryWriteRequest{Entries: []subjects.MemoryEntry{e}, External: external})
			if err != nil || got.Results[0].Action != want || want == "refused" &&
				!strings.Contains(got.Results[0].Why, "in the future; it is a time until 2026-05-05") {
				t.Errorf("%s: %+v, %v", at, got.Results, err)
			}
		}
	}
	if e := w.entry(
		w.storeFact(`(1:56 pm on 8 May, 2096) Caroline said, "I went to a concert."`)); !e.Happened.IsZero() {
		t.Errorf("the attribution is of %s", e.Happened)
	}
	old := w.entry(w.storeFact("My address is Rome."))
	old.ID, old.Happened = "restored1", far
	got, err := w.write(subjects.MemoryWriteRequest{Entries: []subjects.MemoryEntry{old}, Restore: true, Trusted: true})
	if err != nil || !strings.Contains(got.Results[0].Why, "without its time") ||
		!w.entry("restored1").Happened.IsZero() {
		t.Errorf("restored %+v, %v", got.Results, err)
	}
	next := old
	next.Happened, next.Created = noon.Add(time.Hour), noon.Add(time.Hour)
	if why := digest.CheckOrder(statementOf(old), statementOf(next)); why != "" {
		t.Errorf("an entry of the year 9999: %s", why)
	}
}
