package broker

import (
	"context"
	"fmt"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// The shadow answers what another answers too, and nobody sees it. Whatever it does would be done twice, or asked about
// twice, so it may only look things up, and it leaves no trace in the session of the person: what it reads is written
// down as its own, the person is never asked in its name, and what the person allows for the session is not meant for it.

// isShadow reports whether the shadow asks, or an agent below it.
func isShadow(c subjects.Caller) bool { return c.Account == subjects.Shadow }

// Layer and rules of what is refused to the shadow, whatever the manifest gives it.
const (
	layerShadow = "shadow_agent"
	ruleActs    = "acts"     // it leaves something behind
	ruleNoAsk   = "no_asker" // the person would have to be asked
)

// acts reports whether a tool leaves something behind, be it in memory.
func acts(t policy.Tool) bool { return !repeatable(t) || t.Has(policy.Remember) }

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
		Reason: fmt.Sprintf("%s answers for comparison only, and %s leaves something behind", c.Caller.ID(), c.Tool.Name),
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

// flowKey is where it is written down what a caller brings into a session. No session's name holds a dot.
func flowKey(caller subjects.Caller, session string) string {
	if isShadow(caller) {
		return "shadow." + session
	}
	return session
}

// flowOf is what is known of a session when a caller asks. The shadow knows all that is in the session, and what it has
// read itself.
func (b *Broker) flowOf(ctx context.Context, out actor.Out, caller subjects.Caller, session, query string, dry bool) (*policy.Flow, error) {
	f, err := b.flow(ctx, out, flowKey(caller, session), session, query, dry)
	if err != nil || f == nil || !isShadow(caller) {
		return f, err
	}
	theirs, _, err := b.readFlow(ctx, out, session)
	if err != nil {
		return nil, err
	}
	return theirs.Join(f), nil
}
