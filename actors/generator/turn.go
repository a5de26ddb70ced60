package generator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/respondent/conversation"
	"conclave/pkg/text"
	"conclave/subjects"
)

// turn is one attempt, in this process, to answer one question.
type turn struct {
	g             *Generator
	out           actor.Out
	store         actor.Store
	sessionID     string
	query         subjects.Query
	attempt       int
	isLastAttempt bool // the message will not be delivered again

	machine *stateMachine
	record  turnRecord
	rev     uint64                // of the stored record
	loaded  sessionState          // the session when the turn was claimed
	prior   subjects.Conversation // the conversation before the question, as the model is sent it

	role          subjects.RoleModel
	demoModel     bool
	notes         []subjects.Note
	delta         *agent.DeltaStream
	thinking      *agent.DeltaStream
	counter       callCounter
	callBegan     time.Time            // of the running model call, until its first token; zero = none
	modelCalls    []subjects.ModelCall // those with a first token
	checkpointErr error                // of the last checkpoint

	resultMu  sync.Mutex // guards record.Labels, record.Recalls and clipNotes: calls run at the same time
	clipNotes []subjects.Note
}

// callCounter counts the calls of one reply.
type callCounter struct {
	open, begun, done int
	late              bool // one timed out or was unavailable
}

// newTurn is a turn for a message whose tokens and query id are valid.
func (g *Generator) newTurn(in actor.Msg[subjects.Query], out actor.Out) *turn {
	t := &turn{
		g: g, out: out.WithIDs(in.Tokens[1], in.Body.QueryID), store: out.Store(g.bucket()), sessionID: in.Tokens[1],
		query: in.Body, attempt: in.Attempt, isLastAttempt: in.Attempt >= subjects.MaxDeliver,
	}
	t.machine = newStateMachine(t.emitTransition)
	return t
}

// run answers the question: it claims the turn, generates the answer, stores and publishes it. nil = the answer is
// published, now or before. errNotOwner = another process has the turn. On the last attempt an error or a panic of the
// generation becomes the answer, so that the user is not left without one.
func (t *turn) run(ctx context.Context) (err error) {
	if t.isLastAttempt { // on earlier attempts the runtime recovers and retries
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
	if err = t.generateAnswer(ctx); err != nil && !errors.Is(err, errNotOwner) && t.isLastAttempt &&
		t.record.Publish == nil {
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

// transition moves the state machine. An invalid transition is a bug; it is logged and does not end the turn.
func (t *turn) transition(e event, step int) {
	if err := t.machine.advance(e, step); err != nil {
		t.out.LogError(err)
	}
}

// claim loads the session and stores the record of the turn by compare-and-set. It reports true when the question was
// answered before. It first finishes another turn of the session that was abandoned, except for respondent B: nobody
// waits for its answers. It fails with CodeBusy when others change the session in each of 8 attempts.
func (t *turn) claim(ctx context.Context) (answered bool, err error) {
	for range 8 {
		s, err := t.g.loadSession(ctx, t.store, t.sessionID)
		if err != nil {
			return false, err
		}
		if s.conversation.Answered(t.query.QueryID) {
			t.emitNote(subjects.NoteDuplicate, "duplicate: this question was answered before")
			return true, nil
		}
		if t.prior = s.conversation; t.g.isRespondentB {
			t.prior = t.userConversation(ctx, s.conversation)
		}
		left := s.record.QueryID
		abandoned := left != "" && left != t.query.QueryID && !s.conversation.Answered(left) && !t.g.isRespondentB
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
			if t.record.Stalled > 0 {
				t.emitNote(subjects.NoteResumed, "resumed after an interruption; it was "+t.record.Stage)
			}
			return false, nil
		}
	}
	return false, subjects.Faultf(subjects.CodeBusy, "claiming the turn: others kept changing the session; the "+
		"question is retried later")
}

// adoptRecord fills in the record of this attempt: that of an unfinished attempt at the same question, or a new one. It
// stores nothing. A question that is too long is clipped. t.prior must be set.
func (t *turn) adoptRecord(s sessionState) {
	t.loaded, t.rev = s, s.recordRev
	if s.record.QueryID == t.query.QueryID {
		t.record = s.record
		t.record.Stalled++
	} else {
		t.record = turnRecord{
			QueryID: t.query.QueryID, Query: t.query.Query, Reference: text.Clip(t.query.Reference, maxReference),
			Stage: stageReceived,
			Began: t.out.Now().UTC(), Graded: t.g.describeGrades(t.prior),
		}
		t.adoptAttachments()
	}
	t.record.Labels = t.record.Labels.Join(conversation.Labels(t.prior)).Join(labelAttachments(t.record.Attachments)).
		Join(agent.LabelQuestion(t.query, t.sessionID))
	if t.isQueryTooLong() {
		t.record.Query, t.record.Attachments = text.Clip(t.record.Query, 16<<10),
			conversation.ShortenAttachments(t.record.Attachments, conversation.MaxAttachmentStart)
	}
	t.record.Owner, t.record.Try = t.out.NewID(), t.attempt
}

// maxQuestion bounds an encoded question with its attachments, in bytes: with the progress of the turn it must fit into
// a record.
const maxQuestion = 128 << 10

func (t *turn) isQueryTooLong() bool {
	data, err := actor.EncodeValue(subjects.Query{Query: t.query.Query, Attachments: t.query.Attachments})
	return err != nil || len(data) > maxQuestion
}

// finishAbandoned publishes an answer to the earlier question in s.record, whose every attempt crashed: the stored
// answer, or else the progress with an error. It is known to be abandoned because the next question of a session is
// delivered only after the last attempt at the one before. errNotOwner = another process has written the record since.
func (t *turn) finishAbandoned(ctx context.Context, s sessionState) error {
	left := &turn{
		g: t.g, out: t.out.WithIDs(t.sessionID, s.record.QueryID), store: t.store, sessionID: t.sessionID,
		attempt: s.record.Try, isLastAttempt: true,
	}
	left.machine = newStateMachine(left.emitTransition)
	left.query = subjects.Query{
		SessionID: t.sessionID, QueryID: s.record.QueryID, Query: s.record.Query,
		Attachments: s.record.Attachments, Reference: s.record.Reference,
	}
	left.prior = s.conversation
	left.adoptRecord(s)
	if err := left.storeRecord(ctx, "turn.start"); err != nil {
		return err
	}
	left.transition(receiveQuery, 0)
	if left.record.Publish == nil {
		left.addNote(subjects.NoteLost, "every attempt to answer it was interrupted")
		if err := left.storeAnswer(ctx, left.state(), errRetriesExhausted); err != nil {
			return err
		}
	} else {
		left.transition(finish, 0)
	}
	return left.publish(ctx)
}

// state is the stored progress of the turn, or its beginning: the question with its attachments, behind the grades of
// the last answer if there are any to send.
func (t *turn) state() loop.State {
	if t.record.State != nil {
		return *t.record.State
	}
	question := model.Message{Role: model.User, Content: subjects.JoinAttached(t.query.Query,
		frameAttachments(t.record.Attachments, t.record.Nonce)), Images: listImages(t.sessionID, t.record.Attachments)}
	if t.record.Graded == "" {
		return loop.State{Messages: []model.Message{question}}
	}
	// It follows the history, which the model server has in its cache, and is not kept with the turn: see
	// [selectCompleteRounds].
	return loop.State{Messages: []model.Message{{Role: model.User, Content: t.record.Graded}, question}}
}

// generateAnswer runs the turn until its answer is stored in the record; an error of the model and a cancellation by
// the user are stored as the answer too. It answers with an error, without a model, a question that is too long and a
// last attempt after two crashes without progress. An error means that the turn is retried later.
func (t *turn) generateAnswer(ctx context.Context) error {
	if t.record.Publish != nil { // stored before a crash
		t.transition(finish, 0)
		return nil
	}
	if t.query.Note != "" {
		t.addNote(subjects.NoteRenamed, t.query.Note)
	}
	state := t.state()
	switch {
	case t.isQueryTooLong():
		t.query.Query = t.record.Query
		return t.storeAnswer(ctx, loop.State{}, errQueryTooLong)
	case t.isLastAttempt && t.record.Stalled >= 2:
		// It crashed more than once at this point: do not risk the last attempt.
		t.addNote(subjects.NoteLost, fmt.Sprintf("%d attempts were interrupted before there was an answer", t.attempt))
		return t.storeAnswer(ctx, state, errRetriesExhausted)
	}
	t.noteAttachments()
	inner, end := t.g.cancels.Watch(ctx, t.query.QueryID)
	defer end()
	if inner.Err() == nil {
		var err error
		if state, err = t.runLoop(inner, state); err == nil {
			return nil // the last checkpoint holds the answer
		} else if !errors.Is(context.Cause(inner), agent.ErrCanceled) {
			return t.handleFailure(ctx, state, err)
		}
		if t.checkpointErr != nil {
			return t.checkpointErr
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) { // shutdown: the cancellation is handled after the restart
		return context.Cause(ctx)
	}
	state.Partial = true
	return t.storeAnswer(ctx, state, nil)
}

// handleFailure decides about a turn whose loop failed with err. It returns an error, for a retry, when a checkpoint
// could not be stored or the process shuts down; any other error is stored as the answer, with the progress in state.
func (t *turn) handleFailure(ctx context.Context, state loop.State, err error) error {
	switch {
	case errors.Is(t.checkpointErr, errRecordTooLarge):
		return t.storeAnswer(ctx, state, errRecordTooLarge)
	case t.checkpointErr != nil:
		return t.checkpointErr
	case errors.Is(ctx.Err(), context.Canceled): // shutdown
		return err
	case ctx.Err() != nil: // the caller's own deadline
		return t.storeAnswer(ctx, state, ctx.Err())
	}
	if f, _ := explain(err); f.Code == subjects.CodeInternal {
		t.out.LogError(err)
	}
	return t.storeAnswer(ctx, state, err)
}

// runLoop runs the agent loop from state, with the current model and tools, and returns its last state. See
// [loop.RunTurn] for errors.
func (t *turn) runLoop(ctx context.Context, state loop.State) (loop.State, error) {
	if err := t.openStreams(); err != nil {
		return state, err
	}
	t.role = t.g.models.Role(ctx, t.out, subjects.RoleAssistant)
	if err := t.checkImages(ctx); err != nil {
		return state, err
	}
	t.counter = callCounter{open: countCalls(state)}
	for _, d := range state.Finished { // finished before the interruption
		if slices.ContainsFunc(state.Messages[len(state.Messages)-1].Calls, func(c model.Call) bool {
			return c.ID == d.Call.ID
		}) {
			t.counter.open--
		}
	}
	a := t.agent(ctx)
	recalled := t.recallFirst(ctx, &a, state)
	a.Withheld = SelectWithheldTools(t.ownWords())
	in := loop.Input{Summary: t.prior.Summary, History: t.history(ctx), State: state, Recalled: recalled}
	return loop.RunTurn(ctx, a, in, t.hooks(ctx))
}

// openStreams opens the streams of deltas. Respondent B has none. It fails when the query id is not a valid token.
func (t *turn) openStreams() (err error) {
	if t.g.isRespondentB {
		return nil
	}
	if t.delta, err = agent.NewDeltaStream(t.out, subjects.ResponseDelta, t.g.name, t.query.QueryID); err != nil {
		return err
	}
	t.thinking, err = agent.NewDeltaStream(t.out, subjects.ResponseThinking, t.g.name, t.query.QueryID)
	return err
}

// agent is the loop's agent for this turn, without examples. It asks the broker for tools; t.role must be set.
func (t *turn) agent(ctx context.Context) loop.Agent {
	cfg := t.g.cfg
	a := loop.Agent{
		Chat: wire.Client{
			Out: t.out, Role: subjects.RoleAssistant, Hint: t.query.Hint, Timeout: cfg.Wall,
			OnDone: t.noteChunk,
		},
		RunTool:  t.caller().RunTool,
		Model:    t.query.Model,
		System:   t.g.systemPrompt(),
		Plain:    &cfg.System,
		Tools:    t.discoverTools(ctx),
		Calls:    agent.CallMode(t.role),
		Question: t.describeQuestion(),
		Stream:   cfg.Stream && t.role.Stream,
		Limits:   cfg.loopLimits(),
		Settings: settingsFile,
		Hedge:    loop.Hedge{SearchTool: cfg.Hedge.Search, Query: t.ownWords(), Reask: cfg.Hedge.Reask},
		Now:      t.out.Now,
		NewID:    t.out.NewID,
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

// noteChunk notes a reply of the built-in demo model, and notices of the model actor. c is the last chunk of a reply.
func (t *turn) noteChunk(c subjects.ChatChunk) {
	if c.DemoModel {
		t.demoModel = true
		t.addNote(subjects.NoteDemoModel, "answered by the built-in demo model, which is not a language model")
	}
	if c.Notice != "" {
		t.addNote(subjects.NoteModel, text.OneLine(c.Notice, maxTextBytes))
	}
}

// hooks publish the progress of the loop and store its checkpoints. Respondent B publishes no thinking, tokens and
// interim texts.
func (t *turn) hooks(ctx context.Context) loop.Hooks {
	flush := func() {
		t.thinking.Flush(ctx)
		t.delta.Flush(ctx)
	}
	h := loop.Hooks{
		Generating: func(step int) {
			flush()
			t.transition(startGeneration, step)
			t.callBegan = t.out.Now()
		},
		Reading: func(step int, r model.Reading) {
			t.emitState(subjects.AgentState{
				To: string(t.machine.current), Step: step,
				Reading: &subjects.PromptReading{Tokens: r.Tokens, Millis: r.Expected.Milliseconds(), Whole: r.Whole},
			})
		},
		Thinking: func(step int, text string) {
			t.recordFirstToken(step)
			t.thinking.Write(ctx, step, text)
		},
		Token: func(step int, text string) {
			t.recordFirstToken(step)
			t.thinking.Flush(ctx)
			t.delta.Write(ctx, step, text)
		},
		Interim: func(step int, interim string) {
			flush()
			t.emitState(subjects.AgentState{
				To: string(t.machine.current), Step: step,
				Words: text.Clip(interim, 4<<10),
			})
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

// storeCheckpoint stores the progress of the loop. A final state is stored as the answer to publish.
func (t *turn) storeCheckpoint(ctx context.Context, s *loop.State) error {
	if s.Final {
		return t.storeAnswer(ctx, *s, nil)
	}
	t.counter = callCounter{open: countCalls(*s)}
	t.record.Stage, t.record.State, t.record.Stalled = stageWorking, s, 0
	return t.storeRecord(ctx, "turn.step")
}

// countCalls is the number of calls in the last message.
func countCalls(s loop.State) int {
	if len(s.Messages) == 0 {
		return 0
	}
	return len(s.Messages[len(s.Messages)-1].Calls)
}

// callStarted moves the state machine when the first and when the last call of a reply is sent.
func (t *turn) callStarted(step int) {
	if t.counter.begun++; !t.machine.isIn(dispatching, waiting) {
		t.transition(dispatchTool, step)
	}
	if t.counter.begun >= t.counter.open && t.machine.isIn(dispatching) {
		t.transition(dispatchTool, step)
	}
}

// callFinished moves the state machine when all calls of a reply have their results: by toolTimeout if one timed out or
// was unavailable.
func (t *turn) callFinished(step int, d loop.FinishedCall) {
	t.counter.done++
	t.counter.late = t.counter.late || d.Result.Fault == subjects.CodeTimeout ||
		d.Result.Fault == subjects.CodeUnavailable
	if t.counter.done < max(t.counter.open, t.counter.begun) {
		return
	}
	if t.counter.late {
		t.transition(toolTimeout, step)
		return
	}
	t.transition(toolResult, step)
}

// addNote adds a note to the answer, once, and emits it now.
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

// emitFault emits the fault that the answer is about.
func (t *turn) emitFault(f *subjects.Fault) {
	if f != nil {
		t.emitNote(f.Code, f.Text)
	}
}

func (t *turn) emitTransition(from, to state, e event, step int) {
	t.emitState(subjects.AgentState{From: string(from), To: string(to), Event: string(e), Step: step})
}

// emitState publishes a state of the turn without waiting: it is a view of the turn, and a failure is only logged.
// Notes, faults and texts of respondent B are not published: they are only in its answer, where users do not see them.
func (t *turn) emitState(s subjects.AgentState) {
	if t.g.isRespondentB && s.Event == "" {
		return
	}
	s.SessionID, s.QueryID = t.sessionID, t.query.QueryID
	agent.EmitState(t.out, s, t.g.name)
}

// recordFirstToken records how long a model call took to its first token. Further tokens of the call change nothing.
func (t *turn) recordFirstToken(step int) {
	if t.callBegan.IsZero() {
		return
	}
	t.modelCalls = append(t.modelCalls,
		subjects.ModelCall{Step: step, FirstMillis: t.out.Now().Sub(t.callBegan).Milliseconds()})
	t.callBegan = time.Time{}
}
