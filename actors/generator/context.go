package generator

import (
	"context"
	"errors"

	"conclave/pkg/actor"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/subjects"
)

// nextQuestion stands for the question that was not asked yet.
const nextQuestion = "(your next question)"

// onContext returns the messages that the model gets with the next question of a session, made by the loop as for a
// turn. The tools and what memory adds are not known before the question. A session without a conversation has the
// system message only.
func (g *Generator) onContext(ctx context.Context, in actor.Msg[subjects.SessionContextRequest],
	out actor.Out,
) (subjects.SessionContext, error) {
	session := in.Body.SessionID
	if subjects.CheckToken(session) != nil {
		return subjects.SessionContext{}, subjects.Faultf(subjects.CodeMalformed, "invalid session id")
	}
	s, err := g.loadSession(ctx, out.Store(g.Bucket.Name), session)
	if err != nil && !errors.Is(err, actor.ErrUnreadable) {
		return subjects.SessionContext{}, err
	}
	role := g.models.Role(ctx, out, subjects.RoleAssistant)
	a := loop.Agent{System: g.systemPrompt(), Limits: g.cfg.loopLimits()}
	a.Options.Window = role.Window
	p := loop.PreviewTurn(a, loop.Input{
		Summary: s.conversation.Summary, History: buildHistory(s.conversation),
		State: loop.State{Messages: []model.Message{{Role: model.User, Content: nextQuestion}}},
	})
	c := subjects.SessionContext{
		SessionID: session, Model: role.Model, Window: role.Window, Answer: g.cfg.Predict,
		CompactAt: role.Window * g.cfg.CompactAt / 100, Tokens: p.Tokens,
		Summarized: s.conversation.Summarized, Dropped: s.conversation.Dropped, Omitted: p.OmittedTurns,
	}
	for _, m := range p.Request.Messages {
		to := subjects.ContextMessage{
			Role: m.Role, Content: m.Content, ToolName: m.ToolName,
			Tokens: loop.EstimateMessage(m),
		}
		for _, call := range m.Calls {
			to.Calls = append(to.Calls, subjects.MessageCall{ID: call.ID, Name: call.Name, Arguments: call.Arguments})
		}
		c.Messages = append(c.Messages, to)
	}
	return c, nil
}
