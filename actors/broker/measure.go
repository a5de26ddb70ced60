package broker

import (
	"context"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/telemetry"
	"conclave/subjects"
)

// measureCall counts a call by its tool, decision and result. fault is the denial, nil = none; took is the time from
// the request to the result. A name that is no known tool is not a label, because a model may invent any.
func measureCall(ctx context.Context, known Known, c call, res subjects.ToolResult, fault *subjects.Fault,
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
	case c.approved:
		decision = "approved"
	}
	if fault == nil && res.Error != nil {
		result = "failed"
	}
	telemetry.Count(ctx, &telemetry.ToolCalls, tool, decision, result)
	if fault != nil || c.reuse != nil {
		return
	}
	tooling := time.Duration(res.Millis) * time.Millisecond
	telemetry.Add(ctx, &telemetry.ToolSeconds, tooling.Seconds(), tool)
	if !c.approved {
		telemetry.Add(ctx, &telemetry.BrokerOverhead, max(0, took-tooling).Seconds())
	}
}

// traceDecision is [Broker.judgeCall] in a span.
func (b *Broker) traceDecision(ctx context.Context, out actor.Out, caller subjects.Caller, k Known, c call,
	seen facts,
) (call, *subjects.Fault) {
	ctx, span := telemetry.StartSpan(ctx, "decide "+c.tool, telemetry.KindInternal,
		telemetry.String(telemetry.GenAIToolName, c.tool), telemetry.String(telemetry.Query, c.query))
	c, fault := b.judgeCall(ctx, out, caller, k, c, seen)
	decision := "allowed"
	switch {
	case fault != nil:
		decision = "denied"
		span.Fail(fault.Code)
		if fault.Denial != nil {
			span.Set(telemetry.String(telemetry.Layer, fault.Denial.Layer),
				telemetry.String(telemetry.Rule, fault.Denial.Rule))
		}
	case c.approved:
		decision = "approved"
	}
	span.Set(telemetry.String(telemetry.Decision, decision))
	span.End(nil)
	return c, fault
}

// traceTool runs a tool in a span. Arguments and result are in it only when the settings say so, without credentials.
func (b *Broker) traceTool(ctx context.Context, c call, run func(context.Context) (subjects.ToolResult, Known)) (
	subjects.ToolResult, Known,
) {
	ctx, span := telemetry.StartSpan(ctx, telemetry.GenAIOperationTool+" "+c.tool, telemetry.KindClient,
		telemetry.String(telemetry.GenAIOperation, telemetry.GenAIOperationTool),
		telemetry.String(telemetry.GenAIToolName, c.tool),
		telemetry.String(telemetry.GenAIToolCallID, c.id), telemetry.String(telemetry.Query, c.query))
	res, of := run(ctx)
	if res.Error != nil {
		span.Fail(res.Error.Code)
	}
	if span != nil && telemetry.ShowsContent(ctx) {
		args, _ := firewall.Redact(string(c.args))
		result, _ := firewall.Redact(res.Result)
		span.Set(telemetry.String(telemetry.GenAIToolArguments, args),
			telemetry.String(telemetry.GenAIToolResult, result))
	}
	span.End(nil)
	return res, of
}
