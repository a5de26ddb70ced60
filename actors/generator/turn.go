package generator

import (
	"cmp"
	"context"
	"slices"
	"time"

	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/respondent"
	"conclave/pkg/text"
	"conclave/subjects"
)

// turn is one attempt, in this process, to answer one question. It implements [respondent.Work].
type turn struct {
	*respondent.Turn[turnRecord]
	g       *Generator
	machine *stateMachine
	loaded  sessionState          // the session as it was read, and from Append on as it is stored
	size    int                   // bytes of the conversation with the answer; 0 = it had it before
	prior   subjects.Conversation // the conversation before the question, as the model is sent it

	role       subjects.RoleModel
	demoModel  bool
	progress   *loop.State          // of the loop; nil = it did not run
	results    agent.Collection     // of this attempt and those before
	streams    *agent.AnswerStreams // nil for respondent B
	counter    callCounter
	callBegan  time.Time            // of the running model call, until its first token; zero = none
	modelCalls []subjects.ModelCall // those with a first token
}

// callCounter counts the calls of one reply.
type callCounter struct {
	open, begun, done int
	late              bool // one timed out or was unavailable
}

func (g *Generator) newTurn(kernel *respondent.Turn[turnRecord]) *turn {
	t := &turn{Turn: kernel, g: g}
	t.machine = newStateMachine(func(from, to state, e event, step int) {
		t.State = string(to)
		t.EmitState(subjects.AgentState{From: string(from), To: string(to), Event: string(e), Step: step})
	})
	t.State = string(t.machine.current)
	return t
}

// transition moves the state machine. An invalid transition is a bug; it is logged and does not end the turn.
func (t *turn) transition(e event, step int) {
	if err := t.machine.advance(e, step); err != nil {
		t.Out.LogError(err)
	}
}

// start is the progress of the turn, or its beginning: the question with its attachments, behind the grades of the last
// answer if there are any to send.
func (t *turn) start() loop.State {
	r := t.Record()
	switch {
	case t.progress != nil:
		return *t.progress
	case r.State != nil:
		return *r.State
	}
	question := model.Message{Role: model.User, Content: subjects.JoinAttached(t.Query.Query,
		agent.FrameAttachments(r.Attachments, r.Nonce)), Images: agent.ListImages(t.Session, r.Attachments)}
	if r.Graded == "" {
		return loop.State{Messages: []model.Message{question}}
	}
	// It follows the history, which the model server has in its cache, and is not kept with the turn: see
	// [selectCompleteRounds].
	return loop.State{Messages: []model.Message{{Role: model.User, Content: r.Graded}, question}}
}

// Run implements [respondent.Work]: it runs the loop. It answers without a model a question that is too long.
func (t *turn) Run(ctx context.Context) error {
	if t.Query.Note != "" {
		t.Note(subjects.NoteRenamed, t.Query.Note)
	}
	if t.isQueryTooLong() {
		t.Query.Query, t.progress = t.Record().Query, &loop.State{}
		return errQueryTooLong
	}
	t.noteAttachments()
	state, err := t.runLoop(ctx, t.start())
	t.progress = &state
	return err
}

// runLoop runs the agent loop from state, with the current model and tools, and returns its last state. See
// [loop.RunTurn] for errors.
func (t *turn) runLoop(ctx context.Context, state loop.State) (loop.State, error) {
	if !t.g.isRespondentB {
		t.streams = agent.NewAnswerStreams(t.Out, t.g.Account, t.Query.QueryID)
	}
	t.role = t.g.models.Role(ctx, t.Out, subjects.RoleAssistant)
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

// agent is the loop's agent for this turn, without examples. It asks the broker for tools; t.role must be set.
func (t *turn) agent(ctx context.Context) loop.Agent {
	cfg := t.g.cfg
	a := agent.NewLoop(wire.Client{
		Out: t.Out, Role: subjects.RoleAssistant, Hint: t.Query.Hint, Timeout: cfg.Wall,
		OnDone: t.noteChunk,
	}, t.role, &cfg.Thinking, cfg.loopLimits(), settingsFile)
	a.RunTool, a.Tools = t.caller().RunTool, t.discoverTools(ctx)
	a.Model, a.System, a.Plain = t.Query.Model, t.g.systemPrompt(), &cfg.System
	a.Question = t.describeQuestion()
	a.Stream = cfg.Stream && a.Stream
	a.Hedge = loop.Hedge{SearchTool: cfg.Hedge.Search, Query: t.ownWords(), Reask: cfg.Hedge.Reask}
	if t.g.isRespondentB {
		warm := float64(cfg.RespondentB.Temperature)
		a.Model, a.Options.Temperature = cmp.Or(cfg.RespondentB.Model, a.Model), &warm
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
		t.Note(subjects.NoteDemoModel, "answered by the built-in demo model, which is not a language model")
	}
	if c.Notice != "" {
		t.Note(subjects.NoteModel, text.OneLine(c.Notice, maxTextBytes))
	}
}

// hooks publish the progress of the loop and store its checkpoints. Respondent B publishes no thinking, tokens and
// interim texts.
func (t *turn) hooks(ctx context.Context) loop.Hooks {
	h := loop.Hooks{
		Generating: func(step int) {
			t.streams.Flush(ctx)
			t.transition(startGeneration, step)
			t.callBegan = t.Out.Now()
		},
		Reading: func(step int, r model.Reading) {
			t.EmitState(subjects.AgentState{
				To: string(t.machine.current), Step: step, Reading: wire.EncodeReading(r),
			})
		},
		Thinking: func(step int, text string) {
			t.recordFirstToken(step)
			t.streams.WriteThinking(ctx, step, text)
		},
		Token: func(step int, text string) {
			t.recordFirstToken(step)
			t.streams.WriteToken(ctx, step, text)
		},
		Interim: func(step int, interim string) {
			t.streams.Flush(ctx)
			t.EmitState(subjects.AgentState{
				To: string(t.machine.current), Step: step,
				Words: text.Clip(interim, 4<<10),
			})
		},
		Started:  func(step int, _ model.Call, _ string) { t.callStarted(step) },
		Finished: func(step int, d loop.FinishedCall) { t.callFinished(step, d) },
		Note:     func(n loop.Note) { t.EmitNote(n.Code, n.Text) },
		Checkpoint: func(ctx context.Context, s *loop.State) error {
			t.streams.Flush(ctx)
			return t.storeCheckpoint(ctx, s)
		},
	}
	if t.g.isRespondentB {
		h.Thinking, h.Token, h.Interim = nil, nil, nil
	}
	return h
}

// storeCheckpoint stores the progress of the loop. A final state is stored with the answer, not here.
func (t *turn) storeCheckpoint(ctx context.Context, s *loop.State) error {
	if s.Final {
		return nil
	}
	t.counter = callCounter{open: countCalls(*s)}
	labels, recalls := t.results.Result()
	state := *s // the loop goes on with its own
	return t.Checkpoint(ctx, "turn.step", func(r *turnRecord) {
		r.Stage, r.State, r.Labels, r.Recalls = stageWorking, &state, labels, recalls
	})
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
	t.counter.begun++
	if !t.machine.isIn(dispatching, waiting) {
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

// recordFirstToken records how long a model call took to its first token. Further tokens of the call change nothing.
func (t *turn) recordFirstToken(step int) {
	if t.callBegan.IsZero() {
		return
	}
	t.modelCalls = append(t.modelCalls,
		subjects.ModelCall{Step: step, FirstMillis: t.Out.Now().Sub(t.callBegan).Milliseconds()})
	t.callBegan = time.Time{}
}
