package generator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/attachment"
	"conclave/pkg/respondent/conversation"
	"conclave/subjects"
)

// onSessionChange deletes, summarizes or branches a stored conversation for the user. It rejects an unknown change and
// an invalid session, and fails when there is no such conversation, while a question of the session is being answered,
// and when another write came between; nothing is changed then.
func (g *Generator) onSessionChange(ctx context.Context, in actor.Msg[subjects.SessionChange],
	out actor.Out,
) (subjects.SessionChanged, error) {
	q := in.Body
	if subjects.CheckToken(q.SessionID) != nil {
		return subjects.SessionChanged{}, subjects.Faultf(subjects.CodeMalformed, "invalid session id")
	}
	out = out.WithIDs(q.SessionID, "")
	g.sessions.remove(q.SessionID) // the stored state decides, not the cached one
	s, err := g.loadSession(ctx, out.Store(g.Bucket.Name), q.SessionID)
	if err != nil && !errors.Is(err, actor.ErrUnreadable) {
		return subjects.SessionChanged{}, err
	}
	if s.conversationRev == 0 || s.conversation.Deleted {
		return subjects.SessionChanged{}, subjects.Faultf(subjects.CodeMalformed, "there is no conversation of "+
			"session %s", q.SessionID)
	}
	if id := s.record.QueryID; id != "" && !s.conversation.Answered(id) &&
		out.Now().Sub(s.record.Written) < subjects.TurnAbandoned {
		return subjects.SessionChanged{}, subjects.Faultf(subjects.CodeBusy, "a question of this session is being "+
			"answered: wait for the answer, or cancel it")
	}
	n := 0
	switch q.Change {
	case subjects.SessionDelete:
		n, err = g.deleteConversation(ctx, out, q.SessionID, s)
	case subjects.SessionCompact:
		n, err = g.compactConversation(ctx, out, q.SessionID, s)
	case subjects.SessionBranch, subjects.SessionSwitch:
		n, err = g.branchConversation(ctx, out, q, s)
	default:
		err = subjects.Faultf(subjects.CodeMalformed, "unknown change: use %s, %s, %s or %s", subjects.SessionDelete,
			subjects.SessionCompact, subjects.SessionBranch, subjects.SessionSwitch)
	}
	if errors.Is(err, actor.ErrChanged) {
		err = subjects.Faultf(subjects.CodeBusy, "the session was changed meanwhile: try again")
	}
	return subjects.SessionChanged{SessionID: q.SessionID, Change: q.Change, Turns: n}, err
}

// deleteConversation overwrites the attached images, the archived turns, the record of the last turn and the
// conversation, of which only the query ids stay. It returns the number of turns. The record is written first: a turn
// that begins meanwhile fails at it, here or in another process.
func (g *Generator) deleteConversation(ctx context.Context, out actor.Out, session string, s sessionState) (int,
	error,
) {
	c := s.conversation
	n := len(c.Turns) + c.Summarized + c.Dropped
	store := out.Store(g.Bucket.Name)
	g.summaries.cancel(session)
	// first: after the conversation is deleted there is no second try
	if err := attachment.Delete(ctx, out, session); err != nil {
		return 0, err
	}
	if err := conversation.EraseArchive(ctx, store, session, conversation.EveryDeletion); err != nil {
		return 0, err
	}
	if s.recordRev != 0 {
		data, err := actor.EncodeValue(turnRecord{})
		if err != nil {
			return 0, err
		}
		if _, err := store.Put(ctx, turnKey(session), data, s.recordRev); err != nil {
			return 0, err
		}
	}
	for {
		data, err := conversation.Erase(c, out.Now().UTC())
		if err != nil {
			return 0, err
		}
		_, err = store.Put(ctx, subjects.ConversationKey(session), data, s.conversationRev)
		if err == nil {
			break
		}
		// A grade of the last answer may be stored at any time.
		fresh, rev, rerr := conversation.Read(ctx, store, session)
		if !errors.Is(err, actor.ErrChanged) || rerr != nil || !sameTurns(c, fresh) {
			return 0, err
		}
		c, s.conversationRev = fresh, rev
	}
	g.sessions.remove(session)
	g.emitSessionNote(out, session, "", subjects.NoteDeleted, fmt.Sprintf("%d turns were deleted by the user", n))
	return n, nil
}

// compactConversation replaces all turns but the last by a summary, and returns their number; 0 when there is only one.
func (g *Generator) compactConversation(ctx context.Context, out actor.Out, session string, s sessionState) (int,
	error,
) {
	n := len(s.conversation.Turns) - 1
	if n < 1 {
		return 0, nil
	}
	return n, g.summarizeTurns(ctx, out, session, s.conversation, s.conversationRev, n,
		g.models.Role(ctx, out, subjects.RoleAssistant).Window)
}

// branchConversation sets the turns from a question on aside, or puts a branch in the place of the turns that are there
// now, and returns the number of turns that were set aside. It rejects a question or branch that the conversation does
// not have in this place, also because the turns before it were summarized or dropped.
func (g *Generator) branchConversation(ctx context.Context, out actor.Out, q subjects.SessionChange,
	s sessionState,
) (int, error) {
	c := s.conversation
	index := func(query string) int {
		return slices.IndexFunc(c.Turns, func(t subjects.Turn) bool { return t.QueryID == query })
	}
	at, next := index(q.QueryID), []subjects.Turn(nil)
	if q.Change == subjects.SessionSwitch {
		i := slices.IndexFunc(c.Branches, func(b subjects.Branch) bool { return b.Turns[0].QueryID == q.QueryID })
		if i < 0 {
			return 0, subjects.Faultf(subjects.CodeMalformed, "there is no such branch in session %s", q.SessionID)
		}
		b := c.Branches[i]
		next, at, c.Branches = b.Turns, 0, slices.Delete(slices.Clone(c.Branches), i, i+1)
		if b.After != "" {
			if at = index(b.After) + 1; at == 0 {
				at = -1
			}
		}
	}
	if at < 0 || at == 0 && c.Summarized+c.Dropped > 0 {
		return 0, subjects.Faultf(subjects.CodeMalformed, "the turn is not in this branch of the session, or the "+
			"turns before it were summarized")
	}
	n := len(c.Turns) - at
	c = conversation.SetAside(c, at)
	c.Turns, c.Updated = append(c.Turns, next...), out.Now().UTC()
	data, err := actor.EncodeValue(c)
	if err == nil {
		_, err = out.Store(g.Bucket.Name).Put(ctx, subjects.ConversationKey(q.SessionID), data, s.conversationRev)
	}
	if err != nil {
		return 0, err
	}
	g.sessions.remove(q.SessionID)
	g.emitSessionNote(out, q.SessionID, "", subjects.NoteBranched, fmt.Sprintf("%d turns were set aside by the user",
		n))
	return n, nil
}

// emitSessionNote publishes a note about a session, or about an answered question of it.
func (g *Generator) emitSessionNote(out actor.Out, session, query, code, words string) {
	agent.EmitState(out.WithIDs(session, query), subjects.AgentState{
		SessionID: session, QueryID: query, To: string(idle), Code: code, Words: words,
	}, g.Account)
}
