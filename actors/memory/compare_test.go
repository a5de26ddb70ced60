package memory

import (
	"slices"
	"strings"
	"testing"

	"conclave/subjects"
)

// told is an answer about a place of somebody's.
func told(query, who, place string, change ...func(*subjects.Response)) subjects.Response {
	r := subjects.Response{
		SessionID: "s1", QueryID: query, Query: "Where does my sister " + who + " live?", Answer: "Your sister " + who + " lives in " + place + ".",
		GeneratorID: "generator", RespondentID: "generator", Model: "gemma", Labels: trusted(),
	}
	for _, c := range change {
		c(&r)
	}
	return r
}

func untrusted(r *subjects.Response) { r.Labels = &subjects.Labels{Trust: subjects.Untrusted} }

// TestNewEntryIsComparedWithSimilar: a duplicate is merged, a contradiction supersedes; an untrusted entry does neither to a
// trusted one, and nothing supersedes a pinned one.
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
		{name: "the same", who: "Anna", first: told("a1", "Anna", "Rome"), second: told("a2", "Anna", "Rome"), action: "merged", states: "active superseded", recalled: []string{"a1"}},
		{name: "contradiction", who: "Berta", first: told("b1", "Berta", "Rome"), second: told("b2", "Berta", "Oslo"), action: "superseded", states: "superseded active", recalled: []string{"b2"}},
		{name: "another person", who: "Clara", first: told("c1", "Clara", "Rome"), second: told("c2", "Clarissa", "Rome"), action: "stored", states: "active active"},
		{
			name: "another respondent, same answer", who: "Doris", first: told("d1", "Doris", "Rome"), second: told("d1", "Doris", "Rome"), account: "respondent_b",
			action: "stored", states: "active active",
		},
		{
			name: "another respondent, contradiction", who: "Emily", first: told("e1", "Emily", "Rome"), second: told("e1", "Emily", "Oslo"), account: "respondent_b",
			action: "stored", states: "active active",
		},
		{name: "trick: untrusted contradiction", who: "Frida", first: told("f1", "Frida", "Rome"), second: told("f2", "Frida", "Oslo", untrusted), action: "stored", states: "active active"},
		{name: "trick: untrusted duplicate", who: "Greta", first: told("g1", "Greta", "Rome"), second: told("g2", "Greta", "Rome", untrusted), action: "stored", states: "active active"},
		{name: "trusted contradicts untrusted", who: "Hanna", first: told("h1", "Hanna", "Rome", untrusted), second: told("h2", "Hanna", "Oslo"), action: "superseded", states: "superseded active"},
		{name: "trick: contradiction of a pinned entry", who: "Irene", first: told("i1", "Irene", "Rome"), second: told("i2", "Irene", "Oslo"), pinned: true, action: "stored", states: "active active"},
		{name: "duplicate of a pinned entry", who: "Julia", first: told("j1", "Julia", "Rome"), second: told("j2", "Julia", "Rome"), pinned: true, action: "merged", states: "active superseded"},
	} {
		account := "generator"
		if tt.account != "" {
			account = tt.account
		}
		if err := w.deliverAnswer("generator", tt.first); err != nil {
			t.Fatal(err)
		}
		one, two := deriveID(subjects.KindEngram, tt.first.QueryID, "generator"), deriveID(subjects.KindEngram, tt.second.QueryID, account)
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
		switch tt.action {
		case "merged":
			if b.SupersededBy != one || len(ev.IDs) != 2 || ev.IDs[1] != one {
				t.Errorf("%s: the new one was merged into %q, and it tells of %v", tt.name, b.SupersededBy, ev.IDs)
			}
		case "superseded":
			if a.SupersededBy != two || !slices.Equal(b.Supersedes, []string{one}) || len(ev.IDs) != 2 || ev.IDs[1] != one {
				t.Errorf("%s: %q took the place of %v, and it tells of %v", tt.name, a.SupersededBy, b.Supersedes, ev.IDs)
			}
		}
		if tt.recalled == nil {
			continue
		}
		got := w.recallIDs("Where does my sister " + tt.who + " live?")
		if len(got) == 0 || got[0] != deriveID(subjects.KindEngram, tt.recalled[0], "generator") || slices.Contains(got, one) && slices.Contains(got, two) {
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
	one := w.storeFact("My sister Anna lives in Rome.")
	got, err := w.write(subjects.MemoryWriteRequest{Entries: []subjects.MemoryEntry{{Corpus: "My sister Anna lives in Rome.", Tags: []string{"Family", "family", " "}}}})
	if err != nil || got.Results[0].Action != "merged" || got.Results[0].Other != one {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := w.deliverAnswer("generator", told("q2", "Berta", "Rome", func(r *subjects.Response) { r.Recalls = []string{other} })); err != nil {
		t.Fatal(err)
	}
	if e := w.entry(one); !slices.Equal(e.Tags, []string{"family"}) || e.State != subjects.MemoryActive {
		t.Errorf("it knows %+v", e)
	}
	if e := w.entry(deriveID(subjects.KindEngram, "q1", "generator")); !slices.Equal(e.Correlating, []string{other}) {
		t.Errorf("it goes with %v", e.Correlating)
	}
}

// TestChangeDuringComparison: if the user changes the compared entry before the new one is stored, the comparison is void
// and nothing is lost.
func TestChangeDuringComparison(t *testing.T) {
	t.Parallel()
	w := newFixture(t, func(c *Config) { c.Model = true })
	for _, tt := range []struct {
		name, verdict string
		hand          subjects.MemoryAdminRequest
		old           string // what the older one is in the end, "" = gone
	}{
		{"duplicate of an entry forgotten meanwhile", "same", subjects.MemoryAdminRequest{Op: "forget"}, ""},
		{"duplicate of an entry edited meanwhile", "same", subjects.MemoryAdminRequest{Op: "edit", Edit: &subjects.MemoryEdit{Corpus: new("Nobody knows.")}}, subjects.MemoryActive},
		{"contradiction of an entry forgotten meanwhile", "contradicts", subjects.MemoryAdminRequest{Op: "forget"}, ""},
		{"contradiction of an entry edited meanwhile", "contradicts", subjects.MemoryAdminRequest{Op: "edit", Edit: &subjects.MemoryEdit{Corpus: new("Nobody knows.")}}, subjects.MemoryActive},
		{"trick: contradiction of an entry pinned meanwhile", "contradicts", subjects.MemoryAdminRequest{Op: "pin"}, subjects.MemoryActive},
		{"contradiction, nothing changed meanwhile", "contradicts", subjects.MemoryAdminRequest{Op: "show"}, subjects.MemorySuperseded},
	} {
		w.chat = nil
		text := "The letter is in " + strings.Map(func(r rune) rune {
			if r == ' ' || r == ':' || r == ',' {
				return -1
			}
			return r
		}, tt.name) + " now."
		old := w.storeFact(text)
		w.chat = func(_, _, schema string) (string, error) {
			if !strings.Contains(schema, "relationship") {
				return "", subjects.Faultf(subjects.CodeUnavailable, "nobody")
			}
			if tt.hand.IDs != nil { // it was done
				return `{"relationship":"unrelated","why":"one is enough"}`, nil
			}
			tt.hand.IDs = []string{old}
			if _, err := w.admin(tt.hand); err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			return `{"relationship":"` + tt.verdict + `","why":"so it seems"}`, nil
		}
		fresh := w.storeFact(text + " It is blue.")
		if e := w.entry(fresh); e.State != subjects.MemoryActive {
			t.Errorf("%s: the new one is %s by %q", tt.name, e.State, e.SupersededBy)
		}
		state := ""
		if all, err := w.db.Get(t.Context(), old); err != nil {
			t.Fatal(err)
		} else if len(all) == 1 {
			state = all[0].State
		}
		if state != tt.old {
			t.Errorf("%s: the old one is %q, want %q", tt.name, state, tt.old)
		}
	}
}
