// Package broker authorizes every tool call: a gate and not a wrapper, because the server's grants leave agents no
// other path to a tool.
//
// It serves agent.<account>.tool.request.<tool>, agent.<account>.broker.discover and .validate,
// agent.<account>.agent.spawn, agent.<account>.secret.use and, for the user's accounts only,
// ctl.<account>.approval.decision.<id>, .approval.list, .approval.revoke.<id>, .session.config, .policy.explain,
// .tool.list, .tool.accept and .schedule.change. It
// subscribes to tool.schema.<zone>.<tool>, tool.output.<zone>.<tool>.<call> and query.cancel.<query>. It requests
// tool.call.<zone>.<tool>, secret.get and model.chat, and publishes its copies of calls and results on
// tool.request.<tool> and tool.result.<tool>, live output on tool.output.<call> and agent.<account>.tool.output.<call>,
// and approvals on approval.request.<id> and approval.decision.<id>. The caller's identity is the account that the
// server wrote into the subject, never a payload field or a header.
//
// [Broker.onToolRequest] handles a call: it gathers the facts (facts.go), decides by the layers of pkg/policy,
// requests the user's approval when a layer asks for it (approval.go), stores the decision in the audit log, gets the
// credentials (credentials.go), runs the tool at most once (ledger.go), labels and frames the result (result.go),
// stores the outcome and replies.
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
	running   runningCalls
	handled   handledCalls
	live      liveOutputs
	shared    sharedCalls
	flowMemo  flowMemo
	waiting   waitingCalls
	cancelled cancelledQueries
	usage     *policy.UsageCounter
	copies    actor.Shares // bytes of the copies of calls and results, by the account that called
	requests  actor.Shares // bytes of approval requests, by the account that called
	// fullShares has the hour in which a used up share was logged last, by account
	fullShares sync.Map
}

// New returns a broker that decides by the rules in book. cfg must be valid. build holds the facts and definition
// hashes of the build's own tools.
func New(cfg Config, book *policy.ActiveRules, a Audit, h Hasher, build []Known) *Broker {
	b := &Broker{
		cfg: cfg, rules: book, audit: a, hash: h,
		copies:   actor.Shares{Quota: cmp.Or(cfg.EventBytes, defaultEventBytes)},
		requests: actor.Shares{Quota: subjects.ApprovalBytes},
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
		actor.Serve(subjects.ToolRequestService, b.onToolRequest, actor.OnReject(b.recordRejectedCall)),
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

// call is one tool request while the broker handles it.
type call struct {
	id            string // call_id of the caller, or a new id
	record        subjects.AuditRecord
	tool          string
	path          []string
	args          json.RawMessage
	session       string
	respondentB   bool // the caller is respondent B: its results are not recorded in the session
	own           bool // the runtime recalls the user's own statements: no model chose the call
	query         string
	typ           string                // agent type of the caller
	fromUser      bool                  // the user called: no model reads the result
	mode          string                // mode in the tool order, see toolMode
	hosts         *subjects.HostRules   // hosts that the tool may fetch from
	mayReadPages  bool                  // the caller may use a tool that fetches pages
	wasBegun      bool                  // the ledger has an unfinished entry: the call is counted already
	approved      bool                  // the user approved it
	labels        *subjects.Labels      // labels of everything recorded in the session
	distilledOnly bool                  // the caller gets a finding instead of untrusted content
	folders       *subjects.FolderRules // folders that the tool may access, nil for a tool without files
	answersQuery  bool                  // the router stored the query for the caller's account to answer
	previewed     bool                  // its tool was asked for a preview
	reuse         *subjects.ToolResult  // of the same call of the generator; only for respondent B
	counted       *policy.Attempt       // the call as it was counted, nil when it was not
	announce      func()                // publishes the copy of the call, once; nil before the call runs
	judgement     *subjects.Judgement   // how the rules judged it, for the copy of the call; nil before
	refused       bool                  // it does not run, for its copies
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
	c := call{
		id: in.Body.CallID, tool: tool, path: caller.Path, args: in.Body.Args, session: in.Session,
		respondentB: isRespondentB(caller), own: in.Body.Own, query: queryID(in),
	}
	if c.id == "" {
		c.id = out.NewID()
	}
	known, found := b.table.find(ctx, tool)
	if !found {
		b.discoverMissing(ctx, out)
		known, found = b.table.get(tool)
	}
	fault := checkRequest(in.Body, caller, known)
	rules := b.rules.Load()
	if fault == nil {
		c.args = rules.Chain.ExpandPaths(known.Tool, c.args, b.workFolder(c))
	}
	c.record = subjects.AuditRecord{
		ID: out.NewID(), AgentID: caller.ID(), Action: subjects.ActionToolCall, Tool: tool,
		ParamsHash: b.hash.Hash(c.args), Session: in.Session, Query: c.query,
	}
	c.record.AgentType, _ = rules.Manifest.TypeOf(caller)
	if fault == nil && !found {
		fault = subjects.Faultf(subjects.CodeUnknownTool, "unknown tool %s", tool)
		if rules.Manifest.HasTool(c.record.AgentType, tool) && b.table.isChanged(tool) {
			fault.Text = fmt.Sprintf("the definition of %s changed, so it is not called until the user accepts it: "+
				"conclave tool accept %[1]s shows the change", tool)
		}
	}
	if fault == nil && known.Disabled != "" {
		fault = subjects.Faultf(subjects.CodeUnavailable, "%s is disabled: %s", tool, known.Disabled)
	}
	named := in.Body.CallID != ""
	if fault != nil || !named {
		return b.handleCall(ctx, out, caller, known, c, named, fault), nil
	}
	end, joined := b.joinHandled(ctx, out, c)
	if joined != nil {
		return *joined, nil
	}
	var done *subjects.ToolResult // nil after a panic
	defer func() { end(done) }()
	res := b.handleCall(ctx, out, caller, known, c, named, nil)
	done = &res
	return res, nil
}

// handleCall judges a call, unless it has a fault already, and denies it or runs it. named reports whether the request
// had a call_id.
func (b *Broker) handleCall(ctx context.Context, out actor.Out, caller subjects.Caller, known Known, c call, named bool,
	fault *subjects.Fault,
) subjects.ToolResult {
	begun := time.Now()
	if fault == nil {
		c.reuse = b.findReusable(ctx, out, c, known)
		seen, ran := b.gatherAndLookUp(ctx, out, caller, known, &c, named)
		if ran != nil {
			return *ran
		}
		c, fault = b.traceDecision(ctx, out, caller, known, c, seen)
	}
	actor.Step(ctx, "decided")
	var res subjects.ToolResult
	switch {
	case fault != nil:
		res = b.denyCall(ctx, out, c, fault)
	case c.reuse != nil:
		res = b.reuseResult(ctx, out, c)
	case !named || isHarmless(known.Tool) && !c.approved:
		res = b.runAudited(ctx, out, c, known)
	default:
		res = b.runShared(ctx, out, c, known) // an approval allows one run, also of a harmless tool
	}
	b.endCount(out, c, res, fault == nil)
	measureCall(ctx, known, c, res, fault, time.Since(begun))
	return res
}

// gatherAndLookUp gathers the facts of a call and, when the caller named it, looks the call up in the ledger at the
// same time. ran is the stored result of a completed call, nil when there is none; for an unfinished ledger entry it
// sets c.wasBegun. named reports whether the request had a call_id. For a completed call, gathering has the side
// effects of any call of the same query: it stores the query text and claims a pending one-message override.
func (b *Broker) gatherAndLookUp(ctx context.Context, out actor.Out, caller subjects.Caller, k Known, c *call,
	named bool,
) (seen facts, ran *subjects.ToolResult) {
	var wg sync.WaitGroup
	var old subjects.ToolResult
	var done, begun bool
	if asked := *c; named && !isHarmless(k.Tool) { // a harmless call is not in the ledger
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

// judgeCall decides about a call by the facts in seen and returns the call with what was decided, and a fault when it
// must not run. It may wait for the user. After an approval that took maxFactsAge or longer it gathers the facts and
// decides again, because rules or session may have changed. It denies with busy after maxJudgements rounds, and when
// the facts have a fault. The call is counted once.
func (b *Broker) judgeCall(ctx context.Context, out actor.Out, caller subjects.Caller, k Known, c call,
	seen facts,
) (call, *subjects.Fault) {
	var spent *policy.Usage
	for range maxJudgements {
		asked := seen.call
		c.typ, c.fromUser, c.mode = asked.Type, asked.FromUser, toolMode(asked)
		if c.own {
			c.mode = subjects.ModeOwn
		}
		c.hosts, c.mayReadPages = seen.pageAccess(b.table)
		c.labels, c.distilledOnly, c.answersQuery = sessionLabels(asked), seesDistilledOnly(asked), asked.Flow != nil
		c.folders = seen.rules.Chain.FolderRules(asked, b.workFolder(c))
		c.record.AgentType = asked.Type
		if seen.fault != nil {
			return c, seen.fault
		}
		if spent == nil { // a call is counted once, however often it is judged
			now := b.countUsage(out, asked, &c, seen, false)
			spent = &now
		}
		asked.Usage = *spent
		before := out.Now()
		d := seen.rules.Chain.Decide(ctx, asked)
		c.judgement = b.newJudgement(ctx, seen.rules, asked, d)
		yes, claimed, fault := b.decideCall(ctx, out, &c, d, asked)
		c.approved = c.approved || yes
		if fault == nil && b.cancelled.has(c.query) {
			fault = cancelledFault(c.tool)
		}
		if fault != nil || claimed || yes && out.Now().Sub(before) < maxFactsAge {
			return c, fault
		}
		seen = b.gatherFacts(ctx, out, caller, k, c, false)
	}
	return c, subjects.Faultf(subjects.CodeBusy, "each approval of this call of %s was followed by another approval "+
		"question, so it was not run; try again", c.tool)
}

const (
	// maxFactsAge is the maximum age of the facts of a call when it runs.
	maxFactsAge = time.Second
	// maxJudgements bounds how often a call is judged. A call whose facts are stale after the last is not run.
	maxJudgements = 4
)

// decideCall acts on the decision d of the layers and requests the user's approval when a layer asks for it. yes
// reports an approval, now or by a stored rule; claimed that the call is allowed without one, and a grant that it needs
// is claimed; a fault denies the call. With none of them another call used the grant first, and the caller must judge
// again. Calls of respondent B with side effects are denied before any layer, and its calls that need approval are
// denied without a request. A match of a monitor-only rule is logged and does not deny. It sets c.previewed.
func (b *Broker) decideCall(ctx context.Context, out actor.Out, c *call, d policy.Decision, asked policy.Call) (yes,
	claimed bool, _ *subjects.Fault,
) {
	if no := denyRespondentB(asked); no != nil {
		return false, false, denialFault(no)
	}
	if err := d.Failure(); err != nil {
		out.LogError(fmt.Errorf("deciding a call of %s: %w", c.tool, err))
	}
	for _, s := range d.Monitored() {
		out.LogError(fmt.Errorf("monitor-only rule %s.%s matched a call of %s by %s: %s", s.Layer, s.Rule, c.tool,
			c.record.AgentID, s.Reason))
	}
	if asks := d.Asks(); len(asks) > 0 {
		if c.reuse != nil {
			return false, true, nil // nothing runs
		}
		if no := denyRespondentBApproval(asked); no != nil {
			return false, false, denialFault(no)
		}
		if c.own { // the user did not ask for it, and is not asked about it
			no := asks[0]
			return false, false, denialFault(&subjects.Denial{Layer: no.Layer, Rule: no.Rule, Reason: no.Reason})
		}
		fault := b.requestApproval(ctx, out, c, asks, asked.Flow)
		return fault == nil, false, fault
	}
	if d.Allowed() && (c.approved || !d.NeedsGrant()) {
		return false, true, nil
	}
	if d.Allowed() {
		claimed, err := b.claimGrant(ctx, out, asked, *c)
		if err != nil {
			out.LogError(fmt.Errorf("claiming a grant for a call of %s: %w", c.tool, err))
			return false, false, subjects.Faultf(subjects.CodeUnavailable, "the session's records cannot be written, "+
				"so nothing was run; see conclave doctor")
		}
		return false, claimed, nil
	}
	denial := d.Denial()
	code := subjects.CodeDenied
	if denial.Layer == (policy.LimitsLayer{}).Name() {
		code = subjects.CodeLimit
	}
	return false, false, &subjects.Fault{Code: code, Text: denial.Reason, Denial: denial}
}

// runAudited runs the tool of an allowed call behind the audit gate and publishes the broker's copies of call and
// result. The tool does not run, and the result is a no-audit fault, unless the audit log has acknowledged the
// decision. When the outcome cannot be recorded the result is withheld and the caller gets an unrecorded fault.
//
// The copy of the call is published with that of the result, so that storing it does not delay the tool; for a tool
// that takes longer than [Config].CopyDelay or writes live output, it is published then.
//
// Its steps are before, sent, answered, learned and after.
func (b *Broker) runAudited(ctx context.Context, out actor.Out, c call, k Known) subjects.ToolResult {
	var res subjects.ToolResult
	_, err := actor.Audited(ctx, out, b.gate, c.record, func(ctx context.Context, p *actor.Permit) (struct{}, error) {
		actor.Step(ctx, "before")
		c.announce = sync.OnceFunc(func() { b.publishCall(ctx, out, c) })
		defer time.AfterFunc(cmp.Or(b.cfg.CopyDelay, defaultCopyDelay), c.announce).Stop()
		raw, of := b.traceTool(ctx, c, func(ctx context.Context) (subjects.ToolResult, Known) {
			return b.callZones(ctx, out, p, c, k)
		})
		res = b.processResult(ctx, out, c, of, raw)
		b.setEgress(&res, c, of)
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
		res.Result, res.Links, res.Parked, res.Artifacts = "", nil, nil, nil
		res.Error = subjects.Faultf(subjects.CodeUnrecorded, "%s ran, but its outcome could not be recorded in the "+
			"audit log, so the result is withheld", c.tool)
	}
	actor.Step(ctx, "after")
	c.announce()
	b.publishResult(ctx, out, c, res)
	return res
}

// callTool requests credentials and calls the tool within its timeout, or [Config].CallTimeout when it has none. It
// always returns a result with the ids of the call: a tool that fails, times out, is unavailable or returns more than
// its MaxResult is an error in the result. The time and the bytes of the reply are added to the caller's usage. Without
// a valid permit nothing is requested. The result is raw: see [Broker.processResult]. unsent means that no tool
// received the call, as far as the server or the tool itself says.
func (b *Broker) callTool(ctx context.Context, out actor.Out, p *actor.Permit, c call, k Known) (_ subjects.ToolResult,
	unsent bool,
) {
	res := subjects.ToolResult{CallID: c.id, QueryID: c.query, Tool: c.tool}
	if err := p.Check(); err != nil {
		res.Error = subjects.Faultf(subjects.CodeNoAudit, "%v", err)
		return res, false
	}
	limit := k.Timeout
	if limit <= 0 {
		limit = b.cfg.CallTimeout
	}
	isPrincipal := b.table.isPrincipal(k.Zone)
	order := newToolOrder(c, k, isPrincipal)
	// Credentials are requested before the tool's timeout starts: the keyring may wait for the user to unlock it.
	if order.Sealed, res.Error = b.getCredentials(ctx, out, p, c, k); res.Error != nil {
		return res, false
	}
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	service, err := subjects.ToolCallService.With(k.Zone, c.tool)
	if err != nil {
		res.Error = subjects.Faultf(subjects.CodeUnavailable, "no valid subject for tool %s", c.tool)
		return res, false
	}
	if isPrincipal {
		service.Codec = subjects.JSON // a tool of the user needs nothing but a NATS client
	}
	actor.Step(ctx, "sent")
	start := out.Now()
	endOutput := b.live.begin(k, c)
	got, err := actor.Ask(ctx, out, service, order)
	if isPrincipal {
		got, err = b.answerForms(whole, out, c, k.Zone, service, limit, got, err)
	}
	rest, output := endOutput()
	b.forwardOutput(ctx, out, output, rest)
	took := out.Now().Sub(start)
	res.Millis = took.Milliseconds()
	b.usage.AddResult(out.Now(), c.record.AgentID, took.Seconds(), int64(len(got.Result)))
	actor.Step(ctx, "answered")
	if res.Error = replyFault(out, c, k, isPrincipal, got, err); res.Error == nil {
		res.Result, res.Links, res.Artifacts = got.Result, got.Links, filterArtifacts(got.Artifacts, c.folders)
		if k.Graded {
			// processResult checks them
			res.Labels, res.Recalls = got.Labels, got.Recalls
		}
	}
	return res, actor.IsNoResponder(err)
}

// newToolOrder returns the order of a call, without credentials. Only a tool that writes memory or labels its results
// itself learns the caller and the labels; a tool of the user learns nothing but the call.
func newToolOrder(c call, k Known, isPrincipal bool) subjects.ToolOrder {
	order := subjects.ToolOrder{CallID: c.id, QueryID: c.query, Args: c.args}
	if isPrincipal {
		return order
	}
	order.Mode, order.Hosts, order.Pages, order.Folders = c.mode, c.hosts, c.mayReadPages, c.folders
	if k.Has(policy.Remember) || k.Graded {
		order.Caller, order.CallerType, order.Spawned, order.Labels = c.record.AgentID, c.record.AgentType,
			len(c.path) > 0, c.labels
	}
	return order
}

// replyFault returns the fault of a call that a tool failed or did not answer, or whose result exceeds MaxResult; nil
// for any other result. err is the error of asking the tool.
func replyFault(out actor.Out, c call, k Known, isPrincipal bool, got subjects.ToolResult, err error) *subjects.Fault {
	var fault *subjects.Fault
	switch {
	case actor.IsReplyFault(err) && errors.As(err, &fault):
		return toolFault(fault)
	case actor.IsNoResponder(err) && isPrincipal:
		return subjects.Faultf(subjects.CodeUnavailable, "%s is not running: %s", c.tool, startAdvice(k.Zone))
	case errors.As(err, &fault) && fault.Code == subjects.CodeMalformed && isPrincipal:
		return subjects.Faultf(subjects.CodeTool, "%s: correct the program, docs/tools.md has the contract",
			nameContractSubject(c.tool, k.Zone, fault.Text))
	case errors.As(err, &fault) && fault.Code == subjects.CodeMalformed && !isHarmless(k.Tool):
		// its text quotes the reply, which may be untrusted
		out.LogError(fmt.Errorf("calling %s in the zone %s: %w", c.tool, k.Zone, err))
		return subjects.Faultf(subjects.CodeMalformed, "the reply of %s could not be read; see the log of the broker",
			c.tool)
	case errors.As(err, &fault) && isPrincipal:
		return subjects.Faultf(fault.Code, "%s", nameContractSubject(c.tool, k.Zone, fault.Text))
	case errors.As(err, &fault):
		return subjects.Faultf(fault.Code, "%s", fault.Text)
	case err != nil:
		return subjects.Faultf(subjects.CodeUnavailable, "tool %s is unavailable", c.tool)
	case got.Error != nil:
		return toolFault(got.Error)
	case k.MaxResult > 0 && len(got.Result) > k.MaxResult:
		return subjects.Faultf(subjects.CodeTooLarge, "result of %s too large: %d bytes, limit %d", c.tool,
			len(got.Result), k.MaxResult)
	}
	return nil
}

// nameContractSubject replaces the subject on which the broker requests a tool of a principal, in the text of a fault
// of [actor.Ask], by the one that the program subscribes to. Only the first is replaced: a later one is in the quoted
// reply.
func nameContractSubject(tool, zone, text string) string {
	requested, err := subjects.ToolCallService.With(zone, tool)
	if err != nil {
		return text
	}
	served, err := subjects.ToolEndpoint(tool)
	if err != nil {
		return text
	}
	return strings.Replace(text, requested.Name, served.Subscription(), 1)
}

// startAdvice says how the user starts the tools of a principal.
func startAdvice(principal string) string {
	if strings.HasPrefix(principal, subjects.MCP+"-") {
		return "see conclave mcp list"
	}
	return "start its program"
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

// denyCall records a denial, publishes call and result and returns the denial as the result. A denial that cannot be
// recorded becomes a no-audit fault; the tool does not run in either case.
func (b *Broker) denyCall(ctx context.Context, out actor.Out, c call, f *subjects.Fault) subjects.ToolResult {
	if err := b.gate.Record(ctx, out, c.record, subjects.StatusDenied, denialReason(f)); err != nil {
		return b.answerUnaudited(ctx, out, c, err)
	}
	c.refused = true
	b.publishCall(ctx, out, c)
	res := subjects.ToolResult{CallID: c.id, QueryID: c.query, Tool: c.tool, Error: f, Egress: b.unrunEgress(c)}
	b.publishResult(ctx, out, c, res)
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
func (b *Broker) answerUnaudited(ctx context.Context, out actor.Out, c call, err error) subjects.ToolResult {
	c.refused = true
	res := subjects.ToolResult{CallID: c.id, QueryID: c.query, Tool: c.tool, Egress: b.unrunEgress(c)}
	if !errors.As(err, &res.Error) {
		res.Error = subjects.Faultf(subjects.CodeNoAudit, "the call was not recorded, so nothing was run; see "+
			"conclave doctor")
	}
	b.publishResult(ctx, out, c, res)
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
