package broker

import (
	"context"
	"fmt"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// Respondent B answers what another answers too, and nobody sees it. Whatever it does would be done twice, or asked about
// twice, so it may only look up what is here, and it leaves no trace in the session of the user: what it reads is not
// written down there, and need not be, since it can send nothing anywhere; the user is never asked in its name; and what
// the user allows for the session is not meant for it.

// isRespondentB reports whether respondent B asks, or an agent below it.
func isRespondentB(c subjects.Caller) bool { return c.Account == subjects.RespondentB }

// Layer and rules of what is refused to respondent B, whatever the manifest gives it.
const (
	layerRespondentB = "respondent_b"
	ruleSideEffects  = "acts"     // it leaves something behind
	ruleNoApproval   = "no_asker" // the user would have to be asked
)

// hasSideEffects reports whether a tool leaves something behind, be it in memory or with somebody else: a search tells what is looked
// for.
func hasSideEffects(t policy.Tool) bool {
	return !isRepeatable(t) || t.Has(policy.Remember) || t.Has(policy.Egress) || t.Has(policy.Fetch)
}

// denialFault is a denial as the caller gets it.
func denialFault(d *subjects.Denial) *subjects.Fault {
	return &subjects.Fault{Code: subjects.CodeDenied, Text: d.Reason, Denial: d}
}

// denyRespondentB is why a call of respondent B is refused before any layer looks at it, nil when it is not.
func denyRespondentB(c policy.Call) *subjects.Denial {
	if !isRespondentB(c.Caller) || !hasSideEffects(c.Tool) {
		return nil
	}
	return &subjects.Denial{
		Layer: layerRespondentB, Rule: ruleSideEffects,
		Reason: fmt.Sprintf("%s answers for comparison only, and %s leaves something behind, here or elsewhere", c.Caller.ID(), c.Tool.Name),
	}
}

// denyRespondentBApproval is why a call of respondent B is refused that the user would have to agree to, nil when somebody else calls.
func denyRespondentBApproval(c policy.Call) *subjects.Denial {
	if !isRespondentB(c.Caller) {
		return nil
	}
	return &subjects.Denial{
		Layer: layerRespondentB, Rule: ruleNoApproval,
		Reason: fmt.Sprintf("%s answers for comparison only, and the user is not asked about %s for that", c.Caller.ID(), c.Tool.Name),
	}
}

// callerOverride is what the user set for a session, as it holds for a caller. For respondent B it takes away and gives
// nothing, and a setting for the next message is not used up by it. With dry it is not used up by anybody.
func (b *Broker) callerOverride(ctx context.Context, out actor.Out, caller subjects.Caller, session, query string, dry bool) (policy.Override, error) {
	switch {
	case isRespondentB(caller):
		o, err := b.peekOverride(ctx, out, session, query)
		return policy.Override{Disable: o.Disable}, err
	case dry:
		return b.peekOverride(ctx, out, session, query)
	}
	return b.claimOverride(ctx, out, session, query)
}
