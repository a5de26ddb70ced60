package memory

import (
	"slices"
	"testing"

	"conclave/subjects"
)

// TestRespondentBSupersedesNothing: an answer that the user never saw supersedes none and merges none.
func TestRespondentBSupersedesNothing(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	says := func(who, query, name, city string) string {
		t.Helper()
		if err := w.deliverAnswer(who, told(query, name, city)); err != nil {
			t.Fatal(err)
		}
		return deriveID(subjects.KindEngram, query, who)
	}
	visible := says("generator", "b1", "Berta", "Rome")
	w.advance(1)
	says(subjects.RespondentB, "b2", "Berta", "Oslo")
	says(subjects.RespondentB, "c1", "Clara", "Rome")
	same := says("generator", "c2", "Clara", "Rome")
	for _, id := range []string{visible, same} {
		if e := w.entry(id); e.State != subjects.MemoryActive {
			t.Errorf("%q is %s by %s", e.Corpus, e.State, e.SupersededBy)
		}
	}
	// Nobody finds what respondent B said, unless it was the better answer.
	got := w.recallIDs("What is the address of Berta?")
	if !slices.Contains(got, visible) ||
		slices.Contains(got, deriveID(subjects.KindEngram, "b2", subjects.RespondentB)) ||
		slices.Contains(got, deriveID(subjects.KindEngram, "c1", subjects.RespondentB)) {
		t.Errorf("recalled %v", got)
	}
	// The same from the one who is seen is merged: the comparison is at work.
	w.advance(1)
	if e := w.entry(says("generator", "b3", "Berta", "Rome")); e.SupersededBy != visible {
		t.Errorf("%q is %s", e.Corpus, e.State)
	}
}
