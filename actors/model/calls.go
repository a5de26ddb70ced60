package model

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/text"
	"conclave/subjects"
)

// newRecord returns the audit record of a call. The name of the model stands in the field of the tool, unless it is not
// valid; params are hashed, not stored.
func (m *Model) newRecord(action, account, session, query, modelName string, params []byte) subjects.AuditRecord {
	if checkName(modelName) != nil {
		modelName = ""
	}
	return subjects.AuditRecord{
		AgentID: account, Action: action, Tool: modelName, ParamsHash: m.hash.Hash(params), Session: session,
		Query: query,
	}
}

// refuse records that no model was asked because of err, not nil, and returns the fault for the caller. A malformed
// request is recorded as refused, everything else as denied.
func (m *Model) refuse(ctx context.Context, out actor.Out, rec subjects.AuditRecord, err error) error {
	f := toFault(ctx, err)
	status := subjects.StatusDenied
	if f.Code == subjects.CodeMalformed {
		status = subjects.StatusRefused
	}
	m.gate.Refuse(ctx, out, rec, status, f.Code)
	return f
}

// reportOutcome sets the outcome of an act for the audit and returns the fault for the caller, nil when err is nil.
// began reports whether the model was asked. A model on another machine without permission is denied; a call that was
// interrupted after it began is unknown, because it may have run; any other is failed.
func reportOutcome(ctx context.Context, p *actor.Permit, began bool, err error) error {
	if err == nil {
		return nil
	}
	f := toFault(ctx, err)
	var lost *lostError
	switch {
	case errors.Is(err, model.ErrRemote):
		p.Report(subjects.StatusDenied, f.Code)
	case began && (ctx.Err() != nil || errors.Is(err, errPreemptedMidReply) || errors.As(err, &lost)):
		p.Report(subjects.StatusUnknown, f.Code)
	}
	return f
}

// errStopped is the cause of a call whose query was cancelled.
var errStopped = errors.New("the user stopped it")

var errBadCalls = fmt.Errorf("%w: its tool calls are too long or no JSON", model.ErrMalformed)

// toFault converts an error, not nil, to a fault for the caller. A fault in err is returned as it is. When ctx has
// ended, that is the reason, whatever error it led to: stopped by the user, timeout, or stopped with the actor. Other
// errors keep the code of package wire, or are CodeUnavailable; their text is shortened to one line.
func toFault(ctx context.Context, err error) *subjects.Fault {
	var f *subjects.Fault
	ended := ctx.Err() != nil
	switch {
	case errors.As(err, &f) && f != nil:
		return f
	case errors.Is(err, errQueueFull):
		return subjects.Faultf(subjects.CodeBusy, "%v; retry in a moment", err)
	case errors.Is(err, errPreemptedMidReply):
		return subjects.Faultf(subjects.CodeBusy, "%v; retry, best without streaming: then it is retried automatically",
			err)
	case ended && errors.Is(context.Cause(ctx), errStopped):
		return subjects.Faultf(subjects.CodeStopped, "%v", errStopped)
	case ended && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return subjects.Faultf(subjects.CodeTimeout, "timeout: the model did not finish before the deadline; it may "+
			"be slow, or the queue long")
	case ended:
		return subjects.Faultf(subjects.CodeModelCut, "the model actor stopped during the call")
	}
	f = wire.EncodeError(err)
	if f == nil {
		f = subjects.Faultf(subjects.CodeUnavailable, "%v", err)
	}
	f.Text = text.Clip(strings.Join(strings.Fields(f.Text), " "), maxText)
	return f
}

// calls are the calls in progress by query id, so that a query can be cancelled.
type calls struct {
	mu   sync.Mutex
	open map[string]map[*context.CancelCauseFunc]struct{}
}

// track returns a context that [calls.cancelQuery] cancels for this query; a call without a query, "", cannot be
// cancelled so. The caller must call the returned function when the call has ended.
func (c *calls) track(ctx context.Context, query string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if query == "" {
		return ctx, func() { cancel(nil) }
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[string]map[*context.CancelCauseFunc]struct{}{}
	}
	if c.open[query] == nil {
		c.open[query] = map[*context.CancelCauseFunc]struct{}{}
	}
	c.open[query][&cancel] = struct{}{}
	return ctx, func() {
		cancel(nil)
		c.mu.Lock()
		defer c.mu.Unlock()
		if delete(c.open[query], &cancel); len(c.open[query]) == 0 {
			delete(c.open, query)
		}
	}
}

// cancelQuery cancels every call of a query with [errStopped].
func (c *calls) cancelQuery(query string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cancel := range c.open[query] {
		(*cancel)(errStopped)
	}
}
