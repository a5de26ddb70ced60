package broker

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// cancelQuery delivers the live event of a cancellation.
func (h *sessionFixture) cancelQuery(t testing.TB, query string) {
	t.Helper()
	if err := h.deliver(t, "query.cancel."+query, "s1", query, subjects.Cancel{}, nil); err != nil {
		t.Fatal(err)
	}
}

// TestCancelWithdrawsApprovals: after the user cancelled a question, a call that waits for approval is denied at once,
// its approval can no longer be given, and no further call of the question runs.
func TestCancelWithdrawsApprovals(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t, withLongApprovalWait)
	h.addTurn("s1", "q1", "run ls")
	h.addTurn("s1", "q2", "run ls")
	done := make(chan subjects.ToolResult, 1)
	go func() { done <- h.runTool(t, "generator", "run_shell", `{"command":"ls"}`, "c1") }()
	id := <-h.approvals
	h.cancelQuery(t, "q1")
	select {
	case res := <-done:
		if outcomeText(res) != "approval: withdrawn" || res.Error.Code != subjects.CodeStopped ||
			!strings.Contains(res.Error.Text, "the user cancelled the question") {
			t.Errorf("%v", res.Error)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the call still waits")
	}
	var reply subjects.ApprovalReply
	if err := h.deliver(t, "ctl.user.approval.decision."+id, "", "", subjects.ApprovalDecision{Approve: true},
		&reply); err != nil || reply.Accepted || reply.State != subjects.ApprovalWithdrawn {
		t.Errorf("approved afterwards: %+v, %v", reply, err)
	}
	for _, tool := range []string{"run_shell", "web_search", "get_datetime"} {
		if res := h.runTool(t, "generator", tool, `{"command":"ls","query":"ls"}`); outcomeText(
			res) != "approval: withdrawn" {
			t.Errorf("%s afterwards: %s", tool, outcomeText(res))
		}
	}
	if story := h.recentEvents(); strings.Contains(story, "ran") {
		t.Errorf("a call of a cancelled question ran: %s", story)
	}
	if got := fmt.Sprint(h.rec.Published()); !strings.Contains(got, "event.approval.decision."+id) ||
		!strings.Contains(got, `"state":"withdrawn"`) {
		t.Errorf("the withdrawal was not published: %s", got)
	}
	if res := h.runToolIn(t, "s1", "q2", "generator", "get_datetime", `{}`); outcomeText(res) != "ok" {
		t.Errorf("another question: %s", outcomeText(res))
	}
}

// TestCancelWhileNoBrokerRan: a cancellation that only EVENTS has withdraws the approval when it is decided or asked
// for again; an event that another account wrote, and an unreadable stream, do not count as one.
func TestCancelWhileNoBrokerRan(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, author, state string
		accepted            bool
	}{
		{"cancelled by the user", "user", subjects.ApprovalWithdrawn, false},
		{"cancelled over HTTP", "gateway", subjects.ApprovalWithdrawn, false},
		{"not cancelled", "", subjects.ApprovalApproved, true},
		{"trick: cancelled by an agent", "generator", subjects.ApprovalApproved, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newSessionFixture(t, withLongApprovalWait)
				h.addTurn("s1", "q1", "run ls")
				h.deadline = 50 * time.Millisecond
				if res := h.runTool(t, "generator", "run_shell", `{"command":"ls"}`,
					"c1"); outcomeText(res) != "approval: pending" {
					t.Fatal(outcomeText(res))
				}
				id := <-h.approvals
				h.start(t, parseRules(t, sessionManifest)) // another broker
				if tt.author != "" {
					h.mu.Lock()
					h.cancels = map[string]string{"q1": tt.author}
					h.mu.Unlock()
				}
				var reply subjects.ApprovalReply
				if err := h.deliver(t, "ctl.user.approval.decision."+id, "", "",
					subjects.ApprovalDecision{Approve: true}, &reply); err != nil || reply.Accepted != tt.accepted ||
					reply.State != tt.state {
					t.Errorf("%+v, %v", reply, err)
				}
				want := "ok"
				if !tt.accepted {
					want = "approval: withdrawn"
				}
				if res := h.runTool(t, "generator", "run_shell", `{"command":"ls"}`, "c1"); outcomeText(res) != want {
					t.Errorf("the call ends in %s, want %s", outcomeText(res), want)
				}
			})
		})
	}
	h := newSessionFixture(t, withLongApprovalWait)
	h.addTurn("s1", "q1", "run ls")
	h.rec.Reply = func(subject string, body []byte) (any, error) {
		if subject == actor.StoredSubject(subjects.QueryCancel.Stream) {
			return nil, subjects.Faultf(subjects.CodeUnavailable, "nobody")
		}
		return h.answerAll(subject, body)
	}
	if res := h.runTool(t, "generator", "run_shell", `{"command":"ls"}`); outcomeText(
		res) != subjects.CodeUnavailable || len(h.approvals) != 0 {
		t.Errorf("with unreadable events: %s", outcomeText(res))
	}
}

// TestCancelOnBus: under the real grants, a cancellation of the user reaches the broker, which denies the calls of the
// query, and the broker finds it in EVENTS.
func TestCancelOnBus(t *testing.T) {
	w := startSpawnBroker(t)
	topic, err := subjects.QueryCancel.With("q1")
	if err != nil {
		t.Fatal(err)
	}
	if err := actor.Emit(t.Context(), outAs(t, w, "user").WithIDs("s1", "q1"), topic, subjects.Cancel{}); err != nil {
		t.Fatal(err)
	}
	o := newSpawnFixture(t) // a broker that did not see the event
	out := outAs(t, w, "broker")
	for deadline := time.Now().Add(10 * time.Second); ; {
		cancelled, err := o.isCancelled(t.Context(), out, "q1")
		if err != nil {
			t.Fatal(err)
		}
		if cancelled {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the broker does not find the cancellation in EVENTS")
		}
	}
	if cancelled, err := o.isCancelled(t.Context(), out, "q2"); err != nil || cancelled {
		t.Errorf("another query: %t, %v", cancelled, err)
	}
}

// TestWithdrawnCallCannotBeApproved: when the user's own call no longer waits, its request is closed, the call does not
// run, and a later approval is not accepted.
func TestWithdrawnCallCannotBeApproved(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t, withLongApprovalWait)
	h.addTurn("s1", "q1", "run ls")
	done := make(chan subjects.ToolResult, 1)
	go func() { done <- h.runTool(t, "generator", "run_shell", `{"command":"ls"}`, "c1") }()
	subject := "approval.decision." + <-h.approvals
	var reply subjects.ApprovalReply
	if err := h.deliver(t, "ctl.user."+subject, "", "", subjects.ApprovalDecision{Approve: true, Withdraw: true},
		&reply); err == nil {
		t.Errorf("approved and withdrawn at once: %+v", reply)
	}
	if err := h.deliver(t, "ctl.generator."+subject, "", "", subjects.ApprovalDecision{Withdraw: true},
		&reply); err == nil {
		t.Errorf("an agent withdrew it: %+v", reply)
	}
	if err := h.deliver(t, "ctl.user."+subject, "", "", subjects.ApprovalDecision{Withdraw: true},
		&reply); err != nil || !reply.Accepted || reply.State != subjects.ApprovalWithdrawn {
		t.Fatalf("withdrawing: %+v, %v", reply, err)
	}
	select {
	case res := <-done:
		if outcomeText(res) != "approval: withdrawn" || !strings.Contains(res.Error.Text, "stopped waiting") {
			t.Errorf("%v", res.Error)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the call still waits")
	}
	if err := h.deliver(t, "ctl.user."+subject, "", "", subjects.ApprovalDecision{Approve: true}, &reply); err != nil ||
		reply.Accepted || reply.State != subjects.ApprovalWithdrawn {
		t.Errorf("approved afterwards: %+v, %v", reply, err)
	}
	if story := h.recentEvents(); strings.Contains(story, "ran") {
		t.Errorf("a withdrawn call ran: %s", story)
	}
}
