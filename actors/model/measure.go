package model

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"time"

	"conclave/pkg/firewall"
	"conclave/pkg/model"
	"conclave/pkg/telemetry"
	"conclave/subjects"
)

// observeReply is [Model.measureReply], counted for the metrics and in a span. Request and reply are in the span only
// when the settings say so, without credentials.
func (m *Model) observeReply(turn context.Context, t target, role, query string, r model.Request, priority int,
	send sendFunc,
) (model.Chunk, error) {
	turn, span := telemetry.StartSpan(turn, telemetry.GenAIOperationChat+" "+t.name, telemetry.KindClient,
		telemetry.String(telemetry.GenAIOperation, telemetry.GenAIOperationChat),
		telemetry.String(telemetry.GenAIProvider, t.server.name),
		telemetry.String(telemetry.GenAIRequestModel, t.name), telemetry.String(telemetry.Role, role),
		telemetry.String(telemetry.Query, query))
	content := span != nil && telemetry.ShowsContent(turn)
	var reply strings.Builder
	begun, first := time.Now(), time.Time{}
	last, err := m.measureReply(turn, t, r, priority, func(c subjects.ChatChunk) error {
		if first.IsZero() && c.Notice == "" && c.Reading == nil {
			first = time.Now()
		}
		if content {
			reply.WriteString(c.Content)
		}
		return send(c)
	})
	took := time.Since(begun)
	defer func() { span.End(err) }()
	if content {
		asked, _ := json.Marshal(r.Messages)
		input, _ := firewall.Redact(string(asked))
		output, _ := firewall.Redact(reply.String() + last.Content)
		span.Set(telemetry.String(telemetry.GenAIInputMessages, input), telemetry.String(telemetry.GenAIOutputMessages,
			output))
	}
	role = cmp.Or(role, "none")
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
	span.Set(telemetry.Int(telemetry.GenAIInputTokens, f.PromptTokens),
		telemetry.Int(telemetry.GenAIOutputTokens, f.OutputTokens),
		telemetry.String(telemetry.GenAIResponseModel, f.Model), telemetry.String(telemetry.GenAIFinishReasons,
			f.Reason),
		telemetry.Int(telemetry.FirstTokenMS, int(waited.Milliseconds())))
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
