package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/client"
	"conclave/subjects"
)

// taskCommand gives a task to the orchestrator and shows its subtasks until the report, and is the parent of the
// commands that list and change tasks.
func taskCommand(a *cli.App) *cobra.Command {
	o := &askFlags{}
	cmd := &cobra.Command{
		Use:   "task [task...]",
		Short: "Have a task carried out by several agents",
		Long: `Gives a task to the orchestrator: it is split into subtasks, spawned agents work on them,
independent ones at the same time, and a report says what was done, which files were written, what
is uncertain and what failed. The task is given, piped and attached as the question of conclave ask
is, with the same rules about untrusted content and the same flags and exit codes.

On a terminal stderr shows the plan and each change of a subtask, with the agent, the seconds and
the number of tool calls, and asks about calls that need your approval. In a pipe, stdout has only
the report. --stream-json prints a line of type progress for each change.

Ctrl-C cancels the task and prints what is done so far. After --timeout the task goes on: conclave
task show prints it. A task survives a crash and a restart of conclave.`,
		Example: `  conclave task 'Compare the train and the bus from Oslo to Bergen, and write it to ~/trip.md'
  conclave task --no-wait 'Sort my notes in ~/projects/notes by topic'
  conclave task list
  conclave task show 3f9c01d2`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, words []string) error {
			o.question.Respondent = subjects.Orchestrator
			o.gradeWaitSet = cmd.Flags().Changed("grade-wait")
			for _, name := range askOnly {
				if cmd.Flags().Changed(name) {
					return cli.Usage("--%s is for conclave ask: a task uses the models of its agents' roles; leave "+
						"it out", name)
				}
			}
			if err := o.check(a, words); err != nil {
				return err
			}
			if err := o.readQuestion(cmd.Context(), a, words); err != nil {
				return err
			}
			return o.run(cmd.Context(), a)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o.define(cmd.Flags())
	cli.CompleteFlags(cmd, map[string]cli.Completion{
		"session": a.CompleteSessions(), "hint": cli.Words(subjects.Hints...),
		"override": cli.Words(overrideLevels[1:]...), "disable-tool": a.CompleteTools(),
	})
	for _, name := range askOnly {
		_ = cmd.Flags().MarkHidden(name)
	}
	cmd.AddCommand(taskListCommand(a), taskShowCommand(a),
		taskChangeCommand(a, subjects.ChangeCancel, "Cancel tasks", "Ends tasks. What is done so far is reported and "+
			"kept.", "stopped"),
		taskChangeCommand(a, subjects.ChangePause, "Pause tasks", "Pauses tasks: their agents stop at their last "+
			"checkpoint, also across a restart, until conclave task resume.", "paused"),
		taskChangeCommand(a, subjects.ChangeResume, "Resume paused tasks", "Lets paused tasks go on where they "+
			"stopped.", "resumed"))
	return cmd
}

// askOnly are the flags of conclave ask that a task rejects.
var askOnly = []string{"model", "reference", "retry"}

// taskListCommand lists the stored tasks.
func taskListCommand(a *cli.App) *cobra.Command {
	most := 0
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the tasks, latest first",
		Long: `Lists the stored tasks: id, state, subtasks that are done, when it began, and your words. With
--json it prints one array.`,
		Example: `  conclave task list
  conclave task list --json | jq -r '.[0].task_id'`,
		Args: cli.NoArgs,
		RunE: a.Read(func(ctx context.Context, c *client.Client, _ []string) error {
			all, err := c.Tasks(ctx, most)
			return cli.PrintList(a, all, err, "no tasks yet: give one with "+a.Program()+" task",
				func() { view.Tasks(a.Out, all) })
		}),
	}
	cmd.Flags().IntVar(&most, "limit", 50, "most tasks that are listed; 0 for all")
	return cmd
}

// taskShowCommand prints one task, by id or prefix.
func taskShowCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "show <id>",
		Short: "Print a task with its subtasks and report",
		Long: `Prints a task: its state, each subtask with its agent, time and structured return, and the report.
The first 6 characters of the id are enough. With --json it prints the stored task as one document.`,
		Example: `  conclave task show 3f9c01d2
  conclave task show 3f9c01d2 --json | jq '.subtasks[].return.artifacts'`,
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: cli.FirstArg(completeTasks(a)),
		RunE: a.Read(func(ctx context.Context, c *client.Client, v []string) error {
			id, err := findTask(ctx, a, c, v[0])
			if err != nil {
				return err
			}
			t, err := c.Task(ctx, id)
			return a.Print(t, err, func() { view.Task(a.Out, t) })
		}),
	}
}

// taskChangeCommand pauses, resumes or cancels tasks, one after the other. The first failure ends it.
func taskChangeCommand(a *cli.App, action, short, long, done string) *cobra.Command {
	return &cobra.Command{
		Use:     action + " <id>...",
		Short:   short,
		Long:    long + " The first 6 characters of an id are enough.",
		Example: "  conclave task " + action + " 3f9c01d2",
		Args:    cli.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeTasks(a),
		RunE: a.ChangeEach(func(ctx context.Context, c *client.Client, id string) (any, string, error) {
			full, err := findTask(ctx, a, c, id)
			if err != nil {
				return nil, "", err
			}
			changed, err := c.ChangeTask(ctx, full, action)
			var f *subjects.Fault
			switch {
			case errors.As(err, &f) && f.Code == subjects.CodeMalformed:
				err = cli.Fail(cli.ExitFailed, f.Text, "see "+a.Program()+" task show "+full)
			case err != nil:
				err = fmt.Errorf("changing the task: %w", err)
			}
			return changed, done + " task " + full, err
		}),
	}
}

// findTask returns the complete id of the task with an id or prefix.
func findTask(ctx context.Context, a *cli.App, c *client.Client, id string) (string, error) {
	if err := cli.CheckID("task", id); err != nil {
		return "", err
	}
	full, err := c.FindTask(ctx, id)
	return full, findError("task", id, "list tasks with "+a.Program()+" task list", err)
}

// completeTasks completes the ids of tasks.
func completeTasks(a *cli.App) cli.Completion {
	return a.CompleteFrom(func(ctx context.Context, c *client.Client) ([]string, error) { return c.TaskIDs(ctx) })
}
