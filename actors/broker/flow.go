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

// What is known of a session's content stands in the bucket flow, under the session. It is read for each call and written
// before a result is given out: no agent has seen what the record does not know.

// loadFlow is what is known of a session, with the words of the question at hand. It is nil, and no error, when the user
// asked no such question: nobody then knows what the session is about. With dry nothing is written.
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

// recordFlow writes down that a result enters a session.
func (b *Broker) recordFlow(ctx context.Context, out actor.Out, session string, r policy.Result) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.AuditTimeout)
	defer cancel()
	if e := b.flowMemo.get(session); e != nil { // what was read for this call, most likely; the revision tells
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

// maxWriteAttempts is how often a record is written that others write at the same time.
const maxWriteAttempts = 16

var errWriteConflict = errors.New("the session's record changes all the time")

func (b *Broker) readFlow(ctx context.Context, out actor.Out, session string) (*policy.Flow, uint64, error) {
	data, rev, err := out.Store("flow").Get(ctx, session)
	if errors.Is(err, actor.ErrNotFound) {
		return &policy.Flow{}, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading what went into a session: %w", err)
	}
	if f := b.flowMemo.findDecoded(session, data); f != nil {
		b.flowMemo.put(session, data, rev, f)
		return f, rev, nil
	}
	f := &policy.Flow{}
	if err = actor.CheckJSONObject(data); err == nil { // null would read as a session that nothing went into
		err = f.UnmarshalJSON(data)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading what went into a session: %w", err)
	}
	b.flowMemo.put(session, data, rev, f)
	return f, rev, nil
}

func (b *Broker) writeFlow(ctx context.Context, out actor.Out, session string, f *policy.Flow, rev uint64) error {
	data, err := f.MarshalJSON()
	if err != nil {
		return err
	}
	now, err := out.Store("flow").Put(ctx, session, data, rev)
	if err != nil {
		return fmt.Errorf("writing down what went into a session: %w", err)
	}
	b.flowMemo.put(session, data, now, f)
	return nil
}

// turnsGet is the subject of the JetStream API through which the broker reads what the user asked. It stands in the
// table of edges. Only the router can write there.
var turnsGet = subjects.Spec{Name: "core.API.STREAM.MSG.GET.TURNS"}

// loadQueryText are what the user asked, as the router stored it. No agent's word is taken for it.
func (b *Broker) loadQueryText(ctx context.Context, out actor.Out, session, query string) (said string, ok bool, err error) {
	if session == "" || query == "" {
		return "", false, nil
	}
	filter := "turn.*." + session
	q, _, found, err := readTurn(ctx, out, map[string]any{"last_by_subj": filter})
	if err != nil || !found || q.QueryID == query {
		return q.Query, found, err
	}
	// A later question of the session waits already: look through those before it.
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

// maxTurns bounds the search for a question.
const maxTurns = 1000

// readTurn reads one message of TURNS.
func readTurn(ctx context.Context, out actor.Out, which map[string]any) (q subjects.Query, seq uint64, found bool, err error) {
	body, err := json.Marshal(which)
	if err != nil {
		return q, 0, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	data, _, err := out.Request(ctx, turnsGet, body)
	if err != nil {
		return q, 0, false, fmt.Errorf("reading what the user asked: %w", err)
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
		return q, 0, false, fmt.Errorf("reading what the user asked: %w", err)
	}
	switch {
	case got.Error != nil && got.Error.Code == 404:
		return q, 0, false, nil
	case got.Error != nil:
		return q, 0, false, fmt.Errorf("reading what the user asked: %s", got.Error.Text)
	case got.Message == nil:
		return q, 0, false, errors.New("reading what the user asked: no message")
	}
	if err := json.Unmarshal(got.Message.Data, &q); err != nil {
		return q, 0, false, fmt.Errorf("reading what the user asked: %w", err)
	}
	return q, got.Message.Seq, true, nil
}
