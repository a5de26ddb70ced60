package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// levels of an override, from the strictest on.
var levels = []string{subjects.OverrideNone, subjects.OverrideRelax, subjects.OverrideAll}

// sessionOverrideCommand sets for one session what the policy does not.
func (a *app) sessionOverrideCommand() *cobra.Command {
	var set subjects.SessionConfig
	cmd := &cobra.Command{
		Use:   "override <session> [NONE|RELAX|ALL]",
		Short: "Loosen or tighten the policy for one session",
		Long: `Sets how strict the broker is in one session, and replaces what was set for it before:

  NONE   as the manifest says: the usual
  RELAX  tools that are marked as risky no longer ask you; no tool is added, and nothing else is loosened
  ALL    everything passes, and is still in the audit

--disable-tool takes a tool away from everybody in the session, --grant gives a type of agent one more. With --once it holds
for one message, the next one or the one that --query names, and then it is as before. --show changes nothing and prints
what holds. The beginning of the id of a session that exists is enough from eight letters on.`,
		Example: `  conclave session override notes RELAX
  conclave session override notes ALL --once
  conclave session override notes NONE --disable-tool web_search --grant coder:web_fetch
  conclave session override notes --show --json`,
		Args: args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: func(cmd *cobra.Command, v []string, word string) ([]string, cobra.ShellCompDirective) {
			switch len(v) {
			case 0:
				return a.completeSessions(cmd, v, word)
			case 1:
				return levels, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, v []string) error {
			set.SessionID, set.Override = v[0], ""
			if len(v) > 1 {
				set.Override = strings.ToUpper(v[1])
			}
			if err := checkOverride(set); err != nil {
				return err
			}
			out, done, err := a.asUser()
			if err != nil {
				return err
			}
			defer done()
			ctx, cancel := context.WithTimeout(cmd.Context(), brokerTime)
			defer cancel()
			var known bool
			if set.SessionID, known, err = wholeSession(ctx, out.Store(conversations), set.SessionID); err != nil {
				return quietly(cmd.Context(), err)
			}
			a.warnUnknown(set)
			holds, err := actor.Ask(ctx, out, subjects.SessionConfigService, set)
			if err != nil {
				return quietly(cmd.Context(), brokerSays("the session", err))
			}
			if !known && !set.Show {
				a.say("no session of this name yet; it holds when one begins")
			}
			if a.json {
				return a.document(holds)
			}
			return a.printOverride(holds)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&set.Once, "once", false, "for one message, then back")
	f.StringVar(&set.QueryID, "query", "", "with --once: `id` of the message; the next one when left out")
	f.StringArrayVar(&set.Disable, "disable-tool", nil, "`tool` that nobody may use; may be repeated")
	f.StringArrayVar(&set.Grant, "grant", nil, "`type:tool` that is given; may be repeated")
	f.BoolVar(&set.Show, "show", false, "change nothing, print what holds")
	_ = cmd.RegisterFlagCompletionFunc("disable-tool", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return a.toolNames(), cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

// checkOverride refuses what cannot be meant, before anybody is asked.
func checkOverride(c subjects.SessionConfig) error {
	switch {
	case subjects.CheckToken(c.SessionID) != nil:
		return usage("%q cannot be a session: use letters, digits, _ and -", clip(c.SessionID, 40))
	case c.Show && (c.Override != "" || c.Once || c.QueryID != "" || len(c.Disable)+len(c.Grant) > 0):
		return usage("--show changes nothing: leave the rest out")
	case c.Show:
		return nil
	case c.Override == "":
		return usage("say how strict: NONE, RELAX or ALL, or --show to see what holds")
	case !slices.Contains(levels, c.Override):
		return usage("%q is no level: use NONE, RELAX or ALL", clip(c.Override, 40))
	case c.QueryID != "" && !c.Once:
		return usage("--query names the message of --once: give both, or neither")
	case c.QueryID != "" && subjects.CheckToken(c.QueryID) != nil:
		return usage("%q cannot be a query: use letters, digits, _ and -", clip(c.QueryID, 40))
	}
	for _, t := range c.Disable {
		if subjects.CheckToken(t) != nil {
			return usage("--disable-tool %q: that is not the name of a tool", clip(t, 40))
		}
	}
	for _, g := range c.Grant {
		typ, tool, ok := strings.Cut(g, ":")
		if !ok || subjects.CheckToken(typ) != nil || subjects.CheckToken(tool) != nil {
			return usage("--grant %q: write a type of agent and a tool, such as coder:web_fetch", clip(g, 40))
		}
	}
	return nil
}

// warnUnknown names the tools that are taken away or given and that neither this build nor the manifest knows. They are no
// error, because tools may appear later; but who mistypes a name must not believe that the tool is gone.
func (a *app) warnUnknown(c subjects.SessionConfig) {
	tools := slices.Clone(c.Disable)
	for _, g := range c.Grant {
		_, tool, _ := strings.Cut(g, ":")
		tools = append(tools, tool)
	}
	tools = slices.DeleteFunc(tools, func(t string) bool { return subjects.ZoneOf(t) != "" })
	if len(tools) == 0 {
		return
	}
	later := a.settings().Manifest.UnservedTools() // what the manifest names beyond this build
	slices.Sort(tools)
	for _, t := range slices.Compact(tools) {
		if !slices.Contains(later, t) {
			a.say("no tool named %s is known; check the name", visible(t))
		}
	}
}

// printOverride prints what holds in a session.
func (a *app) printOverride(c subjects.SessionConfig) error {
	line := func(name, text string) { fmt.Fprintf(a.stdout, "%-9s %s\n", name, text) }
	line("session", visible(c.SessionID))
	level := or(c.Override, subjects.OverrideNone)
	colour := ""
	if level != subjects.OverrideNone {
		colour = yellow
	}
	text := a.paint(a.stdout, colour, visible(level))
	switch {
	case c.Once && c.QueryID != "":
		text += " for the message " + visible(c.QueryID) + ", then back"
	case c.Once:
		text += " for the next message, then back"
	}
	line("override", text)
	if len(c.Disable) > 0 {
		line("disabled", visible(strings.Join(c.Disable, ", ")))
	}
	if len(c.Grant) > 0 {
		line("granted", visible(strings.Join(c.Grant, ", ")))
	}
	if level == subjects.OverrideAll {
		a.say("everything passes in this session now; %s session override %s NONE takes it back", a.program(), c.SessionID)
	}
	return a.stdout.err
}
