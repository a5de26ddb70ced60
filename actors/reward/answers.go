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

// onResponse takes an answer into the book. One that was cut or failed is there too: that is what a thumb down is for. Who
// gave it is what the server wrote into the subject.
func (r *Reward) onResponse(ctx context.Context, in actor.Msg[subjects.Response], out actor.Out) error {
	query := cmp.Or(in.Body.QueryID, in.Query)
	if !slices.Contains(subjects.VisibleRespondents, in.From) || subjects.CheckToken(query) != nil {
		return nil // the user never saw it, or nobody could ever say which one is meant
	}
	a := answer{Session: in.Body.SessionID, Respondent: in.From, Place: place{in.Seq, in.StoredAt.UTC()}}
	if subjects.CheckToken(a.Session) != nil {
		a.Session = in.Session // a token, or nothing
	}
	is, err := r.enter(ctx, out, query, a)
	if err != nil {
		return fmt.Errorf("taking the answer to %s into the book: %w", query, err)
	}
	if a.Session == "" || is.Session == a.Session && is.Respondent != a.Respondent {
		return nil // no session, or somebody else answers what was answered
	}
	// One whose id was used in another session is the last of its own all the same: else an older answer would be rated.
	if err := r.follow(ctx, out, query, a); err != nil {
		return fmt.Errorf("writing down the last answer of session %s: %w", a.Session, err)
	}
	return nil
}

// enter writes an answer down unless there is one, and returns the one that is there: the first holds, and whoever answers
// again takes no reward from it.
func (r *Reward) enter(ctx context.Context, out actor.Out, query string, a answer) (answer, error) {
	store := out.Store(bucket)
	for range rounds {
		is, _, err := get[answer](ctx, store, answerKey(query))
		if !errors.Is(err, actor.ErrNotFound) {
			return is, err
		}
		_, err = r.put(ctx, store, "answer", answerKey(query), a, 0)
		if !errors.Is(err, actor.ErrChanged) {
			return a, err
		}
	}
	return a, errBusy
}

// follow makes a question the last one of its session, unless a later one is. A tool call that died between writing down
// and saying is behind the question before: the answer that follows it sees it through.
func (r *Reward) follow(ctx context.Context, out actor.Out, query string, a answer) error {
	store := out.Store(bucket)
	for range rounds {
		was, rev, err := get[lastAnswer](ctx, store, lastKey(a.Session))
		if err != nil && !errors.Is(err, actor.ErrNotFound) {
			return err
		}
		if err == nil {
			if !a.Place.after(was.Place) {
				return nil
			}
			nothing := func(*answer) effect { return ignored }
			if _, err := r.change(ctx, out, was.Query, nothing); err != nil && !errors.Is(err, actor.ErrNotFound) {
				return err
			}
		}
		_, err = r.put(ctx, store, "last", lastKey(a.Session), lastAnswer{query, a.Place}, rev)
		if !errors.Is(err, actor.ErrChanged) {
			return err
		}
	}
	return errBusy
}
