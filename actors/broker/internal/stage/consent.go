package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// Buckets of what the user decided.
const (
	ApprovalBucket = "approvals"
	RuleBucket     = "rules"
)

// SessionRuleTTL is how long a rule for a session is active: as long as the session's records are kept.
const SessionRuleTTL = 90 * 24 * time.Hour

// readConcurrency is how many keys of a bucket are read at once.
const readConcurrency = 16

// ErrCorrupt means that a stored value cannot be decoded or belongs to another key.
var ErrCorrupt = errors.New("corrupt value")

// Consent is what the user agreed to, as it was read. Only [Approval.Consent] and [Judged.ReadRules] make one that
// covers anything.
type Consent struct {
	covers func(*Judged, policy.Question) bool
}

// Approval is an approval in the bucket. It covers exactly Asks, which the user was shown.
type Approval struct {
	subjects.Approval
	Call     string `json:"call"`   // key of the call in the ledger
	Params   string `json:"params"` // keyed hash of the arguments
	Asks     []Ask  `json:"asks"`
	Event    string `json:"event"`          // message id of the published request, which dedupes it
	Told     bool   `json:"told,omitempty"` // the request was published
	Remember string `json:"remember,omitempty"`
	// Values answer the form of the request, until its tool gets them.
	Values json.RawMessage `json:"values,omitempty"`

	Revision uint64 `json:"-"` // that was read or written last; 0 = not stored
	consent  Consent
}

// Ask is a layer's question without its reason.
type Ask struct {
	Rule  string   `json:"rule"` // layer and rule
	Sinks []string `json:"sinks,omitempty"`
}

// NewAsk returns a question without its reason.
func NewAsk(q policy.Question) Ask {
	return Ask{Rule: RuleName(q.Layer, q.Rule), Sinks: slices.Clone(q.Sinks)}
}

// RuleName names a layer's rule in stored rules and in the audit log.
func RuleName(layer, rule string) string { return layer + ": " + rule }

// equals reports whether a and o ask for the same rule and sinks.
func (a Ask) equals(o Ask) bool { return a.Rule == o.Rule && slices.Equal(a.Sinks, o.Sinks) }

// Covers reports whether the question was part of this approval, with the same sinks in the same order. It does not
// look at the state of the approval.
func (q Approval) Covers(o policy.Question) bool {
	return slices.ContainsFunc(q.Asks, NewAsk(o).equals)
}

// Consent is what the approval covers, for the call that it names: nothing unless it was approved when it was read.
func (q Approval) Consent() Consent { return q.consent }

// ReadApproval reads one approval. Its id is the key, whatever the stored value says. A missing one is
// [actor.ErrNotFound], an undecodable value [ErrCorrupt].
func ReadApproval(ctx context.Context, s actor.Store, id string) (q Approval, err error) {
	data, rev, err := s.Get(ctx, id)
	if err != nil {
		return q, err
	}
	if err := json.Unmarshal(data, &q); err != nil {
		return Approval{}, fmt.Errorf("approval %s: %w: %w", id, ErrCorrupt, err)
	}
	q.ID, q.Revision = id, rev
	if read := q; read.State == subjects.ApprovalApproved {
		read.Asks = slices.Clone(read.Asks)
		q.consent.covers = func(j *Judged, o policy.Question) bool {
			r := j.received
			return read.Call == r.Key() && read.Params == r.Record.ParamsHash && read.SessionID == r.Session &&
				read.Tool == r.Tool && read.Covers(o)
		}
	}
	return q, nil
}

// Put stores the approval over the revision that was read, and sets the new one.
func (q *Approval) Put(ctx context.Context, s actor.Store) (err error) {
	data, err := json.Marshal(q)
	if err == nil {
		q.Revision, err = s.Put(ctx, q.ID, data, q.Revision)
	}
	return err
}

// Rule is a rule in the bucket, which an approval made for later calls. A revoked one stays there: the bucket has no
// deletes.
type Rule struct {
	subjects.ApprovalRule
	Revoked   time.Time `json:"revoked,omitzero"`
	RevokedBy string    `json:"revoked_by,omitempty"`

	Revision uint64 `json:"-"` // that was read; 0 = not stored
}

// IsActive reports whether the rule applies at now: it is not revoked, and its session rule TTL has not passed.
func (r Rule) IsActive(now time.Time) bool {
	return r.ID != "" && r.Revoked.IsZero() && (r.Session == "" || now.Sub(r.Made) < SessionRuleTTL)
}

// covers reports whether the rule approves question q about c: type, tool, layer and rule are equal, and the rule has
// every sink of q. A question without sinks, and a call in another session than the rule's, are never covered.
func (r Rule) covers(c policy.Call, q policy.Question) bool {
	if r.Type != c.Type || r.Tool != c.Tool.Name || r.Rule != RuleName(q.Layer, q.Rule) || len(q.Sinks) == 0 ||
		r.Session != "" && r.Session != c.Session {
		return false
	}
	return !slices.ContainsFunc(q.Sinks, func(s string) bool { return !slices.Contains(r.Sinks, s) })
}

func (r Rule) key() string { return r.Type + "." + r.Tool + "." + r.ID }

// ReadRule reads one rule, also a revoked one. The key is the authority on type, tool and id: a rule whose value says
// otherwise is [ErrCorrupt], as is an undecodable one. A missing one is [actor.ErrNotFound].
func ReadRule(ctx context.Context, s actor.Store, key string) (r Rule, err error) {
	data, rev, err := s.Get(ctx, key)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return Rule{}, fmt.Errorf("rule %s: %w: %w", key, ErrCorrupt, err)
	}
	if key != r.key() {
		return Rule{}, fmt.Errorf("rule %s: %w: it belongs to another key", key, ErrCorrupt)
	}
	r.Revision = rev
	return r, nil
}

// Put stores the rule over the revision that was read.
func (r Rule) Put(ctx context.Context, s actor.Store) error {
	data, err := json.Marshal(r)
	if err == nil {
		_, err = s.Put(ctx, r.key(), data, r.Revision)
	}
	return err
}

// ReadRules reads the rules for the tool of the call and returns what the active ones cover. A question without sinks,
// a caller without a type and the question of a client are never covered, and a rule for a session covers only a query
// that the router stored for it, which isServed says. On an error the caller must deny.
func (j *Judged) ReadRules(ctx context.Context, out actor.Out, isServed func() (bool, error)) (Consent, error) {
	c := j.facts
	if c.Flow.IsClientQuestion(c.Query) || subjects.CheckToken(c.Type) != nil ||
		!slices.ContainsFunc(j.decision.Asks(), func(q policy.Question) bool { return len(q.Sinks) > 0 }) {
		return Consent{}, nil
	}
	rules, err := LoadRules(ctx, out, c.Type+"."+c.Tool.Name)
	if err != nil {
		return Consent{}, err
	}
	if slices.ContainsFunc(rules, func(r Rule) bool { return r.Session != "" && r.Session == c.Session }) {
		served, err := isServed()
		if err != nil {
			return Consent{}, err
		}
		rules = slices.DeleteFunc(rules, func(r Rule) bool { return r.Session != "" && !served })
	}
	return Consent{func(of *Judged, q policy.Question) bool {
		return of == j && slices.ContainsFunc(rules, func(r Rule) bool { return r.covers(c, q) })
	}}, nil
}

// LoadRules reads the active rules whose keys begin with the tokens of prefix, type or type.tool; "" is all. A corrupt
// rule is logged and left out, so it covers nothing. Any other failed read fails the whole.
func LoadRules(ctx context.Context, out actor.Out, prefix string) ([]Rule, error) {
	all, err := ReadAll(ctx, out, RuleBucket, prefix, ReadRule)
	return slices.DeleteFunc(all, func(r Rule) bool { return !r.IsActive(out.Now()) }), err
}

// ReadAll reads the values of a bucket whose keys begin with the tokens of prefix, concurrently, and returns them in
// the order of the keys. A key that was deleted meanwhile is left out, a corrupt value is logged and left out, and any
// other error, or a ctx that ended, fails the whole read.
func ReadAll[T any](ctx context.Context, out actor.Out, bucket, prefix string,
	read func(ctx context.Context, s actor.Store, key string) (T, error),
) ([]T, error) {
	store := out.Store(bucket)
	keys, err := store.Keys(ctx, prefix)
	if err != nil {
		return nil, err
	}
	values, errs := make([]T, len(keys)), make([]error, len(keys))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(readConcurrency, len(keys)) {
		wg.Go(func() {
			for i := range next {
				values[i], errs[i] = read(ctx, store, keys[i])
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
		case errors.Is(errs[i], ErrCorrupt):
			out.LogError(errs[i])
		default:
			return nil, errs[i]
		}
	}
	return found, ctx.Err()
}
