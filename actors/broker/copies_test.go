package broker

import (
	"encoding/json"
	"testing"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// TestRepeatedRefusalsAreCounted: of many refused calls of an account a few have copies, which say how many have none.
func TestRepeatedRefusalsAreCounted(t *testing.T) {
	t.Parallel()
	rec := &actortest.Recorder{Time: noon}
	b := &Broker{copies: actor.Shares{Quota: 16 << 20}}
	r := stage.Received{Tool: "nowhere", Caller: callerOf("generator"), Query: "q1"}
	refuse := func(n int) (copies, counted int) {
		before := len(rec.Published())
		for range n {
			b.publishRefusal(t.Context(), rec.Out(), r, nil, r.Result())
		}
		for _, p := range rec.Published()[before:] {
			if _, isResult := subjects.Match(subjects.ToolResultEvent.Name, p.Subject); !isResult {
				continue
			}
			var res subjects.ToolResult
			if err := json.Unmarshal([]byte(p.Body), &res); err != nil {
				t.Fatal(err)
			}
			copies++
			counted += 1 + res.Repeated
		}
		return copies, counted
	}
	if copies, counted := refuse(500); copies != 53 || counted != 256 {
		t.Errorf("%d copies for %d of 500 refusals, want 53 for 256", copies, counted)
	}
	rec.Time = noon.Add(refusalPeriod)
	if copies, counted := refuse(1); copies != 1 || counted != 245 {
		t.Errorf("%d copies for %d refusals after the period, want 1 for the 244 before it too", copies, counted)
	}
}
