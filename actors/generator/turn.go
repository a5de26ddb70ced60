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
	g             *Generator
	out           actor.Out
	store         actor.Store
	sessionID     string
	query         subjects.Query
	attempt       int
	isLastAttempt bool // it will not be handed out again

	machine *stateMachine
	rec     turnRecord
	rev     uint64
	size    int                   // of the record as it was written last
	loaded  sessionState          // the conversation as the turn found it
	prior   subjects.Conversation // what was said before the question, as the model is shown it

	role          subjects.RoleModel
	demoModel     bool
	notes         []subjects.Note
	delta         *deltaStream
	thinking      *deltaStream
	counter       callCounter
	checkpointErr error // why a checkpoint was not written

	resultMu  sync.Mutex // of what results bring, which come at the same time: rec.Labels and cut
	clipNotes []subjects.Note
}

// callCounter counts the calls of one reply.
type callCounter struct {
	open, begun, done int
	late              bool
}

func (g *Generator) newTurn(in actor.Msg[subjects.Query], out actor.Out) *turn {
	t := &turn{
		g: g, out: out.WithIDs(in.Tokens[1], in.Body.QueryID), store: out.Store(g.bucket()), sessionID: in.Tokens[1],
		query: in.Body, attempt: in.Attempt, isLastAttempt: in.Attempt >= subjects.MaxDeliver,
	}
	t.machine = newStateMachine(t.emitTransition)
	return t
}

// run takes the question all the way.
func (t *turn) run(ctx context.Context) (err error) {
	if t.isLastAttempt { // a bug that panics each time must not leave the caller alone; before that, the runtime tries again
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("%w: panic: %v", errRetriesExhausted, p)
			}
		}()
	}
	answered, err := t.claim(ctx)
	if answered || err != nil {
		return err
	}
	if err = t.generateAnswer(ctx); err != nil && !errors.Is(err, errNotOwner) && t.isLastAttempt && t.rec.Publish == nil {
		t.out.LogError(err)
		err = t.storeAnswer(ctx, t.state(), errRetriesExhausted)
	}
	if err == nil {
		err = t.publish(ctx)
	}
	if err != nil && !errors.Is(err, errNotOwner) {
		t.transition(fail, 0)
	}
	return err
}

// transition takes a transition. One that is refused is a bug, and no reason to leave the caller alone.
func (t *turn) transition(e event, step int) {
	if err := t.machine.advance(e, step); err != nil {
		t.out.LogError(err)
	}
}

// claim reads what is known of the session and writes the turn down as begun. It reports true when the question was
// answered before.
func (t *turn) claim(ctx context.Context) (answered bool, err error) {
	for range 8 {
		s, err := t.g.loadSession(ctx, t.store, t.sessionID)
		if err != nil {
			return false, err
		}
		if s.conversation.Answered(t.query.QueryID) {
			t.emitNote(subjects.NoteDuplicate, "this question was answered before; nothing is done again")
			return true, nil
		}
		if t.prior = s.conversation; t.g.isRespondentB {
			t.prior = t.userConversation(ctx, s.conversation)
		}
		left := s.record.QueryID
		abandoned := left != "" && left != t.query.QueryID && !s.conversation.Answered(left) && !t.g.isRespondentB // nobody waits for respondent B's
		if abandoned {
			err = t.finishAbandoned(ctx, s)
		} else {
			t.adoptRecord(s)
			err = t.storeRecord(ctx, "turn.start")
		}
		switch {
		case errors.Is(err, errNotOwner):
			t.g.sessions.remove(t.sessionID)
		case err != nil:
			return false, err
		case !abandoned:
			t.transition(receiveQuery, 0)
			if t.rec.Stalled > 0 {
				t.emitNote(subjects.NoteResumed, "goes on after an interruption; it was "+t.rec.Stage)
			}
			return false, nil
		}
	}
	return false, subjects.Faultf(subjects.CodeBusy, "the session changes hands all the time; the question is tried again later")
}

// adoptRecord makes the turn this one's: a new one, or one that was begun before and not finished.
func (t *turn) adoptRecord(s sessionState) {
	t.loaded, t.rev = s, s.recordRev
	if s.record.QueryID == t.query.QueryID {
		t.rec = s.record
		t.rec.Stalled++
	} else {
		t.rec = turnRecord{
			QueryID: t.query.QueryID, Query: t.query.Query, Reference: text.Clip(t.query.Reference, maxReference), Stage: stageReceived,
			Began: t.out.Now().UTC(), Graded: t.g.describeGrades(t.prior),
		}
	}
	t.rec.Labels = t.rec.Labels.Join(labelsOf(t.prior))
	if t.isQueryTooLong() {
		t.rec.Query = text.Clip(t.rec.Query, 16<<10)
	}
	t.rec.Owner, t.rec.Try = t.out.NewID(), t.attempt
}

// maxQuestion bounds a question, in bytes as it is written down: with what is added to it, it must fit into a
// checkpoint.
const maxQuestion = 128 << 10

func (t *turn) isQueryTooLong() bool {
	data, err := encodeJSON(t.query.Query)
	return err != nil || len(data) > maxQuestion
}

// finishAbandoned answers a question of this session that was begun and given up: whoever worked at it died as often as it was
// handed out. That it was is known from the order: the next question of a session comes only after that.
func (t *turn) finishAbandoned(ctx context.Context, s sessionState) error {
	left := &turn{g: t.g, out: t.out.WithIDs(t.sessionID, s.record.QueryID), store: t.store, sessionID: t.sessionID, attempt: s.record.Try, isLastAttempt: true}
	left.machine = newStateMachine(left.emitTransition)
	left.query = subjects.Query{SessionID: t.sessionID, QueryID: s.record.QueryID, Query: s.record.Query, Reference: s.record.Reference}
	left.prior = s.conversation
	left.adoptRecord(s)
	if err := left.storeRecord(ctx, "turn.start"); err != nil {
		return err
	}
	left.transition(receiveQuery, 0)
	if left.rec.Publish == nil {
		left.addNote(subjects.NoteLost, "it was begun several times and never finished")
		if err := left.storeAnswer(ctx, left.state(), errRetriesExhausted); err != nil {
			return err
		}
	} else {
		left.transition(finish, 0)
	}
	return left.publish(ctx)
}

// state is the turn as far as it was written down.
func (t *turn) state() loop.State {
	if t.rec.State != nil {
		return *t.rec.State
	}
	question := model.Message{Role: model.User, Content: t.query.Query}
	if t.rec.Graded == "" {
		return loop.State{Messages: []model.Message{question}}
	}
	// After the history, which the model server has in its cache, and no part of what is kept of the turn: see [completeRounds].
	return loop.State{Messages: []model.Message{{Role: model.User, Content: t.rec.Graded}, question}}
}

// generateAnswer brings the turn to its answer, which is then in the record. An error means that it goes on later.
func (t *turn) generateAnswer(ctx context.Context) error {
	if t.rec.Publish != nil { // it was there before a crash
		t.transition(finish, 0)
		return nil
	}
	if t.query.Note != "" {
		t.addNote(subjects.NoteRenamed, t.query.Note)
	}
	state := t.state()
	switch {
	case t.isQueryTooLong():
		t.query.Query = t.rec.Query
		return t.storeAnswer(ctx, loop.State{}, errQueryTooLong)
	case t.isLastAttempt && t.rec.Stalled >= 2:
		// Whoever began it died at this very place, more than once. This time somebody must stay alive to tell.
		t.addNote(subjects.NoteLost, fmt.Sprintf("it was tried %d times and ended each time before there was an answer", t.attempt))
		return t.storeAnswer(ctx, state, errRetriesExhausted)
	}
	inner, end := t.g.cancels.watch(ctx, t.query.QueryID)
	defer end()
	if inner.Err() == nil {
		var err error
		if state, err = t.runLoop(inner, state); err == nil {
			return nil // the last checkpoint holds the answer
		} else if !errors.Is(context.Cause(inner), errCanceled) {
			return t.handleFailure(ctx, state, err)
		}
		if t.checkpointErr != nil {
			return t.checkpointErr
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) { // the system is closing: that it was stopped is remembered by the one who stopped it
		return context.Cause(ctx)
	}
	state.Partial = true
	return t.storeAnswer(ctx, state, nil)
}

// handleFailure decides what becomes of a turn that brought no answer: told to the user, or tried again.
func (t *turn) handleFailure(ctx context.Context, state loop.State, err error) error {
	switch {
	case errors.Is(t.checkpointErr, errRecordTooLarge):
		return t.storeAnswer(ctx, state, errRecordTooLarge)
	case t.checkpointErr != nil:
		return t.checkpointErr
	case errors.Is(ctx.Err(), context.Canceled): // the system is closing
		return err
	case ctx.Err() != nil: // the caller's own deadline
		return t.storeAnswer(ctx, state, ctx.Err())
	}
	if f, _ := explain(err); f.Code == subjects.CodeInternal {
		t.out.LogError(err)
	}
	return t.storeAnswer(ctx, state, err)
}

// runLoop runs the loop.
func (t *turn) runLoop(ctx context.Context, state loop.State) (loop.State, error) {
	if err := t.openStreams(); err != nil {
		return state, err
	}
	t.role = t.g.assistantModel(ctx, t.out)
	t.counter = callCounter{open: countCalls(state)}
	for _, d := range state.Finished { // these came back before the interruption
		if slices.ContainsFunc(state.Messages[len(state.Messages)-1].Calls, func(c model.Call) bool { return c.ID == d.Call.ID }) {
			t.counter.open--
		}
	}
	in := loop.Input{Summary: t.prior.Summary, History: historyMessages(t.prior), State: state}
	return loop.RunTurn(ctx, t.agent(ctx), in, t.hooks(ctx))
}

// openStreams opens the live streams. Respondent B has none.
func (t *turn) openStreams() (err error) {
	if t.g.isRespondentB {
		return nil
	}
	if t.delta, err = newDeltaStream(t.out, subjects.ResponseDelta, t.g.name, t.query.QueryID); err != nil {
		return err
	}
	t.thinking, err = newDeltaStream(t.out, subjects.ResponseThinking, t.g.name, t.query.QueryID)
	return err
}

// agent is the loop's agent for this turn.
func (t *turn) agent(ctx context.Context) loop.Agent {
	cfg := t.g.cfg
	tools := t.discoverTools(ctx)
	a := loop.Agent{
		Chat:      wire.Client{Out: t.out, Role: subjects.RoleAssistant, Timeout: cfg.CallTimeout, Last: t.noteChunk},
		RunTool:   t.runTool,
		Model:     t.query.Model,
		System:    t.g.systemPrompt(tools),
		Tools:     tools,
		TextTools: !t.role.Tools,
		Stream:    cfg.Stream && t.role.Stream,
		Limits:    cfg.loopLimits(),
		Hedge:     loop.Hedge{SearchTool: cfg.Hedge.Search, Reask: cfg.Hedge.Reask},
		Now:       t.out.Now,
		NewID:     t.out.NewID,
	}
	a.Options.Window = t.role.Window
	if t.g.isRespondentB {
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

// noteChunk takes down who answered.
func (t *turn) noteChunk(c subjects.ChatChunk) {
	if c.DemoModel {
		t.demoModel = true
		t.addNote(subjects.NoteDemoModel, "the built-in demo model answered, not a model")
	}
	if c.Notice != "" {
		t.addNote(subjects.NoteModel, text.OneLine(c.Notice, maxTextBytes))
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
			t.transition(startGeneration, step)
		},
		Thinking: func(step int, text string) { t.thinking.write(ctx, step, text) },
		Token: func(step int, text string) {
			t.thinking.flush(ctx)
			t.delta.write(ctx, step, text)
		},
		Interim: func(step int, words string) {
			flush()
			t.emitState(subjects.AgentState{To: string(t.machine.current), Step: step, Words: text.Clip(words, 4<<10)})
		},
		Started:  func(step int, _ model.Call, _ string) { t.callStarted(step) },
		Finished: func(step int, d loop.FinishedCall) { t.callFinished(step, d) },
		Note:     func(n loop.Note) { t.emitNote(n.Code, n.Text) },
		Checkpoint: func(ctx context.Context, s *loop.State) error {
			flush()
			t.checkpointErr = t.storeCheckpoint(ctx, s)
			return t.checkpointErr
		},
	}
	if t.g.isRespondentB {
		h.Thinking, h.Token, h.Interim = nil, nil, nil
	}
	return h
}

// storeCheckpoint writes down how far the loop is. With the answer, what is written down is the answer to publish.
func (t *turn) storeCheckpoint(ctx context.Context, s *loop.State) error {
	if s.Final {
		return t.storeAnswer(ctx, *s, nil)
	}
	t.counter = callCounter{open: countCalls(*s)}
	t.rec.Stage, t.rec.State, t.rec.Stalled = stageWorking, s, 0
	return t.storeRecord(ctx, "turn.step")
}

// countCalls is how many calls of the last reply wait for their result.
func countCalls(s loop.State) int {
	if len(s.Messages) == 0 {
		return 0
	}
	return len(s.Messages[len(s.Messages)-1].Calls)
}

// callStarted tells of a call that is sent.
func (t *turn) callStarted(step int) {
	if t.counter.begun++; !t.machine.isIn(dispatching, waiting) {
		t.transition(dispatchTool, step)
	}
	if t.counter.begun >= t.counter.open && t.machine.isIn(dispatching) {
		t.transition(dispatchTool, step)
	}
}

// callFinished tells of a call that came back, or did not.
func (t *turn) callFinished(step int, d loop.FinishedCall) {
	t.counter.done++
	t.counter.late = t.counter.late || d.Result.Fault == subjects.CodeTimeout || d.Result.Fault == subjects.CodeUnavailable
	if t.counter.done < max(t.counter.open, t.counter.begun) {
		return
	}
	if t.counter.late {
		t.transition(toolTimeout, step)
		return
	}
	t.transition(toolResult, step)
}

// addNote adds something that the user should know to the answer, once, and tells it now.
func (t *turn) addNote(code, text string) {
	n := subjects.Note{Code: code, Text: text}
	if slices.Contains(t.notes, n) {
		return
	}
	t.notes = append(t.notes, n)
	t.emitNote(code, text)
}

func (t *turn) emitNote(code, words string) {
	t.emitState(subjects.AgentState{To: string(t.machine.current), Code: code, Words: text.Clip(words, 1<<10)})
}

// emitFault tells of a fault that the answer will be about.
func (t *turn) emitFault(f *subjects.Fault) {
	if f != nil {
		t.emitNote(f.Code, f.Text)
	}
}

func (t *turn) emitTransition(from, to state, e event, step int) {
	t.emitState(subjects.AgentState{From: string(from), To: string(to), Event: string(e), Step: step})
}

// emitState posts on the agent's state. It is a view of the turn and does not hold it up.
func (t *turn) emitState(s subjects.AgentState) {
	if t.g.isRespondentB && s.Event == "" {
		return // its words, notes and faults are in its answer, and nowhere that a person looks
	}
	topic, err := subjects.AgentStateEvent.With(t.g.name)
	if err != nil {
		return
	}
	s.SessionID, s.QueryID = t.sessionID, t.query.QueryID
	if err := actor.EmitAsync(context.Background(), t.out, topic, s); err != nil {
		t.out.LogError(err)
	}
}
