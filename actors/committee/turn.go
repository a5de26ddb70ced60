package committee

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/subjects"
)

// turn is one attempt, in this process, to answer one question.
type turn struct {
	c             *Committee
	out           actor.Out
	sessionID     string
	query         subjects.Query
	owner         string // id of this attempt
	isLastAttempt bool   // the message will not be delivered again

	mu     sync.Mutex // guards stored and notes: the personas of a round may run at the same time
	stored actor.Versioned[record]
	notes  []subjects.Note
	state  string // of the whole committee

	models  subjects.ModelList
	tools   []model.Tool
	history []model.Message
	nonce   string
	asked   string           // the question with its attachments, as the model reads it
	labels  *subjects.Labels // of the question and the history
}

// States of the committee, as published on agent.state.committee.
const (
	stateIdle         = "IDLE"
	stateDeliberating = "DELIBERATING"
	stateClosing      = "CLOSING"
	statePublishing   = "PUBLISHING"
)

// newTurn is a turn for a message whose tokens and query id are valid.
func (c *Committee) newTurn(in actor.Msg[subjects.Query], out actor.Out) *turn {
	return &turn{
		c: c, out: out.WithIDs(in.Tokens[0], in.Body.QueryID), sessionID: in.Tokens[0], query: in.Body,
		owner:         out.NewID(),
		isLastAttempt: in.Attempt >= subjects.MaxDeliver, state: stateIdle, labels: agent.LabelQuestion(in.Body,
			in.Tokens[0]),
	}
}

// Errors of a turn that are not the model's.
var (
	errRetriesExhausted = errors.New("answering this question failed each time it was tried")
	errQueryTooLong     = errors.New("the question with its attachments is too long for a deliberation")
	errRecordTooLarge   = errors.New("the deliberation has grown too large to be written down")
	errImages           = errors.New("the committee cannot read images")
)

// explanations are the committee's own.
var explanations = []agent.Explanation{
	{
		Err: errRetriesExhausted, Code: subjects.CodeInternal, Say: errRetriesExhausted.Error(),
		Advice: "What was said so far is kept. Ask again, and look into the log of the committee.",
	},
	{Err: errQueryTooLong, Code: subjects.CodeTooLarge, Say: errQueryTooLong.Error(), Advice: "Shorten it, then ask " +
		"again."},
	{
		Err: errRecordTooLarge, Code: subjects.CodeTooLarge, Say: errRecordTooLarge.Error(),
		Advice: "Ask with fewer personas or rounds.",
	},
	{Err: errImages, Code: subjects.CodeUnsupported, Say: errImages.Error(), Advice: "Ask the assistant about the " +
		"image, then the committee about its answer."},
	{Err: context.DeadlineExceeded, Code: subjects.CodeTimeout, Say: "the time for this question is over (wall in " +
		settingsFile + ", or the deadline of the client)", Advice: "Ask again with more time, or with fewer personas."},
}

// run answers the question. nil = the answer is published and part of the conversation, now or before. errNotOwner =
// another process has the turn. On the last attempt a failure becomes the answer, so that the user is not left without
// one.
func (t *turn) run(ctx context.Context) error {
	finished, err := t.claim(ctx)
	if finished || err != nil {
		return err
	}
	if t.snapshot().Answer == nil {
		t.setState(stateDeliberating, "RECEIVE_QUERY", 0)
		if t.snapshot().Stalled > 0 {
			t.addNote(subjects.NoteResumed, fmt.Sprintf("resumed after an interruption, with %d finished contributions",
				len(t.snapshot().Done)))
		}
		err = t.answer(ctx)
		if err != nil && t.isLastAttempt && !errors.Is(err, errNotOwner) && !errors.Is(ctx.Err(), context.Canceled) {
			t.out.LogError(err)
			err = t.storeAnswer(ctx, loop.State{}, nil, errRetriesExhausted)
		}
	}
	if err == nil {
		err = t.storeConversation(ctx)
	}
	switch {
	case err == nil:
		t.setState(stateIdle, "FINISH", 0)
	case !errors.Is(err, errNotOwner):
		t.setState(stateIdle, "FAIL", 0)
	}
	return err
}

// maxQuestion bounds a question with its attachments, in bytes: with the contributions it must fit into a record.
const maxQuestion = 128 << 10

// answer deliberates and stores the answer; what prevents one, and a cancellation by the user, are stored as the answer
// too. An error means that the turn is retried later.
func (t *turn) answer(ctx context.Context) error {
	personas, closing, err := t.c.cfg.selectPersonas(t.query.Personas)
	size := len(t.query.Query)
	for _, a := range t.query.Attachments {
		if size += len(a.Text); a.IsImage() && err == nil {
			err = errImages
		}
	}
	switch {
	case size > maxQuestion:
		err = errQueryTooLong
	case err == nil && t.isLastAttempt && t.snapshot().Stalled >= 2:
		// It crashed more than once at this point: do not risk the last attempt.
		err = errRetriesExhausted
	}
	if err != nil {
		return t.storeAnswer(ctx, loop.State{}, nil, err)
	}
	inner, end := t.c.cancels.Watch(ctx, t.query.QueryID)
	defer end()
	if err = t.prepare(inner, append(slices.Clone(personas), closing)); err == nil {
		err = t.deliberate(inner, personas)
	}
	var state loop.State
	var last *closed
	if err == nil {
		t.setState(stateClosing, "CLOSE", t.rounds()+1)
		state, last, err = t.close(inner, closing)
	}
	switch {
	case err == nil:
	case errors.Is(err, errNotOwner), errors.Is(err, errNotStored):
		return err
	case errors.Is(context.Cause(inner), agent.ErrCanceled):
		state.Partial, err = true, nil
	case errors.Is(ctx.Err(), context.Canceled): // shutdown: the turn is resumed later
		return err
	}
	return t.storeAnswer(ctx, state, last, err)
}

// rounds is how often each persona contributes.
func (t *turn) rounds() int { return cmp.Or(t.query.Rounds, t.c.cfg.Rounds) }

// deliberate runs the rounds that are not finished yet. It fails when no contribution succeeded, with the fault of the
// last one.
func (t *turn) deliberate(ctx context.Context, personas []Persona) error {
	for round := 1; round <= t.rounds(); round++ {
		if err := t.runRound(ctx, personas, round); err != nil {
			return err
		}
	}
	var last *subjects.Fault
	for _, c := range t.snapshot().Done {
		if c.Error == nil {
			return nil
		}
		last = c.Error
	}
	return subjects.Faultf(last.Code, "no member of the committee could speak; the last one failed with: %s", last.Text)
}

// runRound runs the personas of a round that have not spoken in it: one after the other, each with everything that was
// said before, or all at the same time, each with the contributions of earlier rounds. It waits for all of them. A
// panic of one is passed on in the goroutine of the caller, where the runtime recovers.
func (t *turn) runRound(ctx context.Context, personas []Persona, round int) error {
	done := t.snapshot()
	personas = slices.DeleteFunc(slices.Clone(personas), func(p Persona) bool { return done.has(p.Name, round) })
	if !t.query.Parallel && !t.c.cfg.Parallel {
		for _, p := range personas {
			if err := t.contribute(ctx, p, round, t.snapshot().Done); err != nil {
				return err
			}
		}
		return nil
	}
	earlier := slices.DeleteFunc(slices.Clone(done.Done), func(c contribution) bool { return c.Round >= round })
	errs, panics := make([]error, len(personas)), make([]any, len(personas))
	var all sync.WaitGroup
	for i, p := range personas {
		all.Go(func() {
			defer func() { panics[i] = recover() }()
			errs[i] = t.contribute(ctx, p, round, earlier)
		})
	}
	all.Wait()
	for _, p := range panics {
		if p != nil {
			panic(p)
		}
	}
	return errors.Join(errs...)
}

// setState publishes a transition of the committee.
func (t *turn) setState(to, event string, step int) {
	from := t.state
	t.state = to
	t.emitState(subjects.AgentState{From: from, To: to, Event: event, Step: step})
}

// addNote adds a note to the answer, once, and publishes it now.
func (t *turn) addNote(code, words string) {
	n := subjects.Note{Code: code, Text: words}
	t.mu.Lock()
	known := slices.Contains(t.notes, n)
	if !known {
		t.notes = append(t.notes, n)
	}
	t.mu.Unlock()
	if !known {
		t.emitState(subjects.AgentState{To: t.state, Code: code, Words: words})
	}
}

// emitState publishes a state of the committee, or of a persona by its token.
func (t *turn) emitState(s subjects.AgentState, persona ...string) {
	s.SessionID, s.QueryID = t.sessionID, t.query.QueryID
	agent.EmitState(t.out, s, append([]string{name}, persona...)...)
}
