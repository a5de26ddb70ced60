package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// A remembered answer is a rule: the same type of agent, the same tool, the same question, to the same places. It holds
// until the user revokes it, and there are never more of them than the user can see in the list.

const (
	// maxListed bounds a list of questions.
	maxListed = 200
	// maxRules bounds the rules that hold. An answer beyond them holds once.
	maxRules = 200
	// maxListBytes bounds the questions of a list, whose arguments may be long, and maxRuleBytes all rules: together they
	// fit into one message.
	maxListBytes, maxRuleBytes = 512 << 10, 192 << 10
	// sessionRuleTTL is how long a rule for a session holds: as long as what is known of the session.
	sessionRuleTTL = 90 * 24 * time.Hour
	// listTimeout is how long a list may take.
	listTimeout = 20 * time.Second
	// readConcurrency read a bucket at once.
	readConcurrency = 16
)

// storedRule is what the bucket keeps of a remembered answer. One that was revoked stays there as such: the bucket forgets
// nothing.
type storedRule struct {
	subjects.ApprovalRule
	Revoked   time.Time `json:"revoked,omitzero"`
	RevokedBy string    `json:"revoked_by,omitempty"`
}

// isActive reports whether the rule is in force.
func (r storedRule) isActive(now time.Time) bool {
	return r.ID != "" && r.Revoked.IsZero() && (r.Session == "" || now.Sub(r.Made) < sessionRuleTTL)
}

// covers reports whether the rule answers a question about a call: every place that the question names was named before.
// A question that names none is never covered.
func (r storedRule) covers(c call, q policy.Question) bool {
	if r.Type != c.typ || r.Tool != c.tool || r.Rule != ruleName(q.Layer, q.Rule) || c.typ == "" || len(q.Sinks) == 0 {
		return false
	}
	if r.Session != "" && r.Session != c.session {
		return false
	}
	return !slices.ContainsFunc(q.Sinks, func(s string) bool { return !slices.Contains(r.Sinks, s) })
}

// findUncovered are the questions that no remembered answer covers.
func (b *Broker) findUncovered(ctx context.Context, out actor.Out, c call, asks []policy.Question) ([]policy.Question, error) {
	if c.typ == "" || subjects.CheckToken(c.typ) != nil || !slices.ContainsFunc(asks, func(q policy.Question) bool { return len(q.Sinks) > 0 }) {
		return asks, nil
	}
	rules, err := loadRules(ctx, out, c.typ+"."+c.tool)
	if err != nil {
		return nil, err
	}
	var open []policy.Question
	for _, q := range asks {
		if !slices.ContainsFunc(rules, func(r storedRule) bool { return r.covers(c, q) }) {
			open = append(open, q)
		}
	}
	return open, nil
}

// loadRules reads the rules that hold, all of them or those of a type and tool. One that cannot be read covers nothing.
func loadRules(ctx context.Context, out actor.Out, prefix string) ([]storedRule, error) {
	store := out.Store(bucketRules)
	keys, err := store.Keys(ctx, prefix)
	if err != nil {
		return nil, err
	}
	all, err := readKeys(ctx, keys, func(key string) (storedRule, error) {
		r, _, err := readRule(ctx, store, key)
		return r, err
	}, out.LogError)
	return slices.DeleteFunc(all, func(r storedRule) bool { return !r.isActive(out.Now()) }), err
}

// readKeys reads many keys, several at once. What went away in between is left out; what cannot be read is noted, and
// does not hide the rest.
func readKeys[T any](ctx context.Context, keys []string, read func(key string) (T, error), logErr func(error)) ([]T, error) {
	values, errs := make([]T, len(keys)), make([]error, len(keys))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(readConcurrency, len(keys)) {
		wg.Go(func() {
			for i := range next {
				values[i], errs[i] = read(keys[i])
			}
		})
	}
	for i := range keys {
		next <- i
	}
	close(next)
	wg.Wait()
	var found []T
	for i, v := range values {
		switch {
		case errs[i] == nil:
			found = append(found, v)
		case errors.Is(errs[i], actor.ErrNotFound):
		case errors.Is(errs[i], errCorrupt):
			logErr(errs[i])
		default:
			return nil, errs[i]
		}
	}
	return found, ctx.Err()
}

// errCorrupt means that what is stored is not what it should be.
var errCorrupt = errors.New("what is stored cannot be read")

// readRule reads one. The key says for whom it is: type, tool and id.
func readRule(ctx context.Context, s actor.Store, key string) (r storedRule, rev uint64, err error) {
	data, rev, err := s.Get(ctx, key)
	if err != nil {
		return r, 0, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return storedRule{}, 0, fmt.Errorf("rule %s: %w: %w", key, errCorrupt, err)
	}
	if key != r.key() {
		return storedRule{}, 0, fmt.Errorf("rule %s: %w: it is for somebody else", key, errCorrupt)
	}
	return r, rev, nil
}

func (r storedRule) key() string { return r.Type + "." + r.Tool + "." + r.ID }

func putRule(ctx context.Context, s actor.Store, r storedRule, rev uint64) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = s.Put(ctx, r.key(), data, rev)
	return err
}

// rememberFor is how long a yes can be remembered, at most as long as the user wants: "" is for this call alone.
func (b *Broker) rememberFor(ctx context.Context, out actor.Out, q storedApproval, wanted string) string {
	switch {
	case wanted == "", !q.isRememberable(), subjects.CheckToken(q.Type) != nil:
		return ""
	case wanted == subjects.RememberSession && q.SessionID == "":
		return ""
	}
	rules, err := loadRules(ctx, out, "")
	if err != nil || len(rules)+len(q.Asks) > maxRules {
		return ""
	}
	for _, r := range q.newRules(wanted, "") {
		rules = append(rules, storedRule{ApprovalRule: r})
	}
	size := 0
	for _, r := range rules {
		size += len(r.Session) + len(r.Type) + len(r.Tool) + len(r.Rule) + 256
		for _, s := range r.Sinks {
			size += 2*len(s) + 16 // as JSON writes it
		}
	}
	if size > maxRuleBytes {
		return ""
	}
	return wanted
}

// storeRules writes the rules of an answer that was given: one for each thing that was asked.
func (b *Broker) storeRules(ctx context.Context, out actor.Out, q storedApproval) error {
	for _, r := range q.newRules(q.Remember, q.By) {
		r.ID, r.Made = out.NewID(), q.Decided
		if err := putRule(ctx, out.Store(bucketRules), storedRule{ApprovalRule: r}, 0); err != nil {
			return err
		}
	}
	return nil
}

// newRules are what a yes to the question would make, without their names.
func (q storedApproval) newRules(level, by string) (out []subjects.ApprovalRule) {
	session := ""
	if level == subjects.RememberSession {
		session = q.SessionID
	}
	for _, a := range q.Asks {
		out = append(out, subjects.ApprovalRule{Session: session, Type: q.Type, Tool: q.Tool, Rule: a.Rule, Sinks: slices.Clone(a.Sinks), By: by})
	}
	return out
}

// onListApprovals lists what waits for an answer, newest first, and the rules. A question whose time is over is shown as
// expired, also when nobody was there to write that down.
func (b *Broker) onListApprovals(ctx context.Context, in actor.Msg[subjects.ApprovalQuery], out actor.Out) (subjects.ApprovalList, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list := subjects.ApprovalList{Approvals: []subjects.Approval{}, Rules: []subjects.ApprovalRule{}}
	if !slices.Contains(subjects.UserAccounts, in.From) {
		return list, subjects.Faultf(subjects.CodeDenied, "only the user may ask this")
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
	rules, err := loadRules(ctx, out, "")
	if err != nil {
		return list, listFault(out, err)
	}
	slices.SortFunc(rules, func(x, y storedRule) int { return cmp.Or(y.Made.Compare(x.Made), cmp.Compare(x.ID, y.ID)) })
	for _, r := range rules { // all: what holds can be seen
		list.Rules = append(list.Rules, r.ApprovalRule)
	}
	return list, nil
}

// loadApprovals reads every question: those that wait first, then the newest first.
func (b *Broker) loadApprovals(ctx context.Context, out actor.Out) ([]subjects.Approval, error) {
	store := out.Store(bucketApprovals)
	keys, err := store.Keys(ctx, "")
	if err != nil {
		return nil, err
	}
	now := out.Now()
	all, err := readKeys(ctx, keys, func(key string) (subjects.Approval, error) {
		q, _, err := readApproval(ctx, store, key)
		q.State = q.stateAt(now)
		return q.Approval, err
	}, out.LogError)
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

func listFault(out actor.Out, err error) error {
	out.LogError(fmt.Errorf("listing questions and rules: %w", err))
	return subjects.Faultf(subjects.CodeUnavailable, "the questions cannot be read; see conclave doctor")
}

// actionRevoke is how the end of a rule stands in the audit.
const actionRevoke = "approval.revoke"

// onRevoke ends a rule. It is put on record first. Done is not OK when there is no such rule.
func (b *Broker) onRevoke(ctx context.Context, in actor.Msg[subjects.Empty], out actor.Out) (subjects.Done, error) {
	rec := subjects.AuditRecord{ID: out.NewID(), AgentID: in.From, Action: actionRevoke}
	id, fault := parseUserSubject(in.From, in.Tokens)
	if fault != nil {
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, fault.Code)
		return subjects.Done{}, fault
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*b.cfg.AuditTimeout)
	defer cancel()
	store := out.Store(bucketRules)
	unavailable := func(err error) error {
		out.LogError(fmt.Errorf("revoking a rule: %w", err))
		return subjects.Faultf(subjects.CodeUnavailable, "the rule could not be revoked and may still hold; see conclave doctor, then try again")
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
	r, rev, err := readRule(ctx, store, keys[at])
	switch {
	case err != nil:
		return subjects.Done{}, unavailable(err)
	case !r.isActive(out.Now()):
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
		// Only a revocation changes a rule: whichever was first, the rule is revoked.
		if err := putRule(ctx, store, r, rev); err != nil && !errors.Is(err, actor.ErrChanged) {
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
