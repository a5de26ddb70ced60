package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// callWith calls a tool with arguments of about size bytes.
func (a toolClient) callWith(tool, id string, size int) subjects.ToolResult {
	a.t.Helper()
	s, err := subjects.ToolRequestService.With(tool)
	if err != nil {
		a.t.Fatal(err)
	}
	args, err := json.Marshal(map[string]string{"timezone": strings.Repeat("x", size)})
	if err != nil {
		a.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(a.t.Context(), testTimeout)
	defer cancel()
	res, err := actor.Ask(ctx, a.out, s, subjects.ToolRequest{CallID: id, Args: args})
	var fault *subjects.Fault
	if errors.As(err, &fault) {
		res.Error = fault
	} else if err != nil {
		a.t.Fatal(err)
	}
	return res
}

// ofQuestion returns a that calls for a question.
func (a toolClient) ofQuestion(query string) toolClient {
	return toolClient{a.t, a.out.WithIDs("s1", query)}
}

// TestAgentCannotStarveApprovals: questions whose refused calls fill their share of the events, and whose approval
// requests fill their share of those, block neither the approvals of another question or agent nor the copies of its
// calls.
func TestAgentCannotStarveApprovals(t *testing.T) {
	t.Parallel()
	// the least size of the broker's part
	b := bustest.Start(t, func(c *bus.ServerConfig) { c.EventMax = 8 << 20 })
	w := &busFixture{Bus: b, t: t, known: clockFacts()}
	w.known.MaxArgs, w.eventBytes = 0, 4<<20
	w.startTool(&fakeTool{schema: clock})
	w.startAskingBroker(time.Hour)
	user, generator, other := w.userClient("user"), w.client("generator"), w.client("committee")
	attacker := generator.ofQuestion("q1")
	copies := make(chan subjects.ToolRequest, 4096)
	nc := w.Connect("user")
	subscribeTo(t, nc, subjects.ToolRequestEvent, copies)
	if err := bustest.ConfirmSubscriptions(t.Context(), nc); err != nil {
		t.Fatal(err)
	}

	const large = 240 << 10
	for i := range 40 { // 9.6 MB
		by := generator.ofQuestion(fmt.Sprint("r", i%4))
		if res := by.callWith("nowhere", fmt.Sprintf("r%d", i), large); res.Error == nil ||
			res.Error.Code != subjects.CodeUnknownTool {
			t.Fatalf("call %d: %+v", i, res.Error)
		}
	}
	// decide calls the clock and decides about the call, if the user is asked.
	decide := func(by toolClient, id string, size int, approve bool) *subjects.Fault {
		t.Helper()
		done := make(chan subjects.ToolResult, 1)
		go func() { done <- by.callWith("get_datetime", id, size) }()
		select {
		case q := <-user.questions:
			user.answer(q.ID, subjects.ApprovalDecision{Approve: approve})
		case res := <-done:
			return res.Error
		}
		return receive(t, done).Error
	}
	// its refusals do not even block its own approvals
	for id, by := range map[string]toolClient{"a1": attacker, "o1": other} {
		if f := decide(by, id, 10, true); f != nil {
			t.Fatalf("%s: %v", id, f)
		}
	}
	for i := 0; ; i++ {
		f := decide(attacker, fmt.Sprintf("p%d", i), large, false)
		if f != nil && f.Code == subjects.CodeLimit {
			break
		}
		if f == nil || f.Code != subjects.CodeNotApproved || i > 100 {
			t.Fatalf("request %d: %v", i, f)
		}
	}
	for q := range 20 { // further questions
		by := generator.ofQuestion(fmt.Sprintf("p%d", q))
		for i := 0; ; i++ {
			if f := decide(by, fmt.Sprint("l", i), large, false); f.Code == subjects.CodeLimit {
				break
			}
		}
	}
	for id, by := range map[string]toolClient{"a2": attacker, "b2": generator.ofQuestion("q2"), "o2": other} {
		if f := decide(by, id, 10<<10, true); f != nil {
			t.Fatalf("%s: %v", id, f)
		}
	}
	clipped := 0
	for {
		c := receive(t, copies)
		if c.Tool == "nowhere" && len(c.Args) < 8<<10 && strings.Contains(string(c.Args), `"params_hash"`) {
			clipped++
		}
		if c.CallID == "o1" {
			break
		}
	}
	if clipped != 40 {
		t.Errorf("%d copies of refused calls with bounded arguments, want 40", clipped)
	}
}
