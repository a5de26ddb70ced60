package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"conclave/cmd/conclave/internal/chat"
	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/pkg/document"
	"conclave/pkg/loop"
	"conclave/subjects"
)

const (
	maxReference     = 16 << 10 // bytes of --reference
	defaultGradeWait = 2 * time.Second
)

// askFlags are the flags of conclave ask.
type askFlags struct {
	question                client.Question
	questionFile            string                 // of --question
	files                   []string               // of --attach
	override                subjects.SessionConfig // of this message; check puts it into the question
	resume, retry           bool                   // resume is --continue, or --retry without a session
	thinking, noWait, lines bool
	gradeWait               time.Duration // 0 = do not wait
	gradeWaitSet            bool          // --grade-wait was given
	committee               string        // names of personas; [activePersonas] = as configured, "" = ask the assistant
}

// askHelp is the help text of conclave ask.
const askHelp = `Asks the assistant and prints the answer. The question is given on the command line, typed on the
terminal, or read from the file that --question names ("-" for stdin): these are your own words.

Text from a pipe, a file given with --attach and a long paste are UNTRUSTED content that the
question is about, because others may have written in them: the assistant reads them, and a call
that they lead to needs your approval. This also holds for a pipe without a question. --attach reads
text, Markdown, HTML, PDF (with pdftotext) and images (PNG, JPEG and WebP of at most 5 MB, four in a
question); the content decides, not the name. Images need a model that can read them: conclave model
list shows which can, and --model chooses one. They are stored for 30 days, or until the session is
deleted. In a shell loop that reads lines from stdin, give ask an empty stdin: conclave ask "$line"
< /dev/null.

On a terminal the answer is printed as it is generated; interim text, tool calls and notes are dim
lines on stderr, and --thinking adds the model's thinking. While nothing is printed, a line on
stderr shows the phase: queued, loading the model, thinking, calling a tool. In a pipe, stdout has
only the answer and a newline, and stderr only problems, and on a terminal what is treated as
untrusted content.

--json prints the whole response as one document at the end: answer, thinking, tool calls, notes,
model, tokens.
--stream-json prints a JSON line for each event as it happens, with a type: delta, thinking, state,
tool, note, approval, deliberation, response, grade, error.

--committee asks the committee: the active personas of personas.yaml, or the named ones, speak one
after the other, with their own prompts and the tools of memory, and The Self answers. Each persona
is a line on stderr when it begins and when it is done. --rounds has each of them speak more than
once, and --parallel all of a round at the same time. --hint names the kind of question and chooses
the model where models.yaml has none for the role.

After the answer, ask waits up to --grade-wait for the critic's grade; the answer is printed before
that, except with --json. It does not wait when no critic is running, nor in a pipe without --json,
--stream-json or --grade-wait. conclave critic show has the grades that come later.

--retry asks the last question of a session again, and adds your criticism and the critic's. The
critic's feedback is left out when the answer contained external content. --reference gives the
critic an example of a good answer; the assistant does not see it.

--override, --disable-tool and --grant set the policy for this message as conclave session override
does for a session. They are set first; if the broker rejects them, nothing is asked.

The question is stored before it is processed. Ctrl-C cancels it: the partial answer is printed, and
the exit code is 1. A second Ctrl-C exits at once. After --timeout ask exits with 4; the question is
not cancelled, and its answer will be in the session. Other exit codes: 1 failed or partial answer,
3 denied by policy, 4 no model or conclave is not running.`

// askCommand asks the assistant and shows the answer as it grows. What it rejects is in check and readQuestion.
func askCommand(a *cli.App) *cobra.Command {
	o := &askFlags{}
	cmd := &cobra.Command{
		Use:   "ask [question...]",
		Short: "Ask the assistant",
		Long:  askHelp,
		Example: `  conclave ask What is the capital of France?
  conclave ask --continue 'And of Spain?'
  git diff | conclave ask 'Write a commit message for this change.'
  conclave ask --attach letter.pdf 'What do they want, and by when?'
  conclave ask --model gemma3:4b --attach photo.jpg 'Which bird is this?'
  make-question | conclave ask --question -
  conclave ask --json 'What time is it in Tokyo?' | jq -r '.tool_calls[].tool'
  conclave ask --no-wait --session notes 'Summarize what we have.'
  conclave ask --retry
  conclave ask --disable-tool web_fetch 'What do you know about tides?'
  conclave ask --committee 'Should I take the job in Lisbon?'
  conclave ask --committee="inner child,protector" --rounds 2 'Shall I call her?'`,
		RunE: func(cmd *cobra.Command, words []string) error {
			o.gradeWaitSet = cmd.Flags().Changed("grade-wait")
			if err := o.check(a, words); err != nil {
				return err
			}
			if !o.retry {
				if err := o.readQuestion(cmd.Context(), a, words); err != nil {
					return err
				}
			}
			return o.run(cmd.Context(), a)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	o.define(f)
	f.StringVar(&o.committee, "committee", "", "ask the committee; `names` of personas, separated by commas "+
		"(default: the active ones)")
	f.Lookup("committee").NoOptDefVal = activePersonas
	f.IntVar(&o.question.Rounds, "rounds", 0, "how often each persona speaks (default: as configured)")
	f.BoolVar(&o.question.Parallel, "parallel", false, "the personas of a round speak at the same time")
	cli.CompleteFlags(cmd, map[string]cli.Completion{
		"session": a.CompleteSessions(), "model": completeModels(a), "override": cli.Words(overrideLevels[1:]...),
		"disable-tool": a.CompleteTools(), "hint": cli.Words(subjects.Hints...),
	})
	return cmd
}

// define defines the flags, which it writes into o, and their defaults.
func (o *askFlags) define(f *pflag.FlagSet) {
	q := &o.question
	f.StringVar(&o.questionFile, "question", "", "`file` with the question in your own words; - reads stdin")
	f.StringArrayVar(&o.files, "attach", nil, "`file` that the question is about, as untrusted content; repeatable")
	f.StringVar(&q.Session, "session", "", "`id` of the session (default: a new one)")
	f.BoolVar(&o.resume, "continue", false, "ask in the last session")
	f.StringVar(&q.Model, "model", "", "`model` to answer (default: the assistant's)")
	f.StringVar(&q.Hint, "hint", "", "`kind` of question: simple, reasoning or code; selects the model for that kind "+
		"in models.yaml")
	f.DurationVar(&q.Timeout, "timeout", 15*time.Minute, "how long to wait for the answer")
	f.BoolVar(&o.thinking, "thinking", false, "print the model's thinking on stderr")
	f.BoolVar(&o.noWait, "no-wait", false, "print the ids when the question is stored, and exit")
	f.BoolVar(&o.lines, "stream-json", false, "print a JSON line for each event as it happens")
	f.DurationVar(&o.gradeWait, "grade-wait", defaultGradeWait, "how long to wait for the grade after the answer; 0 "+
		"for not at all")
	f.BoolVar(&o.retry, "retry", false, "ask the last question of the session again")
	f.StringVar(&q.Reference, "reference", "", "`text` of a good answer, for the critic only")
	f.StringVar(&o.override.Override, "override", "", "`level` for this message: RELAX asks for fewer approvals, ALL "+
		"allows everything; both are audited")
	f.StringArrayVar(&o.override.Disable, "disable-tool", nil, "`tool` to disable for this message; repeatable")
	f.StringArrayVar(&o.override.Grant, "grant", nil, "`type:tool` to grant for this message; repeatable")
}

// check rejects flags that contradict each other, and invalid ids, models, times and references. words are the question
// on the command line, which --retry excludes. It also sets o.resume for --retry without a session, and the override of
// the question.
func (o *askFlags) check(a *cli.App, words []string) error {
	q := &o.question
	switch {
	case o.retry && len(words) > 0:
		return cli.Usage("--retry asks the last question again: leave out the words, or --retry")
	case o.retry && (o.questionFile != "" || len(o.files) > 0):
		return cli.Usage("--retry asks the last question again: leave out --question and --attach, or --retry")
	case o.questionFile != "" && len(words) > 0:
		return cli.Usage("the question is given twice: leave out the words, or --question")
	case q.Session != "" && o.resume:
		return cli.Usage("--session and --continue exclude each other")
	case a.JSON && o.lines:
		return cli.Usage("--json and --stream-json exclude each other: one document at the end, or lines as things " +
			"happen")
	case o.gradeWait < 0 || o.gradeWait > time.Hour:
		return cli.Usage("--grade-wait %s: between 0s and 1h", o.gradeWait)
	case len(q.Reference) > maxReference || !utf8.ValidString(q.Reference):
		return cli.Usage("--reference: at most %s of text", term.Bytes(maxReference))
	}
	if err := cmp.Or(cli.CheckID("session", q.Session), cli.CheckTimeout(q.Timeout, "5m")); err != nil {
		return err
	}
	if q.Model != "" {
		if err := cli.CheckModel(q.Model); err != nil {
			return err
		}
	}
	o.resume = o.resume || o.retry && q.Session == ""
	if err := o.checkCommittee(); err != nil {
		return err
	}
	return o.checkOverride()
}

// checkOverride checks the override of this message and puts it into the question; without its flags there is none. It
// rejects NONE, which has no effect on one message, and what [checkOverride] rejects. Tools without a level are
// allowed.
func (o *askFlags) checkOverride() error {
	if o.override.Override == "" && len(o.override.Disable)+len(o.override.Grant) == 0 {
		return nil
	}
	o.override.Override = strings.ToUpper(o.override.Override)
	if o.override.Override == subjects.OverrideNone {
		return cli.Usage("--override NONE has no effect on one message: use RELAX or ALL, or conclave session " +
			"override for the session")
	}
	set := o.override
	if set.SessionID = "checked"; set.Override == "" { // tools without a level are allowed here
		set.Override = subjects.OverrideNone
	}
	o.question.Override = &o.override
	return checkOverride(set)
}

// maxQuestion is the most that is read: more would not fit into a message.
var maxQuestion = subjects.QueryReceived.Limit()

// readQuestion fills in the text and the attachments of the question. Words on the command line, a file or stdin named
// by --question, and what is typed on a terminal are the user's own words. Everything else is untrusted content: text
// from a pipe, the files of --attach, and long pastes. It rejects an empty question, and texts beyond the limits. An
// interrupt is an error.
func (o *askFlags) readQuestion(ctx context.Context, a *cli.App, words []string) (err error) {
	q := &o.question
	q.Text = strings.TrimSpace(strings.Join(words, " "))
	_, keyboard := term.Keyboard(a.In)
	switch noWords := len(words) == 0 || len(words) == 1 && words[0] == "-"; {
	case o.questionFile != "":
		q.Text, err = o.readOwnWords(ctx, a)
	case noWords && keyboard:
		err = o.readTyped(ctx, a)
	case noWords:
		q.Text = subjects.PipedQuestion
		err = o.attachStdin(ctx, a)
	case term.IsPiped(a.In):
		err = o.attachStdin(ctx, a)
	}
	for _, path := range o.files {
		if err == nil {
			err = cli.AttachFile(ctx, path, q) // images, and everything else as text
		}
	}
	switch {
	case err != nil:
		return err
	case strings.TrimSpace(q.Text) == "" || q.Text == subjects.PipedQuestion && len(q.Attachments) == 0:
		return cli.Usage("the question is empty: write it after conclave ask, or pipe it in")
	case len(q.Text) > maxQuestion:
		return cli.Usage("the question is larger than %s: attach the text with --attach, or shorten it",
			term.Bytes(int64(maxQuestion)))
	case q.Text == subjects.PipedQuestion:
		a.Say("there is no question of your own, so the text is treated as untrusted content; if it is your "+
			"question, use %s ask --question -", a.Program())
	}
	if err := subjects.CheckAttachments(q.Attachments); err != nil {
		return cli.Usage("%v: ask about a part of the text, or store it with conclave memory import", err)
	}
	return nil
}

// readOwnWords reads the file of --question, or stdin for "-".
func (o *askFlags) readOwnWords(ctx context.Context, a *cli.App) (string, error) {
	if o.questionFile != "-" {
		d, err := document.Read(ctx, o.questionFile, document.Options{MaxBytes: int64(maxQuestion)})
		if err != nil {
			return "", cli.Usage("--question %s: %v", o.questionFile, err)
		}
		return strings.TrimSpace(d.Text), nil
	}
	text, err := a.ReadAll(ctx, maxQuestion, typePrompt)
	return strings.Trim(text, "\r\n"), stoppedError(err)
}

// typePrompt is printed before a question is read from a terminal.
const typePrompt = "type the question and end it with Ctrl-D"

// readTyped reads a question from the terminal; long pastes become attachments.
func (o *askFlags) readTyped(ctx context.Context, a *cli.App) error {
	typed, pasted, err := a.ReadTyped(ctx, maxQuestion, typePrompt)
	if err != nil {
		return stoppedError(err)
	}
	for _, text := range pasted {
		o.attach(subjects.AttachmentPaste, "", text)
	}
	o.question.Text = strings.Trim(typed, "\r\n")
	if strings.TrimSpace(typed) == "" {
		o.question.Text = subjects.PipedQuestion
	}
	return nil
}

// attachStdin attaches the text that is piped in, unless it is blank.
func (o *askFlags) attachStdin(ctx context.Context, a *cli.App) error {
	text, err := a.ReadAll(ctx, subjects.MaxAttachmentBytes, "")
	o.attach(subjects.AttachmentPipe, "", text)
	return stoppedError(err)
}

// attach adds an attachment; a blank text is ignored.
func (o *askFlags) attach(source, name, text string) {
	if strings.TrimSpace(text) != "" {
		o.question.Attachments = append(o.question.Attachments, subjects.Attachment{
			Source: source, Name: name,
			Text: strings.Trim(text, "\r\n"),
		})
	}
}

// stoppedError explains an interrupt while the question was read; other errors and nil are returned unchanged.
func stoppedError(err error) error {
	if errors.Is(err, term.ErrStopped) {
		return cli.Fail(cli.ExitFailed, "stopped before anything was asked", "ask again")
	}
	return err
}

// run asks, shows the answer and waits for the grade; with --no-wait it prints the ids when the question is stored. A
// partial or failed answer is an error, and so is none. The session is saved for --continue as soon as the question is
// stored.
func (o *askFlags) run(ctx context.Context, a *cli.App) (err error) {
	q := &o.question
	if o.resume {
		q.Session, err = a.LastSession(cli.Fail(cli.ExitFailed, "there is no session to continue in "+a.Home.Data,
			"ask without --continue first, or name a session with --session"))
		if err != nil {
			return err
		}
	}
	c, done, err := a.Connect("user", a.ReportLink("", "")...)
	if err != nil {
		return err
	}
	defer done()
	if f := diskFault(a); f != nil {
		return diskError(f)
	}
	if q.Session != "" {
		full, err := c.FindSession(ctx, q.Session)
		if err == nil && len(full) == len(actor.NewID()) {
			q.Session = full // the beginning of another name is a name of its own
		}
	}
	if o.retry {
		if q.Text, err = a.RetryQuestion(ctx, c, q.Session); err != nil {
			return err
		}
	}
	if q.Override != nil {
		warnUnknownTools(a, *q.Override)
	}
	if q.Session == "" {
		q.Session = actor.NewID()
	}
	gradeWait := o.gradeWindow(a.JSON, term.IsTerminal(a.Out))
	q.Graded = gradeWait > 0
	query, err := c.Ask(ctx, *q)
	if err != nil {
		return a.AskError(ctx, q.Session, err)
	}
	defer query.Close()
	_ = a.SaveLastQuestion(query.Session, query.ID) // only for --continue and rate: the question is stored
	ids := view.IDs{Session: query.Session, Query: query.ID}
	if o.noWait {
		return o.printIDs(a, ids)
	}
	v := view.NewAnswerView(view.AnswerOptions{
		Streams: a.Streams, IDs: ids, Program: a.Program(), Question: q.Text, Thinking: o.thinking, JSON: a.JSON,
		Lines: o.lines,
	})
	res, fault := showUpdates(ctx, a, c, query, v, q.Model)
	if fault != nil {
		v.Fail(fault)
		if fault.Code == codeDiskFull {
			return diskError(fault)
		}
		return a.UnansweredError(query.Session, fault)
	}
	v.End(res, func() *subjects.Critique {
		if res.Error != nil {
			return nil
		}
		return query.Grade(ctx, gradeWait)
	})
	return cmp.Or(a.Out.Err, answerError(a, res))
}

// gradeWindow is how long ask waits for the grade after the answer: --grade-wait where it was given, else the default
// on a terminal and for the JSON formats. 0 is not at all: a pipe waits only on request, and --no-wait never does.
func (o *askFlags) gradeWindow(asJSON, onTerminal bool) time.Duration {
	if o.noWait || !o.gradeWaitSet && !asJSON && !o.lines && !onTerminal {
		return 0
	}
	return o.gradeWait
}

// showUpdates shows the updates of a query and sends typed decisions, until the answer or the fault that replaces it:
// the fault is nil when there is an answer. A full disk is such a fault, because no answer comes then. A decision that
// fails or is not accepted is only a warning. query must not be closed meanwhile. model is the requested one, "" for
// the assistant's.
func showUpdates(ctx context.Context, a *cli.App, c *client.Client, query *client.Query, v view.AnswerView,
	model string,
) (subjects.Response, *subjects.Fault) {
	states := make(chan view.ModelState)
	if v.Ticks() != nil {
		polling, stop := context.WithCancel(ctx)
		defer stop()
		go chat.PollModel(polling, c, model, func(m view.ModelState) {
			select {
			case states <- m:
			case <-polling.Done():
			}
		})
	}
	disk := time.NewTicker(diskPoll)
	defer disk.Stop()
	for {
		select {
		case <-disk.C:
			if f := diskFault(a); f != nil {
				return subjects.Response{}, f
			}
		case <-v.Ticks():
			v.Tick()
		case m := <-states:
			v.SetModel(m)
		case u := <-query.Updates():
			switch u := u.(type) {
			case client.Answer:
				return u.Response, nil
			case client.Failure:
				return subjects.Response{}, u.Fault
			}
			v.Show(u)
		case line := <-v.Typed():
			sendDecisions(ctx, a, c, v, v.Decide(line))
		}
	}
}

// sendDecisions sends the user's decisions one by one, up to the first error. After one the calls that still wait are
// asked about again.
func sendDecisions(ctx context.Context, a *cli.App, c *client.Client, v view.AnswerView, decisions []view.Decision) {
	for _, d := range decisions {
		r, err := c.DecideApproval(context.WithoutCancel(ctx), d.ID, d.ApprovalDecision)
		if err != nil {
			v.Warn("approval", term.OneLine(cli.BrokerError("the decision", err).Error()))
			v.AskAgain()
			return
		}
		if !r.Accepted { // an accepted decision comes as an update
			v.Warn("approval", term.OneLine(a.RejectedDecision(r).Error()))
			v.Show(client.ApprovalDecided{ApprovalReply: r})
		}
	}
}

// diskPoll is the time between two looks at the free space while a question waits for its answer.
const diskPoll = time.Second

// codeDiskFull is the code of a fault of [diskFault], which never leaves this program.
const codeDiskFull = "disk_full"

// diskFault is the fault of a full disk under the store of this data folder, nil when there is space. The server stores
// nothing then, so that a question would wait in vain. The disk of a server named by --server is not known.
func diskFault(a *cli.App) *subjects.Fault {
	if a.Server != "" {
		return nil
	}
	free, full := bus.IsDiskFull(a.Home.Store())
	if !full {
		return nil
	}
	return subjects.Faultf(codeDiskFull, "the disk of %s is full (%s free), so nothing can be stored or answered",
		a.Home.Store(), term.Bytes(free))
}

// diskError is the error of a fault of [diskFault].
func diskError(f *subjects.Fault) error {
	return cli.Fail(cli.ExitFailed, f.Text, "free some space, then ask again")
}

// printIDs prints session and query of a stored question, for --no-wait, in the format of the flags.
func (o *askFlags) printIDs(a *cli.App, ids view.IDs) error {
	if o.lines {
		return a.PrintLine(ids)
	}
	return a.Print(ids, nil, func() { fmt.Fprintf(a.Out, "session %s\nquery %s\n", ids.Session, ids.Query) })
}

// partialNotes are the codes of notes that say why an answer is partial.
var partialNotes = []string{
	loop.NoteStopped, loop.NoteCut, loop.NoteTurnTimeout, loop.NoteTokenBudget, loop.NoteFailed,
	loop.NoteEmpty,
}

// answerError is the error of a failed or partial answer, which was printed before; nil for a complete one.
func answerError(a *cli.App, res subjects.Response) error {
	if res.Error != nil {
		return cli.AnswerFault(res.Error)
	}
	if !res.Partial {
		return nil
	}
	why := "it ended early"
	for _, n := range res.Notes {
		if slices.Contains(partialNotes, n.Code) && n.Text != "" {
			why = n.Text
		}
	}
	return cli.Fail(cli.ExitFailed, "the answer is partial: "+why, "continue with "+a.Program()+" ask --session "+
		res.SessionID)
}

// activePersonas is the value of --committee without names.
const activePersonas = "active"

// checkCommittee checks the flags of the committee and the hint, and puts them into the question.
func (o *askFlags) checkCommittee() error {
	q := &o.question
	switch {
	case o.committee == "" && (q.Rounds != 0 || q.Parallel):
		return cli.Usage("--rounds and --parallel are for the committee: add --committee")
	case o.committee != "" && o.retry:
		return cli.Usage("--retry asks the assistant again: leave out --committee, or ask the committee the question " +
			"itself")
	case o.committee != "":
		q.Respondent = subjects.Committee
	}
	if o.committee != activePersonas {
		for name := range strings.SplitSeq(o.committee, ",") {
			if name = strings.TrimSpace(name); name != "" {
				q.Personas = append(q.Personas, name)
			}
		}
	}
	if err := (subjects.Query{Hint: q.Hint, Personas: q.Personas, Rounds: q.Rounds}).CheckOptions(); err != nil {
		return cli.Usage("%v", err)
	}
	return nil
}
