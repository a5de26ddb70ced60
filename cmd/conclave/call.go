package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// callCommand calls one tool as the operator, through the same broker as everyone.
func (a *app) callCommand() *cobra.Command {
	var (
		timeout                time.Duration
		session, query, parked string
	)
	cmd := &cobra.Command{
		Use:   "call <tool> [json] | call --parked <id>",
		Short: "Call a tool through the broker",
		Long: `Calls a tool as the operator: the broker decides, writes the audit, runs the tool and writes the outcome, as for every
agent. The arguments are one JSON object, {} when left out; "-" reads them from stdin.

Prints the result on stdout, or the whole answer with --json. Where strangers could have written it, and where it shows
signs of injection, stderr says so. A result that is too large is cut, and kept whole for a week: --parked prints it, yours
and those of agents.

A denial says which layer refused, by which rule, why, and what would be allowed, and ends with exit code 3; so do your own
no, a question that nobody answered and a limit. A tool that is unknown, unreachable or silent ends with 4.`,
		Example: `  conclave call get_datetime '{"timezone":"Europe/Berlin"}'
  echo '{"timezone":"UTC"}' | conclave call get_datetime - --json
  conclave call --parked 3f9c01d2a4b5c6d7e8f9a0b1c2d3e4f5 > page.txt`,
		Args: args(cobra.RangeArgs(0, 2)),
		ValidArgsFunction: func(_ *cobra.Command, v []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(v) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.toolNames(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, v []string) error {
			if cmd.Flags().Changed("parked") {
				if len(v) > 0 || session != "" || query != "" {
					return usage("--parked prints a result that is kept: it takes its id and nothing else")
				}
				return a.parked(cmd.Context(), parked, timeout)
			}
			if len(v) == 0 {
				return usage("say which tool to call, or --parked and the id of a result: see %s --help", cmd.CommandPath())
			}
			service, err := subjects.ToolRequestService.With(v[0])
			if err != nil {
				return usage("%q is not the name of a tool: use letters, digits, _ and -", v[0])
			}
			for _, id := range []string{session, query} {
				if id != "" && subjects.CheckToken(id) != nil {
					return usage("%q cannot be an id: use letters, digits, _ and -", id)
				}
			}
			if timeout <= 0 {
				return usage("--timeout %s: give it some time, such as 60s", timeout)
			}
			body, err := a.arguments(append(v, "{}")[1])
			if err != nil {
				return err
			}
			nc, err := a.dial("operator")
			if err != nil {
				return err
			}
			defer nc.Close()
			out, err := actor.NewOut(nc)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			id := out.NewID()
			res, err := actor.Ask(ctx, out.WithIDs(session, query), service, subjects.ToolRequest{CallID: id, QueryID: query, Args: body})
			var fault *subjects.Fault
			if errors.As(err, &fault) { // no answer of the broker's: tell it in the same shape
				res, err = subjects.ToolResult{CallID: id, QueryID: query, Tool: v[0], Error: fault}, nil
			}
			if err != nil {
				return err
			}
			return a.result(res)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the answer")
	f.StringVar(&session, "session", "", "`id` of the session the call belongs to")
	f.StringVar(&query, "query", "", "`id` of the query the call belongs to")
	f.StringVar(&parked, "parked", "", "print the result that is kept under this `id`, and call nothing")
	return cmd
}

// parkedResults is the bucket of results that were too large to be shown.
const parkedResults = "parked"

// parked prints a result that was too large to be shown. It is read with the user's own key; no tool runs.
func (a *app) parked(ctx context.Context, id string, timeout time.Duration) error {
	switch {
	case subjects.CheckToken(id) != nil:
		return usage("%q cannot be the id of a result: use letters, digits, _ and -", clip(id, 40))
	case timeout <= 0:
		return usage("--timeout %s: give it some time, such as 60s", timeout)
	}
	out, done, err := a.asUser()
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	whole, _, err := out.Store(parkedResults).Get(ctx, id)
	switch {
	case errors.Is(err, actor.ErrNotFound):
		return fail(exitFailed, "nothing is kept under "+id, "the id stands at the end of a result that was cut; results are kept for a week")
	case err != nil:
		return fmt.Errorf("reading a result that is kept: %w", err)
	case a.json:
		return a.document(struct {
			ID     string `json:"id"`
			Bytes  int    `json:"bytes"`
			Result string `json:"result"`
		}{id, len(whole), string(whole)})
	}
	return a.text(string(whole))
}

// text prints a result. On a terminal it steers nothing.
func (a *app) text(s string) error {
	if isTerminal(a.stdout) {
		s = plainText(s)
	}
	_, err := fmt.Fprintln(a.stdout, strings.TrimSuffix(s, "\n"))
	return err
}

// arguments reads the call's arguments. What is not one JSON object is not even sent.
func (a *app) arguments(text string) ([]byte, error) {
	body := []byte(text)
	if text == "-" {
		var err error
		if body, err = io.ReadAll(io.LimitReader(a.stdin, int64(subjects.ToolRequestService.Limit())+1)); err != nil {
			return nil, fmt.Errorf("reading the arguments from stdin: %w", err)
		}
	}
	if err := actor.CheckJSONObject(body); err != nil {
		return nil, usage(`the arguments cannot be sent, %v: write one JSON object such as '{"timezone":"UTC"}'`, err)
	}
	return body, nil
}

// result prints what came of a call.
func (a *app) result(res subjects.ToolResult) error {
	switch {
	case a.json:
		if err := a.document(res); err != nil {
			return err
		}
	case res.Error == nil:
		if err := a.text(res.Result); err != nil {
			return err
		}
		a.warnOf(res)
	}
	if res.Error == nil {
		return nil
	}
	return explain(res.Tool, res.Error)
}

// redacted is the label of a text from which credentials were taken out. It is no sign of injection.
const redacted = "redacted"

// warnOf says on stderr what a person should know of a result before believing it. As JSON the labels are in the document.
func (a *app) warnOf(res subjects.ToolResult) {
	if l := res.Labels; l != nil {
		signs := slices.DeleteFunc(slices.Clone(l.Flags), func(f string) bool { return f == redacted })
		switch {
		case len(signs) > 0:
			a.say("careful: strangers could have written this, and it shows signs of injection: %s", visible(strings.Join(signs, ", ")))
		case l.Trust != subjects.Trusted: // whatever else it says, nobody vouches for it
			a.say("strangers could have written this")
		}
		if slices.Contains(l.Flags, redacted) {
			a.say("what looked like a credential was taken out of it")
		}
	}
	if p := res.Parked; p != nil {
		a.say("%s of %s are shown; the whole: %s call --parked %s", size(int64(p.Shown)), size(int64(p.Bytes)), a.program(), visible(p.ID))
	}
}

// explain makes an error with an exit code of a fault.
func explain(tool string, f *subjects.Fault) error {
	switch f.Code { // the user's own part in it, and not a layer's
	case subjects.CodeNotApproved:
		return fail(exitDenied, fmt.Sprintf("%s: %s (%s)", tool, f.Text, f.Code), "nothing was run")
	case subjects.CodeUnanswered:
		return fail(exitDenied, fmt.Sprintf("%s: %s (%s)", tool, f.Text, f.Code), "conclave approve lists what waits; nothing was run")
	}
	if d := f.Denial; d != nil {
		fix := "allowed: nothing else is"
		switch {
		case len(d.Allowed) > 0:
			fix = "allowed: " + strings.Join(d.Allowed, ", ")
		case d.Layer == (policy.ArgumentsLayer{}).Name():
			fix = "change the arguments"
		case f.Code == subjects.CodeLimit:
			fix = "wait, or raise the limits in manifest.yaml"
		}
		return fail(exitDenied, fmt.Sprintf("%s was denied by layer %s, rule %s: %s", tool, d.Layer, d.Rule, d.Reason), fix)
	}
	what := fmt.Sprintf("%s: %s (%s)", tool, f.Text, f.Code)
	switch f.Code {
	case subjects.CodeDenied:
		return fail(exitDenied, what, "the policy is in manifest.yaml")
	case subjects.CodeLimit:
		return fail(exitDenied, what, "wait, or raise the limits in manifest.yaml")
	case subjects.CodeNoSecret: // the text names it, and how to set it
		return fail(exitFailed, what, "conclave secret check says which are there")
	case subjects.CodeUncertain:
		return fail(exitFailed, what, "look whether it has run before you call again")
	case subjects.CodeUnknownTool:
		return fail(exitAbsent, what, "conclave actor lists the tools of this build, conclave top those that run")
	case subjects.CodeUnavailable:
		return fail(exitAbsent, what, "see conclave doctor for who runs")
	case subjects.CodeTimeout, subjects.CodeExpired, subjects.CodeBusy:
		return fail(exitAbsent, what, "try again, or give it more time with --timeout")
	case subjects.CodeTool: // the tool knows best what to do, and says so itself
		return &failure{exitFailed, errors.New(what)}
	case subjects.CodeMalformed, subjects.CodeTooLarge:
		return fail(exitFailed, what, "change the arguments")
	case subjects.CodeNoAudit, subjects.CodeUnrecorded:
		return fail(exitFailed, what, "see conclave doctor")
	}
	return fail(exitFailed, what, "the log of conclave up says more")
}
