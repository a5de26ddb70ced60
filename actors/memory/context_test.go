package memory

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/subjects"
)

// contextOf returns the context of a question and checks that the read was recorded and announced.
func (w *fixture) contextOf(question string) subjects.ToolResult {
	w.t.Helper()
	w.takeAudit()
	res := w.searched(fmt.Sprintf(`{"query":%q,"max":3,"context":true}`, question))
	if res.Error != nil || res.Labels == nil {
		w.t.Fatalf("the context of %q: %+v", question, res)
	}
	if recorded := w.takeAudit(); len(recorded) != 2 {
		w.t.Errorf("recorded %v", recorded)
	}
	if ev := last(w.events("memory.recalled")); !slices.Equal(ev.IDs, res.Recalls) && len(res.Recalls) > 0 {
		w.t.Errorf("announced %v, shown %v", ev.IDs, res.Recalls)
	}
	return res
}

func (w *fixture) pin(ids ...string) {
	w.t.Helper()
	if _, err := w.admin(subjects.MemoryAdminRequest{Op: "pin", IDs: ids}); err != nil {
		w.t.Fatal(err)
	}
}

// Pinned facts are part of the context whatever the question is about; other entries only when they clearly fit. Each is labelled
// with its origin, and the result is trusted only when all of them are.
func TestContextHasPinnedFactsAndCloseMatches(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	pinned := w.storeFact("The user's daughter is called Mara.")
	w.pin(pinned)
	bicycle := w.storeFact("The bicycle stands in the cellar.")
	external := w.saved(`{"content":"The observatory opens at nine."}`, func(o *subjects.ToolOrder) { o.Labels = nil }).Recalls[0]
	for _, tt := range []struct {
		name, question string
		ids            []string
		trust          string
		has            string
	}{
		{"nothing fits", "what is the capital of Peru?", []string{pinned}, subjects.Trusted, "Pinned by the user:\n- The user's daughter is called Mara. [fact " + pinned + ", just now, from the user]"},
		{"a fact fits", "which bicycle stands in the cellar?", []string{pinned, bicycle}, subjects.Trusted, "- The bicycle stands in the cellar. [fact " + bicycle + ", just now, from the user]"},
		{"an untrusted entry fits", "the observatory opens at nine?", []string{pinned, external}, subjects.Untrusted, "source: external, UNTRUSTED]"},
		{"the pinned fact fits", "what is the user's daughter called?", []string{pinned}, subjects.Trusted, "Mara"},
	} {
		res := w.contextOf(tt.question)
		if !slices.Equal(res.Recalls, tt.ids) || res.Labels.Trust != tt.trust || res.Labels.Privacy != subjects.Private || !strings.Contains(res.Result, tt.has) {
			t.Errorf("%s: %v, %+v, %s", tt.name, res.Recalls, res.Labels, res.Result)
		}
	}
}

// A model is shown who said an entry, and when.
func TestContextShowsSpeakerAndDay(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	said := subjects.MemoryEntry{Corpus: "The boat needs a new sail.", Speaker: "Ana", Happened: noon.AddDate(0, 0, -7)}
	if _, err := w.write(subjects.MemoryWriteRequest{Entries: []subjects.MemoryEntry{said}}); err != nil {
		t.Fatal(err)
	}
	if got := w.contextOf("Did Ana say the boat needs a new sail?").Result; !strings.Contains(got, "- The boat needs a new sail. [fact ") || !strings.Contains(got, ", from the user, said by Ana on 27 April 2026]") {
		t.Errorf("shows %q", got)
	}
}

// An answer of the session that asks is in its history, and not shown a second time.
func TestContextLeavesOutAnswersOfTheSameSession(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	for _, session := range []string{"s1", "s2"} { // searched asks in s1
		r := told("q-"+session, "Berta", "Rome", func(r *subjects.Response) { r.SessionID = session })
		if session == "s2" {
			r.Query, r.Answer = "Where does my sister Berta live in summer?", "In summer your sister Berta lives in Oslo, beside the harbour."
		}
		if err := w.deliverAnswer("generator", r); err != nil {
			t.Fatal(err)
		}
	}
	if res := w.contextOf("Where does my sister Berta live in summer?"); !slices.Equal(res.Recalls, []string{deriveID(subjects.KindEngram, "q-s2", "generator")}) {
		t.Errorf("shown %v: %s", res.Recalls, res.Result)
	}
}

// The result of a search that finds nothing is the text of the tool's facts, by which the session holds no private data.
func TestContextOfEmptyMemoryIsDeclaredEmpty(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	facts := Tools()[0].Facts
	if res := w.contextOf("hello"); len(res.Recalls) > 0 || facts.Name != "search_memory" || res.Result != facts.Empty {
		t.Errorf("%+v, want %q", res, facts.Empty)
	}
}

// Pinned facts beyond ten or 1,200 bytes are left out, the oldest first, so that they never crowd out the question.
func TestContextBoundsPinnedFacts(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	people := strings.Fields("Ada Bo Cleo Dan Eve Finn Gus Hal Ivo Jan Kim Lea Mia Nils")
	things := strings.Fields("apples bread chess dates eels figs grapes herons islands juice kites lemons music nuts")
	var ids []string
	for i := range people {
		ids = append(ids, w.storeFact(fmt.Sprintf("%s likes %s.", people[i], things[i])))
		w.advance(time.Second)
	}
	w.pin(ids...)
	res := w.contextOf("hello")
	slices.Reverse(ids)
	if !slices.Equal(res.Recalls, ids[:maxPinned]) {
		t.Errorf("shown %v of %v", res.Recalls, ids)
	}
	w.pin(w.storeFact(strings.Repeat("The long story of the boat goes on and on. ", 60)))
	if res := w.contextOf("hello"); len(res.Recalls) != 1 || len(res.Result) > maxPinnedBytes+200 {
		t.Errorf("%d facts, %d bytes", len(res.Recalls), len(res.Result))
	}
}

// Untrusted facts, proposals and other kinds are not shown for every question, even when they are pinned.
func TestContextPinsOnlyTrustedFacts(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.pin(w.saved(`{"content":"The museum opens at nine."}`, func(o *subjects.ToolOrder) { o.Labels = nil }).Recalls[0])
	w.pin(w.storeAnswer("q1", "Who repairs the canoe?", "The smith repairs the canoe on Fridays."))
	w.pin(w.importPieces("/home/p/notes.md", "The tent has nine pegs.")...)
	if res := w.contextOf("what is the capital of Peru?"); len(res.Recalls) > 0 {
		t.Errorf("shown: %s", res.Result)
	}
}

// An answer goes with the entries that were found for its question, not with facts that are in every prompt.
func TestPinnedFactsAreNotCorrelatedWithAnswers(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	pinned, other := w.storeFact("The user's daughter is called Mara."), w.storeFact("The bicycle stands in the cellar.")
	w.pin(pinned)
	if err := w.deliverAnswer("generator", told("q1", "Berta", "Rome", func(r *subjects.Response) { r.Recalls = []string{pinned, other} })); err != nil {
		t.Fatal(err)
	}
	if got := w.entry(deriveID(subjects.KindEngram, "q1", "generator")).Correlating; !slices.Equal(got, []string{other}) {
		t.Errorf("correlated with %v, want %s", got, other)
	}
}
