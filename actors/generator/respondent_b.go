package generator

import (
	"context"
	"fmt"
	"slices"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// Respondent B answers the questions that were put to the one whom the user hears, for whoever compares the two. It goes
// on from what the user was told, not from what it would have said. Nothing of it reaches the user but the one event
// that holds its answer: no deltas, no thinking, no dialog, no word of what went wrong. Nobody waits for it.

// respondentBTurns is how much of its own answers respondent B keeps: enough to know a question that comes again.
const respondentBTurns = 3

// forRespondentB is c for respondent B. What is not streamed can be begun anew by the model actor when a user waits for the model.
func (c Config) forRespondentB() Config {
	c.Stream, c.CompactAt, c.Turns, c.Grades = false, 0, respondentBTurns, Grades{}
	return c
}

// isTooOld reports whether a question is to be left alone: after a week without it, respondent B does not answer the week.
func (g *Generator) isTooOld(in actor.Msg[subjects.Query], out actor.Out) bool {
	return g.isRespondentB && out.Now().Sub(in.StoredAt) > g.cfg.RespondentB.MaxAge
}

// userConversation is what the user was told before the question of respondent B's turn. own is what respondent B has answered itself.
// Without what was told it answers from the question alone, and says so.
func (t *turn) userConversation(ctx context.Context, own subjects.Conversation) subjects.Conversation {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	c, _, err := readConversation(ctx, t.out.Store(subjects.StateBucket(subjects.Generator)), t.sessionID)
	if err != nil {
		t.out.LogError(fmt.Errorf("reading what the user was told: %w", err))
		t.addNote(subjects.NoteNoHistory, "what was said before could not be read, so this answer knows nothing of it")
		return subjects.Conversation{SessionID: t.sessionID}
	}
	c, ok := conversationBefore(c, t.query.QueryID)
	if !ok {
		t.addNote(subjects.NoteNoHistory, "what was said before is summarized together with the answer to this question, so this answer knows nothing of it")
		return subjects.Conversation{SessionID: t.sessionID}
	}
	if n := len(own.Turns); n > 0 && !c.Answered(own.Turns[n-1].QueryID) {
		t.addNote(subjects.NoteNoHistory, "the question before this one was not answered yet, so this answer does not know what was said to it")
	}
	return c
}

// conversationBefore is a conversation up to a question, which may not be part of it yet. It reports false when the answer to the
// question can no longer be told from what was said before.
func conversationBefore(c subjects.Conversation, query string) (subjects.Conversation, bool) {
	if slices.Contains(c.Past, query) {
		return c, false
	}
	at := slices.IndexFunc(c.Turns, func(t subjects.Turn) bool { return t.QueryID == query })
	if at < 0 {
		return c, true
	}
	c.Turns = c.Turns[:at:at]
	if c.Summarized+c.Dropped == 0 {
		c.Labels = nil // of the turns that are left; those of all there ever were are of the answer too
	}
	return c, true
}
