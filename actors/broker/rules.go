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
	// sessionRuleTTL is how long a rule for a session is active: as long as the session's records are kept.
	sessionRuleTTL = 90 * 24 * time.Hour
	// listTimeout bounds a list request.
	listTimeout = 20 * time.Second
	// readConcurrency is how many keys of a bucket are read at once.
	readConcurrency = 16
)

// storedRule is a rule in the bucket. A revoked one stays there: the bucket has no deletes.
type storedRule struct {
	subjects.ApprovalRule
	Revoked   time.Time `json:"revoked,omitzero"`
	RevokedBy string    `json:"revoked_by,omitempty"`
}

// isActive reports whether the rule applies at now: it is not revoked, and its session rule TTL has not passed.
func (r storedRule) isActive(now time.Time) bool {
	return r.ID != "" && r.Revoked.IsZero() && (r.Session == "" || now.Sub(r.Made) < sessionRuleTTL)
}

// covers reports whether the rule approves question q about c: type, tool, layer and rule are equal, and the rule has
// every sink of q. A question without sinks, a caller without a type, and a call in another session than the rule's
// are never covered.
func (r storedRule) covers(c policy.Call, q policy.Question) bool {
	if r.Type != c.Type || r.Tool != c.Tool.Name || r.Rule != ruleName(q.Layer, q.Rule) || c.Type == "" ||
		len(q.Sinks) == 0 {
		return false
	}
	if r.Session != "" && r.Session != c.Session {
		return false
	}
	return !slices.ContainsFunc(q.Sinks, func(s string) bool { return !slices.Contains(r.Sinks, s) })
}

// findUncovered returns the questions that no active rule covers; none means that rules approve them all. A question
// without sinks, a caller without a type and the question of a client are never covered. A rule for a session covers
// only queries that the router stored for it, see [isServedQuery]. On an error the caller must deny.
func (b *Broker) findUncovered(ctx context.Context, out actor.Out, c policy.Call,
	asks []policy.Question,
) ([]policy.Question, error) {
	if c.Flow.IsClientQuestion(c.Query) || c.Type == "" || subjects.CheckToken(c.Type) != nil ||
		!slices.ContainsFunc(asks, func(q policy.Question) bool { return len(q.Sinks) > 0 }) {
		return asks, nil
	}
	rules, err := loadRules(ctx, out, c.Type+"."+c.Tool.Name)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(rules, func(r storedRule) bool { return r.Session != "" && r.Session == c.Session }) {
		served, err := isServedQuery(ctx, out, c.Caller.Account, c.Session, c.Query)
		if err != nil {
			return nil, err
		}
		rules = slices.DeleteFunc(rules, func(r storedRule) bool { return r.Session != "" && !served })
	}
	var open []policy.Question
	for _, q := range asks {
		if !slices.ContainsFunc(rules, func(r storedRule) bool { return r.covers(c, q) }) {
			open = append(open, q)
		}
	}
	return open, nil
}

// loadRules reads the active rules whose keys begin with the tokens of prefix, type or type.tool; "" is all. A corrupt
// rule is logged and left out, so it covers nothing. Any other failed read fails the whole.
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

// readKeys reads many keys concurrently and returns the values in the order of keys. A key that was deleted meanwhile
// is left out, a corrupt value is passed to logErr and left out, and any other error, or a ctx that ended, fails the
// whole read.
func readKeys[T any](ctx context.Context, keys []string, read func(key string) (T, error), logErr func(error)) ([]T,
	error,
) {
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

// errCorrupt means that a stored value cannot be decoded or belongs to another key.
var errCorrupt = errors.New("corrupt value")

// readRule reads one rule and its revision, also a revoked one. The key is the authority on type, tool and id: a rule
// whose value says otherwise is errCorrupt, as is an undecodable one. A missing one is [actor.ErrNotFound].
func readRule(ctx context.Context, s actor.Store, key string) (r storedRule, rev uint64, err error) {
	data, rev, err := s.Get(ctx, key)
	if err != nil {
		return r, 0, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return storedRule{}, 0, fmt.Errorf("rule %s: %w: %w", key, errCorrupt, err)
	}
	if key != r.key() {
		return storedRule{}, 0, fmt.Errorf("rule %s: %w: it belongs to another key", key, errCorrupt)
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

// rememberFor returns the level at which an approval can be remembered: wanted, or "" for this call only. It is "" when
// a question has no sinks, the caller has no type, the rule is for a session and would not cover the call that was
// approved (see [isServedQuery]), the rules cannot be read, or they would exceed maxRules or maxRuleBytes with those of
// q. wanted must be a known level or "".
func (b *Broker) rememberFor(ctx context.Context, out actor.Out, q storedApproval, wanted string) string {
	switch {
	case wanted == "", !q.isRememberable(), subjects.CheckToken(q.Type) != nil:
		return ""
	case wanted == subjects.RememberSession:
		account, _, _ := strings.Cut(q.Caller, ".")
		if served, err := isServedQuery(ctx, out, account, q.SessionID, q.QueryID); err != nil || !served {
			return ""
		}
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
			size += 2*len(s) + 16 // upper bound of the JSON encoding
		}
	}
	if size > maxRuleBytes {
		return ""
	}
	return wanted
}

// storeRules stores the rules of a decided approval, one for each question. After an error some of them may be stored.
func (b *Broker) storeRules(ctx context.Context, out actor.Out, q storedApproval) error {
	for _, r := range q.newRules(q.Remember, q.By) {
		r.ID, r.Made = out.NewID(), q.Decided
		if err := putRule(ctx, out.Store(bucketRules), storedRule{ApprovalRule: r}, 0); err != nil {
			return err
		}
	}
	return nil
}

// newRules returns the rules that an approval makes at a level, one for each question, without ids and times. by is the
// account that decided. Only a session rule is bound to the session.
func (q storedApproval) newRules(level, by string) (out []subjects.ApprovalRule) {
	session := ""
	if level == subjects.RememberSession {
		session = q.SessionID
	}
	for _, a := range q.Asks {
		out = append(out, subjects.ApprovalRule{
			Session: session, Type: q.Type, Tool: q.Tool, Rule: a.Rule,
			Sinks: slices.Clone(a.Sinks), By: by,
		})
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
	rules, err := loadRules(ctx, out, "")
	if err != nil {
		return list, listFault(out, err)
	}
	slices.SortFunc(rules, func(x, y storedRule) int { return cmp.Or(y.Made.Compare(x.Made), cmp.Compare(x.ID, y.ID)) })
	for _, r := range rules { // never cut: the user sees every active rule
		list.Rules = append(list.Rules, r.ApprovalRule)
	}
	return list, nil
}

// loadApprovals reads every approval, with its state at this time: the pending ones first, then by time, newest first.
// A corrupt one is logged and left out.
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
	store := out.Store(bucketRules)
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
		// Only a revocation changes a rule: after a write conflict the rule is revoked as well.
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
