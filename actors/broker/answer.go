package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// standing is the state of a question at a moment: one whose time is over is no longer pending, whoever writes that down.
func (q question) standing(now time.Time) string {
	if q.State == subjects.ApprovalPending && !now.Before(q.Expires) {
		return subjects.ApprovalExpired
	}
	return q.State
}

// actionDecision is how an answer stands in the audit.
const actionDecision = "approval.decision"

// onAnswer takes the user's answer: it is put on record, then it takes effect, then it is told. The first wins.
func (b *Broker) onAnswer(ctx context.Context, in actor.Msg[subjects.ApprovalDecision], out actor.Out) (subjects.ApprovalReply, error) {
	rec := subjects.AuditRecord{ID: out.NewID(), AgentID: in.From, Action: actionDecision}
	id, fault := fromPerson(in.From, in.Tokens)
	if fault == nil && !slices.Contains([]string{"", subjects.RememberSession, subjects.RememberAlways}, in.Body.Remember) {
		fault = subjects.Faultf(subjects.CodeMalformed, "remember is session, always or left out")
	}
	if fault != nil {
		b.turnDown(ctx, out, rec, fault.Code)
		return subjects.ApprovalReply{}, fault
	}
	// Whoever has answered may go: what was begun is brought to its end.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*b.cfg.AuditTimeout)
	defer cancel()
	store := out.Store(bucketApprovals)
	q, rev, err := readQuestion(ctx, store, id)
	if errors.Is(err, actor.ErrNotFound) {
		b.turnDown(ctx, out, rec, subjects.ApprovalUnknown)
		return subjects.ApprovalReply{ID: id, State: subjects.ApprovalUnknown}, nil
	}
	if err != nil {
		out.LogError(fmt.Errorf("reading a question that was answered: %w", err))
		return subjects.ApprovalReply{}, subjects.Faultf(subjects.CodeUnavailable, "the question cannot be read, so the answer was not taken; see conclave doctor")
	}
	rec.Tool, rec.ParamsHash, rec.Session, rec.Query = q.Tool, q.Params, q.SessionID, q.QueryID
	if state := q.standing(out.Now()); state != subjects.ApprovalPending {
		b.turnDown(ctx, out, rec, state)
		return q.reply(state, false), nil
	}
	answer := q
	answer.By, answer.Decided, answer.State = in.From, out.Now(), subjects.ApprovalDenied
	status := subjects.StatusDenied
	if in.Body.Approve {
		answer.State, status = subjects.ApprovalApproved, subjects.StatusAllowed
		answer.Remember = b.rememberFor(ctx, out, q, in.Body.Remember)
	}
	if err := b.store(ctx, rec, subjects.AuditBefore, status, or(answer.Remember, "once")); err != nil {
		fault := noAudit(err)
		fault.Text = "the audit did not take the answer, so it was not taken; see conclave doctor"
		return subjects.ApprovalReply{}, fault
	}
	held, first, err := b.settle(ctx, store, answer, rev)
	switch {
	case err != nil:
		b.outcome(ctx, out, rec, in.Body.Approve, subjects.StatusUnknown, subjects.CodeUnavailable)
		out.LogError(fmt.Errorf("writing an answer: %w", err))
		return subjects.ApprovalReply{}, subjects.Faultf(subjects.CodeUnavailable, "the answer could not be written; look with conclave approve whether it was taken")
	case !first: // somebody else was, between our look and our word
		b.outcome(ctx, out, rec, in.Body.Approve, subjects.StatusFailed, held.State)
		return held.reply(held.State, false), nil
	}
	if answer.Remember != "" {
		if err := b.remember(ctx, out, answer); err != nil {
			out.LogError(fmt.Errorf("remembering an answer: %w", err))
			answer.Remember = "" // it holds once, and is told so
		}
	}
	b.outcome(ctx, out, rec, in.Body.Approve, subjects.StatusOK, or(answer.Remember, "once"))
	reply := b.tellEnd(ctx, out, answer, true)
	b.waiting.wake(id) // the answer stands in the events before what it lets run
	return reply, nil
}

// settle writes an answer unless the question has one. It returns what holds then, and whether that is this answer.
func (b *Broker) settle(ctx context.Context, store actor.Store, answer question, rev uint64) (held question, first bool, err error) {
	for {
		_, err := putQuestion(ctx, store, answer, rev)
		if !errors.Is(err, actor.ErrChanged) {
			return answer, err == nil, err
		}
		var now question
		now, rev, err = readQuestion(ctx, store, answer.ID)
		if err != nil || now.State != subjects.ApprovalPending {
			return now, false, err
		}
		answer.Told = now.Told // that it was told is all that can have changed
	}
}

// outcome puts on record what came of an answer. A no that held has said all there is in its first record.
func (b *Broker) outcome(ctx context.Context, out actor.Out, rec subjects.AuditRecord, approve bool, status, reason string) {
	phase := subjects.AuditAfter
	if !approve {
		if status == subjects.StatusOK {
			return
		}
		rec.ID, phase, status = out.NewID(), subjects.AuditBefore, subjects.StatusRefused
	}
	if err := b.store(ctx, rec, phase, status, reason); err != nil {
		out.LogError(fmt.Errorf("recording what came of an answer: %w", err))
	}
}

// turnDown puts on record that something the user said had no effect.
func (b *Broker) turnDown(ctx context.Context, out actor.Out, rec subjects.AuditRecord, reason string) {
	if err := b.store(ctx, rec, subjects.AuditBefore, subjects.StatusRefused, reason); err != nil { // nothing changes either way
		out.LogError(fmt.Errorf("recording a refused %s: %w", rec.Action, err))
	}
}

// onUnreadableAnswer records an answer that could not even be read.
func (b *Broker) onUnreadableAnswer(ctx context.Context, rej actor.Rejection, out actor.Out) {
	rec := subjects.AuditRecord{ID: out.NewID(), Action: actionDecision}
	if len(rej.Tokens) > 0 && subjects.CheckToken(rej.Tokens[0]) == nil {
		rec.AgentID = rej.Tokens[0]
	}
	b.turnDown(ctx, out, rec, rej.Fault.Code)
}

// fromPerson reads the id of what the user speaks about. Who speaks is what the server wrote.
func fromPerson(from string, tokens []string) (string, *subjects.Fault) {
	if !slices.Contains(subjects.UserAccounts, from) {
		return "", subjects.Faultf(subjects.CodeDenied, "only the user may say this")
	}
	if len(tokens) != 2 || subjects.CheckToken(tokens[1]) != nil {
		return "", subjects.Faultf(subjects.CodeSubject, "this is not an id: letters, digits, - and _ only")
	}
	return tokens[1], nil
}

func (q question) reply(state string, accepted bool) subjects.ApprovalReply {
	return subjects.ApprovalReply{ID: q.ID, Accepted: accepted, State: state, By: q.By, Remember: q.Remember}
}

// or is s, or what to say when s is empty.
func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
