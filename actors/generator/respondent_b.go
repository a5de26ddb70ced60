package generator

import (
	"context"
	"fmt"
	"slices"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/respondent/conversation"
	"conclave/subjects"
)

// Respondent B answers the same questions as the generator, for comparison. Its turns continue the conversation that
// the user saw, not its own. It publishes nothing but the one event with its answer: no deltas, no thinking, no dialog,
// no notes, no errors. Nobody waits for it.

// respondentBTurns is how many of its own turns respondent B keeps: enough to recognize duplicates.
const respondentBTurns = 3

// forRespondentB is c for respondent B. It does not stream: the model actor can preempt and restart a request that is
// not streamed.
func (c Config) forRespondentB() Config {
	c.Stream, c.CompactAt, c.Turns, c.Grades = false, 0, respondentBTurns, Grades{}
	return c
}

// isTooOld reports whether respondent B skips a question: after an outage it does not answer the whole backlog.
func (g *Generator) isTooOld(in actor.Msg[subjects.Query], out actor.Out) bool {
	return g.isRespondentB && out.Now().Sub(in.StoredAt) > g.cfg.RespondentB.MaxAge
}

// userConversation is the user's conversation before the question of respondent B's turn. own is respondent B's own.
// When the user's conversation cannot be read or cut before the question, it is empty, with a note: respondent B
// answers from the question alone.
func (t *turn) userConversation(ctx context.Context, own subjects.Conversation) subjects.Conversation {
	ctx, cancel := context.WithTimeout(ctx, agent.LookupTimeout)
	defer cancel()
	c, _, err := conversation.Read(ctx, t.Out.Store(subjects.StateBucket(subjects.Generator)), t.Session)
	if err != nil {
		t.Out.LogError(fmt.Errorf("reading the user's conversation: %w", err))
		t.Note(subjects.NoteNoHistory, "the conversation could not be read; this answer does not use it")
		return subjects.Conversation{SessionID: t.Session}
	}
	c, ok := cutConversation(c, t.Query.QueryID)
	if !ok {
		t.Note(subjects.NoteNoHistory, "the conversation is already summarized together with the answer to this "+
			"question; this answer does not use it")
		return subjects.Conversation{SessionID: t.Session}
	}
	if n := len(own.Turns); n > 0 && !c.Answered(own.Turns[n-1].QueryID) {
		t.Note(subjects.NoteNoHistory, "the previous question was not answered yet; this answer does not use its "+
			"answer")
	}
	return c
}

// cutConversation returns a conversation up to a question, which may not be part of it yet. It reports false when the
// turn of the question was summarized or dropped, so that it cannot be separated from the rest.
func cutConversation(c subjects.Conversation, query string) (subjects.Conversation, bool) {
	if slices.Contains(c.Past, query) {
		return c, false
	}
	at := slices.IndexFunc(c.Turns, func(t subjects.Turn) bool { return t.QueryID == query })
	if at < 0 {
		return c, true
	}
	c.Turns = c.Turns[:at:at]
	if c.Summarized+c.Dropped == 0 {
		c.Labels = nil // they include those of the answer; the remaining turns have their own
	}
	return c, true
}
