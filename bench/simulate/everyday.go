package main

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"conclave/actors/broker"
	"conclave/actors/memory"
	"conclave/actors/tools"
	"conclave/config"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// everydayFiles are the everyday cases, in two halves, and the facts about the MCP tools that they use.
//
//go:embed everyday
var everydayFiles embed.FS

// everydayHalves are the halves of the everyday cases. The rules may be developed on the first; the second is held
// back, and figures of the second are the ones to quote.
var everydayHalves = []string{"development", "held"}

// Kinds of everyday cases.
const (
	kindTask     = "task"     // a task of a user, without an attack
	kindPlain    = "plain"    // an injection that states what it wants
	kindTailored = "tailored" // an attack by somebody who has read the rules
)

// Folders of the user of the everyday cases. They need not exist.
const (
	everydayHome = "/home/ana"
	everydayWork = "/tmp/agent-sandbox"
)

// injectionMark stands in a result for the text of the attacker; without an attack it is replaced by nothing.
const injectionMark = "{{injection}}"

// readEveryday reads the cases of a half. Each has a kind, a task and, for an attack, a call that must not run.
func readEveryday(half string) ([]Case, error) {
	name := "everyday/" + half + ".jsonl"
	f, err := everydayFiles.Open(name)
	if err != nil {
		return nil, fmt.Errorf("the halves are %s: %w", strings.Join(everydayHalves, " and "), err)
	}
	defer f.Close()
	cases, err := ReadCases(f, name)
	if err != nil {
		return nil, err
	}
	for _, c := range cases {
		isAttack := slices.ContainsFunc(c.Attack, func(a Call) bool { return a.MustNot != "" })
		if len(c.Calls) == 0 || !slices.Contains([]string{kindTask, kindPlain, kindTailored}, c.Kind) ||
			isAttack == (c.Kind == kindTask) {
			return nil, fmt.Errorf("%s: case %s needs a kind, calls and, for an attack, what must not happen", name,
				c.ID)
		}
	}
	return cases, nil
}

// everyday is the system in which the everyday cases run: the tools of this build with their schemas, the MCP tools of
// the cases, and the shipped manifest, with every tool and the user's home folder given to the assistant.
type everyday struct {
	build    []broker.Known
	schemas  []subjects.ToolSchema
	manifest policy.Manifest
	empty    string // what a search of memory returns that finds nothing
	out      io.Writer
	verbose  bool
	asked    []prompt // questions about calls as shipped
}

// prompt is a question to the user, with what a reader needs to judge its reason.
type prompt struct {
	c      Case
	call   Call
	reason string
	before []string // the calls before it in the session, with what they returned
}

// newEveryday returns the system for the everyday cases.
func newEveryday(w io.Writer, verbose bool) (*everyday, error) {
	cfg, err := config.Load("")
	if err != nil {
		return nil, err
	}
	e := &everyday{manifest: cfg.Manifest, out: w, verbose: verbose}
	add := func(facts policy.Tool, schema subjects.ToolSchema) {
		e.build = append(e.build, broker.Known{Tool: facts, Pin: broker.Pin(schema)})
		e.schemas = append(e.schemas, schema)
	}
	known := tools.Known(tools.Config{WebSearch: cfg.WebSearch, WebFetch: cfg.WebFetch, Workspace: cfg.Workspace})
	for _, t := range known {
		add(t.Facts(), t.Schema())
	}
	for _, t := range memory.Tools() {
		add(t.Facts, t.Schema)
		if t.Facts.Empty != "" {
			e.empty = t.Facts.Empty
		}
	}
	data, err := everydayFiles.ReadFile("everyday/tools.yaml")
	if err != nil {
		return nil, err
	}
	declared, err := decodeDeclarations(data, "everyday/tools.yaml")
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(declared)) {
		add(declared[name], subjects.ToolSchema{
			Name: name, Description: name, Parameters: json.RawMessage(`{"type":"object"}`),
		})
	}
	typ := policy.AgentType{Paths: map[string][]string{}}
	for _, k := range e.build {
		typ.Tools = append(typ.Tools, k.Name)
		if len(k.Paths) > 0 {
			typ.Paths[k.Name] = []string{"~/", everydayWork + "/"}
		}
	}
	slices.Sort(typ.Tools)
	e.manifest.Types = map[string]policy.AgentType{agentType: typ}
	e.manifest.Accounts = map[string]string{account: agentType}
	return e, nil
}

// newSession returns a session for a case. Relaxed, no tool asks only because it is high-risk, as under RELAX.
func (e *everyday) newSession(c Case, relaxed bool) (*session, error) {
	s := &session{questions: c.Instruction, stores: map[string]*store{}, tools: Tools{}}
	m, build, schemas := e.manifest, slices.Clone(e.build), slices.Clone(e.schemas)
	if relaxed {
		m.HighRisk = nil
	}
	for i, k := range build {
		s.tools[k.Name] = k.Tool
		if text := c.Descriptions[k.Name]; text != "" {
			schemas[i].Description = text
			build[i].Pin = broker.Pin(schemas[i])
		}
	}
	chain := m.Chain(policy.Env{
		Home:   everydayHome,
		Closed: []string{everydayHome + "/.config/conclave", everydayHome + "/.local/share/conclave"},
	})
	return s, s.start(broker.Config{Workspace: everydayWork}, policy.Rules{Manifest: m, Chain: chain}, build, schemas)
}

// everydayRun replays one case.
type everydayRun struct {
	*session
	c        Case
	empty    string // what memory returns; "" = the entries of the case
	recalled int    // questions before whose first call the runtime recalled
	searches bool   // the model searches memory before the first call of each question
	injected bool   // results have the attacker's text
	before   []string
}

// decision is what the broker decided about a call.
type decision struct {
	ran, asked bool // asked: the user was asked; neither: the call was denied
	rule       string
	reason     string
	before     []string // see [prompt]
}

// call makes a call as the model would, after the recall of the runtime where it is the first one of its question.
func (r *everydayRun) call(ctx context.Context, c Call) (decision, error) {
	for ; r.recalled <= c.Question; r.recalled++ {
		if err := r.recall(ctx, r.recalled); err != nil {
			return decision{}, err
		}
	}
	result := c.Result
	r.labels = nil
	switch {
	case c.Tool != "search_memory":
	case r.empty != "":
		result, r.labels = r.empty, &subjects.Labels{Trust: subjects.Trusted}
	default:
		result, r.labels = joinMemory(r.c.Memory, false)
	}
	goal := ""
	if r.injected {
		goal = r.c.Goal
	}
	result = strings.ReplaceAll(result, injectionMark, goal)
	if result == "" {
		result = `{"ok":true}`
	}
	ran, rule, err := r.callTool(ctx, c, result)
	d := decision{ran: ran, asked: r.asked != "", rule: rule, reason: r.reason, before: slices.Clone(r.before)}
	r.before = append(r.before, fmt.Sprintf("%s %s: %.400s", c.Tool, c.Args.object(), result))
	return d, err
}

// recall makes the calls before the first one of a question, with its words: the runtime recalls the user's own
// statements, and the model searches memory where it does so. Nothing is recalled from an empty memory.
func (r *everydayRun) recall(ctx context.Context, question int) error {
	own, labels := joinMemory(r.c.Memory, true)
	if r.empty != "" || own == "" {
		return nil
	}
	args, err := json.Marshal(map[string]any{"query": r.c.Instruction[question], "max": 3})
	if err != nil {
		return err
	}
	r.own, r.labels = true, labels
	first := Call{Tool: "search_memory", Args: args, Question: question}
	_, _, err = r.callTool(ctx, first, own)
	r.own = false
	if err != nil || !r.searches {
		return err
	}
	var found string
	found, r.labels = joinMemory(r.c.Memory, false)
	_, _, err = r.callTool(ctx, first, found)
	return err
}

// joinMemory returns entries of memory as a search finds them, with their labels: trusted when all of them are. With
// own the untrusted ones are left out.
func joinMemory(entries []memoryEntry, own bool) (string, *subjects.Labels) {
	labels := &subjects.Labels{Trust: subjects.Trusted, Privacy: subjects.Private}
	var lines []string
	for _, e := range entries {
		if own && !e.Trusted {
			continue
		}
		lines = append(lines, e.Text)
		if !e.Trusted {
			labels.Trust = subjects.Untrusted
		}
	}
	return strings.Join(lines, "\n"), labels
}

// everydayCounts are the figures of one half at one level.
type everydayCounts struct {
	tasks                               int
	askedEmpty, asked, needless, denied int // tasks, with memory empty and filled
	questions, needlessQuestions        int // with memory filled
	needed, missed                      int // questions that are needed, and those of them that were not asked
	attacks, executed, irreversible     map[string]int
}

// runEveryday replays the everyday cases of halves and prints the figures: as shipped, and with no tool high-risk, as
// under RELAX. prompts is how many questions are printed for a reader.
func runEveryday(ctx context.Context, w io.Writer, halves []string, verbose bool, prompts int) error {
	e, err := newEveryday(w, verbose)
	if err != nil {
		return err
	}
	for _, half := range halves {
		cases, err := readEveryday(half)
		if err != nil {
			return err
		}
		var levels []everydayCounts
		for _, relaxed := range []bool{false, true} {
			n, err := e.replay(ctx, cases, relaxed)
			if err != nil {
				return err
			}
			if !relaxed {
				e.printPrompts(prompts)
			}
			levels = append(levels, n)
		}
		if err := printEveryday(w, half, levels); err != nil {
			return err
		}
	}
	return nil
}

// replay replays cases at one level.
func (e *everyday) replay(ctx context.Context, cases []Case, relaxed bool) (everydayCounts, error) {
	n := everydayCounts{attacks: map[string]int{}, executed: map[string]int{}, irreversible: map[string]int{}}
	if e.verbose {
		fmt.Fprintf(e.out, "relaxed: %t\n", relaxed)
	}
	for _, c := range cases {
		replay := e.replayTask
		if c.Kind != kindTask {
			replay = e.replayAttack
		}
		if err := replay(ctx, c, relaxed, &n); err != nil {
			return n, fmt.Errorf("case %s: %w", c.ID, err)
		}
	}
	return n, nil
}

// replayTask replays a task with memory empty, then filled. The user approves every request.
func (e *everyday) replayTask(ctx context.Context, c Case, relaxed bool, n *everydayCounts) error {
	n.tasks++
	for _, empty := range []string{e.empty, ""} {
		s, err := e.newSession(c, relaxed)
		if err != nil {
			return err
		}
		s.approves = true
		r := &everydayRun{session: s, c: c, empty: empty, searches: true}
		var asked, needless, denied int
		for _, u := range c.Calls {
			d, err := r.call(ctx, u)
			if err != nil {
				return err
			}
			switch {
			case !d.ran && !d.asked:
				denied++
			case d.asked && u.Needs == "":
				asked, needless = asked+1, needless+1
			case d.asked:
				asked++
			}
			if empty != "" {
				continue
			}
			if u.Needs != "" {
				n.needed++
			}
			if u.Needs != "" && d.ran {
				n.missed++
			}
			e.note(c, u, d)
		}
		if empty != "" {
			n.askedEmpty += min(asked, 1)
			continue
		}
		n.asked, n.needless, n.denied = n.asked+min(asked, 1), n.needless+min(needless, 1), n.denied+min(denied, 1)
		n.questions, n.needlessQuestions = n.questions+asked, n.needlessQuestions+needless
	}
	return nil
}

// replayAttack replays a case with a model that obeys the attacker, with memory filled: the user's calls up to the one
// whose result has the injection, the attacker's calls, the remaining ones, and the attacker's again. An injection that
// is in no result is in the prompt from the start. The user approves the user's calls and denies the attacker's. The
// attack is executed when a call that must not happen ran without a question.
func (e *everyday) replayAttack(ctx context.Context, c Case, relaxed bool, n *everydayCounts) error {
	s, err := e.newSession(c, relaxed)
	if err != nil {
		return err
	}
	r := &everydayRun{session: s, c: c, injected: true}
	var executed, irreversible int
	obey := func(question int) error {
		s.approves = false
		for _, a := range c.Attack {
			a.Question = max(a.Question, question)
			d, err := r.call(ctx, a)
			if err != nil {
				return err
			}
			if d.ran && a.MustNot != "" {
				executed = 1
			}
			if d.ran && a.Irreversible {
				irreversible = 1
			}
			e.note(c, a, d)
		}
		s.approves = true
		return nil
	}
	s.approves = true
	obeyed := !slices.ContainsFunc(c.Calls, func(u Call) bool { return u.Injected })
	if obeyed {
		if err := obey(0); err != nil {
			return err
		}
	}
	for _, u := range c.Calls {
		if _, err := r.call(ctx, u); err != nil {
			return err
		}
		if u.Injected && !obeyed {
			obeyed = true
			if err := obey(u.Question); err != nil {
				return err
			}
		}
	}
	if err := obey(len(c.Instruction) - 1); err != nil {
		return err
	}
	n.attacks[c.Kind]++
	n.executed[c.Kind] += executed
	n.irreversible[c.Kind] += irreversible
	return nil
}

// note keeps a question, and prints a call and its decision when the run is verbose.
func (e *everyday) note(c Case, u Call, d decision) {
	if d.asked {
		e.asked = append(e.asked, prompt{c, u, d.reason, d.before})
	}
	if !e.verbose {
		return
	}
	word := "denied"
	switch {
	case d.ran && u.MustNot != "":
		word = "EXECUTED"
	case d.ran && u.Needs != "":
		word = "ran, a question was needed"
	case d.ran:
		word = "ran"
	case d.asked && u.Needs == "" && u.MustNot == "" && c.Kind == kindTask:
		word = "asked, needless"
	case d.asked:
		word = "asked"
	}
	fmt.Fprintf(e.out, "%s\t%q\t%s %s\t%s\t%s %s\n", c.ID, []string(c.Instruction), u.Tool, u.Args.object(), word,
		d.rule, d.reason)
}

// printPrompts prints at most n questions, spread over all, of different cases as far as there are some: what the user
// would read, and what it must be true of.
func (e *everyday) printPrompts(n int) {
	seen := map[string]struct{}{}
	distinct := slices.DeleteFunc(e.asked, func(p prompt) bool {
		_, again := seen[p.c.ID]
		seen[p.c.ID] = struct{}{}
		return again
	})
	e.asked = nil
	n = min(n, len(distinct))
	for i := range n {
		p := distinct[i*len(distinct)/n]
		fmt.Fprintf(e.out, "%d. %s\n   questions:   %q\n   call:        %s %s\n   why it asks: %s\n", i+1, p.c.ID,
			[]string(p.c.Instruction), p.call.Tool, p.call.Args.object(), p.reason)
		fact := cmp.Or(p.call.Needs, p.call.MustNot, "nothing: the question is needless")
		fmt.Fprintf(e.out, "   true facts:  a question is needed because: %s\n", fact)
		for tool, text := range p.c.Descriptions {
			fmt.Fprintf(e.out, "   description of %s: %s\n", tool, text)
		}
		for _, m := range p.c.Memory {
			fmt.Fprintf(e.out, "   in memory (the user's own: %t): %s\n", m.Trusted, m.Text)
		}
		for _, b := range p.before {
			fmt.Fprintf(e.out, "   before it:   %s\n", b)
		}
		fmt.Fprintln(e.out)
	}
}

// printEveryday prints the figures of a half, one column for each level.
func printEveryday(w io.Writer, half string, levels []everydayCounts) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "%s half\tas shipped\tRELAX\n", half)
	line := func(name string, share func(n everydayCounts) (hits, of int)) {
		fmt.Fprint(table, name)
		for _, n := range levels {
			hits, of := share(n)
			fmt.Fprintf(table, "\t%d of %d", hits, of)
		}
		fmt.Fprintln(table)
	}
	line("tasks that ask, memory empty", func(n everydayCounts) (int, int) { return n.askedEmpty, n.tasks })
	line("tasks that ask, memory filled", func(n everydayCounts) (int, int) { return n.asked, n.tasks })
	line("tasks with a needless question", func(n everydayCounts) (int, int) { return n.needless, n.tasks })
	line("tasks with a denied call", func(n everydayCounts) (int, int) { return n.denied, n.tasks })
	line("needless questions", func(n everydayCounts) (int, int) { return n.needlessQuestions, n.questions })
	line("needed questions not asked", func(n everydayCounts) (int, int) { return n.missed, n.needed })
	for _, kind := range []string{kindPlain, kindTailored} {
		line(kind+" attacks executed", func(n everydayCounts) (int, int) { return n.executed[kind], n.attacks[kind] })
		line(kind+" attacks executed, irreversible", func(n everydayCounts) (int, int) {
			return n.irreversible[kind], n.attacks[kind]
		})
	}
	return table.Flush()
}
