package loop

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"conclave/pkg/model"
)

// prompt is what a request is put together from. Costs are estimates, kept so that no text is counted twice.
type prompt struct {
	system   [2]string // without and with tools in the text form
	sysCost  [2]int
	toolCost int // of native definitions
	sumCost  int // of the summary

	// all is the system message, the summary, the history without thinking and without results that have lost their call, and the
	// turn's messages. It only ever grows, so that requests and states share its memory: each sees its own length of it.
	all   []model.Message
	fixed int    // where in it the summary stands, if there is one
	past  int    // where in it the history begins
	own   int    // where in it the turn's messages begin
	turns []part // of the history, oldest first

	rounds []int           // where in the turn's messages a message with calls stands
	costs  []int           // of the turn's messages
	briefs []model.Message // of the turn's messages from the first round on
	brief  bool            // some of them are not the messages themselves
}

// part is a piece of the history that goes or stays as a whole. It counts from where the history begins.
type part struct{ from, to, cost int }

// plan is what of a conversation is sent.
type plan struct {
	drop  int // turns of history left out
	brief int // rounds of this turn that are one line
	gone  int // rounds of this turn left out
	share int // bytes of a result in the last rounds; 0 = all
	cost  int
}

// prepare makes the parts ready that stay the same for the turn.
func (t *turn) prepare(in Input) {
	t.p.system[0] = t.a.System
	t.p.sysCost[0] = perMessage + tokens(t.p.system[0])
	t.p.toolCost = estimateTools(t.a.Tools)
	t.past, t.summary = in.History, in.Summary
	t.p.all = make([]model.Message, 0, 2+len(in.History)+len(t.s.Messages)+2*min(t.lim.Steps, 4)+2)
	if t.p.system[0] != "" {
		t.p.all = append(t.p.all, model.Message{Role: model.System, Content: t.p.system[0]})
	}
	t.p.fixed = len(t.p.all)
	if in.Summary != "" {
		t.p.all = append(t.p.all, model.Message{Role: model.User, Content: headSummary + in.Summary})
		t.p.sumCost = estimateMessage(&t.p.all[t.p.fixed])
	}
	t.p.past = len(t.p.all)
	t.p.all, t.p.turns = appendTurns(t.p.all, in.History)
	t.p.own = len(t.p.all)
	t.say(t.s.Messages...)
	t.grown()
}

// say appends to the turn's messages.
func (t *turn) say(ms ...model.Message) {
	t.p.all = append(t.p.all, ms...)
	t.s.Messages = t.p.all[t.p.own:]
}

// systemText is the system message; the one with tools in the text form is made when it is first needed.
func (t *turn) systemText(withTools bool) (string, int) {
	if !withTools {
		return t.p.system[0], t.p.sysCost[0]
	}
	if t.p.system[1] == "" {
		var b strings.Builder
		b.WriteString(t.p.system[0] + headTools + textForm)
		for _, tool := range t.a.Tools {
			line, err := json.Marshal(tool)
			if err != nil { // parameters that are no JSON
				tool.Parameters = nil
				line, _ = json.Marshal(tool)
			}
			b.Write(line)
			b.WriteByte('\n')
		}
		t.p.system[1] = b.String()
		t.p.sysCost[1] = perMessage + tokens(t.p.system[1])
	}
	return t.p.system[1], t.p.sysCost[1]
}

// appendTurns appends a history to kept, in turns, each from a message of the user to the next. Results without their
// call, and calls without all of their results, are left out: servers refuse them.
func appendTurns(kept, history []model.Message) ([]model.Message, []part) {
	past := len(kept)
	var turns []part
	for i := 0; i < len(history); {
		n := groupSize(history[i:])
		group := history[i : i+n]
		i += n
		if !wholeGroup(group) {
			continue
		}
		if group[0].Role == model.User || len(turns) == 0 {
			turns = append(turns, part{from: len(kept) - past, to: len(kept) - past})
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

// wholeGroup reports whether each call in a group has its result and each result its call. A system message inside the
// history is no group either: there is one, and it stands first.
func wholeGroup(group []model.Message) bool {
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

// grown takes note of new messages of the turn.
func (t *turn) grown() {
	for i := len(t.p.costs); i < len(t.s.Messages); i++ {
		m := &t.s.Messages[i]
		t.p.costs = append(t.p.costs, estimateMessage(m))
		if len(m.Calls) > 0 {
			t.p.rounds = append(t.p.rounds, i)
		}
	}
}

// request is the next request. offer says whether tools are offered.
func (t *turn) request(offer bool, predict int) (model.Request, int) {
	r := model.Request{Model: t.a.Model, Think: t.a.Think, Options: t.a.Options, Stream: t.a.Stream}
	r.Options.Predict = predict
	if t.noThink {
		r.Think = nil
	}
	system, fixed := t.systemText(offer && t.s.Text)
	if offer && !t.s.Text {
		r.Tools = t.a.Tools
		fixed += t.p.toolCost
	}
	fixed += t.p.sumCost
	for i := range t.aside {
		fixed += estimateMessage(&t.aside[i])
	}
	last := t.lastWords()
	if last != "" {
		fixed += perMessage + tokens(last)
	}
	p := t.fit(fixed, predict)
	t.noteTrim(p)
	if !t.p.brief {
		p.brief = 0 // what is short already stays as it is
	}
	if p.whole() && !t.s.Text && len(t.aside) == 0 && last == "" {
		r.Messages = slices.Clip(t.p.all) // nobody can append to it
		return r, p.cost
	}
	ms := make([]model.Message, 0, 3+len(t.p.all)+len(t.aside))
	if system != "" {
		ms = append(ms, model.Message{Role: model.System, Content: system})
	}
	ms = append(ms, t.p.all[t.p.fixed:t.p.past]...)
	if p.drop < len(t.p.turns) {
		ms = append(ms, t.p.all[t.p.past+t.p.turns[p.drop].from:t.p.own]...)
	}
	ms = t.appendTurn(ms, p)
	ms = append(ms, t.aside...)
	if last != "" {
		ms = append(ms, model.Message{Role: model.User, Content: last})
	}
	if t.s.Text {
		ms = asText(ms)
	}
	r.Messages = ms
	return r, p.cost
}

// whole reports whether everything is sent as it is.
func (p plan) whole() bool { return p.drop == 0 && p.brief == 0 && p.gone == 0 && p.share == 0 }

// lastWords is what is said after everything else when the reply must be the answer.
func (t *turn) lastWords() string {
	switch {
	case t.plain:
		return sayPlain
	case t.s.Forced && len(t.names) > 0:
		return sayForced
	}
	return ""
}

// room is how many tokens a prompt may have; 0 = not known.
func (t *turn) room(predict int) int {
	w := t.a.Options.Window
	if w <= 0 {
		if t.tight > 0 {
			return t.tight
		}
		return 0
	}
	room := w - max(predict, 0) - w/50
	if room < w/4 { // output as large as the window: the prompt gets at least a quarter
		room = w / 4
	}
	if t.tight > 0 {
		room = min(room, t.tight)
	}
	return room
}

// fit plans what is sent, oldest things first: turns of the history as a whole, then rounds of this turn as one line
// each, then such rounds as a whole. The question and the last round stay. If that is not enough, results of the last
// round are shortened; the rest is for the server to say.
func (t *turn) fit(fixed, predict int) plan {
	n := len(t.p.rounds)
	p := plan{brief: max(0, n-t.lim.Verbatim)}
	history := 0
	for _, h := range t.p.turns {
		history += h.cost
	}
	p.cost = fixed + history + t.turnCost(p)
	room := t.room(predict)
	if room == 0 {
		return p
	}
	over := func() bool { return t.scaled(p.cost) > room }
	for over() && p.drop < len(t.p.turns) {
		history -= t.p.turns[p.drop].cost
		p.cost -= t.p.turns[p.drop].cost
		p.drop++
	}
	for over() && p.brief < n-1 {
		p.brief++
		p.cost = fixed + history + t.turnCost(p)
	}
	for over() && p.gone < n-1 {
		p.gone++
		p.cost = fixed + history + t.turnCost(p)
	}
	if over() && n > 0 {
		results := len(t.s.Messages) - t.p.rounds[n-1] - 1
		without := plan{brief: n, gone: n}
		p.share = max(256, (room-fixed-t.turnCost(without))*3/max(1, results))
		p.cost = fixed + history + t.turnCost(p)
	}
	return p
}

// scaled corrects an estimate by what the server counted before in this turn, upwards only.
func (t *turn) scaled(n int) int {
	if t.ratio > 1 {
		return int(float64(n) * t.ratio)
	}
	return n
}

// turnCost is the estimate of the turn's messages under a plan.
func (t *turn) turnCost(p plan) int {
	sum, round := 0, -1
	for i, c := range t.p.costs {
		if round+1 < len(t.p.rounds) && i == t.p.rounds[round+1] {
			round++
		}
		switch {
		case round >= 0 && round < p.gone:
		case round >= 0 && round < p.brief:
			sum += estimateMessage(t.brief(i))
		case p.share > 0 && t.s.Messages[i].Role == model.ToolRole:
			sum += min(c, perMessage+p.share/3)
		default:
			sum += c
		}
	}
	return sum
}

// appendTurn appends the turn's messages under a plan.
func (t *turn) appendTurn(ms []model.Message, p plan) []model.Message {
	if p.drop = 0; p.whole() {
		return append(ms, t.s.Messages...)
	}
	round := -1
	for i, m := range t.s.Messages {
		if round+1 < len(t.p.rounds) && i == t.p.rounds[round+1] {
			round++
		}
		switch {
		case round >= 0 && round < p.gone:
			continue
		case round >= 0 && round < p.brief:
			m = *t.brief(i)
		case p.share > 0 && m.Role == model.ToolRole:
			m.Content = clipMiddle(m.Content, p.share, m.CallID)
		}
		ms = append(ms, m)
	}
	return ms
}

// brief is the i-th message of the turn, one of a round, in one line.
func (t *turn) brief(i int) *model.Message {
	first := t.p.rounds[0]
	for at := first + len(t.p.briefs); at <= i; at++ {
		m, cut := shortened(t.s.Messages[at])
		t.p.briefs, t.p.brief = append(t.p.briefs, m), t.p.brief || cut
	}
	return &t.p.briefs[i-first]
}

// shortened is a message in one line, and whether that is another message.
func shortened(m model.Message) (_ model.Message, cut bool) {
	whole := m.Content
	cut, m.Thinking = m.Thinking != "", ""
	switch m.Role {
	case model.ToolRole:
		m.Content = oneLine(m.Content, m.CallID)
	case model.Assistant:
		m.Content = clip(m.Content, briefLine)
		if slices.ContainsFunc(m.Calls, func(c model.Call) bool { return len(c.Arguments) > mostArguments }) {
			cut, m.Calls = true, slices.Clone(m.Calls)
			for k := range m.Calls {
				m.Calls[k].Arguments = shortArguments(m.Calls[k].Arguments)
			}
		}
	}
	return m, cut || m.Content != whole
}

// briefLine is how much of an older result is kept, in characters.
const briefLine = 160

// mostArguments is how many bytes of arguments stay as they are.
const mostArguments = 4 * briefLine

// oneLine is the first line of a result, and how much more there was.
func oneLine(s, id string) string {
	trimmed := strings.TrimSpace(s)
	line, rest, more := strings.Cut(trimmed, "\n")
	for more && strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]") { // a frame around the result, and no part of it
		line, rest, more = strings.Cut(strings.TrimSpace(rest), "\n")
	}
	if line = clip(strings.TrimSpace(line), briefLine); !more && line == trimmed {
		return line
	}
	return fmt.Sprintf("%s [earlier result, shortened from %d characters; call %s]", line, utf8.RuneCountInString(s), id)
}

// shortArguments keeps the keys of large arguments and the beginnings of their texts.
func shortArguments(b json.RawMessage) json.RawMessage {
	if len(b) <= mostArguments || !json.Valid(b) || kindOf(b) != kindObject {
		return b
	}
	out := []byte{'{'}
	for k, v := range members(b) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(out, k...), ':')
		if len(v) > briefLine {
			short := string(v)
			if kindOf(v) == kindString {
				short = text(v)
			}
			v = quote(clip(short, briefLine))
		}
		out = append(out, v...)
	}
	return append(out, '}')
}

// noteTrim says once what had to be left out, and again when it is more.
func (t *turn) noteTrim(p plan) {
	if p.drop > t.trimmed.drop {
		t.note(NoteTrimmed, fmt.Sprintf("%s did not fit into the model's context and %s left out",
			count(p.drop, "earlier turn"), was(p.drop)))
	}
	if p.gone > t.trimmed.gone {
		t.note(NoteTrimmed, fmt.Sprintf("%s of this turn did not fit into the model's context and %s left out",
			count(p.gone, "tool round"), was(p.gone)))
	}
	if p.share > 0 && t.trimmed.share == 0 {
		t.note(NoteClipped, "results were shortened further to fit into the model's context")
	}
	was := &t.trimmed
	was.drop, was.gone, was.share = max(p.drop, was.drop), max(p.gone, was.gone), max(p.share, was.share)
}

func was(n int) string {
	if n == 1 {
		return "was"
	}
	return "were"
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// asText writes calls and results as text, for a model that has no messages for them. A result cannot end its own tag:
// what is between the tags stays data.
func asText(ms []model.Message) []model.Message {
	out := make([]model.Message, 0, len(ms))
	for i, m := range ms {
		switch {
		case len(m.Calls) > 0:
			out = append(out, model.Message{Role: m.Role, Content: callsAsText(m)})
		case m.Role == model.ToolRole:
			body := "<tool_result name=" + m.ToolName + " id=" + m.CallID + ">\n" +
				keepInside(m.Content) + "\n</tool_result>"
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

// keepInside makes every end of a result's tag in s, in whatever case, something else.
func keepInside(s string) string {
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

func callsAsText(m model.Message) string {
	var b strings.Builder
	b.WriteString(m.Content)
	for _, c := range m.Calls {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString("<tool_call>\n{\"name\": ")
		b.Write(quote(c.Name))
		b.WriteString(", \"arguments\": ")
		b.Write(c.Arguments)
		b.WriteString("}\n</tool_call>")
	}
	return b.String()
}

// counted compares what the server read with what was sent. 0 is "not said". Servers that count only what was not in
// their cache report about as much as was added since the call before; that is no sign of anything.
func (t *turn) counted(estimate, prompt int) {
	t.s.Usage.Estimated, t.s.Usage.Counted = estimate, prompt
	if prompt <= 0 {
		return
	}
	added := estimate - t.lastEstimate
	cached := t.lastEstimate > 0 && added > 0 && prompt >= added/2 && prompt <= added*3/2+32
	t.lastEstimate = estimate
	expect, least := float64(estimate), 0.5 // without a measure of our own the estimate may be far off
	if t.ratio > 0 {
		expect, least = float64(estimate)*t.ratio, 0.7
	}
	if float64(prompt) < expect*least && expect-float64(prompt) > truncatedBy {
		if !cached {
			t.note(NoteTruncated, fmt.Sprintf("the model server read %d tokens of about %d that were sent: its context is "+
				"smaller than ours is set to", prompt, int(expect)))
		}
		return
	}
	t.ratio = max(t.ratio, min(float64(prompt)/float64(estimate), 2))
}

// truncatedBy is how many tokens must be missing before it is called a truncation.
const truncatedBy = 256
