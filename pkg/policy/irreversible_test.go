package policy

import (
	"encoding/json"
	"strings"
	"testing"

	"conclave/subjects"
)

// TestFetchWithFurtherEffectsClaimsAGrant: a tool that requests a URL and changes something uses its grant; one that only requests a
// URL uses none.
func TestFetchWithFurtherEffectsClaimsAGrant(t *testing.T) {
	order := Tool{Name: "open_page", Known: true, Act: ActFetch, Args: Args{"url": {Role: RoleURL}}, Effects: Declare(Fetch, Mutate)}
	args := json.RawMessage(`{"url":"https://shop.example/a"}`)
	f := newFlow("Open https://shop.example/a", untrustedResult("x"))
	if got := decide(t, f, order, string(args)); got != "" {
		t.Fatalf("the first call: %q", got)
	}
	f, ok := f.ClaimGrant(Call{Query: "q1", Tool: order, Args: args}, "call-1")
	if !ok {
		t.Fatal("the first claim failed")
	}
	if got := decide(t, f, order, string(args)); !strings.HasPrefix(got, ruleNotRequested) {
		t.Errorf("the second call: %q", got)
	}
	if _, ok := f.ClaimGrant(Call{Query: "q1", Tool: order, Args: args}, "call-2"); ok {
		t.Error("the second claim succeeded")
	}
	if next, ok := f.ClaimGrant(Call{Query: "q1", Tool: page, Args: args}, "call-3"); !ok || next != f {
		t.Error("a plain fetch needs a grant")
	}
}

// TestOnlyMonitoredFlowRulesNeedNoGrant: a match of a monitor-only rule outside of the flow layer leaves an allowed call with its grant to
// claim.
func TestOnlyMonitoredFlowRulesNeedNoGrant(t *testing.T) {
	for layer, want := range map[string]bool{"": true, "limits": true, "egress": true, FlowLayer{}.Name(): false} {
		d := Decision{allowed: true}
		if layer != "" {
			d.monitored = append(d.monitored, subjects.Denial{Layer: layer})
		}
		if got := d.NeedsGrant(); got != want {
			t.Errorf("%q: %v, want %v", layer, got, want)
		}
	}
	if (Decision{}).NeedsGrant() {
		t.Error("a denied call claims a grant")
	}
}
