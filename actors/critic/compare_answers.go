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
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

//go:embed compare_answers.md
var compareAnswersText string

// Bounds of the arguments, in characters; the schema says the same.
const (
	mostQuestion  = 4000
	mostCompared  = 12000
	mostReference = 4000
	mostWords     = 2 << 10 // of the judge, in bytes
)

// compareAnswers has two answers judged. It changes nothing and reads nothing but its arguments.
var compareAnswers = tool{
	schema: subjects.ToolSchema{
		Name: "compare_answers", Version: Version, Description: strings.TrimSpace(compareAnswersText),
		Parameters: json.RawMessage(`{"type":"object","properties":{` +
			`"question":{"type":"string","minLength":1,"maxLength":4000,"description":"what both answer"},` +
			`"first":{"type":"string","minLength":1,"maxLength":12000,"description":"one answer, whole"},` +
			`"second":{"type":"string","minLength":1,"maxLength":12000,"description":"the other answer, whole"},` +
			`"reference":{"type":"string","maxLength":4000,"description":"an answer that is known to be right"}` +
			`},"required":["question","first","second"],"additionalProperties":false}`),
	},
	facts: policy.Tool{
		Name: "compare_answers", Zone: name, Known: true, Effects: policy.Declare(), Timeout: 5 * time.Minute, Graded: true, Rare: []string{"compare", "comparison", "better", "versus", "vergleiche", "besser", "mieux", "mejor"}, MaxArgs: 160 << 10, MaxResult: 8 << 10,
	},
	run: runCompareAnswers,
}

func runCompareAnswers(c *Critic, ctx context.Context, out actor.Out, args json.RawMessage) (string, error) {
	var a struct {
		Question  string `json:"question"`
		First     string `json:"first"`
		Second    string `json:"second"`
		Reference string `json:"reference"`
	}
	if err := actor.DecodeStrict(args, &a); err != nil {
		return "", fmt.Errorf("%w: %w", errArgs, err)
	}
	for _, f := range []struct {
		name, text string
		most       int
		needed     bool
	}{{"question", a.Question, mostQuestion, true}, {"first", a.First, mostCompared, true}, {"second", a.Second, mostCompared, true}, {"reference", a.Reference, mostReference, false}} {
		if f.needed && strings.TrimSpace(f.text) == "" {
			return "", fmt.Errorf("%w: %s is missing or empty", errArgs, f.name)
		}
		if n := utf8.RuneCountInString(f.text); n > f.most {
			return "", fmt.Errorf("%w: %s has %d characters, at most %d", errArgs, f.name, n, f.most)
		}
	}
	r, err := c.compare(ctx, out, c.rubric(subjects.RubricPlain), a.Question, a.Reference, a.First, a.Second)
	switch {
	case err != nil:
		return "", refusal(err)
	case r.even():
		return "They are even: asked with the answers swapped, the judge decided differently. Take either one.", nil
	}
	which := [...]string{"first", "second"}[r.better[0]]
	return fmt.Sprintf("The %s answer is better.\nThe judge says (Response A is the first, Response B the second): %s", which, text.Clip(r.words, mostWords)), nil
}

// refusal is what a model is told when nothing was judged, with what it can do.
func refusal(err error) *subjects.Fault {
	const advice = "choose yourself, and say that the answers were not compared"
	switch {
	case errors.Is(err, errUnreadable):
		return subjects.Faultf(subjects.CodeTool, "the judge's words could not be read, twice; %s", advice)
	case errors.Is(err, errDemoModel):
		return subjects.Faultf(subjects.CodeUnavailable, "%v; %s", errDemoModel, advice)
	case !passing(err):
		return subjects.Faultf(subjects.CodeUnavailable, "%s; %s", excuse(err, 1), advice)
	}
	return subjects.Faultf(subjects.CodeUnavailable, "the judge does not answer now; try again later, or %s", advice)
}
