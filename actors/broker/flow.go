package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// The flow of a session, its query texts and labelled results, is stored in the bucket flow, keyed by session. It is read for
// each call and written before a result is returned: no agent has seen a result that the flow does not have.

// loadFlow returns the flow of a session with the text of the query, which it stores on first use, except with dry. It
// returns nil, and no error, when the router stored no such query: the session is then unknown, and layers must treat
// it so. It fails after maxWriteAttempts write conflicts.
func (b *Broker) loadFlow(ctx context.Context, out actor.Out, session, query string, dry bool) (*policy.Flow, error) {
	f, rev, err := b.readFlow(ctx, out, session)
	if err != nil {
		return nil, err
	}
	if f.HasQuestion(query) {
		return f, nil
	}
	said, ok, err := b.loadQueryText(ctx, out, session, query)
	if err != nil || !ok {
		return nil, err
	}
	said = subjects.UserText(said)
	if dry {
		return f.WithQuestion(query, said), nil
	}
	for range maxWriteAttempts {
		next := f.WithQuestion(query, said)
		err := b.writeFlow(ctx, out, session, next, rev)
		if !errors.Is(err, actor.ErrChanged) {
			return next, err
		}
		if f, rev, err = b.readFlow(ctx, out, session); err != nil {
			return nil, err
		}
		if f.HasQuestion(query) {
			return f, nil
		}
	}
	return nil, errWriteConflict
}

// recordFlow records a result in the flow of a session, which is created when it does not exist. The caller's deadline
// does not interrupt the write. It fails after maxWriteAttempts write conflicts. On an error the result must be
// withheld.
func (b *Broker) recordFlow(ctx context.Context, out actor.Out, session string, r policy.Result) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.AuditTimeout)
	defer cancel()
	if e := b.flowMemo.get(session); e != nil { // usually current; a wrong revision fails the write
		if err := b.writeFlow(ctx, out, session, e.flow.WithResult(r), e.rev); !errors.Is(err, actor.ErrChanged) {
			return err
		}
	}
	for range maxWriteAttempts {
		f, rev, err := b.readFlow(ctx, out, session)
		if err != nil {
			return err
		}
		if err = b.writeFlow(ctx, out, session, f.WithResult(r), rev); !errors.Is(err, actor.ErrChanged) {
			return err
		}
	}
	return errWriteConflict
}

// maxWriteAttempts bounds the compare-and-set attempts on a record with concurrent writers.
const maxWriteAttempts = 16

var errWriteConflict = errors.New("write conflict: the record changed at every attempt")

// readFlow reads the flow of a session and its revision: an empty flow and 0 when none is stored. A record that cannot
// be decoded, null included, is an error, because an empty flow would be untainted.
func (b *Broker) readFlow(ctx context.Context, out actor.Out, session string) (*policy.Flow, uint64, error) {
	data, rev, err := out.Store("flow").Get(ctx, session)
	if errors.Is(err, actor.ErrNotFound) {
		return &policy.Flow{}, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading the flow of a session: %w", err)
	}
	if f := b.flowMemo.findDecoded(session, data); f != nil {
		b.flowMemo.put(session, data, rev, f)
		return f, rev, nil
	}
	f := &policy.Flow{}
	if err = actor.CheckJSONObject(data); err == nil { // null would decode to an empty flow
		err = f.UnmarshalJSON(data)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading the flow of a session: %w", err)
	}
	b.flowMemo.put(session, data, rev, f)
	return f, rev, nil
}

// writeFlow stores the flow of a session at revision rev, 0 for a new one. The error wraps [actor.ErrChanged] when rev
// is outdated.
func (b *Broker) writeFlow(ctx context.Context, out actor.Out, session string, f *policy.Flow, rev uint64) error {
	data, err := f.MarshalJSON()
	if err != nil {
		return err
	}
	now, err := out.Store("flow").Put(ctx, session, data, rev)
	if err != nil {
		return fmt.Errorf("writing the flow of a session: %w", err)
	}
	b.flowMemo.put(session, data, now, f)
	return nil
}

// turnsGet is the JetStream API subject through which the broker reads the user's queries. Only the router can write
// to that stream; the table of edges has the grant.
var turnsGet = subjects.Spec{Name: "core.API.STREAM.MSG.GET.TURNS"}

// loadQueryText returns the text of a query as the router stored it, never as an agent reports it. It reads the
// session's last query, then up to maxTurns from the first. ok is false when none of them has the id, and when session
// or query is "".
func (b *Broker) loadQueryText(ctx context.Context, out actor.Out, session, query string) (said string, ok bool, err error) {
	if session == "" || query == "" {
		return "", false, nil
	}
	filter := "turn.*." + session
	q, _, found, err := readTurn(ctx, out, map[string]any{"last_by_subj": filter})
	if err != nil || !found || q.QueryID == query {
		return q.Query, found, err
	}
	// A later query of the session is queued: search those before it.
	for seq, n := uint64(1), 0; n < maxTurns; n++ {
		q, at, found, err := readTurn(ctx, out, map[string]any{"seq": seq, "next_by_subj": filter})
		if err != nil || !found {
			return "", false, err
		}
		if q.QueryID == query {
			return q.Query, true, nil
		}
		seq = at + 1
	}
	return "", false, nil
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
