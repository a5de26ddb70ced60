package loop

import "conclave/pkg/model"

// Preview is the first request of a turn, made as [RunTurn] makes it and not sent.
type Preview struct {
	Request      model.Request
	Tokens       int // estimated, of the whole prompt
	OmittedTurns int // oldest turns of the history that do not fit into the window
}

// PreviewTurn returns the first request of a turn. The input must have a question.
func PreviewTurn(a Agent, in Input) Preview {
	t := &turn{agent: a, limits: a.Limits.withDefaults(a.Options.Window), state: in.State}
	t.restore(in)
	r, cost := t.buildRequest(len(a.Tools) > 0, t.limits.StepTokens)
	return Preview{Request: r, Tokens: cost, OmittedTurns: t.notedPlan.droppedTurns}
}

// EstimateMessage estimates the tokens of one message, see [Estimate].
func EstimateMessage(m model.Message) int { return estimateMessage(&m) }
