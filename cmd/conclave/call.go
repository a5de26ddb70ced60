package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/client"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// callCommand calls one tool as the operator, through the broker, or prints a stored result with --parked. It rejects a
// timeout that is not positive, and names and ids that are no valid token; the broker decides the rest.
func callCommand(a *cli.App) *cobra.Command {
	var (
		timeout                time.Duration
		session, query, parked string
	)
	cmd := &cobra.Command{
		Use:   "call <tool> [json] | call --parked <id>",
		Short: "Call a tool through the broker",
		Long: `Calls a tool as the operator: the broker decides, writes the audit log, runs the tool and records
the outcome, as for every agent. The arguments are one JSON object (default: {}); "-" reads them
from stdin.

Prints the result on stdout, or the whole reply with --json. stderr warns of external content and of
signs of injection. A result that is too large is cut; the whole result is stored for a week, and
--parked prints it. This includes results of calls that agents made.

A call that needs your approval says so on stderr, and waits until you decide with conclave approve
in another terminal. At --timeout, and with Ctrl-C, the request is withdrawn and nothing is run.

A denial names the layer, the rule, the reason and what is allowed. The exit code is 3 when the
policy, a limit or you denied the call, or when its approval expired, and 4 when the tool is unknown
or does not answer.`,
		Example: `  conclave call get_datetime '{"timezone":"Europe/Berlin"}'
  echo '{"timezone":"UTC"}' | conclave call get_datetime - --json
  conclave call --parked 3f9c01d2a4b5c6d7e8f9a0b1c2d3e4f5 > page.txt`,
		Args:              cli.Args(cobra.RangeArgs(0, 2)),
		ValidArgsFunction: cli.FirstArg(a.CompleteTools()),
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := cmp.Or(cli.CheckTimeout(timeout, "60s"), cli.CheckID("id", session),
				cli.CheckID("id", query)); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			isParked := cmd.Flags().Changed("parked")
			switch {
			case isParked && (len(v) > 0 || session != "" || query != ""):
				return cli.Usage("--parked prints a stored result: give its id and nothing else")
			case isParked:
				return printParked(ctx, a, parked)
			case len(v) == 0:
				return cli.Usage("name a tool, or --parked and the id of a result: see %s --help", cmd.CommandPath())
			case subjects.CheckToken(v[0]) != nil:
				return cli.Usage("%q is not a valid tool name: use letters, digits, _ and -", v[0])
			}
			return callTool(ctx, a, v[0], append(v, "{}")[1], session, query)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the result")
	f.StringVar(&session, "session", "", "`id` of the session of the call")
	f.StringVar(&query, "query", "", "`id` of the question that the call belongs to: its grants and working folder "+
		"are used")
	f.StringVar(&parked, "parked", "", "print the stored result with this `id`, and call nothing")
	return cmd
}

// callTool calls a tool with the operator's key, waits for the result and prints it. arguments is a JSON object, or "-"
// for stdin; session and query may be "". ctx must have a deadline. A denied or failed call is an error with its exit
// code.
func callTool(ctx context.Context, a *cli.App, tool, arguments, session, query string) error {
	body, err := readArguments(ctx, a, arguments)
	if err != nil {
		return err
	}
	c, done, err := a.Connect("operator")
	if err != nil {
		return err
	}
	defer done()
	call := subjects.ToolRequest{CallID: c.Out().NewID(), QueryID: query, Args: body}
	watching, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { announceApproval(watching, a, call.CallID) })
	res, err := c.CallTool(ctx, tool, session, call)
	stop()
	wg.Wait()
	unanswered := res.Error != nil && res.Error.Code == subjects.CodeUnanswered // the broker's clock may be ahead
	if (ctx.Err() != nil || unanswered) && withdrawApproval(ctx, a, call.CallID) {
		why := "no decision within --timeout"
		if errors.Is(ctx.Err(), context.Canceled) {
			why = "interrupted"
		}
		return cli.Fail(cli.ExitDenied, fmt.Sprintf("%s was not run: %s; the request for approval is withdrawn", tool,
			why), "call it again")
	}
	if err != nil {
		return err
	}
	return printResult(a, res)
}

const (
	// announceDelay is how long a call may take before the user's approvals are looked up: most calls need none.
	announceDelay = 300 * time.Millisecond
	// withdrawTimeout bounds the withdrawal of a request after the call was given up.
	withdrawTimeout = 3 * time.Second
)

// announceApproval waits until a call has a request for approval, and says on stderr for what it waits and how to
// decide it. It returns then, and when ctx ends, the end of the call. Without the user's key or a connection it says
// nothing.
func announceApproval(ctx context.Context, a *cli.App, callID string) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(announceDelay):
	}
	_ = a.WithClient(func(c *client.Client) error {
		if q, ok := c.AwaitCallApproval(ctx, callID); ok && ctx.Err() == nil {
			deadline, _ := ctx.Deadline()
			a.Say("%s", view.WaitingCall(q.ApprovalRequest, a.Program()))
			a.Say("waiting %s at most; Ctrl-C withdraws the request", time.Until(deadline).Round(time.Second))
		}
		return nil
	})
}

// withdrawApproval closes the request for approval of a call that is no longer waited for, and reports whether there
// was one. ctx has ended. When the broker cannot be asked, the request expires by itself.
func withdrawApproval(ctx context.Context, a *cli.App, callID string) (withdrawn bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	_ = a.WithClient(func(c *client.Client) (err error) {
		withdrawn, err = c.WithdrawCallApproval(ctx, callID)
		return err
	})
	return withdrawn
}

// printParked prints the whole of a result that was cut. It is read with the user's key; no tool runs. An empty,
// invalid or unknown id is an error.
func printParked(ctx context.Context, a *cli.App, id string) error {
	if id == "" {
		return cli.Usage("--parked needs the id of a result")
	}
	if err := cli.CheckID("id of a result", id); err != nil {
		return err
	}
	return a.WithClient(func(c *client.Client) error {
		whole, err := c.ParkedResult(ctx, id)
		if errors.Is(err, client.ErrNotFound) {
			return cli.Fail(cli.ExitFailed, "there is no stored result "+id, "the id is at the end of a cut result; "+
				"results are kept for a week")
		}
		return a.Print(struct {
			ID     string `json:"id"`
			Bytes  int    `json:"bytes"`
			Result string `json:"result"`
		}{id, len(whole), string(whole)}, err, func() { view.ToolText(a.Streams, string(whole)) })
	})
}

// readArguments reads the arguments of a call from the command line, or from stdin for "-". Anything but one JSON
// object is a usage error. Of stdin at most one byte more than a request may have is read, so a larger object is
// rejected as incomplete.
func readArguments(ctx context.Context, a *cli.App, text string) ([]byte, error) {
	body := []byte(text)
	if text == "-" {
		var err error
		body, err = io.ReadAll(io.LimitReader(a.Reader(ctx), int64(subjects.ToolRequestService.Limit())+1))
		if err != nil {
			return nil, fmt.Errorf("reading the arguments from stdin: %w", err)
		}
	}
	if err := strict.CheckObject(body); err != nil {
		return nil, cli.Usage(`invalid arguments, %v: write one JSON object such as '{"timezone":"UTC"}'`, err)
	}
	return body, nil
}

// printResult prints the result of a call with its warnings, or with --json the whole reply, also a failed one. A
// result with an error is returned as an error with its exit code.
func printResult(a *cli.App, res subjects.ToolResult) error {
	err := a.Print(res, nil, func() {
		if res.Error == nil {
			view.ToolText(a.Streams, res.Result)
			view.ToolWarnings(a.Streams, res, a.Program())
		}
	})
	if res.Error != nil {
		return cli.ToolFault(res.Tool, res.Error)
	}
	return err
}
