package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/pkg/client"
	"conclave/subjects"
)

// FeedbackRequest is the body of POST /feedback. It names a question, or a session whose last answer is meant.
type FeedbackRequest struct {
	QueryID   string `json:"query_id"`
	SessionID string `json:"session_id"`
	Thumb     *int   `json:"thumb"`
	Stars     *int   `json:"stars"`
	Words     string `json:"words"`
}

// maxWords is the largest text, in bytes.
const maxWords = client.MaxFeedback

const (
	outcomeTimeout  = 3 * time.Second // how long POST /feedback waits for the reward
	feedbackTimeout = time.Minute     // of the whole request
)

// onFeedback stores the user's rating of the answer to query_id, or of the last answer of session_id. It responds with
// 200 and the reward when that is known within outcomeTimeout, with 404 when the reward actor rejects the rating, and
// otherwise with 202: the rating is stored, and counted when the reward actor reads it.
func (g *Gateway) onFeedback(ctx context.Context, _ *http.Request, in FeedbackRequest) (any, error) {
	body, err := in.validate()
	if err == nil && body.QueryID == "" {
		body.QueryID, err = g.findLastAnswer(ctx, in.SessionID)
	}
	if err != nil {
		return nil, err
	}
	if in.SessionID == "" {
		q, _ := g.questions.find(body.QueryID)
		in.SessionID = q.session
	}
	cur := g.events.OpenCursor(ctx)
	defer cur.Close()
	rating, err := g.client.StoreFeedback(ctx, in.SessionID, body)
	if err != nil {
		return nil, storeFault(g.out, subjects.UserFeedback.Name, err)
	}
	got, err := g.waitForOutcome(ctx, cur, rating)
	if got != nil {
		return object{{"query_id", body.QueryID}, {"state", "counted"}, {"value", got.Value}, {"count", got.Count}}, nil
	}
	return accepted{object{{"query_id", body.QueryID}, {"state", "stored"}}}, err
}

// validate converts a request to the payload. It rejects a request with both ids, an invalid id or none, a thumb that
// is not -1 or 1, stars beyond 1 to 5, words beyond maxWords bytes, and a request without thumb, stars and words. The
// query id is "" when the session names the answer.
func (in FeedbackRequest) validate() (body subjects.Feedback, err error) {
	body = subjects.Feedback{QueryID: in.QueryID, Words: strings.TrimSpace(in.Words)}
	bad := func(format string, a ...any) (subjects.Feedback, error) {
		return body, malformedf(format, a...)
	}
	switch {
	case in.QueryID != "" && in.SessionID != "":
		return bad("name the query_id of an answer, or the session_id whose last answer is meant, not both")
	case in.SessionID != "":
		err = checkID("session_id", in.SessionID)
	default:
		err = checkID("query_id", in.QueryID)
	}
	switch {
	case err != nil:
		return body, err
	case in.Thumb != nil && *in.Thumb != 1 && *in.Thumb != -1:
		return bad("thumb is -1 or 1")
	case in.Stars != nil && (*in.Stars < 1 || *in.Stars > 5):
		return bad("stars are 1 to 5")
	case len(body.Words) > maxWords || !utf8.ValidString(body.Words):
		return bad("words: a text of at most %d KB", maxWords>>10)
	case in.Thumb == nil && in.Stars == nil && body.Words == "":
		return bad("empty feedback: give thumb, stars or words")
	}
	if in.Thumb != nil {
		body.Thumb = *in.Thumb
	}
	if in.Stars != nil {
		body.Stars = *in.Stars
	}
	return body, nil
}

// findLastAnswer returns the query id of the last answer of a session. A session that is unknown or has no turns is a
// problem 404.
func (g *Gateway) findLastAnswer(ctx context.Context, session string) (string, error) {
	c, err := g.client.Session(ctx, session)
	switch {
	case errors.Is(err, client.ErrNotFound) || err == nil && len(c.Turns) == 0:
		return "", notFoundf("there is no answer in the session %s; GET /sessions lists the sessions", session)
	case err != nil:
		return "", err
	}
	return c.Turns[len(c.Turns)-1].QueryID, nil
}

// waitForOutcome waits at most outcomeTimeout for the outcome of feedback: its reward, or a problem 404 when it is
// rejected. Nil and no error mean that the outcome is not known: the wait ended, too many requests wait already, or the
// feedback repeats an earlier rating; it is stored in any case. cur must be at the position before the feedback was
// stored.
func (g *Gateway) waitForOutcome(ctx context.Context, cur *client.Cursor, rating *client.Rating) (*subjects.Reward,
	error,
) {
	leave, err := acquireSlot(g.slots.waiting, "questions are waiting")
	if err != nil {
		return nil, nil
	}
	defer leave()
	ctx, cancel := g.withTimeout(ctx, g.outcomeTimeout)
	defer cancel()
	for {
		ev, err := cur.Wait(ctx)
		if err != nil {
			return nil, nil
		}
		reward, err := rating.Outcome(ev)
		var rejected *client.RejectedError
		switch {
		case errors.As(err, &rejected):
			return nil, notFoundf("%s", rejected.Reason)
		case reward != nil:
			return reward, nil
		}
	}
}
