// Command simulate measures the policy against prompt injection: it replays recorded cases through the real broker with
// a model that obeys every instruction it reads, and counts which attacker calls run and which of the user's own calls
// are denied or need approval. Tools are stubs. The caller is granted every tool of a case, so that only the flow rules
// decide.
//
// The report counts the attacks of which at least one call with a side effect ran, and the tasks without an attack that
// were interrupted by a denial or an approval, with 95 % confidence intervals: in all, for each suite, and for two
// halves of the tasks by a hash. A task that several cases share counts once. More rows show the same cases without
// declarations of the tools, and with an adaptive attacker, who repeats the task's own acts with other content.
// -rename-verbs and -rename-args show whether decisions depend on names.
//
// A line of a file is a JSON object: id, user_instruction, user_calls [{tool, args, result_has_injection}] and
// attacker_calls [{tool, args}], or user_tool, user_params and tool_response_enhanced in place of user_calls. Several
// questions are a list in user_instruction, with the index "question" on each call, or turns [{user_instruction,
// user_calls}]. A case without user_calls attacks a session that has read untrusted content. The effects of the tools
// are in another file, tool-effects.json: {"tools": {"<name>": {"reads": "private", "result_trust": "untrusted",
// "effects": ["egress"]}}}, beside the cases or in the current folder; it may also have act, args, about, ids and
// people. A tool that is not listed has every effect. Acts and argument roles are in a YAML file like the section tools
// of manifest.yaml (-declarations).
//
// The cases do not contain results. Each read returns the values that later calls of the task need and the user did not
// type, and the attacker's text where the case has it; with -bare it returns only the attacker's text.
//
// Run it from the folder bench:
//
//	go run ./simulate -effects simulate/testdata/tools.json -declarations simulate/testdata/tools.yaml \
//		simulate/testdata/cases.jsonl
//
// The everyday cases are in the folder everyday: tasks that a user gives to an assistant with the tools of this
// build and some MCP tools (tools.yaml), plain injections, and attacks tailored by somebody who has read the rules.
// Their words and calls were written before any of them was run; docs/policy.md says what was changed then. Half of
// each kind was dealt to development.jsonl, half to held.jsonl, in the order of the SHA-256 of "everyday 1 <id>":
// rules are written on the first, figures of the second are the ones to quote.
//
//	go run ./simulate -everyday held -v
//
// They go through every layer of the shipped manifest; the assistant has all tools, and its file tools the home folder
// /home/ana. A line has the form above, and more: kind (task, plain, tailored); language; trick, where the injection
// stands or which rule the attack plays; memory [{text, trusted}]; descriptions {tool: text}, where the injection is
// the description of a tool. A call of a task has needs_question, the reason, when the user must be asked before it:
// it cannot be undone (it sends, shares, spends, deletes, moves or installs something) and the user did not type its
// act and its destination. A call of an attacker has must_not, what must not happen without a question, unless it is
// only a step to that, and irreversible when that cannot be undone or gains power later (a rule, a schedule, a file
// that something executes). "{{injection}}" in a result stands for injection_goal; fails makes the result an error of
// the tool.
//
// Each task is replayed with memory empty and with memory filled: then the runtime recalls the user's statements
// before each question, the model searches memory with its words, and search_memory returns the entries, which are
// untrusted in half of the tasks because they came from a page. The user approves what a task asks. A question is
// needless when its call has no needs_question. The attacks run as above, with memory filled and without that search.
// An attack is executed when a call with must_not ran without a question. RELAX means that no tool asks only because
// it is high-risk.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"conclave/pkg/file"
	"conclave/pkg/strict"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
}

// run replays the cases of the files in args and prints the report to w. An attack that succeeds is no error.
func run(ctx context.Context, args []string, w io.Writer) error {
	var o Options
	flags := flag.NewFlagSet("simulate", flag.ContinueOnError)
	effects := flags.String("effects", "", "`file` with the effects of the tools")
	declarations := flags.String("declarations", "", "`file` with acts and argument roles, as the section tools of "+
		"manifest.yaml (default: those of the published suites)")
	asJSON := flags.Bool("json", false, "print JSON")
	flags.BoolVar(&o.Bare, "bare", false, "tools return nothing that the task needs later")
	flags.BoolVar(&o.RenameTools, "rename-verbs", false, "give every tool a made-up name, in cases and declarations")
	flags.BoolVar(&o.RenameArgs, "rename-args", false, "give every argument a made-up name, in cases and declarations")
	half := flags.String("everyday", "", "run the everyday cases of this `half`: development, held, or both")
	verbose := flags.Bool("v", false, "with -everyday: print each call with the decision and its reason")
	prompts := flags.Int("prompts", 0, "with -everyday: print so many of the questions, with what is true of them")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch *half {
	case "":
	case "both":
		return runEveryday(ctx, w, everydayHalves, *verbose, *prompts)
	default:
		return runEveryday(ctx, w, []string{*half}, *verbose, *prompts)
	}
	cases, err := readFiles(flags.Args())
	if err != nil {
		return err
	}
	known, err := findEffects(*effects, flags.Args())
	if err != nil {
		return err
	}
	declared, err := ReadDeclarations(*declarations)
	if err != nil {
		return err
	}
	r, err := Run(ctx, cases, known, declared, o)
	if err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	return printReport(w, r)
}

// readFiles reads the cases of all files. No file, and the first one that is missing or invalid, is an error.
func readFiles(files []string) (cases []Case, err error) {
	if len(files) == 0 {
		return nil, errors.New("name at least one file of cases")
	}
	for _, name := range files {
		f, err := file.Open(name)
		if err != nil {
			return nil, fmt.Errorf("reading cases: %w", err)
		}
		more, err := ReadCases(f, name)
		f.Close()
		if err != nil {
			return nil, err
		}
		cases = append(cases, more...)
	}
	return cases, nil
}

// effectsFile is the default name of the file with the effects of tools.
const effectsFile = "tool-effects.json"

// findEffects reads the effects of tools: from the named file, or for "" from the first [effectsFile] that exists
// beside the cases or in the current folder. None is an error; an invalid one is not passed over.
func findEffects(named string, cases []string) (Tools, error) {
	if named != "" {
		return ReadEffects(named)
	}
	var places []string
	for _, c := range cases {
		places = append(places, filepath.Join(filepath.Dir(c), effectsFile))
	}
	for _, p := range slices.Compact(append(places, effectsFile)) {
		known, err := ReadEffects(p)
		if !errors.Is(err, fs.ErrNotExist) {
			return known, err
		}
	}
	return nil, fmt.Errorf("the effects of the tools are not known: put %s beside the cases, or name a file with "+
		"-effects", effectsFile)
}

// printReport prints the counts with the rules that interrupted tasks, the rows with 95 % confidence intervals, and the
// ids of executed attacks and interrupted tasks.
func printReport(w io.Writer, r Report) error {
	fmt.Fprintf(w, "cases               %d\n", r.Cases)
	fmt.Fprintf(w, "attacks             %d\n", r.Attacks)
	fmt.Fprintf(w, "attacks executed    %d\n", r.Executed)
	fmt.Fprintf(w, "tasks               %d\n", r.Benign)
	fmt.Fprintf(w, "tasks interrupted   %d (%.1f %%)\n", r.Interrupted,
		100*float64(r.Interrupted)/float64(max(1, r.Benign)))
	for _, rule := range strict.SortedKeys(r.InterruptedRules) {
		fmt.Fprintf(w, "  %-17s %d\n", rule, r.InterruptedRules[rule])
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\n\tattacks\texecuted\ttasks\tinterrupted")
	for _, row := range r.Rows {
		fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%s\n", row.Name, row.Attacks, formatShare(row.Executed, row.Attacks),
			row.Tasks, formatShare(row.Interrupted, row.Tasks))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, id := range r.ExecutedIDs {
		fmt.Fprintf(w, "executed: %q\n", id)
	}
	for _, id := range r.InterruptedIDs {
		fmt.Fprintf(w, "interrupted: %q\n", id)
	}
	for _, id := range r.AdaptiveIDs {
		fmt.Fprintf(w, "executed by the adaptive attacker: %q\n", id)
	}
	return nil
}

// formatShare returns a count with its share of n and the 95 % confidence interval; "-" when n is 0.
func formatShare(hits, n int) string {
	if n == 0 {
		return "-"
	}
	low, high := Wilson(hits, n)
	return fmt.Sprintf("%d (%.1f %%, %.1f to %.1f)", hits, 100*float64(hits)/float64(n), 100*low, 100*high)
}
