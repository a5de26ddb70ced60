package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/subjects"
)

// stateAt is the state of an approval at now: a pending one past its expiry is expired, also when no broker has stored
// that.
func stateAt(q stage.Approval, now time.Time) string {
	if q.State == subjects.ApprovalPending && !now.Before(q.Expires) {
		return subjects.ApprovalExpired
	}
	return q.State
}

// onDecision accepts the user's decision about an approval: it is recorded, stored, then published. It denies every
// account but the user's, and rejects an unknown remember level. For an approval that is unknown, decided, expired or
// withdrawn, the reply is not accepted and has the current state. All of these are recorded. A decision may also
// withdraw the request: the user's own call no longer waits for it. The remember level of the reply may be lower than
// requested, see [Broker.rememberFor].
func (b *Broker) onDecision(ctx context.Context, in actor.Msg[subjects.ApprovalDecision],
	out actor.Out,
) (subjects.ApprovalReply, error) {
	rec := subjects.AuditRecord{ID: out.NewID(), AgentID: in.From, Action: subjects.ActionApprovalDecision}
	id, fault := parseUserSubject(in.From, in.Tokens)
	if fault == nil && !slices.Contains([]string{"", subjects.RememberSession, subjects.RememberAlways},
		in.Body.Remember) {
		fault = subjects.Faultf(subjects.CodeMalformed, "invalid remember: use session, always, or leave it out")
	}
	if fault == nil && in.Body.Withdraw && in.Body.Approve {
		fault = subjects.Faultf(subjects.CodeMalformed, "approve and withdraw exclude each other")
	}
	if fault != nil {
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, fault.Code)
		return subjects.ApprovalReply{}, fault
	}
	// The client's disconnect does not interrupt a decision that has begun.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*b.cfg.AuditTimeout)
	defer cancel()
	q, err := b.readDecidable(ctx, out, id)
	if errors.Is(err, actor.ErrNotFound) {
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, subjects.ApprovalUnknown)
		return subjects.ApprovalReply{ID: id, State: subjects.ApprovalUnknown}, nil
	}
	if err != nil {
		out.LogError(fmt.Errorf("reading an approval: %w", err))
		return subjects.ApprovalReply{}, subjects.Faultf(subjects.CodeUnavailable, "the approval cannot be read, so "+
			"the decision was not stored; see conclave doctor")
	}
	rec.Tool, rec.ParamsHash, rec.Session, rec.Query = q.Tool, q.Params, q.SessionID, q.QueryID
	if state := stateAt(q, out.Now()); state != subjects.ApprovalPending {
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, state)
		return newReply(q, state, false), nil
	}
	if fault := checkFormDecision(q, in.Body); fault != nil { // the request stays open
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, fault.Code)
		return subjects.ApprovalReply{}, fault
	}
	answer := q
	answer.By, answer.Decided, answer.State = nameDecider(in.From), out.Now(), subjects.ApprovalDenied
	switch {
	case in.Body.Approve:
		answer.State = subjects.ApprovalApproved
		answer.Remember, answer.Values = b.rememberFor(ctx, out, q, in.Body.Remember), in.Body.Values
	case in.Body.Withdraw:
		answer.State = subjects.ApprovalWithdrawn
	}
	return b.recordDecision(ctx, out, rec, answer)
}

// nameDecider names who decided. What the account of the gateway decides, the user has decided on the page or over
// HTTP: the record of the audit log has the account.
func nameDecider(account string) string {
	if account == "gateway" {
		return "user over HTTP"
	}
	return account
}

// readDecidable reads an approval for a decision. A pending one of a cancelled query is withdrawn first. Errors are
// those of [stage.ReadApproval], and failures to read the cancellation or to withdraw.
func (b *Broker) readDecidable(ctx context.Context, out actor.Out, id string) (stage.Approval, error) {
	store := out.Store(stage.ApprovalBucket)
	q, err := stage.ReadApproval(ctx, store, id)
	if err != nil || q.State != subjects.ApprovalPending {
		return q, err
	}
	cancelled, err := b.isCancelled(ctx, out, q.QueryID)
	if err != nil || !cancelled {
		return q, err
	}
	if err := b.withdrawApproval(ctx, out, id); err != nil {
		return q, err
	}
	return stage.ReadApproval(ctx, store, id)
}

// recordDecision stores a decision behind the audit gate, publishes it and wakes the calls that wait for it. The
// decision takes effect only after its record is acknowledged; one that took effect is not withheld when its outcome
// cannot be recorded, because the approval is closed by then. answer is the approval that was read, with the decision
// in it. When another terminal state was stored first, the reply has that and is not accepted.
func (b *Broker) recordDecision(ctx context.Context, out actor.Out, rec subjects.AuditRecord, answer stage.Approval) (
	subjects.ApprovalReply, error,
) {
	var (
		reply  subjects.ApprovalReply
		stored bool
		failed error
	)
	store := func(report func(status, reason string)) {
		reply, stored, failed = b.storeDecision(ctx, out, &answer, report)
	}
	gate := actor.Gate{
		Log: b.gate.Log, Timeout: b.gate.Timeout, TypeOf: b.gate.TypeOf,
		NotDone: "the decision was not stored",
	}
	if answer.State == subjects.ApprovalApproved {
		begun := false
		rec.Reason = cmp.Or(answer.Remember, "once")
		_, err := actor.Audited(ctx, out, &gate, rec, func(_ context.Context, p *actor.Permit) (struct{}, error) {
			begun = true
			store(p.Report)
			return struct{}{}, failed
		})
		if !begun {
			return subjects.ApprovalReply{}, err
		}
		if errors.Is(err, actor.ErrUnrecorded) {
			out.LogError(fmt.Errorf("recording the outcome of a decision: %w", err))
		}
	} else {
		reason := "once"
		if answer.State == subjects.ApprovalWithdrawn {
			reason = answer.State
		}
		if err := gate.Record(ctx, out, rec, subjects.StatusDenied, reason); err != nil {
			return subjects.ApprovalReply{}, err
		}
		store(func(status, reason string) {
			if status != subjects.StatusOK { // a denial that took effect needs no second record
				rec.ID = out.NewID()
				b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, reason)
			}
		})
	}
	if !stored {
		return reply, failed
	}
	reply = b.publishDecision(ctx, out, answer, true)
	b.waiting.wake(answer.ID) // after the decision event, which so precedes the events of the call
	return reply, nil
}

// storeDecision stores a decision and the rules it makes, and calls report once with the outcome for the audit log.
// stored is false when the write failed, which is the error, and when another terminal state was stored first: reply
// then has that state and is not accepted. Otherwise reply is empty. When the rules cannot be stored it clears
// answer.Remember, and the decision holds for this call only.
func (b *Broker) storeDecision(ctx context.Context, out actor.Out, answer *stage.Approval,
	report func(status, reason string),
) (reply subjects.ApprovalReply, stored bool, _ error) {
	current, first, err := putDecision(ctx, out.Store(stage.ApprovalBucket), *answer)
	switch {
	case err != nil:
		report(subjects.StatusUnknown, subjects.CodeUnavailable)
		out.LogError(fmt.Errorf("storing a decision: %w", err))
		return reply, false, subjects.Faultf(subjects.CodeUnavailable, "the decision could not be stored; check with "+
			"conclave approve whether it holds")
	case !first:
		report(subjects.StatusFailed, current.State)
		return newReply(current, current.State, false), false, nil
	}
	if answer.Remember != "" {
		if err := storeRules(ctx, out, *answer); err != nil {
			out.LogError(fmt.Errorf("storing approval rules: %w", err))
			answer.Remember = ""
		}
	}
	report(subjects.StatusOK, cmp.Or(answer.Remember, "once"))
	return reply, true, nil
}

// putDecision stores a decision unless the approval has a terminal state. held is the approval as stored; first reports
// whether this decision is the stored one. It reads and retries after a write conflict.
func putDecision(ctx context.Context, store actor.Store, answer stage.Approval) (held stage.Approval, first bool,
	err error,
) {
	for {
		if err := answer.Put(ctx, store); !errors.Is(err, actor.ErrChanged) {
			return answer, err == nil, err
		}
		now, err := stage.ReadApproval(ctx, store, answer.ID)
		if err != nil || now.State != subjects.ApprovalPending {
			return now, false, err
		}
		answer.Told, answer.Revision = now.Told, now.Revision // no other field changes while pending
	}
}

// parseUserSubject returns the id in the subject of a request that only the user's accounts may send. from is the
// account that the server wrote into the subject; every other account is denied. tokens are the subject's wildcards,
// account and id; an id that is no token is rejected.
func parseUserSubject(from string, tokens []string) (string, *subjects.Fault) {
	if !slices.Contains(subjects.UserAccounts, from) {
		return "", subjects.Faultf(subjects.CodeDenied, "only the user may decide or revoke approvals")
	}
	if len(tokens) != 2 || subjects.CheckToken(tokens[1]) != nil {
		return "", subjects.Faultf(subjects.CodeSubject, "invalid id: use letters, digits, - and _ only")
	}
	return tokens[1], nil
}

func newReply(q stage.Approval, state string, accepted bool) subjects.ApprovalReply {
	return subjects.ApprovalReply{ID: q.ID, Accepted: accepted, State: state, By: q.By, Remember: q.Remember}
}
