package broker

import (
	"context"
	"fmt"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// The shadow answers what another answers too, and nobody sees it. Whatever it does would be done twice, or asked about
// twice, so it may only look up what is here, and it leaves no trace in the session of the person: what it reads is not
// written down there, and need not be, since it can send nothing anywhere; the person is never asked in its name; and what
// the person allows for the session is not meant for it.

// isShadow reports whether the shadow asks, or an agent below it.
func isShadow(c subjects.Caller) bool { return c.Account == subjects.Shadow }

// Layer and rules of what is refused to the shadow, whatever the manifest gives it.
const (
	layerShadow = "shadow_agent"
	ruleActs    = "acts"     // it leaves something behind
	ruleNoAsk   = "no_asker" // the person would have to be asked
)

// acts reports whether a tool leaves something behind, be it in memory or with somebody else: a search tells what is looked
// for.
func acts(t policy.Tool) bool {
	return !repeatable(t) || t.Has(policy.Remember) || t.Has(policy.Egress) || t.Has(policy.Fetch)
}

// denied is a denial as the asker gets it.
func denied(d *subjects.Denial) *subjects.Fault {
	return &subjects.Fault{Code: subjects.CodeDenied, Text: d.Reason, Denial: d}
}

// barred is why a call of the shadow is refused before any layer looks at it, nil when it is not.
func barred(c policy.Call) *subjects.Denial {
	if !isShadow(c.Caller) || !acts(c.Tool) {
		return nil
	}
	return &subjects.Denial{
		Layer: layerShadow, Rule: ruleActs,
		Reason: fmt.Sprintf("%s answers for comparison only, and %s leaves something behind, here or elsewhere", c.Caller.ID(), c.Tool.Name),
	}
}

// unasked is why a call of the shadow is refused that the person would have to agree to, nil when somebody else calls.
func unasked(c policy.Call) *subjects.Denial {
	if !isShadow(c.Caller) {
		return nil
	}
	return &subjects.Denial{
		Layer: layerShadow, Rule: ruleNoAsk,
		Reason: fmt.Sprintf("%s answers for comparison only, and the person is not asked about %s for that", c.Caller.ID(), c.Tool.Name),
	}
}

// overrideOf is what the person set for a session, as it holds for a caller. For the shadow it takes away and gives
// nothing, and a setting for the next message is not used up by it. With dry it is not used up by anybody.
func (b *Broker) overrideOf(ctx context.Context, out actor.Out, caller subjects.Caller, session, query string, dry bool) (policy.Override, error) {
	switch {
	case isShadow(caller):
		o, err := b.wouldOverride(ctx, out, session, query)
		return policy.Override{Disable: o.Disable}, err
	case dry:
		return b.wouldOverride(ctx, out, session, query)
	}
	return b.override(ctx, out, session, query)
}
