package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// The flow of a session, its query texts and labelled results, is stored in the bucket flow, keyed by session. It is
// read for each call and written before a result is returned: no agent has seen a result that the flow does not have.

// loadFlow returns the flow of a session with the texts of its messages up to the query, also of those for which no
// tool was called; it stores the new ones, except with dry. It returns nil, and no error, when the router stored no
// such query, or stored it for another account to answer: the session is then unknown, and layers must treat it so. It
// fails after maxWriteAttempts write conflicts.
func (b *Broker) loadFlow(ctx context.Context, out actor.Out, account, session, query string, dry bool) (*policy.Flow,
	error,
) {
	for range maxWriteAttempts {
		f, rev, err := b.readFlow(ctx, out, session)
		if err != nil {
			return nil, err
		}
		known := f.HasQuestion(query)
		if !known {
			f, err = b.addTurns(ctx, out, f, session, query)
		}
		if err != nil || f == nil || !subjects.Answers(account, f.Respondent(query)) {
			return nil, err
		}
		if known || dry {
			return f, nil
		}
		if err = b.writeFlow(ctx, out, session, f, rev); err == nil {
			publishGrants(ctx, out, session, query, f.Grants(query))
		}
		if !errors.Is(err, actor.ErrChanged) {
			return f, err
		}
	}
	return nil, errWriteConflict
}

// addTurns returns f with the messages and their grants that the router stored for the session after the last one in f,
// up to the query. A message that is not the user's ([isUserTurn]) counts as that of an unknown client. It returns nil
// when the query is not among them. ctx bounds it: the messages that f lacks may be many.
func (b *Broker) addTurns(ctx context.Context, out actor.Out, f *policy.Flow, session, query string) (*policy.Flow,
	error,
) {
	if session == "" || query == "" {
		return nil, nil
	}
	for {
		q, m, found, err := readTurn(ctx, out, map[string]any{"seq": f.LastTurn() + 1, "next_by_subj": "turn.*." +
			session})
		if err != nil || !found {
			return nil, err
		}
		if m.Seq <= f.LastTurn() {
			return nil, fmt.Errorf("reading the turns of a session: sequence %d follows %d", m.Seq, f.LastTurn())
		}
		isUser, err := isUserTurn(ctx, out, q, m)
		if err != nil {
			return nil, err
		}
		if !isUser {
			q.Client, q.ClientMemory = unverified, false
		}
		now, respondent := out.Now().UTC(), subjects.TurnRespondent(m.Subject)
		if q.Client != "" {
			f = f.WithClientTurn(m.Seq, q.QueryID, respondent, q.Client, q.Query, q.ClientMemory, now)
		} else {
			own := subjects.UserText(q.Query)
			grants := policy.DeriveGrants(own)
			if q.Schedule != "" {
				grants = policy.KeepFixed(grants, q.Fixed)
			}
			f = f.WithTurn(m.Seq, q.QueryID, respondent, own, grants)
		}
		f = f.WithAttachments(q.QueryID, q.Attachments, now)
		if q.QueryID == query {
			return f, nil
		}
	}
}

// publishGrants publishes what a question permits, so that the user sees it before anything uses it. A failure is
// logged only: the flow has the grants.
func publishGrants(ctx context.Context, out actor.Out, session, query string, grants []policy.Grant) {
	topic, err := subjects.QueryGrantsEvent.With(query)
	if err == nil {
		err = actor.Emit(ctx, out.WithIDs(session, query), topic, subjects.Grants{
			SessionID: session, QueryID: query,
			Grants: describeGrants(grants),
		})
	}
	if err != nil {
		out.LogError(fmt.Errorf("publishing the grants of a question: %w", err))
	}
}

// describeGrants returns grants as users are shown them.
func describeGrants(grants []policy.Grant) []subjects.Grant {
	out := make([]subjects.Grant, len(grants))
	for i, g := range grants {
		out[i] = g.Describe()
	}
	return out
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
	return b.updateFlow(ctx, out, session, func(f *policy.Flow) *policy.Flow { return f.WithResult(r) })
}

// recordPlan records the plan of a query in the flow of its session, where [policy.Flow.WithPlan] accepts it: agents
// are spawned for a plan before the first of them calls a tool. It fails after maxWriteAttempts write conflicts.
func (b *Broker) recordPlan(ctx context.Context, out actor.Out, account, session, query, plan string) error {
	if f, err := b.loadFlow(ctx, out, account, session, query, false); f == nil || err != nil {
		return err
	}
	return b.updateFlow(ctx, out, session, func(f *policy.Flow) *policy.Flow { return f.WithPlan(query, plan) })
}

// updateFlow changes the flow of a session by compare-and-set; a change that returns its argument writes nothing. It
// fails after maxWriteAttempts write conflicts.
func (b *Broker) updateFlow(ctx context.Context, out actor.Out, session string,
	change func(*policy.Flow) *policy.Flow,
) error {
	for range maxWriteAttempts {
		f, rev, err := b.readFlow(ctx, out, session)
		if err != nil {
			return err
		}
		next := change(f)
		if next == f {
			return nil
		}
		if err := b.writeFlow(ctx, out, session, next, rev); !errors.Is(err, actor.ErrChanged) {
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
	if e := b.flowMemo.get(session); e != nil && bytes.Equal(e.data, data) {
		b.flowMemo.put(session, data, rev, e.flow)
		return e.flow, rev, nil
	}
	f := &policy.Flow{}
	if err = strict.CheckObject(data); err == nil { // null would decode to an empty flow
		err = f.UnmarshalJSON(data)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading the flow of a session: %w: %w", actor.ErrUnreadable, err)
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
