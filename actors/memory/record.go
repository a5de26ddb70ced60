package memory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/subjects"
)

// What the audit calls what memory does.
const (
	actRead  = "memory.read"
	actWrite = "memory.write"
	actGrade = "memory.annotate"
	actAdmin = "memory.admin"
)

// act is something that memory is about to do for somebody.
type act struct {
	who     string // the account, with the path of spawned agents below it
	action  string
	tool    string // a tool, or the operation
	params  []byte // of these a keyed hash is kept
	session string
	query   string
}

// recorded stores that something is about to happen, does it, and stores what came of it. Without the first record nothing
// is done. What was done and could not be recorded is an error: what came of it is not given out.
func (m *Memory) recorded(ctx context.Context, out actor.Out, a act, do func() error) error {
	rec := subjects.AuditRecord{
		ID: out.NewID(), AgentID: a.who, Action: a.action, Tool: a.tool, ParamsHash: m.hash.Hash(a.params), Session: a.session, Query: a.query,
	}
	if err := m.record(ctx, rec, subjects.AuditBefore, subjects.StatusAllowed, ""); err != nil {
		return noAudit(err)
	}
	err := do()
	status, reason := subjects.StatusOK, ""
	if err != nil {
		status, reason = subjects.StatusFailed, subjects.CodeInternal
		var f *subjects.Fault
		if errors.As(err, &f) {
			reason = f.Code
		}
	}
	if late := m.record(ctx, rec, subjects.AuditAfter, status, reason); late != nil && err == nil {
		return subjects.Faultf(subjects.CodeUnrecorded, "it was done, but the audit did not take the outcome, so it is withheld")
	}
	return err
}

// record appends one record. The caller's own deadline does not cut it short: what began is recorded to its end.
func (m *Memory) record(ctx context.Context, rec subjects.AuditRecord, phase, status, reason string) error {
	limit := m.cfg.AuditTimeout
	if limit <= 0 {
		limit = 10 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	rec.Phase, rec.Status, rec.Reason = phase, status, reason
	return m.audit.Append(ctx, rec)
}

// onUnreadable records a request that could not even be read.
func (m *Memory) onUnreadable(action string) func(ctx context.Context, rej actor.Rejection, out actor.Out) {
	return func(ctx context.Context, rej actor.Rejection, out actor.Out) {
		who := ""
		if len(rej.Tokens) > 0 && subjects.CheckToken(rej.Tokens[0]) == nil {
			who = rej.Tokens[0]
		}
		rec := subjects.AuditRecord{ID: out.NewID(), AgentID: who, Action: action, Session: rej.Session, Query: rej.Query}
		if err := m.record(ctx, rec, subjects.AuditBefore, subjects.StatusRefused, rej.Fault.Code); err != nil {
			out.LogError(fmt.Errorf("recording a refused request: %w", err))
		}
	}
}

// noAudit says what to do about an audit that does not answer.
func noAudit(err error) *subjects.Fault {
	text := "the audit did not acknowledge the record, so memory did nothing; see conclave doctor"
	if errors.Is(err, audit.ErrFull) {
		text = "the audit is full, so memory did nothing; stop conclave and run conclave audit rotate"
	}
	return subjects.Faultf(subjects.CodeNoAudit, "%s", text)
}
