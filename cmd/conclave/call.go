package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// callCommand calls one tool as the operator, through the same broker as everyone.
func (a *app) callCommand() *cobra.Command {
	var (
		timeout        time.Duration
		session, query string
	)
	cmd := &cobra.Command{
		Use:   "call <tool> [json]",
		Short: "Call a tool through the broker",
		Long: `Calls a tool as the operator: the broker decides, writes the audit, runs the tool and writes the outcome, as for every
agent. The arguments are one JSON object, {} when left out; "-" reads them from stdin.

Prints the result on stdout, or the whole answer with --json. A denial says which layer refused, by which rule, why,
and what would be allowed, and ends with exit code 3. A tool that is unknown, unreachable or silent ends with 4.`,
		Example: `  conclave call get_datetime '{"timezone":"Europe/Berlin"}'
  echo '{"timezone":"UTC"}' | conclave call get_datetime - --json`,
		Args: args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: func(_ *cobra.Command, v []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(v) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.toolNames(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, v []string) error {
			service, err := subjects.ToolAsk.With(v[0])
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
			res, err := actor.Ask(ctx, out.About(session, query), service, subjects.ToolRequest{CallID: id, QueryID: query, Args: body})
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
	return cmd
}

// arguments reads the call's arguments. What is not one JSON object is not even sent.
func (a *app) arguments(text string) ([]byte, error) {
	body := []byte(text)
	if text == "-" {
		var err error
		if body, err = io.ReadAll(io.LimitReader(a.stdin, int64(subjects.ToolAsk.Limit())+1)); err != nil {
			return nil, fmt.Errorf("reading the arguments from stdin: %w", err)
		}
	}
	if err := actor.CheckObject(body); err != nil {
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
		text := res.Result
		if isTerminal(a.stdout) {
			text = plainText(text)
		}
		if _, err := fmt.Fprintln(a.stdout, strings.TrimSuffix(text, "\n")); err != nil {
			return err
		}
	}
	if res.Error == nil {
		return nil
	}
	return explain(res.Tool, res.Error)
}

// explain makes an error with an exit code of a fault.
func explain(tool string, f *subjects.Fault) error {
	if d := f.Denial; d != nil {
		allowed := "nothing else is"
		if len(d.Allowed) > 0 {
			allowed = strings.Join(d.Allowed, ", ")
		}
		return fail(exitDenied, fmt.Sprintf("%s was denied by layer %s, rule %s: %s", tool, d.Layer, d.Rule, d.Reason), "allowed: "+allowed)
	}
	what := fmt.Sprintf("%s: %s (%s)", tool, f.Text, f.Code)
	switch f.Code {
	case subjects.CodeDenied:
		return fail(exitDenied, what, "the policy is in manifest.yaml")
	case subjects.CodeUnknownTool:
		return fail(exitAbsent, what, "conclave actor lists the tools of this build, conclave top those that run")
	case subjects.CodeUnavailable:
		return fail(exitAbsent, what, "see conclave doctor for who runs")
	case subjects.CodeTimeout, subjects.CodeExpired, subjects.CodeBusy:
		return fail(exitAbsent, what, "try again, or give it more time with --timeout")
	case subjects.CodeTool, subjects.CodeMalformed, subjects.CodeTooLarge:
		return fail(exitFailed, what, "change the arguments")
	case subjects.CodeNoAudit, subjects.CodeUnrecorded:
		return fail(exitFailed, what, "see conclave doctor")
	}
	return fail(exitFailed, what, "the log of conclave up says more")
}
