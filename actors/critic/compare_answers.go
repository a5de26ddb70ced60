package critic

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/pkg/actor"
	"conclave/pkg/jsonschema"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

//go:embed compare_answers.md
var compareAnswersText string

// Bounds of the arguments, in characters; the same are in the schema.
const (
	maxArgQuestion    = 4000
	maxArgAnswer      = 12000
	maxArgReference   = 4000
	maxResultFeedback = 2 << 10 // bytes of the feedback in the result
)

// compareAnswersTool returns the tool compare_answers, with which an agent has two answers judged. It changes nothing
// and reads nothing but its arguments. The result has the labels of the call.
func (c *Critic) compareAnswersTool() actor.Tool {
	return actor.Tool{
		Schema: subjects.ToolSchema{
			Name: "compare_answers", Version: Version, Description: strings.TrimSpace(compareAnswersText),
			Parameters: jsonschema.Literal(`{
				"type": "object",
				"properties": {
					"question": {"type": "string", "minLength": 1, "maxLength": 4000,
						"description": "what both answer"},
					"first": {"type": "string", "minLength": 1, "maxLength": 12000,
						"description": "one answer, whole"},
					"second": {"type": "string", "minLength": 1, "maxLength": 12000,
						"description": "the other answer, whole"},
					"reference": {"type": "string", "maxLength": 4000,
						"description": "an answer that is known to be right"}
				},
				"required": ["question", "first", "second"],
				"additionalProperties": false
			}`),
		},
		Facts: policy.Tool{
			Name: "compare_answers", Zone: name, Known: true, Effects: policy.Declare(), Timeout: 5 * time.Minute,
			Graded: true, Rare: []string{
				"compare", "comparison", "better", "versus", "vergleiche", "besser", "mieux",
				"mejor",
			}, MaxArgs: 160 << 10, MaxResult: 8 << 10,
		},
		Run: func(ctx context.Context, in actor.Msg[subjects.ToolOrder], out actor.Out) (subjects.ToolResult, error) {
			result, err := c.runCompareAnswers(ctx, out, in.Body.Args)
			// The feedback is about content of the session: any author of that content could have influenced it.
			return subjects.ToolResult{Result: result, Labels: in.Body.Labels}, err
		},
	}
}

// runCompareAnswers returns the sentence for the model: which answer is better, or that they are even. Missing, empty
// and too long arguments are [actor.ErrArguments], a failed judgement is a fault.
func (c *Critic) runCompareAnswers(ctx context.Context, out actor.Out, args json.RawMessage) (string, error) {
	var a struct {
		Question  string `json:"question"`
		First     string `json:"first"`
		Second    string `json:"second"`
		Reference string `json:"reference"`
	}
	if err := actor.DecodeArguments(args, &a); err != nil {
		return "", err
	}
	for _, f := range []struct {
		name, text string
		most       int
		needed     bool
	}{
		{"question", a.Question, maxArgQuestion, true},
		{"first", a.First, maxArgAnswer, true},
		{"second", a.Second, maxArgAnswer, true},
		{"reference", a.Reference, maxArgReference, false},
	} {
		if f.needed && strings.TrimSpace(f.text) == "" {
			return "", fmt.Errorf("%w: %s is missing or empty", actor.ErrArguments, f.name)
		}
		if n := utf8.RuneCountInString(f.text); n > f.most {
			return "", fmt.Errorf("%w: %s has %d characters, at most %d", actor.ErrArguments, f.name, n, f.most)
		}
	}
	r, err := c.compareAnswers(ctx, out, c.rubricText(subjects.RubricPlain), a.Question, a.Reference, a.First, a.Second)
	switch {
	case err != nil:
		return "", judgeFault(err)
	case r.isTie():
		return "They are even: asked with the answers swapped, the judge decided differently. Take either one.", nil
	}
	which := [...]string{"first", "second"}[r.better[0]]
	return fmt.Sprintf("The %s answer is better.\nThe judge says (Response A is the first, Response B the second): %s",
		which, text.Clip(r.feedback, maxResultFeedback)), nil
}

// judgeFault returns the fault for the model when the judge failed with err, which must not be nil, and advice what to
// do instead. Only for an unreadable reply the code is CodeTool, else CodeUnavailable.
func judgeFault(err error) *subjects.Fault {
	const advice = "choose yourself, and say that the answers were not compared"
	switch {
	case errors.Is(err, errUnreadable):
		return subjects.Faultf(subjects.CodeTool, "the judge's words could not be read, twice; %s", advice)
	case errors.Is(err, errDemoModel):
		return subjects.Faultf(subjects.CodeUnavailable, "%v; %s", errDemoModel, advice)
	case !isTransient(err):
		return subjects.Faultf(subjects.CodeUnavailable, "%s; %s", describeFailure(err, 1), advice)
	}
	return subjects.Faultf(subjects.CodeUnavailable, "the judge does not answer now; retry once, or %s", advice)
}
