// Package tools holds the tools of this machine, one pair of files each: the code, and the reviewed text that a model
// reads. Every tool is an actor of its own with its own key.
//
// A tool listens on tool.request.<tool>, which only the broker reaches, and speaks on tool.schema.<tool>.
package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// Version of the built-in tools, as discovery shows it.
const Version = "0.1.0"

// Call is what a tool gets: the arguments, already checked by the broker, and the time.
type Call struct {
	Args json.RawMessage
	Now  time.Time
}

// Tool is one tool: what a model reads of it, what the broker knows of it, and what it does.
type Tool struct {
	schema subjects.ToolSchema
	facts  policy.Tool
	run    func(ctx context.Context, c Call) (string, error)
}

// ErrArgs means that the arguments are not what the tool takes. The text is for the model, which may try again.
var ErrArgs = errors.New("bad arguments")

// Failure is an error that is a result: the tool did its work, and this came of it. The text is for the model.
type Failure string

// Error implements error.
func (f Failure) Error() string { return string(f) }

// Config is what the tools of this machine need to know. Tools that the zero value does not turn on stay off.
type Config struct {
	WebSearch WebSearch
}

// All are the tools of this build that need no configuration.
func All() []*Tool {
	return []*Tool{getDatetime()}
}

// Configured are the tools that run under c, which must be valid: those of [All], and those that c turns on.
func Configured(c Config) []*Tool {
	all := All()
	if p := c.WebSearch.provider(); p != nil {
		all = append(all, webSearch(p, c.WebSearch.Results))
	}
	return all
}

// Name implements [actor.Actor].
func (t *Tool) Name() string { return t.schema.Name }

// Role is whose key the tool uses.
func (t *Tool) Role() string { return subjects.ToolRole(t.schema.Name) }

// Routes implements [actor.Actor].
func (t *Tool) Routes() []actor.Route {
	s, err := subjects.ToolAt(t.schema.Name)
	if err != nil {
		return nil // no route: a tool whose name is no token is never reached
	}
	return []actor.Route{actor.Serve(s, t.onCall)}
}

// Start implements [actor.Starter]: the tool announces itself.
func (t *Tool) Start(ctx context.Context, out actor.Out) error {
	topic, err := subjects.ToolAnnounce.With(t.schema.Name)
	if err != nil {
		return err
	}
	return actor.Emit(ctx, out, topic, t.schema)
}

// Describe implements [actor.Described]: a broker that starts later reads the definition from discovery.
func (t *Tool) Describe() (version, text string, metadata map[string]string) {
	definition, err := json.Marshal(t.schema)
	if err != nil {
		definition = nil
	}
	return Version, "conclave tool", map[string]string{"definition": string(definition)}
}

// Facts is what the broker needs to know of the tool and takes from the build, never from an announcement.
func (t *Tool) Facts() policy.Tool { return t.facts }

// Schema is the tool's definition.
func (t *Tool) Schema() subjects.ToolSchema { return t.schema }

func (t *Tool) onCall(ctx context.Context, in actor.Msg[subjects.ToolRequest], out actor.Out) (subjects.ToolResult, error) {
	res := subjects.ToolResult{CallID: in.Body.CallID, QueryID: in.Body.QueryID, Tool: t.schema.Name}
	text, err := t.run(ctx, Call{Args: in.Body.Args, Now: out.Now()})
	switch {
	case errors.Is(err, ErrArgs), errors.As(err, new(Failure)):
		res.Error = subjects.Faultf(subjects.CodeTool, "%v", err)
	case err != nil:
		return res, fmt.Errorf("running %s: %w", t.schema.Name, err)
	default:
		res.Result = text
	}
	return res, nil
}

// args reads a tool's arguments as strictly as its schema says: encoding/json alone would take TIMEZONE for timezone.
func args(raw json.RawMessage, v any) error {
	if err := actor.DecodeStrict(raw, v); err != nil {
		return fmt.Errorf("%w: %w", ErrArgs, err)
	}
	return nil
}
