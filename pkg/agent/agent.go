// Package agent connects the loop to the bus: an agent asks the broker for tools, runs its calls through the broker
// under its own identity path, and spawns agents below it. Generator, committee and orchestrator use it.
package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Agent is an agent of one query: the account that Out publishes as, or a spawned agent below it.
type Agent struct {
	Out     actor.Out // with the ids of session and query
	Session string
	Query   string
	Path    []string // spawned agents below the account, outermost first; empty = the account itself
	// part of the call ids: distinguishes agents of one account that answer the same query; "" = the only one
	Scope       string
	ToolTimeout time.Duration // of one tool call
	// a call without a reply is repeated after it, then after twice as long, up to 30 s; 0 = 5 s
	RepeatAfter time.Duration
	MaxResult   int // bytes of a framed result for the model; longer ones are clipped
	// OnResult is called with every result and every failure of a tool, OnClipped with the tool of a clipped result.
	// Both may be nil, and several calls run at the same time.
	OnResult  func(tool string, res subjects.ToolResult)
	OnClipped func(tool string)
}

// spawnTimeout is the timeout of a spawn request.
const spawnTimeout = 30 * time.Second

// Spawn asks the broker for an agent below a and returns it with its tools. The new agent has the settings of a but for
// Scope, to which its name is added. The broker's denial is a [*subjects.Fault].
func (a *Agent) Spawn(ctx context.Context, req subjects.SpawnRequest) (*Agent, []string, error) {
	service, err := subjects.AgentSpawn, error(nil)
	if len(a.Path) > 0 {
		service, err = subjects.AgentSpawnBelow.With(a.Path...)
	}
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, spawnTimeout)
	defer cancel()
	reply, err := actor.Ask(ctx, a.Out, service, req)
	if err != nil {
		return nil, nil, err
	}
	child := *a
	child.Path = append(slices.Clone(a.Path), reply.Child)
	child.Scope = strings.TrimSpace(a.Scope + " " + reply.Child)
	return &child, reply.Tools, nil
}

// Discover asks the broker for tools that fit a task, at most most, within [LookupTimeout]. It asks each time, so that
// grants and disabled tools take effect at once. A spawned agent also gets those that it could use if their backend
// answered.
func (a *Agent) Discover(ctx context.Context, task string, most int) ([]model.Tool, []subjects.UnavailableTool, error) {
	if most <= 0 {
		return nil, nil, nil
	}
	service, err := subjects.BrokerDiscover, error(nil)
	if len(a.Path) > 0 {
		service, err = subjects.BrokerDiscoverBelow.With(a.Path...)
	}
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, LookupTimeout)
	defer cancel()
	reply, err := actor.Ask(ctx, a.Out, service, subjects.DiscoverRequest{Task: task, Max: most})
	if err != nil {
		return nil, nil, err
	}
	found := reply.Tools
	out := make([]model.Tool, 0, len(found))
	for _, s := range found[:min(most, len(found))] {
		out = append(out, model.Tool{Name: s.Name, Description: s.Description, Parameters: s.Parameters})
	}
	return out, reply.Unavailable, nil
}

// CallID is the id of a call outside of its turn, derived from session, query, scope and the model's own id. The
// model's id alone is unique within a turn at best, and the broker would take a later call with the same id for one
// that has run. The derivation must not change: a resumed turn finds its calls in the broker's ledger.
func (a *Agent) CallID(id string) string {
	of := a.Session + " " + a.Query + " " + id
	if a.Scope != "" {
		of = a.Scope + " " + of
	}
	sum := sha256.Sum256([]byte(of))
	return hex.EncodeToString(sum[:16])
}

// RecordCall is a finished call in the record of an answer, with at most mostResult bytes of its result. Credentials in
// its arguments are removed; arguments of more than mostArgs bytes, or no valid JSON without them, are left out.
func (a *Agent) RecordCall(d loop.FinishedCall, mostResult, mostArgs int) subjects.ToolCall {
	c := subjects.ToolCall{
		CallID: a.CallID(d.Call.ID), Tool: d.Call.Name, Result: text.Clip(d.Result.Text, mostResult), Layer: d.Layer,
		Ephemeral: d.Result.Ephemeral,
	}
	if args, _ := firewall.Redact(string(d.Call.Arguments)); len(args) <= mostArgs && json.Valid([]byte(args)) {
		c.Args = json.RawMessage(args)
	}
	if d.Result.Fault != "" {
		why := cmp.Or(d.Result.Cause, d.Result.Text)
		c.Error = subjects.Faultf(d.Result.Fault, "%s", text.Clip(why, min(mostResult, 2<<10)))
	}
	return c
}

// unavailableText is the result of a tool that timed out.
const unavailableText = "[tool unavailable]"

// RunTool runs one call through the broker and waits for its result, at most ToolTimeout. A denial, a failure and a
// timeout are results too, with a fault and a text for the model to read. A long framed result is clipped.
func (a *Agent) RunTool(ctx context.Context, c model.Call) loop.Result {
	return a.runTool(ctx, c, false)
}

// RecallOwn is [Agent.RunTool] for a search of memory that no model chose: see [subjects.ToolRequest.Own]. The agent
// must not be a spawned one.
func (a *Agent) RecallOwn(ctx context.Context, c model.Call) loop.Result {
	return a.runTool(ctx, c, true)
}

// Tools that read memory. Small models choose graphTool for any question about a fact.
const (
	// RecallTool is the tool of the recalls that the runtime makes.
	RecallTool = "search_memory"
	graphTool  = "search_knowledge_graph"
)

// RemoveRecallTools returns the tools that do not read memory: those that a model with constrained calls is offered,
// because memory was searched for it.
func RemoveRecallTools(tools []model.Tool) []model.Tool {
	return slices.DeleteFunc(slices.Clone(tools), func(tool model.Tool) bool {
		return tool.Name == RecallTool || tool.Name == graphTool
	})
}

func (a *Agent) runTool(ctx context.Context, c model.Call, own bool) loop.Result {
	service, err := subjects.ToolRequestService.With(append([]string{c.Name}, a.Path...)...)
	if err != nil {
		return loop.Result{Text: "There is no tool of that name.", Fault: subjects.CodeUnknownTool}
	}
	ctx, cancel := context.WithTimeout(ctx, a.ToolTimeout)
	defer cancel()
	res, err := a.askTool(ctx, service, subjects.ToolRequest{
		CallID: a.CallID(c.ID), QueryID: a.Query,
		Args: c.Arguments, Own: own,
	})
	var f *subjects.Fault
	switch {
	case errors.As(err, &f) && f != nil:
		return DescribeFault(f)
	case err != nil:
		return loop.Result{
			Text: unavailableText, Fault: subjects.CodeUnavailable,
			Cause: "the broker did not reply: ask again, and see conclave doctor",
		}
	}
	if a.OnResult != nil {
		a.OnResult(c.Name, res)
	}
	if res.Error != nil {
		return DescribeFault(res.Error)
	}
	shown := clipInFrame(res.Result, a.MaxResult)
	if shown != res.Result && a.OnClipped != nil {
		a.OnClipped(c.Name)
	}
	return loop.Result{Text: shown, Ephemeral: res.Ephemeral}
}

// maxRepeat is the longest wait before a call is repeated.
const maxRepeat = 30 * time.Second

// askTool sends a call to the broker and waits for its result until ctx ends. While no reply comes it sends the same
// call again under the same call_id: the broker may have been killed, or the link cut, and nobody would reply. The
// broker does not run it twice: it replies with the result of the running or completed call, or that the outcome is
// unknown.
func (a *Agent) askTool(ctx context.Context, service subjects.Service[subjects.ToolRequest, subjects.ToolResult],
	req subjects.ToolRequest,
) (subjects.ToolResult, error) {
	type reply struct {
		attempt int
		res     subjects.ToolResult
		err     error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	replies := make(chan reply)
	ask := func(ctx context.Context, attempt int) {
		res, err := actor.Ask(ctx, a.Out, service, req)
		select {
		case replies <- reply{attempt, res, err}:
		case <-ctx.Done():
		}
	}
	go ask(ctx, 1)
	wait, last := cmp.Or(a.RepeatAfter, 5*time.Second), 1
	timer := time.NewTimer(wait)
	defer timer.Stop()
	forget := context.CancelFunc(func() {}) // ends the wait of the last repetition
	defer func() { forget() }()
	for {
		select {
		case r := <-replies:
			// The broker ends the wait of an earlier attempt that a later one replaced with a timeout.
			isReplaced := r.attempt < last && r.res.Error != nil && r.res.Error.Code == subjects.CodeTimeout
			if r.err == nil && !isReplaced || last == 1 || r.attempt == last && !isTransient(r.err) {
				return r.res, r.err
			}
		case <-timer.C:
			forget() // the broker keeps one repetition waiting
			attempt, stop := context.WithCancel(ctx)
			forget = stop
			last++
			go ask(attempt, last)
			wait = min(2*wait, max(wait, maxRepeat))
			timer.Reset(wait)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return subjects.ToolResult{}, ctx.Err()
			}
			return subjects.ToolResult{}, subjects.Faultf(subjects.CodeTimeout, "timeout: no reply from %s before "+
				"the deadline", service.Server())
		}
	}
}

// isTransient reports whether a later attempt may succeed: no broker is running, or it is stopping or busy.
func isTransient(err error) bool {
	code := subjects.CodeOf(err)
	return code == subjects.CodeUnavailable || code == subjects.CodeBusy
}

// clipInFrame clips a framed result to most bytes and keeps the last line, which ends the frame around untrusted
// content: the loop would cut it. A result without a frame, or whose last line leaves no room, is returned unchanged.
func clipInFrame(s string, most int) string {
	end := strings.LastIndexByte(s, '\n')
	if len(s) <= most || end < 0 || !strings.HasPrefix(s, firewall.FrameStart) {
		return s
	}
	last, room := s[end:], most-(len(s)-end)-len(clipMark)
	if room <= 0 {
		return s
	}
	return strings.ToValidUTF8(s[:room], "") + clipMark + last
}

// clipMark marks where a result was clipped.
const clipMark = "\n[cut here: the result is longer]"

// DescribeFault is the result of a call that failed, was denied or did not run, in words for the model. Its fault is
// the code of f, CodeTool when f has none.
func DescribeFault(f *subjects.Fault) loop.Result {
	r := loop.Result{Fault: f.Code}
	switch f.Code {
	case subjects.CodeTimeout, subjects.CodeUnavailable:
		r.Text, r.Cause = unavailableText, text.OneLine(f.Text, maxTextBytes)
	case subjects.CodeDenied:
		r.Text = "This call is not allowed"
		if f.Denial != nil {
			r.Text += ": " + text.OneLine(f.Denial.Reason, maxTextBytes)
			if len(f.Denial.Allowed) > 0 {
				r.Text += ". Allowed: " + text.OneLine(strings.Join(f.Denial.Allowed, ", "), maxTextBytes)
			}
		} else if f.Text != "" {
			r.Text += ": " + text.OneLine(f.Text, maxTextBytes)
		}
		r.Text += ". Do not try it again in this way."
	case subjects.CodeNotApproved:
		r.Text = "The user was asked whether this call may run, and said no. Do not try to get the same done in " +
			"another way; go on without it."
	case subjects.CodeUnanswered:
		r.Text = "The user was asked whether this call may run, and has not answered: it did not run. Say so, and go " +
			"on without it."
	case subjects.CodeLimit:
		r.Text = "This call was not run, a limit is reached: " + text.OneLine(f.Text, maxTextBytes) +
			". Answer with what you have."
	case subjects.CodeNoSecret:
		r.Text = "The call did not run: " + text.OneLine(f.Text, maxTextBytes) + ". Tell the user."
	case subjects.CodeUncertain:
		r.Text = "It is not known whether this call ran before an interruption, and it is not run again. Tell the " +
			"user so: " + text.OneLine(f.Text, maxTextBytes)
	default:
		r.Text = fmt.Sprintf("The call failed (%s): %s", f.Code, text.Clip(f.Text, 2<<10))
	}
	r.Fault = cmp.Or(r.Fault, subjects.CodeTool)
	return r
}

// maxRecalls bounds how many memories a collection names.
const maxRecalls = 100

// Collection joins the labels and the recalled memories of results. Its zero value is empty; it may be used
// concurrently.
type Collection struct {
	mu      sync.Mutex
	labels  *subjects.Labels
	recalls []string
}

// Add adds the labels of a result, and the memories that a result without an error holds, each once. Memories beyond
// maxRecalls are dropped.
func (c *Collection) Add(res subjects.ToolResult) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if res.Labels != nil {
		c.labels = c.labels.Join(res.Labels)
	}
	if res.Error != nil {
		return
	}
	for _, id := range res.Recalls {
		if len(c.recalls) < maxRecalls && !slices.Contains(c.recalls, id) {
			c.recalls = append(slices.Clone(c.recalls), text.Clip(id, subjects.MaxToken))
		}
	}
}

// Result returns the joined labels, nil when no result had any, and the ids of the memories.
func (c *Collection) Result() (*subjects.Labels, []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.labels, c.recalls
}
