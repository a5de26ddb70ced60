package story

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

// System is a running Conclave as a story uses it, with the user's account.
type System interface {
	// Subscribe returns the live events of the user, with tokens. The channel closes when ctx ends. Live events can be
	// lost: they trigger reads and actions, and never decide whether a story passes.
	Subscribe(ctx context.Context) (<-chan Event, error)
	// Ask sends a question and returns when it is stored.
	Ask(ctx context.Context, respondent string, q subjects.Query) error
	// StoreImages stores the images that a question of the session refers to, before it is asked.
	StoreImages(ctx context.Context, session string, images [][]byte) error
	// Spawn creates a child agent of who. A denial is a [subjects.Fault].
	Spawn(ctx context.Context, who subjects.Caller, c Child, session, query string) (child string, err error)
	// CallTool calls a tool as an agent, for a query.
	CallTool(ctx context.Context, who subjects.Caller, r Request, session, query string) (subjects.ToolResult, error)
	// SetOverride sets the override of a session.
	SetOverride(ctx context.Context, session string, o Override) error
	// ChangeMemory changes memory as the user. A rejection is a [subjects.Fault].
	ChangeMemory(ctx context.Context, m Memory) error
	// SendFeedback stores the user's rating of an answer.
	SendFeedback(ctx context.Context, session string, f subjects.Feedback) error
	// DecideApproval decides an approval request as the user.
	DecideApproval(ctx context.Context, id string, d subjects.ApprovalDecision) error
	// CancelQuery cancels a query.
	CancelQuery(ctx context.Context, query string) error
	// KillActor ends an actor without a drain, as kill -9 would. Its supervisor restarts it.
	KillActor(ctx context.Context, actor string) error
	// ReadEvents returns the events after a sequence in order of time, with the questions among them.
	ReadEvents(ctx context.Context, after uint64) ([]Event, error)
	// ScriptReport reports the use of the script. It is empty with a real model.
	ScriptReport() ScriptReport
	// PageRequests returns the number of requests by page URL.
	PageRequests() map[string]int
}

// ScriptReport is the use of the script.
type ScriptReport struct {
	Requests   []string                // every request, on one line
	Mismatches []scriptserver.Mismatch // requests that did not match the script
	Unused     []scriptserver.Place    // exchanges without a request
}

// Options change how a story runs; zero values are the defaults.
type Options struct {
	Live          bool          // a real model: the script and the expectations marked scripted_only are not used
	AnswerTimeout time.Duration // of an answer; 0 = 20 s, with a real model 10 min
	SettleTimeout time.Duration // of events after the last answer; 0 = 3 s, with a real model 3 min: it may grade long
}

// withDefaults returns o with timeouts of 0 or less replaced: 20 seconds for an answer and 3 to settle, 10 and 3
// minutes in a live run.
func (o Options) withDefaults() Options {
	if o.AnswerTimeout <= 0 {
		o.AnswerTimeout = 20 * time.Second
		if o.Live {
			o.AnswerTimeout = 10 * time.Minute
		}
	}
	if o.SettleTimeout <= 0 {
		o.SettleTimeout = 3 * time.Second
		if o.Live {
			o.SettleTimeout = 3 * time.Minute
		}
	}
	return o
}

// Run runs the turns of a story in order, waits for the events that follow, and checks the expectations. Errors are
// failures of the result. A live run skips a story that is only for scripted models; w may be nil then.
func Run(ctx context.Context, s *Story, w System, o Options) Result {
	r := &runner{story: s, system: w, opts: o.withDefaults(), session: "story-" + newID()}
	r.result = Result{Story: s.ID, File: s.file, Title: s.Title}
	if o.Live && s.ScriptedOnly {
		return Skipped(s, "it needs a scripted model")
	}
	start := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := r.runTurns(ctx)
	if err != nil {
		// Mismatches with the script come first: they explain the rest.
		c := checker{story: s, script: ScriptReport{Mismatches: w.ScriptReport().Mismatches}}
		c.checkScript()
		r.result.Failures = c.failures
		path := ""
		if at := (*stepError)(nil); errors.As(err, &at) {
			path = at.path
		}
		r.result.fail(s, path, "%v", err)
		r.result.Events = r.events
	}
	r.result.Took = time.Since(start)
	r.result.ModelRequests = w.ScriptReport().Requests
	return r.result
}

// runner is the state of a running story.
type runner struct {
	story   *Story
	system  System
	opts    Options
	session string
	queries []string // ids of the questions by turn, fixed at the start
	live    <-chan Event
	first   uint64 // last sequence of the event log before the story
	turns   []turnState
	events  []Event
	result  Result
}

// turnState is the outcome of a turn.
type turnState struct {
	n           int // from 0
	query       string
	asksNothing bool               // no question and no request
	isRequest   bool               // a request in place of a question
	decided     map[string]bool    // approval requests that were handled, by id
	response    *subjects.Response // nil = no answer
	deadLetter  *subjects.DeadLetter
}

// pollInterval is the time between reads of the event log without live events, which can be lost.
const pollInterval = 200 * time.Millisecond

// runTurns runs all turns and checks the expectations. It stops at a turn without an answer, which the checks report.
// An error means that a turn could not be run; nothing is checked then.
func (r *runner) runTurns(ctx context.Context) error {
	before, err := r.system.ReadEvents(ctx, 0)
	if err != nil {
		return err
	}
	r.first = lastSeq(before)
	if r.live, err = r.system.Subscribe(ctx); err != nil {
		return err
	}
	for range r.story.Turns {
		r.queries = append(r.queries, newID())
	}
	for i := range r.story.Turns {
		if err := r.runTurn(ctx, i); err != nil {
			return err
		}
		if r.turns[i].response == nil && !r.turns[i].asksNothing {
			break // later questions depend on the answer
		}
	}
	if err := r.waitSettled(ctx); err != nil {
		return err
	}
	c := checker{
		story: r.story, live: r.opts.Live, events: r.events, turns: r.turns, script: r.system.ScriptReport(),
		pages: r.system.PageRequests(),
	}
	r.result.Events, r.result.Failures = r.events, c.checkAll()
	return nil
}

func lastSeq(events []Event) (seq uint64) {
	for _, e := range events {
		seq = max(seq, e.Seq)
	}
	return seq
}

// sessionOf returns the session of a turn.
func (r *runner) sessionOf(i int) string {
	if s := r.story.Turns[i].Session; s != "" {
		return s
	}
	return r.session
}

// runTurn runs turn i and waits until its question is answered or has failed for good, AnswerTimeout at most. A missing
// answer is no error here. Turns must be run in order.
func (r *runner) runTurn(ctx context.Context, i int) error {
	t := r.story.Turns[i]
	query, session := r.queries[i], r.sessionOf(i)
	r.turns = append(r.turns, turnState{n: i, query: query, asksNothing: t.asksNothing()})
	if err := r.waitForEvents(ctx, i); err != nil {
		return err
	}
	if err := r.prepareTurn(ctx, i); err != nil || t.asksNothing() {
		return err
	}
	if t.Request != nil {
		return r.runRequest(ctx, i, *t.Request, session)
	}
	attached, images, err := t.attached(ctx)
	if err == nil && len(images) > 0 {
		err = r.system.StoreImages(ctx, session, images)
	}
	if err == nil {
		err = r.system.Ask(ctx, t.respondent(), subjects.Query{
			SessionID: session, QueryID: query, Query: t.Query, Attachments: attached, Reference: t.Reference,
			Personas: t.Personas,
		})
	}
	if err != nil {
		return fmt.Errorf("asking the question: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.opts.AnswerTimeout)
	defer cancel()
	w := answerWait{runner: r, turn: i, query: query, pending: r.turnActions(t, query)}
	return w.run(ctx)
}

// answerWait waits for the answer of one turn and executes its actions meanwhile.
type answerWait struct {
	*runner
	turn     int
	query    string
	pending  []turnAction    // not executed yet, in order
	said     strings.Builder // the answer so far
	ended    time.Time       // when the event log first had an answer or a dead letter
	answered bool            // the answer was received live, so that no earlier live event is outstanding
}

// run returns when the turn has ended, or after the deadline of ctx; the checks report a missing answer. It fails when
// an approval or action of the turn did not happen, when reading events fails, and when ctx is cancelled.
func (w *answerWait) run(ctx context.Context) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case e := <-w.live:
			isAnswer, err := w.handleLive(ctx, e)
			if err != nil {
				return err
			}
			if !isAnswer {
				continue
			}
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return errors.Join(w.readEvents(context.WithoutCancel(ctx)), w.checkActionsDone(w.turn, w.pending))
			}
			return ctx.Err()
		}
		if err := w.readEvents(ctx); err != nil {
			return err
		}
		for _, e := range w.events { // a live approval request may have been lost
			if err := w.decideApproval(ctx, w.turn, e); err != nil {
				return err
			}
		}
		if w.hasEnded() {
			return w.checkActionsDone(w.turn, w.pending)
		}
	}
}

// handleLive handles a live event of the turn: approvals, the next action when its moment is reached, and the answer.
// Events of other queries are ignored, except page requests.
func (w *answerWait) handleLive(ctx context.Context, e Event) (isAnswer bool, err error) {
	if e.Query != w.query && e.Subject != PageRequested {
		return false, nil
	}
	if err := w.decideApproval(ctx, w.turn, e); err != nil {
		return false, err
	}
	if _, ok := subjects.Match(subjects.ResponseDelta.Name, e.Subject); ok {
		text, _ := e.Field("text")
		w.said.WriteString(text)
	}
	if len(w.pending) > 0 && w.pending[0].moment.isReached(e, w.said.String()) {
		if err := w.pending[0].do(ctx); err != nil {
			return false, err
		}
		w.pending = w.pending[1:]
	}
	isAnswer = e.Subject == subjects.ResponseGeneration.Name
	w.answered = w.answered || isAnswer
	return isAnswer, nil
}

// hasEnded reports whether the turn has ended. A dead letter ends it after the settle timeout, because a retry may
// still answer. An answer ends it at once, unless an action is pending whose moment may be in a live event that is
// still outstanding: the event log can be ahead of live events.
func (w *answerWait) hasEnded() bool {
	state := w.turns[w.turn]
	if w.ended.IsZero() && (state.deadLetter != nil || state.response != nil) {
		w.ended = time.Now()
	}
	settled := !w.ended.IsZero() && time.Since(w.ended) > w.opts.SettleTimeout
	return settled || state.response != nil && (w.answered || len(w.pending) == 0)
}

// checkActionsDone fails turn i when it has approve and no approval request was handled, or when pending, its actions
// whose moment has not come, is not empty: the story has not tested them then. The error names the first one. In a live
// run it passes every turn that is scripted-only.
func (r *runner) checkActionsDone(i int, pending []turnAction) error {
	t := r.story.Turns[i]
	if r.opts.Live && t.ScriptedOnly {
		return nil
	}
	if t.Approve != nil && len(r.turns[i].decided) == 0 {
		return fmt.Errorf("turn %d: there was no approval request", i+1)
	}
	if len(pending) == 0 {
		return nil
	}
	return fmt.Errorf("turn %d: the moment to %s was not reached", i+1, pending[0].what)
}

// readEvents reads the event log since the start of the story, and the answer or first dead letter of each turn from
// it. Only answers of the account that was asked count.
func (r *runner) readEvents(ctx context.Context) error {
	events, err := r.system.ReadEvents(ctx, r.first)
	if err != nil {
		return err
	}
	r.events = events
	for i := range r.turns {
		at := &r.turns[i]
		for _, e := range events {
			if e.Query != at.query {
				continue
			}
			switch _, dead := subjects.Match(subjects.DeadLetterEvent.Name, e.Subject); {
			case at.isRequest || at.asksNothing: // its outcome is the reply
			case e.Subject == subjects.ResponseGeneration.Name && e.From == r.story.Turns[i].respondent():
				at.response = &subjects.Response{}
				if err := json.Unmarshal(e.Body, at.response); err != nil {
					return fmt.Errorf("reading event %d: %w", e.Seq, err)
				}
			case dead && at.deadLetter == nil:
				at.deadLetter = &subjects.DeadLetter{}
				if err := json.Unmarshal(e.Body, at.deadLetter); err != nil {
					return fmt.Errorf("reading event %d: %w", e.Seq, err)
				}
			}
		}
	}
	return nil
}

// waitSettled waits after the last answer until all expected events are there and every agent is idle, at most the
// settle timeout. The checks report what is missing then.
func (r *runner) waitSettled(ctx context.Context) error {
	deadline := time.Now().Add(r.opts.SettleTimeout)
	return r.poll(ctx, nil, pollInterval/10, func() bool {
		c := checker{story: r.story, live: r.opts.Live, events: r.events, turns: r.turns}
		return len(c.checkEvents()) == 0 && r.agentsIdle() || time.Now().After(deadline)
	})
}

// agentsIdle reports whether the agent of every answered question is idle again.
func (r *runner) agentsIdle() bool {
	idle := EventPattern{
		pattern: subjects.AgentStateEvent.LiveSubject(), times: -1,
		conditions: []condition{{"to", "=", "IDLE"}},
	}
	for _, t := range r.turns {
		isIdle := t.response == nil || t.isRequest || t.asksNothing
		for _, e := range r.events {
			isIdle = isIdle || e.Query == t.query && idle.matches(e)
		}
		if !isIdle {
			return false
		}
	}
	return true
}
