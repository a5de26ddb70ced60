package generator

import (
	"context"
	"errors"

	"conclave/pkg/agent"
	"conclave/pkg/respondent"
	"conclave/subjects"
)

var errQueryTooLong = errors.New("the question with its attachments is too long to be stored")

// explanations are those of the errors that are not the model's.
var explanations = []agent.Explanation{
	{
		Err: respondent.ErrExhausted, Code: subjects.CodeInternal, Say: respondent.ErrExhausted.Error(),
		Advice: "What was found so far is kept. Ask again, and look into the log of the generator.",
	},
	{Err: errQueryTooLong, Code: subjects.CodeTooLarge, Say: errQueryTooLong.Error(), Advice: "Shorten it, then ask " +
		"again."},
	{
		Err: respondent.ErrTooLarge, Code: subjects.CodeTooLarge, Say: respondent.ErrTooLarge.Error(),
		Advice: "What was found so far is kept. Ask for less at once.",
	},
	{Err: context.DeadlineExceeded, Code: subjects.CodeTimeout, Say: "the time for this question is over (wall in " +
		"generator.yaml, or the deadline of the client)", Advice: "Ask again with more time, or ask for less at once."},
}

// explain is [agent.Explain] with the generator's own errors.
func explain(err error) (*subjects.Fault, string) { return agent.Explain(err, explanations...) }

// maxTextBytes bounds a quoted text of another component, in bytes.
const maxTextBytes = 600
