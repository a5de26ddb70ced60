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

// World is a Conclave that a story is asked of. It speaks and listens as the user does.
type World interface {
	// Hear begins to listen to what people hear on the bus, live tokens too. The channel closes when ctx ends. What it
	// brings decides when to look and when to act, never whether a story holds.
	Hear(ctx context.Context) (<-chan Event, error)
	// Ask puts a question and returns when it is stored.
	Ask(ctx context.Context, q subjects.Query) error
	// Spawn makes an agent below who. What the broker says instead is a [subjects.Fault].
	Spawn(ctx context.Context, who subjects.Caller, c Child, session, query string) (child string, err error)
	// Request calls a tool as an agent would, about a query.
	Request(ctx context.Context, who subjects.Caller, r Request, session, query string) (subjects.ToolResult, error)
	// Override sets what holds for a session, as the user.
	Override(ctx context.Context, session string, o Override) error
	// Remember does something to memory, as the user. What memory says instead is a [subjects.Fault].
	Remember(ctx context.Context, m Memory) error
	// Feedback says what the user thinks of an answer.
	Feedback(ctx context.Context, session string, f subjects.Feedback) error
	// Decide answers the question whether a call may run, as the user.
	Decide(ctx context.Context, id string, d subjects.ApprovalDecision) error
	// Cancel stops a query.
	Cancel(ctx context.Context, query string) error
	// Crash ends an actor without a goodbye, as kill -9 would. Whoever looks after it starts it again.
	Crash(ctx context.Context, actor string) error
	// Events reads the event stream after a sequence, in order, with the questions where they belong.
	Events(ctx context.Context, after uint64) ([]Event, error)
	// Script tells what the scripted model server saw. Nothing with a real model.
	Script() Script
	// Pages tells how often each page of the story's web was asked for.
	Pages() map[string]int
}

// Script is what became of the script.
type Script struct {
	Asked  []string   // every request, short
	Wrong  []Wrong    // requests that the script did not expect
	Unused []Exchange // replies that nobody asked for
}

// Exchange is a place in the script.
type Exchange struct {
	Role string
	N    int // from 0; -1 = after the last
}

// Wrong is a request that did not fit the script at its place.
type Wrong struct {
	Exchange
	Text string
}

// Options say how to run.
type Options struct {
	Live     bool          // a real model answers: the script is not used, and what is expected of it is left out
	Patience time.Duration // longest wait for an answer; 0 = 20 s, with a real model 10 minutes
	Settle   time.Duration // longest wait for what comes after the answers; 0 = 3 s
}

func (o Options) withDefaults() Options {
	if o.Patience <= 0 {
		o.Patience = 20 * time.Second
		if o.Live {
			o.Patience = 10 * time.Minute
		}
	}
	if o.Settle <= 0 {
		o.Settle = 3 * time.Second
	}
	return o
}

// Run asks the story's questions one after the other, waits for what they lead to, and compares.
func Run(ctx context.Context, s *Story, w World, o Options) Result {
	r := &run{story: s, world: w, opts: o.withDefaults(), session: "story-" + newID()}
	r.result = Result{Story: s.ID, File: s.file, Title: s.Title}
	if o.Live && s.ScriptedOnly {
		r.result.Skipped = "it is about what a scripted model does"
		return r.result
	}
	start := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := r.play(ctx); err != nil {
		// A request that the script did not expect explains the rest.
		c := check{story: s, script: Script{Wrong: w.Script().Wrong}}
		c.followed()
		r.result.Failures = c.out
		path := ""
		if at := (*misstep)(nil); errors.As(err, &at) {
			path = at.path
		}
		r.result.fail(s.Line(path), "%v", err)
		r.result.Events = r.events
	}
	r.result.Took = time.Since(start)
	r.result.Asked = w.Script().Asked
	return r.result
}

// run is one story under way.
type run struct {
	story   *Story
	world   World
	opts    Options
	session string
	queries []string // ids of the questions, by turn: what is still to come can be spoken of
	live    <-chan Event
	first   uint64 // the stream's end when the story began
	told    []told
	events  []Event
	result  Result
}

// told is what came of a question.
type told struct {
	query    string
	still    bool               // nothing was asked
	request  bool               // no question: an agent's own request
	decided  map[string]bool    // questions to the user that were dealt with, by id
	response *subjects.Response // nil = none came
	dead     *subjects.DeadLetter
}

// looks is how often the stream is read when nothing is heard: a live message may be lost, what is stored is not.
const looks = 200 * time.Millisecond

func (r *run) play(ctx context.Context) error {
	before, err := r.world.Events(ctx, 0)
	if err != nil {
		return err
	}
	r.first = last(before)
	if r.live, err = r.world.Hear(ctx); err != nil {
		return err
	}
	for range r.story.Turns {
		r.queries = append(r.queries, newID())
	}
	for i := range r.story.Turns {
		if err := r.turn(ctx, i); err != nil {
			return err
		}
		if r.told[i].response == nil && !r.told[i].still {
			break // the questions after it would be about nothing
		}
	}
	if err := r.settle(ctx); err != nil {
		return err
	}
	c := check{story: r.story, live: r.opts.Live, events: r.events, told: r.told, script: r.world.Script(), pages: r.world.Pages()}
	r.result.Events, r.result.Failures = r.events, c.all()
	return nil
}

func last(events []Event) (seq uint64) {
	for _, e := range events {
		seq = max(seq, e.Seq)
	}
	return seq
}

// sessionOf is the session of a turn.
func (r *run) sessionOf(i int) string {
	if s := r.story.Turns[i].Session; s != "" {
		return s
	}
	return r.session
}

// turn asks one question and waits until it is answered, or will not be.
func (r *run) turn(ctx context.Context, i int) error {
	t := r.story.Turns[i]
	query, session := r.queries[i], r.sessionOf(i)
	r.told = append(r.told, told{query: query, still: t.still()})
	if err := r.await(ctx, i); err != nil {
		return err
	}
	if err := r.prepare(ctx, i); err != nil || t.still() {
		return err
	}
	if t.Request != nil {
		return r.request(ctx, i, *t.Request, session)
	}
	if err := r.world.Ask(ctx, subjects.Query{SessionID: session, QueryID: query, Query: t.Query, Reference: t.Reference}); err != nil {
		return fmt.Errorf("asking: %w", err)
	}
	pending := r.acts(t, query)
	ctx, cancel := context.WithTimeout(ctx, r.opts.Patience)
	defer cancel()
	tick := time.NewTicker(looks)
	defer tick.Stop()
	var said strings.Builder
	var over time.Time // when the stream first told of an answer or a dead letter
	heard := false     // the answer came live too: what was said before it is behind us
	for {
		select {
		case e := <-r.live:
			if e.Query != query && e.Subject != PageAsked {
				continue
			}
			if err := r.decide(ctx, i, e); err != nil {
				return err
			}
			if _, ok := subjects.Match(subjects.ResponseDelta.Name, e.Subject); ok {
				text, _ := e.Field("text")
				said.WriteString(text)
			}
			if len(pending) > 0 && pending[0].moment.reached(e, said.String()) {
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
				return errors.Join(r.look(context.WithoutCancel(ctx)), r.allDone(i, pending))
			}
			return ctx.Err()
		}
		if err := r.look(ctx); err != nil {
			return err
		}
		for _, e := range r.events { // one that was not heard is in the stream
			if err := r.decide(ctx, i, e); err != nil {
				return err
			}
		}
		at := &r.told[i]
		if over.IsZero() && (at.dead != nil || at.response != nil) {
			over = time.Now()
		}
		// A dead letter ends a question when nobody answers it in spite of that. An answer ends it at once, unless the
		// moment to do something to the turn may still wait among what is heard: the stream can be ahead of that.
		settled := !over.IsZero() && time.Since(over) > r.opts.Settle
		if settled || at.response != nil && (heard || len(pending) == 0) {
			return r.allDone(i, pending)
		}
	}
}

// allDone refuses a turn to which not everything was done: what the story wanted to see has not been tried then.
func (r *run) allDone(i int, pending []act) error {
	t := r.story.Turns[i]
	if r.opts.Live && t.ScriptedOnly {
		return nil
	}
	if t.Approve != nil && len(r.told[i].decided) == 0 {
		return fmt.Errorf("turn %d: nobody asked whether a call may run", i+1)
	}
	if len(pending) == 0 {
		return nil
	}
	return fmt.Errorf("turn %d: the moment to %s never came", i+1, pending[0].what)
}

// look reads the stream and finds what came of the questions.
func (r *run) look(ctx context.Context) error {
	events, err := r.world.Events(ctx, r.first)
	if err != nil {
		return err
	}
	r.events = events
	for i := range r.told {
		at := &r.told[i]
		for _, e := range events {
			if e.Query != at.query {
				continue
			}
			switch _, dead := subjects.Match(subjects.Dead.Name, e.Subject); {
			case at.request || at.still: // what came of it was told to whoever asked
			case e.Subject == subjects.ResponseGeneration.Name && e.From != subjects.RespondentB:
				at.response = &subjects.Response{}
				if err := json.Unmarshal(e.Body, at.response); err != nil {
					return fmt.Errorf("reading event %d: %w", e.Seq, err)
				}
			case dead && at.dead == nil:
				at.dead = &subjects.DeadLetter{}
				if err := json.Unmarshal(e.Body, at.dead); err != nil {
					return fmt.Errorf("reading event %d: %w", e.Seq, err)
				}
			}
		}
	}
	return nil
}

// settle waits for what comes after the last answer: the expected events, and every agent at rest. It is a wait for
// something that may never come, so it ends in time and leaves the judgement to the checks.
func (r *run) settle(ctx context.Context) error {
	deadline := time.Now().Add(r.opts.Settle)
	tick := time.NewTicker(looks / 10)
	defer tick.Stop()
	for {
		if err := r.look(ctx); err != nil {
			return err
		}
		c := check{story: r.story, live: r.opts.Live, events: r.events, told: r.told}
		if len(c.missing()) == 0 && r.atRest() || time.Now().After(deadline) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// atRest reports whether every answered question has left its agent idle.
func (r *run) atRest() bool {
	idle := Want{pattern: subjects.AgentStateOf.Live(), times: -1, conditions: []condition{{"to", "=", "IDLE"}}}
	for _, t := range r.told {
		rest := t.response == nil || t.request || t.still
		for _, e := range r.events {
			rest = rest || e.Query == t.query && idle.meets(e)
		}
		if !rest {
			return false
		}
	}
	return true
}
