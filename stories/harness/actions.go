package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/story"
	"conclave/subjects"
)

// dialAs connects with the key of the account and returns an Out for messages about a query. The caller must call
// hangUp, which is nil on an error.
func (h *Harness) dialAs(account, session, query string) (out actor.Out, hangUp func(), err error) {
	nc, err := h.instance.Bus.Dial(account)
	if err != nil {
		return nil, nil, err
	}
	if out, err = actor.NewOut(nc); err != nil {
		nc.Close()
		return nil, nil, err
	}
	return out.WithIDs(session, query), nc.Close, nil
}

// Spawn implements [story.System] with the key of the account. The child is created below the last agent of who.Path,
// below the account when that is empty. A denial is a [subjects.Fault].
func (h *Harness) Spawn(ctx context.Context, who subjects.Caller, c story.Child, session, query string) (string,
	error,
) {
	service := subjects.AgentSpawn
	if len(who.Path) > 0 {
		var err error
		if service, err = subjects.AgentSpawnBelow.With(who.Path...); err != nil {
			return "", err
		}
	}
	out, hangUp, err := h.dialAs(who.Account, session, query)
	if err != nil {
		return "", err
	}
	defer hangUp()
	reply, err := actor.Ask(ctx, out, service, subjects.SpawnRequest{Type: c.Type, Tools: c.Tools})
	return reply.Child, err
}

// CallTool implements [story.System] with the key of the account, as the last agent of who.Path. nil arguments are sent
// as {}. A fault, also of the transport, is the error of the result; err is any other failure.
func (h *Harness) CallTool(ctx context.Context, who subjects.Caller, r story.Request, session,
	query string,
) (subjects.ToolResult, error) {
	args, err := json.Marshal(r.Args)
	if err != nil {
		return subjects.ToolResult{}, err
	}
	if r.Args == nil {
		args = []byte("{}")
	}
	service, err := subjects.ToolRequestService.With(append([]string{r.Tool}, who.Path...)...)
	if err != nil {
		return subjects.ToolResult{}, err
	}
	out, hangUp, err := h.dialAs(who.Account, session, query)
	if err != nil {
		return subjects.ToolResult{}, err
	}
	defer hangUp()
	call := actor.NewID()
	res, err := actor.Ask(ctx, out, service, subjects.ToolRequest{CallID: call, QueryID: query, Args: args})
	if fault, ok := errors.AsType[*subjects.Fault](err); ok {
		return subjects.ToolResult{Tool: r.Tool, CallID: call, QueryID: query, Error: fault}, nil
	}
	return res, err
}

// SetOverride implements [story.System].
func (h *Harness) SetOverride(ctx context.Context, session string, o story.Override) error {
	_, err := h.user.SetSession(ctx, subjects.SessionConfig{
		SessionID: session, Override: o.Level, Once: o.Once,
		Disable: o.Disable, Grant: o.Grant,
	})
	return err
}

// DecideApproval implements [story.System]. A decision that is not accepted is an error.
func (h *Harness) DecideApproval(ctx context.Context, id string, d subjects.ApprovalDecision) error {
	reply, err := h.user.DecideApproval(ctx, id, d)
	if err == nil && !reply.Accepted {
		err = fmt.Errorf("the decision was not accepted: the approval is %s", reply.State)
	}
	return err
}

// CancelQuery implements [story.System].
func (h *Harness) CancelQuery(ctx context.Context, query string) error {
	return h.user.CancelQuery(ctx, "", query, "")
}

// SendFeedback implements [story.System].
func (h *Harness) SendFeedback(ctx context.Context, session string, f subjects.Feedback) error {
	_, err := h.user.StoreFeedback(ctx, session, f)
	return err
}

// KillActor implements [story.System].
func (h *Harness) KillActor(_ context.Context, name string) error {
	return h.instance.System.Abort(name)
}

// ScriptReport implements [story.System]. It is empty without a scripted model server.
func (h *Harness) ScriptReport() (s story.ScriptReport) {
	if h.model == nil {
		return s
	}
	for _, r := range h.model.Requests() {
		s.Requests = append(s.Requests, summarizeRequest(r))
	}
	s.Mismatches, s.Unused = h.model.Engine.Mismatches(), h.model.Engine.Unused()
	return s
}

// summarizeRequest returns a model request on one line: the model, then the number of texts to embed, or each message
// cut to 120 bytes and the names of the tools. System messages are shown as "...".
func summarizeRequest(r scriptserver.Request) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:", r.Model)
	if len(r.Texts) > 0 {
		fmt.Fprintf(&b, " %d texts to embed", len(r.Texts))
		return b.String()
	}
	for _, m := range r.Messages {
		text := m.Content
		if m.Role == "system" {
			text = "..."
		}
		for _, c := range m.Calls {
			text += fmt.Sprintf(" [calls %s %s]", c.Name, c.Arguments)
		}
		if len(text) > 120 {
			text = strings.ToValidUTF8(text[:120], "") + "..."
		}
		fmt.Fprintf(&b, " %s %q", m.Role, text)
	}
	var names []string
	for _, t := range r.Tools {
		names = append(names, t.Name)
	}
	fmt.Fprintf(&b, " tools %v", names)
	return b.String()
}
