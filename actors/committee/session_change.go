package committee

import (
	"context"
	"errors"

	"conclave/pkg/actor"
	"conclave/pkg/respondent/conversation"
	"conclave/subjects"
)

// onSessionChange deletes the committee's turns of a session for the user; their query ids stay, so that no question is
// answered twice. It rejects any other change and an invalid session. A session without turns is no error. It fails
// with CodeBusy when a turn is stored meanwhile.
func (c *Committee) onSessionChange(ctx context.Context, in actor.Msg[subjects.SessionChange],
	out actor.Out,
) (none subjects.SessionChanged, err error) {
	q := in.Body
	if subjects.CheckToken(q.SessionID) != nil || q.Change != subjects.SessionDelete {
		return none, subjects.Faultf(subjects.CodeMalformed, "a deletion needs a valid session id; the committee "+
			"makes no other change")
	}
	store := out.Store(subjects.StateBucket(name))
	conv, rev, err := conversation.Read(ctx, store, q.SessionID)
	n := len(conv.Turns) + conv.Dropped
	if err != nil || n == 0 {
		return subjects.SessionChanged{SessionID: q.SessionID, Change: q.Change}, err
	}
	if err := conversation.EraseArchive(ctx, store, q.SessionID, conversation.EveryDeletion); err != nil {
		return none, err
	}
	data, err := conversation.Erase(conv, out.Now().UTC())
	if err != nil {
		return none, err
	}
	_, err = store.Put(ctx, subjects.ConversationKey(q.SessionID), data, rev)
	if errors.Is(err, actor.ErrChanged) {
		err = subjects.Faultf(subjects.CodeBusy, "the session was changed meanwhile: try again")
	}
	return subjects.SessionChanged{SessionID: q.SessionID, Change: q.Change, Turns: n}, err
}
