package model

import (
	"context"
	"time"

	"conclave/pkg/model"
	"conclave/pkg/telemetry"
	"conclave/subjects"
)

// observeReply is [Model.measureReply], counted for the metrics.
func (m *Model) observeReply(turn context.Context, t target, role string, r model.Request, priority int, send sendFunc) (model.Chunk, error) {
	begun, first := time.Now(), time.Time{}
	last, err := m.measureReply(turn, t, r, priority, func(c subjects.ChatChunk) error {
		if first.IsZero() && c.Notice == "" && c.Reading == nil {
			first = time.Now()
		}
		return send(c)
	})
	took := time.Since(begun)
	if role == "" {
		role = "none"
	}
	switch {
	case turn.Err() != nil:
		telemetry.Count(turn, &telemetry.ModelCalls, t.key(), role, "stopped")
		return last, err
	case err != nil:
		telemetry.Count(turn, &telemetry.ModelCalls, t.key(), role, "failed")
		return last, err
	}
	waited := took // of a reply in one piece
	if !first.IsZero() {
		waited = first.Sub(begun)
	}
	f := last.Final
	telemetry.Count(turn, &telemetry.ModelCalls, t.key(), role, "ok")
	telemetry.Add(turn, &telemetry.ModelSeconds, took.Seconds(), t.key())
	telemetry.Add(turn, &telemetry.FirstToken, waited.Seconds(), t.key())
	telemetry.Add(turn, &telemetry.ModelTokens, float64(f.PromptTokens), t.key(), "input")
	telemetry.Add(turn, &telemetry.ModelTokens, float64(f.OutputTokens), t.key(), "output")
	generating := f.OutputTime
	if generating <= 0 {
		generating = took - waited
	}
	if f.OutputTokens > 0 && generating > 0 {
		telemetry.Add(turn, &telemetry.TokensPerSecond, float64(f.OutputTokens)/generating.Seconds(), t.key())
	}
	return last, nil
}
