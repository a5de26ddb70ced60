package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// approve is what the user wants to do with questions.
type approve struct {
	*app
	session, always, deny, watch, all bool
}

// brokerTime is how long the broker may take over something the user says.
const brokerTime = 30 * time.Second

// shortest is how much of an id is enough.
const shortest = 6

// approveCommand shows the questions that wait for the user, and answers them.
func (a *app) approveCommand() *cobra.Command {
	p := &approve{app: a}
	cmd := &cobra.Command{
		Use:   "approve [id]",
		Short: "Answer what an agent may not do unasked",
		Long: `Lists the calls that wait for your answer: who asks, for which tool, with the exact arguments, which rule wants you to be
asked and why, where text of strangers came from, and when the question expires. A question that nobody answers in time
is refused, and the agent is told that nobody answered.

With an id it says yes, this once. --session and --always say yes also to later calls of the same tool by the same type of
agent to the same places; conclave approve rules lists such answers and conclave approve revoke ends them. A question about
the act itself, and not about a place, is asked each time, whatever you say. --deny says no. The first answer holds,
wherever it was given. The beginning of an id is enough from six letters on.

--watch stays, shows each question as it comes and, on a terminal, asks you: y is yes, s for this session, a always; everything
else is no. Exit code 1 means that the answer was not taken, because the question was answered before, is expired or unknown.`,
		Example: `  conclave approve
  conclave approve 3f9c01d2
  conclave approve 3f9c01d2 --session
  conclave approve --deny 3f9c01d2
  conclave approve --watch
  conclave approve --json | jq -r '.approvals[].id'`,
		Args: args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: func(cmd *cobra.Command, v []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(v) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeQuestions(cmd, word)
		},
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := p.check(v); err != nil {
				return err
			}
			switch {
			case p.watch:
				return p.follow(cmd.Context())
			case len(v) == 0:
				return p.list(cmd.Context())
			}
			return p.answer(cmd.Context(), v[0])
		},
		SuggestionsMinimumDistance: 2,
	}
	f := cmd.Flags()
	f.BoolVar(&p.session, "session", false, "yes, and for later calls of this kind in the same session")
	f.BoolVar(&p.always, "always", false, "yes, and for all later calls of this kind, until it is revoked")
	f.BoolVar(&p.deny, "deny", false, "no")
	f.BoolVar(&p.watch, "watch", false, "stay, show each question as it comes, and ask")
	f.BoolVar(&p.all, "all", false, "list those that are over too")
	cmd.AddCommand(a.approveRulesCommand(), a.approveRevokeCommand())
	return cmd
}

// check refuses what cannot be meant: an answer must not be a guess.
func (p *approve) check(v []string) error {
	n := 0
	for _, set := range []bool{p.session, p.always, p.deny} {
		if set {
			n++
		}
	}
	switch {
	case n > 1:
		return usage("--session, --always and --deny: choose one")
	case n > 0 && len(v) == 0:
		return usage("say which question: conclave approve lists them")
	case p.watch && (n > 0 || len(v) > 0 || p.all):
		return usage("--watch asks about each question by itself: it takes no id and no answer")
	case p.all && len(v) > 0:
		return usage("--all is for the list")
	case len(v) > 0:
		return checkShort(v[0])
	}
	return nil
}

func checkShort(id string) error {
	if subjects.CheckToken(id) != nil || len(id) < shortest {
		return usage("%q cannot be an id: give at least %d letters of it", clip(id, 40), shortest)
	}
	return nil
}

// fetchApprovals asks the broker what waits, and what it remembers.
func fetchApprovals(ctx context.Context, out actor.Out, all bool) (subjects.ApprovalList, error) {
	ctx, cancel := context.WithTimeout(ctx, brokerTime)
	defer cancel()
	l, err := actor.Ask(ctx, out, subjects.ApprovalListService, subjects.ApprovalQuery{All: all})
	return l, brokerSays("the questions", err)
}

// brokerSays makes an error with a fix and an exit code of what the broker said instead of an answer.
func brokerSays(what string, err error) error {
	var f *subjects.Fault
	if errors.As(err, &f) {
		return explain(what, f)
	}
	return err
}

func (p *approve) list(ctx context.Context) error {
	out, done, err := p.asUser()
	if err != nil {
		return err
	}
	defer done()
	l, err := fetchApprovals(ctx, out, p.all)
	if err != nil {
		return quietly(ctx, err)
	}
	if p.json {
		return p.document(l)
	}
	if len(l.Approvals) == 0 {
		p.say("nothing waits for your answer")
	}
	now, waits := time.Now(), false
	for i, q := range l.Approvals {
		if i > 0 {
			fmt.Fprintln(p.stdout)
		}
		p.showQuestion(p.stdout, q, now)
		waits = waits || q.State == subjects.ApprovalPending
	}
	if waits {
		p.say("answer with: %s approve <id>, or --deny <id>", p.program())
	}
	if n := len(l.Rules); n > 0 {
		p.say("%s of yours hold for later calls: %s approve rules", count(n, "answer"), p.program())
	}
	return p.stdout.err
}

// answer says yes or no to the question of an id or of the beginning of one.
func (p *approve) answer(ctx context.Context, id string) error {
	out, done, err := p.asUser()
	if err != nil {
		return err
	}
	defer done()
	l, err := fetchApprovals(ctx, out, true)
	if err != nil {
		return quietly(ctx, err)
	}
	var ids []string
	for _, q := range l.Approvals {
		ids = append(ids, q.ID)
	}
	if id, err = wholeID(id, ids, "question", p.program()+" approve lists those that wait"); err != nil {
		return err
	}
	d := subjects.ApprovalDecision{Approve: !p.deny}
	switch {
	case p.session:
		d.Remember = subjects.RememberSession
	case p.always:
		d.Remember = subjects.RememberAlways
	}
	r, err := decide(ctx, out, id, d)
	if err != nil { // also when it was broken off: nobody knows whether it was taken
		return err
	}
	if p.json {
		if err := p.document(r); err != nil {
			return err
		}
	}
	if !r.Accepted {
		return untakenAnswer(r, p.program())
	}
	if !p.json {
		p.say("%s", taken(d, r))
	}
	return nil
}

// wholeID is the one id that begins with what was typed. An id that is not in the list is taken as it is when it is whole:
// a list has an end.
func wholeID(typed string, ids []string, thing, where string) (string, error) {
	var found []string
	for _, id := range ids {
		if id == typed {
			return id, nil
		}
		if strings.HasPrefix(id, typed) {
			found = append(found, id)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", fail(exitFailed, fmt.Sprintf("%d %ss begin with %s", len(found), thing, typed), "give more of the id")
	case len(typed) < 32:
		return "", fail(exitFailed, "there is no "+thing+" "+typed, where)
	}
	return typed, nil
}

// decide sends an answer.
func decide(ctx context.Context, out actor.Out, id string, d subjects.ApprovalDecision) (subjects.ApprovalReply, error) {
	s, err := subjects.ApprovalDecisionService.With(id)
	if err != nil {
		return subjects.ApprovalReply{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, brokerTime)
	defer cancel()
	r, err := actor.Ask(ctx, out, s, d)
	return r, brokerSays("the answer", err)
}

// taken says what an answer that was taken means. What the broker made of it counts, and not what was wanted.
func taken(d subjects.ApprovalDecision, r subjects.ApprovalReply) string {
	switch {
	case r.State == subjects.ApprovalDenied:
		return "refused; the agent is told that you said no"
	case r.Remember == subjects.RememberSession:
		return "approved, and for later calls of this kind in this session"
	case r.Remember == subjects.RememberAlways:
		return "approved, and for all later calls of this kind until you revoke it"
	case d.Remember != "":
		return "approved, this once: this kind of call is asked about each time, or there are too many remembered answers"
	}
	return "approved, this once"
}

// untakenAnswer says why an answer was not taken.
func untakenAnswer(r subjects.ApprovalReply, program string) error {
	switch r.State {
	case subjects.ApprovalUnknown:
		return fail(exitFailed, "there is no question "+r.ID, program+" approve lists those that wait")
	case subjects.ApprovalExpired:
		return fail(exitFailed, "the question has expired and the call was refused", "let the agent ask again; "+program+" approve --watch shows each question as it comes")
	case subjects.ApprovalApproved, subjects.ApprovalDenied:
		return fail(exitFailed, fmt.Sprintf("the question was answered before: it was %s by %s", r.State, plain(or(r.By, "somebody"))), "the first answer holds")
	}
	return fail(exitFailed, "the answer was not taken: the question is "+plain(r.State), program+" approve lists those that wait")
}

func (a *app) approveRulesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rules",
		Short: "List the answers that hold for later calls",
		Long: `Lists the answers that you gave with --session or --always: for which type of agent, which tool, which rule and which
places, where exact values count, and who gave it when. With --json it is one array.`,
		Example: `  conclave approve rules
  conclave approve rules --json | jq -r '.[].id'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out, done, err := a.asUser()
			if err != nil {
				return err
			}
			defer done()
			l, err := fetchApprovals(cmd.Context(), out, false)
			if err != nil {
				return quietly(cmd.Context(), err)
			}
			if a.json {
				return a.document(append([]subjects.ApprovalRule{}, l.Rules...))
			}
			if len(l.Rules) == 0 {
				a.say("no answers are remembered: %s approve <id> --session or --always makes one", a.program())
				return nil
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "RULE\tMADE\tHOLDS IN\tAGENTS\tTOOL\tASKED BY\tPLACES")
			for _, r := range l.Rules {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", visible(short(r.ID)), stamp(r.Made), visible(or(r.Session, "every session")), visible(r.Type), visible(r.Tool), visible(r.Rule), visible(strings.Join(r.Sinks, " ")))
			}
			return w.Flush()
		},
	}
}

func (a *app) approveRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke <rule>",
		Short: "End an answer that holds for later calls",
		Long: `Ends a remembered answer: from now on you are asked again. What it has let through stays done. The beginning of the id is
enough from six letters on.`,
		Example: `  conclave approve revoke 3f9c01d2
  conclave approve revoke 3f9c01d2 --json`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := checkShort(v[0]); err != nil {
				return err
			}
			out, done, err := a.asUser()
			if err != nil {
				return err
			}
			defer done()
			return a.revoke(cmd.Context(), out, v[0])
		},
	}
}

func (a *app) revoke(ctx context.Context, out actor.Out, typed string) error {
	l, err := fetchApprovals(ctx, out, false)
	if err != nil {
		return err
	}
	var ids []string
	for _, r := range l.Rules {
		ids = append(ids, r.ID)
	}
	where := a.program() + " approve rules lists those there are"
	id, err := wholeID(typed, ids, "rule", where)
	if err != nil {
		return err
	}
	s, err := subjects.ApprovalRevoke.With(id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, brokerTime)
	defer cancel()
	r, err := actor.Ask(ctx, out, s, subjects.Empty{})
	switch {
	case err != nil:
		return brokerSays("the rule", err)
	case !r.OK:
		return fail(exitFailed, "there is no rule "+id, where)
	case a.json:
		return a.document(r)
	}
	a.say("revoked: you are asked again")
	return nil
}

// completeQuestions offers the ids of the questions that wait.
func (a *app) completeQuestions(cmd *cobra.Command, word string) (ids []string, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), hurry)
	defer cancel()
	out, done, err := a.asUser()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer done()
	l, _ := fetchApprovals(ctx, out, false) // a completion has nobody to talk to
	for _, q := range l.Approvals {
		if strings.HasPrefix(q.ID, word) {
			ids = append(ids, q.ID)
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}
