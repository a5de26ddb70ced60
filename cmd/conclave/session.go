package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/client"
	"conclave/subjects"
)

// sessionCommand is the parent of the commands that list, show and configure sessions.
func sessionCommand(a *cli.App) *cobra.Command {
	return cli.Group("session", "List, show, delete and summarize conversations, and set the policy of one",
		`Shows the stored sessions: the messages that are sent to the model before the next question.
Thinking is never stored. To continue a session, use conclave ask --session. The policy of a session
is set with override.`,
		`  conclave session list
  conclave session show 3f9c01d2
  conclave session compact 3f9c01d2
  conclave session delete 3f9c01d2
  conclave session override 3f9c01d2 RELAX`,
		sessionListCommand(a), sessionShowCommand(a), sessionDeleteCommand(a), sessionCompactCommand(a),
		sessionOverrideCommand(a))
}

// sessionListCommand lists the stored sessions, last used first. One that cannot be decoded is only a line on stderr;
// no sessions are no error.
func sessionListCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the sessions, last used first",
		Long: `Lists the stored sessions: id, number of turns, when it was last used, and its first question;
"running" marks one whose question is being answered, also the first. With --json it prints one
array, with up to 4 KB of each question.`,
		Example: `  conclave session list
  conclave session list --json | jq -r '.[0].session_id'`,
		Args: cli.NoArgs,
		RunE: a.Read(func(ctx context.Context, c *client.Client, _ []string) error {
			list, _, err := c.Sessions(ctx, math.MaxInt, nil)
			for _, s := range list {
				if s.Err != nil {
					a.Say("%s", term.OneLine(s.Err.Error()))
				}
			}
			list = slices.DeleteFunc(list, func(s client.SessionSummary) bool { return s.Err != nil })
			return cli.PrintList(a, list, err, "no sessions yet: start one with "+a.Program()+" ask",
				func() { view.Sessions(a.Out, list) })
		}),
	}
}

// sessionShowCommand prints the messages of one session, by id or prefix, or of the last one. Unknown and
// ambiguous ids are errors.
func sessionShowCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "show [id]",
		Short: "Print the messages of a session",
		Long: `Prints a session: each question, tool call, result and answer, with its grade and your feedback, and
where the part begins that the model gets with the next question. Below a question of that part
stands what it grants: what the assistant may do after untrusted content without your approval. The
first 6 characters of the id are enough. Without an id it prints the last session: the one that
conclave ask used last from this data folder or, when there is none, the one that any client used
last. conclave rate means the same one.

With --json it prints one document: the session with all its turns, the messages that the model
gets, and the grants by query id.`,
		Example: `  conclave session show
  conclave session show 3f9c01d2
  conclave session show notes --json | jq '.messages[-1].content'`,
		Args:              cli.Args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: cli.FirstArg(a.CompleteSessions()),
		RunE: func(cmd *cobra.Command, v []string) error {
			id := ""
			if len(v) > 0 {
				if id = v[0]; id == "" {
					return cli.Usage("the session id is empty: give an id, or none for the last used session")
				}
				if err := cli.CheckID("session", id); err != nil {
					return err
				}
			}
			return a.ReadWithClient(cmd.Context(), func(c *client.Client) error {
				conv, err := findSession(cmd.Context(), a, c, id)
				if err != nil {
					return sessionError(a, id, err)
				}
				grants, err := c.QuestionGrants(cmd.Context(), conv)
				if err != nil {
					a.Say("grants are not shown: %s", term.OneLine(err.Error()))
				}
				whole, lost, err := c.WholeSession(cmd.Context(), conv.SessionID)
				if err != nil {
					return sessionError(a, id, err)
				}
				return a.Print(struct {
					subjects.Conversation
					Messages []subjects.Message          `json:"messages"`
					Grants   map[string][]subjects.Grant `json:"grants"`
				}{whole, append([]subjects.Message{}, conv.Messages()...), grants}, nil, func() {
					if lost > 0 {
						a.Say("%s not there: an earlier version did not keep them, or they cannot be read",
							term.Count(lost, "turn"))
					}
					view.Session(a.Out, whole, conv, grants)
				})
			})
		},
	}
}

// sessionDeleteCommand deletes the messages of sessions, by id or prefix. The first failure ends it.
func sessionDeleteCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "delete <id>...",
		Short: "Delete the messages of sessions",
		Long: `Deletes the stored messages of sessions: they are no longer listed and no longer sent to the model.
The ids of the questions stay, so that none is answered twice. The first 6 characters of an id are
enough.

Not deleted: what memory stored from the answers (conclave memory forget), the event log until its
oldest events are dropped, and the audit log.`,
		Example: `  conclave session delete 3f9c01d2
  conclave session delete notes drafts --json`,
		Args:              cli.Args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.CompleteSessions(),
		RunE: func(cmd *cobra.Command, v []string) error {
			return changeSessions(cmd, a, v, subjects.SessionDelete, 30*time.Second,
				func(r subjects.SessionChanged) string {
					return fmt.Sprintf("deleted session %s with %s", r.SessionID, term.Count(r.Turns, "turn"))
				})
		},
	}
}

// sessionCompactCommand summarizes the older turns of a session, by id or prefix. It rejects a timeout that is not
// positive.
func sessionCompactCommand(a *cli.App) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "compact <id>",
		Short: "Replace the older turns of a session by a summary",
		Long: `Lets the model for summaries replace all turns of a session but the last by a short summary:
decisions, files and open questions. The same happens by itself when a conversation fills its share
of the model's context window (compact_at in generator.yaml). The first 6 characters of the id are
enough.`,
		Example: `  conclave session compact 3f9c01d2
  conclave session compact notes --json`,
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: cli.FirstArg(a.CompleteSessions()),
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := cli.CheckTimeout(timeout, "5m"); err != nil {
				return err
			}
			return changeSessions(cmd, a, v, subjects.SessionCompact, timeout,
				func(r subjects.SessionChanged) string {
					if r.Turns == 0 {
						return "nothing to summarize: session " + r.SessionID + " has one turn"
					}
					return fmt.Sprintf("summarized %s of session %s", term.Count(r.Turns, "turn"), r.SessionID)
				})
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait for the summary")
	return cmd
}

// changeSessions changes sessions, given by id or prefix, one after the other, each within timeout. describe says on
// stdout what was done; with --json it prints a line for each. The first failure ends it.
func changeSessions(cmd *cobra.Command, a *cli.App, ids []string, change string, timeout time.Duration,
	describe func(subjects.SessionChanged) string,
) error {
	for _, id := range ids {
		if id == "" {
			return cli.Usage("a session id is empty: list sessions with %s session list", a.Program())
		}
		if err := cli.CheckID("session", id); err != nil {
			return err
		}
	}
	return a.ChangeEach(func(ctx context.Context, c *client.Client, id string) (any, string, error) {
		conv, err := findSession(ctx, a, c, id)
		if err != nil {
			return nil, "", sessionError(a, id, err)
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		r, err := c.ChangeSession(ctx, conv.SessionID, change)
		if err == nil && change == subjects.SessionDelete {
			err = a.ForgetLastSession(conv.SessionID)
		}
		return r, describe(r), changeError(err)
	})(cmd, ids)
}

// changeError is [cli.RequestError] of a change of a session.
func changeError(err error) error {
	return cli.RequestError(err, cli.Fail(cli.ExitAbsent, "no generator is running", "see conclave doctor, or start "+
		"one with conclave actor generator"), func(f *subjects.Fault) error {
		if f.Code == subjects.CodeBusy {
			return &cli.Failure{Code: cli.ExitFailed, Err: errors.New(f.Text)}
		}
		return cli.AnswerFault(f)
	})
}

// lastSession returns the id of the last session: the one that ask used last from this data folder or, when there is
// none, the one that any client used last; [client.ErrNotFound] when there is no session.
func lastSession(ctx context.Context, a *cli.App, c *client.Client) (string, error) {
	id, err := a.LastSession(client.ErrNotFound)
	if errors.Is(err, client.ErrNotFound) {
		return c.LastSession(ctx)
	}
	return id, err
}

// findSession reads the session with an id or prefix, "" for the last one. The complete id is tried first, without
// listing all sessions. None is [client.ErrNotFound], several are a [*client.AmbiguousError].
func findSession(ctx context.Context, a *cli.App, c *client.Client, id string) (subjects.Conversation, error) {
	if id == "" {
		last, err := lastSession(ctx, a, c)
		if err != nil {
			return subjects.Conversation{}, err
		}
		id = last
	}
	conv, err := c.Session(ctx, id)
	if !errors.Is(err, client.ErrNotFound) {
		return conv, err
	}
	if id, err = c.FindSession(ctx, id); err != nil {
		return conv, err
	}
	return c.Session(ctx, id)
}

// sessionError explains an error of looking up a session by id or prefix: unknown or ambiguous. Other errors, and nil,
// are returned as they are.
func sessionError(a *cli.App, id string, err error) error {
	if errors.Is(err, client.ErrNotFound) && id == "" {
		return cli.Fail(cli.ExitFailed, "there is no session yet", "start one with "+a.Program()+
			" ask; a question appears there when it is answered")
	}
	return findError("session", id, "list sessions with "+a.Program()+
		" session list; a question appears there when it is answered", err)
}

// resolveSession returns the complete id of the session with an id or prefix, and true. A session that does not exist
// is no error: id is returned as it is, with false. An ambiguous prefix is an error.
func resolveSession(ctx context.Context, a *cli.App, c *client.Client, id string) (full string, exists bool,
	err error,
) {
	full, err = c.FindSession(ctx, id)
	switch {
	case errors.Is(err, client.ErrNotFound):
		return id, false, nil
	case err != nil:
		return "", false, sessionError(a, id, err)
	}
	return full, true, nil
}

// overrideLevels are the levels of an override, strictest first.
var overrideLevels = []string{subjects.OverrideNone, subjects.OverrideRelax, subjects.OverrideAll}

// sessionOverrideCommand sets or shows the policy override of one session. What it rejects is in [checkOverride]; a
// level may be written in lower case.
func sessionOverrideCommand(a *cli.App) *cobra.Command {
	var set subjects.SessionConfig
	var lifetime time.Duration
	cmd := &cobra.Command{
		Use:   "override <session> [NONE|RELAX|ALL]",
		Short: "Relax or tighten the policy of one session",
		Long: `Sets how strict the broker is in one session, and replaces the previous setting:

  NONE   the manifest applies unchanged (default)
  RELAX  high-risk tools no longer need your approval; nothing else changes
  ALL    every call is allowed, and still audited; ends by itself after an hour, or after --for

--disable-tool disables a tool for every agent in the session, --grant gives a type of agent one
more. With --once the setting applies to one message only: the next one, or the one named by
--query. --show prints the current setting and changes nothing. The first 6 characters of the id of
an existing session are enough.`,
		Example: `  conclave session override notes RELAX
  conclave session override notes ALL --once
  conclave session override notes ALL --for 10m
  conclave session override notes NONE --disable-tool web_search --grant coder:web_fetch
  conclave session override notes --show --json`,
		Args: cli.Args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: func(cmd *cobra.Command, v []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(v) == 1 {
				return overrideLevels, cobra.ShellCompDirectiveNoFileComp
			}
			return cli.FirstArg(a.CompleteSessions())(cmd, v, word)
		},
		RunE: func(cmd *cobra.Command, v []string) error {
			set.SessionID, set.Override = v[0], ""
			if len(v) > 1 {
				set.Override = strings.ToUpper(v[1])
			}
			if cmd.Flags().Changed("for") {
				if set.Override != subjects.OverrideAll || lifetime < time.Second ||
					lifetime > subjects.MaxAllLifetime {
					return cli.Usage("--for is for ALL, from 1s to %dh", int(subjects.MaxAllLifetime.Hours()))
				}
				set.Lifetime = int(lifetime / time.Second)
			}
			if err := checkOverride(set); err != nil {
				return err
			}
			if set.Show {
				return a.ReadWithClient(cmd.Context(), func(c *client.Client) error {
					return overrideSession(cmd.Context(), a, c, set)
				})
			}
			// An interrupt is an error: whether the override is set is unknown.
			return a.WithClient(func(c *client.Client) error { return overrideSession(cmd.Context(), a, c, set) })
		},
	}
	f := cmd.Flags()
	f.BoolVar(&set.Once, "once", false, "for one message only")
	f.DurationVar(&lifetime, "for", subjects.DefaultAllLifetime, "how long ALL holds")
	f.StringVar(&set.QueryID, "query", "", "with --once: `id` of the message (default: the next one)")
	f.StringArrayVar(&set.Disable, "disable-tool", nil, "`tool` to disable; repeatable")
	f.StringArrayVar(&set.Grant, "grant", nil, "`type:tool` to grant; repeatable")
	f.BoolVar(&set.Show, "show", false, "print the current setting and change nothing")
	cli.CompleteFlags(cmd, map[string]cli.Completion{"disable-tool": a.CompleteTools()})
	return cmd
}

// overrideSession sets the override, or only reads it with Show, and prints the one that the broker confirms. A session
// that does not exist yet may have an override: it holds from its first message on. Unknown tools are warned of, not
// rejected. set must have passed [checkOverride].
func overrideSession(ctx context.Context, a *cli.App, c *client.Client, set subjects.SessionConfig) (err error) {
	var exists bool
	if set.SessionID, exists, err = resolveSession(ctx, a, c, set.SessionID); err != nil {
		return err
	}
	warnUnknownTools(a, set)
	holds, err := c.SetSession(ctx, set)
	if err != nil {
		return cli.BrokerError("the session", err)
	}
	if !exists && !set.Show {
		a.Say("there is no such session yet; the override holds when it starts")
	}
	return a.Print(holds, nil, func() { view.Override(a.Streams, holds, a.Program()) })
}

// checkOverride rejects, as a usage error, an invalid session, query, tool or grant (type:tool), an unknown or missing
// level, --query without --once, and --show with anything else. Whether tools and types exist is not checked.
func checkOverride(c subjects.SessionConfig) error {
	switch {
	case subjects.CheckToken(c.SessionID) != nil:
		return cli.Usage("%q is not a valid session: use letters, digits, _ and -", term.Clip(c.SessionID, 40))
	case c.Show && (c.Override != "" || c.Once || c.QueryID != "" || len(c.Disable)+len(c.Grant) > 0):
		return cli.Usage("--show changes nothing: leave out the rest")
	case c.Show:
		return nil
	case c.Override == "":
		return cli.Usage("give a level: NONE, RELAX or ALL, or --show to see what holds")
	case !slices.Contains(overrideLevels, c.Override):
		return cli.Usage("%q is not a level: use NONE, RELAX or ALL", term.Clip(c.Override, 40))
	case c.QueryID != "" && !c.Once:
		return cli.Usage("--query names the message of --once: give both, or neither")
	}
	if err := cli.CheckID("query", c.QueryID); err != nil {
		return err
	}
	for _, t := range c.Disable {
		if subjects.CheckToken(t) != nil {
			return cli.Usage("--disable-tool %q: not a valid tool name", term.Clip(t, 40))
		}
	}
	for _, g := range c.Grant {
		typ, tool, ok := strings.Cut(g, ":")
		if !ok || subjects.CheckToken(typ) != nil || subjects.CheckToken(tool) != nil {
			return cli.Usage("--grant %q: give a type of agent and a tool, such as coder:web_fetch", term.Clip(g, 40))
		}
	}
	return nil
}

// warnUnknownTools prints the tools of an override that neither this build nor the manifest knows. They are no error,
// because a tool may be added later; but a user who mistypes a name must not believe that the tool is disabled.
func warnUnknownTools(a *cli.App, c subjects.SessionConfig) {
	tools := slices.Clone(c.Disable)
	for _, g := range c.Grant {
		_, tool, _ := strings.Cut(g, ":")
		tools = append(tools, tool)
	}
	tools = slices.DeleteFunc(tools, func(t string) bool { return subjects.ZoneOf(t) != "" })
	if len(tools) == 0 {
		return
	}
	planned := a.NamingConfig().Manifest.UnservedTools() // named by the manifest, not in this build
	slices.Sort(tools)
	for _, t := range slices.Compact(tools) {
		if !slices.Contains(planned, t) {
			a.Say("no tool named %s is known; check the name", term.Visible(t))
		}
	}
}
