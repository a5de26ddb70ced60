package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// A session id is no secret: the event log shows it to every account. What the user allowed for a session therefore
// holds only for the queries that the router, its only writer, stored in TURNS, and only for the accounts that consume
// TURNS.

// isServedQuery reports whether the router stored the query as a message of the session and the account is the one that
// answers it. It reads the session's last message, then up to maxTurns from the first; a query beyond them
// is not served. It is false without a session or query. On an error the caller must deny.
func isServedQuery(ctx context.Context, out actor.Out, account, session, query string) (bool, error) {
	_, served, err := findServedTurn(ctx, out, account, session, query)
	return served, err
}

// findServedTurn is [isServedQuery], and returns the stored message of the query.
func findServedTurn(ctx context.Context, out actor.Out, account, session, query string) (m actor.StoredMessage,
	served bool, err error,
) {
	if !subjects.ConsumesTurns(account) || session == "" || query == "" {
		return m, false, nil
	}
	filter := "turn.*." + session
	q, last, found, err := readTurn(ctx, out, map[string]any{"last_by_subj": filter})
	if err != nil || !found || q.QueryID == query {
		return last, found && err == nil && subjects.Answers(account, subjects.TurnRespondent(last.Subject)), err
	}
	// A later message of the session is queued: search those before it.
	for seq, n := uint64(1), 0; n < maxTurns; n++ {
		q, at, found, err := readTurn(ctx, out, map[string]any{"seq": seq, "next_by_subj": filter})
		if err != nil || !found || q.QueryID == query {
			return at, found && err == nil && subjects.Answers(account, subjects.TurnRespondent(at.Subject)), err
		}
		seq = at.Seq + 1
	}
	return m, false, nil
}

// isAnswered reports whether the account has published its answer to a query that was asked at a time. It finds the
// first answer since then, less maxClockSkew, by bisection, and reads on from there.
func isAnswered(ctx context.Context, out actor.Out, account, query string, asked time.Time) (bool, error) {
	topic, stream := subjects.ResponseGeneration.StoredBy(account), subjects.ResponseGeneration.Stream
	asked = asked.Add(-maxClockSkew)
	last, err := actor.ReadStored(ctx, out, stream, map[string]any{"last_by_subj": topic})
	if err != nil || last == nil || last.Time.Before(asked) {
		return false, err
	}
	next := func(seq uint64) (*actor.StoredMessage, error) {
		return actor.ReadStored(ctx, out, stream, map[string]any{"seq": seq, "next_by_subj": topic})
	}
	first := uint64(1)
	for end := last.Seq; first < end; {
		middle := first + (end-first)/2
		m, err := next(middle)
		switch {
		case err != nil:
			return false, err
		case m != nil && m.Time.Before(asked):
			first = m.Seq + 1
		default:
			end = middle
		}
	}
	for {
		m, err := next(first)
		if err != nil || m == nil {
			return false, err
		}
		var answer subjects.Response
		if json.Unmarshal(m.Data, &answer) == nil && answer.QueryID == query {
			return true, nil
		}
		first = m.Seq + 1
	}
}

// maxClockSkew bounds the difference between the clocks of the servers of a cluster.
const maxClockSkew = time.Minute

// maxTurns bounds the search for a query.
const maxTurns = 1000

// readTurn reads one message of the stream TURNS, within 5 seconds. The subject and the sequence of m are the server's.
// selector is the body of the JetStream request. found is false, without an error, when there is no such message.
func readTurn(ctx context.Context, out actor.Out, selector map[string]any) (q subjects.Query, m actor.StoredMessage,
	found bool, err error,
) {
	stored, err := actor.ReadStored(ctx, out, subjects.QuerySession.Stream, selector)
	if err == nil && stored != nil {
		err = json.Unmarshal(stored.Data, &q)
	}
	if err != nil {
		return subjects.Query{}, m, false, fmt.Errorf("reading a turn: %w", err)
	}
	if stored == nil {
		return q, m, false, nil
	}
	return q, *stored, true, nil
}
