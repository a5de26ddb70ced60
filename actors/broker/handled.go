package broker

import (
	"context"
	"sync"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/subjects"
)

// An agent repeats a call under the same call_id when no reply comes, because the broker may have been killed or the
// link cut. A repetition that reaches the broker while it handles the call waits for that result: it is not judged,
// counted or run again.

// handledKey identifies a call of a caller: another call under the same call_id is none of its repetitions.
type handledKey struct{ agent, id, session, tool, params string }

// handledCall is a named call while this broker handles it.
type handledCall struct {
	done   chan struct{}        // closed at the end
	result *subjects.ToolResult // nil before the end, and when the handler panicked
	newer  chan struct{}        // closed when a later repetition waits; nil without any

	repeatedBy string // query of the last repetition that was recorded as pending; "" without any
}

// handledCalls are the named calls that this broker handles. The zero value is ready to use.
type handledCalls struct {
	mu    sync.Mutex
	calls map[handledKey]*handledCall
}

// begin registers a call. The caller must call end once, with its result. For a call that is being handled end is nil,
// and wait returns the result, or false when ctx ends or a later repetition waits: one worker is enough.
func (h *handledCalls) begin(key handledKey) (end func(*subjects.ToolResult),
	wait func(ctx context.Context) (*subjects.ToolResult, bool),
) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.calls[key]; c != nil {
		if c.newer != nil {
			close(c.newer)
		}
		newer := make(chan struct{})
		c.newer = newer
		return nil, func(ctx context.Context) (*subjects.ToolResult, bool) {
			select {
			case <-c.done:
				return c.result, c.result != nil
			case <-newer:
			case <-ctx.Done():
			}
			return nil, false
		}
	}
	if h.calls == nil {
		h.calls = map[handledKey]*handledCall{}
	}
	c := &handledCall{done: make(chan struct{})}
	h.calls[key] = c
	return func(res *subjects.ToolResult) {
		h.mu.Lock()
		defer h.mu.Unlock()
		c.result = res
		delete(h.calls, key)
		close(c.done)
	}, nil
}

// claimRecord reports whether a repetition of a call that is being handled needs a record: an agent repeats a call
// every 30 s while it waits for an approval, and one record says so. A repetition for another query has one of its own,
// and so does one without a query.
func (h *handledCalls) claimRecord(key handledKey, query string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.calls[key]
	if c == nil || query == "" || c.repeatedBy != query {
		if c != nil {
			c.repeatedBy = query
		}
		return true
	}
	return false
}

// joinHandled registers a named call, and answers a repetition of one that is being handled. A repetition that gets the
// result is recorded each time, one that ends while the call is pending as [handledCalls.claimRecord] says. joined is
// nil for a new call, whose result the caller must pass to end; it passes nil when it panics.
func (b *Broker) joinHandled(ctx context.Context, out actor.Out, r stage.Received) (end func(*subjects.ToolResult),
	joined *subjects.ToolResult,
) {
	key := handledKey{r.Caller.ID(), r.ID, r.Session, r.Tool, r.Record.ParamsHash}
	end, wait := b.handled.begin(key)
	if wait == nil {
		return end, nil
	}
	res, ok := wait(ctx)
	if !ok {
		if b.handled.claimRecord(key, r.Query) {
			b.gate.Refuse(ctx, out, r.Record, subjects.StatusPending, "repeated")
		}
		pending := r.Result()
		pending.Error = subjects.Faultf(subjects.CodeTimeout, "%s waits for an approval or is still running", r.Tool)
		return nil, &pending
	}
	replayed := b.replayResult(ctx, out, r, *res, "ledger")
	return nil, &replayed
}
