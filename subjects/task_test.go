package subjects_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"conclave/subjects"
)

// The return of an agent has all seven fields of the contract, whatever they hold.
func TestAgentReturnHasAllFields(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(subjects.AgentReturn{})
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(b, &fields); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"artifacts", "failure_reason", "new_memory_candidates", "result_quality", "source", "status", "summary",
	}
	if got := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, want) {
		t.Errorf("fields %v, want %v", got, want)
	}
}
