package main

import (
	"context"
	"encoding/json"
	"iter"
	"slices"
	"sync"
	"time"

	"conclave/actors/generator"
	"conclave/actors/memory"
	"conclave/actors/tools"
	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/model"
)

// decider makes the first decision about a question.
type decider func(ctx context.Context, chat model.Chat, name string, q question) decision

var deciders = map[string]decider{
	"constrained": loopDecider(loop.CallConstrained),
	"native":      loopDecider(loop.CallNative),
	"bare":        decideBare,
}

// replyTokens bounds a reply without a call. It is more than any of the calls need; the rest of a longer answer changes
// nothing about the decision.
const replyTokens = 160

// callTimeout lets a slow machine finish: what is measured is the decision.
const callTimeout = 20 * time.Minute

// requestOptions are the same in every mode.
func requestOptions() model.Options {
	temperature, seed := 0.0, 1
	return model.Options{Window: 8192, Predict: replyTokens, Temperature: &temperature, Seed: &seed, KeepAlive: "30m"}
}

// offeredTools are the shipped definitions of the tools that are offered for a question: the usual ones, and for an
// everyday question those for the user's own things.
func offeredTools(q question) []model.Tool {
	names := []string{"get_datetime", "web_search", "web_fetch", "search_memory"}
	if q.everyday {
		names = append(names, "save_memory", "notes_add", "calendar_read", "fs_read", "fs_list")
	}
	byName := map[string]model.Tool{}
	for _, t := range tools.Configured(tools.Config{
		WebSearch: tools.WebSearch{Provider: "mock"},
		WebFetch:  tools.WebFetch{Enabled: true},
	}) {
		s := t.Schema()
		byName[s.Name] = model.Tool{Name: s.Name, Description: s.Description, Parameters: s.Parameters}
	}
	for _, t := range memory.Tools() {
		byName[t.Schema.Name] = model.Tool{
			Name: t.Schema.Name, Description: t.Schema.Description,
			Parameters: t.Schema.Parameters,
		}
	}
	var out []model.Tool
	slices.Sort(names)
	for _, name := range names {
		out = append(out, byName[name])
	}
	return out
}

// loopDecider returns a decider by pkg/loop: the first call that it would run, or its answer. The turn ends there.
// Calls that the loop refuses are not run, and what it does next counts.
func loopDecider(calls loop.CallMode) decider {
	return func(ctx context.Context, chat model.Chat, name string, q question) decision {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		counted := &countingChat{next: chat}
		offered := offeredTools(q)
		d := decision{}
		if calls == loop.CallConstrained {
			offered, d.recalled = agent.RemoveRecallTools(offered), true
		}
		var once sync.Once
		began := time.Now()
		decide := func(choice string, arguments json.RawMessage) {
			once.Do(func() {
				d.choice, d.arguments, d.took = choice, string(arguments), time.Since(began)
				cancel()
			})
		}
		agent := loop.Agent{
			Chat: counted, Model: name, Tools: offered, Calls: calls, Stream: true, Options: requestOptions(),
			System:   generator.ShippedPrompt(),
			Withheld: generator.SelectWithheldTools(q.Text),
			Limits: loop.Limits{
				Steps: 2, StepTokens: replyTokens, AnswerTokens: replyTokens, CallTimeout: callTimeout,
				FirstToken: callTimeout, TurnTimeout: 2 * callTimeout,
			},
			RunTool: func(_ context.Context, c model.Call) loop.Result {
				decide(c.Name, c.Arguments)
				return loop.Result{Text: "stopped"}
			},
		}
		hooks := loop.Hooks{Note: func(n loop.Note) {
			if n.Code == loop.NoteMoreTokens || n.Code == loop.NoteCut { // a long answer
				decide(answer, nil)
			}
		}}
		if calls == loop.CallConstrained {
			hooks.Token = func(int, string) { decide(answer, nil) } // the decision was made before
		}
		in := loop.Input{State: loop.State{Messages: []model.Message{{Role: model.User, Content: q.Text}}}}
		out, err := loop.RunTurn(ctx, agent, in, hooks)
		once.Do(func() {
			d.took, d.err = time.Since(began), err
			if err == nil && out.Final && out.Answer != "" {
				d.choice = answer
			}
		})
		d.prompt, d.output = counted.prompt, counted.output
		return d
	}
}

// bareSystem is what a first program with tools would say.
const bareSystem = "You are a helpful assistant. Answer directly when you know the answer. Call a tool when you need " +
	"the date or the time, " +
	"current information from the web, a web page, or something that the user told you earlier."

// decideBare is one request with native tools.
func decideBare(ctx context.Context, chat model.Chat, name string, q question) (d decision) {
	began := time.Now()
	defer func() { d.took = time.Since(began) }()
	counted := &countingChat{next: chat}
	defer func() { d.prompt, d.output = counted.prompt, counted.output }()
	text := ""
	for c, err := range counted.Chat(ctx, model.Request{
		Model: name, Tools: offeredTools(q), Stream: true, Options: requestOptions(),
		Messages: []model.Message{{Role: model.System, Content: bareSystem}, {Role: model.User, Content: q.Text}},
	}) {
		if err != nil {
			d.err = err
			return d
		}
		text += c.Content
		if len(c.Calls) > 0 && d.choice == "" {
			d.choice, d.arguments = c.Calls[0].Name, string(c.Calls[0].Arguments)
		}
	}
	if d.choice == "" && text != "" {
		d.choice = answer
	}
	return d
}

// countingChat adds up the tokens of the calls through it.
type countingChat struct {
	next           model.Chat
	prompt, output int
}

// Chat implements [model.Chat].
func (c *countingChat) Chat(ctx context.Context, r model.Request) iter.Seq2[model.Chunk, error] {
	return func(yield func(model.Chunk, error) bool) {
		for chunk, err := range c.next.Chat(ctx, r) {
			if chunk.Done {
				c.prompt += chunk.Final.PromptTokens
				c.output += chunk.Final.OutputTokens
			}
			if !yield(chunk, err) {
				return
			}
		}
	}
}
