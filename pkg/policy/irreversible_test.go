package policy

import (
	"testing"

	"conclave/subjects"
)

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
