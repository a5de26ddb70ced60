package committee

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/respondent"
	"conclave/subjects"
)

// turn is one attempt, in this process, to answer one question. It implements [respondent.Work].
type turn struct {
	*respondent.Turn[record]
	c *Committee

	models  subjects.ModelList
	tools   []model.Tool
	history []model.Message
	nonce   string
	asked   string           // the question with its attachments, as the model reads it
	labels  *subjects.Labels // of the question and the history
	said    loop.State       // of the closing persona
	last    *closed          // its turn, nil = there was none
}

// States of the committee, as published on agent.state.committee.
const (
	stateIdle         = "IDLE"
	stateDeliberating = "DELIBERATING"
	stateClosing      = "CLOSING"
	statePublishing   = "PUBLISHING"
)

// Errors of a turn that are not the model's.
var (
	errQueryTooLong = errors.New("the question with its attachments is too long for a deliberation")
	errImages       = errors.New("the committee cannot read images")
)

// explanations are the committee's own.
var explanations = []agent.Explanation{
	{
		Err: respondent.ErrExhausted, Code: subjects.CodeInternal, Say: respondent.ErrExhausted.Error(),
		Advice: "What was said so far is kept. Ask again, and look into the log of the committee.",
	},
	{Err: errQueryTooLong, Code: subjects.CodeTooLarge, Say: errQueryTooLong.Error(), Advice: "Shorten it, then ask " +
		"again."},
	{
		Err: respondent.ErrTooLarge, Code: subjects.CodeTooLarge,
		Say:    "the deliberation has grown too large to be written down",
		Advice: "Ask with fewer personas or rounds.",
	},
	{Err: errImages, Code: subjects.CodeUnsupported, Say: errImages.Error(), Advice: "Ask the assistant about the " +
		"image, then the committee about its answer."},
	{Err: context.DeadlineExceeded, Code: subjects.CodeTimeout, Say: "the time for this question is over (wall in " +
		settingsFile + ", or the deadline of the client)", Advice: "Ask again with more time, or with fewer personas."},
}

// maxQuestion bounds a question with its attachments, in bytes: with the contributions it must fit into a record.
const maxQuestion = 128 << 10

// Run implements [respondent.Work]: it deliberates and has the closing persona give the answer.
func (t *turn) Run(ctx context.Context) error {
	if r := t.Record(); r.Stalled > 0 {
		t.Note(subjects.NoteResumed, fmt.Sprintf("resumed after an interruption, with %d finished contributions",
			len(r.Done)))
	}
	personas, closing, err := t.c.cfg.selectPersonas(t.Query.Personas)
	size := len(t.Query.Query)
	for _, a := range t.Query.Attachments {
		size += len(a.Text)
		if a.IsImage() && err == nil {
			err = errImages
		}
	}
	if size > maxQuestion {
		err = errQueryTooLong
	}
	if err == nil {
		err = t.prepare(ctx, append(slices.Clone(personas), closing))
	}
	if err == nil {
		err = t.deliberate(ctx, personas)
	}
	if err == nil {
		t.setState(stateClosing, "CLOSE", t.rounds()+1)
		t.said, t.last, err = t.close(ctx, closing)
	}
	return err
}

// Enter implements [respondent.Work].
func (t *turn) Enter(_ context.Context, s respondent.Stage) {
	switch s {
	case respondent.Claimed:
		t.setState(stateDeliberating, "RECEIVE_QUERY", 0)
	case respondent.Answered:
		t.setState(statePublishing, "PUBLISH", 0)
	case respondent.Finished:
		t.setState(stateIdle, "FINISH", 0)
	case respondent.Failed:
		t.setState(stateIdle, "FAIL", 0)
	}
}

// rounds is how often each persona contributes.
func (t *turn) rounds() int { return cmp.Or(t.Query.Rounds, t.c.cfg.Rounds) }

// deliberate runs the rounds that are not finished yet. It fails when no contribution succeeded, with the fault of the
// last one.
func (t *turn) deliberate(ctx context.Context, personas []Persona) error {
	for round := 1; round <= t.rounds(); round++ {
		if err := t.runRound(ctx, personas, round); err != nil {
			return err
		}
	}
	var last *subjects.Fault
	for _, c := range t.Record().Done {
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
	done := t.Record()
	personas = slices.DeleteFunc(slices.Clone(personas), func(p Persona) bool { return done.has(p.Name, round) })
	if !t.Query.Parallel && !t.c.cfg.Parallel {
		for _, p := range personas {
			if err := t.contribute(ctx, p, round, t.Record().Done); err != nil {
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
	from := cmp.Or(t.State, stateIdle)
	t.State = to
	t.EmitState(subjects.AgentState{From: from, To: to, Event: event, Step: step})
}
