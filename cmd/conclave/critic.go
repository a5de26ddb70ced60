package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/client"
)

const (
	judgeTimeout = 30 * time.Second
	maxGrades    = 1000 // in one list
)

// criticCommand is the parent of show.
func criticCommand(a *cli.App) *cobra.Command {
	return cli.Group("critic", "Show grades of answers",
		`Shows the critic's grades, its comparisons of the answers of two respondents, and your feedback. The
source is the event log, which goes back ninety days.`,
		`  conclave critic show
  conclave critic show 3f9c01d2`, criticShowCommand(a))
}

// criticShowCommand lists the latest grades, or shows those of one question. It rejects --last outside 1 to [maxGrades]
// and an invalid id.
func criticShowCommand(a *cli.App) *cobra.Command {
	var last int
	cmd := &cobra.Command{
		Use:   "show [query]",
		Short: "List the latest grades, or show everything about one question",
		Long: `Without an argument it lists the latest grades, newest first: time, grade or why there is none,
rubric, respondent, result of the comparison, id and beginning of the question. Answers of
respondent B are marked "not shown": they were given for comparison only.

With the id of a question, or its first 6 characters, it shows everything: grades and feedback,
claimed actions that no call did, the comparison in both orders, which model judged, and your
feedback.

With --json it prints one array, or one document.`,
		Example: `  conclave critic show --last 30
  conclave critic show 3f9c01d2
  conclave critic show --json | jq '.[] | select(.critique.score < 3)'`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if last < 1 || last > maxGrades {
				return cli.Usage("--last %d: from 1 to %d", last, maxGrades)
			}
			if len(v) > 0 {
				if err := cli.CheckID("query", v[0]); err != nil {
					return err
				}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), judgeTimeout)
			defer cancel()
			return a.ReadWithClient(cmd.Context(), func(c *client.Client) error {
				if len(v) > 0 {
					j, err := c.Judge(ctx, v[0])
					return a.Print(j, queryError(a, v[0], err), func() { view.Judgement(a.Out, j) })
				}
				grades, err := c.Grades(ctx, last)
				return cli.PrintList(a, grades, err, "no grades yet: the critic grades each answer after it was "+
					"given; check with "+a.Program()+" doctor that it runs", func() { view.Grades(a.Out, grades) })
			})
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().IntVar(&last, "last", 10, "how many grades to list")
	return cmd
}

// queryError explains an error of looking up a question by id or prefix: ambiguous, unknown, or a prefix that is too
// short. Other errors are returned as they are.
func queryError(a *cli.App, id string, err error) error {
	if errors.Is(err, client.ErrNotFound) && len(id) < client.IDPrefix {
		return cli.Fail(cli.ExitFailed, fmt.Sprintf("there is no question %s, and %d characters are too few for a "+
			"prefix", id, len(id)), fmt.Sprintf("give at least %d characters of the id", client.IDPrefix))
	}
	fix := "list graded answers with " + a.Program() + " critic show"
	if errors.Is(err, client.ErrNotFound) {
		return cli.Fail(cli.ExitFailed, "there is no answer to the question "+id, fix)
	}
	return findError("question", id, fix, err)
}
