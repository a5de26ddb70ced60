package loop

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"conclave/pkg/model"
)

// promptParts is what a request is put together from. Costs are estimates, kept so that no text is counted twice.
type promptParts struct {
	system   [2]string // without and with tools in the text form
	sysCost  [2]int
	toolCost int // of native definitions
	sumCost  int // of the summary

	// all is the system message, the summary, the history without thinking and without results that have lost their call, and the
	// turn's messages. It only ever grows, so that requests and states share its memory: each sees its own length of it.
	all   []model.Message
	fixed int           // where in it the summary stands, if there is one
	past  int           // where in it the history begins
	own   int           // where in it the turn's messages begin
	turns []historyTurn // of the history, oldest first

	rounds []int           // where in the turn's messages a message with calls stands
	costs  []int           // of the turn's messages
	short  []model.Message // of the turn's messages from the first round on
	brief  bool            // some of them are not the messages themselves
}

// historyTurn is a piece of the history that goes or stays as a whole. It counts from where the history begins.
type historyTurn struct{ from, to, cost int }

// promptPlan is what of a conversation is sent.
type promptPlan struct {
	droppedTurns  int // turns of history left out
	shortRounds   int // rounds of this turn that are one line
	droppedRounds int // rounds of this turn left out
	resultBytes   int // bytes of a result in the last rounds; 0 = all
	cost          int
}

// preparePrompt makes the parts ready that stay the same for the turn.
func (t *turn) preparePrompt(in Input) {
	t.prompt.system[0] = t.agent.System
	t.prompt.sysCost[0] = perMessage + estimateTokens(t.prompt.system[0])
	t.prompt.toolCost = estimateTools(t.agent.Tools)
	t.history, t.summary = in.History, in.Summary
	t.prompt.all = make([]model.Message, 0, 2+len(in.History)+len(t.state.Messages)+2*min(t.limits.Steps, 4)+2)
	if t.prompt.system[0] != "" {
		t.prompt.all = append(t.prompt.all, model.Message{Role: model.System, Content: t.prompt.system[0]})
	}
	t.prompt.fixed = len(t.prompt.all)
	if in.Summary != "" {
		t.prompt.all = append(t.prompt.all, model.Message{Role: model.User, Content: headSummary + in.Summary})
		t.prompt.sumCost = estimateMessage(&t.prompt.all[t.prompt.fixed])
	}
	t.prompt.past = len(t.prompt.all)
	t.prompt.all, t.prompt.turns = appendHistory(t.prompt.all, in.History)
	t.prompt.own = len(t.prompt.all)
	t.appendMessages(t.state.Messages...)
	t.indexMessages()
}

// appendMessages appends to the turn's messages.
func (t *turn) appendMessages(ms ...model.Message) {
	t.prompt.all = append(t.prompt.all, ms...)
	t.state.Messages = t.prompt.all[t.prompt.own:]
}

// systemText is the system message; the one with tools in the text form is made when it is first needed.
func (t *turn) systemText(withTools bool) (string, int) {
	if !withTools {
		return t.prompt.system[0], t.prompt.sysCost[0]
	}
	if t.prompt.system[1] == "" {
		var b strings.Builder
		b.WriteString(t.prompt.system[0] + headTools + textForm)
		for _, tool := range t.agent.Tools {
			line, err := json.Marshal(tool)
			if err != nil { // parameters that are no JSON
				tool.Parameters = nil
				line, _ = json.Marshal(tool)
			}
			b.Write(line)
			b.WriteByte('\n')
		}
		t.prompt.system[1] = b.String()
		t.prompt.sysCost[1] = perMessage + estimateTokens(t.prompt.system[1])
	}
	return t.prompt.system[1], t.prompt.sysCost[1]
}

// appendHistory appends a history to kept, in turns, each from a message of the user to the next. Results without their
// call, and calls without all of their results, are left out: servers refuse them.
func appendHistory(kept, history []model.Message) ([]model.Message, []historyTurn) {
	past := len(kept)
	var turns []historyTurn
	for i := 0; i < len(history); {
		n := groupSize(history[i:])
		group := history[i : i+n]
		i += n
		if !isCompleteGroup(group) {
			continue
		}
		if group[0].Role == model.User || len(turns) == 0 {
			turns = append(turns, historyTurn{from: len(kept) - past, to: len(kept) - past})
		}
		last := &turns[len(turns)-1]
		for _, m := range group {
			m.Thinking = ""
			kept = append(kept, m)
			last.cost += estimateMessage(&m)
		}
		last.to = len(kept) - past
	}
	return kept, turns
}

// groupSize is how many messages at the start of ms belong together: one, or a message with calls and its results.
func groupSize(ms []model.Message) int {
	n := 1
	if len(ms[0].Calls) > 0 || ms[0].Role == model.ToolRole {
		for n < len(ms) && ms[n].Role == model.ToolRole {
			n++
		}
	}
	return n
}

// isCompleteGroup reports whether each call in a group has its result and each result its call. A system message inside the
// history is no group either: there is one, and it stands first.
func isCompleteGroup(group []model.Message) bool {
	head := group[0]
	if head.Role == model.ToolRole || head.Role == model.System || len(head.Calls) != len(group)-1 {
		return false
	}
	for _, c := range head.Calls {
		if !slices.ContainsFunc(group[1:], func(m model.Message) bool { return m.CallID == c.ID }) {
			return false
		}
	}
	return true
}

// indexMessages takes note of new messages of the turn.
func (t *turn) indexMessages() {
	for i := len(t.prompt.costs); i < len(t.state.Messages); i++ {
		m := &t.state.Messages[i]
		t.prompt.costs = append(t.prompt.costs, estimateMessage(m))
		if len(m.Calls) > 0 {
			t.prompt.rounds = append(t.prompt.rounds, i)
		}
	}
}

// buildRequest is the next request. offer says whether tools are offered.
func (t *turn) buildRequest(offer bool, predict int) (model.Request, int) {
	r := model.Request{Model: t.agent.Model, Think: t.agent.Think, Options: t.agent.Options, Stream: t.agent.Stream}
	r.Options.Predict = predict
	if t.thinkingOff {
		r.Think = nil
	}
	system, fixed := t.systemText(offer && t.state.TextTools)
	if offer && !t.state.TextTools {
		r.Tools = t.agent.Tools
		fixed += t.prompt.toolCost
	}
	fixed += t.prompt.sumCost
	for i := range t.correction {
		fixed += estimateMessage(&t.correction[i])
	}
	last := t.finalInstruction()
	if last != "" {
		fixed += perMessage + estimateTokens(last)
	}
	p := t.planPrompt(fixed, predict)
	t.notePlan(p)
	if !t.prompt.brief {
		p.shortRounds = 0 // what is short already stays as it is
	}
	if p.whole() && !t.state.TextTools && len(t.correction) == 0 && last == "" {
		r.Messages = slices.Clip(t.prompt.all) // nobody can append to it
		return r, p.cost
	}
	ms := make([]model.Message, 0, 3+len(t.prompt.all)+len(t.correction))
	if system != "" {
		ms = append(ms, model.Message{Role: model.System, Content: system})
	}
	ms = append(ms, t.prompt.all[t.prompt.fixed:t.prompt.past]...)
	if p.droppedTurns < len(t.prompt.turns) {
		ms = append(ms, t.prompt.all[t.prompt.past+t.prompt.turns[p.droppedTurns].from:t.prompt.own]...)
	}
	ms = t.appendPlanned(ms, p)
	ms = append(ms, t.correction...)
	if last != "" {
		ms = append(ms, model.Message{Role: model.User, Content: last})
	}
	if t.state.TextTools {
		ms = renderAsText(ms)
	}
	r.Messages = ms
	return r, p.cost
}

// whole reports whether everything is sent as it is.
func (p promptPlan) whole() bool {
	return p.droppedTurns == 0 && p.shortRounds == 0 && p.droppedRounds == 0 && p.resultBytes == 0
}

// finalInstruction is what is said after everything else when the reply must be the answer.
func (t *turn) finalInstruction() string {
	switch {
	case t.lastAttempt:
		return sayPlain
	case t.state.Forced && len(t.tools) > 0:
		return sayForced
	}
	return ""
}

// promptRoom is how many tokens a prompt may have; 0 = not known.
func (t *turn) promptRoom(predict int) int {
	w := t.agent.Options.Window
	if w <= 0 {
		if t.promptCap > 0 {
			return t.promptCap
		}
		return 0
	}
	room := w - max(predict, 0) - w/50
	if room < w/4 { // output as large as the window: the prompt gets at least a quarter
		room = w / 4
	}
	if t.promptCap > 0 {
		room = min(room, t.promptCap)
	}
	return room
}

// planPrompt plans what is sent, oldest things first: turns of the history as a whole, then rounds of this turn as one line
// each, then such rounds as a whole. The question and the last round stay. If that is not enough, results of the last
// round are shortened; the rest is for the server to say.
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
	over := func() bool { return t.scaleEstimate(p.cost) > room }
	for over() && p.droppedTurns < len(t.prompt.turns) {
		history -= t.prompt.turns[p.droppedTurns].cost
		p.cost -= t.prompt.turns[p.droppedTurns].cost
		p.droppedTurns++
	}
	for over() && p.shortRounds < n-1 {
		p.shortRounds++
		p.cost = fixed + history + t.estimateTurn(p)
	}
	for over() && p.droppedRounds < n-1 {
		p.droppedRounds++
		p.cost = fixed + history + t.estimateTurn(p)
	}
	if over() && n > 0 {
		results := len(t.state.Messages) - t.prompt.rounds[n-1] - 1
		without := promptPlan{shortRounds: n, droppedRounds: n}
		p.resultBytes = max(256, (room-fixed-t.estimateTurn(without))*3/max(1, results))
		p.cost = fixed + history + t.estimateTurn(p)
	}
	return p
}

// scaleEstimate corrects an estimate by what the server counted before in this turn, upwards only.
func (t *turn) scaleEstimate(n int) int {
	if t.countRatio > 1 {
		return int(float64(n) * t.countRatio)
	}
	return n
}

// estimateTurn is the estimate of the turn's messages under a plan.
func (t *turn) estimateTurn(p promptPlan) int {
	sum, round := 0, -1
	for i, c := range t.prompt.costs {
		if round+1 < len(t.prompt.rounds) && i == t.prompt.rounds[round+1] {
			round++
		}
		switch {
		case round >= 0 && round < p.droppedRounds:
		case round >= 0 && round < p.shortRounds:
			sum += estimateMessage(t.shortMessage(i))
		case p.resultBytes > 0 && t.state.Messages[i].Role == model.ToolRole:
			sum += min(c, perMessage+p.resultBytes/3)
		default:
			sum += c
		}
	}
	return sum
}

// appendPlanned appends the turn's messages under a plan.
func (t *turn) appendPlanned(ms []model.Message, p promptPlan) []model.Message {
	if p.droppedTurns = 0; p.whole() {
		return append(ms, t.state.Messages...)
	}
	round := -1
	for i, m := range t.state.Messages {
		if round+1 < len(t.prompt.rounds) && i == t.prompt.rounds[round+1] {
			round++
		}
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

// shortMessage is the i-th message of the turn, one of a round, in one line.
func (t *turn) shortMessage(i int) *model.Message {
	first := t.prompt.rounds[0]
	for at := first + len(t.prompt.short); at <= i; at++ {
		m, cut := shortenMessage(t.state.Messages[at])
		t.prompt.short, t.prompt.brief = append(t.prompt.short, m), t.prompt.brief || cut
	}
	return &t.prompt.short[i-first]
}

// shortenMessage is a message in one line, and whether that is another message.
func shortenMessage(m model.Message) (_ model.Message, cut bool) {
	whole := m.Content
	cut, m.Thinking = m.Thinking != "", ""
	switch m.Role {
	case model.ToolRole:
		m.Content = shortenResult(m.Content, m.CallID)
	case model.Assistant:
		m.Content = clip(m.Content, shortTextRunes)
		if slices.ContainsFunc(m.Calls, func(c model.Call) bool { return len(c.Arguments) > shortArgumentBytes }) {
			cut, m.Calls = true, slices.Clone(m.Calls)
			for k := range m.Calls {
				m.Calls[k].Arguments = shortenArguments(m.Calls[k].Arguments)
			}
		}
	}
	return m, cut || m.Content != whole
}

// shortTextRunes is how much of an older result is kept, in characters.
const shortTextRunes = 160

// shortArgumentBytes is how many bytes of arguments stay as they are.
const shortArgumentBytes = 4 * shortTextRunes

// shortenResult is the first line of a result, and how much more there was.
func shortenResult(s, id string) string {
	trimmed := strings.TrimSpace(s)
	line, rest, more := strings.Cut(trimmed, "\n")
	for more && strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]") { // a frame around the result, and no part of it
		line, rest, more = strings.Cut(strings.TrimSpace(rest), "\n")
	}
	if line = clip(strings.TrimSpace(line), shortTextRunes); !more && line == trimmed {
		return line
	}
	return fmt.Sprintf("%s [earlier result, shortened from %d characters; call %s]", line, utf8.RuneCountInString(s), id)
}

// shortenArguments keeps the keys of large arguments and the beginnings of their texts.
func shortenArguments(b json.RawMessage) json.RawMessage {
	if len(b) <= shortArgumentBytes || !json.Valid(b) || kindOf(b) != kindObject {
		return b
	}
	out := []byte{'{'}
	for k, v := range members(b) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(out, k...), ':')
		if len(v) > shortTextRunes {
			short := string(v)
			if kindOf(v) == kindString {
				short = decodeString(v)
			}
			v = encodeString(clip(short, shortTextRunes))
		}
		out = append(out, v...)
	}
	return append(out, '}')
}

// notePlan says once what had to be left out, and again when it is more.
func (t *turn) notePlan(p promptPlan) {
	if p.droppedTurns > t.notedPlan.droppedTurns {
		t.addNote(NoteTrimmed, fmt.Sprintf("%s did not fit into the model's context and %s left out",
			countNoun(p.droppedTurns, "earlier turn"), wasOrWere(p.droppedTurns)))
	}
	if p.droppedRounds > t.notedPlan.droppedRounds {
		t.addNote(NoteTrimmed, fmt.Sprintf("%s of this turn did not fit into the model's context and %s left out",
			countNoun(p.droppedRounds, "tool round"), wasOrWere(p.droppedRounds)))
	}
	if p.resultBytes > 0 && t.notedPlan.resultBytes == 0 {
		t.addNote(NoteClipped, "results were shortened further to fit into the model's context")
	}
	was := &t.notedPlan
	was.droppedTurns, was.droppedRounds, was.resultBytes = max(p.droppedTurns, was.droppedTurns), max(p.droppedRounds, was.droppedRounds), max(p.resultBytes, was.resultBytes)
}

func wasOrWere(n int) string {
	if n == 1 {
		return "was"
	}
	return "were"
}

func countNoun(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// renderAsText writes calls and results as text, for a model that has no messages for them. A result cannot end its own tag:
// what is between the tags stays data.
func renderAsText(ms []model.Message) []model.Message {
	out := make([]model.Message, 0, len(ms))
	for i, m := range ms {
		switch {
		case len(m.Calls) > 0:
			out = append(out, model.Message{Role: m.Role, Content: renderCalls(m)})
		case m.Role == model.ToolRole:
			body := "<tool_result name=" + m.ToolName + " id=" + m.CallID + ">\n" +
				escapeResultEnd(m.Content) + "\n</tool_result>"
			if i > 0 && ms[i-1].Role == model.ToolRole {
				out[len(out)-1].Content += "\n" + body
				continue
			}
			out = append(out, model.Message{Role: model.User, Content: body})
		default:
			m.Thinking = ""
			out = append(out, m)
		}
	}
	return out
}

// escapeResultEnd makes every end of a result's tag in s, in whatever case, something else.
func escapeResultEnd(s string) string {
	var out strings.Builder
	for b := []byte(s); ; {
		i := indexFold(b, "</tool_result")
		if i < 0 {
			out.Write(b)
			return out.String()
		}
		out.Write(b[:i])
		out.WriteString("<\\")
		b = b[i+1:]
	}
}

func renderCalls(m model.Message) string {
	var b strings.Builder
	b.WriteString(m.Content)
	for _, c := range m.Calls {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString("<tool_call>\n{\"name\": ")
		b.Write(encodeString(c.Name))
		b.WriteString(", \"arguments\": ")
		b.Write(c.Arguments)
		b.WriteString("}\n</tool_call>")
	}
	return b.String()
}

// compareCounts compares what the server read with what was sent. 0 is "not said". Servers that count only what was not in
// their cache report about as much as was added since the call before; that is no sign of anything.
func (t *turn) compareCounts(estimate, prompt int) {
	t.state.Usage.Estimated, t.state.Usage.Counted = estimate, prompt
	if prompt <= 0 {
		return
	}
	added := estimate - t.lastEstimate
	cached := t.lastEstimate > 0 && added > 0 && prompt >= added/2 && prompt <= added*3/2+32
	t.lastEstimate = estimate
	expect, least := float64(estimate), 0.5 // without a measure of our own the estimate may be far off
	if t.countRatio > 0 {
		expect, least = float64(estimate)*t.countRatio, 0.7
	}
	if float64(prompt) < expect*least && expect-float64(prompt) > minMissingTokens {
		if !cached {
			t.addNote(NoteTruncated, fmt.Sprintf("the model server read %d tokens of about %d that were sent: its context is "+
				"smaller than ours is set to", prompt, int(expect)))
		}
		return
	}
	t.countRatio = max(t.countRatio, min(float64(prompt)/float64(estimate), 2))
}

// minMissingTokens is how many tokens must be missing before it is called a truncation.
const minMissingTokens = 256
