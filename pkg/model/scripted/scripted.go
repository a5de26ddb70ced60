// Package scripted is the built-in demo model for a machine without a model server. It follows a few fixed rules, so that a
// newcomer sees the whole path work: thinking, a tool call, an answer that uses its result, a question about an earlier
// one. It is no model and says so in every answer. The same request always gives the same reply.
package scripted

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/embedhash"
	"conclave/pkg/text"
)

// Name is the one model there is, for chats and vectors. Wherever a model is named, this is what people read.
const Name = "scripted (built in)"

// Backend is the demo model. The zero value is ready, and safe for concurrent use.
type Backend struct {
	// Suggest is the model that people are told to fetch; "" = gemma4:12b.
	Suggest string
}

var _ model.Backend = Backend{}

// advice is what to do about it.
func (b Backend) advice() string {
	name := b.Suggest
	if name == "" {
		name = "gemma4:12b"
	}
	return "For real answers install Ollama (https://ollama.com/download), then run: conclave model pull " + name
}

// only refuses every name but ours: the demo model never answers in the place of a model that was asked for.
func (b Backend) only(name string) error {
	if name == Name {
		return nil
	}
	return fmt.Errorf("%w: %s; only the built-in demo model is here. %s", model.ErrMissing, name, b.advice())
}

// Chat implements [model.Chat].
func (b Backend) Chat(ctx context.Context, r model.Request) iter.Seq2[model.Chunk, error] {
	return func(yield func(model.Chunk, error) bool) {
		if err := b.only(r.Model); err != nil {
			yield(model.Chunk{}, err)
			return
		}
		if ctx.Err() != nil {
			yield(model.Chunk{}, stopped(ctx))
			return
		}
		s := b.reply(r)
		last := model.Chunk{Done: true, Final: s.final(r)}
		if !r.Stream {
			last.Content, last.Thinking, last.Calls = s.content, s.thinking, s.calls
			yield(last, nil)
			return
		}
		for c := range s.pieces() {
			if !yield(c, nil) {
				return
			}
			if ctx.Err() != nil {
				yield(model.Chunk{}, stopped(ctx))
				return
			}
		}
		yield(last, nil)
	}
}

func stopped(ctx context.Context) error {
	return fmt.Errorf("asking the built-in demo model: %w", ctx.Err())
}

// said is what the demo model says to a request.
type said struct {
	thinking, content string
	calls             []model.Call
	cut               bool // at the limit of the request
}

// pieces yields word by word, as a model would.
func (s said) pieces() iter.Seq[model.Chunk] {
	return func(yield func(model.Chunk) bool) {
		for _, w := range words(s.thinking) {
			if !yield(model.Chunk{Thinking: w}) {
				return
			}
		}
		for _, w := range words(s.content) {
			if !yield(model.Chunk{Content: w}) {
				return
			}
		}
		if len(s.calls) > 0 {
			yield(model.Chunk{Calls: s.calls})
		}
	}
}

// words cuts s before every space.
func words(s string) (all []string) {
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

// final counts words as tokens: nothing else is at hand to count with.
func (s said) final(r model.Request) model.Final {
	f := model.Final{Model: Name, Reason: "stop", OutputTokens: len(words(s.thinking)) + len(words(s.content)) + len(s.calls)}
	for _, m := range r.Messages {
		f.PromptTokens += len(words(m.Content))
	}
	for _, t := range r.Tools { // they are sent too, and JSON has few blanks
		f.PromptTokens += len(words(t.Description)) + len(t.Parameters)/3
	}
	if s.cut {
		f.Reason = "length"
	}
	return f
}

// reply decides what to say.
func (b Backend) reply(r model.Request) said {
	t := read(r)
	s := b.decide(r, t)
	if r.Think != nil && !*r.Think {
		s.thinking = ""
	}
	if all := words(s.content); r.Options.Predict > 0 && len(all) > r.Options.Predict {
		s.content, s.cut = strings.Join(all[:r.Options.Predict], ""), true
	}
	return s
}

func (b Backend) decide(r model.Request, t turn) said {
	switch {
	case len(r.Format) > 0:
		return said{content: instance(r.Format), thinking: "A form is to be filled in. I fill it with empty values, since I understand nothing."}
	case strings.Contains(t.question, "[RESULT]"):
		return said{
			thinking: "I am to grade something, and cannot judge it.",
			content:  "This is the built-in demo model and not a judge: every answer gets the middle grade. [RESULT] 3",
		}
	case len(t.results) > 0:
		return b.quote(t)
	case asksForTime(t.question) && !t.offered(timeTool):
		return said{
			thinking: "The question is about the time. I do not know it, and no tool that does is at hand.",
			content:  "I do not know the time, and the tool that does is not at hand. (I am the built-in demo model and not a model. " + b.advice() + ")",
		}
	case t.aboutTime():
		zone, _ := zoneIn(t.question)
		return call(r, timeTool, map[string]string{"timezone": zone}, "The question is about the time. I do not know it, but the tool %s does. The zone is "+zone+".")
	case remembers.MatchString(t.question) && t.offered(saveTool):
		return call(r, saveTool, map[string]string{"content": strings.TrimSpace(remembers.ReplaceAllString(t.question, ""))},
			"Something is to be remembered. The tool %s keeps it.")
	case refersBack(t.question):
		return b.recall(t)
	case aboutPerson.MatchString(t.question) && t.offered(searchTool):
		return call(r, searchTool, map[string]string{"query": t.question}, "The question is about the user. I know nobody, but the tool %s may find what was said before.")
	}
	return said{
		thinking: "I am the built-in demo model. I follow fixed rules, and none of them answers this.",
		content:  fmt.Sprintf("I am the built-in demo model and not a model, so I cannot answer %q. %s", text.Clip(t.question, quoted), b.advice()),
	}
}

// call is a call of one tool, with what the demo model thinks of it.
func call(r model.Request, tool string, arguments map[string]string, thinking string) said {
	args, err := json.Marshal(arguments)
	if err != nil {
		return said{}
	}
	return said{
		thinking: fmt.Sprintf(thinking, tool),
		calls:    []model.Call{{ID: fmt.Sprintf("call_%d", len(r.Messages)), Name: tool, Arguments: args}},
	}
}

// aboutTime reports whether the time is asked for: in so many words, or as in "And in Lima?" after a question that did.
func (t turn) aboutTime() bool {
	if asksForTime(t.question) {
		return true
	}
	n := len(t.earlier)
	return n > 0 && continuing.MatchString(t.question) && asksForTime(t.earlier[n-1]) && somewhere.MatchString(t.question) && t.offered(timeTool)
}

// quote answers with what the tools returned.
func (b Backend) quote(t turn) said {
	var c strings.Builder
	for _, m := range t.results {
		fmt.Fprintf(&c, "The tool %s says: %s\n", m.ToolName, text.Clip(unframed(m.Content), quoted))
	}
	if _, lost := zoneIn(t.question); lost && t.aboutTime() {
		c.WriteString("I do not know that place, so this is the time in UTC.\n")
	}
	c.WriteString("(Told by the built-in demo model, which is not a model. " + b.advice() + ")")
	return said{thinking: "The tools have answered. I pass on what they say.", content: c.String()}
}

// recall answers a question about an earlier one.
func (b Backend) recall(t turn) said {
	if len(t.earlier) == 0 {
		return said{
			thinking: "This refers to something earlier, but nothing was asked before.",
			content:  "This is the first question of our conversation. (I am the built-in demo model and not a model. " + b.advice() + ")",
		}
	}
	return said{
		thinking: "This refers to something earlier. I look it up in the conversation.",
		content: fmt.Sprintf("Before this you asked: %q. I am the built-in demo model and not a model: that is all I can say about it. %s",
			text.Clip(t.earlier[len(t.earlier)-1], quoted), b.advice()),
	}
}

// Embed implements [model.Embedder]. The vectors know letters and words, and no meaning.
func (b Backend) Embed(ctx context.Context, name string, texts []string) (model.Vectors, error) {
	if err := b.only(name); err != nil {
		return model.Vectors{}, err
	}
	v := model.Vectors{Model: Name, Values: make([][]float32, len(texts))}
	for i, text := range texts {
		if ctx.Err() != nil {
			return model.Vectors{}, stopped(ctx)
		}
		v.Values[i] = embedhash.Embed(text, embedhash.Dimensions)
		v.PromptTokens += len(words(text))
	}
	return v, nil
}

func info() model.Info {
	return model.Info{
		Name: Name, Family: "fixed rules, not a model", Parameters: "0", Tools: true, Thinking: true, Embedding: true, Loaded: true,
	}
}

// List implements [model.Backend].
func (b Backend) List(context.Context) ([]model.Info, error) { return []model.Info{info()}, nil }

// Show implements [model.Backend].
func (b Backend) Show(_ context.Context, name string) (model.Info, error) {
	if err := b.only(name); err != nil {
		return model.Info{}, err
	}
	return info(), nil
}

// Pull implements [model.Backend]: there is nothing to fetch from.
func (b Backend) Pull(context.Context, string) iter.Seq2[model.Progress, error] {
	return func(yield func(model.Progress, error) bool) {
		yield(model.Progress{}, fmt.Errorf("%w: the built-in demo model fetches no models. %s", model.ErrUnsupported, b.advice()))
	}
}

// turn is what the rules look at.
type turn struct {
	question string          // the last one
	earlier  []string        // questions before it
	results  []model.Message // of tools, since the question
	tools    []model.Tool
}

func read(r model.Request) turn {
	t := turn{tools: r.Tools}
	for _, m := range r.Messages {
		switch m.Role {
		case model.User:
			if t.question != "" {
				t.earlier = append(t.earlier, t.question)
			}
			t.question, t.results = m.Content, nil
		case model.ToolRole:
			t.results = append(t.results, m)
		}
	}
	return t
}

func (t turn) offered(name string) bool {
	return slices.ContainsFunc(t.tools, func(tool model.Tool) bool { return tool.Name == name })
}
