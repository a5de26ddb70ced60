package reward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// onResponse stores an answer that the user sees, so that it can be rated. Incomplete and failed answers are stored
// too. The respondent is the account that the server wrote into the subject. Answers without a valid query id are
// ignored: they could not be named in feedback.
func (r *Reward) onResponse(ctx context.Context, in actor.Msg[subjects.Response], out actor.Out) error {
	query := cmp.Or(in.Body.QueryID, in.Query)
	if !slices.Contains(subjects.VisibleRespondents, in.From) || subjects.CheckToken(query) != nil {
		return nil
	}
	a := answer{
		Query: query, Session: in.Body.SessionID, Respondent: in.From,
		Position: streamPosition{in.Seq, in.StoredAt.UTC()},
	}
	if subjects.CheckToken(a.Session) != nil {
		a.Session = in.Session // a token, or ""
	}
	stored, err := answers.Update(ctx, out, "answer", subjects.AnswerKey(query),
		func(v *answer, found bool) (bool, error) {
			if found { // the first answer stands: a second one does not take its rating
				return false, nil
			}
			*v = a
			return true, nil
		})
	if err != nil {
		return fmt.Errorf("storing the answer to %s: %w", query, err)
	}
	if is := stored.Value; a.Session == "" || is.Session == a.Session && is.Respondent != a.Respondent {
		return nil // no session, or another respondent to an answered query
	}
	// An answer whose query id was used in another session is still the last one of its own: else an older one would be
	// rated.
	if err := r.updateLastAnswer(ctx, out, query, a); err != nil {
		return fmt.Errorf("storing the last answer of session %s: %w", a.Session, err)
	}
	return nil
}

// updateLastAnswer makes query the last answered one of its session, unless a later one in the stream is. It first
// publishes a rating of the answer before that a crashed tool call left unpublished. a.Session must not be "".
func (r *Reward) updateLastAnswer(ctx context.Context, out actor.Out, query string, a answer) error {
	_, err := lastAnswers.Update(ctx, out, "last", lastKey(a.Session),
		func(last *lastAnswer, found bool) (bool, error) {
			if found {
				if !a.Position.isAfter(last.Position) {
					return false, nil
				}
				ignore := func(*answer) outcome { return ignored }
				if _, err := r.updateAnswer(ctx, out, last.Query, ignore); err != nil &&
					!errors.Is(err, actor.ErrNotFound) {
					return false, err
				}
			}
			*last = lastAnswer{query, a.Position}
			return true, nil
		})
	return err
}
