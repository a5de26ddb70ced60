package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/loop"
	"conclave/subjects"
)

// ask is one question on its way: what the user wants, and what is known of it so far.
type ask struct {
	*app
	session, model         string
	goOn, thinking, noWait bool
	streamJSON, retry      bool
	gradeAsked             bool // --grade-wait stands on the command line
	timeout, gradeWait     time.Duration
	reference              string
	override               subjects.SessionConfig // what is set for this one message, when anything is

	question, query string
	nc              *nats.Conn
	out             actor.Out
	view            view
	messages        chan *nats.Msg    // all that is said about it, in the order in which it came
	missed          chan struct{}     // something may have been missed: look into the event log
	from            uint64            // from where on to look
	calls           map[string]string // tools of the calls that were shown, by call id
	taken           bool              // somebody works on it
	critic          bool              // it has said that it is there
	graded          *subjects.Critique

	// Subjects.
	delta, thought, answers, states, asked, done, critiques, pings string
}

// askCommand asks the assistant and shows the answer as it grows.
func (a *app) askCommand() *cobra.Command {
	q := &ask{app: a}
	cmd := &cobra.Command{
		Use:   "ask [question...]",
		Short: "Ask the assistant",
		Long: `Asks the assistant and prints its answer. The question is the words of the command line; without any, or with "-", it
is read from stdin. With words and something piped in, what was piped in follows the words after a blank line, as
context. In a loop that reads its own stdin, give ask another: conclave ask "$line" < /dev/null.

On a terminal the answer appears as it is written; interim words, tool calls and notes are dim lines on stderr, and
--thinking adds the model's thinking. Elsewhere stdout gets the answer and a newline, nothing else, and stderr only what
is wrong. An answer of the built-in demo model is said to be one: it is no model.

--json prints the whole response as one document at the end: answer, thinking, tool calls, notes, model, tokens.
--stream-json prints JSON lines as it happens, each with a type: delta, thinking, state, tool, note, response, grade,
error.

After the answer ask stays a moment for the critic's grade: on a terminal and with --json or --stream-json up to 2s, or
as --grade-wait says, and no longer than until the grade is there. The answer is printed before that; only --json has it
all in one document. A critic that is not there is not waited for. In a pipe ask waits for a grade only when --grade-wait
is given. The grade of a slow critic is in conclave critic show.

--retry asks the last question again, of the session that ask used last or of --session, and says that another try is
wanted, with what you said of the answer when you did not like it, and with the critic's words where no
stranger's words went into the last answer. --reference says what a good answer says; the critic reads it, never the one
who answers.

--override, --disable-tool and --grant set for this one message what conclave session override sets for a session. They are
set before the question is asked; when the broker does not take them, nothing is asked.

The question is stored before it is worked on. Ctrl-C stops it: the part of the answer that is there is printed, and the
exit code is 1. A second Ctrl-C leaves at once. When --timeout is over, ask leaves with exit code 4; the question stays,
and its answer will be in the session. When something goes wrong, stdout gets what there is of an answer, stderr says
what happened and what to do, and the exit code is not 0: 1 failed or not whole, 3 refused by policy, 4 no model or
nobody there.`,
		Example: `  conclave ask What is the capital of France?
  conclave ask --continue 'And of Spain?'
  git diff | conclave ask 'Write a commit message for this change.'
  conclave ask --json 'What time is it in Tokyo?' | jq -r '.tool_calls[].tool'
  conclave ask --no-wait --session notes 'Summarize what we have.'
  conclave ask --retry
  conclave ask --disable-tool web_fetch 'What do you know about tides?'`,
		RunE: func(cmd *cobra.Command, words []string) error {
			q.gradeAsked = cmd.Flags().Changed("grade-wait")
			if err := errors.Join(q.check(), q.checkRetry(words)); err != nil {
				return err
			}
			if !q.retry {
				var err error
				if q.question, err = a.question(cmd.Context(), words); err != nil {
					return err
				}
			}
			return q.run(cmd.Context())
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVar(&q.session, "session", "", "`id` of the session to ask in; a new one is made when left out")
	f.BoolVar(&q.goOn, "continue", false, "ask in the session that ask used last")
	f.StringVar(&q.model, "model", "", "`name` of the model that shall answer, instead of the assistant's")
	f.DurationVar(&q.timeout, "timeout", 15*time.Minute, "how long to wait for the answer")
	f.BoolVar(&q.thinking, "thinking", false, "show the model's thinking, on stderr")
	f.BoolVar(&q.noWait, "no-wait", false, "print the ids as soon as the question is stored, and leave")
	f.BoolVar(&q.streamJSON, "stream-json", false, "print JSON lines as it happens")
	f.DurationVar(&q.gradeWait, "grade-wait", gradeTime, "how long to stay for the critic's grade after the answer; 0 is not at all")
	f.BoolVar(&q.retry, "retry", false, "ask the last question of the session again")
	f.StringVar(&q.reference, "reference", "", "`text`: what a good answer says, for the critic alone")
	f.StringVar(&q.override.Override, "override", "", "`level` for this message: RELAX asks less often, ALL lets everything pass; both are in the audit")
	f.StringArrayVar(&q.override.Disable, "disable-tool", nil, "`tool` that nobody may use for this message; may be repeated")
	f.StringArrayVar(&q.override.Grant, "grant", nil, "`type:tool` that is given for this message; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("session", a.completeSessions)
	_ = cmd.RegisterFlagCompletionFunc("model", a.completeModels)
	a.completeOverride(cmd)
	return cmd
}

// check refuses what cannot be meant.
func (q *ask) check() error {
	switch {
	case q.session != "" && q.goOn:
		return usage("--session and --continue: name a session, or go on with the last one")
	case q.session != "" && subjects.CheckToken(q.session) != nil:
		return usage("%q cannot be a session: use letters, digits, _ and -", q.session)
	case q.json && q.streamJSON:
		return usage("--json and --stream-json: choose one document at the end, or lines as it happens")
	case q.timeout <= 0:
		return usage("--timeout %s: give it some time, such as 5m", q.timeout)
	case q.gradeWait < 0 || q.gradeWait > time.Hour:
		return usage("--grade-wait %s: between 0s and 1h", q.gradeWait)
	case len(q.reference) > maxReference || !utf8.ValidString(q.reference):
		return usage("--reference: a text of at most %s", size(maxReference))
	}
	if q.model != "" {
		if err := checkModel(q.model); err != nil {
			return err
		}
	}
	return q.checkOverride()
}

// run asks and waits.
func (q *ask) run(ctx context.Context) error {
	if err := q.chooseSession(); err != nil {
		return err
	}
	if err := q.connect(); err != nil {
		return err
	}
	defer q.nc.Close()
	if q.retry {
		if err := q.lastQuestion(ctx); err != nil {
			return err
		}
	}
	q.view = q.chooseView()
	if err := q.listen(ctx); err != nil {
		return err
	}
	if err := q.setOverride(ctx); err != nil {
		return err
	}
	if err := q.send(ctx); err != nil {
		return err
	}
	_ = q.remember() // a convenience for --continue: the question is stored all the same
	if q.noWait {
		return q.tellIDs()
	}
	res, fault := q.wait(ctx)
	if res == nil { // nobody's answer: tell it in the same shape
		return errors.Join(q.view.lost(fault), q.left(fault))
	}
	if err := q.view.end(*res, func() *subjects.Critique { return q.grade(ctx, *res) }); err != nil {
		return err
	}
	return q.verdict(*res)
}

// chooseSession settles on the session, without asking anybody.
func (q *ask) chooseSession() error {
	if !q.goOn {
		if q.session == "" {
			q.session = actor.NewID()
		}
		return nil
	}
	var err error
	q.session, err = q.lastSession(fail(exitFailed, "there is no session to go on with in "+q.home.Data, "ask something without --continue first, or name one with --session"))
	return err
}

// lastSession is the session that ask used last. Where there is none, that is told with the given error.
func (a *app) lastSession(none error) (string, error) {
	b, err := os.ReadFile(a.lastFile())
	if errors.Is(err, os.ErrNotExist) {
		return "", none
	}
	if err != nil {
		return "", fmt.Errorf("finding the last session: %w", err)
	}
	session := strings.TrimSpace(string(b))
	if subjects.CheckToken(session) != nil {
		return "", fail(exitFailed, a.lastFile()+" holds no session", "take the file away, or name a session with --session")
	}
	return session, nil
}

// lastFile is where the session that ask used last is written down.
func (a *app) lastFile() string { return filepath.Join(a.home.Data, "last_session") }

// remember writes the session down. The file appears whole or not at all: another ask may be reading it.
func (q *ask) remember() error {
	f, err := os.CreateTemp(q.home.Data, ".last_session-*") // made with mode 0600
	if err != nil {
		return err
	}
	_, err = f.WriteString(q.session + "\n")
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), q.lastFile())
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

func (q *ask) connect() (err error) {
	q.missed = make(chan struct{}, 1)
	look := func() {
		select {
		case q.missed <- struct{}{}:
		default: // it will look anyway
		}
	}
	q.nc, err = q.dial("user",
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // not our own goodbye
				q.say("the server is gone: waiting for it")
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { look() }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrSlowConsumer) {
				look()
				return
			}
			q.say("%s", oneLine(err.Error()))
		}))
	if err != nil {
		return err
	}
	if q.out, err = actor.NewOut(q.nc); err != nil {
		q.nc.Close()
		return err
	}
	q.query = q.out.NewID()
	q.out = q.out.WithIDs(q.session, q.query)
	return nil
}

// listen subscribes to all that may be said about the question, and returns when the server has it: the answer must not
// come before its listener. Everything goes into one channel, so that it is taken in the order in which it came.
func (q *ask) listen(ctx context.Context) error {
	delta, err := subjects.ResponseDelta.With(q.query)
	if err != nil {
		return err
	}
	thought, err := subjects.ResponseThinking.With(q.query)
	if err != nil {
		return err
	}
	q.delta, q.thought, q.answers, q.states = delta.Name, thought.Name, subjects.ResponseGeneration.LiveSubject(), subjects.AgentStateEvent.LiveSubject()
	q.asked, q.done = subjects.ToolRequestEvent.LiveSubject(), subjects.ToolResultEvent.LiveSubject()
	q.calls = map[string]string{}
	q.messages = make(chan *nats.Msg, 1<<14)
	for _, subject := range []string{q.delta, q.thought, q.answers, q.states, q.asked, q.done, subjects.DeadLetterEvent.LiveSubject(), subjects.ApprovalRequestEvent.LiveSubject(), subjects.ApprovalDecisionEvent.LiveSubject()} {
		if _, err := q.nc.ChanSubscribe(subject, q.messages); err != nil {
			return fmt.Errorf("listening to %s: %w", subject, err)
		}
	}
	if err := q.listenForGrade(); err != nil {
		return err
	}
	if err := bus.Ready(ctx, q.nc); err != nil {
		return fmt.Errorf("listening for the answer: %w", err)
	}
	info, err := stream(ctx, q.nc, bus.CoreAPI, events)
	if err != nil {
		return err
	}
	q.from = info.State.Last + 1
	return nil
}

// send stores the question. A link that breaks before the acknowledgement came leaves open whether it is stored, so it
// is said again under the same id: it is stored once.
func (q *ask) send(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	id, body := q.out.NewID(), subjects.Query{SessionID: q.session, QueryID: q.query, Query: q.question, Model: q.model, Reference: q.reference}
	for {
		// A Ctrl-C now must not leave open whether there is something to stop.
		try, done := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		err := actor.EmitOnce(try, q.out, subjects.QueryReceived, id, body)
		done()
		var f *subjects.Fault
		var refused *jetstream.APIError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &f) && f.Code == subjects.CodeTooLarge:
			return usage("the question is too large (%s): name the file instead of piping it in, or shorten it", f.Text)
		case errors.As(err, &f), errors.As(err, &refused):
			return fmt.Errorf("the question could not be stored: %w: see conclave doctor", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the question could not be stored: %w: see conclave doctor", err)
		case <-time.After(again):
		}
	}
}

// ids are what --no-wait prints.
type ids struct {
	Session string `json:"session_id"`
	Query   string `json:"query_id"`
}

func (q *ask) tellIDs() error {
	switch {
	case q.json:
		return q.document(ids{q.session, q.query})
	case q.streamJSON:
		return q.line(ids{q.session, q.query})
	}
	_, err := fmt.Fprintf(q.stdout, "session %s\nquery %s\n", q.session, q.query)
	return err
}

// program is how to call a command of the same system again.
func (a *app) program() string {
	s := "conclave" + a.again()
	if a.server != "" {
		s += " --server " + shellQuote(a.server)
	}
	return s
}

// where says how to see the session later.
func (q *ask) where() string { return q.program() + " session show " + q.session }

// left explains why nobody answered.
func (q *ask) left(f *subjects.Fault) error {
	switch f.Code {
	case subjects.CodeTimeout:
		return fail(exitAbsent, f.Text, "give it more time with --timeout; its answer will be in "+q.where())
	case subjects.CodeStopped:
		return fail(exitFailed, f.Text, "what comes of it will be in "+q.where())
	}
	return unanswered(f)
}

// earlyEnds are the codes of notes that say why an answer is not whole.
var earlyEnds = []string{loop.NoteStopped, loop.NoteCut, loop.NoteTurnTimeout, loop.NoteTokenBudget, loop.NoteFailed, loop.NoteEmpty}

// verdict is how ask ends after an answer has been printed.
func (q *ask) verdict(res subjects.Response) error {
	if res.Error != nil {
		return unanswered(res.Error)
	}
	if !res.Partial {
		return nil
	}
	why := "it ended early"
	for _, n := range res.Notes {
		if slices.Contains(earlyEnds, n.Code) && n.Text != "" {
			why = n.Text
		}
	}
	return fail(exitFailed, "the answer is not whole: "+why, "go on with "+q.program()+" ask --session "+q.session)
}

// unanswered makes an error with a fix and an exit code of what went wrong with an answer.
func unanswered(f *subjects.Fault) error {
	if f.Denial != nil || f.Code == subjects.CodeDenied {
		return explain("the question", f)
	}
	what := fmt.Sprintf("%s (%s)", f.Text, f.Code)
	switch f.Code {
	case subjects.CodeModelUnreachable:
		return fail(exitAbsent, what, "start Ollama, then ask again; conclave doctor says more")
	case subjects.CodeModelMissing:
		return fail(exitAbsent, what, "fetch it with conclave model pull, or choose from conclave model list")
	case subjects.CodeModelRemote:
		return fail(exitDenied, what, "choose one of this machine from conclave model list, or allow this one by name in models.yaml")
	case subjects.CodeModelKey:
		return fail(exitFailed, what, "correct the key of that server, or choose another model with --model")
	case subjects.CodeModelTooLong:
		return fail(exitFailed, what, "ask for less at once, or begin a new session")
	case subjects.CodeUnavailable:
		return fail(exitAbsent, what, "see conclave doctor for who runs")
	case subjects.CodeTimeout, subjects.CodeExpired, subjects.CodeBusy:
		return fail(exitAbsent, what, "try again")
	case subjects.CodeStopped:
		return fail(exitFailed, what, "ask again")
	case subjects.CodeUnsupported:
		return fail(exitFailed, what, "choose another model; conclave model list shows what each can do")
	case subjects.CodeModelCut, subjects.CodeModelMalformed, subjects.CodeModelNoTools, subjects.CodeModelNoThinking:
		return fail(exitFailed, what, "ask again, or choose another model with --model")
	case subjects.CodeMalformed, subjects.CodeTooLarge:
		return fail(exitFailed, what, "ask in another way")
	}
	return fail(exitFailed, what, "the log of conclave up says more")
}
