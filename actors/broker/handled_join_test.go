package broker

import (
	"strings"
	"testing"

	"conclave/subjects"
)

// TestHandledCallsJoin has a repetition get the result of the call that is being handled, and a later repetition end the wait of
// an earlier one. Another call under the same call_id is no repetition.
func TestHandledCallsJoin(t *testing.T) {
	t.Parallel()
	var h handledCalls
	key := handledKey{agent: "operator", id: "1", tool: "get_datetime", params: "hash"}
	end, wait := h.begin(key)
	if end == nil || wait != nil {
		t.Fatal("the first call does not run")
	}
	other := key
	other.params = "another hash"
	if endOther, wait := h.begin(other); wait != nil {
		t.Error("a call with other arguments gets the result of this one")
	} else {
		endOther(nil)
	}
	_, second := h.begin(key)
	_, third := h.begin(key)
	if second == nil || third == nil {
		t.Fatal("a repetition runs the call again")
	}
	if _, ok := second(t.Context()); ok {
		t.Error("an earlier repetition still waits")
	}
	end(&subjects.ToolResult{Result: "noon"})
	if res, ok := third(t.Context()); !ok || res.Result != "noon" {
		t.Errorf("the repetition got %+v, %v", res, ok)
	}
	if end, _ := h.begin(key); end == nil {
		t.Error("a call that ended is still handled")
	}
}

// TestRepetitionOfWaitingCall repeats a call while it waits for an approval, as an agent does when no reply comes: the audit log has the
// repetition as pending, not as replayed or timed out, and the call runs once after the approval.
func TestRepetitionOfWaitingCall(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "search for fish")
	results := make(chan subjects.ToolResult, 3)
	call := func() { results <- h.runTool(t, "generator", "web_fetch", `{"url":"https://other.example/"}`, "c1") }
	h.taintSession(t, "s1")
	h.recentEvents()
	go call()
	id := <-h.approvals
	go call()
	go call() // ends the wait of the other repetition
	if r := <-results; r.Error == nil || r.Error.Code != subjects.CodeTimeout {
		t.Fatalf("a repetition: %+v", r)
	}
	if got := h.recentEvents(); !strings.Contains(got, "before pending repeated") || strings.Contains(got, "replayed") {
		t.Errorf("while it waits, the audit log has %q", got)
	}
	h.decideApproval(t, id, true)
	for range 2 {
		if r := <-results; r.Error != nil {
			t.Errorf("after the approval: %+v", r)
		}
	}
	if got := h.recentEvents(); strings.Count(got, "ran web_fetch") != 1 || !strings.Contains(got, "before replayed ledger") {
		t.Errorf("after the approval, the audit log has %q", got)
	}
}
