package committee

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Bounds of a contribution. The record keeps less than the event.
const (
	maxContribution = 6 << 10  // bytes of its text for later personas
	maxSaid         = 16 << 10 // bytes of its text in the event
	maxThinking     = 16 << 10
	maxKeptCalls    = 4 // in the record and in the answer
	maxKeptResult   = 512
	maxTracedCalls  = 24 // in the event
	maxTracedResult = 2 << 10
	maxTools        = 4 // offered to a persona
)

// voice is one persona's turn in one round.
type voice struct {
	t       *turn
	persona Persona
	round   int
	closing bool
	earlier []contribution

	token   string
	agent   *agent.Agent
	found   agent.Collection
	model   string // of the last reply
	demo    bool
	notes   []subjects.Note
	streams *agent.AnswerStreams // of the closing persona; nil for others
}

// newVoice prepares a persona's turn. Call ids are unique to this attempt: a contribution that was interrupted is made
// anew, and its tools only read.
func (t *turn) newVoice(p Persona, round int, closing bool, earlier []contribution) *voice {
	v := &voice{
		t: t, persona: p, round: round, closing: closing, earlier: earlier,
		token: subjects.PersonaToken(p.Name),
	}
	v.agent = t.newAgent(fmt.Sprintf("%s %s %d", t.Owner, v.token, round), &v.found)
	v.agent.OnClipped = func(tool string) {
		t.EmitState(subjects.AgentState{Code: loop.NoteClipped, Words: "a result of " + tool +
			" was clipped for the model"}, v.token)
	}
	return v
}

// newAgent is an agent of the committee's account; results are added to found.
func (t *turn) newAgent(scope string, found *agent.Collection) *agent.Agent {
	return &agent.Agent{
		Out: t.Out, Session: t.Session, Query: t.Query.QueryID, Scope: scope, ToolTimeout: t.c.cfg.ToolTimeout,
		MaxResult: int(t.c.cfg.Result),
		OnResult:  func(_ string, res subjects.ToolResult) { found.Add(res) },
	}
}

// contribute lets a persona speak in a round and stores its contribution with the event. A persona that fails is stored
// as failed. An error ends the turn: the user canceled it, ctx ended, or storing failed.
func (t *turn) contribute(ctx context.Context, p Persona, round int, earlier []contribution) error {
	v := t.newVoice(p, round, false, earlier)
	state, err := v.speak(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	said, event := v.finish(state, err)
	return t.Checkpoint(ctx, "turn.contribution", func(r *record) {
		r.Done = append(slices.Clip(r.Done), said)
		r.Events = append(slices.Clip(r.Events), pendingEvent{ID: t.Out.NewID(), Body: event})
	})
}

// closed is the closing persona's turn, with the event about it, which is stored with the answer.
type closed struct {
	contribution
	event subjects.Deliberation
}

// close lets the closing persona give the answer. It returns the state of its loop, also after an error, and what is
// published about it; nil when the process shuts down.
func (t *turn) close(ctx context.Context, p Persona) (loop.State, *closed, error) {
	v := t.newVoice(p, t.rounds()+1, true, t.Record().Done)
	v.streams = agent.NewAnswerStreams(t.Out, name, t.Query.QueryID)
	state, err := v.speak(ctx)
	v.streams.Flush(ctx)
	for _, n := range v.notes {
		t.Note(n.Code, n.Text)
	}
	var end closed
	switch {
	case errors.Is(context.Cause(ctx), agent.ErrCanceled): // its partial text is the answer
		end.contribution, end.event = v.finish(state, nil)
	case ctx.Err() != nil:
		return state, nil, err
	default:
		end.contribution, end.event = v.finish(state, err)
	}
	return state, &end, err
}

// speak publishes that the persona is working and runs its loop.
func (v *voice) speak(ctx context.Context) (loop.State, error) {
	t, cfg := v.t, v.t.c.cfg
	if err := ctx.Err(); err != nil {
		return loop.State{}, err
	}
	actor.EmitView(ctx, t.Out, subjects.DeliberationEvent, v.event(subjects.DeliberationWorking), t.Query.QueryID)
	of := t.abilities(v.persona)
	a := agent.NewLoop(wire.Client{
		Out: t.Out, Role: subjects.RoleAssistant, Hint: t.Query.Hint, Timeout: cfg.Wall,
		OnDone: v.onReply,
	}, of, &cfg.Thinking, cfg.loopLimits(v.closing), settingsFile)
	a.RunTool, a.Model = v.agent.RunTool, cmp.Or(v.persona.Model, t.Query.Model)
	a.System, a.Question = systemPrompt(v.persona, v.closing), subjects.UserText(t.Query.Query)
	a.Stream = cfg.Stream && a.Stream
	context := ""
	if c := t.Record().Context; c != nil && a.Calls != loop.CallNative {
		context = c.Text
	}
	switch a.Calls {
	case loop.CallNative:
		a.Tools = t.tools
	case loop.CallConstrained:
		a.Tools = agent.RemoveRecallTools(t.tools)
	}
	// a quarter of the window at four bytes a token
	question := buildMessage(context, v.earlier, t.asked, t.nonce, of.Window)
	in := loop.Input{
		History: t.history,
		State:   loop.State{Messages: []model.Message{{Role: model.User, Content: question}}},
	}
	return loop.RunTurn(ctx, a, in, v.hooks(ctx))
}

// event is an event of this persona's turn.
func (v *voice) event(status string) subjects.Deliberation {
	return subjects.Deliberation{
		SessionID: v.t.Session, QueryID: v.t.Query.QueryID, Persona: v.persona.Name,
		Round: v.round, Status: status, Closing: v.closing,
	}
}

// onReply notes the model of a reply, the built-in demo model and notices of the model actor.
func (v *voice) onReply(c subjects.ChatChunk) {
	v.model, v.demo = c.Model, v.demo || c.DemoModel
	if c.Notice != "" {
		v.addNote(subjects.NoteModel, text.OneLine(c.Notice, maxDissent))
	}
}

// addNote adds a note to the contribution, once, and publishes it now.
func (v *voice) addNote(code, words string) {
	if n := (subjects.Note{Code: code, Text: words}); !slices.Contains(v.notes, n) {
		v.notes = append(v.notes, n)
		v.t.EmitState(subjects.AgentState{Code: code, Words: text.Clip(words, 1<<10)}, v.token)
	}
}

// hooks publish the progress of the persona, and of the closing one also the answer as it grows.
func (v *voice) hooks(ctx context.Context) loop.Hooks {
	h := loop.Hooks{
		Generating: func(step int) {
			v.streams.Flush(ctx)
			v.t.EmitState(subjects.AgentState{To: "GENERATING", Event: "START_GENERATION", Step: step}, v.token)
		},
		Reading: func(step int, r model.Reading) {
			v.t.EmitState(subjects.AgentState{To: "GENERATING", Step: step, Reading: wire.EncodeReading(r)}, v.token)
		},
		Interim: func(step int, interim string) {
			v.streams.Flush(ctx)
			v.t.EmitState(subjects.AgentState{To: "GENERATING", Step: step, Words: text.Clip(interim, 4<<10)}, v.token)
		},
		Started: func(step int, _ model.Call, _ string) {
			v.t.EmitState(subjects.AgentState{To: "WAITING_FOR_TOOL", Event: "DISPATCH_TOOL", Step: step}, v.token)
		},
		Note: func(n loop.Note) { v.addNote(n.Code, n.Text) },
	}
	if v.closing {
		h.Thinking = func(step int, words string) { v.streams.WriteThinking(ctx, step, words) }
		h.Token = func(step int, words string) { v.streams.WriteToken(ctx, step, words) }
	}
	return h
}

// finish is the contribution of a state of the loop, and the event about it. With an error it has failed.
func (v *voice) finish(s loop.State, err error) (contribution, subjects.Deliberation) {
	labels, recalls := v.found.Result()
	c := contribution{
		Persona: v.persona.Name, Round: v.round, Made: len(s.Finished), Model: cmp.Or(s.Usage.Model, v.model),
		Demo: v.demo, Recalls: recalls,
		Labels: v.joinLabels(labels), Calls: v.traceCalls(s, maxKeptCalls, maxKeptResult),
		Usage: subjects.Usage{
			PromptTokens: s.Usage.Prompt, CompletionTokens: s.Usage.Output, ModelCalls: s.Usage.Calls,
			Estimated: s.Usage.Estimated, Counted: s.Usage.Counted, Hosts: subjects.JoinHosts(s.Usage.Hosts),
			Millis: s.Spent.Milliseconds(),
		},
	}
	e := v.event(subjects.DeliberationDone)
	e.Response = s.Answer
	if !v.closing {
		e.Response, c.Dissents, c.Dissent = splitDissent(s.Answer)
	}
	e.Partial = s.Partial
	if err != nil {
		c.Error, _ = agent.Explain(err, explanations...)
		if c.Error.Code == subjects.CodeInternal {
			v.t.Out.LogError(fmt.Errorf("%s: %w", v.persona.Name, err))
		}
		e.Status, e.Error, c.Dissents, c.Dissent = subjects.DeliberationFailed, c.Error, false, ""
		if !v.closing {
			v.t.Note(subjects.NotePersona, fmt.Sprintf("%s could not speak in round %d and was skipped: %s",
				v.persona.Name, v.round, c.Error.Text))
		}
	}
	c.Response = text.Clip(e.Response, maxContribution)
	e.Response, e.Thinking, e.Calls = text.Clip(e.Response, maxSaid), text.Clip(s.Thinking, maxThinking),
		v.traceCalls(s, maxTracedCalls, maxTracedResult)
	e.Dissents, e.Dissent = c.Dissents, c.Dissent
	e.Model, e.Usage, e.Notes = c.Model, c.Usage, v.notes
	e.Labels = (&subjects.Labels{Trust: subjects.Trusted, Privacy: subjects.Public}).Join(c.Labels)
	if v.t.c.cfg.GradePersonas && v.persona.Rubric != "" && err == nil && !v.closing {
		e.Query, e.Rubric = text.Clip(v.t.Query.Query, maxSaid), v.persona.Rubric
	}
	return c, e
}

// joinLabels joins the labels of the persona's results with those of everything else that it read.
func (v *voice) joinLabels(l *subjects.Labels) *subjects.Labels {
	l = l.Join(v.t.labels)
	if c := v.t.Record().Context; c != nil {
		l = l.Join(c.Labels)
	}
	for _, e := range v.earlier {
		l = l.Join(e.Labels)
	}
	return l
}

// traceCalls lists the first calls of a contribution, each result cut to size bytes and arguments without credentials.
func (v *voice) traceCalls(s loop.State, most, size int) (out []subjects.ToolCall) {
	for _, d := range s.Finished[:min(most, len(s.Finished))] {
		out = append(out, v.agent.RecordCall(d, size, maxTracedResult))
	}
	return out
}

// abilities are those of a persona's model that matter here, with the window of the assistant. A model that is not in
// the list is taken for one that calls tools natively. One whose calls are constrained to a schema chooses a search for
// almost any question, so that memory is searched for it, and it is offered the other tools.
func (t *turn) abilities(p Persona) subjects.RoleModel {
	of := subjects.RoleModel{Window: agent.DefaultWindow, Stream: true, Tools: true}
	for _, r := range t.models.Roles {
		if r.Role == subjects.RoleAssistant {
			of, of.Window = r, cmp.Or(r.Window, agent.DefaultWindow)
		}
	}
	chosen := cmp.Or(p.Model, t.Query.Model)
	if chosen == "" {
		return of
	}
	of.Model, of.Calls, of.Tools, of.Thinking = chosen, "", true, false
	for _, m := range t.models.Models {
		if strings.TrimSuffix(m.Name, ":latest") == strings.TrimSuffix(chosen, ":latest") {
			of.Calls, of.Tools, of.Thinking = m.Calls, false, m.Thinking
		}
	}
	return of
}
