package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// The ledger makes a call run once, however often a crash makes its caller ask. The caller names the call; the broker
// writes down that it begins before it runs and what came of it after. Asked again under the same name it answers from
// there. What began and has no end may have run: a tool that changes something is then not run again.

// isHarmless reports whether a tool can run twice without anybody noticing. Only such tools are not in the ledger.
func isHarmless(t policy.Tool) bool { return t.Known && t.Effects == policy.Declare() }

// isRepeatable reports whether a tool whose end nobody knows may run again: it leaves nothing behind.
func isRepeatable(t policy.Tool) bool {
	return !slices.ContainsFunc([]policy.Effect{policy.Mutate, policy.Destroy, policy.Exec, policy.Spend, policy.Authenticate, policy.Physical}, t.Has)
}

// ledgerEntry is what the ledger knows of a call.
type ledgerEntry struct {
	Tool   string `json:"tool"`
	Params string `json:"params"` // keyed hash: the same name for other arguments is another call
	// Session is where it was asked for. Its result was written down as part of that one, and enters no other.
	Session string               `json:"session,omitempty"`
	Until   time.Time            `json:"until"`          // when it has ended, one way or another
	Void    bool                 `json:"void,omitempty"` // it was entered and never ran: the next one to ask runs it
	Result  *subjects.ToolResult `json:"result,omitempty"`
}

// runningCalls are the calls that this broker runs, so that whoever asks again waits for the same one.
type runningCalls struct {
	mu    sync.Mutex
	calls map[string]chan struct{} // closed at the end
}

// join returns what to wait for when the call runs already. Otherwise the caller runs it and calls leave.
func (r *runningCalls) join(key string) (wait <-chan struct{}, leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.calls[key]; c != nil {
		return c, nil
	}
	if r.calls == nil {
		r.calls = map[string]chan struct{}{}
	}
	done := make(chan struct{})
	r.calls[key] = done
	return nil, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.calls, key)
		close(done)
	}
}

// key names a call in the ledger: whose it is, by what the server wrote, and what he calls it.
func (c call) key() string { return c.record.AgentID + "." + c.id }

// runOnce runs a call that has a name, unless it ran before.
func (b *Broker) runOnce(ctx context.Context, out actor.Out, c call, k Known) subjects.ToolResult {
	key := c.key()
	for {
		wait, leave := b.running.join(key)
		if wait == nil {
			defer leave()
			return b.enterAndRun(ctx, out, c, k, key)
		}
		select {
		case <-wait: // and see what the ledger says now
		case <-ctx.Done():
			return b.denyUnrun(ctx, out, c, subjects.CodeTimeout, "%s is still running", c.tool)
		}
	}
}

// enterAndRun looks the call up and runs it when it is new.
func (b *Broker) enterAndRun(ctx context.Context, out actor.Out, c call, k Known, key string) subjects.ToolResult {
	store := out.Store("ledger")
	limit := k.Timeout
	if limit <= 0 {
		limit = b.cfg.CallTimeout
	}
	mine := ledgerEntry{Tool: c.tool, Params: c.record.ParamsHash, Session: c.session, Until: out.Now().Add(limit)}
	rev, err := putEntry(ctx, store, key, mine, 0)
	for errors.Is(err, actor.ErrChanged) {
		var old ledgerEntry
		old, rev, err = readEntry(ctx, store, key)
		switch {
		case err != nil:
		case old.Tool != mine.Tool || old.Params != mine.Params || old.Session != mine.Session:
			return b.denyCall(ctx, out, c, subjects.Faultf(subjects.CodeMalformed, "call_id was already used for another call"))
		case old.Result != nil:
			return b.replayResult(ctx, out, c, *old.Result)
		case old.Void:
			rev, err = putEntry(ctx, store, key, mine, rev)
		case out.Now().Before(old.Until) && b.waitForOtherBroker(ctx): // another broker may be at it
			err = actor.ErrChanged
		case ctx.Err() != nil:
			return b.denyUnrun(ctx, out, c, subjects.CodeTimeout, "%s is still running", c.tool)
		case !isRepeatable(k.Tool):
			return b.denyUnrun(ctx, out, c, subjects.CodeUncertain, "%s was called before and nobody knows whether it ran to its end; it is not run again. Look whether it did, and ask anew if not", c.tool)
		default:
			rev, err = putEntry(ctx, store, key, mine, rev)
		}
	}
	if err != nil {
		out.LogError(fmt.Errorf("entering a call of %s into the ledger: %w", c.tool, err))
		return b.denyUnrun(ctx, out, c, subjects.CodeUnavailable, "the ledger cannot be written, so %s was not run; see conclave doctor", c.tool)
	}
	actor.Step(ctx, "entered")
	res := b.runAudited(ctx, out, c, k)
	switch {
	case res.Error == nil:
		mine.Result = &res
	case res.Error.Code == subjects.CodeTimeout, res.Error.Code == subjects.CodeUnrecorded:
		return res // nobody knows what it did: the entry stays open
	case res.Error.Code == subjects.CodeNoAudit:
		mine.Void = true
	default:
		mine.Result = &res
	}
	// The caller's patience does not cut this short: what ran must be known to have run.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.AuditTimeout)
	defer cancel()
	if _, err := putEntry(ctx, store, key, mine, rev); err != nil {
		out.LogError(fmt.Errorf("writing the end of a call of %s into the ledger: %w", c.tool, err))
	}
	actor.Step(ctx, "kept")
	return res
}

// findCompleted answers a call that ran to its end before. It reports false when the call is new, or when nobody knows how it
// ended: then it is judged like any other, and begun says that it was asked for before.
func (b *Broker) findCompleted(ctx context.Context, out actor.Out, c call, k Known) (res subjects.ToolResult, ran, begun bool) {
	if isHarmless(k.Tool) {
		return res, false, false
	}
	old, _, err := readEntry(ctx, out.Store("ledger"), c.key())
	switch {
	case err != nil, old.Tool != c.tool, old.Params != c.record.ParamsHash, old.Session != c.session:
		return res, false, false
	case old.Result == nil:
		return res, false, true
	}
	return b.replayResult(ctx, out, c, *old.Result), true, true
}

// waitForOtherBroker waits a moment for a call that another broker may be running. It returns false when the caller's time is over.
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

// replayResult answers from the ledger. It is on record that nothing ran.
func (b *Broker) replayResult(ctx context.Context, out actor.Out, c call, res subjects.ToolResult) subjects.ToolResult {
	if err := b.gate.Record(ctx, out, c.record, subjects.StatusReplayed, "ledger"); err != nil {
		return b.answerUnaudited(ctx, out, c, err)
	}
	return res
}

// denyUnrun answers a call that was not run now, and puts on record why.
func (b *Broker) denyUnrun(ctx context.Context, out actor.Out, c call, code, format string, a ...any) subjects.ToolResult {
	return b.denyCall(ctx, out, c, subjects.Faultf(code, format, a...))
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
