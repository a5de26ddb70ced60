package main

import (
	"encoding/json"
	"strings"
	"testing"

	"conclave/subjects"
)

// TestDefinitionsLookDifferent: definitions that differ in hidden characters only look different to the user who
// accepts one, because the model reads these characters.
func TestDefinitionsLookDifferent(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, hidden := range []string{"", "\u200b", "\u2060", "\U000e0041", "\U000e0042", "\u009b", "\u202e"} {
		for _, s := range []subjects.ToolSchema{
			{Name: "count", Description: "Counts words." + hidden, Parameters: json.RawMessage(`{"type":"object"}`)},
			{
				Name: "count", Description: "Counts words",
				Parameters: json.RawMessage(`{"type":"object","description":"` + hidden + `"}`),
			},
		} {
			shown := formatDefinition(&s)
			if other, ok := seen[shown]; ok {
				t.Errorf("%q is shown as %q: %s", hidden, other, shown)
			}
			if hidden != "" && strings.Contains(shown, hidden) {
				t.Errorf("%q is not escaped", hidden)
			}
			seen[shown] = hidden
		}
	}
}
