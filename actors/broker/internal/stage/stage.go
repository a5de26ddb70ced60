// Package stage has a tool call as the broker gets to know it: a [Received] call is what the caller requested, a
// [Judged] one has the decision of the layers, a [Permitted] one may run, and a [Running] one has its intent in the
// audit log. A call is sent to its tool, and gets credentials, only while it is Running: nothing else in the broker
// names the services of tools and secrets. One effect comes earlier, behind a record of its own: the preview of a call
// about which the user is asked.
package stage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Received is a tool call as its caller requested it. Nothing is decided about it.
type Received struct {
	ID      string          // call_id of the caller, or a new id
	Named   bool            // the request had a call_id
	Caller  subjects.Caller // from the subject, where the server wrote it
	Tool    string          // from the subject
	Args    json.RawMessage // with whole paths
	Own     bool            // the runtime recalls the user's own statements: no model chose the call
	Session string
	Query   string
	Record  subjects.AuditRecord
}

// Key is the key of the call in the ledger: the caller's id, and the call_id.
func (r Received) Key() string { return r.Caller.ID() + "." + r.ID }

// Result returns a result of the call without content.
func (r Received) Result() subjects.ToolResult {
	return subjects.ToolResult{CallID: r.ID, QueryID: r.Query, Tool: r.Tool}
}

// Judged is a call with the decision of the layers, and what they decided by. It may not run yet.
type Judged struct {
	received  Received
	rules     policy.Rules
	facts     policy.Call
	decision  policy.Decision
	approved  bool // by the user, for this judgement or an earlier one
	previewed bool
}

// Judge lets the layers decide about r. Caller, arguments, session and query in facts are replaced by those of r, so
// that the decision belongs to the call. earlier is the judgement that this one replaces, nil for the first: its
// approval and its preview count.
func Judge(ctx context.Context, rules policy.Rules, r Received, facts policy.Call, earlier *Judged) *Judged {
	facts.Caller, facts.Args, facts.Session, facts.Query = r.Caller, r.Args, r.Session, r.Query
	r.Record.AgentType = facts.Type
	j := &Judged{received: r, rules: rules, facts: facts, decision: rules.Chain.Decide(ctx, facts)}
	if earlier != nil {
		j.approved, j.previewed = earlier.approved, earlier.previewed
	}
	return j
}

// Received returns the call that was judged; its record has the type of the caller.
func (j *Judged) Received() Received { return j.received }

// Facts returns what the layers decided by.
func (j *Judged) Facts() policy.Call { return j.facts }

// Rules returns the rules that decided.
func (j *Judged) Rules() policy.Rules { return j.rules }

// Decision returns the decision of the layers.
func (j *Judged) Decision() policy.Decision { return j.decision }

// Previewed reports whether the tool was, or may have been, asked for a preview of the call.
func (j *Judged) Previewed() bool { return j.previewed }

// AssumePreview notes that an earlier request of the call may have asked the tool for a preview.
func (j *Judged) AssumePreview() { j.previewed = true }

// Allow permits a call that every layer passed. For one that needs a grant of its question, update changes the stored
// flow of its session by compare-and-set before the call runs, so that concurrent calls cannot use a grant twice. ok is
// false without an error when no grant is left: another call used it, and the caller must judge again. A call that the
// user approved, one that can be undone, and one that claimed its grant before a crash, claims nothing.
func (j *Judged) Allow(update func(change func(*policy.Flow) *policy.Flow) error) (_ Permitted, ok bool, _ error) {
	asked, r := j.facts, j.received
	switch {
	case !j.decision.Allowed():
		return Permitted{}, false, errNotPermitted
	case j.approved || !j.decision.NeedsGrant() || asked.Flow == nil || asked.FromUser || asked.HasFullOverride() ||
		asked.IsUndoable() || r.Caller.Account == subjects.RespondentB || !asked.Tool.UsesGrants():
		return Permitted{j}, true, nil
	}
	id := HashParts(r.Key(), r.Record.ParamsHash)
	err := update(func(f *policy.Flow) (next *policy.Flow) {
		next, ok = f.ClaimGrant(asked, id)
		return next
	})
	if !ok || err != nil {
		return Permitted{}, false, err
	}
	return Permitted{j}, true, nil
}

// Open returns the questions of the layers that nothing in given covers; none for a call that they passed or denied.
func (j *Judged) Open(given ...Consent) []policy.Question {
	return slices.DeleteFunc(j.decision.Asks(), func(q policy.Question) bool {
		return slices.ContainsFunc(given, func(c Consent) bool { return c.covers != nil && c.covers(j, q) })
	})
}

// Approve permits a call about which the layers have questions when what the user agreed to covers each of them.
func (j *Judged) Approve(given ...Consent) (Permitted, *subjects.Fault) {
	if len(j.decision.Asks()) == 0 || len(j.Open(given...)) > 0 {
		return Permitted{}, errNotPermitted
	}
	j.approved = true
	return Permitted{j}, nil
}

// HashParts returns a token that identifies parts. Each part is hashed with its length, so that different splits of
// the same text differ.
func HashParts(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Preview asks the tool in a zone what the call would do, in [subjects.ModePreview], within limit and behind a record
// of its own. Only a call about which the layers have questions has a preview.
func (j *Judged) Preview(ctx context.Context, out actor.Out, gate *actor.Gate, zone string, limit time.Duration,
	order subjects.ToolOrder,
) (subjects.ToolResult, error) {
	if len(j.decision.Asks()) == 0 {
		return subjects.ToolResult{}, errNotPermitted
	}
	rec := j.received.Record
	rec.ID, rec.Action = out.NewID(), subjects.ActionToolPreview
	order.Args, order.Mode = j.facts.Args, subjects.ModePreview
	return actor.Audited(ctx, out, gate, rec, func(ctx context.Context, p *actor.Permit) (subjects.ToolResult, error) {
		j.previewed = true
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		res, err := j.send(ctx, out, zone, false, order)
		if err == nil && res.Error != nil {
			p.Report(subjects.StatusFailed, subjects.CodeTool) // the tool chooses the code of its fault
		}
		return res, err
	})
}

// Capture asks the tool in a zone to keep the state of what the call would change, in [subjects.ModeCapture], within
// limit and behind a record of its own. A call that the layers deny keeps nothing.
func (j *Judged) Capture(ctx context.Context, out actor.Out, gate *actor.Gate, zone string, limit time.Duration,
	order subjects.ToolOrder,
) (subjects.ToolResult, error) {
	if j.decision.Denial() != nil {
		return subjects.ToolResult{}, errNotPermitted
	}
	rec := j.received.Record
	rec.ID, rec.Action, rec.Change = out.NewID(), subjects.ActionToolCapture, order.Change.ID
	order.Args, order.Mode = j.facts.Args, subjects.ModeCapture
	return actor.Audited(ctx, out, gate, rec, func(ctx context.Context, p *actor.Permit) (subjects.ToolResult, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		res, err := j.send(ctx, out, zone, false, order)
		if err == nil && res.Error != nil {
			p.Report(subjects.StatusFailed, subjects.CodeTool) // the tool chooses the code of its fault
		}
		return res, err
	})
}

// KeeperFunc orders a tool of the build that keeps changes to list or take them back.
type KeeperFunc func(ctx context.Context, zone, tool string, order subjects.ToolOrder) (subjects.ToolResult, error)

// AskKeepers runs act, which asks keepers of changes, behind the record rec. What it gets is of no use after act.
func AskKeepers[T any](ctx context.Context, out actor.Out, gate *actor.Gate, rec subjects.AuditRecord,
	act func(ctx context.Context, ask KeeperFunc) (T, error),
) (T, error) {
	return actor.Audited(ctx, out, gate, rec, func(ctx context.Context, p *actor.Permit) (T, error) {
		return act(ctx, func(ctx context.Context, zone, tool string, order subjects.ToolOrder) (res subjects.ToolResult,
			err error,
		) {
			if err := p.Check(); err != nil {
				return res, err
			}
			service, err := subjects.ToolCallService.With(zone, tool)
			if err != nil {
				return res, err
			}
			order.CallID, order.Mode, order.Args = rec.ID, subjects.ModeUndo, json.RawMessage(`{}`)
			if res, err = actor.Ask(ctx, out, service, order); err == nil && res.Error != nil {
				err = res.Error
			}
			return res, err
		})
	})
}

// send sends an order of the call to its tool in a zone. plain is for a tool that needs nothing but a NATS client.
func (j *Judged) send(ctx context.Context, out actor.Out, zone string, plain bool,
	order subjects.ToolOrder,
) (subjects.ToolResult, error) {
	service, err := subjects.ToolCallService.With(zone, j.facts.Tool.Name)
	if err != nil {
		return subjects.ToolResult{}, subjects.Faultf(subjects.CodeUnavailable, "no valid subject for tool %s",
			j.received.Tool)
	}
	if plain {
		service.Codec = subjects.JSON
	}
	order.CallID, order.QueryID = j.received.ID, j.received.Query
	return actor.Ask(ctx, out, service, order)
}

// Permitted is a call that may run: every layer passed it and its grant is claimed, or the user agreed to all that they
// ask. The zero value may not run.
type Permitted struct{ judged *Judged }

// errNotPermitted is a fault of the broker itself.
var errNotPermitted = subjects.Faultf(subjects.CodeInternal, "the call is not permitted, so nothing was run")

// Judged returns the judgement by which the call may run; nil for the zero value.
func (p Permitted) Judged() *Judged { return p.judged }

// Approved reports whether the user approved the call.
func (p Permitted) Approved() bool { return p.judged != nil && p.judged.approved }

// Run records that the call runs, runs act and records the outcome, each before the next. An error means that act did
// not run. When the outcome is not recorded the result is withheld, and has an unrecorded fault.
func (p Permitted) Run(ctx context.Context, out actor.Out, gate *actor.Gate,
	act func(context.Context, Running) subjects.ToolResult,
) (res subjects.ToolResult, _ error) {
	if p.judged == nil {
		return res, errNotPermitted
	}
	begun := false
	rec := p.judged.received.Record
	if kept := p.judged.facts.Kept; kept != nil {
		rec.Change = kept.ID
	}
	_, err := actor.Audited(ctx, out, gate, rec, func(ctx context.Context,
		permit *actor.Permit,
	) (struct{}, error) {
		begun = true
		res = act(ctx, Running{p.judged, permit})
		if res.Error == nil {
			return struct{}{}, nil
		}
		if res.Error.Code == subjects.CodeTimeout {
			permit.Report(subjects.StatusUnknown, subjects.CodeTimeout) // the tool may have run
		}
		return struct{}{}, res.Error
	})
	if !begun {
		return res, err
	}
	if errors.Is(err, actor.ErrUnrecorded) {
		res.Result, res.Links, res.Parked, res.Artifacts = "", nil, nil, nil
		res.Error = subjects.Faultf(subjects.CodeUnrecorded, "%s ran, but its outcome could not be recorded in the "+
			"audit log, so the result is withheld", p.judged.received.Tool)
	}
	return res, nil
}

// Running is a permitted call whose intent is in the audit log. It is of no use after its act, and neither is the zero
// value.
type Running struct {
	judged *Judged
	permit *actor.Permit
}

// Judged returns the judgement by which the call runs; nil for the zero value.
func (r Running) Judged() *Judged { return r.judged }

// Send sends the call to its tool in a zone and returns the reply. The arguments are those that were judged, the rest
// is that of order. plain is for a tool that needs nothing but a NATS client.
func (r Running) Send(ctx context.Context, out actor.Out, zone string, plain bool,
	order subjects.ToolOrder,
) (subjects.ToolResult, error) {
	if err := r.permit.Check(); err != nil {
		return subjects.ToolResult{}, subjects.Faultf(subjects.CodeNoAudit, "%v", err)
	}
	order.Args = r.judged.facts.Args
	return r.judged.send(ctx, out, zone, plain, order)
}

// Answer sends the answer to a form that the tool returned for this call.
func (r Running) Answer(ctx context.Context, out actor.Out, zone string,
	answer subjects.FormAnswer,
) (subjects.ToolResult, error) {
	if err := r.permit.Check(); err != nil {
		return subjects.ToolResult{}, subjects.Faultf(subjects.CodeNoAudit, "%v", err)
	}
	return r.judged.send(ctx, out, zone, true, subjects.ToolOrder{
		Args: json.RawMessage(`{}`), Mode: subjects.ModeAnswer, Answer: &answer,
	})
}

// Credential requests a credential for the tool, sealed to its key.
func (r Running) Credential(ctx context.Context, out actor.Out, q subjects.SecretGet) (subjects.SecretValue,
	*subjects.Fault,
) {
	return getCredential(ctx, out, r.permit, q)
}

// UseCredential requests a credential that an account may use by itself, without a call, behind the record rec.
func UseCredential(ctx context.Context, out actor.Out, gate *actor.Gate, rec subjects.AuditRecord,
	q subjects.SecretGet,
) (subjects.SecretValue, error) {
	return actor.Audited(ctx, out, gate, rec, func(ctx context.Context, p *actor.Permit) (subjects.SecretValue,
		error,
	) {
		v, fault := getCredential(ctx, out, p, q)
		if fault != nil {
			return subjects.SecretValue{}, fault
		}
		return v, nil
	})
}

// getCredential requests one credential. Without a valid permit nothing is requested. A credential that does not exist
// is a no-secret fault with the text of the secrets actor; every other failure, an empty reply included, is an
// unavailable fault.
func getCredential(ctx context.Context, out actor.Out, p *actor.Permit, q subjects.SecretGet) (subjects.SecretValue,
	*subjects.Fault,
) {
	if err := p.Check(); err != nil {
		return subjects.SecretValue{}, subjects.Faultf(subjects.CodeNoAudit, "%v", err)
	}
	v, err := actor.Ask(ctx, out, subjects.SecretGetService, q)
	var fault *subjects.Fault
	switch {
	case err == nil && len(v.Sealed) > 0:
		return v, nil
	case actor.IsReplyFault(err) && errors.As(err, &fault) && fault.Code == subjects.CodeNoSecret:
		return v, subjects.Faultf(subjects.CodeNoSecret, "%s", text.OneLine(fault.Text, 300))
	case errors.As(err, &fault):
		return v, subjects.Faultf(subjects.CodeUnavailable, "credential %s is unavailable (%s), so nothing was run; "+
			"see conclave secret check", q.Name, fault.Code)
	}
	return v, subjects.Faultf(subjects.CodeUnavailable, "credential %s is unavailable, so nothing was run; see "+
		"conclave secret check", q.Name)
}

// NameServedSubject replaces the subject on which the broker requests a tool of a principal, in the text of a fault of
// [Running.Send], by the one that the program subscribes to. Only the first is replaced: a later one is in the quoted
// reply.
func NameServedSubject(tool, zone, message string) string {
	requested, err := subjects.ToolCallService.With(zone, tool)
	if err != nil {
		return message
	}
	served, err := subjects.ToolEndpoint(tool)
	if err != nil {
		return message
	}
	return strings.Replace(message, requested.Name, served.Subscription(), 1)
}
