package actor

import (
	"context"

	"conclave/pkg/telemetry"
)

// startSpan starts the span of a message that a handler of l is about to handle, and has the messages of the handler
// continue its trace. It returns nil when spans are neither exported nor logged, for hints and lossy messages, of which
// an answer has hundreds, and for live copies and background requests whose author records nothing: those would be
// roots beside that of the consumer, or of every poll.
//
// The parent is the span that the message names, if its author records it. A question whose author does not, such as a
// command, gets a span of its publication, under the id that the author chose: all that follows from the question is
// below it.
func (l *routeRun) startSpan(ctx context.Context, in *inbound) (context.Context, *telemetry.Span) {
	recorded := telemetry.IsSampled(in.trace)
	if l.notify || l.spec.Lossy || (l.kind == subscribe || l.spec.Background) && !recorded {
		return ctx, nil
	}
	kind := telemetry.KindConsumer
	if l.kind == serve {
		kind = telemetry.KindServer
	}
	attrs := []telemetry.Attr{
		telemetry.String(telemetry.MessagingSystem, "nats"), telemetry.String(telemetry.MessagingOperation, "process"),
		telemetry.String(telemetry.MessagingOperationType, "process"),
		telemetry.String(telemetry.MessagingDestination, l.spec.Name), telemetry.Int(telemetry.MessagingBodySize,
			len(in.data)),
	}
	if in.query != "" {
		attrs = append(attrs, telemetry.String(telemetry.Query, in.query))
	}
	if in.session != "" {
		attrs = append(attrs, telemetry.String(telemetry.GenAIConversation, in.session))
	}
	if in.attempt > 1 {
		attrs = append(attrs, telemetry.Int(telemetry.Attempt, in.attempt))
	}
	parent := in.trace
	if !recorded && l.kind == durable && l.spec.Stream == "QUERIES" {
		parent = telemetry.RecordPublication(ctx, in.trace, l.spec.Name, in.storedAt, in.attempt <= 1)
	}
	ctx, span := telemetry.StartRemote(ctx, parent, "process "+l.spec.Name, kind, attrs...)
	if span != nil {
		in.trace = span.Traceparent()
	}
	return ctx, span
}
