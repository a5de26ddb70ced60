package broker

import (
	"fmt"

	"conclave/pkg/policy"
	"conclave/subjects"
)

// Respondent B answers the same query as the generator, for comparison only. Its side effects would happen twice, so it may
// only read local data, and it leaves no trace in the user's session: its results are not recorded in the flow, which is
// safe because it has no egress; the user is never asked for approval on its behalf; and grants do not apply to it.

// isRespondentB reports whether the caller is respondent B or an agent below it.
func isRespondentB(c subjects.Caller) bool { return c.Account == subjects.RespondentB }

// Layer and rules of denials for respondent B, whatever the manifest allows.
const (
	layerRespondentB = "respondent_b"
	ruleSideEffects  = "acts"     // the tool has side effects
	ruleNoApproval   = "no_asker" // the call needs approval
)

// hasSideEffects reports whether a tool changes something, here, in memory or outside. Egress counts: a search query
// discloses what is looked for.
func hasSideEffects(t policy.Tool) bool {
	return !isRepeatable(t) || t.Has(policy.Remember) || t.Has(policy.Egress) || t.Has(policy.Fetch)
}

// denialFault returns a denial as a fault.
func denialFault(d *subjects.Denial) *subjects.Fault {
	return &subjects.Fault{Code: subjects.CodeDenied, Text: d.Reason, Denial: d}
}

// denyRespondentB denies a call of respondent B whose tool has side effects, before any layer decides. It returns nil
// for every other call.
func denyRespondentB(c policy.Call) *subjects.Denial {
	if !isRespondentB(c.Caller) || !hasSideEffects(c.Tool) {
		return nil
	}
	return &subjects.Denial{
		Layer: layerRespondentB, Rule: ruleSideEffects,
		Reason: fmt.Sprintf("%s answers for comparison only, and %s has side effects", c.Caller.ID(), c.Tool.Name),
	}
}

// denyRespondentBApproval returns the denial of a call of respondent B that needs approval, and nil for other callers.
// It does not check whether c needs approval: the caller does.
func denyRespondentBApproval(c policy.Call) *subjects.Denial {
	if !isRespondentB(c.Caller) {
		return nil
	}
	return &subjects.Denial{
		Layer: layerRespondentB, Rule: ruleNoApproval,
		Reason: fmt.Sprintf("%s answers for comparison only, and %s needs approval", c.Caller.ID(), c.Tool.Name),
	}
}
