package config

import (
	"strings"
	"testing"

	"conclave/pkg/story"
)

// Nobody is spoken for who speaks for themselves.
func TestOutvoiced(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, act string
		cast      []string
		path      string // "" = the story may be played
		want      string
	}{
		{"nobody who judges lives here", "grade: {of: 1, score: 3}", Actors, "", ""},
		{"somebody else judges", "grade: {of: 1, score: 3}", []string{"memory", "reward"}, "", ""},
		{"no judgement", "memory: {forget: x}", []string{"critic", "reward"}, "", ""},
		{"a grade beside the critic", "grade: {of: 1, score: 3}", []string{"memory", "critic"}, "turns[1].grade", "critic lives on the stage and speaks for itself"},
		{"trick: a comparison beside the critic", "pairwise: {of: 1, winner: tie}", []string{"critic"}, "turns[1].pairwise", "critic lives on the stage"},
		{"trick: a reward of a turn to come", "reward: {of: 3, value: 1}", []string{"reward"}, "turns[1].reward", "reward lives on the stage"},
	} {
		s, err := story.Parse([]byte("story: T\ntitle: t\nwhy: w\nturns:\n  - query: one\n    no_notes: true\n  - "+tt.act+"\n  - query: two\n"), "t.yaml")
		if err != nil {
			t.Fatal(err)
		}
		path, err := outvoiced(s, tt.cast)
		if path != tt.path || (err == nil) != (tt.path == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %q, %v", tt.name, path, err)
		}
	}
}
