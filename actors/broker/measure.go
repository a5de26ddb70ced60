package broker

import (
	"context"
	"time"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/telemetry"
	"conclave/subjects"
)

// measureCall counts a call by its tool, decision and result. p is zero for a call that did not run; fault is the
// denial, nil = none; took is the time from the request to the result. A name that is no known tool is not a label,
// because a model may invent any.
func measureCall(ctx context.Context, known Known, p stage.Permitted, fault *subjects.Fault, res subjects.ToolResult,
	took time.Duration,
) {
	tool := known.Name
	if tool == "" {
		tool = "unknown"
	}
	decision, result := "allowed", "ok"
	switch {
	case fault != nil:
		decision, result = "denied", "none"
	case p.Approved():
		decision = "approved"
	}
	if fault == nil && res.Error != nil {
		result = "failed"
	}
	telemetry.Count(ctx, &telemetry.ToolCalls, tool, decision, result)
	if p.Judged() == nil {
		return
	}
	tooling := time.Duration(res.Millis) * time.Millisecond
	telemetry.Add(ctx, &telemetry.ToolSeconds, tooling.Seconds(), tool)
	if !p.Approved() {
		telemetry.Add(ctx, &telemetry.BrokerOverhead, max(0, took-tooling).Seconds())
	}
}

// traceDecision is [Broker.judgeCall] in a span.
func (b *Broker) traceDecision(ctx context.Context, out actor.Out, r stage.Received, k Known, before prior,
	seen facts,
) (stage.Permitted, *stage.Judged, *subjects.Fault) {
	ctx, span := telemetry.StartSpan(ctx, "decide "+r.Tool, telemetry.KindInternal,
		telemetry.String(telemetry.GenAIToolName, r.Tool), telemetry.String(telemetry.Query, r.Query))
	p, j, fault := b.judgeCall(ctx, out, r, k, before, seen)
	decision := "allowed"
	switch {
	case fault != nil:
		decision = "denied"
		span.Fail(fault.Code)
		if fault.Denial != nil {
			span.Set(telemetry.String(telemetry.Layer, fault.Denial.Layer),
				telemetry.String(telemetry.Rule, fault.Denial.Rule))
		}
	case p.Approved():
		decision = "approved"
	}
	span.Set(telemetry.String(telemetry.Decision, decision))
	span.End(nil)
	return p, j, fault
}

// traceTool runs a tool in a span. Arguments and result are in it only when the settings say so, without credentials.
func (b *Broker) traceTool(ctx context.Context, r stage.Received, run func(context.Context) (subjects.ToolResult,
	Known),
) (subjects.ToolResult, Known) {
	ctx, span := telemetry.StartSpan(ctx, telemetry.GenAIOperationTool+" "+r.Tool, telemetry.KindClient,
		telemetry.String(telemetry.GenAIOperation, telemetry.GenAIOperationTool),
		telemetry.String(telemetry.GenAIToolName, r.Tool),
		telemetry.String(telemetry.GenAIToolCallID, r.ID), telemetry.String(telemetry.Query, r.Query))
	res, of := run(ctx)
	if res.Error != nil {
		span.Fail(res.Error.Code)
	}
	if span != nil && telemetry.ShowsContent(ctx) {
		args, _ := firewall.Redact(string(r.Args))
		result, _ := firewall.Redact(res.Result)
		span.Set(telemetry.String(telemetry.GenAIToolArguments, args),
			telemetry.String(telemetry.GenAIToolResult, result))
	}
	span.End(nil)
	return res, of
}
