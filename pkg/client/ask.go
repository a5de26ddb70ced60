package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"conclave/pkg/actor"
	"conclave/pkg/attachment"
	"conclave/subjects"
)

// Question is a question to a respondent.
type Question struct {
	// who answers: [subjects.Generator], [subjects.Committee] or [subjects.Orchestrator]; "" = the generator
	Respondent string
	Session    string // "" starts a new one
	Text       string // the user's own words
	// Attachments are untrusted content that the question is about, checked by [subjects.CheckAttachments].
	Attachments []subjects.Attachment
	Images      [][]byte // content of the images among the attachments, stored before the question
	Model       string   // "" = the assistant's
	Hint        string   // complexity, one of [subjects.Hints]; "" = none
	Personas    []string // who deliberates; empty = as configured. This and the next two are for the committee
	Rounds      int      // 0 = as configured
	Parallel    bool     // the personas of a round deliberate at the same time
	Reference   string   // what a good answer says, for the critic only
	// Override is set for this message only, before the question is stored. Its session, query and Once are filled in.
	Override *subjects.SessionConfig
	Timeout  time.Duration // for the answer; 0 = none
	Graded   bool          // prepare for [Query.Grade]
}

// Update is something that happened to a question: one of [Delta], [State], [Note], [ToolCall], [ToolResult],
// [ToolOutput], [ApprovalAsked], [ApprovalDecided], [Deliberation], [Progress], [Waiting], and at the end [Answer] or
// [Failure].
type Update any

type (
	// Delta is a piece of the answer or of the thinking as it is generated. Pieces can be lost.
	Delta struct {
		subjects.Delta
		Thinking bool
	}
	// State is a transition of the agent: the respondent, or an agent below it, as in the subject of the event.
	State struct {
		subjects.AgentState
		Agent string
	}
	// Note is a remark of the agent about the answer.
	Note struct{ subjects.Note }
	// ToolCall is a tool call of the assistant.
	ToolCall struct{ subjects.ToolRequest }
	// ToolResult is the result of a tool call.
	ToolResult struct{ subjects.ToolResult }
	// ToolOutput is live output of a running tool. Pieces can be lost.
	ToolOutput struct{ subjects.ToolOutput }
	// ApprovalAsked means that a call waits for the user's decision.
	ApprovalAsked struct{ subjects.ApprovalRequest }
	// ApprovalDecided means that such a call has been decided.
	ApprovalDecided struct{ subjects.ApprovalReply }
	// Deliberation is a persona of the committee that begins or has ended its contribution.
	Deliberation struct{ subjects.Deliberation }
	// Waiting means that no generator has started on the question yet.
	Waiting struct {
		Missing []string // actors that do not run; empty = it is queued behind other questions
	}
	// Answer is the last update of a question that was answered, whole or in part.
	Answer struct{ subjects.Response }
	// Failure is the last update of a question without an answer. After a timeout the question stays stored.
	Failure struct{ *subjects.Fault }
)

const (
	unseenAfter = 3 * time.Second // until [Waiting] is sent
	cancelGrace = 5 * time.Second // for the partial answer of a cancelled question
	// the same for a question that no generator has started, or that was given up
	untakenGrace   = time.Second
	deltaGrace     = 500 * time.Millisecond // for the live copy of an answer that the log already has
	stateGrace     = 2 * time.Second        // for the event that a model call began, of which text has come
	lookInterval   = 5 * time.Second        // between reads of the log without a hint: a hint can be lost
	criticPresence = 200 * time.Millisecond // for a critic to answer a ping after the answer
)

// Errors of [Client.Ask].
var (
	// ErrOverride means that the broker confirmed a different override than the one that was set; nothing was asked.
	ErrOverride = errors.New("the broker confirmed a different override")
	// ErrOverrideNotSet means that the request to the broker failed; nothing was asked. It is joined with the cause.
	ErrOverrideNotSet = errors.New("setting the override")
	// ErrNotStored means that the stream did not acknowledge the question, joined with the cause. After a timeout the
	// question may be stored nevertheless.
	ErrNotStored = errors.New("storing the question")
)

// Query is a stored question that is followed to its answer.
type Query struct {
	ID, Session string
	respondent  string // the account whose response is the answer

	c        *Client
	out      actor.Out
	updates  chan Update
	closed   chan struct{}
	close    sync.Once
	messages chan *nats.Msg
	status   chan nats.Status
	detach   func()

	events  *Cursor           // in the event log
	stop    func()            // ends the reading of the log
	calls   map[string]string // tool by call id, of the calls that were reported
	started bool              // a generator works on it
	critic  bool              // a critic that grades has answered the ping
	step    int               // the last model call that the log says began
	early   []Delta           // of a later model call: they wait for what the log has before it
	grade   *subjects.Critique

	deltaSubject, thinkingSubject, pingInbox string
}

// Ask sets the override, stores the question and follows it in the background. The subscriptions hold before the
// question is stored, so no update is missed. [Query.Updates] reports what happens; the caller must read it and call
// [Query.Close]. The text is not checked here. On an error nothing is followed, and nothing was asked, except with
// [ErrNotStored] after a timeout.
//
// The end of ctx cancels the question: the generator stops, and its partial answer is still delivered. To leave a
// question unattended, call Close. Question.Timeout only ends the following, with a [Failure].
func (c *Client) Ask(ctx context.Context, question Question) (*Query, error) {
	q := &Query{
		ID: c.out.NewID(), Session: question.Session, respondent: cmp.Or(question.Respondent, subjects.Generator), c: c,
		calls:   map[string]string{},
		updates: make(chan Update), closed: make(chan struct{}), messages: make(chan *nats.Msg, 1<<14),
	}
	if q.Session == "" {
		q.Session = c.out.NewID()
	}
	q.out = c.out.WithIDs(q.Session, q.ID)
	if err := q.subscribe(ctx, question.Graded); err != nil {
		return nil, err
	}
	err := q.setOverride(ctx, question.Override)
	if err == nil {
		err = c.StoreImages(ctx, q.Session, question.Images)
	}
	if err == nil {
		err = c.StoreQuestion(ctx, q.respondent, subjects.Query{
			SessionID: q.Session, QueryID: q.ID, Query: question.Text, Attachments: question.Attachments,
			Model: question.Model, Hint: question.Hint,
			Personas: question.Personas, Rounds: question.Rounds, Parallel: question.Parallel,
			Reference: question.Reference,
		})
	}
	if err != nil {
		q.Close()
		return nil, err
	}
	go func() {
		defer close(q.updates)
		if end := q.awaitEnd(ctx, question.Timeout); end != nil {
			q.send(end)
		}
	}()
	return q, nil
}

// Updates delivers what happens, in order. It is closed after an [Answer] or a [Failure].
func (q *Query) Updates() <-chan Update { return q.updates }

// Close stops following and ends the subscriptions. The question is not cancelled: its answer is still stored. Further
// calls do nothing.
func (q *Query) Close() {
	q.close.Do(func() {
		close(q.closed)
		q.detach()
		q.stop()
		q.c.nc.RemoveStatusListener(q.status)
	})
}

// Wait discards all updates but the last and returns the answer, which may be partial or carry an error of its own. It
// blocks until the question has ended. Without an answer the error is a [*subjects.Fault], or a plain one after
// [Query.Close].
func (q *Query) Wait() (subjects.Response, error) {
	for u := range q.updates {
		switch u := u.(type) {
		case Answer:
			return u.Response, nil
		case Failure:
			return subjects.Response{}, u.Fault
		}
	}
	return subjects.Response{}, errors.New("the question is no longer followed")
}

// subscribe subscribes to the live messages that can concern the question and follows the event log from its present
// end. With graded it also pings the critic; its reply arrives on q.pingInbox. It fails for a client without a
// connection. After an error no subscription is left.
func (q *Query) subscribe(ctx context.Context, graded bool) (err error) {
	if q.c.nc == nil {
		return errNoConnection
	}
	delta, err := subjects.ResponseDelta.With(q.ID)
	if err != nil {
		return err
	}
	thinking, err := subjects.ResponseThinking.With(q.ID)
	if err != nil {
		return err
	}
	q.deltaSubject, q.thinkingSubject = delta.Name, thinking.Name
	on := []string{
		delta.Name, thinking.Name, subjects.ResponseGeneration.LiveSubject(), subjects.AgentStateEvent.LiveSubject(),
		subjects.ToolRequestEvent.LiveSubject(),
		subjects.ToolResultEvent.LiveSubject(), subjects.ToolOutputEvent.Name, subjects.DeadLetterEvent.LiveSubject(),
		subjects.ApprovalRequestEvent.LiveSubject(), subjects.ApprovalDecisionEvent.LiveSubject(),
		subjects.TaskProgressEvent.LiveSubject(),
		subjects.DeliberationEvent.LiveSubject(),
	}
	if graded {
		q.pingInbox = q.c.nc.NewInbox()
		on = append(on, subjects.CritiqueResult.LiveSubject(), q.pingInbox)
	}
	if q.detach, err = q.c.subscribe(ctx, q.messages, on...); err != nil {
		return err
	}
	if q.events, q.stop, err = q.c.openFeed(ctx); err != nil {
		q.detach()
		return err
	}
	q.status = q.c.nc.StatusChanged(nats.CONNECTED)
	if graded {
		err = q.c.nc.PublishRequest("$SRV.PING."+accountCritic, q.pingInbox, nil)
	}
	if err != nil {
		q.Close()
	}
	return err
}

// setOverride sets the override for this query only; nil sets nothing. It fails with [ErrOverrideNotSet] when the
// request fails, and with [ErrOverride] when the broker confirms another session, query or level, or fewer disabled or
// granted tools: a user who disables a tool must not get an answer that used it.
func (q *Query) setOverride(ctx context.Context, override *subjects.SessionConfig) error {
	if override == nil {
		return nil
	}
	set := *override
	set.SessionID, set.QueryID, set.Once = q.Session, q.ID, true
	holds, err := q.c.SetSession(ctx, set)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrOverrideNotSet, err)
	}
	all := func(in, of []string) bool {
		return !slices.ContainsFunc(of, func(s string) bool { return !slices.Contains(in, s) })
	}
	if holds.SessionID != set.SessionID || !holds.Once || holds.QueryID != set.QueryID ||
		set.Override != "" && holds.Override != set.Override || !all(holds.Disable, set.Disable) ||
		!all(holds.Grant, set.Grant) {
		return ErrOverride
	}
	return nil
}

// StoreQuestion publishes a question to a respondent, whose ids must be set, until the stream acknowledges it, with the
// attempts and limits of [Client.publishStored]. Every error wraps [ErrNotStored].
func (c *Client) StoreQuestion(ctx context.Context, respondent string, body subjects.Query) error {
	topic, ok := subjects.QuestionTopic(respondent)
	if !ok {
		return fmt.Errorf("%w: %q does not answer questions", ErrNotStored, respondent)
	}
	if err := body.CheckSession(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotStored, err)
	}
	out := c.out.WithIDs(body.SessionID, body.QueryID)
	err := c.publishStored(ctx, func(ctx context.Context, id string) error {
		return actor.EmitOnce(ctx, out, topic, id, body)
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotStored, err)
	}
	return nil
}

// StoreImages stores images that a question of the session, a valid token, refers to. It must be called before the
// question is stored. Every error wraps [ErrNotStored]. Images that are stored already are kept.
func (c *Client) StoreImages(ctx context.Context, session string, images [][]byte) error {
	for _, data := range images {
		if err := attachment.Store(ctx, c.out, session, data); err != nil {
			return fmt.Errorf("%w: %w", ErrNotStored, err)
		}
	}
	return nil
}

// CancelQuery asks the generator to stop a question and does not wait for that: a partial answer comes as an event. nil
// means that the request was stored, also when no such question runs. It has the attempts and limits of
// [Client.publishStored].
func (c *Client) CancelQuery(ctx context.Context, session, query, reason string) error {
	topic, err := subjects.QueryCancel.With(query)
	if err != nil {
		return err
	}
	out := c.out.WithIDs(session, query)
	return c.publishStored(ctx, func(ctx context.Context, id string) error {
		return actor.EmitOnce(ctx, out, topic, id, subjects.Cancel{Reason: reason})
	})
}

// send delivers an update. It waits for the reader, and drops the update once the query is closed.
func (q *Query) send(u Update) {
	select {
	case q.updates <- u:
	case <-q.closed:
	}
}

// ending is what is known about the end of a question while it is followed.
type ending struct {
	answer   *subjects.Response // read from the log, not yet delivered
	settled  <-chan time.Time   // when the answer is delivered without its live copy
	liveCopy bool               // the live copy of the answer has arrived, and with it every delta
	failure  *subjects.Fault    // delivered at giveUp unless an answer comes first
	giveUp   <-chan time.Time
	late     <-chan time.Time // when early deltas are delivered without the event before them
}

// awaitEnd sends updates until the question has ended and returns the [Answer] or [Failure]; nil when the query was
// closed before that. A timeout of 0 is none; when it passes, the question is not cancelled. The end of ctx cancels it,
// and awaitEnd then waits up to [cancelGrace] for the partial answer.
//
// A live copy of a stored event is only a hint that there is something new: its headers are its publisher's. Who
// published it, and in which order, is read from the event log. An answer in the log waits for its live copy, which
// comes after the last delta, so that deltas precede it; after [deltaGrace] it is delivered without. Deltas of a model
// call wait up to [stateGrace] for the event that it began, so that the tool calls before it precede them.
func (q *Query) awaitEnd(ctx context.Context, timeout time.Duration) Update {
	var (
		end     ending
		work    = context.WithoutCancel(ctx)
		done    = ctx.Done()
		unseen  = time.After(unseenAfter)
		missing = make(chan Waiting, 1)
		expired <-chan time.Time
	)
	if timeout > 0 {
		expired = time.After(timeout)
	}
	for {
		more := q.readEvents(work, &end)
		if end.answer != nil && end.liveCopy {
			q.sendEarly(&end)
			return Answer{*end.answer}
		}
		select {
		case <-more:
		case m := <-q.messages:
			q.receive(m, &end)
		case <-end.late:
			q.sendEarly(&end)
		case <-q.status:
			q.events.Feed.WakeUp()
		case <-end.settled:
			end.liveCopy = true // it is lost, or late: the answer is delivered without it
		case <-unseen:
			if !q.started {
				go func() { missing <- Waiting{q.c.missingActors(ctx, q.respondent)} }()
			}
		case w := <-missing:
			if !q.started && done != nil {
				q.send(w)
			}
		case <-done:
			done = nil
			end.failure, end.giveUp = q.cancel(work)
		case <-end.giveUp:
			return Failure{end.failure}
		case <-expired:
			return Failure{subjects.Faultf(subjects.CodeTimeout, "no answer within %s", timeout)}
		case <-q.closed:
			return nil
		}
	}
}

// readEvents reads the events that the log has since the last call, without waiting for more, reports those of this
// query and notes an answer or a failure in end. It stops at the answer. Only the first failure is kept, and it is
// delivered only when no answer follows within [untakenGrace]. more is closed when there may be another event; a failed
// read is retried then.
func (q *Query) readEvents(ctx context.Context, end *ending) (more <-chan struct{}) {
	for end.answer == nil {
		e, ok, changed, _ := q.events.Next(ctx)
		if !ok {
			return changed
		}
		if e.Query != q.ID {
			continue
		}
		var fault *subjects.Fault
		switch out, err := ReadOutcome(e, q.respondent); {
		case err != nil:
			fault = subjects.Faultf(subjects.CodeMalformed, "%v", err)
		case out == nil:
			if u := q.readUpdate(e); u != nil {
				q.send(u)
			}
			if len(q.early) > 0 && q.early[0].Step <= q.step {
				q.sendEarly(end)
			}
		case out.Response != nil:
			end.answer, end.settled = out.Response, time.After(deltaGrace)
		default:
			fault = subjects.Faultf(out.Dead.Code, "the question was given up by %s: %s", out.Dead.Actor,
				out.Dead.Reason)
		}
		if fault != nil {
			q.started = true
			if end.failure == nil {
				end.failure, end.giveUp = fault, time.After(untakenGrace)
			}
		}
	}
	return nil
}

// sendEarly sends the deltas that waited for the log.
func (q *Query) sendEarly(end *ending) {
	for _, d := range q.early {
		q.step = max(q.step, d.Step)
		q.send(d)
	}
	q.early, end.late = nil, nil
}

// receive handles one live message: it sends a delta or live output of a tool as an update, notes the critic's reply to
// the ping, and has the log read for the copy of a stored event of this query. Every other message is ignored.
func (q *Query) receive(m *nats.Msg, end *ending) {
	if q.receivePing(m) {
		return
	}
	e, ok := decodeLive(m)
	output, _, isToolOutput := DecodeAs(e, subjects.ToolOutputEvent)
	switch {
	case !ok:
	case e.Subject == q.deltaSubject || e.Subject == q.thinkingSubject:
		var d subjects.Delta
		if e.Decode(&d) {
			q.started = true
			q.early = append(q.early, Delta{d, e.Subject == q.thinkingSubject})
			if q.early[0].Step <= q.step {
				q.sendEarly(end)
			} else if end.late == nil {
				end.late = time.After(stateGrace)
			}
		}
	case e.Query == q.ID && isToolOutput:
		q.send(ToolOutput{output})
	case e.Query == q.ID && isStored(e.Subject):
		q.events.Feed.WakeUp()
		if e.Subject == subjects.ResponseGeneration.LiveSubject() && e.From == q.respondent {
			end.liveCopy = true
		}
	}
}

// missingActors pings all actors and names which of router and respondent did not answer, in this order; nil when both
// did. Errors of the ping are ignored: replies that came before one count, and without any both are named. It waits for
// at most a second for the first reply; see [actor.Discover].
func (c *Client) missingActors(ctx context.Context, respondent string) (missing []string) {
	pings, _ := c.Ping(ctx, "") // an actor that does not answer is missing
	for _, name := range []string{subjects.Router, respondent} {
		if !slices.ContainsFunc(pings, func(p micro.Ping) bool { return p.Name == name }) {
			missing = append(missing, name)
		}
	}
	return missing
}

// cancel publishes the cancellation. It returns the failure to deliver, and when to deliver it unless an answer comes
// first: at once when the cancellation could not be published, after [untakenGrace] when no generator has started, else
// after [cancelGrace].
func (q *Query) cancel(ctx context.Context) (*subjects.Fault, <-chan time.Time) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // no retry after that: the user waits
	defer cancel()
	err := q.c.CancelQuery(ctx, q.Session, q.ID, "stopped by the user")
	switch {
	case err != nil:
		return subjects.Faultf(subjects.CodeStopped, "stopped waiting, but the assistant could not be told and "+
			"continues"), time.After(0)
	case !q.started:
		return subjects.Faultf(subjects.CodeStopped, "stopped waiting; the question is stored and not started yet"),
			time.After(untakenGrace)
	}
	return subjects.Faultf(subjects.CodeStopped, "stopped without a partial answer"), time.After(cancelGrace)
}

// Outcome is the end of a question: the respondent's answer, or the dead letter after which none comes.
type Outcome struct {
	Response *subjects.Response
	Dead     *subjects.DeadLetter // Actor is the account that published it
	From     string               // the account that answered or gave up
	Seq      uint64               // of the event
}

// ReadOutcome reads the outcome of a question from a stored event, of a question to one of respondents. It is nil for
// any other event, also for the answer of another account, an answer whose body has another query id than the headers,
// and a dead letter that cannot be decoded. An answer that cannot be decoded is an error. e must come from the event
// log, where From is authoritative.
func ReadOutcome(e Event, respondents ...string) (*Outcome, error) {
	if e.Subject == subjects.ResponseGeneration.LiveSubject() && slices.Contains(respondents, e.From) {
		var r subjects.Response
		switch {
		case !e.Decode(&r):
			return nil, fmt.Errorf("the answer cannot be decoded; it is event %d", e.Seq)
		case r.QueryID != e.Query:
			return nil, nil
		}
		return &Outcome{Response: &r, From: e.From, Seq: e.Seq}, nil
	}
	if d, _, ok := DecodeAs(e, subjects.DeadLetterEvent); ok && subjects.IsFinalFailure(e.From, d) {
		d.Actor = e.From
		return &Outcome{Dead: &d, From: e.From, Seq: e.Seq}, nil
	}
	return nil, nil
}

// readUpdate returns the update of a stored event of this query, nil for none: a state or note of the respondent, a
// tool call, its result, progress, an approval or its decision. A grade of the answer is kept in q.grade. None is for
// bodies that cannot be decoded, calls of other callers, results of calls that were not reported, and the note that a
// grade has come, because the grade is reported. The caller has compared the query id.
func (q *Query) readUpdate(e Event) Update {
	if s, words, ok := DecodeAs(e, subjects.AgentStateEvent); ok && words[0] == q.respondent {
		q.started = true
		switch s.Code {
		case "":
			q.step = max(q.step, s.Step)
			return State{s, strings.Join(words, ".")}
		case subjects.NoteGraded:
			return nil
		}
		return Note{subjects.Note{Code: s.Code, Text: s.Words}}
	}
	if d, _, ok := DecodeAs(e, subjects.DeliberationEvent); ok && e.From == q.respondent {
		q.started = true
		return Deliberation{d}
	}
	if r, _, ok := DecodeAs(e, subjects.ToolRequestEvent); ok {
		// Another caller may use a tool under the id of this query; that is not the assistant's call.
		if caller, _, _ := strings.Cut(r.Caller, "."); caller == q.respondent {
			q.calls[r.CallID] = r.Tool
			return ToolCall{r}
		}
	}
	if r, _, ok := DecodeAs(e, subjects.ToolResultEvent); ok && q.calls[r.CallID] == r.Tool {
		return ToolResult{r}
	}
	if p, _, ok := DecodeAs(e, subjects.TaskProgressEvent); ok && p.TaskID == q.ID && e.From == q.respondent {
		q.started = true
		return Progress{p}
	}
	if c := ReadGrade(e); c != nil && c.QueryID == q.ID && c.RespondentID == q.respondent {
		q.grade = c
	}
	if asked, decided := ReadApproval(e); asked != nil {
		q.started = true
		return ApprovalAsked{*asked}
	} else if decided != nil {
		return ApprovalDecided{*decided}
	}
	return nil
}

// receivePing reports whether m is a reply to the ping of the critic, and sets q.critic when that critic grades. One
// that is switched off replies too, but offers no tool.
func (q *Query) receivePing(m *nats.Msg) bool {
	if q.pingInbox == "" || m.Subject != q.pingInbox {
		return false
	}
	if p, ok := decodePing(m.Data); ok && p.Name == accountCritic && p.Metadata["definition.compare_answers"] != "" {
		q.critic = true
	}
	return true
}

// Grade waits for the critic's grade of the answer, up to within, and returns it. nil means none: the time has passed,
// ctx ended, no critic that grades replied within [criticPresence], within is not positive, or the question was asked
// without Graded. It must be called after the [Answer] was received and before [Query.Close].
func (q *Query) Grade(ctx context.Context, within time.Duration) *subjects.Critique {
	if q.pingInbox == "" || within <= 0 || ctx.Err() != nil {
		return nil
	}
	expired := time.After(within)
	present := time.After(min(criticPresence, within))
	for q.grade == nil {
		e, ok, more, _ := q.events.Next(ctx)
		if ok {
			if e.Query == q.ID {
				q.readUpdate(e)
			}
			continue
		}
		select {
		case <-more:
		case m := <-q.messages:
			if !q.receivePing(m) {
				q.events.Feed.WakeUp()
			}
		case <-q.status:
			q.events.Feed.WakeUp()
		case <-present:
			if !q.critic {
				return nil
			}
		case <-expired:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	return q.grade
}

// ReadGrade decodes a stored grade. It is nil for any other event, a grade that another account than the critic's
// published, and a body that cannot be decoded. e must come from the event log, where From is authoritative.
func ReadGrade(e Event) *subjects.Critique {
	if c, _, ok := DecodeAs(e, subjects.CritiqueResult); ok && e.From == accountCritic {
		return &c
	}
	return nil
}
