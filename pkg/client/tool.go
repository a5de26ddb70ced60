package client

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// Models returns the available models and the model of each role. The lists are never nil, also with an error.
func (c *Client) Models(ctx context.Context) (subjects.ModelList, error) {
	list, err := request(ctx, c, readTimeout, subjects.ModelListService, subjects.Empty{})
	if list.Models == nil {
		list.Models = []subjects.ModelInfo{}
	}
	if list.Roles == nil {
		list.Roles = []subjects.RoleModel{}
	}
	return list, err
}

// HasModel reports whether the list has a model of this name that is not denied. A name without a tag also means the
// tag latest.
func HasModel(list subjects.ModelList, name string) bool {
	for _, m := range list.Models {
		if m.Refused == "" && (m.Name == name || m.Name == name+":latest") {
			return true
		}
	}
	return false
}

// PullModel fetches a model and yields the progress. ctx must have a deadline.
func (c *Client) PullModel(ctx context.Context, name string) iter.Seq2[subjects.PullProgress, error] {
	return actor.AskStream(ctx, c.out, subjects.ModelPull, subjects.PullRequest{Model: name})
}

// CallTool calls a tool through the broker with the account of the connection, and waits for the result; ctx must have
// a deadline. call has the arguments, a JSON object, and the ids of the call and, where there is one, of its query;
// session may be "". A denial, a failed call and a fault of the transport are in the Error of the result, and the error
// is nil. The returned error is for an invalid tool name, and for failures that are no fault.
func (c *Client) CallTool(ctx context.Context, tool, session string, call subjects.ToolRequest) (subjects.ToolResult,
	error,
) {
	service, err := subjects.ToolRequestService.With(tool)
	if err != nil {
		return subjects.ToolResult{}, err
	}
	res, err := actor.Ask(ctx, c.out.WithIDs(session, call.QueryID), service, call)
	var fault *subjects.Fault
	if errors.As(err, &fault) {
		return subjects.ToolResult{CallID: call.CallID, QueryID: call.QueryID, Tool: tool, Error: fault}, nil
	}
	return res, err
}

// ParkedResult returns the whole of a tool result that was cut, by the id in the cut result: [ErrNotFound] when it was
// not stored or has expired.
func (c *Client) ParkedResult(ctx context.Context, id string) ([]byte, error) {
	whole, _, err := c.out.Store("parked").Get(ctx, id)
	switch {
	case errors.Is(err, actor.ErrNotFound):
		return nil, fmt.Errorf("result %s: %w", id, ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("reading result %s: %w", id, err)
	}
	return whole, nil
}

// ExplainPolicy returns what the broker would decide about a call. Nothing runs.
func (c *Client) ExplainPolicy(ctx context.Context, call subjects.ExplainRequest) (subjects.Verdict, error) {
	return request(ctx, c, brokerTimeout, subjects.PolicyExplain, call)
}
