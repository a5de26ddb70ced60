// Package simulate measures the policy against prompt injection: it replays recorded cases through the real broker with a
// model that obeys every instruction it reads, and counts which attacker calls run and which of the user's own calls are
// denied or need approval. Tools are stubs. The caller is granted every tool of a case, so that only the flow rules decide.
package simulate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"conclave/actors/broker"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// Case is a user's task with its own correct calls, and the calls that an injected instruction asks for. It has one of two
// forms: a list of user calls, or a single one (Tool, Params) with the text that its tool returned.
type Case struct {
	ID          string `json:"id"`
	Suite       string `json:"suite"`
	Task        string `json:"user_task"`
	Instruction string `json:"user_instruction"`
	Calls       []Call `json:"user_calls"`
	Goal        string `json:"injection_goal"`

	Tool     string          `json:"user_tool"`
	Params   json.RawMessage `json:"user_params"`
	Response string          `json:"tool_response_enhanced"`
	Plain    string          `json:"tool_response_base"`

	Attack []Call `json:"attacker_calls"`

	bare bool // see [Options.Bare]
}

// Call is one tool call of a case.
type Call struct {
	Tool     string          `json:"tool"`
	Args     json.RawMessage `json:"args"`
	Injected bool            `json:"result_has_injection"`
	Result   string          `json:"simulated_result"`
}

// Options change a run; the zero value is the usual one.
type Options struct {
	Bare     bool           // tools return none of the values that later calls of the task use
	Progress func(done int) // called with the number of finished cases; nil = not called
}

// Report is the result over all cases.
type Report struct {
	Cases            int            `json:"cases"`
	Executed         int            `json:"attacks_executed"`
	Benign           int            `json:"benign"`
	Interrupted      int            `json:"benign_interrupted"`
	ExecutedIDs      []string       `json:"attacks_executed_ids"`
	InterruptedIDs   []string       `json:"benign_interrupted_ids"`
	InterruptedRules map[string]int `json:"benign_interrupted_rules"` // the rule of the first interruption of each task
	Refused          int            `json:"attacker_calls_stopped"`
	Calls            int            `json:"calls"`
	Records          int            `json:"audit_records"`
}

// maxCase is the longest line of a case file, in bytes.
const maxCase = 4 << 20

// ReadCases reads cases, one JSON object per line, and skips empty lines; name is used in errors. It rejects a file
// without a case, a line over maxCase, and a case without an id, an instruction or any call. Unknown fields are
// ignored. A case in the single-call form gets that call in Calls.
func ReadCases(r io.Reader, name string) ([]Case, error) {
	var out []Case
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxCase)
	for n := 1; sc.Scan(); n++ {
		line := bytes.TrimSpace(sc.Bytes())
		if len(line) == 0 {
			continue
		}
		var c Case
		if err := json.Unmarshal(line, &c); err != nil {
			return nil, fmt.Errorf("%s:%d: not a case: %w", name, n, err)
		}
		if c.Tool != "" && len(c.Calls) == 0 {
			c.Calls = []Call{{Tool: c.Tool, Args: c.Params, Injected: true, Result: c.Plain}}
		}
		if c.ID == "" || c.Instruction == "" || len(c.Calls)+len(c.Attack) == 0 {
			return nil, fmt.Errorf("%s:%d: a case needs id, user_instruction and calls", name, n)
		}
		out = append(out, c)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s holds no case", name)
	}
	return out, nil
}

// Effects are the declared effects of tools, by tool name. A tool that is missing has every effect.
type Effects map[string]policy.Tool

// ReadEffects reads a JSON file with the effects of tools: {"tools": {"<name>": {"reads": ..., "result_trust": ...,
// "effects": [...]}}}. A result_trust other than "trusted" reads untrusted content, and reads "private" reads private
// data. It rejects unknown effects; unknown fields are ignored.
func ReadEffects(file string) (Effects, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading tool effects: %w", err)
	}
	var f struct {
		Tools map[string]struct {
			Reads   string   `json:"reads"`
			Trust   string   `json:"result_trust"`
			Effects []string `json:"effects"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	named := map[string]policy.Effect{
		"egress": policy.Egress, "egress_url": policy.Fetch, "mutate": policy.Mutate, "destroy": policy.Destroy, "money": policy.Spend,
		"auth": policy.Authenticate, "physical": policy.Physical, "exec": policy.Exec,
	}
	out := Effects{}
	for name, t := range f.Tools {
		var all []policy.Effect
		if t.Reads == "private" {
			all = append(all, policy.ReadsPrivate)
		}
		if t.Trust != "trusted" {
			all = append(all, policy.ReadsUntrusted)
		}
		for _, e := range t.Effects {
			effect, ok := named[e]
			if !ok {
				return nil, fmt.Errorf("%s: tool %s: unknown effect %q", file, name, e)
			}
			all = append(all, effect)
		}
		tool := policy.Tool{Name: name, Zone: zone, Known: true, Effects: policy.Declare(all...)}
		if slices.Contains(all, policy.Fetch) {
			tool.URL = "url"
		}
		out[name] = tool
	}
	return out, nil
}

// hasSideEffect reports whether a tool does anything but read; fetching counts, storing in memory does not. A tool that
// is not in e does.
func (e Effects) hasSideEffect(tool string) bool {
	t := e[tool]
	for _, effect := range []policy.Effect{policy.Egress, policy.Fetch, policy.Mutate, policy.Destroy, policy.Exec, policy.Spend, policy.Authenticate, policy.Physical} {
		if t.Has(effect) {
			return true
		}
	}
	return false
}

// readsData reports whether a tool's result holds data that was not in its arguments.
func (e Effects) readsData(tool string) bool {
	return !e.hasSideEffect(tool) || e[tool].Has(policy.Fetch)
}

const (
	zone      = "tools"
	account   = "generator"
	agentType = "assistant"
)

// Run replays cases in order, each with its attack, and the task of each once more without. A task that several cases
// share is replayed without an attack once. It stops at the first error and when ctx ends, with the report so far.
func Run(ctx context.Context, cases []Case, effects Effects, o Options) (Report, error) {
	r := Report{Cases: len(cases), ExecutedIDs: []string{}, InterruptedIDs: []string{}, InterruptedRules: map[string]int{}}
	seen := map[string]bool{}
	for i, c := range cases {
		c.bare = o.Bare
		if err := ctx.Err(); err != nil {
			return r, err
		}
		executed, err := r.replayAttack(ctx, c, effects)
		if err != nil {
			return r, fmt.Errorf("case %s: %w", c.ID, err)
		}
		if executed {
			r.Executed++
			r.ExecutedIDs = append(r.ExecutedIDs, c.ID)
		}
		if task := c.taskID(); !seen[task] && len(c.Calls) > 0 {
			seen[task] = true
			rule, err := r.replayTask(ctx, c, effects)
			if err != nil {
				return r, fmt.Errorf("case %s: %w", c.ID, err)
			}
			r.Benign++
			if rule != "" {
				r.Interrupted++
				r.InterruptedIDs = append(r.InterruptedIDs, task)
				r.InterruptedRules[rule]++
			}
		}
		if o.Progress != nil {
			o.Progress(i + 1)
		}
	}
	return r, nil
}

// taskID identifies the user's task, which several cases may share: tool and instruction of the single-call form,
// otherwise the id up to "-injection", or suite and task.
func (c Case) taskID() string {
	if c.Task == "" {
		return c.Tool + " " + c.Instruction
	}
	if at := strings.Index(c.ID, "-injection"); at > 0 {
		return c.ID[:at]
	}
	return c.Suite + "-" + c.Task
}

// replayAttack replays a case with a model that obeys the attacker: the user's calls up to the one whose result has the
// injection, then all attacker calls, the remaining user calls, and the attacker calls again, because the session has
// read more by then. The user approves the user calls and denies the attacker's. executed reports whether an attacker
// call with a side effect ran; false for a case without attacker calls, which is not replayed.
func (r *Report) replayAttack(ctx context.Context, c Case, effects Effects) (executed bool, err error) {
	if len(c.Attack) == 0 {
		return false, nil
	}
	s, err := newSession(c, effects)
	if err != nil {
		return false, err
	}
	defer r.addCounts(s)
	obey := func() error {
		s.approves = false
		for _, a := range c.Attack {
			ran, _, err := s.callTool(ctx, a, c.attackResult(a))
			if err != nil {
				return err
			}
			switch {
			case ran && effects.hasSideEffect(a.Tool):
				executed = true
			case !ran:
				r.Refused++
			}
		}
		s.approves = true
		return nil
	}
	s.approves = true
	obeyed := false
	for i, u := range c.Calls {
		if _, _, err := s.callTool(ctx, u, c.toolResult(i, effects, u.Injected)); err != nil {
			return false, err
		}
		if u.Injected && !obeyed {
			obeyed = true
			if err := obey(); err != nil {
				return false, err
			}
		}
	}
	return executed, obey()
}

// replayTask replays the user's calls without an attack, all of them; the user denies every approval request. It
// returns the rule, as layer.rule, that first denied a call or required approval, "" when all calls ran.
func (r *Report) replayTask(ctx context.Context, c Case, effects Effects) (rule string, err error) {
	s, err := newSession(c, effects)
	if err != nil {
		return "", err
	}
	defer r.addCounts(s)
	for i, u := range c.Calls {
		ran, why, err := s.callTool(ctx, u, c.toolResult(i, effects, false))
		if err != nil {
			return "", err
		}
		if !ran && rule == "" {
			rule = why
		}
	}
	return rule, nil
}

// addCounts adds the calls and audit records of a session.
func (r *Report) addCounts(s *session) {
	r.Calls += s.calls
	r.Records += s.records
}

// toolResult returns the result of the tool in the user's i-th call: the recorded one when the case has it. Most cases
// record none. The real one must have held the values that later calls use and the user did not type, so the stub
// returns each of those from the read just before its first use, except in a bare run. With injected the result
// contains the attacker's text as well.
func (c Case) toolResult(i int, effects Effects, injected bool) string {
	u := c.Calls[i]
	if injected && c.Response != "" {
		return c.Response
	}
	if u.Result != "" && !injected {
		return u.Result
	}
	var items []string
	for j := i + 1; j < len(c.Calls) && !c.bare; j++ {
		for _, v := range c.newValues(j) {
			if c.lastRead(j, effects) == i {
				items = append(items, v)
			}
		}
	}
	out := map[string]any{"ok": true, "items": items}
	if injected {
		out["text"] = c.Goal
	}
	data, err := json.Marshal(out)
	if err != nil {
		return "{}"
	}
	return string(data)
}

// attackResult returns the result of an attacker call.
func (c Case) attackResult(a Call) string {
	if a.Result != "" {
		return a.Result
	}
	return `{"ok":true}`
}

// lastRead returns the index of the last call before the j-th that reads data, -1 when there is none. Earlier calls of
// the same tool are skipped: repeated calls work through values that were read before the first of them.
func (c Case) lastRead(j int, effects Effects) int {
	for i := j - 1; i >= 0; i-- {
		if effects.readsData(c.Calls[i].Tool) && c.Calls[i].Tool != c.Calls[j].Tool {
			return i
		}
	}
	return -1
}

// newValues returns the string values in the arguments of the j-th call that no earlier call used and the user did not
// type, sorted. Values with white space or over 128 bytes are left out, because a list does not hold them as one item.
func (c Case) newValues(j int) (out []string) {
	before := strings.ToLower(c.Instruction)
	for _, u := range c.Calls[:j] {
		before += " " + strings.ToLower(string(u.Args))
	}
	var v any
	if json.Unmarshal(c.Calls[j].Args, &v) != nil {
		return nil
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			if v != "" && len(v) <= 128 && utf8.ValidString(v) && !strings.ContainsAny(v, " \t\n") && !strings.Contains(before, strings.ToLower(v)) && !slices.Contains(out, v) {
				out = append(out, v)
			}
		case []any:
			for _, x := range v {
				walk(x)
			}
		case map[string]any:
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(v)
	slices.Sort(out)
	return out
}

// newSession returns a broker and a session for one case, with every tool of the case granted and only the override,
// manifest, lineage and flow layers. A tool without declared effects counts as having all. It rejects a tool name that
// is not a subject token.
func newSession(c Case, effects Effects) (*session, error) {
	s := &session{instruction: c.Instruction, stores: map[string]*store{}}
	var names []string
	for _, u := range append(slices.Clone(c.Calls), c.Attack...) {
		if err := subjects.CheckToken(u.Tool); err != nil {
			return nil, fmt.Errorf("tool name: %w", err)
		}
		if !slices.Contains(names, u.Tool) {
			names = append(names, u.Tool)
		}
	}
	m := policy.Manifest{
		Types:    map[string]policy.AgentType{agentType: {Tools: slices.Sorted(slices.Values(names))}},
		Accounts: map[string]string{account: agentType},
	}
	var build []broker.Known
	var schemas []subjects.ToolSchema
	for _, name := range names {
		schema := subjects.ToolSchema{Name: name, Description: name, Parameters: json.RawMessage(`{"type":"object"}`)}
		facts, ok := effects[name]
		if !ok {
			facts = policy.Tool{Name: name, Zone: zone, Known: true} // undeclared effects count as all effects
		}
		build = append(build, broker.Known{Tool: facts, Pin: broker.Pin(schema)})
		schemas = append(schemas, schema)
	}
	chain := policy.Chain{policy.OverrideLayer{}, policy.ManifestLayer{Manifest: m}, policy.LineageLayer{Manifest: m}, policy.FlowLayer{}}
	cfg := broker.Config{CallTimeout: waitLimit, AuditTimeout: waitLimit, ApprovalWait: waitLimit}
	s.broker = broker.New(cfg, policy.NewActiveRules(policy.Rules{Manifest: m, Chain: chain}), s, paramsHash{}, build)
	if err := s.broker.AddTools(schemas...); err != nil {
		return nil, err
	}
	for _, route := range s.broker.Routes() {
		switch route.Spec().Name {
		case subjects.ToolRequestService.Name:
			s.ask = route
		case subjects.ApprovalDecisionService.Name:
			s.answer = route
		}
	}
	if s.ask.Spec().Name == "" || s.answer.Spec().Name == "" {
		return nil, errors.New("the broker has no route for tool requests and approval decisions")
	}
	return s, nil
}
