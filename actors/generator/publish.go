package generator

import (
	"cmp"
	"context"
	"errors"

	"conclave/pkg/agent"
	"conclave/pkg/respondent"
	"conclave/pkg/respondent/conversation"
	"conclave/subjects"
)

// Respond implements [respondent.Work].
func (t *turn) Respond(_ context.Context, cause error) (respondent.Pending, func(r *turnRecord), error) {
	s := t.start()
	if errors.Is(cause, agent.ErrCanceled) {
		s.Partial, cause = true, nil
	}
	return respondent.Pending{Response: t.buildResponse(s, cause), Messages: selectCompleteRounds(s.Messages)},
		func(r *turnRecord) { r.Stage, r.State = stagePublishing, nil }, nil
}

// Append implements [respondent.Work]. Concurrent writers are a summary, a grade, or a process that has taken over the
// turn.
func (t *turn) Append(ctx context.Context, p respondent.Pending) (err error) {
	r := t.Record()
	added := conversation.NewTurn(p.Response, t.Out.Now().UTC())
	added.Messages, added.Attached = p.Messages, agent.FrameAttachments(r.Attachments, r.Nonce)
	next := func() subjects.Turn {
		added.Grades = t.g.pendingGrades.get(gradeKey(t.Session, added.QueryID))
		return added
	}
	t.loaded.conversation, t.loaded.conversationRev, t.size, err = conversation.Append(ctx,
		t.Out.Store(t.g.Bucket.Name), t.loaded.conversation, t.loaded.conversationRev, next, t.g.cfg.Turns)
	return err
}

// Enter implements [respondent.Work].
func (t *turn) Enter(ctx context.Context, s respondent.Stage) {
	switch s {
	case respondent.Claimed:
		t.transition(receiveQuery, 0)
		if r := t.Record(); r.Stalled > 0 {
			t.EmitNote(subjects.NoteResumed, "resumed after an interruption; it was "+r.Stage)
		}
	case respondent.Answered:
		t.transition(finish, t.start().Step)
	case respondent.Finished:
		t.transition(finish, 0)
		t.cacheSession(ctx)
	case respondent.Duplicate:
		t.EmitNote(subjects.NoteDuplicate, "duplicate: this question was answered before")
	case respondent.Failed:
		t.transition(fail, 0)
	}
}

// cacheSession caches the session for its next turn, starts a summary when the conversation is too long, and stores
// grades that came while the turn was added to it.
func (t *turn) cacheSession(ctx context.Context) {
	t.loaded.recordRev = t.Revision()
	t.g.sessions.put(t.Session, t.loaded)
	window := cmp.Or(max(0, t.role.Window), agent.DefaultWindow)
	t.g.startSummary(ctx, t.Out, t.Session, t.loaded.conversation, t.loaded.conversationRev, t.size, window)
	if t.size == 0 {
		return
	}
	if err := t.g.storeGrades(ctx, t.Out, t.Session, t.Query.QueryID); err != nil {
		t.Out.LogError(err)
	}
}
