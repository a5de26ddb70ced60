package generator

import (
	"context"
	"errors"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/loop"
	"conclave/pkg/text"
	"conclave/subjects"
)

// storeAnswer writes the answer down, with the ids under which it will be said. err is what went wrong, if anything did.
func (t *turn) storeAnswer(ctx context.Context, s loop.State, err error) error {
	p := &pendingAnswer{Response: t.buildResponse(s, err), ResponseID: t.out.NewID(), DialogID: t.out.NewID(), Messages: completeRounds(s.Messages)}
	before := t.rec
	t.rec.Stage, t.rec.State, t.rec.Publish = stagePublishing, nil, p
	werr := t.storeRecord(ctx, "turn.answer")
	if errors.Is(werr, errRecordTooLarge) { // what the tools returned is in the events; the answer matters
		p.Messages = nil
		werr = t.storeRecord(ctx, "turn.answer")
	}
	if werr != nil {
		t.rec = before
		return werr
	}
	t.emitFault(p.Response.Error)
	t.transition(finish, s.Step)
	return nil
}

// publish says the answer and keeps it, in this order: what is in the conversation has been said.
func (t *turn) publish(ctx context.Context) error {
	p := t.rec.Publish
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
				SessionID: r.SessionID, QueryID: r.QueryID, Query: r.Query, Answer: r.Answer, RespondentID: r.RespondentID,
			})
		}},
		{"conversation", t.storeConversation},
	} {
		if t.g.isRespondentB && s.step == "dialog" {
			continue // what nobody was told is no part of the dialog
		}
		if err := t.checkOwnership(ctx); err != nil {
			return err
		}
		t.g.at(s.step + "/before")
		ctx, cancel := withStoreTimeout(ctx)
		err := s.do(ctx)
		cancel()
		if err != nil {
			return err
		}
		t.g.at(s.step + "/after")
	}
	t.transition(finish, 0)
	return nil
}

// storeConversation puts the turn into the conversation. Somebody else may have written there: a summary, or the one who took the
// turn over.
func (t *turn) storeConversation(ctx context.Context) error {
	r := t.rec.Publish.Response
	said := subjects.Turn{
		QueryID: r.QueryID, Query: r.Query, Messages: t.rec.Publish.Messages, Answer: r.Answer, Model: text.Clip(r.Model, 200),
		Partial: r.Partial, Labels: r.Labels, Time: t.out.Now().UTC(),
	}
	if r.Error != nil {
		said.Error = r.Error.Code
	}
	c, rev := t.loaded.conversation, t.loaded.conversationRev
	for range 8 {
		if c.Answered(said.QueryID) {
			return t.cacheSession(c, rev, 0)
		}
		said.Grades = t.g.pendingGrades.get(gradeKey(t.sessionID, said.QueryID))
		next, data, err := appendTurn(c, said, t.g.cfg.Turns)
		if err != nil {
			return err
		}
		now, err := t.store.Put(ctx, subjects.ConversationKey(t.sessionID), data, rev)
		switch {
		case err == nil:
			t.shrinkRecord(ctx)
			if err := t.cacheSession(next, now, len(data)); err != nil {
				return err
			}
			if err := t.g.storeGrades(ctx, t.out, t.sessionID, said.QueryID); err != nil { // what was heard while it was written
				t.out.LogError(err)
			}
			return nil
		case !errors.Is(err, actor.ErrChanged):
			return err
		}
		if c, rev, err = readConversation(ctx, t.store, t.sessionID); err != nil {
			return err
		}
	}
	return subjects.Faultf(subjects.CodeBusy, "the conversation changes all the time; it is tried again later")
}

// shrinkRecord makes a large record of a finished turn small: the conversation has it now, and a session that is never used again
// would keep it twice for ever. That it fails changes nothing.
func (t *turn) shrinkRecord(ctx context.Context) {
	if t.size < maxFinishedRecord {
		return
	}
	t.rec = turnRecord{QueryID: t.rec.QueryID, Owner: t.rec.Owner, Stage: t.rec.Stage, Try: t.rec.Try, Began: t.rec.Began}
	if err := t.storeRecord(ctx, "turn.tidy"); err != nil {
		t.out.LogError(err)
	}
}

// maxFinishedRecord is how large a record may stay when its turn is over, in bytes.
const maxFinishedRecord = 16 << 10

// cacheSession remembers the session for its next turn.
func (t *turn) cacheSession(c subjects.Conversation, rev uint64, size int) error {
	t.g.sessions.put(t.sessionID, sessionState{conversation: c, conversationRev: rev, recordRev: t.rev})
	window := t.role.Window
	if window <= 0 {
		window = defaultWindow
	}
	t.g.startSummary(t.out, t.sessionID, c, rev, size, window)
	return nil
}

// awaitOtherOwner waits for the one who has taken over the turn to finish it. The message must be neither acknowledged, which
// would take it from the other, nor given back, which would hand it out a third time.
func (t *turn) awaitOtherOwner(ctx context.Context) error {
	t.g.sessions.remove(t.sessionID)
	if !t.machine.isIn(idle) {
		t.transition(fail, 0)
	}
	wait, cancel := context.WithTimeout(ctx, t.g.cfg.Wall)
	defer cancel()
	for {
		c, _, err := readConversation(wait, t.store, t.sessionID)
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

// awaitInterval is how often the one who lost a turn looks whether it is finished.
const awaitInterval = 250 * time.Millisecond

// emitFailure tells the caller that no answer will come, when not even that could be written down.
func (t *turn) emitFailure(ctx context.Context, cause error) {
	if t.rec.Publish != nil {
		return // it may have been said; the next turn of the session will see to the rest
	}
	ctx, cancel := withStoreTimeout(ctx)
	defer cancel()
	t.out.LogError(cause)
	if err := actor.EmitOnce(ctx, t.out, subjects.ResponseGeneration, t.out.NewID(), t.buildResponse(loop.State{}, errRetriesExhausted)); err != nil {
		t.out.LogError(err)
	}
}
