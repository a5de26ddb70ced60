// Package callcheck has short conversations that show whether a model makes native tool calls reliably. Its tools do
// not exist: no call is ever run.
package callcheck

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"conclave/pkg/jsonschema"
	"conclave/pkg/model"
)

// system is the system message of every step.
const system = "You are a helpful assistant. Call a tool when the request needs one, otherwise answer in one short " +
	"sentence."

var tools = []model.Tool{
	{
		Name: "parcel_status", Description: "Tells where a parcel is.",
		Parameters: jsonschema.Literal(`{
			"type": "object",
			"properties": {
				"parcel": {"type": "string", "description": "number of the parcel"}
			},
			"required": ["parcel"]
		}`),
	},
	{
		Name: "set_lamp", Description: "Switches a lamp on or off.",
		Parameters: jsonschema.Literal(`{
			"type": "object",
			"properties": {
				"room": {"type": "string"},
				"on": {"type": "boolean"}
			},
			"required": ["room", "on"]
		}`),
	},
}

// Step is one request of the test.
type Step struct {
	Messages []model.Message
	Reply    model.Message  // a reply that passes
	answer   *regexp.Regexp // of a step that needs no call: what the answer says
}

// Steps returns the requests of the test: two that need a call, one that needs none, and one after the result of a
// call.
func Steps() []Step {
	question := "Where is my parcel ZX-4471?"
	status := model.Call{ID: "call_1", Name: "parcel_status", Arguments: json.RawMessage(`{"parcel":"ZX-4471"}`)}
	lamp := model.Call{ID: "call_1", Name: "set_lamp", Arguments: json.RawMessage(`{"room":"kitchen","on":false}`)}
	return []Step{
		newStep(question, model.Message{Calls: []model.Call{status}}, ""),
		newStep("Switch the lamp in the kitchen off.", model.Message{Calls: []model.Call{lamp}}, ""),
		newStep("What is two plus two?", model.Message{Content: "Two plus two is 4."}, `(?i)\b(4|four)\b`),
		newStep(question, model.Message{Content: "It waits in locker 19."}, `\b19\b`,
			model.Message{Role: model.Assistant, Calls: []model.Call{status}},
			model.Message{
				Role: model.ToolRole, ToolName: status.Name, CallID: status.ID,
				Content: "ZX-4471: waits in locker 19 at the central station",
			}),
	}
}

// newStep returns a step with the question and what followed it. answer is the pattern of an answer without a call, ""
// = reply has the call that is expected.
func newStep(question string, reply model.Message, answer string, followed ...model.Message) Step {
	s := Step{Messages: append([]model.Message{
		{Role: model.System, Content: system},
		{Role: model.User, Content: question},
	}, followed...), Reply: reply}
	s.Reply.Role = model.Assistant
	if answer != "" {
		s.answer = regexp.MustCompile(answer)
	}
	return s
}

// Request is the request of the step, without a model.
func (s Step) Request() model.Request {
	think, temperature, seed := false, 0.0, 1
	return model.Request{Messages: s.Messages, Tools: tools, Think: &think, Options: model.Options{
		Predict:     maxOutput,
		Temperature: &temperature, Seed: &seed,
	}}
}

// maxOutput bounds a reply, in tokens: a call has about 30.
const maxOutput = 256

// Passes reports whether a reply is right: exactly the expected call with its arguments, or an answer without a call.
func (s Step) Passes(reply model.Message) bool {
	if s.answer != nil {
		return len(reply.Calls) == 0 && s.answer.MatchString(reply.Content)
	}
	want := s.Reply.Calls[0]
	return len(reply.Calls) == 1 && reply.Calls[0].Name == want.Name &&
		hasArguments(reply.Calls[0].Arguments, want.Arguments)
}

// hasArguments reports whether got has the values of want. Case and the type of a value are not compared, since tools
// accept "false" and "Kitchen"; a further argument is allowed.
func hasArguments(got, want json.RawMessage) bool {
	var g, w map[string]any
	if json.Unmarshal(got, &g) != nil || json.Unmarshal(want, &w) != nil {
		return false
	}
	for key, value := range w {
		if have, ok := g[key]; !ok || !strings.EqualFold(strings.TrimSpace(fmt.Sprint(have)), fmt.Sprint(value)) {
			return false
		}
	}
	return true
}

// Find returns the step that a request is of, and false for a request of anything else.
func Find(r model.Request) (Step, bool) {
	if len(r.Messages) < 2 || r.Messages[0].Content != system {
		return Step{}, false
	}
	for _, s := range Steps() {
		if len(s.Messages) == len(r.Messages) && s.Messages[1].Content == r.Messages[1].Content {
			return s, true
		}
	}
	return Step{}, false
}
