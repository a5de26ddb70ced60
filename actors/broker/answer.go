package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// stateAt is the state of a question at a moment: one whose time is over is no longer pending, whoever writes that down.
func (q storedApproval) stateAt(now time.Time) string {
	if q.State == subjects.ApprovalPending && !now.Before(q.Expires) {
		return subjects.ApprovalExpired
	}
	return q.State
}

// actionDecision is how an answer stands in the audit.
const actionDecision = "approval.decision"

// onDecision takes the user's answer: it is put on record, then it takes effect, then it is told. The first wins.
func (b *Broker) onDecision(ctx context.Context, in actor.Msg[subjects.ApprovalDecision], out actor.Out) (subjects.ApprovalReply, error) {
	rec := subjects.AuditRecord{ID: out.NewID(), AgentID: in.From, Action: actionDecision}
	id, fault := parseUserSubject(in.From, in.Tokens)
	if fault == nil && !slices.Contains([]string{"", subjects.RememberSession, subjects.RememberAlways}, in.Body.Remember) {
		fault = subjects.Faultf(subjects.CodeMalformed, "remember is session, always or left out")
	}
	if fault != nil {
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, fault.Code)
		return subjects.ApprovalReply{}, fault
	}
	// Whoever has answered may go: what was begun is brought to its end.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*b.cfg.AuditTimeout)
	defer cancel()
	store := out.Store(bucketApprovals)
	q, rev, err := readApproval(ctx, store, id)
	if errors.Is(err, actor.ErrNotFound) {
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, subjects.ApprovalUnknown)
		return subjects.ApprovalReply{ID: id, State: subjects.ApprovalUnknown}, nil
	}
	if err != nil {
		out.LogError(fmt.Errorf("reading a question that was answered: %w", err))
		return subjects.ApprovalReply{}, subjects.Faultf(subjects.CodeUnavailable, "the question cannot be read, so the answer was not taken; see conclave doctor")
	}
	rec.Tool, rec.ParamsHash, rec.Session, rec.Query = q.Tool, q.Params, q.SessionID, q.QueryID
	if state := q.stateAt(out.Now()); state != subjects.ApprovalPending {
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, state)
		return q.reply(state, false), nil
	}
	answer := q
	answer.By, answer.Decided, answer.State = in.From, out.Now(), subjects.ApprovalDenied
	if in.Body.Approve {
		answer.State = subjects.ApprovalApproved
		answer.Remember = b.rememberFor(ctx, out, q, in.Body.Remember)
	}
	return b.recordAnswer(ctx, out, rec, answer, rev)
}

// recordAnswer stores an answer behind the audit gate, publishes it and wakes the call that waits for it. The answer takes
// effect only after its record is acknowledged; an answer that took effect is not withheld when its outcome cannot be
// recorded, because the question is closed by then. rev is the revision of the question that was answered.
func (b *Broker) recordAnswer(ctx context.Context, out actor.Out, rec subjects.AuditRecord, answer storedApproval, rev uint64) (subjects.ApprovalReply, error) {
	var (
		reply  subjects.ApprovalReply
		stored bool
		failed error
	)
	store := func(report func(status, reason string)) {
		held, first, err := b.storeAnswer(ctx, out.Store(bucketApprovals), answer, rev)
		switch {
		case err != nil:
			report(subjects.StatusUnknown, subjects.CodeUnavailable)
			out.LogError(fmt.Errorf("writing an answer: %w", err))
			failed = subjects.Faultf(subjects.CodeUnavailable, "the answer could not be written; look with conclave approve whether it was taken")
		case !first: // another answer was stored meanwhile
			report(subjects.StatusFailed, held.State)
			reply = held.reply(held.State, false)
		default:
			stored = true
			if answer.Remember != "" {
				if err := b.storeRules(ctx, out, answer); err != nil {
					out.LogError(fmt.Errorf("remembering an answer: %w", err))
					answer.Remember = "" // it holds once, and the reply says so
				}
			}
			report(subjects.StatusOK, cmp.Or(answer.Remember, "once"))
		}
	}
	gate := *b.gate
	gate.NotDone = "the answer was not taken"
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
			out.LogError(fmt.Errorf("recording the outcome of an answer: %w", err))
		}
	} else {
		if err := gate.Record(ctx, out, rec, subjects.StatusDenied, "once"); err != nil {
			return subjects.ApprovalReply{}, err
		}
		store(func(status, reason string) {
			if status != subjects.StatusOK { // a denial that took effect has said all in its first record
				rec.ID = out.NewID()
				b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, reason)
			}
		})
	}
	if !stored {
		return reply, failed
	}
	reply = b.publishDecision(ctx, out, answer, true)
	b.waiting.wake(answer.ID) // after the event of the answer, which so precedes the events of the call
	return reply, nil
}

// storeAnswer writes an answer unless the question has one. It returns what holds then, and whether that is this answer.
func (b *Broker) storeAnswer(ctx context.Context, store actor.Store, answer storedApproval, rev uint64) (held storedApproval, first bool, err error) {
	for {
		_, err := putApproval(ctx, store, answer, rev)
		if !errors.Is(err, actor.ErrChanged) {
			return answer, err == nil, err
		}
		var now storedApproval
		now, rev, err = readApproval(ctx, store, answer.ID)
		if err != nil || now.State != subjects.ApprovalPending {
			return now, false, err
		}
		answer.Told = now.Told // that it was told is all that can have changed
	}
}

// parseUserSubject reads the id of what the user speaks about. Who speaks is what the server wrote.
func parseUserSubject(from string, tokens []string) (string, *subjects.Fault) {
	if !slices.Contains(subjects.UserAccounts, from) {
		return "", subjects.Faultf(subjects.CodeDenied, "only the user may say this")
	}
	if len(tokens) != 2 || subjects.CheckToken(tokens[1]) != nil {
		return "", subjects.Faultf(subjects.CodeSubject, "this is not an id: letters, digits, - and _ only")
	}
	return tokens[1], nil
}

func (q storedApproval) reply(state string, accepted bool) subjects.ApprovalReply {
	return subjects.ApprovalReply{ID: q.ID, Accepted: accepted, State: state, By: q.By, Remember: q.Remember}
}
