package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/subjects"
)

// MaxFeedback is the largest text of feedback in bytes.
const MaxFeedback = 8 << 10

// RejectedError means that the reward actor did not accept feedback.
type RejectedError struct{ Reason string }

func (e *RejectedError) Error() string { return "feedback rejected: " + e.Reason }

// Rating is stored feedback on an answer.
type Rating struct {
	Feedback subjects.Feedback
	digest   string // SHA-256 of the stored payload; a dead letter names it

	messages chan *nats.Msg
	detach   func()
	events   *Cursor // before the outcome
}

// StoreFeedback stores feedback about the answer to Feedback.QueryID, which must be set; session may be "". Neither the
// query nor the size is checked here. It tries for up to [storeTimeout], also when ctx ends. The returned rating only
// serves [Rating.Outcome]; to wait, use [Client.Rate].
func (c *Client) StoreFeedback(ctx context.Context, session string, f subjects.Feedback) (*Rating, error) {
	data, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encoding feedback: %w", err)
	}
	digest := sha256.Sum256(data)
	out := c.out.WithIDs(session, f.QueryID)
	// Whether it is stored must be known, so the end of ctx does not stop the attempts.
	err = c.publishStored(context.WithoutCancel(ctx), func(ctx context.Context, id string) error {
		return out.PublishOnce(ctx, subjects.UserFeedback.Spec, data, id)
	})
	if err != nil {
		return nil, fmt.Errorf("storing feedback: %w", err)
	}
	return &Rating{Feedback: f, digest: hex.EncodeToString(digest[:])}, nil
}

// Rate stores feedback like [Client.StoreFeedback] and prepares for [Rating.Wait]. It fails without a connection, and
// then nothing is stored. The caller must call [Rating.Close].
func (c *Client) Rate(ctx context.Context, session string, f subjects.Feedback) (*Rating, error) {
	messages := make(chan *nats.Msg, 1<<10)
	detach, err := c.subscribe(ctx, messages, subjects.RewardEvent.LiveSubject(),
		subjects.DeadLetterEvent.LiveSubject())
	if err != nil {
		return nil, err
	}
	events, stop, err := c.openFeed(ctx)
	if err != nil {
		detach()
		return nil, err
	}
	r, err := c.StoreFeedback(ctx, session, f)
	if err != nil {
		detach()
		stop()
		return nil, err
	}
	r.messages, r.events, r.detach = messages, events, func() { detach(); stop() }
	return r, nil
}

// Close ends the subscriptions of [Client.Rate]; a rating of [Client.StoreFeedback] has none.
func (r *Rating) Close() {
	if r.detach != nil {
		r.detach()
	}
}

// Wait waits for the outcome: the reward that the feedback is counted as, or a [*RejectedError]. Both are nil when ctx
// ends first: the feedback is stored; it is counted when the reward actor reads it, or never when it repeats the last
// one. Errors of the event log are retried until then. r must come from [Client.Rate].
func (r *Rating) Wait(ctx context.Context) (*subjects.Reward, error) {
	for {
		e, ok, more, _ := r.events.Next(ctx)
		if ok {
			if reward, err := r.Outcome(e); reward != nil || err != nil {
				return reward, err
			}
			continue
		}
		select {
		case <-more:
		case <-r.messages: // only a hint: the outcome and its author are read from the log
			r.events.Feed.WakeUp()
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// Outcome reads the outcome of this feedback from an event of the event log: the reward that it is counted as, or a
// [*RejectedError] made of a dead letter with its digest. Both results are nil when the event is about something else,
// also when it is the reward of earlier feedback with another thumb or stars on the same answer.
func (r *Rating) Outcome(e Event) (*subjects.Reward, error) {
	if e.From != accountReward || e.Query != r.Feedback.QueryID {
		return nil, nil
	}
	if v, _, ok := DecodeAs(e, subjects.RewardEvent); ok {
		f := r.Feedback
		if v.QueryID != f.QueryID || v.Source != subjects.RewardUser || f.Thumb != 0 && v.Thumb != f.Thumb ||
			f.Stars != 0 && v.Stars != f.Stars {
			return nil, nil
		}
		return &v, nil
	}
	d, _, ok := DecodeAs(e, subjects.DeadLetterEvent)
	if !ok || d.SHA256 != r.digest {
		return nil, nil
	}
	if _, ok := subjects.Match(subjects.UserFeedback.Received, d.Subject); !ok {
		return nil, nil
	}
	if d.Reason == "" {
		d.Reason = d.Code
	}
	return nil, &RejectedError{d.Reason}
}

// HasReward reports whether a reward actor answers a ping within a second. It is false also when the ping fails.
func (c *Client) HasReward(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	pings, _ := c.Ping(ctx, accountReward) // an actor that does not answer does not run
	return len(pings) > 0
}
