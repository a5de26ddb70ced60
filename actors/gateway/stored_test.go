package gateway

import (
	"testing"

	"conclave/subjects"
)

// TestStoredAnswerOfEarlierBuildIsRead: an answer in EVENTS with a field name from before its renaming.
func TestStoredAnswerOfEarlierBuildIsRead(t *testing.T) {
	t.Parallel()
	ev := Event{Subject: subjects.ResponseGeneration.Name, From: subjects.Generator, Query: "q1", Seq: 7, Payload: []byte(`{"query_id":"q1","answer":"yes","stand_in":true}`)}
	end, err := readOutcome(ev, "q1")
	if err != nil || end == nil || end.response == nil || end.response.Answer != "yes" || !end.response.DemoModel {
		t.Fatalf("read %+v, %v", end, err)
	}
}
