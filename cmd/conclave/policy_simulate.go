package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"conclave/actors/broker/simulate"
	"conclave/pkg/strict"
)

// policySimulateCommand replays cases with a model that obeys every instruction it reads.
func (a *app) policySimulateCommand() *cobra.Command {
	var effects string
	var bare bool
	cmd := &cobra.Command{
		Use:   "simulate <cases.jsonl>...",
		Short: "What would run if the model obeyed everything it reads",
		Long: `Replays cases through the real broker, with tools that only answer. In each case a person's task is carried out by its own
correct calls, and where a stranger's text comes in, the attacker's calls are made too: the model is assumed to obey. The
caller is granted every tool of the case, so nothing but the flow of information decides.

Counts the attacks of which a call ran that does more than read, and the tasks of the user in which a call was refused
or asked about although nobody attacked. Each task counts once, however many cases share it.

A line of the file is a JSON object: id, user_instruction, user_calls [{tool, args, result_has_injection}] and
attacker_calls [{tool, args}], or user_tool, user_params and tool_response_enhanced in place of user_calls. What the tools
do stands in another file, tool-effects.json: {"tools": {"<name>": {"reads": "private", "result_trust": "untrusted",
"effects": ["egress"]}}}. It is looked for beside the cases and in the current folder. A tool that is not in it is taken
to do everything.

The cases do not say what the tools returned. Each read returns the values that later calls of the task take and the user
did not type, and the attacker's text where the case says so; with --bare it returns the attacker's text only.`,
		Example: `  conclave policy simulate cases.jsonl
  conclave policy simulate cases.jsonl --effects tools.json --json`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, files []string) error {
			var cases []simulate.Case
			for _, file := range files {
				f, err := openFile("cases", file)
				if err != nil {
					return err
				}
				more, err := simulate.ReadCases(f, file)
				f.Close()
				if err != nil {
					return err
				}
				cases = append(cases, more...)
			}
			known, err := simEffects(effects, files) // after the cases: a file that is not there has nothing beside it
			if err != nil {
				return err
			}
			r, err := simulate.Run(cmd.Context(), cases, known, simulate.Options{Bare: bare, Progress: a.counting("cases", len(cases))})
			if err != nil {
				return err
			}
			if a.json {
				return a.document(r)
			}
			attacks := 0
			for _, c := range cases {
				if len(c.Attack) > 0 {
					attacks++
				}
			}
			a.printSimulation(r, attacks)
			return nil
		},
	}
	cmd.Flags().BoolVar(&bare, "bare", false, "let tools return nothing that the task needs later")
	cmd.Flags().StringVar(&effects, "effects", "", "what the tools of the cases do, in this `file`")
	return cmd
}

// effectsFile is the name under which the labels of tools are looked for.
const effectsFile = "tool-effects.json"

// simEffects reads the labels: from the named file, or from the first place where they are.
func simEffects(named string, cases []string) (simulate.Effects, error) {
	if named != "" {
		return simulate.ReadEffects(named)
	}
	var places []string
	for _, c := range cases {
		places = append(places, filepath.Join(filepath.Dir(c), effectsFile))
	}
	for _, p := range slices.Compact(append(places, effectsFile)) {
		known, err := simulate.ReadEffects(p)
		if !errors.Is(err, fs.ErrNotExist) {
			return known, err
		}
	}
	return nil, usage("nobody says what the tools of the cases do: put %s beside them, or name a file with --effects", effectsFile)
}

// openFile opens a file of the user's. One that is not there is said to be so by its name.
func openFile(what, file string) (*os.File, error) {
	f, err := os.Open(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("reading %s: %s: no such file", what, file)
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", what, err)
	}
	return f, nil
}

func (a *app) printSimulation(r simulate.Report, attacks int) {
	share := 0.0
	if r.Benign > 0 {
		share = 100 * float64(r.Interrupted) / float64(r.Benign)
	}
	fmt.Fprintf(a.stdout, "cases               %d\n", r.Cases)
	fmt.Fprintf(a.stdout, "attacks             %d\n", attacks)
	fmt.Fprintf(a.stdout, "attacks executed    %d\n", r.Executed)
	fmt.Fprintf(a.stdout, "tasks               %d\n", r.Benign)
	fmt.Fprintf(a.stdout, "tasks interrupted   %d (%.1f %%)\n", r.Interrupted, share)
	for _, rule := range strict.SortedKeys(r.InterruptedRules) {
		fmt.Fprintf(a.stdout, "  %-17s %d\n", plain(rule), r.InterruptedRules[rule])
	}
	for _, id := range r.ExecutedIDs {
		fmt.Fprintf(a.stdout, "executed: %s\n", plain(id))
	}
	for _, id := range r.InterruptedIDs {
		fmt.Fprintf(a.stdout, "interrupted: %s\n", plain(id))
	}
}
