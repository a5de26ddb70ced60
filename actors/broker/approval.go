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

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

// An approval outlives the callers that wait for it. It is stored before the request is published, under an id derived
// from the call and its arguments, so that a repeated request for the same call finds the same approval and its
// decision. Compare-and-set makes the first terminal state win: a decision of the user, expiry, or the cancellation of
// the query. Any other state denies.

// Layer and rules of denials by this file.
const (
	layerApproval  = "approval"
	ruleDenied     = "denied"
	ruleExpired    = "expired"
	rulePending    = "pending"
	ruleUnreadable = "unreadable"
)

const (
	// approvalTTL is how long an approval covers a repeated request for the same call. It ends well before the ledger
	// drops the call's entry.
	approvalTTL = 24 * time.Hour
	// pollInterval is how often a waiting call reads its approval, for a decision that another broker stored.
	pollInterval = time.Second
	// maxReadFailures is how many reads in a row may fail before a waiting call is denied.
	maxReadFailures = 5
	// maxWaiting bounds the calls that wait for a decision, maxWaitingPerAccount those of one account: a waiting call
	// occupies a worker. A question gets at most half of the places that are left for its account: 20 calls, which is a
	// whole model reply, when no other question waits.
	maxWaiting, maxWaitingPerAccount = 80, 40
	// maxHandled is how many calls are handled at once: enough for those that do not wait.
	maxHandled = maxWaiting + 32
	// maxReason bounds the reason of one layer in an approval request, in bytes: more than a reason with the longest
	// values, so that no value hides its end.
	maxReason = 1600
)

// isRememberable reports whether an approval may become a rule for later calls: every question must name its sinks. A
// question without sinks is about the act itself and needs an approval each time.
func isRememberable(q stage.Approval) bool {
	return len(q.Asks) > 0 && !slices.ContainsFunc(q.Asks, func(a stage.Ask) bool { return len(a.Sinks) == 0 })
}

// requestApproval asks the user about a call about which the layers have questions, and waits for the decision until
// ctx ends. It permits the call when the user approved everything that they ask, now, earlier for the same call, or by
// a stored rule, and otherwise returns the fault that denies it. It denies calls about which nobody is asked
// ([denyQuestions]), when the query was cancelled, when too many calls wait, and when approvals cannot be stored or
// read. The sources and grants of the flow, and the preview of a tool that has one, are shown to the user. When ctx
// ends, an agent's request stays pending, because the agent may resume its question; one of the user's own call is
// withdrawn.
func (b *Broker) requestApproval(ctx context.Context, out actor.Out, j *stage.Judged) (p stage.Permitted,
	_ *subjects.Fault,
) {
	r := j.Received()
	if no := denyQuestions(j); no != nil {
		return p, denialFault(no)
	}
	rules, err := j.ReadRules(ctx, out, func() (bool, error) {
		return isServedQuery(ctx, out, r.Caller.Account, r.Session, r.Query)
	})
	if err != nil {
		out.LogError(fmt.Errorf("reading approval rules: %w", err))
		return p, approvalsUnavailable()
	}
	open := j.Open(rules)
	if len(open) == 0 {
		return j.Approve(rules)
	}
	by := requesterOf(j)
	cancelled, err := b.isCancelled(ctx, out, r.Query)
	if err != nil {
		out.LogError(err)
		return p, approvalsUnavailable()
	}
	if cancelled {
		return p, cancelledFault(r.Tool)
	}
	id, isNew, err := findApproval(ctx, out, r, open)
	if err != nil {
		out.LogError(fmt.Errorf("reading the approval of a call of %s: %w", r.Tool, err))
		return p, approvalsUnavailable()
	}
	woken, leave, ok := b.waiting.join(id, by)
	if !ok {
		return p, subjects.Faultf(subjects.CodeBusy, "too many calls are waiting for approval, so none was requested "+
			"for this one; answer some with conclave approve, then try again")
	}
	defer leave()
	q := b.newApproval(out, j, id, open)
	if isNew {
		q.Preview = b.previewCall(ctx, out, j)
	} else {
		b.assumePreview(j)
	}
	if fault := b.storeApproval(ctx, out, by, q, isNew); fault != nil {
		return p, fault
	}
	approval, fault := b.awaitDecision(ctx, out, id, r.Tool, woken)
	if fault != nil && ctx.Err() != nil && r.Caller.Account == userAccount {
		fault = b.withdrawAbandoned(ctx, out, id, r.Tool, fault)
	}
	if fault != nil {
		return p, fault
	}
	return j.Approve(rules, approval)
}

// withdrawAbandoned withdraws the pending approval of a call of the user whose deadline has ended: unlike an agent,
// which resumes its question, nobody would receive the result, so a later approval must not report success. When that
// fails it returns pending, the fault of the call so far.
func (b *Broker) withdrawAbandoned(ctx context.Context, out actor.Out, id, tool string,
	pending *subjects.Fault,
) *subjects.Fault {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.AuditTimeout)
	defer cancel()
	if err := b.withdrawApproval(ctx, out, id); err != nil {
		out.LogError(fmt.Errorf("withdrawing the approval of an abandoned call of %s: %w", tool, err))
		return pending
	}
	return approvalFault(subjects.CodeUnanswered, ruleWithdrawn, fmt.Sprintf("no decision about this call of %s came "+
		"in time; the request is withdrawn, and nothing was run: call again", tool))
}

// findApproval returns the id of the approval of a call, and whether [Broker.storeApproval] will store a new request
// under it: none is stored, or an outdated approval. The same call with the same arguments has the same id. When the
// approval stored under it does not cover open, the id is derived from the open questions as well, so that the old
// decision does not apply. An error means that the stored approval cannot be read: the caller must deny.
func findApproval(ctx context.Context, out actor.Out, r stage.Received, open []policy.Question) (id string, isNew bool,
	_ error,
) {
	parts := []string{r.Key(), r.Session, r.Tool, r.Record.ParamsHash}
	for derived := false; ; derived = true {
		id = stage.HashParts(parts...)
		q, err := stage.ReadApproval(ctx, out.Store(stage.ApprovalBucket), id)
		switch {
		case errors.Is(err, actor.ErrNotFound):
			return id, true, nil
		case err != nil:
			return "", false, err
		case derived || !slices.ContainsFunc(open, func(o policy.Question) bool { return !q.Covers(o) }):
			return id, isOutdated(q, out.Now()), nil
		}
		for _, o := range open {
			parts = append(parts, stage.RuleName(o.Layer, o.Rule))
			parts = append(parts, o.Sinks...)
			parts = append(parts, "")
		}
	}
}

// requester is who causes approval requests: an account, where the questions of clients count apart from the user's
// own, and the question that it answers.
type requester struct{ account, question string }

func requesterOf(j *stage.Judged) requester {
	r := j.Received()
	if j.Facts().Flow.IsClientQuestion(r.Query) {
		return requester{r.Caller.Account + " for clients", r.Query}
	}
	return requester{r.Caller.Account, r.Query}
}

// requestShares divide [subjects.ApprovalBytes] among the requesters. Large requests have a half of their own, so that
// they never use up the part of the others.
type requestShares struct{ small, large actor.Shares }

// maxSmallRequest is the size in bytes up to which an approval request is small.
const maxSmallRequest = 16 << 10

func newRequestShares() requestShares {
	const half = subjects.ApprovalBytes / 2
	return requestShares{small: actor.Shares{Quota: half}, large: actor.Shares{Quota: half}}
}

// admit counts a request of size bytes and its decision, see [actor.Shares.Admit].
func (s *requestShares) admit(by requester, size int, now time.Time) bool {
	of := &s.small
	if size > maxSmallRequest {
		of = &s.large
	}
	return of.Admit(by.account, by.question, int64(size+2*copyOverhead), 1, now)
}

// storeApproval stores the approval request q of a requester and publishes it. An approval that is stored already is
// kept in its state, and published only if it is pending and was not yet; one that was approved more than approvalTTL
// ago is replaced by a new request. It denies a call whose request exceeds the event's limit, one whose id is taken by
// another call, a new request (isNew) of a requester whose share of the requests of the last day is used up, and every
// call when the bucket or the stream cannot be written. nil means that an approval is stored, not that it is approved.
func (b *Broker) storeApproval(ctx context.Context, out actor.Out, by requester, q stage.Approval,
	isNew bool,
) *subjects.Fault {
	store := out.Store(stage.ApprovalBucket)
	data, err := json.Marshal(q)
	if err != nil || len(data) > subjects.ApprovalRequestEvent.Limit() {
		return subjects.Faultf(subjects.CodeTooLarge, "the call of %s is too large for an approval request, so it "+
			"was denied; send smaller arguments", q.Tool)
	}
	if isNew && !b.requests.admit(by, len(data), out.Now()) {
		return subjects.Faultf(subjects.CodeLimit, "this question, or %s during the last day, requested approvals for "+
			"so much data that none was requested for this call of %s, which was denied; ask again, with smaller "+
			"arguments", by.account, q.Tool)
	}
	err = q.Put(ctx, store)
	for errors.Is(err, actor.ErrChanged) {
		var old stage.Approval
		old, err = stage.ReadApproval(ctx, store, q.ID)
		switch {
		case err != nil:
		case old.Call != q.Call || old.SessionID != q.SessionID || old.Tool != q.Tool || old.Params != q.Params:
			return approvalFault(subjects.CodeDenied, ruleUnreadable, "the approval id of this call belongs to "+
				"another call, so it cannot be approved; try again with another call_id")
		case isOutdated(old, out.Now()):
			q.Revision = old.Revision
			err = q.Put(ctx, store)
		default:
			q = old
		}
	}
	if err == nil && q.State == subjects.ApprovalPending && !q.Told {
		err = publishRequest(ctx, out, q)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return pendingFault(q.ID, q.Tool)
	}
	out.LogError(fmt.Errorf("requesting approval for %s: %w", q.Tool, err))
	return approvalsUnavailable()
}

// newPending returns a pending request about a call, without what it asks. It expires after the configured time,
// otherwise the manifest's, otherwise defaultApprovalWait.
func (b *Broker) newPending(out actor.Out, j *stage.Judged, id string) stage.Approval {
	wait := cmp.Or(b.cfg.ApprovalWait, b.rules.Load().Manifest.Approvals.Expires, defaultApprovalWait)
	r, now := j.Received(), out.Now()
	q := stage.Approval{Call: r.Key(), Params: r.Record.ParamsHash, Event: out.NewID()}
	q.State = subjects.ApprovalPending
	q.ApprovalRequest = subjects.ApprovalRequest{
		ID: id, CallID: r.ID, SessionID: r.Session, QueryID: r.Query, Caller: r.Caller.ID(), Type: j.Facts().Type,
		Tool: r.Tool, Args: r.Args, Asked: now, Expires: now.Add(wait),
	}
	return q
}

// newApproval returns a pending approval for the open questions, which must not be empty. Its request lists the sinks
// only when it is rememberable: a rule never covers a sink that the user was not shown.
func (b *Broker) newApproval(out actor.Out, j *stage.Judged, id string, open []policy.Question) stage.Approval {
	q, flow := b.newPending(out, j, id), j.Facts().Flow
	q.Layer, q.Rule, q.Reason = open[0].Layer, open[0].Rule, joinReasons(open, j.Facts().After())
	q.Taint, q.Grants = flow.Sources(), describeGrants(flow.Grants(q.QueryID))
	for _, o := range open {
		q.Asks = append(q.Asks, stage.NewAsk(o))
		if rule := stage.RuleName(o.Layer, o.Rule); len(open) > 1 && !slices.Contains(q.Rules, rule) {
			q.Rules = append(q.Rules, rule)
		}
	}
	q.Hosts = findLookAlikes(q.Args, open)
	if isRememberable(q) {
		for _, a := range q.Asks {
			for _, s := range a.Sinks {
				if !slices.Contains(q.Sinks, s) {
					q.Sinks = append(q.Sinks, s)
				}
			}
		}
	}
	return q
}

// findLookAlikes returns the host names outside of ASCII in the arguments of a call, also escaped ones, and in the
// sinks of the questions about it, at most maxLookAlikes.
func findLookAlikes(args json.RawMessage, open []policy.Question) (out []subjects.LookAlikeHost) {
	var all strings.Builder
	var decoded any
	if json.Unmarshal(args, &decoded) == nil {
		fmt.Fprintln(&all, decoded) // with the escapes of JSON resolved
	}
	for _, o := range open {
		fmt.Fprintln(&all, o.Sinks)
	}
	for _, h := range text.NonASCIIHosts(all.String()) {
		if len(out) < maxLookAlikes {
			out = append(out, subjects.LookAlikeHost(h))
		}
	}
	return out
}

// maxLookAlikes bounds the host names that an approval request explains.
const maxLookAlikes = 20

// joinReasons returns the reasons of all questions, each once and cut to maxReason, separated by "; ". The words after,
// with which reasons begin, stand before the first one only.
func joinReasons(open []policy.Question, after string) string {
	var reasons []string
	begin := ""
	for i, o := range open {
		reason, hasBegin := strings.CutPrefix(o.Reason, after)
		if i == 0 && hasBegin {
			begin = after
		}
		if reason = text.OneLine(reason, maxReason); !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	return begin + strings.Join(reasons, "; ")
}

// publishRequest publishes a stored approval request and marks it as published. After a crash between the two, the next
// caller publishes it again under the same message id and the stream dedupes it. A write conflict of the mark is no
// error.
func publishRequest(ctx context.Context, out actor.Out, q stage.Approval) error {
	topic, err := subjects.ApprovalRequestEvent.With(q.ID)
	if err != nil {
		return err
	}
	if err := actor.EmitOnce(ctx, out.WithIDs(q.SessionID, q.QueryID), topic, q.Event, q.ApprovalRequest); err != nil {
		return err
	}
	q.Told = true
	if err := q.Put(ctx, out.Store(stage.ApprovalBucket)); !errors.Is(err, actor.ErrChanged) {
		return err
	}
	return nil // decided meanwhile, or published by another caller as well
}

// awaitDecision waits until the approval is decided or expires, or ctx ends, and returns what the user agreed to, or
// the denying fault. It stores and publishes the expiry. woken signals that the approval changed; it also polls.
// A call whose ctx ends leaves the approval pending. It denies after maxReadFailures failed reads in a row.
func (b *Broker) awaitDecision(ctx context.Context, out actor.Out, id, tool string,
	woken <-chan struct{},
) (given stage.Consent, _ *subjects.Fault) {
	store := out.Store(stage.ApprovalBucket)
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	var expiry <-chan time.Time // nil until the approval was read
	due := false
	for failures := 0; ; {
		q, err := stage.ReadApproval(ctx, store, id)
		left := q.Expires.Sub(out.Now())
		switch {
		case ctx.Err() != nil:
			return given, pendingFault(id, tool)
		case err != nil:
			if failures++; failures >= maxReadFailures {
				out.LogError(fmt.Errorf("waiting for the approval of %s: %w", tool, err))
				return given, approvalsUnavailable()
			}
		case q.State != subjects.ApprovalPending:
			return q.Consent(), stateFault(q)
		case due || left <= 0:
			err := b.storeExpiry(ctx, store, q)
			if errors.Is(err, actor.ErrChanged) {
				continue // decided meanwhile
			}
			if err != nil {
				out.LogError(fmt.Errorf("storing the expiry of an approval: %w", err))
			}
			q.State = subjects.ApprovalExpired
			b.publishDecision(ctx, out, q, false)
			return given, stateFault(q)
		default:
			failures = 0
			if expiry == nil {
				expiry = time.After(left)
			}
		}
		select {
		case <-woken:
		case <-poll.C:
		case <-expiry:
			due = true
		case <-ctx.Done():
		}
	}
}

// storeExpiry stores that a pending approval expired. It returns [actor.ErrChanged] when q is outdated. The caller's
// deadline does not interrupt the write.
func (b *Broker) storeExpiry(ctx context.Context, store actor.Store, q stage.Approval) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.AuditTimeout)
	defer cancel()
	q.State, q.Decided = subjects.ApprovalExpired, q.Expires
	return q.Put(ctx, store)
}

// publishDecision publishes the terminal state of an approval and returns it as a reply; accepted is false for an
// expiry. A failure to publish is logged only: the bucket has the decision. The caller's deadline does not interrupt
// it.
func (b *Broker) publishDecision(ctx context.Context, out actor.Out, q stage.Approval,
	accepted bool,
) subjects.ApprovalReply {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.AuditTimeout)
	defer cancel()
	reply := newReply(q, q.State, accepted)
	topic, err := subjects.ApprovalDecisionEvent.With(q.ID)
	if err == nil {
		err = actor.Emit(ctx, out.WithIDs(q.SessionID, q.QueryID), topic, reply)
	}
	if err != nil {
		out.LogError(fmt.Errorf("publishing an approval decision: %w", err))
	}
	return reply
}

// stateFault is the fault that the state of an approval means for its call, nil when it is approved. An unknown state
// denies.
func stateFault(q stage.Approval) *subjects.Fault {
	switch q.State {
	case subjects.ApprovalApproved:
		return nil
	case subjects.ApprovalWithdrawn:
		if q.By != "" { // by a client, not by a cancelled query
			return approvalFault(subjects.CodeStopped, ruleWithdrawn, fmt.Sprintf("the approval request for this "+
				"call of %s was withdrawn, because its caller stopped waiting; it was not run", q.Tool))
		}
		return cancelledFault(q.Tool)
	case subjects.ApprovalDenied:
		return approvalFault(subjects.CodeNotApproved, ruleDenied, fmt.Sprintf("the user denied this call of %s",
			q.Tool))
	case subjects.ApprovalExpired:
		return approvalFault(subjects.CodeUnanswered, ruleExpired, fmt.Sprintf("the approval request for this call "+
			"of %s expired without an answer, so it was not run; it was not denied. "+
			"Try again, and answer with conclave approve or on the page; conclave approve --watch shows each request "+
			"as it arrives", q.Tool))
	}
	return approvalFault(subjects.CodeDenied, ruleUnreadable, "the state of the approval cannot be read, so the call "+
		"is denied")
}

// pendingFault denies a call whose deadline passed while its approval is pending.
func pendingFault(id, tool string) *subjects.Fault {
	return approvalFault(subjects.CodeUnanswered, rulePending, fmt.Sprintf("the user has not answered the approval "+
		"request for this call of %s yet; it is still pending: "+
		"answer with conclave approve %s, then try again with the same call_id", tool, id))
}

// approvalsUnavailable denies a call because its approval cannot be stored or read.
func approvalsUnavailable() *subjects.Fault {
	return subjects.Faultf(subjects.CodeUnavailable, "approval cannot be requested: approvals cannot be stored or "+
		"read, so nothing was run; see conclave doctor")
}

// approvalFault returns a fault with a denial by the approval layer.
func approvalFault(code, rule, reason string) *subjects.Fault {
	return &subjects.Fault{Code: code, Text: reason, Denial: &subjects.Denial{
		Layer: layerApproval, Rule: rule,
		Reason: reason,
	}}
}

// waitingCalls are the calls in this broker that wait for a decision. The zero value is ready to use.
type waitingCalls struct {
	mu         sync.Mutex
	byApproval map[string]map[chan struct{}]bool // by approval id
	byAccount  map[string]int                    // by account
	byQuestion map[requester]int
	total      int
}

// join registers a waiting call. woken receives after each [waitingCalls.wake] of the approval, where wakes before it
// is read merge into one; the caller must call leave. ok is false, and nothing is registered, when maxWaiting calls
// wait in all, maxWaitingPerAccount of the account, or as many of the question as places are left for it.
func (w *waitingCalls) join(id string, by requester) (woken <-chan struct{}, leave func(), ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	left := min(maxWaitingPerAccount-w.byAccount[by.account], maxWaiting-w.total)
	if left <= 0 || by.question != "" && w.byQuestion[by] >= left {
		return nil, nil, false
	}
	if w.byApproval == nil {
		w.byApproval, w.byAccount = map[string]map[chan struct{}]bool{}, map[string]int{}
		w.byQuestion = map[requester]int{}
	}
	if w.byApproval[id] == nil {
		w.byApproval[id] = map[chan struct{}]bool{}
	}
	c := make(chan struct{}, 1)
	w.byApproval[id][c] = true
	w.total++
	w.byAccount[by.account]++
	w.byQuestion[by]++
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.byApproval[id], c); len(w.byApproval[id]) == 0 {
			delete(w.byApproval, id)
		}
		w.total--
		if w.byAccount[by.account]--; w.byAccount[by.account] == 0 {
			delete(w.byAccount, by.account)
		}
		if w.byQuestion[by]--; w.byQuestion[by] == 0 {
			delete(w.byQuestion, by)
		}
	}, true
}

// wake makes the calls of this broker that wait for an approval read it. It does not wait for them.
func (w *waitingCalls) wake(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.byApproval[id] {
		select {
		case c <- struct{}{}:
		default: // a signal is pending already
		}
	}
}
