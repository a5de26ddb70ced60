package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/actor"
	"conclave/pkg/client"
	"conclave/subjects"
)

// rateFlags are the flags of conclave rate and the feedback.
type rateFlags struct {
	session  string            // whose last answer is rated; "" = the last session, unless QueryID is set
	last     string            // the last question of the last session; "" = not known, or not needed
	wait     time.Duration     // until it is counted; 0 = do not wait
	feedback subjects.Feedback // QueryID is --query
}

// rateCommand rates the last answer of a session, or the answer to a query. It rejects --session with --query, and a
// wait outside 0 to 1 minute.
func rateCommand(a *cli.App) *cobra.Command {
	o := &rateFlags{}
	cmd := &cobra.Command{
		Use:   "rate up|down|1-5|words [words...]",
		Short: "Rate an answer",
		Long: `Rates an answer with up or down, with 1 to 5 stars, with words, or with a thumb or stars and words.
It rates the last answer of the last session, also that of a task, the last one of --session, or the
answer to --query. A new rating replaces the previous one. The last session is the one that conclave
ask used last from this data folder or, when there is none, the one that any client used last.
conclave session show means the same one.

The rating is stored first. Then rate waits up to --wait for its value, a number from -1 to 1. Words
without a thumb or stars are stored and count as 0. When the reward actor is not running, the rating
is counted later. A rating of an unknown answer is rejected with exit code 1.`,
		Example: `  conclave rate up
  conclave rate 2 'the ferry does not run in winter'
  conclave rate down --session notes
  conclave rate --json 5 --query 3f9c01d2aa7b4c0d9e1f203142536475 | jq .value`,
		Args: func(_ *cobra.Command, words []string) error {
			query := o.feedback.QueryID
			var err error
			o.feedback, err = parseFeedback(words)
			o.feedback.QueryID = query
			return err
		},
		ValidArgsFunction: cli.FirstArg(cli.Words("up", "down", "1", "2", "3", "4", "5")),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.session != "" && o.feedback.QueryID != "":
				return cli.Usage("--session and --query exclude each other")
			case o.wait < 0 || o.wait > time.Minute:
				return cli.Usage("--wait %s: between 0s and 1m", o.wait)
			}
			if err := cmp.Or(cli.CheckID("query", o.feedback.QueryID),
				cli.CheckID("session", o.session)); err != nil {
				return err
			}
			return o.run(cmd.Context(), a)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.feedback.QueryID, "query", "", "`id` of the question whose answer is rated, or its first 6 "+
		"characters")
	f.StringVar(&o.session, "session", "", "`id` of the session whose last answer is rated")
	f.DurationVar(&o.wait, "wait", 3*time.Second, "how long to wait until it is counted; 0 for not at all")
	cli.CompleteFlags(cmd, map[string]cli.Completion{"session": a.CompleteSessions()})
	return cmd
}

// parseFeedback reads a thumb (up, +1, down) or stars (1 to 5), and words; a first word that is neither belongs to the
// words. It rejects no words at all, another number, and text that is invalid UTF-8 or above [client.MaxFeedback].
// QueryID stays empty.
func parseFeedback(words []string) (f subjects.Feedback, err error) {
	empty := cli.Usage("give a rating: up, down, 1 to 5, or words: see conclave rate --help")
	if len(words) == 0 {
		return f, empty
	}
	rest := words[1:]
	switch first := strings.ToLower(strings.TrimSpace(words[0])); first {
	case "up", "+1": // Atoi would read +1 as one star
		f.Thumb = 1
	case "down":
		f.Thumb = -1
	default:
		n, err := strconv.Atoi(first)
		switch {
		case err != nil:
			rest = words
		case n < 1 || n > 5:
			return f, cli.Usage("%d is not a number of stars: use 1 to 5, up or down", n)
		default:
			f.Stars = n
		}
	}
	f.Words = strings.TrimSpace(strings.Join(rest, " "))
	switch {
	case !utf8.ValidString(f.Words) || len(f.Words) > client.MaxFeedback:
		return f, cli.Usage("the words are limited to %s of text", term.Bytes(client.MaxFeedback))
	case f == subjects.Feedback{}:
		return f, empty
	}
	return f, nil
}

// rated is the outcome of a rating.
type rated struct {
	Session    string   `json:"session_id,omitempty"`
	Query      string   `json:"query_id"`
	State      string   `json:"state"`           // counted, stored
	Value      *float64 `json:"value,omitempty"` // -1 to 1
	Count      int      `json:"count,omitempty"` // ratings of this answer
	Respondent string   `json:"respondent_id,omitempty"`
	Note       string   `json:"note,omitempty"` // why it is only stored
}

// run finds the answer, stores the rating, waits up to --wait until it is counted, and prints the outcome. A rating
// that is only stored is no error; one that the reward actor rejects is, and so is an interrupt before it is stored.
func (o *rateFlags) run(ctx context.Context, a *cli.App) (err error) {
	return a.WithClient(func(c *client.Client) error {
		if o.feedback.QueryID == "" && o.session == "" {
			if _, o.last, err = a.LastQuestion(nil); err != nil {
				return err
			}
			if o.session, err = lastSession(ctx, a, c); errors.Is(err, client.ErrNotFound) {
				err = cli.Fail(cli.ExitFailed, "nothing was asked yet in "+a.Home.Data, "ask something first, or "+
					"name the answer with --session or --query")
			}
			if err != nil {
				return err
			}
		}
		if err := o.findAnswer(ctx, a, c); err != nil {
			return err
		}
		rating, err := c.Rate(ctx, o.session, o.feedback)
		if err != nil {
			return fmt.Errorf("%w: see conclave doctor", err)
		}
		defer rating.Close()
		waiting, cancel := context.WithTimeout(ctx, o.wait)
		defer cancel()
		reward, err := rating.Wait(waiting)
		var rejected *client.RejectedError
		if errors.As(err, &rejected) {
			return cli.Fail(cli.ExitFailed, "the rating was rejected: "+term.OneLine(rejected.Reason),
				"name the session with --session, or the question with --query")
		}
		return o.print(a, c, reward)
	})
}

// findAnswer sets the query, and the session, of the answer to rate. A complete --query is not looked up, and an
// unknown one passes: the reward actor rejects it. It fails for an ambiguous prefix, and for a session that is unknown
// or has no answer.
func (o *rateFlags) findAnswer(ctx context.Context, a *cli.App, c *client.Client) error {
	if o.feedback.QueryID != "" {
		if len(o.feedback.QueryID) >= len(actor.NewID()) {
			return nil // complete: the reward actor knows whether it is answered
		}
		ctx, cancel := context.WithTimeout(ctx, judgeTimeout)
		defer cancel()
		id, err := c.FindQuery(ctx, o.feedback.QueryID)
		switch {
		case errors.Is(err, client.ErrNotFound):
			return nil // it may be complete and answered elsewhere
		case err != nil:
			return queryError(a, o.feedback.QueryID, err)
		}
		o.feedback.QueryID = id
		return nil
	}
	if _, answered, err := c.AnswerPlace(ctx, o.last); err == nil && answered {
		o.feedback.QueryID = o.last
		return nil
	}
	turn, session, err := c.LastTurn(ctx, o.session)
	switch {
	case errors.Is(err, client.ErrNotFound) && o.last != "":
		o.feedback.QueryID = o.last // the answer of a task, which is in no conversation
		return nil
	case errors.Is(err, client.ErrNoAnswer):
		return cli.Fail(cli.ExitFailed, "there is no answer in the session "+session, "list sessions with "+a.Program()+
			" session list")
	case err != nil:
		return sessionError(a, o.session, err)
	}
	o.session, o.feedback.QueryID = session, turn.QueryID
	return nil
}

// print prints the value that the rating is counted as. reward is nil when it is only stored; then it prints why, and
// may ping the reward actor for up to a second.
func (o *rateFlags) print(a *cli.App, c *client.Client, reward *subjects.Reward) error {
	out := rated{Session: o.session, Query: o.feedback.QueryID, State: "stored"}
	switch {
	case reward != nil:
		out.State, out.Value, out.Count, out.Respondent = "counted", &reward.Value, reward.Count, reward.RespondentID
		out.Session = cmp.Or(out.Session, reward.SessionID)
	case o.wait == 0:
		out.Note = "not waited until it is counted: see " + a.Program() + " critic show " + o.feedback.QueryID
	case c.HasReward(context.Background()):
		out.Note = "not counted: it repeats your last rating, or the reward actor is still working on it"
	default:
		out.Note = "the reward actor is not running: it is counted when it runs"
	}
	text := "stored; " + out.Note
	if reward != nil {
		text = fmt.Sprintf("counted as %s for %s", view.Reward(reward.Value),
			term.Plain(cmp.Or(reward.RespondentID, "no respondent")))
		if reward.Value == 0 && o.feedback.Thumb == 0 && o.feedback.Stars == 0 {
			text += ": the words are stored; to rate the answer, add up, down or 1 to 5"
		}
		if reward.Count > 1 {
			text += "; it replaces your last rating"
		}
	}
	return a.Print(out, nil, func() { fmt.Fprintln(a.Out, text) })
}
