package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/spf13/cobra"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/subjects"
)

const (
	// rateTime is how long rate waits for what becomes of the rating.
	rateTime = 3 * time.Second
	// maxWords bounds what may be written with a rating, in bytes.
	maxWords = 8 << 10
)

// rating is one opinion on its way.
type rating struct {
	*app
	session, query string
	wait           time.Duration

	body     subjects.Feedback
	sum      string // of the body as it is stored: a dead letter tells of it by this
	nc       *nats.Conn
	out      actor.Out
	messages chan *nats.Msg
	from     uint64 // the first event that may tell what became of it
}

// rateCommand passes on what the user thinks of an answer.
func (a *app) rateCommand() *cobra.Command {
	r := &rating{app: a}
	cmd := &cobra.Command{
		Use:   "rate up|down|1-5|words [words...]",
		Short: "Say what you think of an answer",
		Long: `Rates an answer: up or down, 1 to 5 stars, words, or one of the first with words. The last answer of the session that ask
used last is meant, that of --session, or the answer to --query. What you say last holds.

It is stored first, and then rate waits up to 3s, or --wait, for what becomes of it: the value from -1 to 1 that it is counted as, which
for words alone is the reward actor's reading of them. When reward is not there, it is counted as soon as it is. A
rating of an answer that nobody gave is refused, with exit code 1.`,
		Example: `  conclave rate up
  conclave rate 2 'the ferry does not run in winter'
  conclave rate down --session notes
  conclave rate --json 5 --query 3f9c01d2aa7b4c0d9e1f203142536475 | jq .value`,
		Args: func(_ *cobra.Command, words []string) (err error) {
			r.body, err = opinion(words)
			return err
		},
		ValidArgsFunction: func(_ *cobra.Command, v []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(v) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return []string{"up", "down", "1", "2", "3", "4", "5"}, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case r.session != "" && r.query != "":
				return usage("--session and --query: name the session whose last answer is meant, or the question")
			case r.query != "" && subjects.CheckToken(r.query) != nil:
				return usage("%q cannot be a query: use letters, digits, _ and -", clip(r.query, 40))
			case r.session != "" && subjects.CheckToken(r.session) != nil:
				return usage("%q cannot be a session: use letters, digits, _ and -", clip(r.session, 40))
			case r.wait < 0 || r.wait > time.Minute:
				return usage("--wait %s: between 0s and 1m", r.wait)
			}
			return r.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.query, "query", "", "`id` of the question whose answer is meant, or its beginning from eight letters on")
	f.StringVar(&r.session, "session", "", "`id` of the session whose last answer is meant")
	f.DurationVar(&r.wait, "wait", rateTime, "how long to wait for what becomes of it; 0 is not at all")
	_ = cmd.RegisterFlagCompletionFunc("session", a.completeSessions)
	return cmd
}

// opinion reads what the user thinks.
func opinion(words []string) (f subjects.Feedback, err error) {
	if len(words) == 0 {
		return f, usage("say what you think: up, down, 1 to 5, or words: see conclave rate --help")
	}
	rest := words[1:]
	switch first := strings.ToLower(strings.TrimSpace(words[0])); first {
	case "up", "+1": // many write a thumb so; as a number it would be one star
		f.Thumb = 1
	case "down":
		f.Thumb = -1
	default:
		n, err := strconv.Atoi(first)
		switch {
		case err != nil:
			rest = words
		case n < 1 || n > 5:
			return f, usage("%d is no number of stars: use 1 to 5, up or down", n)
		default:
			f.Stars = n
		}
	}
	f.Words = strings.TrimSpace(strings.Join(rest, " "))
	switch {
	case !utf8.ValidString(f.Words) || len(f.Words) > maxWords:
		return f, usage("the words: a text of at most %s", size(maxWords))
	case f == subjects.Feedback{}:
		return f, usage("say what you think: up, down, 1 to 5, or words: see conclave rate --help")
	}
	return f, nil
}

// rated is what became of a rating.
type rated struct {
	Session    string   `json:"session_id,omitempty"`
	Query      string   `json:"query_id"`
	State      string   `json:"state"`           // counted, stored
	Value      *float64 `json:"value,omitempty"` // -1 to 1
	Count      int      `json:"count,omitempty"` // how often this answer was rated
	Respondent string   `json:"respondent_id,omitempty"`
	Note       string   `json:"note,omitempty"` // of what is only stored: why
}

// run stores the rating and tells what became of it.
func (r *rating) run(ctx context.Context) (err error) {
	if r.query == "" && r.session == "" {
		none := fail(exitFailed, "nothing was asked yet in "+r.home.Data, "ask something first, or name the answer with --session or --query")
		if r.session, err = r.lastSession(none); err != nil {
			return err
		}
	}
	if r.nc, err = r.dial("user"); err != nil {
		return err
	}
	defer r.nc.Close()
	if r.out, err = actor.NewOut(r.nc); err != nil {
		return err
	}
	if err := r.which(ctx); err != nil {
		return quietly(ctx, err)
	}
	if err := r.listen(ctx); err != nil {
		return quietly(ctx, err)
	}
	if err := r.send(ctx); err != nil {
		return err
	}
	got, err := r.became(ctx)
	if err != nil {
		return err
	}
	return r.tell(got)
}

// which finds the question that is meant. Lists show only the beginning of an id, so that is enough here too.
func (r *rating) which(ctx context.Context) error {
	if r.query == "" {
		return r.lastAnswer(ctx)
	}
	if len(r.query) >= len(r.out.NewID()) {
		return nil // whole: reward knows whether there is an answer to it
	}
	ctx, cancel := context.WithTimeout(ctx, judgedTime)
	defer cancel()
	j, _, err := r.answersTo(ctx, r.nc, r.query)
	if no := (*failure)(nil); errors.As(err, &no) && j.Query == "" {
		return nil // none begins so; perhaps it is whole after all, and reward knows
	}
	if err == nil {
		r.query = j.Query
	}
	return err
}

// lastAnswer finds the question whose answer is the last of the session.
func (r *rating) lastAnswer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reading)
	defer cancel()
	c, err := r.find(ctx, r.out.Store(conversations), r.session)
	if err != nil {
		return err
	}
	if len(c.Turns) == 0 {
		return fail(exitFailed, "there is no answer in the session "+c.SessionID, r.program()+" session list shows what there is")
	}
	r.session, r.query = c.SessionID, c.Turns[len(c.Turns)-1].QueryID
	return nil
}

// listen makes sure that nothing which becomes of the rating is missed.
func (r *rating) listen(ctx context.Context) error {
	r.messages = make(chan *nats.Msg, 1<<10)
	for _, subject := range []string{subjects.RewardEvent.LiveSubject(), subjects.DeadLetterEvent.LiveSubject()} {
		if _, err := r.nc.ChanSubscribe(subject, r.messages); err != nil {
			return fmt.Errorf("listening to %s: %w", subject, err)
		}
	}
	if err := bus.Ready(ctx, r.nc); err != nil {
		return fmt.Errorf("listening for what becomes of it: %w", err)
	}
	info, err := stream(ctx, r.nc, bus.CoreAPI, events)
	r.from = info.State.Last + 1
	return err
}

// send stores the rating. It is said again under the same id until somebody says that it is stored.
func (r *rating) send(ctx context.Context) error {
	r.body.QueryID = r.query
	data, err := json.Marshal(r.body)
	if err != nil {
		return err
	}
	digest := sha256.Sum256(data)
	r.sum = hex.EncodeToString(digest[:])
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	out, id := r.out.WithIDs(r.session, r.query), r.out.NewID()
	for {
		try, done := context.WithTimeout(ctx, 3*time.Second)
		err := out.PublishOnce(try, subjects.UserFeedback.Spec, data, id)
		done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the rating could not be stored: %w: see conclave doctor", err)
		case <-time.After(again):
		}
	}
}

// became waits for what becomes of the rating. Nothing means that it is stored and no more is known.
func (r *rating) became(ctx context.Context) (*subjects.Reward, error) {
	over := time.NewTimer(r.wait)
	defer over.Stop()
	look := time.After(0)
	for {
		select {
		case <-r.messages: // something new: what it is, and who said it, stands in the event log
			look = time.After(0)
		case <-look:
			got, refusal, err := r.look(ctx)
			if look = nil; err != nil {
				look = time.After(again)
			}
			if got != nil || refusal != nil {
				return got, refusal
			}
		case <-over.C:
			return nil, nil
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// look reads the reward's words since the rating was stored.
func (r *rating) look(ctx context.Context) (got *subjects.Reward, refusal, err error) {
	err = forth(ctx, r.nc, "from."+rewardActor+".>", r.from, 1<<20, func(s said) bool {
		r.from = s.Seq + 1
		if s.Query != r.query {
			return true
		}
		got, refusal = r.counted(s), r.refused(s)
		return got == nil && refusal == nil
	})
	return got, refusal, err
}

// counted is the reward that the rating became, nil when this is another one.
func (r *rating) counted(s said) *subjects.Reward {
	var v subjects.Reward
	switch b := r.body; {
	case s.Subject != subjects.RewardEvent.LiveSubject() || json.Unmarshal(s.Body, &v) != nil:
	case v.QueryID != r.query || v.Source != subjects.RewardUser:
	case b.Thumb != 0 && v.Thumb != b.Thumb || b.Stars != 0 && v.Stars != b.Stars: // of what was said just before
	default:
		return &v
	}
	return nil
}

// refused is why the rating was not taken, nil when this is about something else.
func (r *rating) refused(s said) error {
	var d subjects.DeadLetter
	if _, ok := subjects.Match(subjects.DeadLetterEvent.LiveSubject(), s.Subject); !ok || json.Unmarshal(s.Body, &d) != nil || d.SHA256 != r.sum {
		return nil
	}
	if _, ok := subjects.Match(subjects.UserFeedback.Received, d.Subject); !ok {
		return nil
	}
	return fail(exitFailed, "the rating was refused: "+or(oneLine(d.Reason), d.Code), "name the session with --session, or the question with --query")
}

// tell prints what became of it.
func (r *rating) tell(got *subjects.Reward) error {
	done := rated{Session: r.session, Query: r.query, State: "stored"}
	switch {
	case got != nil:
		done.State, done.Value, done.Count, done.Respondent = "counted", &got.Value, got.Count, got.RespondentID
		done.Session = or(done.Session, got.SessionID)
	case r.wait == 0:
		done.Note = "what it is counted as was not waited for: " + r.program() + " critic show " + r.query
	case r.rewarding():
		done.Note = "nothing was counted: the same was said before, or reward is still at it"
	default:
		done.Note = "reward is not there: it is counted when conclave runs it"
	}
	if r.json {
		return r.document(done)
	}
	if got == nil {
		_, err := fmt.Fprintln(r.stdout, "stored; "+done.Note)
		return err
	}
	text := fmt.Sprintf("counted as %s for %s", signed(got.Value), plain(or(got.RespondentID, "nobody")))
	if got.Value == 0 && r.body.Thumb == 0 && r.body.Stars == 0 {
		text += ": the words are kept, but say neither good nor bad to it; up, down or 1 to 5 with them does"
	}
	if got.Count > 1 {
		text += "; it takes the place of what you said before"
	}
	_, err := fmt.Fprintln(r.stdout, text)
	return err
}

// signed is a reward for people. Nothing has no sign.
func signed(v float64) string {
	if v == 0 {
		return "0"
	}
	return fmt.Sprintf("%+.1f", v)
}

// rewarding reports whether reward is there.
func (r *rating) rewarding() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	pings, _ := gather[micro.Ping](ctx, r.nc, "$SRV.PING."+rewardActor) // who does not answer is not there
	return len(pings) > 0
}
