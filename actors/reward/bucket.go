package reward

import (
	"context"
	"errors"
	"fmt"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// bucket holds the answers that can be rated and their ratings. It drops keys that are not written for 90 days. Fields
// of an answer are read by others: see [subjects.AnswerPlace].
const bucket = subjects.AnswerBucket

var (
	answers     = actor.Bucket[answer]{Name: bucket}     // by [subjects.AnswerKey]
	lastAnswers = actor.Bucket[lastAnswer]{Name: bucket} // by lastKey
)

// lastKey is the key of the last answer of a session, whose id must be a token.
func lastKey(session string) string { return "last." + session }

// streamPosition is where and when the stream stored a message.
type streamPosition struct {
	Seq    uint64    `json:"seq"`
	Stored time.Time `json:"stored"`
}

// isAfter reports whether p was stored later than q. A stream that was recreated counts from one again, so that a later
// time is enough.
func (p streamPosition) isAfter(q streamPosition) bool {
	return p.Seq > q.Seq || p.Stored.After(q.Stored)
}

// answer is an answer with its rating. It implements [actor.Outbox] for the reward event of the rating.
type answer struct {
	Query      string         `json:"query,omitempty"` // "" in records of earlier versions; see [Reward.updateAnswer]
	Session    string         `json:"session,omitempty"`
	Respondent string         `json:"respondent"` // the account that the server wrote into the subject
	Position   streamPosition `json:"place"`

	Opinion opinion `json:"opinion,omitzero"` // the current rating
	Count   int     `json:"count,omitempty"`  // how often it changed
	EventID string  `json:"event_id,omitempty"`
	Said    bool    `json:"said,omitempty"` // the event of this count is published

	// of the user's latest feedback: older feedback that arrives later changes nothing
	Heard streamPosition `json:"heard,omitzero"`
	Asked []string       `json:"asked,omitempty"` // queries and calls through which the conversation gave an opinion
}

// opinion is a rating of an answer.
type opinion struct {
	Value  float64         `json:"value"`
	Source subjects.Source `json:"source"`
	Thumb  int             `json:"thumb,omitempty"`
	Stars  int             `json:"stars,omitempty"`
	Words  string          `json:"words,omitempty"`
}

// hasUnpublished reports whether the event of the current rating may not have been published.
func (a *answer) hasUnpublished() bool { return a.EventID != "" && !a.Said }

// Pending implements [actor.Outbox]: it returns the reward event of a rating that is not published, else nil. An event
// that is published again after the stream has dropped its id has the same count, and changes nothing for its
// consumers.
func (a *answer) Pending() []actor.Event {
	if !a.hasUnpublished() || a.Query == "" {
		return nil
	}
	o := a.Opinion
	return []actor.Event{actor.NewEvent("event", subjects.RewardEvent, a.EventID, subjects.Reward{
		SessionID: a.Session, QueryID: a.Query, RespondentID: a.Respondent, Value: o.Value, Count: a.Count,
		Source: o.Source, Thumb: o.Thumb, Stars: o.Stars, Words: o.Words,
	}).WithIDs(a.Session, a.Query)}
}

// MarkPublished implements [actor.Outbox].
func (a *answer) MarkPublished() { a.Said = true }

// lastAnswer is the query of a session that was answered last.
type lastAnswer struct {
	Query    string         `json:"query"`
	Position streamPosition `json:"place"`
}

// outcome is the effect of an opinion on an answer.
type outcome int

const (
	ignored  outcome = iota // nothing changes
	recorded                // the record changes, the rating does not
	changed                 // the rating changes and is published
)

// updateAnswer applies decide to the stored answer of a query, stores the result and publishes a changed rating. decide
// may be called again with the version that another process stored; its outcome ignored stores nothing, recorded stores
// without an event. A rating that was stored and perhaps never published is published first. The error is
// [actor.ErrNotFound] when there is no such answer.
func (r *Reward) updateAnswer(ctx context.Context, out actor.Out, query string, decide func(*answer) outcome) (
	result outcome, err error,
) {
	key := subjects.AnswerKey(query)
	stored, err := answers.Load(ctx, out, key)
	if err != nil {
		return ignored, err
	}
	stored.Value.Query = query
	_, err = answers.UpdateFrom(ctx, out, "opinion", key, stored, func(a *answer, found bool) (bool, error) {
		if !found {
			return false, actor.ErrNotFound
		}
		// of an earlier version, and written just now: publish it first, with the next delivery
		if a.Query == "" && a.hasUnpublished() {
			return false, actor.ErrBusy
		}
		a.Query = query
		if result = decide(a); result == changed {
			a.Count, a.EventID, a.Said = a.Count+1, out.NewID(), false
		}
		return result != ignored, nil
	})
	switch {
	case errors.Is(err, actor.ErrNotFound):
		return ignored, err
	case err != nil:
		return ignored, fmt.Errorf("rating the answer to %s: %w", query, err)
	}
	return result, nil
}
