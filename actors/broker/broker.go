// Package broker authorizes every tool call: a gate and not a wrapper, because the server's grants leave agents no
// other path to a tool.
//
// It serves agent.<account>.tool.request.<tool>, agent.<account>.broker.discover and .validate,
// agent.<account>.agent.spawn, agent.<account>.secret.use and, for the user's accounts only,
// ctl.<account>.approval.decision.<id>, .approval.list, .approval.revoke.<id>, .session.config, .policy.explain,
// .tool.list, .tool.accept, .change.list, .change.undo and .schedule.change. It
// subscribes to tool.schema.<zone>.<tool>, tool.output.<zone>.<tool>.<call> and query.cancel.<query>. It requests
// tool.call.<zone>.<tool>, secret.get and model.chat, and publishes its copies of calls and results on
// tool.request.<tool> and tool.result.<tool>, live output on tool.output.<call> and agent.<account>.tool.output.<call>,
// and approvals on approval.request.<id> and approval.decision.<id>. The caller's identity is the account that the
// server wrote into the subject, never a payload field or a header.
//
// [Broker.onToolRequest] handles a call: it gathers the facts (facts.go), decides by the layers of pkg/policy,
// requests the user's approval when a layer asks for it (approval.go), stores the decision in the audit log, gets the
// credentials (credentials.go), runs the tool at most once (ledger.go), labels and frames the result (result.go),
// stores the outcome and replies. What is known of the call at each stage, and the only way to its
// tool, is in internal/stage.
package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// Audit is the broker's audit log. [Broker.Close] closes it.
type Audit interface {
	actor.AuditLog
	Close(ctx context.Context) error
}

// Hasher computes the keyed hash of a call's arguments, which the audit log stores in place of the arguments.
type Hasher interface{ Hash(params []byte) string }

// Broker is the actor. Approvals, the ledger, session flows and settings are stored in buckets; usage counts are in
// memory only.
type Broker struct {
	cfg       Config
	rules     *policy.ActiveRules
	audit     Audit
	gate      *actor.Gate
	hash      Hasher
	table     *toolTable
	handled   handledCalls
	live      liveOutputs
	shared    sharedCalls
	flowMemo  flowMemo
	waiting   waitingCalls
	cancelled cancelledQueries
	usage     *policy.UsageCounter
	copies    actor.Shares // bytes of the copies of calls and results, by the account that called
	leftOut   leftOut      // copies that were not published
	requests  requestShares
}

// New returns a broker that decides by the rules in book. cfg must be valid. build holds the facts and definition
// hashes of the build's own tools.
func New(cfg Config, book *policy.ActiveRules, a Audit, h Hasher, build []Known) *Broker {
	b := &Broker{
		cfg: cfg, rules: book, audit: a, hash: h,
		copies:   actor.Shares{Quota: cmp.Or(cfg.EventBytes, defaultEventBytes)},
		requests: newRequestShares(),
	}
	b.table = newTable(build, func(tool string) (policy.Tool, bool) {
		t, ok := book.Load().Manifest.Tools[tool]
		return t, ok
	})
	b.gate = &actor.Gate{Log: a, Timeout: cfg.AuditTimeout, TypeOf: book.AgentType, NotDone: "nothing was run or " +
		"changed"}
	b.usage = policy.NewUsageCounter(cmp.Or(book.Load().Manifest.Limits.Window, defaultWindow), countsRetention,
		maxCounted)
	return b
}

// Name implements [actor.Actor].
func (b *Broker) Name() string { return "broker" }

// Routes implements [actor.Actor].
func (b *Broker) Routes() []actor.Route {
	rate := cmp.Or(b.cfg.QuestionRate, defaultQuestionRate)
	return []actor.Route{
		actor.Serve(subjects.ToolRequestService, b.onToolRequest, actor.Workers(maxHandled),
			actor.OnReject(b.recordRejectedCall)),
		actor.Serve(subjects.BrokerDiscover, b.onDiscover, actor.MaxRate(rate)),
		actor.Serve(subjects.BrokerDiscoverBelow, b.onDiscover, actor.MaxRate(rate)),
		actor.Serve(subjects.BrokerValidate, b.onValidate, actor.MaxRate(rate)),
		actor.Serve(subjects.BrokerValidateBelow, b.onValidate, actor.MaxRate(rate)),
		actor.Serve(subjects.AgentSpawn, b.onSpawn, actor.MaxRate(rate)),
		actor.Serve(subjects.AgentSpawnBelow, b.onSpawn, actor.MaxRate(rate)),
		actor.Serve(subjects.SecretUseService, b.onSecretUse),
		actor.Serve(subjects.ApprovalDecisionService, b.onDecision, b.gate.OnReject(subjects.ActionApprovalDecision,
			nil)),
		actor.Serve(subjects.ApprovalListService, b.onListApprovals),
		actor.Serve(subjects.ApprovalRevoke, b.onRevoke),
		actor.Serve(subjects.SessionConfigService, b.onSessionConfig),
		actor.Serve(subjects.PolicyExplain, b.onExplain),
		actor.Serve(subjects.ChangeListService, b.onChangeList, b.gate.OnReject(subjects.ActionChangeShow, nil)),
		actor.Serve(subjects.ChangeUndoService, b.onChangeUndo, actor.Workers(1),
			b.gate.OnReject(subjects.ActionChangeUndo, nil)),
		actor.Serve(subjects.ToolListService, b.onToolList),
		actor.Serve(subjects.ToolAcceptService, b.onToolAccept, actor.Workers(1),
			b.gate.OnReject(subjects.ActionToolAccept, nil)),
		actor.Serve(subjects.ScheduleChangeService, b.onScheduleChange, actor.Workers(1),
			b.gate.OnReject(subjects.ActionScheduleAdd, nil)),
		actor.Subscribe(subjects.ToolSchemaEvent, b.onSchema, actor.Workers(1), actor.MaxRate(maxAnnouncements),
			actor.OnReject(b.onSchemaRejected)),
		actor.Subscribe(subjects.ToolRunOutput, b.onOutput, actor.Workers(1)), // in order
		actor.Subscribe(subjects.QueryCancel, b.onCancel),
		actor.Subscribe(subjects.PrincipalChanged, b.onPrincipalChanged, actor.Workers(1)),
	}
}

// Close implements [actor.Closer].
func (b *Broker) Close(ctx context.Context) error {
	return errors.Join(b.gate.Close(ctx), b.audit.Close(ctx))
}

// onToolRequest decides about a tool call, stores the decision in the audit log, runs the tool, stores the outcome and
// replies, in this order. A denial is a reply with an error in the result; only a malformed subject returns an error. A
// call whose call_id completed before is answered from the ledger, whatever the current rules say, and one that is
// being handled gets that result ([Broker.joinHandled]). A call without a call_id runs each time, and so does an
// unapproved one of a harmless tool, which is not in the ledger.
func (b *Broker) onToolRequest(ctx context.Context, in actor.Msg[subjects.ToolRequest],
	out actor.Out,
) (subjects.ToolResult, error) {
	caller, tool, err := subjects.ParseToolRequest(in.Subject)
	if err != nil {
		rec := subjects.AuditRecord{
			AgentID: in.From, Action: subjects.ActionToolCall, Session: in.Session,
			Query: in.Query,
		}
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, subjects.CodeSubject)
		return subjects.ToolResult{}, subjects.Faultf(subjects.CodeSubject, "invalid tool request subject: %v", err)
	}
	r, known, fault := b.receive(ctx, out, in.Body, caller, tool, in.Session, queryID(in))
	if fault != nil {
		actor.Step(ctx, "decided")
		res := b.refuseCall(ctx, out, r, nil, fault)
		measureCall(ctx, known, stage.Permitted{}, fault, res, 0)
		return res, nil
	}
	if !r.Named {
		return b.handleCall(ctx, out, r, known), nil
	}
	end, joined := b.joinHandled(ctx, out, r)
	if joined != nil {
		return *joined, nil
	}
	var done *subjects.ToolResult // nil after a panic
	defer func() { end(done) }()
	res := b.handleCall(ctx, out, r, known)
	done = &res
	return res, nil
}

// receive returns the call of a request with its tool, and a fault when the request is malformed or the tool cannot be
// called.
func (b *Broker) receive(ctx context.Context, out actor.Out, in subjects.ToolRequest, caller subjects.Caller, tool,
	session, query string,
) (stage.Received, Known, *subjects.Fault) {
	r := stage.Received{
		ID: in.CallID, Named: in.CallID != "", Caller: caller, Tool: tool, Args: in.Args, Own: in.Own,
		Session: session, Query: query,
	}
	if !r.Named {
		r.ID = out.NewID()
	}
	known, found := b.table.find(ctx, tool)
	if !found {
		b.discoverMissing(ctx, out)
		known, found = b.table.get(tool)
	}
	fault := checkRequest(in, caller, known)
	rules := b.rules.Load()
	if fault == nil && len(known.Paths) > 0 {
		r.Args = rules.Chain.ExpandPaths(known.Tool, r.Args, b.workFolder(r))
	}
	r.Record = subjects.AuditRecord{
		ID: out.NewID(), AgentID: caller.ID(), Action: subjects.ActionToolCall, Tool: tool,
		ParamsHash: b.hash.Hash(r.Args), Session: r.Session, Query: r.Query,
	}
	r.Record.AgentType, _ = rules.Manifest.TypeOf(caller)
	switch {
	case fault != nil:
	case !found:
		fault = subjects.Faultf(subjects.CodeUnknownTool, "unknown tool %s", tool)
		if rules.Manifest.HasTool(r.Record.AgentType, tool) && b.table.isChanged(tool) {
			fault.Text = fmt.Sprintf("the definition of %s changed, so it is not called until the user accepts it: "+
				"conclave tool accept %[1]s shows the change", tool)
		}
	case known.Disabled != "":
		fault = subjects.Faultf(subjects.CodeUnavailable, "%s is disabled: %s", tool, known.Disabled)
	}
	return r, known, fault
}

// handleCall judges a call, and denies it or runs it.
func (b *Broker) handleCall(ctx context.Context, out actor.Out, r stage.Received, k Known) subjects.ToolResult {
	begun := time.Now()
	before, seen, fault := b.gatherAndLookUp(ctx, out, r, k)
	if before.completed != nil {
		return b.replayResult(ctx, out, r, *before.completed, "ledger")
	}
	r.Record.AgentType = seen.call.Type
	var (
		counted *policy.Attempt
		p       stage.Permitted
		j       *stage.Judged
	)
	if fault == nil { // a call is counted once, however often it is judged
		seen.call.Usage, counted = b.countUsage(out, r, seen, before.begun)
		p, j, fault = b.traceDecision(ctx, out, r, k, before, seen)
	}
	actor.Step(ctx, "decided")
	var res subjects.ToolResult
	switch {
	case fault != nil:
		res = b.refuseCall(ctx, out, r, j, fault)
	case before.reuse != nil:
		res = b.replayResult(ctx, out, r, *before.reuse, "reused")
	case !r.Named || isHarmless(k.Tool) && !p.Approved():
		res = b.runAudited(ctx, out, p, k)
	default: // an approval allows one run, also of a harmless tool
		if id := b.shareID(r, k); id != "" && r.Caller.Account == subjects.Generator {
			defer b.shared.begin(id, r.Key())()
		}
		res = b.runOnce(ctx, out, p, k)
	}
	b.endCount(out, counted, res, fault == nil)
	measureCall(ctx, k, p, fault, res, time.Since(begun))
	return res
}

// prior is what is known of earlier runs of a call.
type prior struct {
	completed *subjects.ToolResult // its stored result; nil when it did not complete
	begun     bool                 // the ledger has an entry of it: it is counted already
	reuse     *subjects.ToolResult // of the same call of the generator; only for respondent B
}

// gatherAndLookUp gathers the facts of a call and, when the caller named it, looks the call up in the ledger at the
// same time. For a completed call, gathering has the side effects of any call of the same query: it stores the query
// text and claims a pending one-message override.
func (b *Broker) gatherAndLookUp(ctx context.Context, out actor.Out, r stage.Received, k Known) (before prior,
	seen facts, fault *subjects.Fault,
) {
	before.reuse = b.findReusable(ctx, out, r, k)
	if !r.Named || isHarmless(k.Tool) { // it is not in the ledger
		seen, fault = b.gatherFacts(ctx, out, r, k, false)
		return before, seen, fault
	}
	type entry struct {
		result *subjects.ToolResult
		begun  bool
	}
	found := make(chan entry, 1)
	go func() {
		result, begun := b.findCompleted(ctx, out, r)
		found <- entry{result, begun}
	}()
	seen, fault = b.gatherFacts(ctx, out, r, k, false)
	e := <-found
	before.completed, before.begun = e.result, e.begun
	return before, seen, fault
}

// judgeCall decides about a call by the facts in seen and returns it as permitted, or with a fault when it must not
// run; one whose result is reused is neither. j is its last judgement, nil without any. It may wait for the user. After
// an approval that took maxFactsAge or longer it gathers the facts and decides again, because rules or session may have
// changed. It denies with busy after maxJudgements rounds.
func (b *Broker) judgeCall(ctx context.Context, out actor.Out, r stage.Received, k Known, before prior,
	seen facts,
) (p stage.Permitted, j *stage.Judged, fault *subjects.Fault) {
	spent := seen.call.Usage
	var kept *policy.Kept
	captured := false
	for range maxJudgements {
		seen.call.Usage, seen.call.Kept = spent, kept
		j = stage.Judge(ctx, seen.rules, r, seen.call, j)
		if !captured && before.reuse == nil && j.Decision().Denial() == nil {
			captured = true
			if kept = b.captureCall(ctx, out, j, k); kept != nil {
				seen.call.Kept = kept
				j = stage.Judge(ctx, seen.rules, r, seen.call, j)
			}
		}
		p, ok, fault := b.permitCall(ctx, out, j, before.reuse != nil)
		if fault == nil && b.cancelled.has(r.Query) {
			fault = cancelledFault(r.Tool)
		}
		switch {
		case fault != nil:
			return stage.Permitted{}, j, fault
		case ok:
			return p, j, nil
		}
		if seen, fault = b.gatherFacts(ctx, out, r, k, false); fault != nil {
			return stage.Permitted{}, j, fault
		}
	}
	return stage.Permitted{}, j, subjects.Faultf(subjects.CodeBusy, "each approval of this call of %s was followed by "+
		"another approval question, so it was not run; try again", r.Tool)
}

const (
	// maxFactsAge is the maximum age of the facts of a call when it runs.
	maxFactsAge = time.Second
	// maxJudgements bounds how often a call is judged. A call whose facts are stale after the last is not run.
	maxJudgements = 4
)

// permitCall permits a call by its judgement: at once, or when the user approves what the layers ask. Calls of
// respondent B with side effects are denied before any layer; a call whose result is reused (isReused) runs nothing and
// needs neither approval nor grant, and is not permitted. A match of a monitor-only rule is logged and does not deny.
// ok is false without a fault when the call must be judged again: its grant is gone, or its facts are older than
// maxFactsAge, because the user was asked.
func (b *Broker) permitCall(ctx context.Context, out actor.Out, j *stage.Judged, isReused bool) (p stage.Permitted,
	ok bool, fault *subjects.Fault,
) {
	r, d := j.Received(), j.Decision()
	if no := denyRespondentB(j.Facts()); no != nil {
		return p, false, denialFault(no)
	}
	if err := d.Failure(); err != nil {
		out.LogError(fmt.Errorf("deciding a call of %s: %w", r.Tool, err))
	}
	for _, s := range d.Monitored() {
		out.LogError(fmt.Errorf("monitor-only rule %s.%s matched a call of %s by %s: %s", s.Layer, s.Rule, r.Tool,
			r.Caller.ID(), s.Reason))
	}
	switch no := d.Denial(); {
	case no != nil:
		return p, false, denialFault(no)
	case isReused:
		return p, true, nil
	case !d.Allowed():
		began := out.Now()
		p, fault = b.requestApproval(ctx, out, j)
		return p, fault == nil && out.Now().Sub(began) < maxFactsAge, fault
	}
	p, ok, err := j.Allow(func(change func(*policy.Flow) *policy.Flow) error {
		return b.updateFlow(ctx, out, r.Session, change)
	})
	if err != nil {
		out.LogError(fmt.Errorf("claiming a grant for a call of %s: %w", r.Tool, err))
		fault = subjects.Faultf(subjects.CodeUnavailable, "the session's records cannot be written, so nothing was "+
			"run; see conclave doctor")
	}
	return p, ok, fault
}

// runAudited runs the tool of a permitted call behind the audit gate and publishes the broker's copies of call and
// result. The tool does not run, and the result is a no-audit fault, unless the audit log has acknowledged the
// decision. When the outcome cannot be recorded the result is withheld and the caller gets an unrecorded fault.
//
// The copies of the call and of its result are published after the reply, so that they delay neither the tool nor the
// caller; the first one of a tool that takes longer than [Config].CopyDelay or writes live output is published then.
//
// Its steps are before, sent, answered, learned and after.
func (b *Broker) runAudited(ctx context.Context, out actor.Out, p stage.Permitted, k Known) subjects.ToolResult {
	j := p.Judged()
	r := j.Received()
	announce := sync.OnceFunc(func() { b.publishCall(ctx, out, r, b.newJudgement(ctx, j), false) })
	res, err := p.Run(ctx, out, b.gate, func(ctx context.Context, run stage.Running) subjects.ToolResult {
		actor.Step(ctx, "before")
		defer time.AfterFunc(cmp.Or(b.cfg.CopyDelay, defaultCopyDelay), announce).Stop()
		raw, of := b.traceTool(ctx, r, func(ctx context.Context) (subjects.ToolResult, Known) {
			return b.callZones(ctx, out, run, k, announce)
		})
		res := b.processResult(ctx, out, j, of, raw)
		b.setEgress(&res, r.Args, of)
		actor.Step(ctx, "learned")
		return res
	})
	if err != nil { // it did not begin
		return b.answerUnaudited(ctx, out, r, b.unrunEgress(j), err)
	}
	actor.Step(ctx, "after")
	actor.AfterReply(out, func() {
		announce()
		b.publishResult(ctx, out, r, res, false)
	})
	return res
}

// callTool requests credentials and calls the tool within its timeout. It always returns a result with the ids of the
// call: a tool that fails, times out, is unavailable or returns more than its MaxResult is an error in the result. The
// time and the bytes of the reply are added to the caller's usage. The result is raw: see [Broker.processResult].
// unsent means that no tool received the call, as far as the server or the tool itself says. announce publishes the
// copy of the call, once.
func (b *Broker) callTool(ctx context.Context, out actor.Out, run stage.Running, k Known,
	announce func(),
) (_ subjects.ToolResult, unsent bool) {
	j := run.Judged()
	r := j.Received()
	res := r.Result()
	limit, isPrincipal := b.timeoutOf(k), b.table.isPrincipal(k.Zone)
	order := b.newToolOrder(j, k, isPrincipal, out.Now())
	// Credentials are requested before the tool's timeout starts: the keyring may wait for the user to unlock it.
	if order.Sealed, res.Error = getCredentials(ctx, out, run, k); res.Error != nil {
		return res, false
	}
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	actor.Step(ctx, "sent")
	start := out.Now()
	endOutput := b.live.begin(k, j, announce)
	got, err := run.Send(ctx, out, k.Zone, isPrincipal, order) // a tool of the user needs nothing but a NATS client
	if isPrincipal {
		got, err = b.answerForms(whole, out, run, k.Zone, limit, got, err)
	}
	rest, output := endOutput()
	b.forwardOutput(ctx, out, output, rest)
	took := out.Now().Sub(start)
	res.Millis = took.Milliseconds()
	b.usage.AddResult(out.Now(), r.Caller.ID(), took.Seconds(), int64(len(got.Result)))
	actor.Step(ctx, "answered")
	if res.Error = replyFault(out, k, isPrincipal, got, err); res.Error == nil {
		res.Result, res.Links = got.Result, got.Links
		if len(got.Artifacts) > 0 {
			res.Artifacts = filterArtifacts(got.Artifacts, b.folderRules(j))
		}
		if kept := j.Facts().Kept; kept != nil && got.Change != nil && got.Change.ID == kept.ID {
			res.Change = b.confirmChange(j, *got.Change)
		}
		if k.Graded {
			// processResult checks them
			res.Labels, res.Recalls = got.Labels, got.Recalls
		}
	}
	return res, actor.IsNoResponder(err)
}

// timeoutOf is the timeout of a tool, or [Config].CallTimeout when it has none.
func (b *Broker) timeoutOf(k Known) time.Duration {
	return cmp.Or(max(0, k.Timeout), b.cfg.CallTimeout)
}

// newToolOrder returns how a call runs, without credentials. Only a tool that writes memory or labels its results
// itself learns the caller and the labels; a tool of the user learns nothing but the call.
func (b *Broker) newToolOrder(j *stage.Judged, k Known, isPrincipal bool, now time.Time) (order subjects.ToolOrder) {
	if isPrincipal {
		return order
	}
	order = b.newAccessOrder(j)
	order.Mode = callMode(j)
	if kept := j.Facts().Kept; kept != nil {
		order.Change = newChangeOrder(j, &kept.ChangeRef, now)
	}
	if r := j.Received(); k.Has(policy.Remember) || k.Graded {
		order.Caller, order.CallerType, order.Spawned = r.Caller.ID(), r.Record.AgentType, len(r.Caller.Path) > 0
		order.Labels = sessionLabels(j.Facts())
	}
	return order
}

// newAccessOrder returns an order with the hosts, pages and folders that the tool of a call may access.
func (b *Broker) newAccessOrder(j *stage.Judged) (order subjects.ToolOrder) {
	order.Hosts, order.Pages = b.table.pageAccess(j.Facts(), j.Rules().Manifest)
	order.Folders = b.folderRules(j)
	return order
}

// replyFault returns the fault of a call that a tool failed or did not answer, or whose result exceeds MaxResult; nil
// for any other result. err is the error of asking the tool.
func replyFault(out actor.Out, k Known, isPrincipal bool, got subjects.ToolResult, err error) *subjects.Fault {
	if err != nil {
		return failedFault(out, k, isPrincipal, err)
	}
	switch {
	case got.Error != nil:
		return toolFault(got.Error)
	case k.MaxResult > 0 && len(got.Result) > k.MaxResult:
		return subjects.Faultf(subjects.CodeTooLarge, "result of %s too large: %d bytes, limit %d", k.Name,
			len(got.Result), k.MaxResult)
	}
	return nil
}

// failedFault returns the fault of a call of a tool that failed with err, which is not nil.
func failedFault(out actor.Out, k Known, isPrincipal bool, err error) *subjects.Fault {
	var fault *subjects.Fault
	switch {
	case actor.IsReplyFault(err) && errors.As(err, &fault):
		return toolFault(fault)
	case actor.IsNoResponder(err):
		return subjects.Faultf(subjects.CodeUnavailable, "%s is not running: %s", k.Name,
			startAdvice(k.Name, k.Zone, isPrincipal))
	case errors.As(err, &fault) && fault.Code == subjects.CodeMalformed && isPrincipal:
		return subjects.Faultf(subjects.CodeTool, "%s: correct the program, docs/tools.md has the contract",
			stage.NameServedSubject(k.Name, k.Zone, fault.Text))
	case errors.As(err, &fault) && fault.Code == subjects.CodeMalformed && !isHarmless(k.Tool):
		// its text quotes the reply, which may be untrusted
		out.LogError(fmt.Errorf("calling %s in the zone %s: %w", k.Name, k.Zone, err))
		return subjects.Faultf(subjects.CodeMalformed, "the reply of %s could not be read; see the log of the broker",
			k.Name)
	case errors.As(err, &fault) && isPrincipal:
		return subjects.Faultf(fault.Code, "%s", stage.NameServedSubject(k.Name, k.Zone, fault.Text))
	case errors.As(err, &fault):
		return subjects.Faultf(fault.Code, "%s", fault.Text)
	}
	return subjects.Faultf(subjects.CodeUnavailable, "tool %s is unavailable", k.Name)
}

// startAdvice says how the user starts a tool of a zone.
func startAdvice(tool, zone string, isPrincipal bool) string {
	switch {
	case strings.HasPrefix(zone, subjects.MCP+"-"):
		return "see conclave mcp list"
	case isPrincipal:
		return "start its program"
	case strings.HasPrefix(zone, "tools_"):
		return "see conclave machines list"
	case zone == "tools":
		zone = tool // each is an actor of its own
	}
	return "restart conclave up, or start it with conclave actor " + zone
}

// toolFault turns an error that a tool reported into a tool fault, with its text cut to maxFaultBytes. The tool's own
// code is dropped, so that a tool cannot report a denial or claim that it never ran. It never returns an empty text.
func toolFault(f *subjects.Fault) *subjects.Fault {
	text := strings.ToValidUTF8(f.Text, "?")
	if len(text) > maxFaultBytes {
		text = strings.ToValidUTF8(text[:maxFaultBytes], "") + "..."
	}
	if text == "" {
		text = "the tool failed without an error message"
	}
	return subjects.Faultf(subjects.CodeTool, "%s", text)
}

// maxFaultBytes bounds the error text of a tool.
const maxFaultBytes = 4096

// refuseCall records a denial, publishes call and result and returns the denial as the result. j is the judgement of
// the call, nil when no layer judged it. A denial that cannot be recorded becomes a no-audit fault; the tool does not
// run in either case.
func (b *Broker) refuseCall(ctx context.Context, out actor.Out, r stage.Received, j *stage.Judged,
	f *subjects.Fault,
) subjects.ToolResult {
	if j != nil {
		r = j.Received()
	}
	res := r.Result()
	res.Error, res.Egress = f, b.unrunEgress(j)
	if err := b.gate.Record(ctx, out, r.Record, subjects.StatusDenied, denialReason(f)); err != nil {
		return b.answerUnaudited(ctx, out, r, res.Egress, err)
	}
	judgement := b.newJudgement(ctx, j)
	actor.AfterReply(out, func() { b.publishRefusal(ctx, out, r, judgement, res) })
	return res
}

// denialReason is a fault as the audit log stores it: layer and rule of a denial, otherwise the code.
func denialReason(f *subjects.Fault) string {
	if f.Denial != nil {
		return f.Denial.Layer + ": " + f.Denial.Rule
	}
	return f.Code
}

// answerUnaudited returns and publishes the result of a call that was not recorded and so did not run. err is the
// gate's error; one that is no fault becomes a no-audit fault.
func (b *Broker) answerUnaudited(ctx context.Context, out actor.Out, r stage.Received, egress string,
	err error,
) subjects.ToolResult {
	res := r.Result()
	res.Egress = egress
	if !errors.As(err, &res.Error) {
		res.Error = subjects.Faultf(subjects.CodeNoAudit, "the call was not recorded, so nothing was run; see "+
			"conclave doctor")
	}
	actor.AfterReply(out, func() { b.publishResult(ctx, out, r, res, true) })
	return res
}

// recordRejectedCall records a tool request that was rejected before a handler decoded it, with caller and tool as far
// as the subject has them.
func (b *Broker) recordRejectedCall(ctx context.Context, rej actor.Rejection, out actor.Out) {
	from, tool := "", ""
	if caller, t, err := subjects.ParseToolRequest(rej.Subject); err == nil {
		from, tool = caller.ID(), t
	} else if len(rej.Tokens) > 0 && subjects.CheckToken(rej.Tokens[0]) == nil {
		from = rej.Tokens[0]
	}
	rec := subjects.AuditRecord{
		AgentID: from, Action: subjects.ActionToolCall, Tool: tool, Session: rej.Session,
		Query: rej.Query,
	}
	b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, rej.Fault.Code)
}

// Start implements [actor.Starter]: it requests the definitions of tools that announced themselves before the broker
// subscribed, then releases the calls that wait for the discovery, also after an error. An unavailable tool is no
// error; a definition whose hash cannot be stored is. The runtime calls it once.
func (b *Broker) Start(ctx context.Context, out actor.Out) error {
	defer close(b.table.discovered)
	b.refreshZones(ctx, out)
	b.table.beginPause(out.Now())
	return b.discoverZones(ctx, out, b.table.zoneNames())
}
