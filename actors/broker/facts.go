package broker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// userAccount is the account of the user's own tool calls.
const userAccount = "operator"

// facts are what the layers need to know about a call.
type facts struct {
	call    policy.Call
	rules   policy.Rules
	budgets []subjects.Budget // of the agents in the caller's path, without the account
}

// gatherFacts collects the caller's type and lineage, the user's overrides and the session's flow. When one of them
// cannot be read there is a fault, and the caller must deny. An unknown caller has type "" and a short lineage,
// which the layers deny. The flow is nil without a session, without a tool, for a harmless tool and for an account that
// does not answer the user's messages. With dry nothing is written: neither the query text nor a claim of a once
// setting.
func (b *Broker) gatherFacts(ctx context.Context, out actor.Out, r stage.Received, k Known, dry bool) (f facts,
	fault *subjects.Fault,
) {
	f.rules = b.rules.Load()
	caller := r.Caller
	asked := policy.Call{
		Caller: caller, Tool: k.Tool, Schema: k.schema.Parameters, Args: r.Args, Session: r.Session, Query: r.Query,
		FromUser: caller.Account == userAccount && len(caller.Path) == 0,
	}
	asked.Type, _ = f.rules.Manifest.TypeOf(caller)
	var err error
	if len(caller.Path) > 0 || r.Session != "" {
		read := b.readFacts(ctx, out, r, k, dry)
		asked.Lineage, asked.Flow, asked.Override, f.budgets = read.lineage, read.flow, read.override, read.budgets
		err = errors.Join(read.lineageErr, read.overrideErr, read.flowErr)
	}
	if n := len(asked.Lineage); n > 0 && n == len(caller.Path) {
		asked.Type = asked.Lineage[n-1].Type
	}
	asked.Flow = taintRespondentB(asked.Flow, caller, k.Tool)
	asked.Foreign = asked.Flow != nil && b.table.offersForeign(asked, f.rules.Manifest)
	f.call = asked
	if err != nil {
		out.LogError(fmt.Errorf("gathering the facts of a call of %s: %w", r.Tool, err))
		fault = subjects.Faultf(subjects.CodeUnavailable, "the session's records cannot be read, so nothing was "+
			"run; see conclave doctor")
	}
	return f, fault
}

// storedFacts are the facts about a call that are read from buckets.
type storedFacts struct {
	lineage  []policy.SpawnedAgent
	budgets  []subjects.Budget
	flow     *policy.Flow
	override policy.Override

	lineageErr, flowErr, overrideErr error
}

// readFacts reads the stored facts about a call that has a lineage or a session, those of different buckets at once.
func (b *Broker) readFacts(ctx context.Context, out actor.Out, r stage.Received, k Known, dry bool) (s storedFacts) {
	caller := r.Caller
	var wg sync.WaitGroup
	if len(caller.Path) > 0 {
		wg.Go(func() { s.lineage, s.budgets, s.lineageErr = loadLineage(ctx, out, caller, r.Session) })
	}
	if r.Session != "" {
		if r.Tool != "" && !isHarmless(k.Tool) && subjects.ConsumesTurns(caller.Account) {
			wg.Go(func() {
				s.flow, s.flowErr = b.loadFlow(ctx, out, caller.Account, r.Session, r.Query, dry ||
					isRespondentB(caller))
			})
		}
		s.override, s.overrideErr = callerOverride(ctx, out, caller, r.Session, r.Query, dry)
	}
	wg.Wait()
	return s
}

// pageAccess returns the hosts that the tool of a call may fetch from, nil for a tool that reads no untrusted content,
// and whether the caller may use a tool that fetches pages: a search that opens its hits needs the same permission. A
// full override of an account lifts the allow list, never the deny list.
func (t *toolTable) pageAccess(c policy.Call, m policy.Manifest) (*subjects.HostRules, bool) {
	if !c.Tool.Has(policy.ReadsUntrusted) {
		return nil, false
	}
	rules := m.Egress.Fetch
	hosts := &subjects.HostRules{
		Allow: rules.Allow, Deny: rules.Deny,
		Monitored: m.Monitored[(policy.EgressLayer{}).Name()],
	}
	if c.HasFullOverride() { // as the egress layer: the allow list is lifted, with its ports and IP addresses
		hosts.Allow, hosts.Monitored = []string{"*"}, slices.Concat(hosts.Monitored, policy.AllowListRules)
	}
	effective := m.EffectiveTools(c.Caller.Account, c.Lineage, c.Override.Grant)
	for _, k := range t.all() {
		if _, ours := t.build[k.Name]; !ours { // a tool of the user permits nothing to another one
			continue
		}
		if k.Known && k.Has(policy.Fetch) && slices.Contains(effective, k.Name) &&
			!slices.Contains(c.Override.Disable, k.Name) {
			return hosts, true
		}
	}
	return hosts, false
}

// offersForeign reports whether the caller may use a tool outside of the build: its description is in the caller's
// prompt.
func (t *toolTable) offersForeign(c policy.Call, m policy.Manifest) bool {
	effective := m.EffectiveTools(c.Caller.Account, c.Lineage, c.Override.Grant)
	return slices.ContainsFunc(t.all(), func(k Known) bool {
		return k.Foreign && slices.Contains(effective, k.Name) && !slices.Contains(c.Override.Disable, k.Name)
	})
}

// compactJSON returns the arguments without insignificant spaces, so that calls that differ only in them count as
// identical; arguments that are no JSON are returned unchanged.
func compactJSON(args json.RawMessage) []byte {
	var b bytes.Buffer
	if json.Compact(&b, args) != nil {
		return args
	}
	return b.Bytes()
}

// callMode is the mode in the tool order of a call.
func callMode(j *stage.Judged) string {
	if j.Received().Own {
		return subjects.ModeOwn
	}
	return toolMode(j.Facts())
}

// toolMode is the mode of a call that a model chose: structured when the tool reads untrusted content and the caller
// may only see findings. A spawned agent gets files and the output of programs as they are, framed and labelled: it
// cannot work on source code by findings. The orchestrator never does, and gets the entries of memory as summaries,
// trusted ones too.
func toolMode(c policy.Call) string {
	if isOrchestrator(c.Caller) && c.Tool.Graded && c.Tool.Has(policy.ReadsPrivate) {
		return subjects.ModeSummary
	}
	isLocal := c.Tool.Known && c.Tool.Zone == "tools" && (len(c.Tool.Paths) > 0 || c.Tool.Has(policy.Exec))
	if c.Tool.Has(policy.ReadsUntrusted) && seesDistilledOnly(c) && (!isLocal || len(c.Caller.Path) == 0) {
		return subjects.ModeStructured
	}
	return ""
}

// seesDistilledOnly reports whether the caller never gets untrusted content, only findings: spawned agents and the
// orchestrator.
func seesDistilledOnly(c policy.Call) bool {
	return len(c.Caller.Path) > 0 || isOrchestrator(c.Caller)
}

// isOrchestrator reports whether the caller is the orchestrator itself, not an agent that it spawned.
func isOrchestrator(c subjects.Caller) bool { return c.Account == "orchestrator" && len(c.Path) == 0 }

// sessionLabels are the labels of everything that entered the session, with the distinct flags of its sources; a tool
// that stores something from it must store them too. The user's own call is trusted and public. A nil flow, an unknown
// session, counts as tainted and private.
func sessionLabels(c policy.Call) *subjects.Labels {
	l := &subjects.Labels{Trust: subjects.Trusted, Privacy: subjects.Public}
	if c.FromUser {
		return l
	}
	if c.Flow.IsTainted() {
		l.Trust = subjects.Untrusted
	}
	if c.Flow.HasPrivate() {
		l.Privacy = subjects.Private
	}
	for _, s := range c.Flow.Sources() {
		for _, f := range s.Flags {
			if !slices.Contains(l.Flags, f) {
				l.Flags = append(l.Flags, f)
			}
		}
	}
	return l
}

// countUsage counts a call, and returns the usage before it and what was counted. A call that was begun before is
// counted already: it is not counted again, and its first attempt is left out of the usage.
func (b *Broker) countUsage(out actor.Out, r stage.Received, seen facts, begun bool) (policy.Usage, *policy.Attempt) {
	a := b.newAttempt(r, seen)
	if !begun {
		return withBudgets(b.usage.Count(out.Now(), a), seen.budgets), &a
	}
	s := b.usage.Peek(out.Now(), a)
	s.Identical, s.Calls = max(0, s.Identical-1), max(0, s.Calls-1) // without its own first attempt
	for i := range s.Agents {
		s.Agents[i].Calls = max(0, s.Agents[i].Calls-1)
	}
	return withBudgets(s, seen.budgets), nil
}

// newAttempt returns a call as the usage counter knows it, by the window of the rules in seen.
func (b *Broker) newAttempt(r stage.Received, seen facts) policy.Attempt {
	b.usage.SetWindow(cmp.Or(seen.rules.Manifest.Limits.Window, defaultWindow))
	hash := r.Record.ParamsHash
	if args := compactJSON(r.Args); len(args) != len(r.Args) {
		hash = b.hash.Hash(args)
	}
	return policy.Attempt{
		Caller: r.Caller.ID(), Session: r.Session, Query: r.Query, Tool: r.Tool, ParamsHash: hash,
	}
}

// withBudgets returns the usage with the budgets of its agents. The account itself has none.
func withBudgets(s policy.Usage, budgets []subjects.Budget) policy.Usage {
	for i := range s.Agents {
		if i > 0 && i <= len(budgets) {
			s.Agents[i].Budget = budgets[i-1]
		}
	}
	return s
}

// endCount ends the count of a call, nil for one that was not counted: one that ran is a repetition when call and
// result equal the last ones of the question, one that did not run is none. res is what the caller gets; allowed is the
// decision.
func (b *Broker) endCount(out actor.Out, counted *policy.Attempt, res subjects.ToolResult, allowed bool) {
	switch {
	case counted == nil:
	case !allowed, res.Error != nil && slices.Contains(notRunCodes, res.Error.Code):
		b.usage.Refused(out.Now(), *counted)
	default:
		sum := sha256.Sum256([]byte(res.Result))
		if res.Error != nil {
			sum = sha256.Sum256(fmt.Appendf(sum[:], "%s:%s", res.Error.Code, res.Error.Text))
		}
		b.usage.Ended(out.Now(), *counted, string(sum[:]))
	}
}

// notRunCodes are the codes of allowed calls that were not passed to the tool.
var notRunCodes = []string{subjects.CodeNoAudit, subjects.CodeMalformed, subjects.CodeUncertain, subjects.CodeNoSecret}
