package broker

import (
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
