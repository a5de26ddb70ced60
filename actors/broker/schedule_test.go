package broker

import (
	"testing"

	"conclave/pkg/policy"
	"conclave/subjects"
)

// TestScheduledGrantsAreFixed: of the grants that the words of a scheduled question have, those hold that were stored
// with it, and no others; the list of a question that no schedule asks is ignored.
func TestScheduledGrantsAreFixed(t *testing.T) {
	t.Parallel()
	const words = "Save a note 'fish' and send Anna the news"
	derived := policy.DeriveGrants(words)
	if len(derived) != 2 {
		t.Fatalf("%+v", derived)
	}
	save, other := derived[0].Fingerprint(), policy.DeriveGrants("Send Bob the news")[0].Fingerprint()
	for name, tt := range map[string]struct {
		schedule string
		fixed    []string
		want     int
	}{
		"a question":                            {"", nil, 2},
		"a question with a list":                {"", []string{save}, 2},
		"all fixed":                             {"s1", []string{save, derived[1].Fingerprint()}, 2},
		"one fixed":                             {"s1", []string{save}, 1},
		"none fixed":                            {"s1", nil, 0},
		"trick: a grant that the words lack":    {"s1", []string{other}, 0},
		"trick: one that the words have, twice": {"s1", []string{save, save, other}, 1},
		"trick: an empty fingerprint":           {"s1", []string{""}, 0},
	} {
		h := newSessionFixture(t)
		h.addTurn("s1", "q1", words)
		h.turns[0].Schedule, h.turns[0].Fixed = tt.schedule, tt.fixed
		f, err := h.loadFlow(t.Context(), h.rec.Out(), subjects.Generator, "s1", "q1", false)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Grants("q1"); len(got) != tt.want {
			t.Errorf("%s: %d grants, want %d: %+v", name, len(got), tt.want, got)
		}
	}
}
