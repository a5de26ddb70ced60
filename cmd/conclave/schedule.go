package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/actor"
	"conclave/pkg/client"
	"conclave/pkg/schedule"
	"conclave/subjects"
)

// scheduleCommand is the parent of the commands for questions that are asked at set times.
func scheduleCommand(a *cli.App) *cobra.Command {
	return cli.Group("schedule", "Ask a question or give a task at set times",
		`Asks a question, or gives a task, at a time or on an interval, each time in a session of its own.
What the question may do is derived from your words when you add it, is shown then, and stays so:
anything else asks you as always, and is denied when nobody answers.

A time that passed while conclave was stopped is made up once at the next start, and marked as late.`,
		`  conclave schedule add "every weekday 8:00" "What is on my calendar today?"
  conclave schedule add "every 2h" "Are there news about the strike?" --name strike
  conclave schedule list
  conclave schedule results`,
		scheduleAddCommand(a), scheduleListCommand(a), scheduleShowCommand(a), scheduleResultsCommand(a),
		scheduleRunCommand(a),
		scheduleChangeCommand(a, subjects.SchedulePause, "Pause schedules", "Pauses schedules until conclave "+
			"schedule resume. Times that pass meanwhile are not made up.", "paused"),
		scheduleChangeCommand(a, subjects.ScheduleResume, "Resume paused schedules", "Resumes paused schedules. "+
			"Intervals count from now.", "resumed"),
		scheduleChangeCommand(a, subjects.ScheduleRemove, "Remove schedules", "Removes schedules. Their sessions and "+
			"answers stay.", "removed"))
}

// scheduleView is a schedule as it is printed.
type scheduleView struct {
	ID string `json:"id"`
	subjects.Schedule
	Next []time.Time `json:"next"`
	Last time.Time   `json:"last,omitzero"`
	Late bool        `json:"last_was_late,omitempty"`
}

// scheduleAddCommand adds a schedule. The broker derives the grants that its words have now.
func scheduleAddCommand(a *cli.App) *cobra.Command {
	var name, zone, mode string
	cmd := &cobra.Command{
		Use:   "add <when> <question>",
		Short: "Add a schedule",
		Long: `Adds a schedule. The time is one of "every weekday 8:00", "every mon,thu 9:15", "daily 7:30", "every
2h", "2026-12-24 18:00", or the five fields of cron. Times are those of your time zone, or of
--timezone: when the clock is put forward, a time that it skips is as much later; when it is put
back, a time that it shows twice occurs the first time.

It prints what the words permit, which is fixed from then on.`,
		Example: `  conclave schedule add "every weekday 8:00" "What is on my calendar today?"
  conclave schedule add "0 18 * * fri" "Sum up the week in ~/projects/notes" --mode task --timezone Europe/Berlin`,
		Args: cli.Args(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, v []string) error {
			s := subjects.Schedule{
				When: v[0], Zone: cmp.Or(zone, localZone()), Query: strings.Join(v[1:], " "),
				Mode: mode, Since: time.Now().Truncate(time.Minute),
			}
			if err := checkSchedule(s); err != nil {
				return err
			}
			if name != "" {
				if err := subjects.CheckScheduleID(name); err != nil {
					return cli.Usage("--name %q: %v", term.Clip(name, 40), err)
				}
			}
			return a.WithClient(func(c *client.Client) error {
				for {
					id, err := newScheduleID(cmd.Context(), c, name)
					if err != nil {
						return err
					}
					added, err := c.ChangeSchedule(cmd.Context(),
						subjects.ScheduleChange{ID: id, Action: subjects.ScheduleAdd, Schedule: &s})
					var fault *subjects.Fault
					switch {
					case errors.As(err, &fault) && fault.Code == subjects.CodeExists: // another command took the name
						continue
					case err != nil:
						return err
					}
					shown := viewSchedule(id, added, subjects.ScheduleRun{})
					return a.Print(shown, nil, func() { printSchedule(a, shown) })
				}
			})
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "`name` of the schedule (default: s and a number)")
	cmd.Flags().StringVar(&zone, "timezone", "", "time `zone` such as Europe/Berlin (default: that of this machine)")
	cmd.Flags().StringVar(&mode, "mode", "assistant", "who answers: assistant, committee or task")
	cli.CompleteFlags(cmd, map[string]cli.Completion{"mode": cli.Words("assistant", "committee", "task")})
	return cmd
}

// checkSchedule rejects a new schedule that cannot be asked.
func checkSchedule(s subjects.Schedule) error {
	if s.Zone == "" {
		return cli.Usage("the time zone of this machine has no name: add --timezone, such as Europe/Berlin")
	}
	if subjects.Modes[s.Mode] == "" {
		return cli.Usage("--mode %s is unknown: choose assistant, committee or task", term.Clip(s.Mode, 20))
	}
	if err := s.Check(); err != nil {
		return cli.Usage("%v", err)
	}
	times, err := schedule.Parse(s.When, s.Zone)
	if err != nil {
		return cli.Usage("%v", err)
	}
	if _, ok := times.Next(s.Since, s.Since); !ok {
		return cli.Usage("%s is over: give a later time", term.Clip(s.When, 40))
	}
	return nil
}

// localZone is the name of this machine's time zone in the IANA database, "" when it is unknown.
func localZone() string {
	if zone, ok := os.LookupEnv("TZ"); ok {
		zone = strings.TrimPrefix(zone, ":")
		if _, err := time.LoadLocation(zone); err == nil {
			return cmp.Or(zone, "UTC")
		}
		return ""
	}
	if link, err := os.Readlink("/etc/localtime"); err == nil {
		if _, zone, ok := strings.Cut(link, "zoneinfo/"); ok {
			return zone
		}
	}
	if name, offset := time.Now().Zone(); name == "UTC" && offset == 0 {
		return "UTC"
	}
	return ""
}

// newScheduleID returns the name, or s and the next number. It rejects the name of a schedule, also of one that was
// removed.
func newScheduleID(ctx context.Context, c *client.Client, name string) (string, error) {
	ids, all, err := c.Schedules(ctx)
	if err != nil {
		return "", err
	}
	for n := len(ids) + 1; name == ""; n++ {
		if id := "s" + strconv.Itoa(n); !slices.Contains(ids, id) {
			name = id
		}
	}
	switch s, ok := all[name]; {
	case ok && s.Removed:
		return "", cli.Fail(cli.ExitFailed, "there was a schedule "+name+", whose sessions have its name",
			"choose another name")
	case ok:
		return "", cli.Fail(cli.ExitFailed, "there is a schedule "+name, "choose another name")
	}
	return name, nil
}

// viewSchedule adds the next times to a schedule.
func viewSchedule(id string, s subjects.Schedule, last subjects.ScheduleRun) scheduleView {
	v := scheduleView{ID: id, Schedule: s, Next: []time.Time{}, Last: last.Occurrence, Late: last.Late}
	times, err := schedule.Parse(s.When, s.Zone)
	if err != nil || s.Paused {
		return v
	}
	loc, err := time.LoadLocation(s.Zone)
	if err != nil {
		return v
	}
	for at, ok := times.Next(s.Since, time.Now()); ok && len(v.Next) < 3; at, ok = times.Next(s.Since, at) {
		v.Next = append(v.Next, at.In(loc))
	}
	return v
}

// timeForm is how times of schedules are printed.
const timeForm = "Mon 2006-01-02 15:04 MST"

// printSchedule prints one schedule.
func printSchedule(a *cli.App, v scheduleView) {
	line := func(name, text string) { fmt.Fprintf(a.Out, "%-10s %s\n", name, term.Plain(text)) }
	line("schedule", v.ID)
	line("when", v.When+" ("+v.Zone+")")
	if v.Paused {
		line("paused", "resume it with "+a.Program()+" schedule resume "+v.ID)
	}
	for _, at := range v.Next {
		line("next", at.Format(timeForm))
	}
	if !v.Last.IsZero() {
		late := ""
		if v.Late {
			late = ", late"
		}
		line("last", v.Last.Local().Format(timeForm)+late)
	}
	line(v.Mode, v.Query)
	for _, g := range v.Grants {
		line("may", view.GrantText(g))
	}
	if len(v.Grants) == 0 {
		line("may", "read and search; anything that sends, changes or runs after untrusted content asks you")
	}
}

// scheduleListCommand lists the schedules.
func scheduleListCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the schedules",
		Long:    `Lists the schedules: name, when, the next time, and the question. With --json it prints one array.`,
		Example: `  conclave schedule list --json | jq -r '.[].id'`,
		Args:    cli.NoArgs,
		RunE: a.Read(func(ctx context.Context, c *client.Client, _ []string) error {
			ids, all, err := c.Schedules(ctx)
			if err != nil {
				return err
			}
			var views []scheduleView
			next := map[string]string{}
			for _, id := range ids {
				if all[id].Removed {
					continue
				}
				v := viewSchedule(id, all[id], subjects.ScheduleRun{})
				if next[id], err = nextTime(ctx, c, v); err != nil {
					return err
				}
				views = append(views, v)
			}
			return cli.PrintTable(a, views, nil, "no schedules yet: add one with "+a.Program()+" schedule add",
				term.Layout{}, func(v scheduleView) []string {
					return []string{v.ID, term.Plain(v.When), next[v.ID], term.Plain(v.Query)}
				})
		}),
	}
}

// nextTime returns when a schedule is asked next. One that is over was asked at least once.
func nextTime(ctx context.Context, c *client.Client, v scheduleView) (string, error) {
	switch {
	case v.Paused:
		return "paused", nil
	case len(v.Next) > 0:
		return v.Next[0].Format(timeForm), nil
	}
	last, err := c.LastScheduleRun(ctx, v.ID)
	if err != nil || !last.Occurrence.IsZero() {
		return "over", err
	}
	return "due", nil
}

// findSchedule returns a schedule that is not removed.
func findSchedule(ctx context.Context, a *cli.App, c *client.Client, id string) (subjects.Schedule, error) {
	_, all, err := c.Schedules(ctx)
	if err != nil {
		return subjects.Schedule{}, err
	}
	s, ok := all[id]
	if !ok || s.Removed {
		return s, cli.Fail(cli.ExitFailed, "there is no schedule "+term.Clip(id, 40), "list them with "+a.Program()+
			" schedule list")
	}
	return s, nil
}

// completeSchedules completes the names of schedules.
func completeSchedules(a *cli.App) cli.Completion {
	return a.CompleteFrom(func(ctx context.Context, c *client.Client) ([]string, error) {
		ids, all, err := c.Schedules(ctx)
		return slices.DeleteFunc(ids, func(id string) bool { return all[id].Removed }), err
	})
}

// scheduleShowCommand prints one schedule.
func scheduleShowCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "show <name>",
		Short: "Print a schedule with its next times and what it may do",
		Long: `Prints a schedule: when, the next three times, the last one, the question, and what its words
permit.`,
		Example: "  conclave schedule show s1",
		Args:    cli.Args(cobra.ExactArgs(1)), ValidArgsFunction: cli.FirstArg(completeSchedules(a)),
		RunE: a.Read(func(ctx context.Context, c *client.Client, v []string) error {
			s, err := findSchedule(ctx, a, c, v[0])
			if err != nil {
				return err
			}
			last, err := c.LastScheduleRun(ctx, v[0])
			shown := viewSchedule(v[0], s, last)
			return a.Print(shown, err, func() { printSchedule(a, shown) })
		}),
	}
}

// scheduleChangeCommand changes schedules, one after the other. The first failure ends it.
func scheduleChangeCommand(a *cli.App, action, short, long, done string) *cobra.Command {
	return &cobra.Command{
		Use: action + " <name>...", Short: short, Long: long,
		Example: "  conclave schedule " + action + " s1",
		Args:    cli.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeSchedules(a),
		RunE: a.ChangeEach(func(ctx context.Context, c *client.Client, id string) (any, string, error) {
			if _, err := findSchedule(ctx, a, c, id); err != nil {
				return nil, "", err
			}
			s, err := c.ChangeSchedule(ctx, subjects.ScheduleChange{ID: id, Action: action})
			return viewSchedule(id, s, subjects.ScheduleRun{}), done + " schedule " + id, err
		}),
	}
}

// scheduleRunCommand asks the question of a schedule now, as the user.
func scheduleRunCommand(a *cli.App) *cobra.Command {
	o := &askFlags{}
	cmd := &cobra.Command{
		Use:   "run <name>",
		Short: "Ask the question of a schedule now",
		Long: `Asks the question of a schedule now, as conclave ask and conclave task do, and prints the answer.
The times of the schedule stay as they are.`,
		Example: "  conclave schedule run s1",
		Args:    cli.Args(cobra.ExactArgs(1)), ValidArgsFunction: cli.FirstArg(completeSchedules(a)),
		RunE: func(cmd *cobra.Command, v []string) error {
			var s subjects.Schedule
			err := a.ReadWithClient(cmd.Context(), func(c *client.Client) (err error) {
				s, err = findSchedule(cmd.Context(), a, c, v[0])
				return err
			})
			if err != nil {
				return err
			}
			o.question.Text, o.question.Respondent = s.Query, subjects.Modes[s.Mode]
			o.question.Session = subjects.NewScheduleSession(v[0], time.Now(), actor.NewID())
			return o.run(cmd.Context(), a)
		},
	}
	cmd.Flags().DurationVar(&o.question.Timeout, "timeout", 15*time.Minute, "how long to wait for the answer")
	cmd.Flags().BoolVar(&o.noWait, "no-wait", false, "print the ids when the question is stored, and exit")
	return cmd
}

// scheduleResult is the answer to a scheduled question.
type scheduleResult struct {
	Schedule string    `json:"schedule"`
	Time     time.Time `json:"time"`
	subjects.Dialog
}

// scheduleResultsCommand prints the latest answers to scheduled questions.
func scheduleResultsCommand(a *cli.App) *cobra.Command {
	most := 0
	cmd := &cobra.Command{
		Use:   "results [name]",
		Short: "Print the latest answers of schedules",
		Long: `Prints the latest answers to scheduled questions, newest first: of one schedule, or of all. conclave
tap answer.dialog shows them as they come, and so does nats sub answer.dialog; their sessions begin
with schedule_. With --json it prints one array.`,
		Example: `  conclave schedule results
  conclave schedule results s1 --limit 1`,
		Args: cli.Args(cobra.MaximumNArgs(1)), ValidArgsFunction: cli.FirstArg(completeSchedules(a)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if most < 1 {
				return cli.Usage("--limit %d: give a number of answers, 1 or more", most)
			}
			return a.ReadWithClient(cmd.Context(), func(c *client.Client) error {
				all := []scheduleResult{}
				for e, err := range c.EventsBack(cmd.Context(), subjects.AnswerDialog.Received) {
					if err != nil {
						return err
					}
					id, ok := subjects.ScheduleOf(e.Session)
					r := scheduleResult{Schedule: id, Time: e.Time}
					if !ok || len(v) == 1 && v[0] != id || !e.Decode(&r.Dialog) {
						continue
					}
					if all = append(all, r); len(all) == most {
						break
					}
				}
				return cli.PrintList(a, all, nil, "no answers yet", func() {
					for i, r := range all {
						if i > 0 {
							fmt.Fprintln(a.Out)
						}
						fmt.Fprintf(a.Out, "%s  %s  %s\n%s\n", r.Time.Local().Format(timeForm), term.Plain(r.Schedule),
							term.Plain(r.Query), term.PlainText(r.Answer))
					}
				})
			})
		},
	}
	cmd.Flags().IntVar(&most, "limit", 5, "most answers that are printed")
	return cmd
}
