package broker

import (
	"strings"
	"testing"

	"conclave/subjects"
)

// TestHandledCallsJoin has a repetition get the result of the call that is being handled, and a later repetition end
// the wait of an earlier one. Another call under the same call_id is no repetition.
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

// TestRepetitionIsRecordedOncePerQuery: the repetitions of a call while it is handled have one record per query.
// Another call, and the same one when it is handled again, have their own, and so has each repetition that no query or
// no handled call explains.
func TestRepetitionIsRecordedOncePerQuery(t *testing.T) {
	t.Parallel()
	var h handledCalls
	key := handledKey{agent: "generator", id: "1", tool: "web_fetch", params: "hash"}
	other := key
	other.agent = "generator.helper"
	end, _ := h.begin(key)
	h.begin(other)
	for i, tt := range []struct {
		key   handledKey
		query string
		want  bool
	}{
		{key, "q1", true},
		{key, "q1", false},
		{other, "q1", true},
		{other, "q1", false},
		{key, "q2", true},
		{key, "q2", false},
		{key, "", true},
		{key, "", true},
		{handledKey{id: "unknown"}, "q1", true},
		{handledKey{id: "unknown"}, "q1", true},
	} {
		if got := h.claimRecord(tt.key, tt.query); got != tt.want {
			t.Errorf("%d: %v", i, got)
		}
	}
	h.claimRecord(key, "q1")
	end(nil)
	h.begin(key)
	if !h.claimRecord(key, "q1") {
		t.Error("a call that is handled again has no record")
	}
}

// TestRepetitionOfWaitingCall repeats a call while it waits for an approval, as an agent does when no reply comes: the
// audit log has the repetition as pending, not as replayed or timed out, and the call runs once after the approval.
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
	for range 3 { // each ends the wait of the one before
		go call()
		if r := <-results; r.Error == nil || r.Error.Code != subjects.CodeTimeout {
			t.Fatalf("a later repetition: %+v", r)
		}
	}
	if got := h.recentEvents(); strings.Contains(got, "pending") {
		t.Errorf("later repetitions are recorded again: %q", got)
	}
	h.decideApproval(t, id, true)
	for range 2 {
		if r := <-results; r.Error != nil {
			t.Errorf("after the approval: %+v", r)
		}
	}
	if got := h.recentEvents(); strings.Count(got, "ran web_fetch") != 1 ||
		!strings.Contains(got, "before replayed ledger") {
		t.Errorf("after the approval, the audit log has %q", got)
	}
}
