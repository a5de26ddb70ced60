package model

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/text"
	"conclave/subjects"
)

// record begins the audit record of a call. The model's name stands in the place of a tool's.
func (m *Model) record(out actor.Out, action, from, session, query, name string, params []byte) subjects.AuditRecord {
	if checkName(name) != nil {
		name = ""
	}
	return subjects.AuditRecord{
		ID: out.NewID(), AgentID: from, Action: action, Tool: name, ParamsHash: m.hash.Hash(params), Session: session, Query: query,
	}
}

// store appends one record. The caller's own deadline does not cut it short: a call that began is recorded to its end.
func (m *Model) store(ctx context.Context, rec subjects.AuditRecord, phase, status, reason string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.AuditTimeout)
	defer cancel()
	rec.Phase, rec.Status, rec.Reason = phase, status, reason
	return m.audit.Append(ctx, rec)
}

// refuse stores that nothing was asked of a model, and why. It returns what the caller is told.
func (m *Model) refuse(ctx context.Context, out actor.Out, rec subjects.AuditRecord, err error) error {
	f := fault(ctx, err)
	status := subjects.StatusDenied
	if f.Code == subjects.CodeMalformed {
		status = subjects.StatusRefused
	}
	if err := m.store(ctx, rec, subjects.AuditBefore, status, f.Code); err != nil { // nothing was asked either way
		out.LogError(fmt.Errorf("recording a refused call: %w", err))
	}
	return f
}

// finish stores what came of a call. It returns what the caller is told, nil when all is well. began says that the model
// was asked: one who went while he waited for his turn leaves nothing open.
func (m *Model) finish(ctx context.Context, rec subjects.AuditRecord, began bool, err error) error {
	status, reason := subjects.StatusOK, ""
	var f *subjects.Fault
	if err != nil {
		f = fault(ctx, err)
		status, reason = subjects.StatusFailed, f.Code
		switch {
		case errors.Is(err, model.ErrRemote):
			status = subjects.StatusDenied
		case (ctx.Err() != nil || errors.Is(err, errCutShort)) && began:
			status = subjects.StatusUnknown // broken off: how far the model had come is not known
		}
	}
	if err := m.store(ctx, rec, subjects.AuditAfter, status, reason); err != nil && f == nil {
		f = subjects.Faultf(subjects.CodeUnrecorded, "the model answered, but the audit did not take the outcome, so it is withheld")
	}
	if f == nil {
		return nil
	}
	return f
}

// noAudit says what to do about an audit that does not answer.
func noAudit(err error) *subjects.Fault {
	text := "the audit did not acknowledge the record, so no model was asked; see conclave doctor"
	if errors.Is(err, audit.ErrFull) {
		text = "the audit is full, so no model was asked; stop conclave and run conclave audit rotate"
	}
	return subjects.Faultf(subjects.CodeNoAudit, "%s", text)
}

// errStopped is the cause of a call that the user stopped.
var errStopped = errors.New("the user stopped it")

var errCalls = fmt.Errorf("%w: its calls are too long or no JSON", model.ErrMalformed)

// fault is an error as the caller is told. A context that ended is the reason for whatever error it led to.
func fault(ctx context.Context, err error) *subjects.Fault {
	var f *subjects.Fault
	ended := ctx.Err() != nil
	switch {
	case errors.As(err, &f) && f != nil:
		return f
	case errors.Is(err, errFull):
		return subjects.Faultf(subjects.CodeBusy, "%v; try again in a moment", err)
	case errors.Is(err, errCutShort):
		return subjects.Faultf(subjects.CodeBusy, "%v; ask again, best without streaming: then it starts anew by itself", err)
	case ended && errors.Is(context.Cause(ctx), errStopped):
		return subjects.Faultf(subjects.CodeStopped, "%v", errStopped)
	case ended && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return subjects.Faultf(subjects.CodeTimeout, "the model did not finish in time; it may be slow, or others are before you")
	case ended:
		return subjects.Faultf(subjects.CodeUnavailable, "the call was broken off")
	}
	f = wire.Fault(err)
	if f == nil {
		f = subjects.Faultf(subjects.CodeUnavailable, "%v", err)
	}
	f.Text = text.Clip(strings.Join(strings.Fields(f.Text), " "), maxText)
	return f
}

// calls are what is asked right now, by query, so that a query can be stopped.
type calls struct {
	mu   sync.Mutex
	open map[string]map[*context.CancelCauseFunc]struct{}
}

// begin notes a call of a query. What it returns must be called at its end.
func (c *calls) begin(ctx context.Context, query string) (context.Context, func()) {
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

// stop ends every call of a query.
func (c *calls) stop(query string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cancel := range c.open[query] {
		(*cancel)(errStopped)
	}
}
