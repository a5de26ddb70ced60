package generator

import (
	"encoding/json"
	"slices"
	"strings"
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

// A response holds no credentials from arguments.
func TestArgumentsAreRedacted(t *testing.T) {
	t.Parallel()
	token := "ghp_0123456789abcdefghijklmnopqrstuvwxyz"
	for in, want := range map[string]string{
		`{"query":"fish"}`:              `{"query":"fish"}`,
		`{"content":"` + token + `"}`:   "",
		`{"a":["x","` + token + ` y"]}`: "",
	} {
		got := string(redactArguments(json.RawMessage(in)))
		if strings.Contains(got, token) || want != "" && got != want || got != "" && !json.Valid([]byte(got)) {
			t.Errorf("%s: %s", in, got)
		}
	}
}
