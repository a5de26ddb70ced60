package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// overrides reports whether anything is to be set for this message.
func (q *ask) overrides() bool {
	return q.override.Override != "" || len(q.override.Disable)+len(q.override.Grant) > 0
}

// checkOverride refuses what cannot be meant, before anybody is asked.
func (q *ask) checkOverride() error {
	if !q.overrides() {
		return nil
	}
	q.override.Override = strings.ToUpper(q.override.Override)
	if q.override.Override == subjects.OverrideNone {
		return usage("--override: for one message there is nothing to take back: use RELAX or ALL, or conclave session override for the session")
	}
	set := q.override
	set.SessionID, set.Override = "checked-above", or(set.Override, subjects.OverrideNone) // a list without a level is fine here
	return checkOverride(set)
}

// setOverride sets it, for this message and no other. What the broker says then holds must be what was asked for: a
// person who takes a tool away must not get an answer that was made with it.
func (q *ask) setOverride(ctx context.Context) error {
	if !q.overrides() {
		return nil
	}
	set := q.override
	set.SessionID, set.QueryID, set.Once = q.session, q.query, true
	q.warnUnknown(set)
	within, cancel := context.WithTimeout(ctx, brokerTime)
	defer cancel()
	holds, err := actor.Ask(within, q.out, subjects.SessionConfigService, set)
	switch {
	case ctx.Err() != nil:
		return fail(exitFailed, "stopped before anything was asked", "ask again")
	case err != nil:
		return brokerSays("nothing was asked, what was to be set for it could not be", err)
	case !heldFor(holds, set):
		return fail(exitFailed, "nothing was asked: the broker holds something else than was set for the question", "see "+q.program()+" session override "+q.session+" --show")
	}
	return nil
}

// heldFor reports whether what holds for a message has all that was set for it.
func heldFor(holds, set subjects.SessionConfig) bool {
	all := func(in, of []string) bool {
		return !slices.ContainsFunc(of, func(s string) bool { return !slices.Contains(in, s) })
	}
	return holds.SessionID == set.SessionID && holds.Once && holds.QueryID == set.QueryID &&
		(set.Override == "" || holds.Override == set.Override) && all(holds.Disable, set.Disable) && all(holds.Grant, set.Grant)
}

// completeOverride offers what can be set.
func (a *app) completeOverride(cmd *cobra.Command) {
	_ = cmd.RegisterFlagCompletionFunc("override", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return levels[1:], cobra.ShellCompDirectiveNoFileComp
	})
	_ = cmd.RegisterFlagCompletionFunc("disable-tool", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return a.toolNames(), cobra.ShellCompDirectiveNoFileComp
	})
}
