package story

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"conclave/subjects"
)

// System is a Conclave that a story is asked of. It speaks and listens as the user does.
type System interface {
	// Subscribe begins to listen to what people hear on the bus, live tokens too. The channel closes when ctx ends. What it
	// brings decides when to look and when to act, never whether a story holds.
	Subscribe(ctx context.Context) (<-chan Event, error)
	// Ask puts a question and returns when it is stored.
	Ask(ctx context.Context, q subjects.Query) error
	// Spawn makes an agent below who. What the broker says instead is a [subjects.Fault].
	Spawn(ctx context.Context, who subjects.Caller, c Child, session, query string) (child string, err error)
	// CallTool calls a tool as an agent would, about a query.
	CallTool(ctx context.Context, who subjects.Caller, r Request, session, query string) (subjects.ToolResult, error)
	// SetOverride sets what holds for a session, as the user.
	SetOverride(ctx context.Context, session string, o Override) error
	// ChangeMemory does something to memory, as the user. What memory says instead is a [subjects.Fault].
	ChangeMemory(ctx context.Context, m Memory) error
	// SendFeedback says what the user thinks of an answer.
	SendFeedback(ctx context.Context, session string, f subjects.Feedback) error
	// DecideApproval answers the question whether a call may run, as the user.
	DecideApproval(ctx context.Context, id string, d subjects.ApprovalDecision) error
	// CancelQuery stops a query.
	CancelQuery(ctx context.Context, query string) error
	// KillActor ends an actor without a goodbye, as kill -9 would. Whoever looks after it starts it again.
	KillActor(ctx context.Context, actor string) error
	// ReadEvents reads the event stream after a sequence, in order, with the questions where they belong.
	ReadEvents(ctx context.Context, after uint64) ([]Event, error)
	// ScriptReport tells what the scripted model server saw. Nothing with a real model.
	ScriptReport() ScriptReport
	// PageRequests tells how often each page of the story's web was asked for.
	PageRequests() map[string]int
}

// ScriptReport is what became of the script.
type ScriptReport struct {
	Requests   []string      // every request, short
	Mismatches []Mismatch    // requests that the script did not expect
	Unused     []ExchangeRef // replies that nobody asked for
}

// ExchangeRef is a place in the script.
type ExchangeRef struct {
	Role string
	N    int // from 0; -1 = after the last
}

// Mismatch is a request that did not fit the script at its place.
type Mismatch struct {
	ExchangeRef
	Text string
}

// Options say how to run.
type Options struct {
	Live          bool          // a real model answers: the script is not used, and what is expected of it is left out
	AnswerTimeout time.Duration // longest wait for an answer; 0 = 20 s, with a real model 10 minutes
	SettleTimeout time.Duration // longest wait for what comes after the answers; 0 = 3 s
}

func (o Options) withDefaults() Options {
	if o.AnswerTimeout <= 0 {
		o.AnswerTimeout = 20 * time.Second
		if o.Live {
			o.AnswerTimeout = 10 * time.Minute
		}
	}
	if o.SettleTimeout <= 0 {
		o.SettleTimeout = 3 * time.Second
	}
	return o
}

// Run asks the story's questions one after the other, waits for what they lead to, and compares.
func Run(ctx context.Context, s *Story, w System, o Options) Result {
	r := &runner{story: s, system: w, opts: o.withDefaults(), session: "story-" + newID()}
	r.result = Result{Story: s.ID, File: s.file, Title: s.Title}
	if o.Live && s.ScriptedOnly {
		r.result.Skipped = "it is about what a scripted model does"
		return r.result
	}
	start := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := r.runTurns(ctx); err != nil {
		// A request that the script did not expect explains the rest.
		c := checker{story: s, script: ScriptReport{Mismatches: w.ScriptReport().Mismatches}}
		c.checkScript()
		r.result.Failures = c.failures
		path := ""
		if at := (*stepError)(nil); errors.As(err, &at) {
			path = at.path
		}
		r.result.fail(s.Line(path), "%v", err)
		r.result.Events = r.events
	}
	r.result.Took = time.Since(start)
	r.result.ModelRequests = w.ScriptReport().Requests
	return r.result
}

// runner is one story under way.
type runner struct {
	story   *Story
	system  System
	opts    Options
	session string
	queries []string // ids of the questions, by turn: what is still to come can be spoken of
	live    <-chan Event
	first   uint64 // the stream's end when the story began
	turns   []turnState
	events  []Event
	result  Result
}

// turnState is what came of a question.
type turnState struct {
	query       string
	asksNothing bool               // nothing was asked
	isRequest   bool               // no question: an agent's own request
	decided     map[string]bool    // questions to the user that were dealt with, by id
	response    *subjects.Response // nil = none came
	deadLetter  *subjects.DeadLetter
}

// pollInterval is how often the stream is read when nothing is heard: a live message may be lost, what is stored is not.
const pollInterval = 200 * time.Millisecond

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
			break // the questions after it would be about nothing
		}
	}
	if err := r.waitSettled(ctx); err != nil {
		return err
	}
	c := checker{story: r.story, live: r.opts.Live, events: r.events, turns: r.turns, script: r.system.ScriptReport(), pages: r.system.PageRequests()}
	r.result.Events, r.result.Failures = r.events, c.checkAll()
	return nil
}

func lastSeq(events []Event) (seq uint64) {
	for _, e := range events {
		seq = max(seq, e.Seq)
	}
	return seq
}

// sessionOf is the session of a turn.
func (r *runner) sessionOf(i int) string {
	if s := r.story.Turns[i].Session; s != "" {
		return s
	}
	return r.session
}

// runTurn asks one question and waits until it is answered, or will not be.
func (r *runner) runTurn(ctx context.Context, i int) error {
	t := r.story.Turns[i]
	query, session := r.queries[i], r.sessionOf(i)
	r.turns = append(r.turns, turnState{query: query, asksNothing: t.asksNothing()})
	if err := r.waitForEvents(ctx, i); err != nil {
		return err
	}
	if err := r.prepareTurn(ctx, i); err != nil || t.asksNothing() {
		return err
	}
	if t.Request != nil {
		return r.runRequest(ctx, i, *t.Request, session)
	}
	if err := r.system.Ask(ctx, subjects.Query{SessionID: session, QueryID: query, Query: t.Query, Reference: t.Reference}); err != nil {
		return fmt.Errorf("asking: %w", err)
	}
	pending := r.turnActions(t, query)
	ctx, cancel := context.WithTimeout(ctx, r.opts.AnswerTimeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	var said strings.Builder
	var over time.Time // when the stream first told of an answer or a dead letter
	heard := false     // the answer came live too: what was said before it is behind us
	for {
		select {
		case e := <-r.live:
			if e.Query != query && e.Subject != PageRequested {
				continue
			}
			if err := r.decideApproval(ctx, i, e); err != nil {
				return err
			}
			if _, ok := subjects.Match(subjects.ResponseDelta.Name, e.Subject); ok {
				text, _ := e.Field("text")
				said.WriteString(text)
			}
			if len(pending) > 0 && pending[0].moment.isReached(e, said.String()) {
				if err := pending[0].do(ctx); err != nil {
					return err
				}
				pending = pending[1:]
			}
			if e.Subject != subjects.ResponseGeneration.Name {
				continue
			}
			heard = true
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				// What else is missing is reported by the checks.
				return errors.Join(r.readEvents(context.WithoutCancel(ctx)), r.checkActionsDone(i, pending))
			}
			return ctx.Err()
		}
		if err := r.readEvents(ctx); err != nil {
			return err
		}
		for _, e := range r.events { // one that was not heard is in the stream
			if err := r.decideApproval(ctx, i, e); err != nil {
				return err
			}
		}
		at := &r.turns[i]
		if over.IsZero() && (at.deadLetter != nil || at.response != nil) {
			over = time.Now()
		}
		// A dead letter ends a question when nobody answers it in spite of that. An answer ends it at once, unless the
		// moment to do something to the turn may still wait among what is heard: the stream can be ahead of that.
		settled := !over.IsZero() && time.Since(over) > r.opts.SettleTimeout
		if settled || at.response != nil && (heard || len(pending) == 0) {
			return r.checkActionsDone(i, pending)
		}
	}
}

// checkActionsDone refuses a turn to which not everything was done: what the story wanted to see has not been tried then.
func (r *runner) checkActionsDone(i int, pending []turnAction) error {
	t := r.story.Turns[i]
	if r.opts.Live && t.ScriptedOnly {
		return nil
	}
	if t.Approve != nil && len(r.turns[i].decided) == 0 {
		return fmt.Errorf("turn %d: nobody asked whether a call may run", i+1)
	}
	if len(pending) == 0 {
		return nil
	}
	return fmt.Errorf("turn %d: the moment to %s never came", i+1, pending[0].what)
}

// readEvents reads the stream and finds what came of the questions.
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
			case at.isRequest || at.asksNothing: // what came of it was told to whoever asked
			case e.Subject == subjects.ResponseGeneration.Name && e.From != subjects.RespondentB:
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

// waitSettled waits for what comes after the last answer: the expected events, and every agent at rest. It is a wait for
// something that may never come, so it ends in time and leaves the judgement to the checks.
func (r *runner) waitSettled(ctx context.Context) error {
	deadline := time.Now().Add(r.opts.SettleTimeout)
	tick := time.NewTicker(pollInterval / 10)
	defer tick.Stop()
	for {
		if err := r.readEvents(ctx); err != nil {
			return err
		}
		c := checker{story: r.story, live: r.opts.Live, events: r.events, turns: r.turns}
		if len(c.checkEvents()) == 0 && r.agentsIdle() || time.Now().After(deadline) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// agentsIdle reports whether every answered question has left its agent idle.
func (r *runner) agentsIdle() bool {
	idle := EventPattern{pattern: subjects.AgentStateEvent.LiveSubject(), times: -1, conditions: []condition{{"to", "=", "IDLE"}}}
	for _, t := range r.turns {
		rest := t.response == nil || t.isRequest || t.asksNothing
		for _, e := range r.events {
			rest = rest || e.Query == t.query && idle.matches(e)
		}
		if !rest {
			return false
		}
	}
	return true
}
