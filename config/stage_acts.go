package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/story"
	"conclave/subjects"
)

// What a story does to its stage beside asking, and what it learns from the scripted model server.

// as is somebody's voice about a query, until it is closed.
func (st *Harness) as(account, session, query string) (out actor.Out, quit func(), err error) {
	nc, err := st.running.Bus.Dial(account)
	if err != nil {
		return nil, nil, err
	}
	if out, err = actor.NewOut(nc); err != nil {
		nc.Close()
		return nil, nil, err
	}
	return out.About(session, query), nc.Close, nil
}

// Spawn implements [story.System]. It speaks under the key of the account.
func (st *Harness) Spawn(ctx context.Context, who subjects.Caller, c story.Child, session, query string) (string, error) {
	service := subjects.AgentSpawn
	if len(who.Path) > 0 {
		var err error
		if service, err = subjects.AgentSpawnBelow.With(who.Path...); err != nil {
			return "", err
		}
	}
	out, quit, err := st.as(who.Account, session, query)
	if err != nil {
		return "", err
	}
	defer quit()
	reply, err := actor.Ask(ctx, out, service, subjects.SpawnRequest{Type: c.Type, Tools: c.Tools})
	return reply.Child, err
}

// CallTool implements [story.System]. What the bus says instead of a result is the result's error.
func (st *Harness) CallTool(ctx context.Context, who subjects.Caller, r story.Request, session, query string) (subjects.ToolResult, error) {
	args, err := json.Marshal(r.Args)
	if err != nil {
		return subjects.ToolResult{}, err
	}
	if r.Args == nil {
		args = []byte("{}")
	}
	service, err := subjects.ToolAsk.With(append([]string{r.Tool}, who.Path...)...)
	if err != nil {
		return subjects.ToolResult{}, err
	}
	out, quit, err := st.as(who.Account, session, query)
	if err != nil {
		return subjects.ToolResult{}, err
	}
	defer quit()
	call := actor.NewID()
	res, err := actor.Ask(ctx, out, service, subjects.ToolRequest{CallID: call, QueryID: query, Args: args})
	var fault *subjects.Fault
	if errors.As(err, &fault) {
		return subjects.ToolResult{Tool: r.Tool, CallID: call, QueryID: query, Error: fault}, nil
	}
	return res, err
}

// SetOverride implements [story.System], under the user's key.
func (st *Harness) SetOverride(ctx context.Context, session string, o story.Override) error {
	_, err := actor.Ask(ctx, st.out, subjects.SessionSet, subjects.SessionConfig{
		SessionID: session, Override: o.Level, Once: o.Once, Disable: o.Disable, Grant: o.Grant,
	})
	return err
}

// DecideApproval implements [story.System], under the user's key.
func (st *Harness) DecideApproval(ctx context.Context, id string, d subjects.ApprovalDecision) error {
	service, err := subjects.ApprovalAnswer.With(id)
	if err != nil {
		return err
	}
	reply, err := actor.Ask(ctx, st.out, service, d)
	if err == nil && !reply.Accepted {
		err = fmt.Errorf("the answer came too late: the question is %s", reply.State)
	}
	return err
}

// CancelQuery implements [story.System].
func (st *Harness) CancelQuery(ctx context.Context, query string) error {
	topic, err := subjects.QueryCancel.With(query)
	if err != nil {
		return err
	}
	return actor.Emit(ctx, st.out, topic, subjects.Cancel{})
}

// KillActor implements [story.System].
func (st *Harness) KillActor(_ context.Context, name string) error {
	return st.running.System.Abort(name)
}

// misfit finds the place in what the scripted server says of a request that it did not expect.
var misfit = regexp.MustCompile(`^script of (\S+): (?:exchange (\d+) )?`)

// ScriptReport implements [story.System].
func (st *Harness) ScriptReport() story.ScriptReport {
	var s story.ScriptReport
	if st.model == nil {
		return s
	}
	for _, r := range st.model.Requests() {
		s.Requests = append(s.Requests, summary(r))
	}
	if err := st.model.Err(); err != nil {
		for _, text := range strings.Split(err.Error(), "\n") {
			w := story.Mismatch{ExchangeRef: story.ExchangeRef{N: -1}, Text: text}
			if m := misfit.FindStringSubmatch(text); m != nil {
				w.Role = m[1]
				if m[2] != "" {
					w.N, _ = strconv.Atoi(m[2])
				}
			}
			s.Mismatches = append(s.Mismatches, w)
		}
	}
	for _, place := range st.model.Unused() {
		role, n, _ := strings.Cut(place, " ")
		i, _ := strconv.Atoi(n)
		s.Unused = append(s.Unused, story.ExchangeRef{Role: role, N: i})
	}
	return s
}

// summary is a request on one line.
func summary(r scriptserver.Request) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:", r.Model)
	if len(r.Texts) > 0 {
		fmt.Fprintf(&b, " %d texts for vectors", len(r.Texts))
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
