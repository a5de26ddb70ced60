package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

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
	body, err := json.Marshal(selector)
	if err != nil {
		return q, 0, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	data, _, err := out.Request(ctx, turnsGet, body)
	if err != nil {
		return q, 0, false, fmt.Errorf("reading a turn: %w", err)
	}
	var got struct {
		Error *struct {
			Code int    `json:"code"`
			Text string `json:"description"`
		} `json:"error"`
		Message *struct {
			Subject string `json:"subject"`
			Seq     uint64 `json:"seq"`
			Data    []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(data, &got); err != nil {
		return q, 0, false, fmt.Errorf("reading a turn: %w", err)
	}
	switch {
	case got.Error != nil && got.Error.Code == 404:
		return q, 0, false, nil
	case got.Error != nil:
		return q, 0, false, fmt.Errorf("reading a turn: %s", got.Error.Text)
	case got.Message == nil:
		return q, 0, false, errors.New("reading a turn: no message")
	}
	if err := json.Unmarshal(got.Message.Data, &q); err != nil {
		return q, 0, false, fmt.Errorf("reading a turn: %w", err)
	}
	return q, got.Message.Seq, true, nil
}
