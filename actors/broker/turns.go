package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// A session id is no secret: the event log shows it to every account. What the user allowed for a session therefore
// holds only for the queries that the router, its only writer, stored in TURNS, and only for the accounts that consume
// TURNS. The router is not the user: a turn counts only if it is the one that follows from a question in QUERIES, which
// only the user's accounts can write, or from the definition of a schedule, which only the broker can.

// isServedQuery reports whether the router stored the query as a message of the session and the account is the one that
// answers it, and every message with its id is the user's. It reads the session's last message, then up to maxTurns
// from the first; a query beyond them is not served. It is false without a session or query. On an error the caller
// must deny.
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
	q, m, found, err := readTurn(ctx, out, map[string]any{"last_by_subj": filter})
	// A later message of the session is queued: search those before it.
	for seq, n := uint64(1), 0; err == nil && found && q.QueryID != query; n++ {
		if n == maxTurns {
			return m, false, nil
		}
		q, m, found, err = readTurn(ctx, out, map[string]any{"seq": seq, "next_by_subj": filter})
		seq = m.Seq + 1
	}
	if err != nil || !found || !subjects.Answers(account, subjects.TurnRespondent(m.Subject)) {
		return m, false, err
	}
	served, err = areUserTurns(ctx, out, filter, q)
	return m, served && err == nil, err
}

// areUserTurns reports whether every turn of the session that has the id of q is the user's, see [isUserTurn]: of
// several, any may be the one that is answered. It is false when more than twice maxTurns turns were
// stored since the question.
func areUserTurns(ctx context.Context, out actor.Out, filter string, q subjects.Query) (bool, error) {
	seq := uint64(1) // a schedule has a session for each of its questions
	if q.Source != 0 {
		asked, err := actor.ReadStored(ctx, out, subjects.QueryReceived.Stream, map[string]any{"seq": q.Source})
		if err != nil || asked == nil {
			return false, err
		}
		if seq, err = firstSince(ctx, out, subjects.QuerySession.Stream, filter, asked.Time); err != nil || seq == 0 {
			return false, err
		}
	}
	for range 2 * maxTurns {
		turn, m, found, err := readTurn(ctx, out, map[string]any{"seq": seq, "next_by_subj": filter})
		if err != nil || !found {
			return err == nil, err
		}
		if turn.QueryID == q.QueryID {
			if isUser, err := isUserTurn(ctx, out, turn, m); err != nil || !isUser {
				return false, err
			}
		}
		seq = m.Seq + 1
	}
	return false, nil
}

// firstSince returns a sequence from which the next message of a subject is the first since a time, less maxClockSkew.
// It finds it by bisection; 0 = there is none.
func firstSince(ctx context.Context, out actor.Out, stream, subject string, since time.Time) (uint64, error) {
	since = since.Add(-maxClockSkew)
	last, err := actor.ReadStored(ctx, out, stream, map[string]any{"last_by_subj": subject})
	if err != nil || last == nil || last.Time.Before(since) {
		return 0, err
	}
	first := uint64(1)
	for end := last.Seq; first < end; {
		middle := first + (end-first)/2
		m, err := actor.ReadStored(ctx, out, stream, map[string]any{"seq": middle, "next_by_subj": subject})
		switch {
		case err != nil:
			return 0, err
		case m != nil && m.Time.Before(since):
			first = m.Seq + 1
		default:
			end = middle
		}
	}
	return first, nil
}

// isFinished reports whether a query that was asked at a time is over: the user cancelled it, the account published its
// answer, or the account or the router gave it up with a dead letter.
func isFinished(ctx context.Context, out actor.Out, account, query string, asked time.Time) (bool, error) {
	if cancelled, err := readCancellation(ctx, out, query); err != nil || cancelled {
		return cancelled, err
	}
	answered, err := hasStored(ctx, out, subjects.ResponseGeneration, account, asked,
		func(in actor.Msg[subjects.Response]) bool { return in.Body.QueryID == query })
	if err != nil || answered {
		return answered, err
	}
	for _, by := range []string{account, subjects.Router} {
		given, err := hasStored(ctx, out, subjects.DeadLetterEvent, by, asked,
			func(in actor.Msg[subjects.DeadLetter]) bool {
				return in.Query == query && subjects.IsFinalFailure(by, in.Body)
			})
		if err != nil || given {
			return given, err
		}
	}
	return false, nil
}

// hasStored reports whether the account has stored an event since a time that is one.
func hasStored[T any](ctx context.Context, out actor.Out, topic subjects.Topic[T], account string, since time.Time,
	isOne func(actor.Msg[T]) bool,
) (bool, error) {
	filter := topic.StoredBy(account)
	seq, err := firstSince(ctx, out, topic.Stream, filter, since)
	if err != nil || seq == 0 {
		return false, err
	}
	for {
		m, err := actor.ReadStored(ctx, out, topic.Stream, map[string]any{"seq": seq, "next_by_subj": filter})
		if err != nil || m == nil {
			return false, err
		}
		if in, err := actor.DecodeQueued(topic, *m); err == nil && isOne(in) {
			return true, nil
		}
		seq = m.Seq + 1
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

// unverified is the client of a turn that is not the user's. No principal has this name.
const unverified = "(unverified)"

// isUserTurn reports whether the turn q, stored as m, is the one that follows from a question of the user, or from the
// definition of a schedule. A turn of an earlier build, which does not name its question, is not. On an error the
// caller must deny.
func isUserTurn(ctx context.Context, out actor.Out, q subjects.Query, m actor.StoredMessage) (bool, error) {
	if !strings.HasSuffix(m.Subject, "."+q.SessionID) {
		return false, nil
	}
	if q.Schedule != "" {
		return isScheduledTurn(ctx, out, q, m)
	}
	if q.Source == 0 {
		return false, nil
	}
	stored, err := actor.ReadStored(ctx, out, subjects.QueryReceived.Stream, map[string]any{"seq": q.Source})
	if err != nil || stored == nil {
		return false, err
	}
	topic := subjects.QueryReceived
	topic.Name = stored.Subject // or that of the committee or a task
	in, err := actor.DecodeQueued(topic, *stored)
	if err != nil {
		return false, nil // the router rejects it
	}
	asked := subjects.StoredQuestion{
		Query: in.Body, Subject: in.Subject, Seq: in.Seq, StoredAt: in.StoredAt,
		QueryHeader: in.Query, SessionHeader: in.Session,
	}
	want, err := json.Marshal(asked.Turn())
	if err != nil {
		return false, err
	}
	got, err := json.Marshal(q)
	return bytes.Equal(got, want) && asked.Respondent() == subjects.TurnRespondent(m.Subject), err
}

// isScheduledTurn is [isUserTurn] for a turn of a schedule. The time is not compared: the router can have a schedule
// ask its question at another one.
func isScheduledTurn(ctx context.Context, out actor.Out, q subjects.Query, m actor.StoredMessage) (bool, error) {
	topic, err := subjects.ScheduleDefinition.With(q.Schedule)
	if err != nil {
		return false, nil
	}
	stored, err := actor.ReadStored(ctx, out, topic.Stream, map[string]any{"last_by_subj": topic.Name})
	if err != nil || stored == nil || stored.Subject != topic.Name {
		return false, err
	}
	var def subjects.Schedule
	if json.Unmarshal(stored.Data, &def) != nil {
		return false, nil
	}
	of, _ := subjects.ScheduleOf(q.SessionID)
	return of == q.Schedule && q.Query == def.Query && slices.Equal(q.Fixed, def.Fixed) && q.Client == "" &&
		len(q.Attachments) == 0 && subjects.Modes[def.Mode] == subjects.TurnRespondent(m.Subject), nil
}
