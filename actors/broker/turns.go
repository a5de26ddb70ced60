package broker

import (
	"context"
	"encoding/json"
	"fmt"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// A session id is no secret: the event log shows it to every account. What the user allowed for a session therefore
// holds only for the queries that the router stored in TURNS, and only for the accounts that consume TURNS.

// turnsGet is the JetStream API subject through which the broker reads the user's queries. Only the router can write
// to that stream; the table of edges has the grant.
var turnsGet = subjects.Spec{Name: "core.API.STREAM.MSG.GET.TURNS"}

// isServedQuery reports whether the router stored the query as a message of the session and the account is one that
// answers such messages. It reads the session's last message, then up to maxTurns from the first; a query beyond them
// is not served. It is false without a session or query. On an error the caller must deny.
func isServedQuery(ctx context.Context, out actor.Out, account, session, query string) (bool, error) {
	if !subjects.ConsumesTurns(account) || session == "" || query == "" {
		return false, nil
	}
	filter := "turn.*." + session
	q, _, found, err := readTurn(ctx, out, map[string]any{"last_by_subj": filter})
	if err != nil || !found || q.QueryID == query {
		return found && err == nil, err
	}
	// A later message of the session is queued: search those before it.
	for seq, n := uint64(1), 0; n < maxTurns; n++ {
		q, at, found, err := readTurn(ctx, out, map[string]any{"seq": seq, "next_by_subj": filter})
		if err != nil || !found || q.QueryID == query {
			return found && err == nil, err
		}
		seq = at + 1
	}
	return false, nil
}

// maxTurns bounds the search for a query.
const maxTurns = 1000

// readTurn reads one message of the stream TURNS and its sequence, within 5 seconds. selector is the body of the
// JetStream request. found is false, without an error, when there is no such message.
func readTurn(ctx context.Context, out actor.Out, selector map[string]any) (q subjects.Query, seq uint64, found bool, err error) {
	m, err := actor.ReadStored(ctx, out, turnsGet, selector)
	if err == nil && m != nil {
		err = json.Unmarshal(m.Data, &q)
	}
	if err != nil {
		return subjects.Query{}, 0, false, fmt.Errorf("reading a turn: %w", err)
	}
	if m == nil {
		return q, 0, false, nil
	}
	return q, m.Seq, true, nil
}
