package broker

import (
	"encoding/json"
	"fmt"
	"testing"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/policy"
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

// TestLargeRequestsLeaveRoomForSmall: approval requests of many questions with large arguments use up their part of
// those of a day, and not that of small ones.
func TestLargeRequestsLeaveRoomForSmall(t *testing.T) {
	t.Parallel()
	s := newRequestShares()
	const large = maxSmallRequest + 1
	for q := range 300 {
		for s.admit(requester{"generator", fmt.Sprint("q", q)}, large, noon) {
		}
	}
	last := requester{"generator", "last"}
	if s.admit(last, large, noon) {
		t.Error("large requests are not used up")
	}
	if !s.admit(last, maxSmallRequest, noon) {
		t.Error("no small request is admitted")
	}
}

// TestCopiesAreShared: the copies of an account's calls that run end with its share, and another account has its own.
func TestCopiesAreShared(t *testing.T) {
	t.Parallel()
	rec := &actortest.Recorder{Time: noon}
	b := &Broker{copies: actor.Shares{Quota: 64 << 10}}
	copyOf := func(account string) (published bool) {
		before := len(rec.Published())
		r := stage.Received{Tool: "clock", Caller: callerOf(account), Query: "q1"}
		b.publishResult(t.Context(), rec.Out(), r, r.Result(), false)
		return len(rec.Published()) > before
	}
	copies := 0
	for copies < 1000 && copyOf("generator") {
		copies++
	}
	if copies == 0 || copies > 64 {
		t.Errorf("%d copies of at least half a KB each in 64 KB", copies)
	}
	if !copyOf("committee") {
		t.Error("another account has no copy")
	}
}

// TestClientsHaveShareOfTheirOwn: what the questions of clients request does not count as what the user's own do.
func TestClientsHaveShareOfTheirOwn(t *testing.T) {
	t.Parallel()
	c := egressCall()
	c.flow = (&policy.Flow{}).WithTurn(1, c.Query, "assistant", "?", nil)
	own := requesterOf(c.judged())
	c.flow = (&policy.Flow{}).WithClientTurn(1, c.Query, "assistant", "phone", "?", false, noon)
	if client := requesterOf(c.judged()); client.account == own.account || client.question != own.question {
		t.Errorf("the client's %+v, the user's %+v", client, own)
	}
}
