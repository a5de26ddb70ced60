package generator

import (
	"slices"
	"sync"
	"testing"

	"conclave/subjects"
)

// The labels of concurrent results are joined.
func TestResultLabels(t *testing.T) {
	t.Parallel()
	turn := &turn{}
	turn.addLabels(nil)
	if l, _ := turn.answerLabels(); l != nil {
		t.Fatal("labels of nothing")
	}
	var wg sync.WaitGroup
	for _, l := range []subjects.Labels{
		{Trust: subjects.Trusted, Privacy: subjects.Public},
		{Trust: subjects.Untrusted, Privacy: subjects.Public, Flags: []string{"override"}},
		{Trust: subjects.Trusted, Privacy: subjects.Private, Flags: []string{"override", "hidden_text"}},
		{Trust: "", Privacy: subjects.Public}, // nobody vouches for it
	} {
		wg.Go(func() { turn.addLabels(&l) })
	}
	wg.Wait()
	got, _ := turn.answerLabels()
	slices.Sort(got.Flags)
	if got.Trust != subjects.Untrusted || got.Privacy != subjects.Private ||
		!slices.Equal(got.Flags, []string{"hidden_text", "override"}) {
		t.Fatalf("%+v", got)
	}
}
