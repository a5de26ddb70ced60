// Package broker is the door between agents and tools. No other way leads there: the server's grants see to that.
//
// It listens on agent.<account>.tool.request.<tool>, agent.<account>.broker.discover and .validate,
// agent.<account>.agent.spawn, agent.<account>.secret.use and tool.schema.<zone>.<tool>, and on what only the user may
// say: ctl.<who>.approval.decision.<id>, .approval.list, .approval.revoke.<id>, .session.config and .policy.explain. It
// calls tool.call.<zone>.<tool>, secret.get and model.chat, and speaks on tool.request.<tool> and tool.result.<tool>, its
// copies of each call and result, and on approval.request.<id> and approval.decision.<id>. Who asks is what the server
// wrote into the subject, never what a payload or a header says.
//
// The way of a call: [Broker.onToolRequest] gathers what is known of it (facts.go), asks the layers of pkg/policy, asks the
// person when a layer wants that (approval.go), stores the decision, gets the credentials (credentials.go), calls the tool
// once (ledger.go), labels and frames what comes back (result.go), stores the outcome and answers.
package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// Audit is the audit log of the broker, closed when the broker stops.
type Audit interface {
	actor.AuditLog
	Close(ctx context.Context) error
}

// Hasher makes the keyed hash of a call's arguments.
type Hasher interface{ Hash(params []byte) string }

// Broker is the actor.
type Broker struct {
	cfg      Config
	rules    *policy.ActiveRules
	audit    Audit
	gate     *actor.Gate
	hash     Hasher
	table    *toolTable
	running  runningCalls
	flowMemo flowMemo
	waiting  waitingCalls
	usage    *policy.UsageCounter
}

// New returns a broker that judges by the rules of book. cfg must be valid; build is what the build knows of its own
// tools.
func New(cfg Config, book *policy.ActiveRules, a Audit, h Hasher, build []Known) *Broker {
	b := &Broker{cfg: cfg, rules: book, audit: a, hash: h, table: newTable(build)}
	b.gate = &actor.Gate{Log: a, Timeout: cfg.AuditTimeout, NotDone: "nothing was run"}
	b.usage = policy.NewUsageCounter(cmp.Or(book.Load().Manifest.Limits.Window, defaultWindow), countsRetention, maxCounted)
	return b
}

// Name implements [actor.Actor].
func (b *Broker) Name() string { return "broker" }

// Routes implements [actor.Actor].
func (b *Broker) Routes() []actor.Route {
	return []actor.Route{
		actor.Serve(subjects.ToolRequestService, b.onToolRequest, actor.OnReject(b.recordRejectedCall)),
		actor.Serve(subjects.BrokerDiscover, b.onDiscover),
		actor.Serve(subjects.BrokerDiscoverBelow, b.onDiscover),
		actor.Serve(subjects.BrokerValidate, b.onValidate),
		actor.Serve(subjects.BrokerValidateBelow, b.onValidate),
		actor.Serve(subjects.AgentSpawn, b.onSpawn),
		actor.Serve(subjects.AgentSpawnBelow, b.onSpawn),
		actor.Serve(subjects.SecretUseService, b.onSecretUse),
		actor.Serve(subjects.ApprovalDecisionService, b.onDecision, b.gate.OnReject(actionDecision, nil)),
		actor.Serve(subjects.ApprovalListService, b.onListApprovals),
		actor.Serve(subjects.ApprovalRevoke, b.onRevoke),
		actor.Serve(subjects.SessionConfigService, b.onSessionConfig),
		actor.Serve(subjects.PolicyExplain, b.onExplain),
		actor.Subscribe(subjects.ToolSchemaEvent, b.onSchema, actor.Workers(1)),
	}
}

// Close implements [actor.Closer].
func (b *Broker) Close(ctx context.Context) error { return b.audit.Close(ctx) }

// call is one request on its way through the door.
type call struct {
	id            string // the caller's
	record        subjects.AuditRecord
	tool          string
	path          []string
	args          json.RawMessage
	session       string
	respondentB   bool // respondent B calls: what it reads is no part of the session
	query         string
	typ           string              // of the caller
	fromUser      bool                // the user calls, and no model reads the result
	mode          string              // as the tool is asked
	hosts         *subjects.HostRules // where the tool may read pages
	mayReadPages  bool                // the caller may read pages
	wasBegun      bool                // it was begun before, and is no new call
	approved      bool                // the user said yes to it
	labels        *subjects.Labels    // of all that went into the session
	distilledOnly bool                // the caller never sees what strangers wrote, only what was made of it
}

// onToolRequest decides, stores the decision, acts, stores the outcome and answers, in this order. A denial is an answer.
func (b *Broker) onToolRequest(ctx context.Context, in actor.Msg[subjects.ToolRequest], out actor.Out) (subjects.ToolResult, error) {
	caller, tool, err := subjects.ParseToolRequest(in.Subject)
	if err != nil {
		rec := subjects.AuditRecord{AgentID: in.From, Action: "tool.call", Session: in.Session, Query: in.Query}
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, subjects.CodeSubject)
		return subjects.ToolResult{}, subjects.Faultf(subjects.CodeSubject, "this is not the name of a tool: %v", err)
	}
	c := call{id: in.Body.CallID, tool: tool, path: caller.Path, args: in.Body.Args, session: in.Session, respondentB: isRespondentB(caller), query: queryID(in)}
	if c.id == "" {
		c.id = out.NewID()
	}
	c.record = subjects.AuditRecord{
		ID: out.NewID(), AgentID: caller.ID(), Lineage: caller.Path, Action: "tool.call", Tool: tool,
		ParamsHash: b.hash.Hash(c.args), Session: in.Session, Query: c.query,
	}
	c.record.AgentType, _ = b.rules.Load().Manifest.TypeOf(caller)
	known, found := b.table.find(ctx, tool)
	fault := checkRequest(in.Body, known)
	if fault == nil && !found {
		fault = subjects.Faultf(subjects.CodeUnknownTool, "there is no tool %s here", tool)
	}
	if fault == nil {
		seen, ran := b.gatherAndLookUp(ctx, out, caller, known, &c, in.Body.CallID != "")
		if ran != nil { // a call that ran is answered as it was, whatever the rules say by now
			return *ran, nil
		}
		c, fault = b.judgeCall(ctx, out, caller, known, c, seen)
	}
	actor.Step(ctx, "decided")
	if fault != nil {
		return b.denyCall(ctx, out, c, fault), nil
	}
	if in.Body.CallID == "" || isHarmless(known.Tool) && !c.approved {
		return b.runAudited(ctx, out, c, known), nil
	}
	return b.runOnce(ctx, out, c, known), nil // one yes of the user is for one run
}

// gatherAndLookUp finds out about a call, and at the same time whether it ran before. For one that did, the first changes nothing but
// what any call for the same question would: its words are known, and an override for it is tied to it.
func (b *Broker) gatherAndLookUp(ctx context.Context, out actor.Out, caller subjects.Caller, k Known, c *call, named bool) (seen facts, ran *subjects.ToolResult) {
	var wg sync.WaitGroup
	var old subjects.ToolResult
	var done, begun bool
	if asked := *c; named {
		wg.Go(func() { old, done, begun = b.findCompleted(ctx, out, asked, k) })
	}
	seen = b.gatherFacts(ctx, out, caller, k, *c, false)
	wg.Wait()
	if done {
		return seen, &old
	}
	c.wasBegun = begun
	return seen, nil
}

// judgeCall decides by what is known of a call. After a yes of the user it finds that out anew and decides again: minutes
// may have passed, and the rules or the session may have changed since.
func (b *Broker) judgeCall(ctx context.Context, out actor.Out, caller subjects.Caller, k Known, c call, seen facts) (call, *subjects.Fault) {
	var spent *policy.Usage
	for range maxJudgements {
		asked := seen.call
		c.typ, c.fromUser, c.mode = asked.Type, asked.FromUser, toolMode(asked)
		c.hosts, c.mayReadPages = seen.pageAccess(b.table)
		c.labels, c.distilledOnly = sessionLabels(asked), seesDistilledOnly(asked)
		c.record.AgentType = asked.Type
		if seen.fault != nil {
			return c, seen.fault
		}
		if spent == nil { // counted once, however often it is judged
			now := b.countUsage(out, asked, c, seen, false)
			spent = &now
		}
		asked.Usage = *spent
		before := out.Now()
		yes, fault := b.decideCall(ctx, out, c, seen.rules.Chain, asked)
		c.approved = c.approved || yes
		if fault != nil || !yes || out.Now().Sub(before) < maxFactsAge {
			return c, fault
		}
		seen = b.gatherFacts(ctx, out, caller, k, c, false)
	}
	return c, subjects.Faultf(subjects.CodeBusy, "each time the user agreed to this call of %s, the rules or the session asked for more, so it was not run; ask again", c.tool)
}

const (
	// maxFactsAge is how old what is known of a call may be when it runs.
	maxFactsAge = time.Second
	// maxJudgements is how often a call is judged whose answers all take long. What is stale after the last is not run.
	maxJudgements = 4
)

// decideCall asks the layers, and then the user when a layer wants that. It returns whether the user said yes, and why
// the call may not run.
func (b *Broker) decideCall(ctx context.Context, out actor.Out, c call, chain policy.Chain, asked policy.Call) (yes bool, _ *subjects.Fault) {
	if no := denyRespondentB(asked); no != nil {
		return false, denialFault(no)
	}
	d := chain.Decide(ctx, asked)
	if err := d.Failure(); err != nil {
		out.LogError(fmt.Errorf("judging a call of %s: %w", c.tool, err))
	}
	for _, s := range d.Monitored() {
		out.LogError(fmt.Errorf("watching %s.%s, which would have stopped a call of %s by %s: %s", s.Layer, s.Rule, c.tool, c.record.AgentID, s.Reason))
	}
	if asks := d.Asks(); len(asks) > 0 {
		if no := denyRespondentBApproval(asked); no != nil {
			return false, denialFault(no)
		}
		fault := b.requestApproval(ctx, out, c, asks, asked.Flow.Sources())
		return fault == nil, fault
	}
	if d.Allowed() {
		return false, nil
	}
	denial := d.Denial()
	code := subjects.CodeDenied
	if denial.Layer == (policy.LimitsLayer{}).Name() {
		code = subjects.CodeLimit
	}
	return false, &subjects.Fault{Code: code, Text: denial.Reason, Denial: denial}
}

// runAudited runs the tool of an allowed call behind the audit gate and publishes the broker's copies of call and result. The
// tool does not run unless the audit log has acknowledged the decision. A result whose outcome could not be stored is
// withheld: the caller learns that the tool ran, and gets an unrecorded fault.
//
// Its steps are before, sent, answered, learned and after.
func (b *Broker) runAudited(ctx context.Context, out actor.Out, c call, k Known) subjects.ToolResult {
	var res subjects.ToolResult
	_, err := actor.Audited(ctx, out, b.gate, c.record, func(ctx context.Context, p *actor.Permit) (struct{}, error) {
		actor.Step(ctx, "before")
		b.publishCall(ctx, out, c)
		res = b.processResult(ctx, out, c, k, b.callTool(ctx, out, p, c, k))
		actor.Step(ctx, "learned")
		if res.Error == nil {
			return struct{}{}, nil
		}
		if res.Error.Code == subjects.CodeTimeout {
			p.Report(subjects.StatusUnknown, subjects.CodeTimeout) // the tool may have run
		}
		return struct{}{}, res.Error
	})
	if res.CallID == "" { // the act did not begin
		return b.answerUnaudited(ctx, out, c, err)
	}
	if errors.Is(err, actor.ErrUnrecorded) {
		res.Result, res.Links, res.Parked = "", nil, nil
		res.Error = subjects.Faultf(subjects.CodeUnrecorded, "%s ran, but the audit did not take the outcome, so it is withheld", c.tool)
	}
	actor.Step(ctx, "after")
	b.publishResult(ctx, out, c, res)
	return res
}

// queryID is the query the call belongs to: the header's, which the runtime carried, or the body's.
func queryID(in actor.Msg[subjects.ToolRequest]) string {
	if in.Query != "" {
		return in.Query
	}
	if subjects.CheckToken(in.Body.QueryID) == nil {
		return in.Body.QueryID
	}
	return ""
}

// checkRequest checks what no layer should have to: ids that are tokens, arguments that are one JSON object of bounded size.
func checkRequest(r subjects.ToolRequest, k Known) *subjects.Fault {
	if r.CallID != "" && subjects.CheckToken(r.CallID) != nil {
		return subjects.Faultf(subjects.CodeMalformed, "call_id may hold letters, digits, - and _ only")
	}
	if k.MaxArgs > 0 && len(r.Args) > k.MaxArgs {
		return subjects.Faultf(subjects.CodeTooLarge, "%d bytes of arguments, at most %d", len(r.Args), k.MaxArgs)
	}
	if err := actor.CheckJSONObject(r.Args); err != nil {
		return subjects.Faultf(subjects.CodeMalformed, "args must be one JSON object: %v", err)
	}
	return nil
}

// callTool calls the tool. It always returns a result with the ids of the call: a tool that fails, times out or is not there
// is an error in it. Without a valid permit nothing is called.
func (b *Broker) callTool(ctx context.Context, out actor.Out, p *actor.Permit, c call, k Known) subjects.ToolResult {
	res := subjects.ToolResult{CallID: c.id, QueryID: c.query, Tool: c.tool}
	if err := p.Check(); err != nil {
		res.Error = subjects.Faultf(subjects.CodeNoAudit, "%v", err)
		return res
	}
	limit := k.Timeout
	if limit <= 0 {
		limit = b.cfg.CallTimeout
	}
	// Before the tool's own time begins: the keyring may wait for the user to unlock it.
	order := subjects.ToolOrder{CallID: c.id, QueryID: c.query, Args: c.args, Mode: c.mode, Hosts: c.hosts, Pages: c.mayReadPages}
	if k.Has(policy.Remember) || k.Graded {
		order.Caller, order.Spawned, order.Labels = c.record.AgentID, len(c.path) > 0, c.labels
	}
	if order.Sealed, res.Error = b.getCredentials(ctx, out, p, c, k); res.Error != nil {
		return res
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	service, err := subjects.ToolCallService.With(k.Zone, c.tool)
	if err != nil {
		res.Error = subjects.Faultf(subjects.CodeUnavailable, "the tool %s cannot be addressed", c.tool)
		return res
	}
	actor.Step(ctx, "sent")
	start := out.Now()
	got, err := actor.Ask(ctx, out, service, order)
	took := out.Now().Sub(start)
	res.Millis = took.Milliseconds()
	b.usage.AddResult(out.Now(), c.record.AgentID, took.Seconds(), int64(len(got.Result)))
	actor.Step(ctx, "answered")
	var fault *subjects.Fault
	switch {
	case actor.IsReplyFault(err) && errors.As(err, &fault):
		res.Error = toolFault(fault)
	case errors.As(err, &fault):
		res.Error = subjects.Faultf(fault.Code, "%s", fault.Text)
	case err != nil:
		res.Error = subjects.Faultf(subjects.CodeUnavailable, "the tool %s could not be reached", c.tool)
	case got.Error != nil:
		res.Error = toolFault(got.Error)
	case k.MaxResult > 0 && len(got.Result) > k.MaxResult:
		res.Error = subjects.Faultf(subjects.CodeTooLarge, "%s answered with %d bytes, at most %d", c.tool, len(got.Result), k.MaxResult)
	default:
		res.Result, res.Links = got.Result, got.Links
		if k.Graded {
			res.Labels, res.Recalls = got.Labels, got.Recalls // until they are weighed
		}
	}
	return res
}

// toolFault is what a tool said instead of a result. It may fail; it may not speak for the broker, nor say that it never
// ran: whatever code it chose, and however long it talks, it is the failure of a tool.
func toolFault(f *subjects.Fault) *subjects.Fault {
	text := strings.ToValidUTF8(f.Text, "?")
	if len(text) > maxFaultBytes {
		text = strings.ToValidUTF8(text[:maxFaultBytes], "") + "..."
	}
	if text == "" {
		text = "the tool failed and did not say why"
	}
	return subjects.Faultf(subjects.CodeTool, "%s", text)
}

// maxFaultBytes bounds a tool's excuse.
const maxFaultBytes = 4096

// denyCall records a denial and answers with it. A denial that cannot be recorded is answered with a no-audit fault.
func (b *Broker) denyCall(ctx context.Context, out actor.Out, c call, f *subjects.Fault) subjects.ToolResult {
	if err := b.gate.Record(ctx, out, c.record, subjects.StatusDenied, denialReason(f)); err != nil {
		return b.answerUnaudited(ctx, out, c, err)
	}
	b.publishCall(ctx, out, c)
	res := subjects.ToolResult{CallID: c.id, QueryID: c.query, Tool: c.tool, Error: f}
	b.publishResult(ctx, out, c, res)
	return res
}

// denialReason is a fault as the audit log has it: layer and rule of a denial, otherwise the code.
func denialReason(f *subjects.Fault) string {
	if f.Denial != nil {
		return f.Denial.Layer + ": " + f.Denial.Rule
	}
	return f.Code
}

// answerUnaudited answers a call that was not recorded and so did not run. err is the fault of the gate.
func (b *Broker) answerUnaudited(ctx context.Context, out actor.Out, c call, err error) subjects.ToolResult {
	res := subjects.ToolResult{CallID: c.id, QueryID: c.query, Tool: c.tool}
	if !errors.As(err, &res.Error) {
		res.Error = subjects.Faultf(subjects.CodeNoAudit, "the call was not recorded, so nothing was run; see conclave doctor")
	}
	b.publishResult(ctx, out, c, res)
	return res
}

// recordRejectedCall records a call that was rejected before a handler could read it.
func (b *Broker) recordRejectedCall(ctx context.Context, rej actor.Rejection, out actor.Out) {
	from, tool := "", ""
	if caller, t, err := subjects.ParseToolRequest(rej.Subject); err == nil {
		from, tool = caller.ID(), t
	} else if len(rej.Tokens) > 0 && subjects.CheckToken(rej.Tokens[0]) == nil {
		from = rej.Tokens[0]
	}
	rec := subjects.AuditRecord{AgentID: from, Action: "tool.call", Tool: tool, Session: rej.Session, Query: rej.Query}
	b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, rej.Fault.Code)
}

// publishCall publishes the broker's copy of a call, with secrets redacted from the arguments. It does not wait for the
// acknowledgement: the audit is the record, this is the view.
func (b *Broker) publishCall(ctx context.Context, out actor.Out, c call) {
	topic, err := subjects.ToolRequestEvent.With(append([]string{c.tool}, c.path...)...)
	if err != nil {
		return // the name was no token: the dead letter tells of it
	}
	shown, _ := firewall.Redact(string(c.args)) // a model may pass on what it should not have
	args := json.RawMessage(shown)
	if !json.Valid(args) {
		args = nil // refused for that, or no longer whole; the copy is JSON and cannot hold it
	}
	if err := actor.EmitAsync(ctx, out, topic, subjects.ToolRequest{CallID: c.id, QueryID: c.query, Tool: c.tool, Caller: c.record.AgentID, Args: args}); err != nil {
		out.LogError(fmt.Errorf("telling of a call of %s: %w", c.tool, err))
	}
}

// publishResult publishes the broker's copy of a result. The caller in it is the one of the subject.
func (b *Broker) publishResult(ctx context.Context, out actor.Out, c call, res subjects.ToolResult) {
	res.Caller = c.record.AgentID
	topic, err := subjects.ToolResultEvent.With(res.Tool)
	if err != nil {
		return
	}
	if err := actor.EmitAsync(ctx, out, topic, res); err != nil {
		out.LogError(fmt.Errorf("telling of a result of %s: %w", res.Tool, err))
	}
}

// Start implements [actor.Starter]: it asks for the tools that announced themselves before it was there. It is called
// once.
func (b *Broker) Start(ctx context.Context, out actor.Out) error {
	defer close(b.table.discovered)
	for zone, tools := range subjects.Zones {
		for _, tool := range tools {
			if err := b.discoverTool(ctx, out, zone, tool); err != nil {
				return fmt.Errorf("looking for %s: %w", tool, err)
			}
		}
	}
	return nil
}
