package critic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// Version of the tool, as discovery shows it.
const Version = "0.1.0"

// tool is one that the critic serves: what a model reads of it, what the broker knows of it, and what it does.
type tool struct {
	schema subjects.ToolSchema
	facts  policy.Tool
	run    func(c *Critic, ctx context.Context, out actor.Out, args json.RawMessage) (string, error)
}

// Tool is what the build knows of a tool of the critic.
type Tool struct {
	Facts  policy.Tool
	Schema subjects.ToolSchema
}

// Tools are those that the critic serves.
func Tools() (out []Tool) {
	for _, t := range tools {
		out = append(out, Tool{t.facts, t.schema})
	}
	return out
}

var tools = []tool{compareAnswers}

// definition is a schema as discovery shows it.
func (t tool) definition() string {
	b, err := json.Marshal(t.schema)
	if err != nil {
		return ""
	}
	return string(b)
}

// errArgs means that the arguments are not what the tool takes. The text is for the model, which may try again.
var errArgs = errors.New("bad arguments")

func (t tool) handler(c *Critic) actor.RequestHandler[subjects.ToolOrder, subjects.ToolResult] {
	return func(ctx context.Context, in actor.Msg[subjects.ToolOrder], out actor.Out) (subjects.ToolResult, error) {
		res := subjects.ToolResult{CallID: in.Body.CallID, QueryID: in.Body.QueryID, Tool: t.schema.Name}
		got, err := t.run(c, ctx, out, in.Body.Args)
		var f *subjects.Fault
		switch {
		case errors.Is(err, errArgs):
			res.Error = subjects.Faultf(subjects.CodeTool, "%v", err)
		case errors.As(err, &f) && f != nil:
			res.Error = f
		case err != nil:
			return res, fmt.Errorf("running %s: %w", t.schema.Name, err)
		default:
			// The judge's words are about what is in the session: whoever could have written there could have put them into its mouth.
			res.Result, res.Labels = got, in.Body.Labels
		}
		return res, nil
	}
}
