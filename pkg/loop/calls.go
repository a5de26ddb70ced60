package loop

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	"conclave/pkg/model"
)

// acceptCalls adds a reply with calls to the conversation as the next step and checkpoints it before any of them runs.
// Calls that checkCall refuses get their result here and are reported after the checkpoint. The error is that of the
// checkpoint: then no call may run.
func (t *turn) acceptCalls(ctx context.Context, r reply) error {
	m := model.Message{Role: model.Assistant, Content: r.text, Thinking: r.thinking}
	var layers []string
	t.state.Step++
	from := len(t.state.Finished)
	for i := range r.calls {
		f := &r.calls[i]
		f.ID = t.assignID(f.ID, m.Calls)
		res, refused := t.checkCall(&f.Call, i, m.Calls)
		if f.layer != LayerNative && f.layer != LayerSafety && f.layer != LayerDecision {
			t.addNote(NoteRecovered, "a call of "+f.Name+" was written as text ("+f.layer+") and read from it")
		}
		m.Calls = append(m.Calls, f.Call)
		layers = append(layers, f.layer)
		if refused {
			t.state.Finished = append(t.state.Finished, FinishedCall{
				Call: f.Call, Layer: f.layer, Step: t.state.Step,
				Result: res,
			})
		}
	}
	t.appendMessages(m)
	t.state.Layers = layers
	t.correction, t.lastAttempt, t.announced = nil, false, ""
	t.appendThinking(r.thinking)
	t.reportInterim(t.state.Step, r.text)
	if err := t.checkpoint(ctx); err != nil {
		return err
	}
	for _, d := range t.state.Finished[from:] {
		t.reportRefused(d)
	}
	return nil
}

// Faults of calls that the loop answers itself. They are the codes of the bus where it has one.
const (
	FaultInvalid     = "malformed"    // the arguments do not fit the schema
	FaultUnknown     = "unknown_tool" // the tool was not offered
	FaultRepeated    = "repeated"     // the same call with the same result, once too often
	FaultTooMany     = "too_many"     // more calls than one reply may make
	FaultUnknownURL  = "unknown_url"  // an address that is neither in the conversation nor in a result
	FaultUnavailable = "unavailable"  // the tool did not return in time, or panicked
)

// isRefusal reports whether a fault means that the loop did not run the call.
func isRefusal(fault string) bool {
	return fault == FaultInvalid || fault == FaultUnknown || fault == FaultRepeated || fault == FaultTooMany ||
		fault == FaultUnknownURL
}

// checkCall coerces the arguments of c, the i-th call of a reply, to the tool's schema; they are a JSON object
// afterwards in any case. It refuses, with a result for the model, a tool that was not offered, one whose schema cannot
// be compiled, calls beyond [Limits.CallsPerReply], arguments that do not fit, an invented address of a constrained
// model, and a repeated call. before are the calls ahead of it in the same reply. refused false means that the call may
// run and res is empty.
func (t *turn) checkCall(c *model.Call, i int, before []model.Call) (res Result, refused bool) {
	at := slices.Index(t.tools, c.Name)
	if at < 0 {
		c.Name, _ = toValidUTF8(clip(c.Name, 64))
		if c.Arguments = objectOrNil(c.Arguments); len(c.Arguments) == 0 {
			c.Arguments = json.RawMessage("{}")
		}
		t.addNote(NoteUnknown, "the model called "+c.Name+", which is not offered")
		return Result{Text: "There is no tool of that name. " + listTools(t.tools), Fault: FaultUnknown}, true
	}
	s, err := compileSchema(&t.agent.Tools[at])
	if err != nil {
		t.addNote(NoteInvalid, c.Name+" was not called: its schema is invalid")
		c.Arguments = json.RawMessage("{}")
		return Result{Text: "This tool's definition is broken. Do not use it.", Fault: FaultInvalid}, true
	}
	fit, problem := coerceArguments(s, c.Arguments)
	c.Arguments = fit
	switch {
	case t.limits.CallsPerReply > 0 && i >= t.limits.CallsPerReply:
		t.addNote(NoteInvalid, fmt.Sprintf("more than %d calls in one reply; the rest was refused",
			t.limits.CallsPerReply))
		return Result{Text: resultTooMany, Fault: FaultTooMany}, true
	case problem != "":
		t.addNote(NoteInvalid, c.Name+": "+problem)
		return Result{Text: "The call was not made: " + problem + ". Correct it and call again.", Fault: FaultInvalid},
			true
	case t.state.Calls == CallConstrained && t.inventedURL(c) != "":
		t.addNote(NoteInvented, c.Name+" was not called: "+clip(t.inventedURL(c), 200)+" is neither in the "+
			"conversation nor in a result")
		return Result{Text: instructInvented(t.agent.Hedge.SearchTool, t.tools), Fault: FaultUnknownURL}, true
	case t.isRepeated(c, before):
		t.addNote(NoteRepeated, "identical call of "+c.Name+" with an identical result was refused")
		return Result{Text: resultRepeated, Fault: FaultRepeated}, true
	}
	return Result{}, false
}

// assignID is the call's own id when that is valid and not used before, otherwise a new one of [Agent.NewID], or a
// random one when NewID keeps returning unusable ids. before are the calls ahead of it in the same reply.
func (t *turn) assignID(id string, before []model.Call) string {
	for attempt := 0; !validID.MatchString(id) || t.isUsedID(id, before); attempt++ {
		if attempt > 8 { // NewID repeats itself
			id = "call_" + rand.Text()
		} else {
			id = t.agent.NewID()
		}
	}
	return id
}

// isUsedID reports whether a call of the history, of this turn or of before has this id.
func (t *turn) isUsedID(id string, before []model.Call) bool {
	inCalls := func(calls []model.Call) bool {
		return slices.ContainsFunc(calls, func(c model.Call) bool { return c.ID == id })
	}
	inMessage := func(m model.Message) bool { return inCalls(m.Calls) }
	return inCalls(before) || slices.ContainsFunc(t.state.Messages, inMessage) ||
		slices.ContainsFunc(t.history, inMessage)
}

// validID matches what can be an id on the bus.
var validID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// reportRefused reports a call that was answered without running.
func (t *turn) reportRefused(d FinishedCall) {
	if t.hooks.Started != nil {
		t.hooks.Started(d.Step, d.Call, d.Layer)
	}
	if t.hooks.Finished != nil {
		t.hooks.Finished(d.Step, d)
	}
}

// repetition counts how often in a row a call came to the same result.
type repetition struct {
	result Result
	times  int
}

// callKey is equal for calls of the same tool with equal arguments, however they are written. c must have its id and
// its last arguments.
func (t *turn) callKey(c *model.Call) string {
	key, known := t.callKeys[c.ID]
	if !known {
		key = c.Name + " " + canonicalJSON(c.Arguments)
		t.callKeys[c.ID] = key
	}
	return key
}

// countCall counts a finished call for [Limits.Repeats]; another result than the last time starts the count anew. A
// refused call does not count.
func (t *turn) countCall(d *FinishedCall) {
	if t.limits.Repeats <= 0 || isRefusal(d.Result.Fault) {
		return
	}
	key := t.callKey(&d.Call)
	seen := t.repetitions[key]
	if seen == nil || seen.result != d.Result {
		seen = &repetition{result: d.Result}
		t.repetitions[key] = seen
	}
	seen.times++
}

// isRepeated reports whether running c would make [Limits.Repeats] calls in a row with the same arguments and result.
// Equal calls ahead of it in the same reply, before, count as if they had the same result. Without a limit it is false.
func (t *turn) isRepeated(c *model.Call, before []model.Call) bool {
	if t.limits.Repeats <= 0 {
		return false
	}
	key, n := t.callKey(c), 0
	if seen := t.repetitions[key]; seen != nil {
		n = seen.times
	}
	for i := range before {
		if before[i].Name == c.Name && t.callKey(&before[i]) == key {
			n++
		}
	}
	return n >= t.limits.Repeats-1
}

// forceWhenStuck forces the answer when calls were refused as repeated in at least two steps of the turn.
func (t *turn) forceWhenStuck() {
	if t.state.Forced {
		return
	}
	steps, last := 0, -1
	for i := range t.state.Finished {
		if d := &t.state.Finished[i]; d.Result.Fault == FaultRepeated && d.Step != last {
			steps, last = steps+1, d.Step
		}
	}
	if steps >= 2 {
		t.forceAnswer(NoteRepeated, "the model kept repeating a call; the answer was asked for without tools")
	}
}
