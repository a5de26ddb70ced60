package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// The ledger makes a call run at most once, however often its caller retries it after a crash. The caller names the
// call by its call_id; the broker stores an entry before the tool runs and the result after. A retry is answered from
// the entry. What began and has no end may have run: a tool with lasting effects is then not run again.

// isHarmless reports whether a tool has no declared effects, so that running it twice makes no difference. A call of
// such a tool is entered in the ledger only when the user had to approve it.
func isHarmless(t policy.Tool) bool { return t.Known && t.Effects == policy.Declare() }

// isRepeatable reports whether a tool may run again when the outcome of an earlier run is unknown: none of its effects
// lasts.
func isRepeatable(t policy.Tool) bool {
	return !slices.ContainsFunc([]policy.Effect{
		policy.Mutate, policy.Destroy, policy.Exec, policy.Spend,
		policy.Authenticate, policy.Physical,
	}, t.Has)
}

// ledgerEntry is a call in the ledger.
type ledgerEntry struct {
	Tool   string `json:"tool"`
	Params string `json:"params"` // keyed hash of the arguments: the same call_id with others is rejected
	// Session is the session of the call. Its result was recorded in that flow and is replayed in no other session.
	Session string               `json:"session,omitempty"`
	Until   time.Time            `json:"until"`          // when the run has ended, at the latest
	Void    bool                 `json:"void,omitempty"` // the call never ran: a retry runs it
	Result  *subjects.ToolResult `json:"result,omitempty"`
}

// runOnce stores the ledger entry of a named call, runs it and stores its result, also an error. An existing entry
// decides: a completed call is replayed, a call_id of another call is rejected, a run in another broker is waited for,
// one that never ran is run, and a run with unknown outcome is repeated only if the tool is repeatable. Without a
// stored entry nothing runs. After a timeout or an unrecorded outcome the entry stays open. A repetition in this broker
// does not come here, see [Broker.joinHandled].
func (b *Broker) runOnce(ctx context.Context, out actor.Out, p stage.Permitted, k Known) subjects.ToolResult {
	r, store := p.Judged().Received(), out.Store("ledger")
	key := r.Key()
	mine := ledgerEntry{Tool: r.Tool, Params: r.Record.ParamsHash, Session: r.Session}
	mine.Until = out.Now().Add(b.timeoutOf(k))
	rev, err := putEntry(ctx, store, key, mine, 0)
	for errors.Is(err, actor.ErrChanged) {
		var old ledgerEntry
		old, rev, err = readEntry(ctx, store, key)
		switch {
		case err != nil:
		case old.Tool != mine.Tool || old.Params != mine.Params || old.Session != mine.Session:
			return b.denyUnrun(ctx, out, p, subjects.CodeMalformed, "call_id was already used for another call")
		case old.Result != nil:
			return b.replayResult(ctx, out, r, *old.Result, "ledger")
		case old.Void:
			rev, err = putEntry(ctx, store, key, mine, rev)
		case out.Now().Before(old.Until) && b.waitForOtherBroker(ctx): // another broker may be running it
			err = actor.ErrChanged
		case ctx.Err() != nil:
			return b.denyUnrun(ctx, out, p, subjects.CodeTimeout, "%s is still running", r.Tool)
		case !isRepeatable(k.Tool):
			return b.denyUnrun(ctx, out, p, subjects.CodeUncertain, "an earlier run of %s has an unknown outcome, so "+
				"it was not run again; check whether it took effect, and call it with a new call_id if it did not",
				r.Tool)
		default:
			rev, err = putEntry(ctx, store, key, mine, rev)
		}
	}
	if err != nil {
		out.LogError(fmt.Errorf("entering a call of %s into the ledger: %w", r.Tool, err))
		return b.denyUnrun(ctx, out, p, subjects.CodeUnavailable, "the ledger cannot be written, so %s was not run; "+
			"see conclave doctor", r.Tool)
	}
	actor.Step(ctx, "entered")
	res := b.runAudited(ctx, out, p, k)
	switch {
	case res.Error == nil:
		mine.Result = &res
	case res.Error.Code == subjects.CodeTimeout, res.Error.Code == subjects.CodeUnrecorded:
		return res // the outcome is unknown: the entry stays open
	case res.Error.Code == subjects.CodeNoAudit:
		mine.Void = true
	default:
		mine.Result = &res
	}
	// The caller's deadline does not interrupt this write: a run without a stored result counts as unknown.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.AuditTimeout)
	defer cancel()
	if _, err := putEntry(ctx, store, key, mine, rev); err != nil {
		out.LogError(fmt.Errorf("storing the result of %s in the ledger: %w", r.Tool, err))
	}
	actor.Step(ctx, "kept")
	return res
}

// findCompleted returns the stored result of a call that completed before, nil for any other. begun reports an entry of
// the same call, also without a result: a call with an unknown outcome is judged like any other. It is false for a
// call_id of another call, and when the ledger cannot be read.
func (b *Broker) findCompleted(ctx context.Context, out actor.Out, r stage.Received) (_ *subjects.ToolResult,
	begun bool,
) {
	old, _, err := readEntry(ctx, out.Store("ledger"), r.Key())
	if err != nil || old.Tool != r.Tool || old.Params != r.Record.ParamsHash || old.Session != r.Session {
		return nil, false
	}
	return old.Result, true
}

// waitForOtherBroker waits 100 ms for a call that another broker may be running. It returns false when ctx ends first;
// true says nothing about the call.
func (b *Broker) waitForOtherBroker(ctx context.Context) bool {
	t := time.NewTimer(100 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// replayResult returns the stored result of a call, after recording that it was replayed, and from where. Nothing is
// sent to the tool.
func (b *Broker) replayResult(ctx context.Context, out actor.Out, r stage.Received, res subjects.ToolResult,
	from string,
) subjects.ToolResult {
	if err := b.gate.Record(ctx, out, r.Record, subjects.StatusReplayed, from); err != nil {
		return b.answerUnaudited(ctx, out, r, subjects.EgressNone, err)
	}
	return res
}

// denyUnrun denies a permitted call by the ledger. See [Broker.refuseCall].
func (b *Broker) denyUnrun(ctx context.Context, out actor.Out, p stage.Permitted, code, format string,
	a ...any,
) subjects.ToolResult {
	j := p.Judged()
	return b.refuseCall(ctx, out, j.Received(), j, subjects.Faultf(code, format, a...))
}

func putEntry(ctx context.Context, s actor.Store, key string, e ledgerEntry, rev uint64) (uint64, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return 0, err
	}
	return s.Put(ctx, key, data, rev)
}

func readEntry(ctx context.Context, s actor.Store, key string) (e ledgerEntry, rev uint64, err error) {
	data, rev, err := s.Get(ctx, key)
	if err != nil {
		return e, 0, err
	}
	return e, rev, json.Unmarshal(data, &e)
}
