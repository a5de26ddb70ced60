package loop

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"conclave/pkg/model"
	"conclave/pkg/strict"
)

// promptParts are the parts of each request of a turn, with their estimated tokens.
type promptParts struct {
	systemCost  int
	toolCost    int          // of native tool definitions
	tools       []model.Tool // native tool definitions as they are sent
	summaryCost int

	textSystem     string // the system message with tools in text form; made when first needed
	textSystemCost int

	summary []model.Message // none or one
	history []model.Message // without thinking, and without calls and results that have lost each other
	turns   []historyTurn   // of the history, oldest first

	// Of the messages of this turn:
	costs  []int
	rounds []int           // indexes of the messages with calls
	short  []model.Message // shortened messages from the first round on; made when first needed
}

// historyTurn is a range of the history that is sent or dropped as a whole.
type historyTurn struct{ from, to, cost int }

// promptPlan says which part of the conversation is sent.
type promptPlan struct {
	droppedTurns  int // oldest turns of the history left out
	shortRounds   int // oldest rounds of this turn that are shortened to a line per message
	droppedRounds int // oldest rounds of this turn left out
	resultBytes   int // most bytes of a result in the whole rounds; 0 = all
	cost          int // estimated tokens
}

// preparePrompt fills in the parts of the prompt that stay the same for the turn. The agent, the history and the
// summary of t must be set.
func (t *turn) preparePrompt() {
	p := &t.prompt
	p.systemCost = perMessage + estimateTokens(t.agent.System)
	p.tools = shortenTools(t.agent.Tools)
	p.toolCost = estimateTools(p.tools)
	if t.summary != "" {
		p.summary = []model.Message{{Role: model.User, Content: headSummary + t.summary}}
		p.summaryCost = estimateMessage(&p.summary[0])
	}
	p.history, p.turns = splitHistory(t.history)
	t.indexMessages()
}

// indexMessages extends costs and rounds by the messages that were appended to the turn since the last call.
func (t *turn) indexMessages() {
	for i := len(t.prompt.costs); i < len(t.state.Messages); i++ {
		m := &t.state.Messages[i]
		t.prompt.costs = append(t.prompt.costs, estimateMessage(m))
		if len(m.Calls) > 0 {
			t.prompt.rounds = append(t.prompt.rounds, i)
		}
	}
}

// systemText is the system message and its estimated tokens. withTools appends the descriptions of the tools in text
// form. In constrained mode a conversation without untrusted content has [Agent.Plain].
func (t *turn) systemText(withTools bool) (string, int) {
	if plain := t.agent.Plain; plain != nil && t.state.Calls == CallConstrained && !t.hasUntrusted() {
		return *plain, perMessage + estimateTokens(*plain)
	}
	if !withTools {
		return t.agent.System, t.prompt.systemCost
	}
	if t.prompt.textSystem == "" {
		t.prompt.textSystem = t.agent.System + describeTools(t.agent.Tools)
		t.prompt.textSystemCost = perMessage + estimateTokens(t.prompt.textSystem)
	}
	return t.prompt.textSystem, t.prompt.textSystemCost
}

// hasUntrusted reports whether the conversation holds untrusted content or a summary, which may hold some.
func (t *turn) hasUntrusted() bool {
	marked := func(m model.Message) bool { return strings.Contains(m.Content, untrustedMark) }
	return t.summary != "" || slices.ContainsFunc(t.state.Messages, marked) || slices.ContainsFunc(t.history, marked)
}

// splitHistory splits a history into turns, each from a message of the user to the next. Results without their call,
// calls without all of their results, and system messages are left out: servers reject them. Thinking is left out too.
// kept are the remaining messages, which turns refer to.
func splitHistory(history []model.Message) (kept []model.Message, turns []historyTurn) {
	for i := 0; i < len(history); {
		n := groupSize(history[i:])
		group := history[i : i+n]
		i += n
		if !isCompleteGroup(group) {
			continue
		}
		if group[0].Role == model.User || len(turns) == 0 {
			turns = append(turns, historyTurn{from: len(kept)})
		}
		last := &turns[len(turns)-1]
		for _, m := range group {
			m.Thinking = ""
			kept = append(kept, m)
			last.cost += estimateMessage(&m)
		}
		last.to = len(kept)
	}
	return kept, turns
}

// groupSize is how many messages at the start of ms belong together: one, or a message with calls and the results
// behind it, or results without their call. ms must not be empty.
func groupSize(ms []model.Message) int {
	n := 1
	if len(ms[0].Calls) > 0 || ms[0].Role == model.ToolRole {
		for n < len(ms) && ms[n].Role == model.ToolRole {
			n++
		}
	}
	return n
}

// isCompleteGroup reports whether each call at the head of a group has its result and each result its call. A system
// message is never complete: there is only one, and it comes first. group must not be empty.
func isCompleteGroup(group []model.Message) bool {
	head := group[0]
	if head.Role == model.ToolRole || head.Role == model.System || len(head.Calls) != len(group)-1 {
		return false
	}
	return !slices.ContainsFunc(head.Calls, func(c model.Call) bool {
		return !slices.ContainsFunc(group[1:], func(m model.Message) bool { return m.CallID == c.ID })
	})
}

// buildRequest is the next request and its estimated prompt tokens, and notes what had to be left out. offer says
// whether tools are offered, natively or in text form; predict is how many tokens the model may write, 0 = the
// backend's default.
func (t *turn) buildRequest(offer bool, predict int) (model.Request, int) {
	r := model.Request{Model: t.agent.Model, Think: t.agent.Think, Options: t.agent.Options, Stream: t.agent.Stream}
	r.Options.Predict = predict
	if t.schema != nil { // a decision or arguments: the most likely one
		r.Options.Temperature = new(float64)
	}
	if t.thinkingOff {
		r.Think = nil
	}
	if t.schema != nil {
		r.Format, r.Stream, r.Think = t.schema, false, t.noThinking()
	}
	if t.decision != nil {
		r.Messages = t.decision
		return r, Estimate("", nil, t.decision)
	}
	system, fixed := t.systemText(t.describesTools(offer))
	if offer && t.state.Calls == CallNative {
		r.Tools = t.prompt.tools
		fixed += t.prompt.toolCost
	}
	end := t.correction
	if instruction := t.finalInstruction(); instruction != "" {
		end = append(slices.Clip(end), model.Message{Role: model.User, Content: instruction})
	}
	t.instructed = t.instructed || len(end) > 0
	fixed += t.prompt.summaryCost
	for i := range end {
		fixed += estimateMessage(&end[i])
	}
	p := t.planPrompt(fixed, predict)
	t.notePlan(p)
	ms := make([]model.Message, 0, 2+len(t.prompt.history)+len(t.state.Messages)+len(end))
	if system != "" {
		ms = append(ms, model.Message{Role: model.System, Content: system})
	}
	ms = append(ms, t.prompt.summary...)
	if p.droppedTurns < len(t.prompt.turns) {
		ms = append(ms, t.prompt.history[t.prompt.turns[p.droppedTurns].from:]...)
	}
	ms = append(t.appendPlanned(ms, p), end...)
	if t.state.Calls == CallConstrained {
		ms = t.foldRecall(ms)
	}
	if t.state.Calls != CallNative {
		ms = renderAsText(ms)
	}
	r.Messages = ms
	return r, p.cost
}

// describesTools reports whether the system message describes the tools.
func (t *turn) describesTools(offer bool) bool {
	return len(t.tools) > 0 && offer && t.state.Calls == CallText
}

// noThinking is the thinking of a request under a schema: off, for a model that thinks.
func (t *turn) noThinking() *bool {
	if t.agent.Think == nil || t.thinkingOff {
		return nil
	}
	return new(bool)
}

// finalInstruction is the last message of a request whose reply must be the answer, or of a constrained step; "" =
// none, the reply may have calls or there were no tools.
func (t *turn) finalInstruction() string {
	switch {
	case t.lastAttempt:
		return instructPlain
	case t.state.Forced && len(t.tools) > 0:
		return instructForced
	}
	return t.instruction
}

// promptRoom is how many tokens a prompt may have when predict are reserved for the output; 0 = unknown, do not trim.
// With a known window it is at least a quarter of it, also when the output alone would fill the window, unless
// promptCap is lower.
func (t *turn) promptRoom(predict int) int {
	w := t.agent.Options.Window
	if w <= 0 {
		return t.promptCap
	}
	room := max(w-max(predict, 0)-w/50, w/4)
	if t.promptCap > 0 {
		room = min(room, t.promptCap)
	}
	return room
}

// planPrompt fits the prompt into its room, oldest things first: it drops whole turns of the history, then shortens
// rounds of this turn, then drops them. The question and the last round stay; as a last resort the results of the last
// round are cut. A prompt that is still too long is left to the server to reject. Without a known room only
// [Limits.WholeRounds] applies. fixed are the estimated tokens of everything else, predict the tokens of the output.
func (t *turn) planPrompt(fixed, predict int) promptPlan {
	n := len(t.prompt.rounds)
	p := promptPlan{shortRounds: max(0, n-t.limits.WholeRounds)}
	history := 0
	for _, h := range t.prompt.turns {
		history += h.cost
	}
	p.cost = fixed + history + t.estimateTurn(p)
	room := t.promptRoom(predict)
	if room == 0 {
		return p
	}
	isOver := func() bool { return t.scaleEstimate(p.cost) > room }
	for isOver() && p.droppedTurns < len(t.prompt.turns) {
		history -= t.prompt.turns[p.droppedTurns].cost
		p.cost -= t.prompt.turns[p.droppedTurns].cost
		p.droppedTurns++
	}
	for isOver() && p.shortRounds < n-1 {
		p.shortRounds++
		p.cost = fixed + history + t.estimateTurn(p)
	}
	for isOver() && p.droppedRounds < n-1 {
		p.droppedRounds++
		p.cost = fixed + history + t.estimateTurn(p)
	}
	if isOver() && n > 0 {
		results := len(t.state.Messages) - t.prompt.rounds[n-1] - 1
		question := t.estimateTurn(promptPlan{shortRounds: n, droppedRounds: n})
		p.resultBytes = max(256, (room-fixed-question)*3/max(1, results))
		p.cost = fixed + history + t.estimateTurn(p)
	}
	return p
}

// scaleEstimate corrects an estimate by the server's counts in this turn, upwards only.
func (t *turn) scaleEstimate(n int) int {
	if t.countRatio > 1 {
		return int(float64(n) * t.countRatio)
	}
	return n
}

// roundsOf is an iterator over the messages of the turn: the index of each and its round, -1 for messages before the
// first round.
func (t *turn) roundsOf(yield func(i, round int) bool) {
	round := -1
	for i := range t.state.Messages {
		if round+1 < len(t.prompt.rounds) && i == t.prompt.rounds[round+1] {
			round++
		}
		if !yield(i, round) {
			return
		}
	}
}

// estimateTurn is the estimated tokens of the turn's own messages, without the history, when they are sent under plan
// p.
func (t *turn) estimateTurn(p promptPlan) int {
	sum := 0
	for i, round := range t.roundsOf {
		switch cost := t.prompt.costs[i]; {
		case round >= 0 && round < p.droppedRounds:
		case round >= 0 && round < p.shortRounds:
			sum += estimateMessage(t.shortMessage(i))
		case p.resultBytes > 0 && t.state.Messages[i].Role == model.ToolRole:
			sum += min(cost, perMessage+p.resultBytes/3)
		default:
			sum += cost
		}
	}
	return sum
}

// appendPlanned appends the turn's own messages to ms, dropped, shortened and clipped as plan p says.
func (t *turn) appendPlanned(ms []model.Message, p promptPlan) []model.Message {
	for i, round := range t.roundsOf {
		m := t.state.Messages[i]
		switch {
		case round >= 0 && round < p.droppedRounds:
			continue
		case round >= 0 && round < p.shortRounds:
			m = *t.shortMessage(i)
		case p.resultBytes > 0 && m.Role == model.ToolRole:
			m.Content = clipMiddle(m.Content, p.resultBytes, m.CallID)
		}
		ms = append(ms, m)
	}
	return ms
}

// shortMessage is the i-th message of the turn, shortened. It must belong to a round.
func (t *turn) shortMessage(i int) *model.Message {
	first := t.prompt.rounds[0]
	for at := first + len(t.prompt.short); at <= i; at++ {
		t.prompt.short = append(t.prompt.short, shortenMessage(t.state.Messages[at]))
	}
	return &t.prompt.short[i-first]
}

// shortenMessage removes the thinking of a message of a round and shortens a result to a line, and text and arguments
// of the assistant to shortTextRunes a value. The message of the caller is not modified.
func shortenMessage(m model.Message) model.Message {
	m.Thinking = ""
	switch m.Role {
	case model.ToolRole:
		m.Content = shortenResult(m.Content, m.CallID)
	case model.Assistant:
		m.Content = clip(m.Content, shortTextRunes)
		m.Calls = slices.Clone(m.Calls)
		for k := range m.Calls {
			m.Calls[k].Arguments = shortenArguments(m.Calls[k].Arguments)
		}
	}
	return m
}

const (
	shortTextRunes     = 160                // of a text in a shortened round
	shortArgumentBytes = 4 * shortTextRunes // arguments up to this size are not shortened
)

// shortenResult is the first line of a result, at most shortTextRunes characters, with its original size and the call's
// id. A line in brackets, such as the frame around untrusted content, does not count as the first. A result that is a
// single short line is returned without the addition.
func shortenResult(s, id string) string {
	trimmed := strings.TrimSpace(s)
	line, rest, more := strings.Cut(trimmed, "\n")
	for more && strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]") {
		line, rest, more = strings.Cut(strings.TrimSpace(rest), "\n")
	}
	if line = clip(strings.TrimSpace(line), shortTextRunes); !more && line == trimmed {
		return line
	}
	return fmt.Sprintf("%s [earlier result, shortened from %d characters; call %s]", line, utf8.RuneCountInString(s),
		id)
}

// shortenArguments keeps the keys of arguments of more than shortArgumentBytes and replaces each value longer than
// shortTextRunes bytes by its beginning as a string. Smaller arguments, and any that are not a JSON object, are
// unchanged.
func shortenArguments(b json.RawMessage) json.RawMessage {
	if len(b) <= shortArgumentBytes {
		return b
	}
	v, err := strict.Parse(b)
	if err != nil || v.Type != strict.Object {
		return b
	}
	for i := range v.Members {
		if value := &v.Members[i].Value; len(value.Text) > shortTextRunes {
			*value = newString(clip(value.Text, shortTextRunes))
		}
	}
	return json.RawMessage(newObject(v.Members).Text)
}

// notePlan notes the turns, rounds and parts of results that a plan leaves out, and again when a later plan of the turn
// leaves out more. Shortened rounds are not noted.
func (t *turn) notePlan(p promptPlan) {
	noted := &t.notedPlan
	if p.droppedTurns > noted.droppedTurns {
		t.addNote(NoteTrimmed, fmt.Sprintf("%s did not fit into the model's context and %s left out",
			countNoun(p.droppedTurns, "earlier turn"), wasOrWere(p.droppedTurns)))
	}
	if p.droppedRounds > noted.droppedRounds {
		t.addNote(NoteTrimmed, fmt.Sprintf("%s of this turn did not fit into the model's context and %s left out",
			countNoun(p.droppedRounds, "tool round"), wasOrWere(p.droppedRounds)))
	}
	if p.resultBytes > 0 && noted.resultBytes == 0 {
		t.addNote(NoteClipped, "results were shortened further to fit into the model's context")
	}
	noted.droppedTurns = max(p.droppedTurns, noted.droppedTurns)
	noted.droppedRounds = max(p.droppedRounds, noted.droppedRounds)
	noted.resultBytes = max(p.resultBytes, noted.resultBytes)
}

func wasOrWere(n int) string {
	if n == 1 {
		return "was"
	}
	return "were"
}

func countNoun(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// compareCounts compares prompt, the server's count of prompt tokens, with the estimate; 0 = the server gives none. It
// notes a server that truncates the prompt, and learns the ratio, at most 2, for [turn.scaleEstimate]. A server that
// counts only tokens that were not in its cache reports about as many as were added since the last call: that is no
// truncation.
func (t *turn) compareCounts(estimate, prompt int) {
	t.state.Usage.Estimated, t.state.Usage.Counted = estimate, prompt
	if prompt <= 0 {
		return
	}
	added := estimate - t.lastEstimate
	fromCache := t.lastEstimate > 0 && added > 0 && prompt >= added/2 && prompt <= added*3/2+32
	t.lastEstimate = estimate
	expected, least := float64(estimate), 0.5 // an estimate that was never compared may be far off
	if t.countRatio > 0 {
		expected, least = float64(estimate)*t.countRatio, 0.7
	}
	if float64(prompt) < expected*least && expected-float64(prompt) > minMissingTokens {
		if !fromCache {
			t.addNote(NoteTruncated, fmt.Sprintf("the model server read %d tokens of about %d that were sent: its "+
				"context window "+
				"is smaller than the configured one", prompt, int(expected)))
		}
		return
	}
	t.countRatio = max(t.countRatio, min(float64(prompt)/float64(estimate), 2))
}

// minMissingTokens is how many tokens must be missing to count as a truncation.
const minMissingTokens = 256
