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
	m, err := readMessage(ctx, out, turnsGet, selector)
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

// storedMessage is a message of a stream.
type storedMessage struct {
	Subject string `json:"subject"`
	Seq     uint64 `json:"seq"`
	Data    []byte `json:"data"`
}

// readMessage reads one message of a stream by the JetStream API subject get, within 5 seconds. selector is the body of
// the request. nil, without an error, means that there is no such message.
func readMessage(ctx context.Context, out actor.Out, get subjects.Spec, selector map[string]any) (*storedMessage, error) {
	body, err := json.Marshal(selector)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	data, _, err := out.Request(ctx, get, body)
	if err != nil {
		return nil, err
	}
	var got struct {
		Error *struct {
			Code int    `json:"code"`
			Text string `json:"description"`
		} `json:"error"`
		Message *storedMessage `json:"message"`
	}
	if err := json.Unmarshal(data, &got); err != nil {
		return nil, err
	}
	switch {
	case got.Error != nil && got.Error.Code == 404:
		return nil, nil
	case got.Error != nil:
		return nil, errors.New(got.Error.Text)
	case got.Message == nil:
		return nil, errors.New("no message")
	}
	return got.Message, nil
}
