package actor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"conclave/pkg/policy"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// Tool is a tool that an actor serves for the broker.
type Tool struct {
	Schema subjects.ToolSchema // for the model
	Facts  policy.Tool         // for the broker, from the build and never from an announcement
	// Run runs one call. Who calls, and the labels of the session, are the broker's word. Call id, query id and tool
	// name of the result are set by the runtime. An error that is a fault, or wraps [ErrArguments], becomes the
	// result's error; any other is the actor's failure, with the details in the log only.
	Run func(ctx context.Context, in Msg[subjects.ToolOrder], out Out) (subjects.ToolResult, error)
}

// Toolset is the tools that an actor serves. An actor uses Routes, Announce and Definitions in its methods of [Actor],
// [Starter] and [Describer].
type Toolset []Tool

// ErrArguments means that a tool's arguments do not fit its schema. The text is for the model, which may retry.
var ErrArguments = errors.New("bad arguments")

// DecodeArguments decodes the arguments of a tool call strictly: unknown fields, fields in another case, duplicate keys
// and trailing data are rejected with [ErrArguments].
func DecodeArguments(raw json.RawMessage, v any) error {
	if err := strict.DecodeJSON(raw, v); err != nil {
		return fmt.Errorf("%w: %w", ErrArguments, err)
	}
	return nil
}

// Routes serves each tool. A tool whose name is no subject token gets no route.
func (s Toolset) Routes() (routes []Route) {
	for _, t := range s {
		if service, err := subjects.ToolEndpoint(t.Schema.Name); err == nil {
			routes = append(routes, Serve(service, t.serve))
		}
	}
	return routes
}

// ConfirmKey tells the secrets actor that this process has the private half of a public curve key, so that credentials
// may be sealed to it. It returns no route for a text that is no key.
func ConfirmKey(public string) []Route {
	service, err := subjects.SealKeyEndpoint(public)
	if err != nil {
		return nil
	}
	return []Route{Serve(service, func(context.Context, Msg[subjects.Empty], Out) (subjects.Empty, error) {
		return subjects.Empty{}, nil
	})}
}

// Announce publishes the definition of each tool, for a broker that runs already; [Toolset.Definitions] is for one that
// starts later. It ends at the first tool whose name is no valid token or that is not published.
func (s Toolset) Announce(ctx context.Context, out Out) error {
	for _, t := range s {
		topic, err := subjects.ToolSchemaEvent.With(t.Schema.Name)
		if err != nil {
			return fmt.Errorf("announcing tool %q: %w", t.Schema.Name, err)
		}
		if err := Emit(ctx, out, topic, t.Schema); err != nil {
			return fmt.Errorf("announcing tool %s: %w", t.Schema.Name, err)
		}
	}
	return nil
}

// Definitions returns the discovery metadata "definition.<tool>" of each tool as JSON, for a broker that starts later.
// Parameters that are no JSON make it "", which the broker rejects.
func (s Toolset) Definitions() map[string]string {
	all := make(map[string]string, len(s))
	for _, t := range s {
		definition, err := json.Marshal(t.Schema)
		if err != nil {
			definition = nil // parameters that are no JSON: the broker accepts no such tool
		}
		all["definition."+t.Schema.Name] = string(definition)
	}
	return all
}

// serve runs one call. A fault, and [ErrArguments] as code "tool", becomes the error of the result, which then holds
// nothing else; any other error is returned, and its text does not reach the caller. Ids and tool name of the result
// are set here.
func (t Tool) serve(ctx context.Context, in Msg[subjects.ToolOrder], out Out) (subjects.ToolResult, error) {
	res, err := t.Run(ctx, in, out)
	var f *subjects.Fault
	switch {
	case errors.Is(err, ErrArguments):
		res = subjects.ToolResult{Error: subjects.Faultf(subjects.CodeTool, "%v", err)}
	case errors.As(err, &f) && f != nil:
		res = subjects.ToolResult{Error: f}
	case err != nil:
		return subjects.ToolResult{}, fmt.Errorf("running %s: %w", t.Schema.Name, err)
	}
	res.CallID, res.QueryID, res.Tool = in.Body.CallID, in.Body.QueryID, t.Schema.Name
	return res, nil
}
