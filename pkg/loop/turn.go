package loop

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"conclave/pkg/model"
)

// turn is a running turn.
type turn struct {
	a       Agent
	h       Hooks
	lim     Limits
	s       State
	p       prompt
	names   names
	past    []model.Message // of earlier turns
	summary string          // of those before
	start   time.Time
	now     time.Time     // when the step began: to ask for the time costs as much as some steps
	clock   bool          // these are of the real clock
	base    time.Duration // spent in earlier lives

	intake intake
	quoted quoted
	aside  []model.Message // what is said to the model only until its next good reply
	calls  []seen          // a few: looking through them is cheaper than a map
	keys   [4]uint64       // hashes of the first calls of the last message; 0 = not known
	batch  []Done          // the calls of one message while they run; its memory is used again
	apart  bool            // it goes on in a goroutine of its own
	phase  atomic.Int32    // of that one

	wide    bool // the next reply gets twice the room
	plain   bool // the answer was asked for in the plainest words
	static  bool // tools are given up
	noThink bool
	claimed bool // a claim without a call was pointed out

	sent         int     // estimate of the last request
	tight        int     // most tokens of a prompt, after the server refused one; 0 = as the window says
	ratio        float64 // of the server's count to our estimate, the largest in this turn; 0 = not known
	lastEstimate int
	trimmed      plan // what was said to be left out

	memory memory
}

// memory is where the slices of an ordinary turn begin, so that it asks for memory once. What the caller gets to hold on
// to is not in it.
type memory struct {
	costs  [12]int
	rounds [6]int
	calls  [4]seen
	batch  [1]Done
	native [1]found
	// Slices in the state are cut from these: one piece of memory for several messages.
	made   []model.Call
	layers []string
}

// Turn runs a turn to its end and returns its last state. The answer is never empty, except with an error: then the
// state holds what came before, the error wraps one of [model]'s or the context's, and words for the user are the
// caller's.
func Turn(ctx context.Context, a Agent, in Input, h Hooks) (State, error) {
	if in.State.Final {
		return in.State, nil
	}
	if len(in.State.Messages) == 0 {
		return in.State, errors.New("a turn needs a question")
	}
	t := &turn{a: a, h: h, lim: a.Limits.withDefaults(a.Options.Window), s: in.State}
	t.begin(in)
	wall := ctx
	if t.lim.Wall > 0 {
		var cancel context.CancelFunc
		wall, cancel = context.WithDeadlineCause(ctx, t.real(t.start).Add(t.lim.Wall-t.base), errWall)
		defer cancel()
	}
	err := t.run(ctx, wall)
	t.s.Spent = t.spent()
	return t.s, err
}

// begin takes up the state. What the caller holds is not written to.
func (t *turn) begin(in Input) {
	if t.a.Now == nil {
		t.a.Now, t.clock = time.Now, true
	}
	if t.a.NewID == nil {
		t.a.NewID = func() string { return "call_" + rand.Text() }
	}
	t.start, t.base = t.a.Now(), t.s.Spent
	t.p.costs, t.p.rounds, t.calls = t.memory.costs[:0], t.memory.rounds[:0], t.memory.calls[:0]
	t.batch, t.intake.native = t.memory.batch[:0], t.memory.native[:0]
	t.s.Done, t.s.Notes, t.s.Layers = slices.Clip(t.s.Done), slices.Clip(t.s.Notes), slices.Clip(t.s.Layers)
	t.s.Answer, t.s.Partial = "", false
	t.s.Text = t.s.Text || t.a.Text
	t.static, t.noThink = t.has(NoteStatic), t.has(NoteNoThinking)
	t.names = make(names, len(t.a.Tools))
	for i := range t.a.Tools {
		t.names[i] = t.a.Tools[i].Name
	}
	if t.a.Text && len(t.names) > 0 && !t.has(NoteNoTools) {
		t.note(NoteNoTools, wordsOnly)
	}
	t.prepare(in)
	for i := range t.s.Done {
		t.remember(&t.s.Done[i], 0)
	}
}

// run goes on until there is an answer or an error.
func (t *turn) run(ctx, wall context.Context) error {
	for !t.s.Final {
		if err := t.next(ctx, wall); err != nil {
			return err
		}
	}
	return nil
}

// next is one step: the calls that wait, or a model call.
func (t *turn) next(ctx, wall context.Context) error {
	switch {
	case ctx.Err() != nil:
		return t.stopped(ctx, "")
	case wall.Err() != nil:
		return t.outOfTime(ctx, "")
	}
	if at := t.open(); at >= 0 {
		if !t.apart && !t.a.Obeys {
			return t.goOn(ctx, wall)
		}
		return t.dispatch(ctx, wall, at)
	}
	t.now = t.a.Now()
	t.guard()
	r, err := t.ask(wall)
	t.wide = false
	if err != nil {
		return t.failed(ctx, wall, r, err)
	}
	return t.heard(ctx, r)
}

// heard decides what a complete reply is.
func (t *turn) heard(ctx context.Context, r reply) error {
	calls := r.calls
	if !r.offer {
		r.calls = nil // nothing was offered: what is left of the reply is its words
	}
	switch {
	case len(r.calls) > 0:
		if r.over {
			t.noteOver()
		}
		return t.accept(ctx, r)
	case r.full && t.moreRoom(r):
		return nil
	case r.bad != "" && (r.offer || r.words == ""):
		return t.unreadable(ctx, r, sayBad(r.bad, r.unknown, t.names))
	case r.words == "" && len(calls) == 0 && r.final.OutputTokens > 0:
		return t.unreadable(ctx, r, sayDropped)
	case r.words == "":
		return t.unreadable(ctx, r, sayEmpty)
	case r.full || r.over:
		return t.cut(ctx, r)
	case t.nudged(r):
		return nil
	}
	if on, err := t.hedged(ctx, r); on || err != nil {
		return err
	}
	t.think(r.thinking)
	return t.finish(ctx, r.words, false)
}

// moreRoom asks once more with twice the room.
func (t *turn) moreRoom(r reply) bool {
	if t.s.Tries.Room > 0 || r.over {
		return false
	}
	t.s.Tries.Room++
	t.wide = true
	t.note(NoteRoom, "the reply hit its limit of tokens; asked again with twice the room")
	t.interim(t.s.Step+1, r.words)
	return true
}

// cut keeps an answer that is longer than what is read or written.
func (t *turn) cut(ctx context.Context, r reply) error {
	if r.over {
		t.noteOver()
	} else {
		t.note(NoteCut, "the answer hit its limit of tokens and is cut there")
	}
	t.think(r.thinking)
	return t.finish(ctx, r.words, true)
}

// noteOver says that a reply was longer than what is read.
func (t *turn) noteOver() {
	t.note(NoteCut, fmt.Sprintf("the reply is longer than %d bytes; the rest was not read", t.lim.Most))
}

// finish writes the answer down.
func (t *turn) finish(ctx context.Context, answer string, partial bool) error {
	t.s.Step++
	t.say(model.Message{Role: model.Assistant, Content: answer})
	t.s.Layers = nil
	t.s.Answer, t.s.Partial, t.s.Final = answer, partial, true
	return t.checkpoint(ctx)
}

// stopped keeps what is there when somebody stops the turn.
func (t *turn) stopped(ctx context.Context, words string) error {
	t.note(NoteStopped, "stopped before the answer was complete")
	t.s.Answer, t.s.Partial = words, true
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(err, cause) {
		return fmt.Errorf("running the turn: %w", err)
	}
	return fmt.Errorf("running the turn: %w: %w", err, cause)
}

// outOfTime ends a turn whose time is up with what is there.
func (t *turn) outOfTime(ctx context.Context, words string) error {
	t.note(NoteWall, fmt.Sprintf("the turn took longer than %s; the answer is what there was until then", t.lim.Wall))
	if words != "" {
		return t.finish(ctx, words, true)
	}
	return t.ours(ctx)
}

// accept takes a reply with calls into the conversation. Calls that must not run are answered here, before anything is
// written down; the others run after that.
func (t *turn) accept(ctx context.Context, r reply) error {
	m := model.Message{Role: model.Assistant, Content: r.words, Thinking: r.thinking}
	t.keys = [4]uint64{}
	m.Calls = piece(&t.memory.made, len(r.calls))
	layers := piece(&t.memory.layers, len(r.calls))
	t.s.Step++
	from := len(t.s.Done)
	for i := range r.calls {
		f := &r.calls[i]
		f.ID = t.id(f.ID, m.Calls)
		res, no := t.judge(&f.Call, i, m.Calls)
		if f.layer != LayerNative && f.layer != LayerSafety {
			t.note(NoteRecovered, "a call of "+f.Name+" was written as text ("+f.layer+") and read from it")
		}
		m.Calls = append(m.Calls, f.Call)
		layers = append(layers, f.layer)
		if no {
			t.s.Done = append(t.s.Done, Done{Call: f.Call, Layer: f.layer, Step: t.s.Step, Result: res})
		}
	}
	t.say(m)
	t.s.Layers = layers
	t.aside, t.plain = nil, false
	t.think(r.thinking)
	t.grown()
	t.interim(t.s.Step, r.words)
	if err := t.checkpoint(ctx); err != nil {
		return err
	}
	for _, d := range t.s.Done[from:] {
		t.showRefused(d)
	}
	return nil
}

// Faults of calls that the loop answers itself. They are the bus's codes where it has one.
const (
	FaultInvalid     = "malformed"    // arguments that do not fit the schema
	FaultUnknown     = "unknown_tool" // a name that was not offered
	FaultRepeated    = "repeated"     // the same call with the same result, once too often
	FaultTooMany     = "too_many"     // more calls than one reply may make
	FaultUnavailable = "unavailable"  // it did not return in time, or broke
)

// refused reports whether a fault means that the loop did not run the call.
func refused(fault string) bool {
	return fault == FaultInvalid || fault == FaultUnknown || fault == FaultRepeated || fault == FaultTooMany
}

// judge makes the arguments of a call fit, and answers it when it must not run. before are the calls ahead of it in the
// same reply.
func (t *turn) judge(c *model.Call, i int, before []model.Call) (Result, bool) {
	at := slices.Index(t.names, c.Name)
	if at < 0 {
		c.Name, _ = valid(clip(c.Name, 64))
		if c.Arguments = compact(c.Arguments); len(c.Arguments) == 0 {
			c.Arguments = json.RawMessage("{}")
		}
		t.note(NoteUnknown, "the model asked for "+c.Name+", which is not offered")
		return Result{Text: "There is no tool of that name. " + offered(t.names), Fault: FaultUnknown}, true
	}
	s, err := ready(&t.a.Tools[at])
	if err != nil {
		t.note(NoteInvalid, c.Name+" was not called: its definition cannot be read")
		c.Arguments = json.RawMessage("{}")
		return Result{Text: "This tool's definition is broken. Do not use it.", Fault: FaultInvalid}, true
	}
	fit, wrong := s.arguments(c.Arguments)
	c.Arguments = fit
	switch {
	case t.lim.Calls > 0 && i >= t.lim.Calls:
		t.note(NoteInvalid, fmt.Sprintf("more than %d calls in one reply; the rest was refused", t.lim.Calls))
		return Result{Text: resultTooMany, Fault: FaultTooMany}, true
	case wrong != "":
		t.note(NoteInvalid, c.Name+": "+wrong)
		return Result{Text: "The call was not made: " + wrong + ". Correct it and call again.", Fault: FaultInvalid}, true
	case t.repeated(c, i, before):
		t.note(NoteRepeated, c.Name+" was asked for again with the same arguments and the same result; it was not called")
		return Result{Text: resultRepeated, Fault: FaultRepeated}, true
	}
	return Result{}, false
}

// compact keeps arguments only when they are an object, as servers ask.
func compact(b json.RawMessage) json.RawMessage {
	if json.Valid(b) && kindOf(b) == kindObject && !tooDeep(b) {
		return b
	}
	return nil
}

// piece cuts an empty slice with room for n off the end of from. The next one is cut behind it: they share no element.
func piece[T any](from *[]T, n int) []T {
	if cap(*from)-len(*from) < n {
		*from = make([]T, 0, max(n, 4))
	}
	at := len(*from)
	*from = (*from)[:at+n]
	return (*from)[at : at : at+n]
}

// id is the call's own id when it is a token that was not used before. before are the calls ahead of it in the same reply.
func (t *turn) id(id string, before []model.Call) string {
	for tries := 0; !isToken(id) || t.used(id, before); tries++ {
		if tries > 8 { // a NewID that repeats itself
			id = "call_" + rand.Text()
		} else {
			id = t.a.NewID()
		}
	}
	return id
}

// used reports whether a call of the history or of this turn has this id.
func (t *turn) used(id string, before []model.Call) bool {
	has := func(calls []model.Call) bool {
		for i := range calls {
			if calls[i].ID == id {
				return true
			}
		}
		return false
	}
	for i := range t.past {
		if has(t.past[i].Calls) {
			return true
		}
	}
	for i := range t.s.Messages {
		if has(t.s.Messages[i].Calls) {
			return true
		}
	}
	return has(before)
}

func isToken(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isWord(c) || c == '.' {
			return false
		}
	}
	return true
}

// open is where the message stands whose calls have not all been answered; -1 when there is none.
func (t *turn) open() int {
	i := len(t.s.Messages) - 1
	for i >= 0 && t.s.Messages[i].Role == model.ToolRole {
		i--
	}
	if i < 0 || len(t.s.Messages[i].Calls) == 0 || len(t.s.Messages)-i-1 >= len(t.s.Messages[i].Calls) {
		return -1
	}
	return i
}

// dispatch runs the calls of the message at index at that have no result yet, all at once, and appends the results in
// the order of the calls.
func (t *turn) dispatch(ctx, wall context.Context, at int) error {
	calls := t.s.Messages[at].Calls
	t.batch = slices.Grow(t.batch[:0], len(calls))[:len(calls)]
	missing := 0
	for i := range calls {
		if d := t.doneOf(calls[i].ID); d >= 0 {
			t.batch[i] = t.s.Done[d]
			t.batch[i].Step = max(1, t.s.Done[d].Step) // it ran, whoever wrote it down
			continue
		}
		t.batch[i] = Done{Call: calls[i], Layer: t.layer(i)} // without a step as long as there is no result
		missing++
	}
	var err error
	switch missing {
	case 0:
	case 1:
		err = t.runOne(ctx, wall)
	default:
		err = t.runAll(ctx, wall, missing)
	}
	if err != nil {
		return err
	}
	return t.gather(ctx)
}

// gather takes the batch into the conversation.
func (t *turn) gather(ctx context.Context) error {
	t.append(t.open())
	t.stuck()
	return t.checkpoint(ctx)
}

// returned takes in one result.
func (t *turn) returned(o outcome) {
	d := &t.batch[o.i]
	if d.Step != 0 {
		return
	}
	d.Step = max(1, t.s.Step)
	full := t.settle(d, o.r)
	if t.h.Finished != nil {
		shown := *d
		shown.Result = full
		t.h.Finished(d.Step, shown)
	}
}

// settle makes a result fit for the context and returns it as it was.
func (t *turn) settle(d *Done, r Result) Result {
	clean, ok := valid(r.Text)
	if !ok {
		t.note(NoteBadText, d.Call.Name+" returned bytes that are no text; they were replaced")
	}
	if r.Text = clean; strings.TrimSpace(r.Text) == "" {
		if r.Text = resultEmpty; r.Fault != "" {
			r.Text = "[" + r.Fault + "]"
		}
	}
	d.Result = r
	if len(r.Text) > t.lim.Result {
		d.Result.Text = clipMiddle(r.Text, t.lim.Result, d.Call.ID)
		t.note(NoteClipped, fmt.Sprintf("the result of %s has %d bytes; %d of them went to the model",
			d.Call.Name, len(r.Text), t.lim.Result))
	}
	return r
}

// halted keeps the results that have come before a stop.
func (t *turn) halted(ctx context.Context) error {
	for _, d := range t.batch {
		if d.Step != 0 && t.doneOf(d.Call.ID) < 0 {
			t.s.Done = append(t.s.Done, d)
		}
	}
	return t.stopped(ctx, "")
}

// append puts the finished calls of the message at index at in their order, and their results behind it.
func (t *turn) append(at int) {
	// Whoever took down a checkpoint may hold on to these slices: nothing in them is overwritten.
	if slices.ContainsFunc(t.batch, func(d Done) bool { return t.doneOf(d.Call.ID) >= 0 }) {
		t.s.Done = slices.DeleteFunc(slices.Clone(t.s.Done), func(d Done) bool {
			return slices.ContainsFunc(t.batch, func(o Done) bool { return o.Call.ID == d.Call.ID })
		})
	}
	if len(t.s.Messages) > at+1 {
		t.p.all = slices.Clone(t.p.all[:t.p.own+at+1])
		t.p.costs = t.p.costs[:at+1]
	}
	if len(t.s.Done) == 0 {
		t.s.Done = make([]Done, 0, max(4, len(t.batch)))
	}
	for i := range t.batch {
		d := &t.batch[i]
		t.say(model.Message{
			Role: model.ToolRole, Content: d.Result.Text, ToolName: d.Call.Name, CallID: d.Call.ID,
		})
		key := uint64(0)
		if i < len(t.keys) {
			key = t.keys[i]
		}
		t.remember(d, key)
	}
	t.s.Done = append(t.s.Done, t.batch...)
	t.grown()
}

// doneOf is where the call with this id is among the finished ones; -1 when it is not.
func (t *turn) doneOf(id string) int {
	for i := len(t.s.Done) - 1; i >= 0; i-- {
		if t.s.Done[i].Call.ID == id {
			return i
		}
	}
	return -1
}

// layer is where the i-th call of the last message was found.
func (t *turn) layer(i int) string {
	if i < len(t.s.Layers) {
		return t.s.Layers[i]
	}
	return LayerNative
}

// showRefused shows a call that was answered without running.
func (t *turn) showRefused(d Done) {
	if t.h.Started != nil {
		t.h.Started(d.Step, d.Call, d.Layer)
	}
	if t.h.Finished != nil {
		t.h.Finished(d.Step, d)
	}
}

// checkpoint writes the turn down.
func (t *turn) checkpoint(ctx context.Context) error {
	if t.h.Checkpoint == nil {
		return nil
	}
	t.s.Spent = t.spent()
	if err := t.h.Checkpoint(ctx, &t.s); err != nil {
		return fmt.Errorf("writing the turn down: %w", err)
	}
	return nil
}

// spent is the wall clock of this life and the earlier ones.
func (t *turn) spent() time.Duration { return t.spentAt(t.a.Now()) }

func (t *turn) spentAt(now time.Time) time.Duration { return t.base + now.Sub(t.start) }

// real is a time of the turn on the clock that contexts go by.
func (t *turn) real(at time.Time) time.Time {
	if t.clock {
		return at
	}
	return time.Now()
}

// note takes down something that a person should see, once.
func (t *turn) note(code, text string) {
	n := Note{Code: code, Text: text}
	if len(t.s.Notes) >= maxNotes || slices.Contains(t.s.Notes, n) {
		return
	}
	t.s.Notes = append(t.s.Notes, n)
	if t.h.Note != nil {
		t.h.Note(n)
	}
}

// maxNotes is how many notes a turn keeps. A turn that needs more has told enough.
const maxNotes = 64

// has reports whether there is a note of this code.
func (t *turn) has(code string) bool {
	return slices.ContainsFunc(t.s.Notes, func(n Note) bool { return n.Code == code })
}

// think adds to the thinking of the turn, up to the size of one reply.
func (t *turn) think(text string) {
	if text == "" || len(t.s.Thinking) >= t.lim.Most {
		return
	}
	if t.s.Thinking != "" {
		t.s.Thinking += "\n\n"
	}
	t.s.Thinking += text
}

// interim shows words that are not the answer.
func (t *turn) interim(step int, words string) {
	if words != "" && t.h.Interim != nil {
		t.h.Interim(step, words)
	}
}

// setAside sets what is said to the model after everything else, until its next good reply: its own last words, if there
// were any, and ours.
func (t *turn) setAside(words, say string) {
	t.aside = t.aside[:0]
	if words != "" {
		t.aside = append(t.aside, model.Message{Role: model.Assistant, Content: words})
	}
	if say != "" {
		t.aside = append(t.aside, model.Message{Role: model.User, Content: say})
	}
}
