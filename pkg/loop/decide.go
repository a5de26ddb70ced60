package loop

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"conclave/pkg/jsonschema"
	"conclave/pkg/model"
	"conclave/pkg/strict"
	"conclave/pkg/text"
)

// answerChoice is the choice of a decision to answer. A tool of this name cannot be chosen.
const answerChoice = "answer"

// decisionTokens is the most output tokens of a decision and of the arguments behind it.
const decisionTokens = 512

// decide makes one constrained step: a decision under a JSON schema between the offered tools and the answer, and then
// the call, or the answer in a model call of its own. The first decision has a prompt of its own, which the
// conversation does not begin with, so that an answer that needs no tool gets the prompt of a plain chat. Arguments
// that the loop does not know cost a further model call. When the server ignores the schema, its text is read as in
// text mode.
func (t *turn) decide(ctx context.Context) (reply, error) {
	choices := t.useRecalled(t.choices())
	if len(choices) == 0 || t.answersFromRecall || t.asksAboutAttachment() {
		return t.requestAnswer(ctx)
	}
	r, err := t.requestDecision(ctx, choices)
	if err != nil || len(r.calls) > 0 {
		return r, err
	}
	var d struct{ Choice string }
	if objectOrNil(json.RawMessage(r.text)) == nil || json.Unmarshal([]byte(r.text), &d) != nil {
		if r.text != "" && r.unreadable == "" && !r.hitTokenLimit { // the server ignored the schema: this is the answer
			t.reportToken(r.text)
			return r, nil
		}
		return t.requestAnswer(ctx)
	}
	at := slices.IndexFunc(choices, func(tool model.Tool) bool { return tool.Name == d.Choice })
	if t.recalled != nil {
		t.answersFromRecall = t.recalled.Call.Name == d.Choice
		if t.answersFromRecall {
			t.addRecalled()
			return t.requestAnswer(ctx)
		}
		t.leaveOutRecalled()
	}
	if at < 0 {
		return t.requestAnswer(ctx)
	}
	c := model.Call{Name: d.Choice}
	var filled reply
	if c.Arguments, filled, err = t.fillArguments(ctx, &choices[at]); err != nil {
		return filled, err
	}
	return reply{
		thinking: r.thinking, final: r.final, offeredTools: true,
		calls: []foundCall{{Call: c, layer: LayerDecision}},
	}, nil
}

// requestDecision asks which of the choices comes next. Behind a result the conversation itself is asked.
func (t *turn) requestDecision(ctx context.Context, choices []model.Tool) (reply, error) {
	schema := choiceSchema("choice", choiceNames(choices))
	if t.hasToolResult() {
		return t.requestObject(ctx, instructNext(t.question(), choices), schema)
	}
	t.decision = []model.Message{
		{Role: model.System, Content: listChoices(choices, t.hasAttachment())},
		{Role: model.User, Content: t.instructDecision(choices)},
	}
	defer func() { t.decision = nil }()
	return t.requestObject(ctx, "", schema)
}

// instructDecision is the question of a decision. A reply that announced an action is decided about in place of the
// question before.
func (t *turn) instructDecision(choices []model.Tool) string {
	if t.announced != "" {
		return instructDecide(t.question(), lastSentence(t.announced), choiceNames(choices))
	}
	question := t.question()
	if t.hasAttachment() {
		question = firstRunes(question, maxDecided-len(attachedMark)) + attachedMark
	}
	return instructDecide(t.lastQuestion(), question, choiceNames(choices))
}

// asksAboutAttachment reports whether the message is a question that came with a text, which then answers it. A small
// model that decides without seeing the text looks up the date for "On which day is the meeting?"; orders, such as to
// put it into the calendar, are decided about, and so is what the answer announced.
func (t *turn) asksAboutAttachment() bool {
	return t.hasAttachment() && t.announced == "" && text.IsQuestion(t.question())
}

// hasAttachment reports whether untrusted content stands in the question's own message.
func (t *turn) hasAttachment() bool {
	return slices.ContainsFunc(t.state.Messages, func(m model.Message) bool {
		return m.Role == model.User && strings.Contains(m.Content, untrustedMark)
	})
}

// requestObject asks for a JSON object under a schema, with instruction as the last message; "" = none. Its text is not
// reported: it is never the answer.
func (t *turn) requestObject(ctx context.Context, instruction string, schema json.RawMessage) (reply, error) {
	t.schema, t.instruction = schema, instruction
	defer func() { t.schema, t.instruction = nil, "" }()
	r, err := t.requestReply(ctx, true, decisionTokens)
	if err != nil {
		r.text = "" // half an object is no partial answer
	}
	return r, err
}

// useRecalled decides about the statements that were recalled for the question. Pinned facts are added to the turn, and
// statements that clearly fit a question answer it. Otherwise the search becomes one of the choices, whose result is
// there already: a small model takes any statement that it is shown for the answer. A question's choice quotes the
// first statement; beside a message that asks nothing a small model would repeat it. It is no choice when the
// conversation has the statements already: a small model then goes on with the message before the question.
func (t *turn) useRecalled(choices []model.Tool) []model.Tool {
	if t.recalled == nil {
		return choices
	}
	said := t.recalled.Result.Text
	t.answersFromRecall = strings.Contains(said, "\n- "+RecallFits) && text.IsQuestion(t.question())
	if t.answersFromRecall || strings.Contains(said, "\n- "+RecallPinned) {
		t.addRecalled()
		return choices
	}
	statements := slices.DeleteFunc(recalledStatements(said), t.isSaid)
	if len(statements) == 0 {
		t.leaveOutRecalled()
		return choices
	}
	search := model.Tool{Name: t.recalled.Call.Name, Description: searchesRecall}
	if text.IsQuestion(t.question()) {
		search.Description = describeRecall(statements[0])
	}
	return append(slices.Clip(choices), search)
}

// isSaid reports whether a statement stands in an earlier message of the user.
func (t *turn) isSaid(statement string) bool {
	statement = text.Fold(statement)
	return slices.ContainsFunc(t.history, func(m model.Message) bool {
		return m.Role == model.User && strings.Contains(text.Fold(m.Content), statement)
	})
}

// leaveOutRecalled lists [Input.Recalled] among the calls of the turn without showing it to the model.
func (t *turn) leaveOutRecalled() {
	t.state.Finished = append(t.state.Finished, *t.recalled)
	t.recalled = nil
}

// addRecalled appends [Input.Recalled], if there is one, to the turn, once.
func (t *turn) addRecalled() {
	d := t.recalled
	if d == nil {
		return
	}
	t.recalled = nil
	t.appendMessages(
		model.Message{Role: model.Assistant, Calls: []model.Call{d.Call}},
		model.Message{Role: model.ToolRole, Content: d.Result.Text, ToolName: d.Call.Name, CallID: d.Call.ID})
	t.state.Finished = append(t.state.Finished, *d)
}

// requestAnswer asks for the answer after a decision: with the conversation alone, or with an instruction when tools
// were called. A call that the model writes into it is read as in text mode.
func (t *turn) requestAnswer(ctx context.Context) (reply, error) {
	switch {
	case t.hasToolResult():
		t.instruction = instructFromResults(t.question(), t.hasURLInResult())
	case t.hasFailedCall():
		t.instruction = instructAfterFailure(t.question())
	}
	defer func() { t.instruction = "" }()
	return t.requestReply(ctx, true, t.limits.AnswerTokens)
}

// hasFailedCall reports whether a tool that the model chose has failed.
func (t *turn) hasFailedCall() bool {
	return slices.ContainsFunc(t.state.Finished, func(d FinishedCall) bool {
		return d.Layer != LayerRecall && d.Result.Fault != ""
	})
}

// hasURLInResult reports whether a result of a tool that the model chose has an address.
func (t *turn) hasURLInResult() bool {
	return slices.ContainsFunc(t.state.Finished, func(d FinishedCall) bool {
		return d.Layer != LayerRecall && len(findURLs(d.Result.Text)) > 0
	})
}

// foldRecall moves the recalled entries of the turn in front of the question, into the same message: small models
// answer what they read last, and take a call that they see for an example. ms is not modified.
func (t *turn) foldRecall(ms []model.Message) []model.Message {
	at := slices.IndexFunc(ms, func(m model.Message) bool {
		return len(m.Calls) == 1 && t.isRecall(m.Calls[0].ID)
	})
	if at < 1 || at+1 >= len(ms) || ms[at-1].Role != model.User {
		return ms
	}
	question, notes := ms[at-1], ms[at+1].Content
	if t.answersFromRecall && text.IsQuestion(question.Content) { // a statement would be repeated as the answer
		question.Content = instructFromMemory(question.Content)
	}
	question.Content = recallMarks.Replace(notes) + "\n\n" + question.Content
	return slices.Concat(ms[:at-1], []model.Message{question}, ms[at+2:])
}

// isRecall reports whether a call of the turn is the search of memory before its first model call.
func (t *turn) isRecall(id string) bool {
	return slices.ContainsFunc(t.state.Finished, func(d FinishedCall) bool {
		return d.Layer == LayerRecall && d.Call.ID == id
	})
}

// reportToken reports a piece of text that may be the answer.
func (t *turn) reportToken(text string) {
	if t.hooks.Token != nil {
		t.hooks.Token(t.state.Step+1, text)
	}
}

// choices are the tools that the next decision may choose: none that is withheld, none that was called in this turn,
// since small models repeat themselves, and none that needs an address when no address is known. Tools that need an
// address are the only choices where the question itself has one, until one of them was called, and behind the result
// of another tool: small models search for an address that they have, and go on with tools that have nothing to do with
// the question.
func (t *turn) choices() []model.Tool {
	var out, readers []model.Tool
	read := false
	for _, tool := range t.agent.Tools {
		called := slices.ContainsFunc(t.state.Finished, func(d FinishedCall) bool { return d.Call.Name == tool.Name })
		needsURL := urlArgument(&tool) != ""
		read = read || called && needsURL
		switch {
		case called || slices.Contains(t.agent.Withheld, tool.Name) || needsURL && len(t.knownURLs()) == 0:
			continue
		case needsURL:
			readers = append(readers, tool)
		}
		out = append(out, tool)
	}
	if t.hasToolResult() || len(readers) > 0 && !read && len(findURLs(t.question())) > 0 {
		return readers
	}
	return out
}

// verbatimArguments are arguments that may be the user's own words. In the first turn of a session nothing before has
// to be added to them.
var verbatimArguments = []string{"query", "content", "question", "text"}

// maxVerbatim bounds a question that becomes an argument as it is, in bytes.
const maxVerbatim = 300

// fillArguments returns the arguments of a call of tool: the only known address, or the question itself, where these
// fit; otherwise the model gives them under the tool's schema, and its reply is returned too. They are not validated.
func (t *turn) fillArguments(ctx context.Context, tool *model.Tool) (json.RawMessage, reply, error) {
	required, optional := argumentNames(tool.Parameters)
	question := t.question()
	isVerbatim := len(required) == 1 && slices.Contains(verbatimArguments, required[0]) && len(question) <= maxVerbatim
	schema := shapeOf(tool.Parameters)
	switch {
	case len(required)+len(optional) == 0:
		return json.RawMessage("{}"), reply{}, nil
	case urlArgument(tool) != "":
		known := t.knownURLs()
		if len(known) == 1 {
			return newArguments(required[0], known[0]), reply{}, nil
		}
		schema = choiceSchema(required[0], known)
	case isVerbatim && len(t.history) == 0:
		return newArguments(required[0], question), reply{}, nil
	}
	r, err := t.requestObject(ctx, instructArguments(tool, question), schema)
	if r.hitTokenLimit && isVerbatim { // a small model elaborated on the user's words until the limit
		return newArguments(required[0], question), r, err
	}
	return objectOrNil(json.RawMessage(r.text)), r, err
}

// newArguments are arguments with one member.
func newArguments(name, value string) json.RawMessage {
	return json.RawMessage(newObject([]strict.Member{{Name: name, Value: newString(value)}}).Text)
}

// urlArgument is the name of a tool's only required argument when that is an address; otherwise "".
func urlArgument(tool *model.Tool) string {
	required, _ := argumentNames(tool.Parameters)
	if len(required) == 1 && (required[0] == "url" || required[0] == "uri") {
		return required[0]
	}
	return ""
}

// lastQuestion is the last message of the user in the history; "" = there is none. A follow-up is often too short to be
// decided alone.
func (t *turn) lastQuestion() string {
	for _, m := range slices.Backward(t.history) {
		if m.Role == model.User && !strings.Contains(m.Content, untrustedMark) {
			return m.Content
		}
	}
	return ""
}

// question is [Agent.Question], else the last message of the user before the first call of the turn; "" = there is
// none. An attachment must not get into an instruction: there it would stand outside its frame.
func (t *turn) question() string {
	last := t.agent.Question
	if last != "" {
		return last
	}
	for i := range t.state.Messages {
		m := &t.state.Messages[i]
		if len(m.Calls) > 0 {
			break
		}
		if m.Role == model.User {
			last = strings.TrimSpace(m.Content)
		}
	}
	return last
}

// choiceSchema is the JSON schema of an object with one member that is one of values. A decision has no other: small
// models decide worse with more around it.
func choiceSchema(name string, values []string) json.RawMessage {
	member := string(encodeJSON(name))
	return json.RawMessage(`{"type":"object","properties":{` + member + `:{"type":"string","enum":` +
		string(encodeJSON(values)) + `}},"required":[` + member + `]}`)
}

// choiceNames are the names of the choices of a decision, the answer first.
func choiceNames(tools []model.Tool) []string {
	names := []string{answerChoice}
	for i := range tools {
		names = append(names, tools[i].Name)
	}
	return names
}

// shapeKeywords are the keywords of a schema that say which members and values there are. The others are left out of a
// schema that a server makes a grammar of: bounds of lengths and numbers make it large, and each call is validated
// against the whole schema anyway.
var shapeKeywords = []string{"type", "properties", "required", "items", "enum", "const", "anyOf", "oneOf"}

// shapeOf is a tool's parameter schema, a JSON object, reduced to [shapeKeywords], and to the required arguments where
// there are any: small models make up values for the others.
func shapeOf(parameters json.RawMessage) json.RawMessage {
	required, _ := argumentNames(parameters)
	return jsonschema.Shape(parameters, shapeKeywords, func(name string) bool {
		return len(required) == 0 || slices.Contains(required, name)
	})
}

// shortenTools are the tools with parameters as a model needs them: which arguments there are, of which type, and what
// they mean. Bounds and other rules are left out; a call that breaks one is returned to the model with the reason.
func shortenTools(tools []model.Tool) []model.Tool {
	out := slices.Clone(tools)
	for i := range out {
		if len(out[i].Parameters) > 0 {
			out[i].Parameters, _ = shortSchemas.Get(out[i].Parameters, shortenSchema)
		}
	}
	return out
}

// shortenSchema is the schema of a tool for [shortenTools]. The error is always nil.
func shortenSchema(parameters []byte) (json.RawMessage, error) {
	keep := func(string) bool { return true }
	return jsonschema.Shape(parameters, append([]string{"description"}, shapeKeywords...), keep), nil
}

// describeArguments lists a tool's arguments with their descriptions, one after another; "" = there are none.
func describeArguments(parameters json.RawMessage) string {
	v, err := strict.Parse(parameters)
	if err != nil || v.Type != strict.Object || v.Member("properties") == nil {
		return ""
	}
	var parts []string
	for _, m := range v.Member("properties").Members {
		if d := m.Value.Member("description"); d != nil {
			parts = append(parts, m.Name+": "+firstSentence(d.Text))
		} else {
			parts = append(parts, m.Name)
		}
	}
	return strings.Join(parts, "; ")
}

// listChoices is the system message of a decision: the first sentence of each description, one a line, and the
// examples, first that of a message with an attachment where there is one: a small model otherwise searches for what
// stands in it.
func listChoices(tools []model.Tool, attached bool) string {
	var b strings.Builder
	b.WriteString(headChoices)
	for i := range tools {
		b.WriteString("- " + tools[i].Name + ": " + firstSentence(tools[i].Description) + "\n")
	}
	b.WriteString(headExamples)
	if attached {
		b.WriteString(attachedExample)
	}
	return b.String() + selectExamples(choiceNames(tools))
}

// selectExamples returns the examples whose choice is among names: one with a missing tool would teach a small model to
// choose it.
func selectExamples(names []string) string {
	var b strings.Builder
	for line := range strings.Lines(decisionExamples) {
		if _, choice, _ := strings.Cut(line, " -> "); slices.Contains(names, strings.TrimSpace(choice)) {
			b.WriteString(line)
		}
	}
	return strings.TrimSpace(b.String())
}

// argumentNames are the names of a tool's required and optional arguments in the order of the schema. A schema that
// cannot be read has none.
func argumentNames(parameters json.RawMessage) (required, optional []string) {
	v, err := strict.Parse(parameters)
	if err != nil || v.Type != strict.Object || v.Member("properties") == nil {
		return nil, nil
	}
	var names []string
	if r := v.Member("required"); r != nil {
		names, _ = r.Strings()
	}
	for _, m := range v.Member("properties").Members {
		if slices.Contains(names, m.Name) {
			required = append(required, m.Name)
		} else {
			optional = append(optional, m.Name)
		}
	}
	return required, optional
}

// firstSentence returns the first sentence of s on one line.
func firstSentence(s string) string {
	return strings.Join(text.SentenceTexts(s, 1), "")
}
