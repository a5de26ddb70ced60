package client

import (
	"context"
	"fmt"
	"time"

	"conclave/subjects"
)

// principalTimeout is the timeout of a change of a run-time principal: the server loads its configuration twice.
const principalTimeout = time.Minute

// Principals lists the run-time principals by name.
func (c *Client) Principals(ctx context.Context) ([]subjects.Principal, error) {
	l, err := request(ctx, c, readTimeout, subjects.PrincipalListService, subjects.Empty{})
	if err != nil {
		return nil, fmt.Errorf("listing the principals: %w", err)
	}
	return l.Principals, nil
}

// Tools lists the tools of run-time principals by name: all without their definitions, or the one with this name.
func (c *Client) Tools(ctx context.Context, tool string) ([]subjects.ToolStatus, error) {
	l, err := request(ctx, c, readTimeout, subjects.ToolListService, subjects.ToolQuery{Tool: tool})
	if err != nil {
		return nil, fmt.Errorf("listing the tools: %w", err)
	}
	return l.Tools, nil
}

// AcceptTool accepts the changed definition of a tool that has this hash.
func (c *Client) AcceptTool(ctx context.Context, tool, pin string) (subjects.ToolStatus, error) {
	return request(ctx, c, principalTimeout, subjects.ToolAcceptService, subjects.ToolAccept{Tool: tool, Pin: pin})
}

// ChangePrincipal adds, revokes, rotates or updates a run-time principal. When it returns without an error, the change
// holds for live connections too.
func (c *Client) ChangePrincipal(ctx context.Context, change subjects.PrincipalChange) error {
	_, err := request(ctx, c, principalTimeout, subjects.PrincipalChangeService, change)
	return err
}
