// Package scripted is the built-in demo model for a machine without a model server. It follows a few fixed rules, so
// that a new user sees the whole path: thinking, a tool call, an approval, an answer from the result, a follow-up
// question. It is not a language model, states that in every answer, and names conclave setup for a real one. Replies
// are deterministic.
package scripted

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"

	"conclave/pkg/firewall"
	"conclave/pkg/model"
	"conclave/pkg/model/internal/embedhash"
	"conclave/pkg/text"
)

// Name is the name of the only model, for chats and embeddings, as users see it.
const Name = "scripted (built in)"

// disclosure is part of every answer.
const disclosure = "This is an answer of the built-in demo model, which follows fixed rules and is not a language " +
	"model."

// setupAdvice says how to get a real model.
const setupAdvice = "For real answers run: conclave setup"

// abilities are the questions that the demo model answers.
const abilities = "It answers: What is the capital of France? What time is it in Tokyo? Remember that I drink my " +
	"coffee black. How do I drink my coffee? What do my notes say? Add to my notes: buy milk. Search the web for " +
	"news about NATS."

// Backend is the demo model. It is ready, and safe for concurrent use.
type Backend struct{}

var _ model.Backend = Backend{}

// checkName returns [model.ErrMissing] for every name but [Name]: the demo model never replaces a requested model
// silently.
func (b Backend) checkName(name string) error {
	if name == Name {
		return nil
	}
	return fmt.Errorf("%w: %s; only the built-in demo model is available. %s", model.ErrMissing, name,
		setupAdvice)
}

// Chat implements [model.Chat]. Any model but [Name] is [model.ErrMissing]. It fails otherwise only when ctx ends.
func (b Backend) Chat(ctx context.Context, r model.Request) iter.Seq2[model.Chunk, error] {
	return func(yield func(model.Chunk, error) bool) {
		if err := b.checkName(r.Model); err != nil {
			yield(model.Chunk{}, err)
			return
		}
		if ctx.Err() != nil {
			yield(model.Chunk{}, cancelledError(ctx))
			return
		}
		s := composeReply(r)
		last := model.Chunk{Done: true, Final: s.finalCounts(r)}
		if !r.Stream {
			last.Content, last.Thinking, last.Calls = s.content, s.thinking, s.calls
			yield(last, nil)
			return
		}
		for c := range s.streamChunks() {
			if !yield(c, nil) {
				return
			}
			if ctx.Err() != nil {
				yield(model.Chunk{}, cancelledError(ctx))
				return
			}
		}
		yield(last, nil)
	}
}

func cancelledError(ctx context.Context) error {
	return fmt.Errorf("requesting the built-in demo model: %w", ctx.Err())
}

// reply is the reply to a request.
type reply struct {
	thinking, content string
	calls             []model.Call
	truncated         bool // at Options.Predict
}

// streamChunks yields the reply word by word, thinking first, calls last. The last chunk, with Done, is not among them.
func (s reply) streamChunks() iter.Seq[model.Chunk] {
	return func(yield func(model.Chunk) bool) {
		for _, w := range splitWords(s.thinking) {
			if !yield(model.Chunk{Thinking: w}) {
				return
			}
		}
		for _, w := range splitWords(s.content) {
			if !yield(model.Chunk{Content: w}) {
				return
			}
		}
		if len(s.calls) > 0 {
			yield(model.Chunk{Calls: s.calls})
		}
	}
}

// splitWords splits s before every space and newline. The parts concatenate to s.
func splitWords(s string) (all []string) {
	from := 0
	for i := range len(s) {
		if i > from && (s[i] == ' ' || s[i] == '\n') {
			all = append(all, s[from:i])
			from = i
		}
	}
	if from < len(s) {
		all = append(all, s[from:])
	}
	return all
}

// finalCounts returns the final record of a reply. It counts words as tokens, because there is no tokenizer.
func (s reply) finalCounts(r model.Request) model.Final {
	f := model.Final{Model: Name, Reason: "stop", OutputTokens: len(splitWords(s.thinking)) +
		len(splitWords(s.content)) + len(s.calls)}
	for _, m := range r.Messages {
		f.PromptTokens += len(splitWords(m.Content))
	}
	for _, t := range r.Tools { // about three bytes of JSON schema per token
		f.PromptTokens += len(splitWords(t.Description)) + len(t.Parameters)/3
	}
	if s.truncated {
		f.Reason = "length"
	}
	return f
}

// composeReply returns the reply to r, without thinking if r forbids it and truncated to Options.Predict words.
func composeReply(r model.Request) reply {
	t := parseTurn(r)
	s := applyRules(r, t)
	if r.Think != nil && !*r.Think {
		s.thinking = ""
	}
	if all := splitWords(s.content); r.Options.Predict > 0 && len(all) > r.Options.Predict {
		s.content, s.truncated = strings.Join(all[:r.Options.Predict], ""), true
	}
	return s
}

// applyRules returns the reply of the first rule that applies: fill a format, grade, quote tool results, call a tool
// that the question names with its arguments, tell or ask for the time, tell a capital, save, read or add to notes,
// search the web, refer back, search memory; else an answer that it cannot answer.
func applyRules(r model.Request, t turn) reply {
	switch {
	case len(r.Format) > 0:
		return reply{content: fillSchema(r.Format), thinking: "A form is to be filled in. I fill it with empty " +
			"values, since I understand nothing."}
	case strings.Contains(t.question, "[RESULT]"):
		return reply{
			thinking: "I am to grade something, and cannot judge it.",
			content:  disclosure + " It cannot judge, so every answer gets the middle grade. [RESULT] 3",
		}
	case len(t.results) > 0:
		if path := t.onlyNote(); path != "" {
			return callTool(r, readNotesTool, notesArguments(path), "There is one note. The tool %s reads it.")
		}
		return quoteResults(t)
	}
	if name, args, ok := t.namedCall(); ok && t.hasTool(name) {
		return callTool(r, name, args, "The question names the tool %s and its arguments. I call it.")
	} else if ok {
		return reply{
			thinking: fmt.Sprintf("The question names the tool %s, which I am not offered.", name),
			content: fmt.Sprintf("I am not offered a tool %s: it does not run, this agent may not call it, or its "+
				"definition changed and waits for you. "+
				"conclave tool show %[1]s says which of a tool that you added, conclave policy explain %[1]s of any "+
				"other; conclave tool accept %[1]s accepts a changed definition. (%[2]s)", name, disclosure),
		}
	}
	switch {
	case mentionsTime(t.question) && !t.hasTool(timeTool):
		return reply{
			thinking: "The question is about the time. I do not know it, and no tool that does is available.",
			content: "I do not know the time, and the tool that does is not available. (" + disclosure + " " +
				setupAdvice + ")",
		}
	case t.asksForTime():
		zone, _ := guessZone(t.question)
		return callTool(r, timeTool, map[string]string{"timezone": zone}, "The question is about the time. I do not "+
			"know it, but the tool %s does. The zone is "+zone+".")
	case t.asksForCapital():
		country, capital, _ := findCapital(t.question)
		return reply{
			thinking: "The question is about a capital, of which I have a short list.",
			content:  fmt.Sprintf("The capital of %s is %s.\n\n(%s %s)", country, capital, disclosure, setupAdvice),
		}
	case rememberRequest().MatchString(t.question) && t.hasTool(saveTool):
		return callTool(r, saveTool,
			map[string]string{"content": strings.TrimSpace(rememberRequest().ReplaceAllString(t.question, ""))},
			"Something is to be remembered. The tool %s keeps it.")
	case t.noteToAdd() != "" && t.hasTool(addNoteTool):
		return callTool(r, addNoteTool, map[string]string{"text": t.noteToAdd()}, "Something is to be written down. "+
			"The tool %s adds it to your notes.")
	case readsNotes().MatchString(t.question) && t.hasTool(readNotesTool):
		return callTool(r, readNotesTool, notesArguments(notePath().FindString(t.question)), "The question is about "+
			"your notes. The tool %s reads them.")
	case t.webQuery() != "" && t.hasTool(webTool):
		return callTool(r, webTool, map[string]string{"query": t.webQuery()}, "The web is to be searched. The tool %s "+
			"does that.")
	case asksAboutHistory().MatchString(t.question) || len(t.earlier) > 0 && !t.attached && refersBack(t.question):
		return recallQuestion(t)
	case aboutUser().MatchString(t.question) && t.hasTool(searchTool):
		return callTool(r, searchTool, map[string]string{"query": t.question}, "The question is about the user. I "+
			"know nobody, but the tool %s may find what was said before.")
	}
	advice := setupAdvice
	if len(t.tools) > 0 {
		advice = abilities + ` It calls any other tool when you write the name and a JSON object of arguments, such ` +
			`as get_datetime {"timezone":"UTC"}. ` + advice
	}
	if asksAboutDemo().MatchString(t.question) {
		return reply{thinking: "The question is about me.", content: disclosure + " " + advice}
	}
	return reply{
		thinking: "I am the built-in demo model. I follow fixed rules, and none of them answers this.",
		content:  fmt.Sprintf("%s It cannot answer %q. %s", disclosure, text.Clip(t.question, maxQuotedBytes), advice),
	}
}

// callTool returns a reply that calls tool, which the caller has found in r. arguments are encoded as a JSON object.
// thinking is a format with one %s for the name of the tool.
func callTool(r model.Request, tool string, arguments any, thinking string) reply {
	args, err := json.Marshal(arguments)
	if err != nil {
		return reply{}
	}
	return reply{
		thinking: fmt.Sprintf(thinking, tool),
		calls:    []model.Call{{ID: fmt.Sprintf("call_%d", len(r.Messages)), Name: tool, Arguments: args}},
	}
}

// namedCall returns the first tool in the question whose name is followed by a JSON object, with that object: an
// offered one, else a word with "_", as names of tools have and prose has not.
func (t turn) namedCall() (name string, args json.RawMessage, ok bool) {
	for _, at := range toolWithArguments().FindAllStringSubmatchIndex(t.question, -1) {
		word, object := t.question[at[2]:at[3]], json.RawMessage(nil)
		if json.NewDecoder(strings.NewReader(t.question[at[3]:])).Decode(&object) != nil {
			continue
		}
		if t.hasTool(word) {
			return word, object, true
		}
		if !ok && strings.Contains(word, "_") {
			name, ok = word, true
		}
	}
	return name, nil, ok
}

// asksForCapital reports whether the question is about a capital that the demo model knows.
func (t turn) asksForCapital() bool {
	_, _, ok := findCapital(t.question)
	return ok
}

// noteToAdd returns what the question wants to add to the notes, "" for nothing.
func (t turn) noteToAdd() string {
	m := addsNote().FindStringSubmatch(t.question)
	if m == nil {
		return ""
	}
	return strings.TrimSpace(m[1] + m[2])
}

// onlyNote returns the path of the note to read, when the first round listed the notes and there is one; else "".
func (t turn) onlyNote() string {
	if t.rounds != 1 || len(t.results) != 1 || t.results[0].ToolName != readNotesTool || !t.hasTool(readNotesTool) ||
		notePath().MatchString(t.question) {
		return ""
	}
	name := trimFrame(t.results[0].Content)
	if !strings.HasSuffix(name, ".md") || strings.ContainsAny(name, "\n/") {
		return ""
	}
	return notesFolder + name
}

// lacksNotes reports whether a tool found no folder of notes.
func (t turn) lacksNotes() bool {
	return slices.ContainsFunc(t.results, func(m model.Message) bool {
		return (m.ToolName == readNotesTool || m.ToolName == addNoteTool) &&
			strings.Contains(m.Content, "no such file or folder")
	})
}

// webQuery returns the words that the question wants searched on the web, "" for none.
func (t turn) webQuery() string {
	m := searchesWeb().FindStringSubmatch(t.question)
	if m == nil {
		return ""
	}
	return strings.Trim(m[1], " .?!")
}

// asksForTime reports whether the question asks for the time, directly or as a follow-up with a place ("And in Lima?")
// to a question that did.
func (t turn) asksForTime() bool {
	if mentionsTime(t.question) {
		return true
	}
	n := len(t.earlier)
	return n > 0 && followUpStart().MatchString(t.question) && mentionsTime(t.earlier[n-1]) &&
		placeName().MatchString(t.question) && t.hasTool(timeTool)
}

// quoteResults returns an answer that quotes the tool results of the turn, each at most maxQuotedBytes, without the
// frame around untrusted content.
func quoteResults(t turn) reply {
	var c strings.Builder
	for _, m := range t.results {
		fmt.Fprintf(&c, "The tool %s says: %s\n", m.ToolName, text.Clip(trimFrame(m.Content), maxQuotedBytes))
	}
	if t.lacksNotes() {
		c.WriteString("Make the folder of your notes, then ask again: mkdir -p " + notesFolder + "\n")
	}
	if _, unknownPlace := guessZone(t.question); unknownPlace && t.asksForTime() {
		c.WriteString("I do not know that place, so this is the time in UTC.\n")
	}
	c.WriteString("\n(" + disclosure + " " + setupAdvice + ")")
	return reply{thinking: "The tools have answered. I pass on what they say.", content: c.String()}
}

// recallQuestion returns an answer that quotes the previous question of the user, or says that there is none.
func recallQuestion(t turn) reply {
	if len(t.earlier) == 0 {
		return reply{
			thinking: "This refers to something earlier, but nothing was asked before.",
			content:  "This is the first question of our conversation. (" + disclosure + " " + setupAdvice + ")",
		}
	}
	return reply{
		thinking: "This refers to something earlier. I look it up in the conversation.",
		content: fmt.Sprintf("Before this you asked: %q. That is all I can say about it. (%s %s)",
			text.Clip(t.earlier[len(t.earlier)-1], maxQuotedBytes), disclosure, setupAdvice),
	}
}

// Embed implements [model.Embedder]. The vectors reflect letters and words, not meaning. Any model but [Name] is
// [model.ErrMissing].
func (b Backend) Embed(ctx context.Context, name string, texts []string) (model.Vectors, error) {
	if err := b.checkName(name); err != nil {
		return model.Vectors{}, err
	}
	v := model.Vectors{Model: Name, Values: make([][]float32, len(texts))}
	for i, text := range texts {
		if ctx.Err() != nil {
			return model.Vectors{}, cancelledError(ctx)
		}
		v.Values[i] = embedhash.Embed(text, embedhash.Dimensions)
		v.PromptTokens += len(splitWords(text))
	}
	return v, nil
}

func describeModel() model.Info {
	return model.Info{
		Name: Name, Family: "fixed rules, not a language model", Parameters: "0", Tools: true, Thinking: true,
		Embedding: true, Loaded: true,
	}
}

// List implements [model.Backend].
func (b Backend) List(context.Context) ([]model.Info, error) {
	return []model.Info{describeModel()}, nil
}

// Show implements [model.Backend].
func (b Backend) Show(_ context.Context, name string) (model.Info, error) {
	if err := b.checkName(name); err != nil {
		return model.Info{}, err
	}
	return describeModel(), nil
}

// Pull implements [model.Backend]. It always fails with [model.ErrUnsupported].
func (b Backend) Pull(context.Context, string) iter.Seq2[model.Progress, error] {
	return func(yield func(model.Progress, error) bool) {
		yield(model.Progress{}, fmt.Errorf("%w: the built-in demo model cannot pull models. %s", model.ErrUnsupported,
			setupAdvice))
	}
}

// turn is the part of a request to which the rules apply.
type turn struct {
	question string          // the last user message
	attached bool            // it has attachments, which "this" means
	earlier  []string        // the user messages before it
	rounds   int             // of calls, after question
	results  []model.Message // of tools, of the last round
	tools    []model.Tool
}

// questionHeading precedes the question in a message that has other parts before it, such as the contributions of a
// committee.
const questionHeading = "# The question\n\n"

// parseTurn finds the last question of r, the earlier ones, and the tool results since the last.
func parseTurn(r model.Request) turn {
	t := turn{tools: r.Tools}
	for _, m := range r.Messages {
		switch m.Role {
		case model.User:
			if t.question != "" {
				t.earlier = append(t.earlier, t.question)
			}
			// Attachments are not the user's words: no rule must follow them.
			t.question, _, t.attached = strings.Cut(m.Content, "\n\n"+firewall.AttachmentStart)
			if i := strings.LastIndex(t.question, questionHeading); i >= 0 {
				t.question = t.question[i+len(questionHeading):]
			}
			t.results, t.rounds = nil, 0
		case model.Assistant:
			if len(m.Calls) > 0 {
				t.results, t.rounds = nil, t.rounds+1
			}
		case model.ToolRole:
			t.results = append(t.results, m)
		}
	}
	return t
}

func (t turn) hasTool(name string) bool {
	return slices.ContainsFunc(t.tools, func(tool model.Tool) bool { return tool.Name == name })
}
