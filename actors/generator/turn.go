package generator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"conclave/pkg/actor"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/text"
	"conclave/subjects"
)

// turn is one question on its way to its answer, in one process.
type turn struct {
	g       *Generator
	out     actor.Out
	store   actor.Store
	session string
	asked   subjects.Query
	try     int
	last    bool // it will not be handed out again

	machine *machine
	rec     record
	rev     uint64
	size    int                   // of the record as it was written last
	sat     sitting               // the conversation as the turn found it
	before  subjects.Conversation // what was said before the question, as the model is shown it

	role     subjects.RoleModel
	standIn  bool
	notes    []subjects.Note
	delta    *live
	thinking *live
	calls    calls
	broken   error // why a checkpoint was not written

	labelling sync.Mutex // of what results bring, which come at the same time: rec.Labels and cut
	cut       []subjects.Note
}

// calls counts the calls of one reply.
type calls struct {
	open, begun, done int
	late              bool
}

func (g *Generator) newTurn(in actor.Msg[subjects.Query], out actor.Out) *turn {
	t := &turn{
		g: g, out: out.WithIDs(in.Tokens[1], in.Body.QueryID), store: out.Store(g.bucket()), session: in.Tokens[1],
		asked: in.Body, try: in.Attempt, last: in.Attempt >= subjects.MaxDeliver,
	}
	t.machine = newMachine(t.tellState)
	return t
}

// answer takes the question all the way.
func (t *turn) answer(ctx context.Context) (err error) {
	if t.last { // a bug that panics each time must not leave the caller alone; before that, the runtime tries again
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("%w: panic: %v", errTried, p)
			}
		}()
	}
	answered, err := t.begin(ctx)
	if answered || err != nil {
		return err
	}
	if err = t.work(ctx); err != nil && !errors.Is(err, errTaken) && t.last && t.rec.Publish == nil {
		t.out.LogError(err)
		err = t.conclude(ctx, t.state(), errTried)
	}
	if err == nil {
		err = t.publish(ctx)
	}
	if err != nil && !errors.Is(err, errTaken) {
		t.move(fail, 0)
	}
	return err
}

// move takes a transition. One that is refused is a bug, and no reason to leave the caller alone.
func (t *turn) move(e event, step int) {
	if err := t.machine.reach(e, step); err != nil {
		t.out.LogError(err)
	}
}

// begin reads what is known of the session and writes the turn down as begun. It reports true when the question was
// answered before.
func (t *turn) begin(ctx context.Context) (answered bool, err error) {
	for range 8 {
		s, err := t.g.load(ctx, t.store, t.session)
		if err != nil {
			return false, err
		}
		if s.conv.Answered(t.asked.QueryID) {
			t.tellNote(subjects.NoteDuplicate, "this question was answered before; nothing is done again")
			return true, nil
		}
		if t.before = s.conv; t.g.respondentB {
			t.before = t.told(ctx, s.conv)
		}
		left := s.rec.QueryID
		abandoned := left != "" && left != t.asked.QueryID && !s.conv.Answered(left) && !t.g.respondentB // nobody waits for respondent B's
		if abandoned {
			err = t.settle(ctx, s)
		} else {
			t.take(s)
			err = t.write(ctx, "turn.start")
		}
		switch {
		case errors.Is(err, errTaken):
			t.g.hot.drop(t.session)
		case err != nil:
			return false, err
		case !abandoned:
			t.move(receiveQuery, 0)
			if t.rec.Stalled > 0 {
				t.tellNote(subjects.NoteResumed, "goes on after an interruption; it was "+t.rec.Stage)
			}
			return false, nil
		}
	}
	return false, subjects.Faultf(subjects.CodeBusy, "the session changes hands all the time; the question is tried again later")
}

// take makes the turn this one's: a new one, or one that was begun before and not finished.
func (t *turn) take(s sitting) {
	t.sat, t.rev = s, s.recRev
	if s.rec.QueryID == t.asked.QueryID {
		t.rec = s.rec
		t.rec.Stalled++
	} else {
		t.rec = record{
			QueryID: t.asked.QueryID, Query: t.asked.Query, Reference: text.Clip(t.asked.Reference, maxReference), Stage: stageReceived,
			Began: t.out.Now().UTC(), Graded: t.g.graded(t.before),
		}
	}
	t.rec.Labels = t.rec.Labels.Join(labelsOf(t.before))
	if t.tooLong() {
		t.rec.Query = text.Clip(t.rec.Query, 16<<10)
	}
	t.rec.Owner, t.rec.Try = t.out.NewID(), t.try
}

// maxQuestion bounds a question, in bytes as it is written down: with what is added to it, it must fit into a
// checkpoint.
const maxQuestion = 128 << 10

func (t *turn) tooLong() bool {
	data, err := marshal(t.asked.Query)
	return err != nil || len(data) > maxQuestion
}

// settle answers a question of this session that was begun and given up: whoever worked at it died as often as it was
// handed out. That it was is known from the order: the next question of a session comes only after that.
func (t *turn) settle(ctx context.Context, s sitting) error {
	left := &turn{g: t.g, out: t.out.WithIDs(t.session, s.rec.QueryID), store: t.store, session: t.session, try: s.rec.Try, last: true}
	left.machine = newMachine(left.tellState)
	left.asked = subjects.Query{SessionID: t.session, QueryID: s.rec.QueryID, Query: s.rec.Query, Reference: s.rec.Reference}
	left.before = s.conv
	left.take(s)
	if err := left.write(ctx, "turn.start"); err != nil {
		return err
	}
	left.move(receiveQuery, 0)
	if left.rec.Publish == nil {
		left.note(subjects.NoteLost, "it was begun several times and never finished")
		if err := left.conclude(ctx, left.state(), errTried); err != nil {
			return err
		}
	} else {
		left.move(finish, 0)
	}
	return left.publish(ctx)
}

// state is the turn as far as it was written down.
func (t *turn) state() loop.State {
	if t.rec.State != nil {
		return *t.rec.State
	}
	question := model.Message{Role: model.User, Content: t.asked.Query}
	if t.rec.Graded == "" {
		return loop.State{Messages: []model.Message{question}}
	}
	// After the history, which the model server has in its cache, and no part of what is kept of the turn: see [rounds].
	return loop.State{Messages: []model.Message{{Role: model.User, Content: t.rec.Graded}, question}}
}

// work brings the turn to its answer, which is then in the record. An error means that it goes on later.
func (t *turn) work(ctx context.Context) error {
	if t.rec.Publish != nil { // it was there before a crash
		t.move(finish, 0)
		return nil
	}
	if t.asked.Note != "" {
		t.note(subjects.NoteRenamed, t.asked.Note)
	}
	state := t.state()
	switch {
	case t.tooLong():
		t.asked.Query = t.rec.Query
		return t.conclude(ctx, loop.State{}, errTooLong)
	case t.last && t.rec.Stalled >= 2:
		// Whoever began it died at this very place, more than once. This time somebody must stay alive to tell.
		t.note(subjects.NoteLost, fmt.Sprintf("it was tried %d times and ended each time before there was an answer", t.try))
		return t.conclude(ctx, state, errTried)
	}
	inner, end := t.g.stops.begin(ctx, t.asked.QueryID)
	defer end()
	if inner.Err() == nil {
		var err error
		if state, err = t.generate(inner, state); err == nil {
			return nil // the last checkpoint holds the answer
		} else if !errors.Is(context.Cause(inner), errStopped) {
			return t.failed(ctx, state, err)
		}
		if t.broken != nil {
			return t.broken
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) { // the system is closing: that it was stopped is remembered by the one who stopped it
		return context.Cause(ctx)
	}
	state.Partial = true
	return t.conclude(ctx, state, nil)
}

// failed decides what becomes of a turn that brought no answer: told to the user, or tried again.
func (t *turn) failed(ctx context.Context, state loop.State, err error) error {
	switch {
	case errors.Is(t.broken, errTooMuch):
		return t.conclude(ctx, state, errTooMuch)
	case t.broken != nil:
		return t.broken
	case errors.Is(ctx.Err(), context.Canceled): // the system is closing
		return err
	case ctx.Err() != nil: // the caller's own deadline
		return t.conclude(ctx, state, ctx.Err())
	}
	if f, _ := explain(err); f.Code == subjects.CodeInternal {
		t.out.LogError(err)
	}
	return t.conclude(ctx, state, err)
}

// generate runs the loop.
func (t *turn) generate(ctx context.Context, state loop.State) (loop.State, error) {
	if err := t.prepare(); err != nil {
		return state, err
	}
	t.role = t.g.role(ctx, t.out)
	t.calls = calls{open: unanswered(state)}
	for _, d := range state.Finished { // these came back before the interruption
		if slices.ContainsFunc(state.Messages[len(state.Messages)-1].Calls, func(c model.Call) bool { return c.ID == d.Call.ID }) {
			t.calls.open--
		}
	}
	in := loop.Input{Summary: t.before.Summary, History: history(t.before), State: state}
	return loop.RunTurn(ctx, t.agent(ctx), in, t.hooks(ctx))
}

// prepare opens the live streams. Respondent B has none.
func (t *turn) prepare() (err error) {
	if t.g.respondentB {
		return nil
	}
	if t.delta, err = newLive(t.out, subjects.ResponseDelta, t.g.name, t.asked.QueryID); err != nil {
		return err
	}
	t.thinking, err = newLive(t.out, subjects.ResponseThinking, t.g.name, t.asked.QueryID)
	return err
}

// agent is the loop's agent for this turn.
func (t *turn) agent(ctx context.Context) loop.Agent {
	cfg := t.g.cfg
	tools := t.tools(ctx)
	a := loop.Agent{
		Chat:      wire.Client{Out: t.out, Role: subjects.RoleAssistant, Timeout: cfg.CallTimeout, Last: t.heard},
		RunTool:   t.runTool,
		Model:     t.asked.Model,
		System:    t.g.system(tools),
		Tools:     tools,
		TextTools: !t.role.Tools,
		Stream:    cfg.Stream && t.role.Stream,
		Limits:    cfg.limits(),
		Hedge:     loop.Hedge{SearchTool: cfg.Hedge.Search, Reask: cfg.Hedge.Reask},
		Now:       t.out.Now,
		NewID:     t.out.NewID,
	}
	a.Options.Window = t.role.Window
	if t.g.respondentB {
		warm := float64(cfg.RespondentB.Temperature)
		a.Model, a.Options.Temperature = cmp.Or(cfg.RespondentB.Model, a.Model), &warm
	}
	if t.role.Thinking {
		a.Think = &cfg.Thinking
	}
	if !slices.ContainsFunc(a.Tools, func(tool model.Tool) bool { return tool.Name == cfg.Hedge.Search }) {
		a.Hedge.SearchTool = "" // it must be offered
	}
	return a
}

// heard takes down who answered.
func (t *turn) heard(c subjects.ChatChunk) {
	if c.DemoModel {
		t.standIn = true
		t.note(subjects.NoteDemoModel, "the built-in demo model answered, not a model")
	}
	if c.Notice != "" {
		t.note(subjects.NoteModel, text.OneLine(c.Notice, mostWords))
	}
}

// hooks show the turn and write it down.
func (t *turn) hooks(ctx context.Context) loop.Hooks {
	flush := func() {
		t.thinking.flush(ctx)
		t.delta.flush(ctx)
	}
	h := loop.Hooks{
		Generating: func(step int) {
			flush()
			t.move(startGeneration, step)
		},
		Thinking: func(step int, text string) { t.thinking.say(ctx, step, text) },
		Token: func(step int, text string) {
			t.thinking.flush(ctx)
			t.delta.say(ctx, step, text)
		},
		Interim: func(step int, words string) {
			flush()
			t.tell(subjects.AgentState{To: string(t.machine.at), Step: step, Words: text.Clip(words, 4<<10)})
		},
		Started:  func(step int, _ model.Call, _ string) { t.started(step) },
		Finished: func(step int, d loop.FinishedCall) { t.finished(step, d) },
		Note:     func(n loop.Note) { t.tellNote(n.Code, n.Text) },
		Checkpoint: func(ctx context.Context, s *loop.State) error {
			flush()
			t.broken = t.checkpoint(ctx, s)
			return t.broken
		},
	}
	if t.g.respondentB {
		h.Thinking, h.Token, h.Interim = nil, nil, nil
	}
	return h
}

// checkpoint writes down how far the loop is. With the answer, what is written down is the answer to publish.
func (t *turn) checkpoint(ctx context.Context, s *loop.State) error {
	if s.Final {
		return t.conclude(ctx, *s, nil)
	}
	t.calls = calls{open: unanswered(*s)}
	t.rec.Stage, t.rec.State, t.rec.Stalled = stageWorking, s, 0
	return t.write(ctx, "turn.step")
}

// unanswered is how many calls of the last reply wait for their result.
func unanswered(s loop.State) int {
	if len(s.Messages) == 0 {
		return 0
	}
	return len(s.Messages[len(s.Messages)-1].Calls)
}

// started tells of a call that is sent.
func (t *turn) started(step int) {
	if t.calls.begun++; !t.machine.in(dispatching, waiting) {
		t.move(dispatchTool, step)
	}
	if t.calls.begun >= t.calls.open && t.machine.in(dispatching) {
		t.move(dispatchTool, step)
	}
}

// finished tells of a call that came back, or did not.
func (t *turn) finished(step int, d loop.FinishedCall) {
	t.calls.done++
	t.calls.late = t.calls.late || d.Result.Fault == subjects.CodeTimeout || d.Result.Fault == subjects.CodeUnavailable
	if t.calls.done < max(t.calls.open, t.calls.begun) {
		return
	}
	if t.calls.late {
		t.move(toolTimeout, step)
		return
	}
	t.move(toolResult, step)
}

// note adds something that the user should know to the answer, once, and tells it now.
func (t *turn) note(code, text string) {
	n := subjects.Note{Code: code, Text: text}
	if slices.Contains(t.notes, n) {
		return
	}
	t.notes = append(t.notes, n)
	t.tellNote(code, text)
}

func (t *turn) tellNote(code, words string) {
	t.tell(subjects.AgentState{To: string(t.machine.at), Code: code, Words: text.Clip(words, 1<<10)})
}

// tellCode tells of a fault that the answer will be about.
func (t *turn) tellCode(f *subjects.Fault) {
	if f != nil {
		t.tellNote(f.Code, f.Text)
	}
}

func (t *turn) tellState(from, to state, e event, step int) {
	t.tell(subjects.AgentState{From: string(from), To: string(to), Event: string(e), Step: step})
}

// tell posts on the agent's state. It is a view of the turn and does not hold it up.
func (t *turn) tell(s subjects.AgentState) {
	if t.g.respondentB && s.Event == "" {
		return // its words, notes and faults are in its answer, and nowhere that a person looks
	}
	topic, err := subjects.AgentStateEvent.With(t.g.name)
	if err != nil {
		return
	}
	s.SessionID, s.QueryID = t.session, t.asked.QueryID
	if err := actor.EmitAsync(context.Background(), t.out, topic, s); err != nil {
		t.out.LogError(err)
	}
}
