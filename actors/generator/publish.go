package generator

import (
	"context"
	"errors"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/respondent/conversation"
	"conclave/subjects"
)

// storeAnswer stores the answer of state s in the record, with the ids under which it will be published. err is the
// error that the answer is about, nil = none. A record that is too large is stored without the tool messages. When the
// write fails, the record is as before and the error is that of storeRecord.
func (t *turn) storeAnswer(ctx context.Context, s loop.State, err error) error {
	p := &pendingAnswer{
		Response: t.buildResponse(s, err), ResponseID: t.out.NewID(), DialogID: t.out.NewID(),
		Messages: selectCompleteRounds(s.Messages),
	}
	before := t.record
	t.record.Stage, t.record.State, t.record.Publish = stagePublishing, nil, p
	werr := t.storeRecord(ctx, "turn.answer")
	if errors.Is(werr, errRecordTooLarge) { // tool results are in the events too
		p.Messages = nil
		werr = t.storeRecord(ctx, "turn.answer")
	}
	if werr != nil {
		t.record = before
		return werr
	}
	t.emitFault(p.Response.Error)
	t.transition(finish, s.Step)
	return nil
}

// publish publishes the stored answer, then adds it to the conversation: a turn in the conversation has been published.
// It checks ownership before each step and stops at the first error; a retry publishes under the same ids, so that
// nothing is stored twice. Respondent B's answer is not part of the dialog. t.record.Publish must be set.
func (t *turn) publish(ctx context.Context) error {
	p := t.record.Publish
	for _, s := range []struct {
		step string
		do   func(ctx context.Context) error
	}{
		{"response", func(ctx context.Context) error {
			return actor.EmitOnce(ctx, t.out, subjects.ResponseGeneration, p.ResponseID, p.Response)
		}},
		{"dialog", func(ctx context.Context) error {
			r := p.Response
			return actor.EmitOnce(ctx, t.out, subjects.AnswerDialog, p.DialogID, subjects.Dialog{
				SessionID: r.SessionID, QueryID: r.QueryID, Query: r.Query, Answer: r.Answer,
				RespondentID: r.RespondentID,
			})
		}},
		{"conversation", t.storeConversation},
	} {
		if t.g.isRespondentB && s.step == "dialog" {
			continue
		}
		if err := t.checkOwnership(ctx); err != nil {
			return err
		}
		actor.Step(ctx, s.step+"/before")
		stepCtx, cancel := withStoreTimeout(ctx)
		err := s.do(stepCtx)
		cancel()
		if err != nil {
			return err
		}
		actor.Step(ctx, s.step+"/after")
	}
	t.transition(finish, 0)
	return nil
}

// storeConversation adds the turn to the conversation, once, and caches the session. It retries against concurrent
// writers: a summary, a grade, or a process that has taken over the turn.
func (t *turn) storeConversation(ctx context.Context) error {
	added := conversation.NewTurn(t.record.Publish.Response, t.out.Now().UTC())
	added.Messages = t.record.Publish.Messages
	added.Attached = frameAttachments(t.record.Attachments, t.record.Nonce)
	next := func() subjects.Turn {
		added.Grades = t.g.pendingGrades.get(gradeKey(t.sessionID, added.QueryID))
		return added
	}
	c, rev, size, err := conversation.Append(ctx, t.store, t.loaded.conversation, t.loaded.conversationRev, next,
		t.g.cfg.Turns)
	if err != nil {
		return err
	}
	if size > 0 {
		t.shrinkRecord(ctx)
	}
	t.cacheSession(ctx, c, rev, size)
	if size > 0 { // grades that came during the write
		if err := t.g.storeGrades(ctx, t.out, t.sessionID, added.QueryID); err != nil {
			t.out.LogError(err)
		}
	}
	return nil
}

// shrinkRecord makes a large record of a finished turn small: the conversation holds the answer, and the record of a
// session that is never used again would stay. Its failure is only logged.
func (t *turn) shrinkRecord(ctx context.Context) {
	t.resultMu.Lock()
	r := t.record
	t.resultMu.Unlock()
	if data, err := actor.EncodeValue(r); err == nil && len(data) < maxFinishedRecord {
		return
	}
	t.record = turnRecord{QueryID: r.QueryID, Owner: r.Owner, Stage: r.Stage, Try: r.Try, Began: r.Began}
	if err := t.storeRecord(ctx, "turn.tidy"); err != nil {
		t.out.LogError(err)
	}
}

// maxFinishedRecord is how large the record of a finished turn may stay, in bytes.
const maxFinishedRecord = 16 << 10

// cacheSession caches the session for its next turn and starts a summary when the conversation is too long. size is
// that of the encoded conversation in bytes, 0 = start no summary.
func (t *turn) cacheSession(ctx context.Context, c subjects.Conversation, rev uint64, size int) {
	t.g.sessions.put(t.sessionID, sessionState{conversation: c, conversationRev: rev, recordRev: t.rev})
	window := t.role.Window
	if window <= 0 {
		window = agent.DefaultWindow
	}
	t.g.startSummary(ctx, t.out, t.sessionID, c, rev, size, window)
}

// awaitOtherOwner waits until the process that has taken over the turn has finished it, and returns nil. It fails with
// CodeBusy when that takes longer than the timeout of a turn or ctx. Acknowledging the message earlier would take it
// from the other process; returning an error at once would deliver it a third time.
func (t *turn) awaitOtherOwner(ctx context.Context) error {
	t.g.sessions.remove(t.sessionID)
	if !t.machine.isIn(idle) {
		t.transition(fail, 0)
	}
	wait, cancel := context.WithTimeout(ctx, t.g.cfg.Wall)
	defer cancel()
	for {
		c, _, err := conversation.Read(wait, t.store, t.sessionID)
		if err == nil && c.Answered(t.query.QueryID) {
			return nil
		}
		select {
		case <-wait.Done():
			return subjects.Faultf(subjects.CodeBusy, "another generator has taken over this turn")
		case <-time.After(awaitInterval):
		}
	}
}

// awaitInterval is how often awaitOtherOwner polls.
const awaitInterval = 250 * time.Millisecond

// emitFailure logs cause and publishes that there will be no answer, when not even that could be stored in the record.
// It does nothing when an answer is stored: it may have been published, and the session's next turn finishes it.
func (t *turn) emitFailure(ctx context.Context, cause error) {
	if t.record.Publish != nil {
		return
	}
	ctx, cancel := withStoreTimeout(ctx)
	defer cancel()
	t.out.LogError(cause)
	if err := actor.EmitOnce(ctx, t.out, subjects.ResponseGeneration, t.out.NewID(),
		t.buildResponse(loop.State{}, errRetriesExhausted)); err != nil {
		t.out.LogError(err)
	}
}
