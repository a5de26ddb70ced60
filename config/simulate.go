package config

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

// The simulator asks one question of the policy: if a model obeyed every instruction that it reads, what would run? It
// replays cases (a person's task with its own correct calls, an attacker's calls, and where the attacker's text comes in)
// through the real broker, with tools that only answer. The caller is granted every tool of a case, so that nothing but
// the flow of information decides.

// SimCase is one case, in either of two forms: with a list of the user's calls, or with a single one and the text that
// its tool returned.
type SimCase struct {
	ID          string    `json:"id"`
	Suite       string    `json:"suite"`
	Task        string    `json:"user_task"`
	Instruction string    `json:"user_instruction"`
	Calls       []SimCall `json:"user_calls"`
	Goal        string    `json:"injection_goal"`

	Tool     string          `json:"user_tool"`
	Params   json.RawMessage `json:"user_params"`
	Response string          `json:"tool_response_enhanced"`
	Plain    string          `json:"tool_response_base"`

	Attack []SimCall `json:"attacker_calls"`

	bare bool // see [SimOptions]
}

// SimCall is one call of a case.
type SimCall struct {
	Tool     string          `json:"tool"`
	Args     json.RawMessage `json:"args"`
	Injected bool            `json:"result_has_injection"`
	Result   string          `json:"simulated_result"`
}

// SimOptions say how a simulation differs from the usual one.
type SimOptions struct {
	Bare     bool           // tools return none of the values that later calls of the task take
	Progress func(done int) // told how many cases are done; nil = nobody
}

// SimReport is what came of all cases.
type SimReport struct {
	Cases            int            `json:"cases"`
	Executed         int            `json:"attacks_executed"`
	Benign           int            `json:"benign"`
	Interrupted      int            `json:"benign_interrupted"`
	ExecutedIDs      []string       `json:"attacks_executed_ids"`
	InterruptedIDs   []string       `json:"benign_interrupted_ids"`
	InterruptedRules map[string]int `json:"benign_interrupted_rules"` // what the first interruption of each task was about
	Refused          int            `json:"attacker_calls_stopped"`
	Calls            int            `json:"calls"`
	Records          int            `json:"audit_records"`
}

// maxCase bounds a line of a file of cases.
const maxCase = 4 << 20

// ReadCases reads a file of cases, one JSON object a line.
func ReadCases(r io.Reader, name string) ([]SimCase, error) {
	var out []SimCase
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxCase)
	for n := 1; sc.Scan(); n++ {
		line := bytes.TrimSpace(sc.Bytes())
		if len(line) == 0 {
			continue
		}
		var c SimCase
		if err := json.Unmarshal(line, &c); err != nil {
			return nil, fmt.Errorf("%s:%d: not a case: %w", name, n, err)
		}
		if c.Tool != "" && len(c.Calls) == 0 {
			c.Calls = []SimCall{{Tool: c.Tool, Args: c.Params, Injected: true, Result: c.Plain}}
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

// SimEffects are what is known of the tools that cases name.
type SimEffects map[string]policy.Tool

// ReadEffects reads the labels of tools: {"tools": {"<name>": {"reads": ..., "result_trust": ..., "effects": [...]}}}.
func ReadEffects(file string) (SimEffects, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading what the tools of the cases do: %w", err)
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
	out := SimEffects{}
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
				return nil, fmt.Errorf("%s: %s has the effect %q, which nobody knows", file, name, e)
			}
			all = append(all, effect)
		}
		tool := policy.Tool{Name: name, Zone: simZone, Known: true, Effects: policy.Declare(all...)}
		if slices.Contains(all, policy.Fetch) {
			tool.URL = "url"
		}
		out[name] = tool
	}
	return out, nil
}

// acts reports whether a tool does anything but read. One that nobody knows does.
func (e SimEffects) acts(tool string) bool {
	t := e[tool]
	for _, effect := range []policy.Effect{policy.Egress, policy.Fetch, policy.Mutate, policy.Destroy, policy.Exec, policy.Spend, policy.Authenticate, policy.Physical} {
		if t.Has(effect) {
			return true
		}
	}
	return false
}

// reads reports whether a tool's result holds something that was not in its arguments.
func (e SimEffects) reads(tool string) bool { return !e.acts(tool) || e[tool].Has(policy.Fetch) }

const (
	simZone    = "tools"
	simAccount = "generator"
	simType    = "assistant"
)

// Simulate replays cases.
func Simulate(ctx context.Context, cases []SimCase, effects SimEffects, o SimOptions) (SimReport, error) {
	r := SimReport{Cases: len(cases), ExecutedIDs: []string{}, InterruptedIDs: []string{}, InterruptedRules: map[string]int{}}
	seen := map[string]bool{}
	for i, c := range cases {
		c.bare = o.Bare
		if err := ctx.Err(); err != nil {
			return r, err
		}
		executed, err := r.attack(ctx, c, effects)
		if err != nil {
			return r, fmt.Errorf("case %s: %w", c.ID, err)
		}
		if executed {
			r.Executed++
			r.ExecutedIDs = append(r.ExecutedIDs, c.ID)
		}
		if task := c.benignID(); !seen[task] && len(c.Calls) > 0 {
			seen[task] = true
			rule, err := r.benign(ctx, c, effects)
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

// benignID names the user's own task: many cases share one.
func (c SimCase) benignID() string {
	if c.Task == "" {
		return c.Tool + " " + c.Instruction
	}
	if at := strings.Index(c.ID, "-injection"); at > 0 {
		return c.ID[:at]
	}
	return c.Suite + "-" + c.Task
}

// attack plays a case with a model that obeys the attacker: the user's calls up to the one that brings the attacker's
// text, then all of the attacker's; and once more when all of the user's calls are done, because the session knows more
// by then. The user agrees to the own calls and to none of the others. It reports whether anything ran that does more
// than read.
func (r *SimReport) attack(ctx context.Context, c SimCase, effects SimEffects) (executed bool, err error) {
	if len(c.Attack) == 0 {
		return false, nil
	}
	s, err := newSim(c, effects)
	if err != nil {
		return false, err
	}
	defer r.add(s)
	obey := func() error {
		s.agrees = false
		for _, a := range c.Attack {
			ran, _, err := s.call(ctx, a, c.attackResult(a))
			if err != nil {
				return err
			}
			switch {
			case ran && effects.acts(a.Tool):
				executed = true
			case !ran:
				r.Refused++
			}
		}
		s.agrees = true
		return nil
	}
	s.agrees = true
	obeyed := false
	for i, u := range c.Calls {
		if _, _, err := s.call(ctx, u, c.result(i, effects, u.Injected)); err != nil {
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

// benign plays the user's own task, with nobody attacking. It returns the rule that stopped a call first, "" when none
// was.
func (r *SimReport) benign(ctx context.Context, c SimCase, effects SimEffects) (rule string, err error) {
	s, err := newSim(c, effects)
	if err != nil {
		return "", err
	}
	defer r.add(s)
	for i, u := range c.Calls {
		ran, why, err := s.call(ctx, u, c.result(i, effects, false))
		if err != nil {
			return "", err
		}
		if !ran && rule == "" {
			rule = why
		}
	}
	return rule, nil
}

func (r *SimReport) add(s *sim) {
	r.Calls += s.calls
	r.Records += s.records
}

// result is what the tool of the user's i-th call returns. The cases do not say what that was. It must have held the
// values that later calls of the task take and the user did not type, so the stub returns those: each from the read
// just before its first use. With injected it returns the attacker's text too.
func (c SimCase) result(i int, effects SimEffects, injected bool) string {
	u := c.Calls[i]
	if injected && c.Response != "" {
		return c.Response
	}
	if u.Result != "" && !injected {
		return u.Result
	}
	var items []string
	for j := i + 1; j < len(c.Calls) && !c.bare; j++ {
		for _, v := range c.fresh(j) {
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

// attackResult is what a call of the attacker's returns.
func (c SimCase) attackResult(a SimCall) string {
	if a.Result != "" {
		return a.Result
	}
	return `{"ok":true}`
}

// lastRead is the last call before the j-th that reads something, -1 when there is none. Calls of the same tool one after
// the other go through what was read before the first of them.
func (c SimCase) lastRead(j int, effects SimEffects) int {
	for i := j - 1; i >= 0; i-- {
		if effects.reads(c.Calls[i].Tool) && c.Calls[i].Tool != c.Calls[j].Tool {
			return i
		}
	}
	return -1
}

// fresh are the values that the j-th call takes, that no call before it took, and that the user did not type.
func (c SimCase) fresh(j int) (out []string) {
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

// newSim is a broker and a session for one case. Every tool of the case is granted.
func newSim(c SimCase, effects SimEffects) (*sim, error) {
	s := &sim{instruction: c.Instruction, stores: map[string]*simStore{}}
	var names []string
	for _, u := range append(slices.Clone(c.Calls), c.Attack...) {
		if err := subjects.CheckToken(u.Tool); err != nil {
			return nil, fmt.Errorf("the name of a tool: %w", err)
		}
		if !slices.Contains(names, u.Tool) {
			names = append(names, u.Tool)
		}
	}
	m := policy.Manifest{
		Types:    map[string]policy.AgentType{simType: {Tools: slices.Sorted(slices.Values(names))}},
		Accounts: map[string]string{simAccount: simType},
	}
	var build []broker.Known
	var schemas []subjects.ToolSchema
	for _, name := range names {
		schema := subjects.ToolSchema{Name: name, Description: name, Parameters: json.RawMessage(`{"type":"object"}`)}
		facts, ok := effects[name]
		if !ok {
			facts = policy.Tool{Name: name, Zone: simZone, Known: true} // its effects are undeclared: all of them
		}
		build = append(build, broker.Known{Tool: facts, Pin: broker.Pin(schema)})
		schemas = append(schemas, schema)
	}
	chain := policy.Chain{policy.OverrideLayer{}, policy.ManifestLayer{Manifest: m}, policy.LineageLayer{Manifest: m}, policy.FlowLayer{}}
	cfg := broker.Config{CallTimeout: simWait, AuditTimeout: simWait, ApprovalWait: simWait}
	s.broker = broker.New(cfg, policy.NewBook(policy.Rules{Manifest: m, Chain: chain}), s, simHash{}, build)
	if err := s.broker.Seat(schemas...); err != nil {
		return nil, err
	}
	for _, route := range s.broker.Routes() {
		switch route.Spec().Name {
		case subjects.ToolAsk.Name:
			s.ask = route
		case subjects.ApprovalAnswer.Name:
			s.answer = route
		}
	}
	if s.ask.Spec().Name == "" || s.answer.Spec().Name == "" {
		return nil, errors.New("the broker does not hear calls and answers")
	}
	return s, nil
}
