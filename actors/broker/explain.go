package broker

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// onValidate is a dry run of the caller's own call: every layer decides, but nothing runs, is counted or is put to the
// user.
func (b *Broker) onValidate(ctx context.Context, in actor.Msg[subjects.ToolRequest], out actor.Out) (subjects.Verdict,
	error,
) {
	caller, err := subjects.ParseAgentSubject("broker.validate", in.Subject)
	if err != nil {
		return subjects.Verdict{}, subjects.Faultf(subjects.CodeSubject, "invalid validate subject: %v", err)
	}
	return b.explainCall(ctx, out, caller.ID(), caller, in.Body.Tool, in.Body.Args, in.Session, queryID(in))
}

// onExplain is the user's dry run of a call by any caller, for the session's last query when none is given. It denies
// every account but the user's. It rejects names and ids that are no tokens, and a caller deeper than
// [subjects.MaxDepth]. As is the caller's account and path, separated by dots. Without a session the call is judged as
// in a new one.
func (b *Broker) onExplain(ctx context.Context, in actor.Msg[subjects.ExplainRequest], out actor.Out) (subjects.Verdict,
	error,
) {
	q := in.Body
	if !slices.Contains(subjects.UserAccounts, in.From) {
		return subjects.Verdict{}, subjects.Faultf(subjects.CodeDenied, "only the user may explain calls of other "+
			"callers")
	}
	parts := strings.Split(q.As, ".")
	for _, p := range append(parts, q.Tool) {
		if err := subjects.CheckToken(p); err != nil {
			return subjects.Verdict{}, subjects.Faultf(subjects.CodeMalformed, "invalid as or tool: %v", err)
		}
	}
	for _, id := range []string{q.SessionID, q.QueryID} {
		if id != "" && subjects.CheckToken(id) != nil {
			return subjects.Verdict{}, subjects.Faultf(subjects.CodeMalformed, "invalid session_id or query_id: use "+
				"letters, digits, - and _ only")
		}
	}
	if len(parts)-1 > subjects.MaxDepth {
		return subjects.Verdict{}, subjects.Faultf(subjects.CodeMalformed, "invalid as: the path is deeper than %d "+
			"agents", subjects.MaxDepth)
	}
	if q.SessionID != "" && q.QueryID == "" {
		last, _, found, err := readTurn(ctx, out, map[string]any{"last_by_subj": "turn.*." + q.SessionID})
		if err != nil {
			out.LogError(err)
			return subjects.Verdict{}, subjects.Faultf(subjects.CodeUnavailable, "the session's queries cannot be "+
				"read; see conclave doctor")
		}
		if found {
			q.QueryID = last.QueryID
		}
	}
	return b.explainCall(ctx, out, in.From, subjects.Caller{Account: parts[0], Path: parts[1:]}, q.Tool, q.Args,
		q.SessionID, q.QueryID)
}

// explainCall decides about a call without making it and returns the verdict; nothing runs, is counted, claimed or put
// to the user. The dry run itself is recorded; without that record there is no verdict. requester is who asked, caller
// the one whose call it would be; missing args are {}. A call that is malformed or of a tool that cannot be called is a
// denial in the verdict; an error means that there is none.
func (b *Broker) explainCall(ctx context.Context, out actor.Out, requester string, caller subjects.Caller, tool string,
	args json.RawMessage, session, query string,
) (subjects.Verdict, error) {
	if err := subjects.CheckToken(tool); err != nil {
		return subjects.Verdict{}, subjects.Faultf(subjects.CodeMalformed, "invalid tool name: %v", err)
	}
	if len(args) == 0 || string(args) == "null" { // left out, in either codec
		args = json.RawMessage("{}")
	}
	r, known, unfit := b.receive(ctx, out, subjects.ToolRequest{Args: args}, caller, tool, session, query)
	seen, fault := b.gatherFacts(ctx, out, r, known, true)
	rec := r.Record
	rec.AgentID, rec.AgentType, rec.Lineage = requester, seen.call.Type, caller.Lineage()
	rec.Action = subjects.ActionValidate
	if err := b.gate.Record(ctx, out, rec, subjects.StatusShown, ""); err != nil {
		return subjects.Verdict{}, err
	}
	switch {
	case fault != nil:
		return subjects.Verdict{}, fault
	case unfit != nil:
		return subjects.Verdict{Denial: &subjects.Denial{
			Layer: policy.LayerTool, Rule: unfit.Code, Reason: unfit.Text,
		}}, nil
	}
	asked := seen.call
	asked.Usage = withBudgets(b.usage.Peek(out.Now(), b.newAttempt(r, seen)), seen.budgets)
	if session == "" && asked.Flow == nil && slices.Contains(subjects.UserAccounts, requester) {
		// without a session the user means a new one, whose question says nothing yet
		asked.Flow = (&policy.Flow{}).WithQuestion(asked.Query, "", nil)
	}
	// a dry run keeps nothing: it assumes that the state before can be kept
	if own, _ := b.ownKeeper(known); own.Keeps {
		asked.Kept = &policy.Kept{
			ChangeRef: subjects.ChangeRef{Files: []string{"the file"}}, MayPass: !seen.rules.Manifest.AskReversible,
		}
		work := b.workFolder(r)
		folders := seen.rules.Chain.FolderRules(asked, work)
		asked.Kept.Own = ownFolder(folders, work)
		if known.Sandboxed {
			asked.Kept.Work = onlyFolder(folders, work)
			asked.Kept.Files = []string{asked.Kept.Work}
		}
	}
	if d := denyRespondentB(asked); d != nil {
		return subjects.Verdict{Denial: d}, nil
	}
	j := stage.Judge(ctx, seen.rules, r, asked, nil)
	v := j.Decision().Verdict()
	if d := denyQuestions(j); d != nil {
		v.Asks, v.Denial = nil, d
	}
	if asked.Kept != nil {
		asked.Kept = nil
		asks := stage.Judge(ctx, seen.rules, r, asked, nil).Decision().Asks()
		for i, l := range v.Layers {
			wouldAsk := slices.ContainsFunc(asks, func(q policy.Question) bool { return q.Layer == l.Layer })
			if l.Verdict == "pass" && wouldAsk {
				v.Layers[i].Reason = "if the state before can be kept; it asks otherwise"
			}
		}
	}
	return v, nil
}
