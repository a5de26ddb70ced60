package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
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

// approveFlags are the flags of conclave approve.
type approveFlags struct {
	session, always bool // remember the approval; they exclude each other and deny
	deny            bool
	yes             bool // approve without a question
	watch           bool
	all             bool // list decided and expired requests too
	answers         []string
}

// approveCommand lists the calls that wait for the user's approval, decides one by id or prefix, or watches. It is the
// parent of rules and revoke.
func approveCommand(a *cli.App) *cobra.Command {
	o := &approveFlags{}
	cmd := &cobra.Command{
		Use:   "approve [id]",
		Short: "Decide calls that need your approval",
		Long: `Lists the calls that wait for your approval: the caller, the tool with its exact arguments, the rule
and its reason, the sources of untrusted content, and when the request expires. A request that is
not decided in time is denied, and the agent is told that nobody answered.

With an id it shows that call and asks before it approves it; without a terminal, and with --json,
it needs --yes. --deny denies it. --session and --always also approve later calls of the same tool
by the same type of agent to the same targets, in this session or until revoked: see conclave
approve rules and conclave approve revoke. A call without a target needs your approval each time.
When a request is decided in two places, the first decision holds. The first 6 characters of an id
are enough.

--watch keeps running, shows each new request and, on a terminal, asks you.

A prompt is answered with the first 4 characters of the id, which approve once; with " s" behind
them they approve for this session, with " a" always. With an id, no denies and Enter decides
nothing: the request stays open. With --watch, Enter and any other answer deny, and calls of one
tool for one question are asked about together: numbers such as " 1,3-5" behind the 4 characters
approve those and deny the others. y alone is asked again: pasted text could contain it.

A request can also be a question of an MCP server whose call runs: --answer name=value sends the
values of its fields to that server and to nobody else, --deny declines. The text of the question is
the server's: never enter a password or a key.

Exit code 1 means that the decision was not accepted: the request was decided before, has expired or
is unknown.`,
		Example: `  conclave approve
  conclave approve 3f9c01d2
  conclave approve 3f9c01d2 --session --yes
  conclave approve --deny 3f9c01d2
  conclave approve 3f9c01d2 --answer name=Ada --answer seats=2
  conclave approve --watch
  conclave approve --json | jq -r '.approvals[].id'`,
		Args:              cli.Args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: cli.FirstArg(completeApprovals(a)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := o.check(v); err != nil {
				return err
			}
			ctx := cmd.Context()
			switch {
			case o.watch:
				return watchApprovals(ctx, a)
			case len(v) == 0:
				return a.ReadWithClient(ctx, func(c *client.Client) error { return listApprovals(ctx, a, c, o.all) })
			}
			return a.WithClient(func(c *client.Client) error { return o.decide(ctx, a, c, v[0]) })
		},
		SuggestionsMinimumDistance: 2,
	}
	f := cmd.Flags()
	f.BoolVar(&o.session, "session", false, "approve this and later calls of this kind in the same session")
	f.BoolVar(&o.always, "always", false, "approve this and later calls of this kind, until revoked")
	f.BoolVar(&o.deny, "deny", false, "deny")
	f.BoolVar(&o.yes, "yes", false, "approve without a question")
	f.StringArrayVar(&o.answers, "answer", nil, "`name=value` of a field, for a question of an MCP server; once for "+
		"each field")
	f.BoolVar(&o.watch, "watch", false, "keep running, show each new request, and ask")
	f.BoolVar(&o.all, "all", false, "also list decided and expired requests")
	cmd.AddCommand(approveRulesCommand(a), approveRevokeCommand(a))
	return cmd
}

// check rejects flags that contradict each other, and a decision without an id: a decision must not be a guess. v are
// the positional arguments, at most an id, which must be valid and have 6 characters.
func (o *approveFlags) check(v []string) error {
	decisions := 0
	for _, set := range []bool{o.session, o.always, o.deny} {
		if set {
			decisions++
		}
	}
	switch {
	case decisions > 1:
		return cli.Usage("--session, --always and --deny exclude each other")
	case o.yes && o.deny:
		return cli.Usage("--yes and --deny exclude each other")
	case len(o.answers) > 0 && decisions > 0:
		return cli.Usage("--answer excludes --session, --always and --deny")
	case (decisions+len(o.answers) > 0 || o.yes) && len(v) == 0:
		return cli.Usage("give the id of a request: list them with conclave approve")
	case o.watch && (decisions > 0 || len(v) > 0 || o.all):
		return cli.Usage("--watch asks about each request: it takes no id and no decision")
	case o.all && len(v) > 0:
		return cli.Usage("--all is for the list")
	case len(v) > 0:
		return cli.CheckPrefix(v[0])
	}
	return nil
}

// listApprovals prints the waiting calls, with all also decided and expired ones; on stderr how to decide them, that
// there are none, and how many decisions are remembered. With --json it prints the broker's list.
func listApprovals(ctx context.Context, a *cli.App, c *client.Client, all bool) error {
	l, err := c.Approvals(ctx, all)
	return a.Print(l, cli.BrokerError("the approvals", err), func() {
		if len(l.Approvals) == 0 {
			a.Say("no call waits for your approval")
		}
		now, pending := time.Now(), waitingRequests(l)
		rest := slices.Clone(pending)
		for i, p := range l.Approvals {
			isShown := p.State == subjects.ApprovalPending && !isAmong(rest, p.ID) // with another call
			if i > 0 && !isShown {
				fmt.Fprintln(a.Out)
			}
			switch {
			case isShown:
			case p.State != subjects.ApprovalPending:
				view.PrintApproval(a.Out, p, now)
			default:
				b, _ := view.NextBatch(rest)
				b.Print(a.Out, 0, now)
				rest = slices.DeleteFunc(rest, func(r subjects.ApprovalRequest) bool { return isAmong(b, r.ID) })
			}
		}
		if len(pending) > 0 {
			a.Say("decide with: %s approve <id>, or --deny <id>", a.Program())
		}
		if n := len(l.Rules); n > 0 {
			a.Say("%s for later calls: list with %s approve rules", term.Count(n, "remembered decision"), a.Program())
		}
	})
}

// waitingRequests returns the requests of a list that wait.
func waitingRequests(l subjects.ApprovalList) (out []subjects.ApprovalRequest) {
	for _, p := range l.Approvals {
		if p.State == subjects.ApprovalPending {
			out = append(out, p.ApprovalRequest)
		}
	}
	return out
}

// isAmong reports whether one of the requests has this id.
func isAmong(all []subjects.ApprovalRequest, id string) bool {
	return slices.ContainsFunc(all, func(r subjects.ApprovalRequest) bool { return r.ID == id })
}

// decide approves or denies the request with an id or prefix. An unknown or ambiguous id, and a decision that the
// broker does not accept, are errors. An interrupt while looking up the id is none; later it is one, because whether it
// was accepted is unknown.
func (o *approveFlags) decide(ctx context.Context, a *cli.App, c *client.Client, prefix string) error {
	id, err := c.FindApproval(ctx, prefix)
	if err != nil {
		return cli.IgnoreInterrupt(ctx, findError("request", prefix, "list them with "+a.Program()+" approve",
			cli.BrokerError("the approvals", err)))
	}
	keyboard, asks := term.Keyboard(a.In)
	if !o.deny && !o.yes && (a.JSON || !asks) {
		return cli.Usage("there is no terminal to ask on: add --yes to approve %s, or --deny", term.ShortID(id))
	}
	var d subjects.ApprovalDecision
	if !a.JSON || len(o.answers) > 0 {
		q, err := findRequest(ctx, a, c, id)
		switch {
		case err != nil:
			return cli.IgnoreInterrupt(ctx, err)
		case len(o.answers) > 0 && q.Form == nil:
			return cli.Usage("the request asks no question: it takes no --answer")
		case len(o.answers) > 0:
			d.Values = view.ParseValues(o.answers, *q.Form)
		}
		if ok, err := o.confirm(ctx, a, q, keyboard); err != nil || !ok {
			return cli.IgnoreInterrupt(ctx, err)
		}
	}
	switch d.Approve = !o.deny; {
	case o.deny:
		d.Values = nil
	case o.session:
		d.Remember = subjects.RememberSession
	case o.always:
		d.Remember = subjects.RememberAlways
	}
	r, err := c.DecideApproval(ctx, id, d)
	if err != nil {
		return cli.BrokerError("the decision", err)
	}
	err = a.Print(r, nil, func() {
		if r.Accepted {
			a.Say("%s", view.AcceptedDecision(d, r))
		}
	})
	if !r.Accepted {
		return a.RejectedDecision(r)
	}
	return err
}

// findRequest returns the request with an id. One that the broker does not list is unknown.
func findRequest(ctx context.Context, a *cli.App, c *client.Client, id string) (subjects.Approval, error) {
	l, err := c.Approvals(ctx, true)
	if err != nil {
		return subjects.Approval{}, cli.BrokerError("the approvals", err)
	}
	at := slices.IndexFunc(l.Approvals, func(q subjects.Approval) bool { return q.ID == id })
	if at < 0 {
		return subjects.Approval{}, a.RejectedDecision(subjects.ApprovalReply{ID: id, State: subjects.ApprovalUnknown})
	}
	return l.Approvals[at], nil
}

// confirm shows a pending request with its exact arguments on stderr before it is decided, and asks unless --yes or
// --deny is given. A typed answer sets the flags that it stands for. ok is false when the user decides nothing: the
// request stays open. With --json nothing is shown or asked. A request that is not pending passes: the broker says how
// it was decided.
func (o *approveFlags) confirm(ctx context.Context, a *cli.App, q subjects.Approval, keyboard *os.File) (ok bool,
	err error,
) {
	if a.JSON || q.State != subjects.ApprovalPending {
		return true, nil
	}
	view.PrintApproval(a.Err, q, time.Now())
	if o.deny || o.yes {
		return true, nil
	}
	what := "allow " + q.Tool
	if q.Form != nil {
		what = "send this answer to " + q.Form.From
	}
	word := view.Word(q.ApprovalRequest)
	remember := q.Form == nil && len(q.Sinks) > 0 // as with --watch
	line, err := a.ReadAnswer(ctx, keyboard, view.AskLater(term.Visible(what)+"?", word, remember),
		func(line string) string {
			_, _, complaint := view.ParseLater(line, word, remember)
			return complaint
		})
	if err != nil {
		return false, err
	}
	d, ok, _ := view.ParseLater(line, word, remember)
	switch {
	case !ok:
		a.Say("nothing was decided: the request stays open; deny it with %s approve --deny %s", a.Program(),
			term.ShortID(q.ID))
	case !d.Approve:
		o.deny, o.session, o.always = true, false, false
	case d.Remember != "":
		o.session, o.always = d.Remember == subjects.RememberSession, d.Remember == subjects.RememberAlways
	}
	return ok, nil
}

// findError explains an error of looking up a thing by id or prefix: unknown or ambiguous. fix says how to list the
// things. Other errors, and nil, are returned as they are.
func findError(thing, id, fix string, err error) error {
	var ambiguous *client.AmbiguousError
	switch {
	case errors.As(err, &ambiguous):
		things := thing + "s"
		if stem, ok := strings.CutSuffix(thing, "y"); ok {
			things = stem + "ies"
		}
		return cli.Fail(cli.ExitFailed, fmt.Sprintf("%d %s begin with %s", ambiguous.Count, things, id),
			"give more of the id")
	case errors.Is(err, client.ErrNotFound):
		return cli.Fail(cli.ExitFailed, "there is no "+thing+" "+id, fix)
	}
	return err
}

// approvalPrompt asks about waiting calls on a screen, one batch at a time.
type approvalPrompt struct {
	*cli.App
	c        *client.Client
	lines    <-chan string              // nil = nobody can be asked
	shown    map[string]bool            // requests that were printed; false = decided elsewhere since
	waiting  []subjects.ApprovalRequest // as the last list has them, oldest first
	gathered <-chan time.Time           // when the waiting calls are asked about; nil while none is gathered
	open     view.Batch                 // the calls that the user is asked about
	asked    time.Time                  // when the user was
	switched bool                       // they replaced others that were decided elsewhere
}

// watchApprovals shows each request as it comes until the user interrupts, which is no error, and asks on a terminal
// unless --json is set. It fails when the broker cannot be asked at the start, or stdout is closed; later errors are
// printed and it goes on.
func watchApprovals(ctx context.Context, a *cli.App) error {
	return a.ReadWithClient(ctx, func(c *client.Client) error {
		p := &approvalPrompt{App: a, c: c, shown: map[string]bool{}}
		changed := make(chan struct{})
		failed := make(chan error, 1)
		watching, stop := context.WithCancel(ctx)
		defer stop()
		go p.watch(watching, changed, failed)
		if !a.JSON {
			p.lines = term.ReadLines(a.In)
			a.Say("watching for requests; Ctrl-C ends it, and undecided requests stay open")
		}
		for {
			var err error
			select {
			case <-ctx.Done():
				return nil
			case err := <-failed:
				return err
			case line := <-p.lines:
				err = p.decide(ctx, line)
				if p.open == nil {
					err = errors.Join(err, p.update(ctx))
				}
			case <-changed:
				err = p.update(ctx)
			case <-p.gathered:
				p.show()
			}
			if err != nil && ctx.Err() == nil {
				a.Say("%s", term.OneLine(err.Error()))
			}
			if a.Out.Err != nil {
				return a.Out.Err
			}
		}
	})
}

// watch sends on changed whenever the waiting calls may have changed, until ctx ends. An error before the first list is
// sent on failed and ends it; a later one is printed, because the broker may return.
func (p *approvalPrompt) watch(ctx context.Context, changed chan<- struct{}, failed chan<- error) {
	first := true
	for _, err := range p.c.WatchApprovals(ctx) {
		if err = cli.BrokerError("the approvals", err); err != nil && first {
			failed <- err
			return
		} else if err != nil {
			p.Say("%s", term.OneLine(err.Error()))
			continue
		}
		first = false
		select {
		case changed <- struct{}{}:
		case <-ctx.Done():
			return
		}
	}
}

// update fetches the waiting calls and prints new ones, oldest first because they expire first. With a keyboard those
// that belong together are gathered and asked about at a time, and open requests that no longer wait are closed with a
// message. The list is fetched here and not taken from the watch, where it may be older than the open requests.
func (p *approvalPrompt) update(ctx context.Context) error {
	l, err := p.c.Approvals(ctx, false)
	if err != nil {
		return cli.BrokerError("the approvals", err)
	}
	before := len(p.waiting)
	p.waiting = waitingRequests(l)
	slices.Reverse(p.waiting)
	for i := len(l.Approvals) - 1; i >= 0 && p.lines == nil; i-- {
		if q := l.Approvals[i]; !p.shown[q.ID] {
			p.print(q)
		}
	}
	p.closeDecided()
	if p.lines != nil && p.open == nil && len(p.waiting) > 0 && (p.gathered == nil || before != len(p.waiting)) {
		p.gathered = time.After(view.GatherTime)
	}
	return nil
}

// closeDecided says which of the open requests no longer wait, and asks about the others again.
func (p *approvalPrompt) closeDecided() {
	left, closed := 0, 0
	for _, r := range p.open {
		switch {
		case !p.shown[r.ID]:
		case isAmong(p.waiting, r.ID):
			left++
		default:
			closed++
			p.shown[r.ID] = false
			p.Say("\n%s was decided elsewhere, or has expired", term.ShortID(r.ID))
		}
	}
	if closed == 0 {
		return
	}
	p.switched = true
	if left == 0 {
		p.open = nil
		return
	}
	p.prompt()
}

// print prints a request, with --json as a line, and how to decide it elsewhere.
func (p *approvalPrompt) print(q subjects.Approval) {
	p.shown[q.ID] = true
	if p.JSON {
		_ = p.PrintLine(q) // stdout remembers its error
		return
	}
	view.PrintApproval(p.Out, q, time.Now())
	p.Say("%s", view.HowToDecide(q.ID, p.Program()))
}

// show prints the first waiting calls and asks about them: the next typed line belongs to them, and to none that comes
// later.
func (p *approvalPrompt) show() {
	p.gathered = nil
	if p.open != nil || len(p.waiting) == 0 {
		return
	}
	b, more := view.NextBatch(p.waiting)
	p.open = b
	for _, r := range b {
		p.shown[r.ID] = true
	}
	b.Print(p.Out, more, time.Now())
	p.prompt()
}

// prompt asks about the open requests, which must be set, and notes the time: a line typed before it was readable is
// not a decision.
func (p *approvalPrompt) prompt() {
	term.DiscardWaiting(p.In)
	// without sinks it cannot be remembered
	fmt.Fprint(p.Err, p.open.Prompt(p.open.Word(), len(p.open[0].Sinks) > 0))
	p.asked = time.Now()
}

// decide sends the decisions of a typed line about the open requests one by one, up to the first error; without any the
// line is ignored. A line that came too fast was not meant for them, and a yes without [view.Word] may be pasted: it is
// asked again. After a failed request the calls are asked again too; a decision that is not accepted is only printed.
func (p *approvalPrompt) decide(ctx context.Context, line string) error {
	if p.open == nil {
		return nil
	}
	decisions, complaint := p.open.Parse(line, p.open.Word())
	if since := time.Since(p.asked); since < term.TooFast || p.switched && since < term.TooFastAfterSwitch {
		complaint = term.TypedAhead
	}
	if complaint != "" {
		p.Say("%s", complaint)
		p.prompt()
		return nil
	}
	p.open, p.switched = nil, false
	for _, d := range decisions {
		if !p.shown[d.ID] { // decided elsewhere
			continue
		}
		r, err := p.c.DecideApproval(ctx, d.ID, d.ApprovalDecision)
		switch {
		case err != nil:
			return cli.BrokerError("the decision", err)
		case !r.Accepted:
			p.Say("%s", term.OneLine(p.RejectedDecision(r).Error()))
		default:
			p.Say("%s", view.AcceptedDecision(d.ApprovalDecision, r))
		}
	}
	return nil
}

// approveRulesCommand lists the decisions that hold for later calls; none is no error.
func approveRulesCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "rules",
		Short: "List remembered decisions",
		Long: `Lists the decisions that you made with --session or --always: type of agent, tool, rule, targets or
exact values, and the time of the decision. With --json it prints one array.`,
		Example: `  conclave approve rules
  conclave approve rules --json | jq -r '.[].id'`,
		Args: cli.NoArgs,
		RunE: a.Read(func(ctx context.Context, c *client.Client, _ []string) error {
			l, err := c.Approvals(ctx, false)
			return cli.PrintList(a, l.Rules, cli.BrokerError("the approvals", err),
				"no decisions are remembered: make one with "+a.Program()+" approve <id> --session or --always",
				func() { view.ApprovalRules(a.Out, l.Rules) })
		}),
	}
}

// approveRevokeCommand ends a remembered decision, found by its id or a unique prefix of at least 6 characters. An
// unknown one is an error.
func approveRevokeCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke <rule>",
		Short: "End a remembered decision",
		Long: `Ends a remembered decision: from now on you are asked again. Calls that it approved before are not
undone. The first 6 characters of the id are enough.`,
		Example: `  conclave approve revoke 3f9c01d2
  conclave approve revoke 3f9c01d2 --json`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := cli.CheckPrefix(v[0]); err != nil {
				return err
			}
			return a.WithClient(func(c *client.Client) error {
				id, err := c.FindRule(cmd.Context(), v[0])
				var done subjects.Done
				if err == nil {
					done, err = c.RevokeRule(cmd.Context(), id)
				}
				return a.Print(done, findError("rule", cmp.Or(id, v[0]), "list them with "+a.Program()+" approve rules",
					cli.BrokerError("the rule", err)), a.Saying("revoked: you are asked again"))
			})
		},
	}
}

// completeApprovals completes the ids of waiting calls.
func completeApprovals(a *cli.App) cli.Completion {
	return a.CompleteFrom(func(ctx context.Context, c *client.Client) (ids []string, err error) {
		l, err := c.Approvals(ctx, false)
		for _, q := range l.Approvals {
			ids = append(ids, q.ID)
		}
		return ids, err
	})
}
