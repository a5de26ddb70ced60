package broker

import (
	"context"
	"time"

	"conclave/pkg/telemetry"
	"conclave/subjects"
)

// measureCall counts a call by its tool, decision and result. fault is the denial, nil = none; took is the time from the
// request to the result. A name that is no known tool is not a label, because a model may invent any.
func measureCall(ctx context.Context, known Known, c call, res subjects.ToolResult, fault *subjects.Fault, took time.Duration) {
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
