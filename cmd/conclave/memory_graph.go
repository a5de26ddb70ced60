package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"conclave/subjects"
)

func (a *app) memoryGraphCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "graph [who or what]",
		Short: "Show who and what is related to whom",
		Long: `Shows what memory knows of people, places and things as relations, all or those of whom you name: first what is, then what
was, with the dates as far as they were said and the memory that says so. With --json it is one document with relations.`,
		Example: `  conclave memory graph
  conclave memory graph Anna
  conclave memory graph Anna --json | jq -r '.relations[] | select(.tense == "is") | .object'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, v []string) error {
			if limit < 1 {
				return usage("--limit %d: give a number of at least 1", limit)
			}
			m, done, err := a.memory()
			if err != nil {
				return err
			}
			defer done()
			r, err := m.admin(cmd.Context(), subjects.MemoryAdminRequest{Op: "graph", Query: strings.TrimSpace(strings.Join(v, " ")), Limit: limit})
			switch {
			case err != nil:
				return quietly(cmd.Context(), err)
			case a.json:
				return a.document(struct {
					Relations []subjects.Relation `json:"relations"`
				}{append([]subjects.Relation{}, r.Relations...)})
			case len(r.Relations) == 0:
				a.say("no relations are known")
				return nil
			}
			return a.printGraph(r.Relations)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().IntVar(&limit, "limit", 200, "how many at most")
	return cmd
}

// printGraph prints what is apart from what was. A tense that is neither counts as over: it is not told as a fact of today.
func (a *app) printGraph(all []subjects.Relation) error {
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for _, tense := range []string{subjects.TenseIs, subjects.TenseWas} {
		head := false
		for _, r := range all {
			if (r.Tense == subjects.TenseIs) != (tense == subjects.TenseIs) {
				continue
			}
			if !head {
				head = true
				fmt.Fprintln(w, strings.ToUpper(tense)+"\t\t\t\t\t")
			}
			doubt := ""
			if r.Trust != subjects.Trusted {
				doubt = trust(r.Trust)
			}
			fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\n", visible(clip(r.Subject, 40)), visible(clip(r.Predicate, 40)), visible(clip(r.Object, 40)), or(span(r), "-"), visible(short(r.Entry)), doubt)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for l := range strings.Lines(table.String()) { // not every line has something in the last column
		fmt.Fprintln(a.stdout, strings.TrimRight(l, " \n"))
	}
	return a.stdout.err
}

// span is when a relation held, as far as it was said.
func span(r subjects.Relation) string {
	from, until := visible(clip(r.From, 20)), visible(clip(r.Until, 20))
	switch {
	case from != "" && until != "":
		return from + " to " + until
	case from != "":
		return "since " + from
	case until != "":
		return "until " + until
	}
	return ""
}
