package story

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/subjects"
)

// turnAction is an action on a turn at a moment.
type turnAction struct {
	what   string
	moment Moment
	do     func(context.Context) error
}

// turnActions returns the crash and the stop of a turn with their moments, in this order; each waits for the one before
// it.
func (r *runner) turnActions(t Turn, query string) (out []turnAction) {
	if c := t.Crash; c != nil {
		out = append(out, turnAction{"crash " + c.Actor, c.After, func(ctx context.Context) error {
			return r.system.KillActor(ctx, c.Actor)
		}})
	}
	if t.StopAfter != nil {
		out = append(out, turnAction{"stop", *t.StopAfter, func(ctx context.Context) error {
			return r.system.CancelQuery(ctx, query)
		}})
	}
	return out
}

// isReached reports whether the moment is reached with e; said is the answer so far, of which a delta must be a part.
// One field of m is set.
func (m Moment) isReached(e Event, said string) bool {
	switch {
	case m.Event != nil:
		return m.Event.matches(e)
	case m.Page != "":
		url, _ := e.Field("url")
		return e.Subject == PageRequested && url == m.Page
	}
	return e.Subject != PageRequested && containsFold(said, m.Delta)
}

// decideApproval sends the user's decision when e is an approval request of turn i; it does nothing for other events
// and for a turn without approve. Each request is decided once. With [AnswerIgnore] it sends nothing.
func (r *runner) decideApproval(ctx context.Context, i int, e Event) error {
	at, a := &r.turns[i], r.story.Turns[i].Approve
	id, asks := subjects.Match(subjects.ApprovalRequestEvent.LiveSubject(), e.Subject)
	if a == nil || !asks || e.Query != at.query || at.decided[id[0]] {
		return nil
	}
	if at.decided == nil {
		at.decided = map[string]bool{}
	}
	at.decided[id[0]] = true
	if a.Answer == AnswerIgnore {
		return nil
	}
	if err := r.system.DecideApproval(ctx, id[0], subjects.ApprovalDecision{
		Approve:  a.Answer == AnswerApprove,
		Remember: a.Remember,
	}); err != nil {
		return fmt.Errorf("turn %d: deciding an approval: %w", i+1, err)
	}
	return nil
}

// runRequest calls a tool as an agent, or as agents that it spawns. The result or fault is the answer of the turn, and
// so is the fault of a denied spawn; an error means that the call could not be made. It waits for the stored result,
// AnswerTimeout at most.
func (r *runner) runRequest(ctx context.Context, i int, req Request, session string) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.AnswerTimeout)
	defer cancel()
	at := &r.turns[i]
	at.isRequest = true
	if req.Of > 0 {
		session, at.query = r.sessionOf(req.Of-1), r.queries[req.Of-1]
	}
	who := subjects.Caller{Account: req.As}
	for _, c := range req.Spawn {
		child, err := r.system.Spawn(ctx, who, c, session, at.query)
		if fault, denied := errors.AsType[*subjects.Fault](err); denied { // without the agent there is no call
			at.response = &subjects.Response{QueryID: at.query, Error: fault}
			return nil
		}
		if err != nil {
			return fmt.Errorf("spawning %s: %w", c.Type, err)
		}
		who.Path = append(who.Path, child)
	}
	res, err := r.system.CallTool(ctx, who, req, session, at.query)
	for err == nil && r.hasCrash() && res.Error != nil && res.Error.Code == subjects.CodeUnavailable &&
		ctx.Err() == nil {
		// The actor that the story killed is not back yet, so the call did not run.
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
			res, err = r.system.CallTool(ctx, who, req, session, at.query)
		}
	}
	if err != nil {
		return fmt.Errorf("calling the tool: %w", err)
	}
	at.response = &subjects.Response{QueryID: at.query, Answer: res.Result, Error: res.Error}
	return r.waitForResult(ctx, at.query, res)
}

// hasCrash reports whether the story kills an actor.
func (r *runner) hasCrash() bool {
	return slices.ContainsFunc(r.story.Turns, func(t Turn) bool { return t.Crash != nil })
}

// waitForResult waits until the broker's copy of the result is in the event log, and fails when ctx ends. The copy is
// stored asynchronously, and the expectations are checked against the log.
func (r *runner) waitForResult(ctx context.Context, query string, res subjects.ToolResult) error {
	isResult := func(e Event) bool {
		call, _ := e.Field("call_id")
		t, ok := subjects.Match(subjects.ToolResultEvent.LiveSubject(), e.Subject)
		return ok && t[0] == res.Tool && e.Query == query && call == res.CallID
	}
	// the user's account cannot create a consumer on the stream
	err := r.poll(ctx, nil, 10*time.Millisecond, func() bool { return slices.ContainsFunc(r.events, isResult) })
	if err != nil {
		err = fmt.Errorf("waiting for the event of the result of %s: %w", res.Tool, err)
	}
	return err
}
