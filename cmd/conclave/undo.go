package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/client"
	"conclave/pkg/undo"
	"conclave/subjects"
)

// changesCommand lists what calls changed in the user's files, shows one change, and is the parent of purge.
func changesCommand(a *cli.App) *cobra.Command {
	var q subjects.ChangeQuery
	cmd := &cobra.Command{
		Use:   "changes [id]",
		Short: "Show what calls changed in your files and memory",
		Long: `Lists what calls changed in your files and memory and can be undone, newest first: the tool, the files
or entries, and the untrusted content that the session had read before. With an id it shows the
differences that a change made.

How long a change is kept is a setting: undo in tools.yaml.`,
		Example: `  conclave changes
  conclave changes 3f9c01d2
  conclave changes --session notes --json`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if len(v) == 1 {
				q.ChangeSelection = subjects.ChangeSelection{ID: v[0]}
			}
			return a.ReadWithClient(cmd.Context(), func(c *client.Client) error {
				if err := resolveSelection(cmd.Context(), a, c, &q.ChangeSelection); err != nil {
					return err
				}
				list, err := c.Changes(cmd.Context(), q)
				if err == nil && len(list.Changes) == 0 && !a.JSON {
					a.Say("no tool has changed a file or memory of yours that can be restored")
				}
				return a.Print(list, undoError(err), func() { view.Changes(a.Out, list, time.Now()) })
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.Query, "question", "", "`id` of a question: only what it changed and is not undone")
	f.StringVar(&q.Session, "session", "", "`id` of a session: only what it changed and is not undone")
	f.IntVar(&q.Limit, "limit", 50, "at most this `number`, 0 for all")
	cli.CompleteFlags(cmd, map[string]cli.Completion{"session": a.CompleteSessions()})
	cmd.AddCommand(changesPurgeCommand(a))
	return cmd
}

// changesPurgeCommand removes what is kept of changes.
func changesPurgeCommand(a *cli.App) *cobra.Command {
	q := subjects.UndoRequest{Action: subjects.UndoPurge}
	yes := false
	cmd := &cobra.Command{
		Use:   "purge [id]",
		Short: "Remove what is kept of changes",
		Long: `Removes at once what your files or memory held before a change, such as a password that stood
there. They stay as they are, and the change can no longer be undone.`,
		Example: `  conclave changes purge 3f9c01d2
  conclave changes purge --all --yes`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if q.All == (len(v) == 1) {
				return cli.Usage("name one change, or give --all")
			}
			what := "all changes"
			if len(v) == 1 {
				q.ID = v[0]
				what = "change " + term.Visible(v[0])
			}
			if err := a.RequireYes(cmd.Context(), yes, "remove what is kept of "+what,
				"remove what is kept of "+what+"? It can no longer be undone", "nothing was removed"); err != nil {
				return err
			}
			return a.WithClient(func(c *client.Client) error {
				r, err := c.Undo(cmd.Context(), q)
				if err == nil {
					err = refusalError(r)
				}
				return a.Print(r, undoError(err), func() {
					fmt.Fprintf(a.Out, "removed what was kept of %s\n", term.Count(r.Purged, "change"))
				})
			})
		},
	}
	cmd.Flags().BoolVar(&q.All, "all", false, "everything that is kept")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// undoCommand takes changes of the user's files back.
func undoCommand(a *cli.App) *cobra.Command {
	q := subjects.UndoRequest{}
	yes, plan := false, false
	cmd := &cobra.Command{
		Use:   "undo [id|last]",
		Short: "Take back what a call changed in your files and memory",
		Long: `Restores what your files and memory held before the last call that changed them; with an id before that
change or call, with --question or --session before all changes of a question or a session. It shows the
difference first. What others changed since stays where lines can be told apart; otherwise nothing is
restored, and it says which file was changed by whom.

An undo is a change too: conclave undo with its id takes it back. The exit code is 3 when something
is not restored.`,
		Example: `  conclave undo
  conclave undo 3f9c01d2 --only ~/notes/kitchen.md
  conclave undo --question 77ab01ce --yes
  conclave undo --plan --json`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) (err error) {
			chosen := 0
			for _, is := range []bool{len(v) == 1, q.Query != "", q.Session != ""} {
				if is {
					chosen++
				}
			}
			switch {
			case chosen > 1:
				return cli.Usage("choose one of an id, --question and --session")
			case chosen == 0 || len(v) == 1 && v[0] == "last":
				q.Last = true
			case len(v) == 1:
				q.ID = v[0]
			}
			for i, path := range q.Only {
				if strings.HasPrefix(path, "memory:") {
					continue
				}
				if q.Only[i], err = filepath.Abs(path); err != nil {
					return err
				}
			}
			return a.WithClient(func(c *client.Client) error { return undoChanges(cmd.Context(), a, c, q, plan, yes) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.Query, "question", "", "`id` of a question: all that it changed")
	f.StringVar(&q.Session, "session", "", "`id` of a session: all that it changed")
	f.StringSliceVar(&q.Only, "only", nil, "restore this `file` or entry and no other; repeatable")
	f.BoolVar(&q.Partial, "partial", false, "restore the other files when some cannot be restored")
	f.BoolVar(&q.Overwrite, "overwrite", false, "also restore files that others changed since")
	f.BoolVar(&plan, "plan", false, "only show what would be restored")
	f.BoolVar(&yes, "yes", false, "do not ask")
	cli.CompleteFlags(cmd, map[string]cli.Completion{"session": a.CompleteSessions()})
	return cmd
}

// undoChanges shows what an undo would do, asks the user unless yes, and does exactly that. A file that is not restored
// is an error with exit code 3.
func undoChanges(ctx context.Context, a *cli.App, c *client.Client, q subjects.UndoRequest, planOnly, yes bool) error {
	if err := resolveSelection(ctx, a, c, &q.ChangeSelection); err != nil {
		return err
	}
	q.Action = subjects.UndoPlan
	plan, err := c.Undo(ctx, q)
	if err != nil {
		return undoError(err)
	}
	if planOnly || len(plan.Refusals) > 0 && !q.Partial {
		return cmp.Or(a.Print(plan, nil, func() { view.Undo(a.Out, plan, false) }), refusalError(plan))
	}
	if !a.JSON {
		view.Undo(a.Err, plan, false)
	}
	if err := a.RequireYes(ctx, yes, "restore "+term.Count(len(plan.Files), "file"), "restore this?",
		"nothing was restored"); err != nil {
		return err
	}
	q.Action, q.Plan = subjects.UndoApply, plan.Plan
	done, err := c.Undo(ctx, q)
	if err != nil {
		return undoError(err)
	}
	return cmp.Or(a.Print(done, nil, func() {
		view.Undo(a.Out, done, done.Done)
		if done.Done {
			a.Say("conclave undo %s takes this back", term.ShortID(done.ID))
		}
	}), refusalError(done))
}

// refusalError is the error of the first file or change that is not restored, with what restores it or the others; nil
// when all are.
func refusalError(r subjects.UndoReply) error {
	if len(r.Refusals) == 0 {
		return nil
	}
	first, fix := r.Refusals[0], "--partial restores the other files"
	switch {
	case first.Reason == undo.ReasonUndone:
		fix = "conclave undo with the id of that undo takes it back"
	case first.Path == "":
		fix = "see conclave changes"
	case first.Reason == undo.ReasonChanged, first.Reason == undo.ReasonDeleted, first.Reason == undo.ReasonBinary:
		fix += ", --overwrite this one too"
	}
	return cli.Fail(cli.ExitDenied, term.Visible(first.Text), fix)
}

// resolveSelection completes the ids of a question and of a session that are given by a prefix. One that is not found
// stays as it is: a call may have named it without a question that was answered.
func resolveSelection(ctx context.Context, a *cli.App, c *client.Client, s *subjects.ChangeSelection) (err error) {
	if s.Session != "" {
		s.Session, _, err = resolveSession(ctx, a, c, s.Session)
	}
	if s.Query == "" || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, judgeTimeout)
	defer cancel()
	id, err := c.FindQuery(ctx, s.Query)
	switch {
	case errors.Is(err, client.ErrNotFound):
		return nil
	case err != nil:
		return queryError(a, s.Query, err)
	}
	s.Query = id
	return nil
}

// undoError explains a fault of a request about changes. The text of a malformed one says all of it.
func undoError(err error) error {
	var f *subjects.Fault
	if errors.As(err, &f) && f.Code == subjects.CodeMalformed && f.Denial == nil {
		return errors.New(f.Text)
	}
	return cli.BrokerError("the changes", err)
}
