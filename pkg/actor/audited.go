package actor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"conclave/pkg/audit"
	"conclave/subjects"
)

// AuditLog stores audit records. Append returns nil only when the record is acknowledged.
type AuditLog interface {
	Append(ctx context.Context, rec subjects.AuditRecord) error
}

// Audit is an [AuditLog] that its actor closes.
type Audit interface {
	AuditLog
	Close(ctx context.Context) error
}

// Hasher makes the keyed hash of a request, which the audit log stores in place of the request.
type Hasher interface{ Hash(params []byte) string }

// Gate guards the effects of an actor with the audit log: [Audited] stores the intent of an act, runs the act, and
// stores its outcome. Without an acknowledged intent the act does not run; without an acknowledged outcome its result
// is withheld.
type Gate struct {
	Log     AuditLog
	Timeout time.Duration // for storing one record; 0 = 10 s
	// TypeOf returns the agent type of an agent id, for records without one; nil = they stay without.
	TypeOf   func(agentID string) string
	refusals refusalCounter

	NotDone string // for the caller when the intent is not stored, e.g. "no credential was read"
	Done    string // for the caller when the outcome is not stored, e.g. "the credential was read"
}

const defaultAuditTimeout = 10 * time.Second

// ErrUnrecorded is wrapped by the error of [Audited] when the act ran and its outcome could not be stored.
var ErrUnrecorded = errors.New("outcome not recorded")

// errNoPermit is returned by [Permit.Check].
var errNoPermit = errors.New("no effect without an audit record: the permit is missing or its act has ended")

// Permit proves that the intent of one act is stored in the audit log. Only [Audited] makes valid ones, and a permit is
// valid while its act runs. A function that causes an effect takes a permit and checks it before it does anything.
type Permit struct {
	valid          atomic.Bool
	status, reason string
}

// Check returns an error for a nil permit, one that [Audited] did not make, and one whose act has ended.
func (p *Permit) Check() error {
	if p == nil || !p.valid.Load() {
		return errNoPermit
	}
	return nil
}

// Report sets the outcome that is recorded, in place of the one derived from the act's error: [subjects.StatusUnknown]
// for an act that may have run, [subjects.StatusDenied] for one that was denied on the way. reason is a code, never
// content. It must not be called concurrently.
func (p *Permit) Report(status, reason string) { p.status, p.reason = status, reason }

// Audited stores the intent rec, runs act and stores its outcome. The outcome is ok when act returns nil, otherwise
// failed with the code of the fault (internal for any other error), unless act calls [Permit.Report].
//
//   - An intent that is not acknowledged: act does not run; the error is a [subjects.CodeNoAudit] fault.
//   - An outcome that is not acknowledged: the result is withheld (zero T). The error wraps [ErrUnrecorded], and is
//     act's
//     own, or a [subjects.CodeUnrecorded] fault when act had none.
//   - Otherwise act's result and error are returned as they are.
//
// A streaming act sends its pieces itself and returns the last one, which the caller sends after Audited has returned.
// The caller's deadline ends act, but does not interrupt the storing of records. An act that panics leaves the intent
// without an outcome: it may have run.
//
// rec names the caller, action and target; rec.ID is made when empty, rec.Reason is the intent's.
func Audited[T any](ctx context.Context, out Out, g *Gate, rec subjects.AuditRecord,
	act func(ctx context.Context, p *Permit) (T, error),
) (T, error) {
	var none T
	if rec.ID == "" {
		rec.ID = out.NewID()
	}
	rec.Lineage = lineageOf(rec)
	if err := g.append(ctx, rec, subjects.AuditBefore, subjects.StatusAllowed, rec.Reason); err != nil {
		return none, g.noAudit(err)
	}
	p := &Permit{}
	p.valid.Store(true)
	result, err := runPermitted(ctx, p, act)
	status, reason := p.outcome(err)
	if late := g.append(ctx, rec, subjects.AuditAfter, status, reason); late != nil {
		if err == nil {
			err = subjects.Faultf(subjects.CodeUnrecorded, "%s, but the audit did not acknowledge the outcome, so "+
				"the result is withheld", g.doneText())
		}
		return none, unrecorded{err}
	}
	return result, err
}

// runPermitted runs act and ends its permit, also when act panics.
func runPermitted[T any](ctx context.Context, p *Permit, act func(context.Context, *Permit) (T, error)) (T, error) {
	defer p.valid.Store(false)
	return act(ctx, p)
}

// outcome returns the status and reason to record for an act that returned err: those of [Permit.Report] if it was
// called, ok without a reason for nil, otherwise failed with the code of the fault, or internal for any other error.
func (p *Permit) outcome(err error) (status, reason string) {
	switch {
	case p.status != "":
		return p.status, p.reason
	case err == nil:
		return subjects.StatusOK, ""
	}
	return subjects.StatusFailed, cmp.Or(subjects.CodeOf(err), subjects.CodeInternal)
}

// unrecorded is the error of an act whose outcome was not stored.
type unrecorded struct{ error }

func (u unrecorded) Unwrap() []error { return []error{u.error, ErrUnrecorded} }

// Record stores a record that no outcome follows, and returns when it is acknowledged. It rejects a status for which
// something ran (see [subjects.NothingRan]). The error is a [subjects.CodeNoAudit] fault when the record is not
// acknowledged. rec.ID is made when empty; reason replaces rec.Reason.
func (g *Gate) Record(ctx context.Context, out Out, rec subjects.AuditRecord, status, reason string) error {
	if !subjects.NothingRan(status) {
		return fmt.Errorf("recording %s: status %q needs an outcome", rec.Action, status)
	}
	if err := g.appendRefusal(ctx, out, rec, status, reason); err != nil {
		return g.noAudit(err)
	}
	return nil
}

// Refuse records a refusal that stands whether it is recorded or not: the cause of a failure to record goes to the log.
func (g *Gate) Refuse(ctx context.Context, out Out, rec subjects.AuditRecord, status, reason string) {
	if err := g.appendRefusal(ctx, out, rec, status, reason); err != nil {
		out.LogError(fmt.Errorf("recording a refused %s: %w", rec.Action, err))
	}
}

// appendRefusal stores the only record of an act that did not run, and rejects a status for which something ran. rec.ID
// is made when empty. The error is that of the log, not a fault. When an account is refused the same action again and
// again, only the first refusals of a period have a record each; see [refusalCounter]. A failure to store the number of
// earlier refusals is logged, and does not prevent the record of this one; it is the error of a refusal that is only
// counted.
func (g *Gate) appendRefusal(ctx context.Context, out Out, rec subjects.AuditRecord, status, reason string) error {
	if !subjects.NothingRan(status) {
		return fmt.Errorf("status %q needs an outcome", status)
	}
	admitted, summaries := g.refusals.count(rec, status, out.Now())
	err := g.appendSummaries(ctx, summaries, out.NewID)
	if !admitted {
		return err
	}
	if err != nil {
		out.LogError(err)
	}
	if rec.ID == "" {
		rec.ID = out.NewID()
	}
	return g.append(ctx, rec, subjects.AuditBefore, status, reason)
}

// Close stores the numbers of the refusals that were only counted so far. It must be called after the last refusal and
// before the log is closed. After an error it may be called again.
func (g *Gate) Close(ctx context.Context) error {
	return g.appendSummaries(ctx, g.refusals.drain(), NewID)
}

// appendSummaries stores records about refusals that were only counted. After the first failure it puts the numbers
// that are not stored back and returns, so that a caller waits for one timeout only.
func (g *Gate) appendSummaries(ctx context.Context, summaries []refusalSummary, newID func() string) error {
	for i, sum := range summaries {
		rec := sum.record()
		rec.ID = newID()
		if err := g.append(ctx, rec, subjects.AuditBefore, rec.Status, rec.Reason); err != nil {
			g.refusals.restore(summaries[i:])
			return fmt.Errorf("recording the number of repeated refusals: %w", err)
		}
	}
	return nil
}

// OnReject is the option of a route that records each message rejected before its handler as refused, under action,
// with the code of the fault as reason. agent names the caller; nil = the first wildcard of the subject, "" where that
// is no valid token, so nil needs a subject into which the server writes the account. A record that is not stored is
// only logged.
func (g *Gate) OnReject(action string, agent func(Rejection) string) Option {
	if agent == nil {
		agent = func(rej Rejection) string {
			if len(rej.Tokens) > 0 && subjects.CheckToken(rej.Tokens[0]) == nil {
				return rej.Tokens[0]
			}
			return ""
		}
	}
	return OnReject(func(ctx context.Context, rej Rejection, out Out) {
		rec := subjects.AuditRecord{AgentID: agent(rej), Action: action, Session: rej.Session, Query: rej.Query}
		g.Refuse(ctx, out, rec, subjects.StatusRefused, rej.Fault.Code)
	})
}

// append stores one record, with the lineage of its agent id, and its type if the caller set none, and returns when it
// is acknowledged or after g.Timeout (10 s when not positive). The caller's deadline and cancellation do not interrupt
// it: an act that began is recorded to its end.
func (g *Gate) append(ctx context.Context, rec subjects.AuditRecord, phase, status, reason string) error {
	timeout := g.Timeout
	if timeout <= 0 {
		timeout = defaultAuditTimeout
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	rec.Phase, rec.Status, rec.Reason = phase, status, reason
	rec.Lineage = lineageOf(rec)
	if rec.AgentType == "" && g.TypeOf != nil {
		rec.AgentType = g.TypeOf(rec.AgentID)
	}
	begun := time.Now()
	err := g.Log.Append(ctx, rec)
	measureAudit(ctx, time.Since(begun), err)
	return err
}

// lineageOf returns the lineage of a record: its own, or that of its agent id.
func lineageOf(rec subjects.AuditRecord) []string {
	if rec.AgentID == "" || rec.Lineage != nil {
		return rec.Lineage
	}
	return strings.Split(rec.AgentID, ".")
}

// noAudit returns the fault for a record that was not acknowledged because of err. Its text names the remedy, rotation
// for a full audit log, and quotes nothing of err.
func (g *Gate) noAudit(err error) *subjects.Fault {
	what := g.NotDone
	what = cmp.Or(what, "nothing was done")
	if errors.Is(err, audit.ErrFull) {
		return subjects.Faultf(subjects.CodeNoAudit, "the audit is full, so %s; stop conclave and run conclave audit "+
			"rotate", what)
	}
	return subjects.Faultf(subjects.CodeNoAudit, "the audit did not acknowledge the record, so %s; see conclave doctor",
		what)
}

func (g *Gate) doneText() string {
	if g.Done == "" {
		return "it was done"
	}
	return g.Done
}
