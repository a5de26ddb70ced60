package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/subjects"
)

// An approval that is remembered becomes rules, one for each question: agent type, tool, layer and rule, and sinks. A
// rule is active until the user revokes it or its session rule TTL passes. Active rules never outgrow the list the user
// sees.

const (
	// maxListed bounds the approvals in a list.
	maxListed = 200
	// maxRules bounds the active rules. An approval beyond them holds for its call only.
	maxRules = 200
	// maxListBytes bounds the approvals in a list, whose arguments may be long, and maxRuleBytes all rules: together
	// they fit into one message.
	maxListBytes, maxRuleBytes = 512 << 10, 192 << 10
	// listTimeout bounds a list request.
	listTimeout = 20 * time.Second
)

// rememberFor returns the level at which an approval can be remembered: wanted, or "" for this call only. It is "" when
// a question has no sinks, the caller has no type, the rule is for a session and would not cover the call that was
// approved (see [isServedQuery]), the rules cannot be read, or they would exceed maxRules or maxRuleBytes with those of
// q. wanted must be a known level or "".
func (b *Broker) rememberFor(ctx context.Context, out actor.Out, q stage.Approval, wanted string) string {
	switch {
	case wanted == "", !isRememberable(q), subjects.CheckToken(q.Type) != nil:
		return ""
	case wanted == subjects.RememberSession:
		account, _, _ := strings.Cut(q.Caller, ".")
		if served, err := isServedQuery(ctx, out, account, q.SessionID, q.QueryID); err != nil || !served {
			return ""
		}
	}
	rules, err := stage.LoadRules(ctx, out, "")
	if err != nil || len(rules)+len(q.Asks) > maxRules {
		return ""
	}
	rules = append(rules, newRules(q, wanted, "")...)
	size := 0
	for _, r := range rules {
		size += len(r.Session) + len(r.Type) + len(r.Tool) + len(r.Rule) + 256
		for _, s := range r.Sinks {
			size += 2*len(s) + 16 // upper bound of the JSON encoding
		}
	}
	if size > maxRuleBytes {
		return ""
	}
	return wanted
}

// storeRules stores the rules of a decided approval, one for each question. After an error some of them may be stored.
func storeRules(ctx context.Context, out actor.Out, q stage.Approval) error {
	for _, r := range newRules(q, q.Remember, q.By) {
		r.ID, r.Made = out.NewID(), q.Decided
		if err := r.Put(ctx, out.Store(stage.RuleBucket)); err != nil {
			return err
		}
	}
	return nil
}

// newRules returns the rules that an approval makes at a level, one for each question, without ids and times. by is the
// account that decided. Only a session rule is bound to the session.
func newRules(q stage.Approval, level, by string) (out []stage.Rule) {
	session := ""
	if level == subjects.RememberSession {
		session = q.SessionID
	}
	for _, a := range q.Asks {
		out = append(out, stage.Rule{ApprovalRule: subjects.ApprovalRule{
			Session: session, Type: q.Type, Tool: q.Tool, Rule: a.Rule, Sinks: slices.Clone(a.Sinks), By: by,
		}})
	}
	return out
}

// onListApprovals lists pending approvals, or all with All, pending ones first and then newest first, and every active
// rule. It cuts the approvals, never the rules, at maxListed and maxListBytes. A pending approval past its expiry
// counts as expired, also when no broker has stored that. It denies every account but the user's.
func (b *Broker) onListApprovals(ctx context.Context, in actor.Msg[subjects.ApprovalQuery],
	out actor.Out,
) (subjects.ApprovalList, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list := subjects.ApprovalList{Approvals: []subjects.Approval{}, Rules: []subjects.ApprovalRule{}}
	if !slices.Contains(subjects.UserAccounts, in.From) {
		return list, subjects.Faultf(subjects.CodeDenied, "only the user may list approvals")
	}
	all, err := b.loadApprovals(ctx, out)
	if err != nil {
		return list, listFault(out, err)
	}
	size := 0
	for _, a := range all {
		data, err := json.Marshal(a)
		if err != nil || a.State != subjects.ApprovalPending && !in.Body.All {
			continue
		}
		if size += len(data); len(list.Approvals) == maxListed || size > maxListBytes {
			break
		}
		list.Approvals = append(list.Approvals, a)
	}
	rules, err := stage.LoadRules(ctx, out, "")
	if err != nil {
		return list, listFault(out, err)
	}
	slices.SortFunc(rules, func(x, y stage.Rule) int { return cmp.Or(y.Made.Compare(x.Made), cmp.Compare(x.ID, y.ID)) })
	for _, r := range rules { // never cut: the user sees every active rule
		list.Rules = append(list.Rules, r.ApprovalRule)
	}
	return list, nil
}

// loadApprovals reads every approval, with its state at this time: the pending ones first, then by time, newest first.
// A corrupt one is logged and left out.
func (b *Broker) loadApprovals(ctx context.Context, out actor.Out) ([]subjects.Approval, error) {
	now := out.Now()
	all, err := stage.ReadAll(ctx, out, stage.ApprovalBucket, "", func(ctx context.Context, s actor.Store,
		key string,
	) (subjects.Approval, error) {
		q, err := stage.ReadApproval(ctx, s, key)
		q.State = stateAt(q, now)
		return q.Approval, err
	})
	slices.SortFunc(all, func(x, y subjects.Approval) int {
		over := func(a subjects.Approval) int {
			if a.State == subjects.ApprovalPending {
				return 0
			}
			return 1
		}
		return cmp.Or(over(x)-over(y), y.Asked.Compare(x.Asked), cmp.Compare(x.ID, y.ID))
	})
	return all, err
}

// listFault logs err and returns the fault of a list that cannot be read.
func listFault(out actor.Out, err error) error {
	out.LogError(fmt.Errorf("listing approvals and rules: %w", err))
	return subjects.Faultf(subjects.CodeUnavailable, "approvals cannot be read; see conclave doctor")
}

// onRevoke revokes a rule, after the revocation is recorded. Done.OK is false, without an error, when there is no
// active rule with that id. It denies every account but the user's, which is recorded. On an error the rule may still
// be active; an outcome that cannot be recorded is logged only, because the rule is revoked by then.
func (b *Broker) onRevoke(ctx context.Context, in actor.Msg[subjects.Empty], out actor.Out) (subjects.Done, error) {
	rec := subjects.AuditRecord{ID: out.NewID(), AgentID: in.From, Action: subjects.ActionApprovalRevoke}
	id, fault := parseUserSubject(in.From, in.Tokens)
	if fault != nil {
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, fault.Code)
		return subjects.Done{}, fault
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*b.cfg.AuditTimeout)
	defer cancel()
	store := out.Store(stage.RuleBucket)
	unavailable := func(err error) error {
		out.LogError(fmt.Errorf("revoking a rule: %w", err))
		return subjects.Faultf(subjects.CodeUnavailable, "the rule could not be revoked and may still be active; see "+
			"conclave doctor, then try again")
	}
	keys, err := store.Keys(ctx, "")
	if err != nil {
		return subjects.Done{}, unavailable(err)
	}
	at := slices.IndexFunc(keys, func(k string) bool { return strings.HasSuffix(k, "."+id) })
	if at < 0 {
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, subjects.ApprovalUnknown)
		return subjects.Done{}, nil
	}
	r, err := stage.ReadRule(ctx, store, keys[at])
	switch {
	case err != nil:
		return subjects.Done{}, unavailable(err)
	case !r.IsActive(out.Now()):
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, subjects.ApprovalUnknown)
		return subjects.Done{}, nil
	}
	rec.Tool, rec.AgentType, rec.Session = r.Tool, r.Type, r.Session
	rec.Reason = r.Rule
	begun := false
	var failed error
	_, err = actor.Audited(ctx, out, b.gate, rec, func(ctx context.Context, p *actor.Permit) (struct{}, error) {
		begun = true
		r.Revoked, r.RevokedBy = out.Now(), in.From
		// Only a revocation changes a rule: after a write conflict the rule is revoked as well.
		if err := r.Put(ctx, store); err != nil && !errors.Is(err, actor.ErrChanged) {
			p.Report(subjects.StatusUnknown, subjects.CodeUnavailable)
			failed = unavailable(err)
			return struct{}{}, failed
		}
		p.Report(subjects.StatusOK, r.Rule)
		return struct{}{}, nil
	})
	switch {
	case !begun:
		return subjects.Done{}, err
	case errors.Is(err, actor.ErrUnrecorded):
		out.LogError(fmt.Errorf("recording the outcome of a revocation: %w", err))
	}
	if failed != nil {
		return subjects.Done{}, failed
	}
	return subjects.Done{OK: true}, nil
}
