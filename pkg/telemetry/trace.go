package telemetry

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"conclave/pkg/text"
	"conclave/subjects"
)

// SpanKind is the kind of a span, with the numbers of OTLP.
type SpanKind int

const (
	KindInternal SpanKind = iota + 1
	KindServer
	KindClient
	KindProducer
	KindConsumer
)

// Attr is an attribute of a span: a text or a whole number.
type Attr struct {
	Key   string
	Text  string
	Int   int64
	isInt bool
}

// String returns an attribute with a text, clipped to maxAttr bytes.
func String(key, value string) Attr { return Attr{Key: key, Text: text.Clip(value, maxAttr)} }

// Int returns an attribute with a whole number.
func Int(key string, value int) Attr { return Attr{Key: key, Int: int64(value), isInt: true} }

// maxAttr bounds the text of an attribute, in bytes.
const maxAttr = 16 << 10

// Span is one piece of work. A nil span does nothing. It must not be used concurrently.
type Span struct {
	Name              string
	Kind              SpanKind
	trace, id, parent string // in hex; parent "" = none
	start, end        time.Time
	attrs             []Attr
	failure           string // type of the error, "" = none
	scope             *Scope
}

type spanKey struct{}

// SpanOf returns the innermost span of ctx, nil without one.
func SpanOf(ctx context.Context) *Span {
	s, _ := ctx.Value(spanKey{}).(*Span)
	return s
}

// IsSampled reports whether a valid traceparent names a span that its author records.
func IsSampled(traceparent string) bool {
	if len(traceparent) != 55 {
		return false
	}
	flags, err := strconv.ParseUint(traceparent[53:], 16, 8)
	return err == nil && flags&1 == 1
}

// Traceparent returns the W3C header that names the span.
func (s *Span) Traceparent() string { return "00-" + s.trace + "-" + s.id + "-01" }

// StartSpan starts a span below that of ctx, or a root. It returns nil, and ctx as it is, when spans are neither
// exported nor logged. The caller must call [Span.End].
func StartSpan(ctx context.Context, name string, kind SpanKind, attrs ...Attr) (context.Context, *Span) {
	parent := ""
	if p := SpanOf(ctx); p != nil {
		parent = p.Traceparent()
	}
	return StartRemote(ctx, parent, name, kind, attrs...)
}

// StartRemote starts a span below the one that a valid traceparent names. One that its author does not record gives the
// trace only, and "" nothing: the span is a root then.
func StartRemote(ctx context.Context, traceparent, name string, kind SpanKind, attrs ...Attr) (context.Context, *Span) {
	scope := ScopeOf(ctx)
	if scope.Tracer == nil && !scope.logs(kind) {
		return ctx, nil
	}
	s := &Span{Name: name, Kind: kind, id: newHex(8), start: time.Now(), attrs: attrs, scope: scope}
	if len(traceparent) == 55 {
		s.trace = traceparent[3:35]
		if IsSampled(traceparent) {
			s.parent = traceparent[36:52]
		}
	} else {
		s.trace = newHex(16)
	}
	return context.WithValue(ctx, spanKey{}, s), s
}

// logs reports whether spans of a kind are logged: requests to model servers, decisions and tool calls at level debug.
// Messages are not, because their errors are logged already.
func (s *Scope) logs(kind SpanKind) bool {
	return (kind == KindClient || kind == KindInternal) && s.Log != nil &&
		s.Log.Enabled(context.Background(), slog.LevelDebug)
}

// RecordPublication returns the traceparent of a message whose author records nothing, as one that is recorded: by a
// span of the publication at the given time. With emit false it was recorded before.
func RecordPublication(ctx context.Context, traceparent, subject string, at time.Time, emit bool) string {
	scope := ScopeOf(ctx)
	if scope.Tracer == nil || len(traceparent) != 55 {
		return traceparent
	}
	s := &Span{
		Name: "publish " + subject, Kind: KindProducer, trace: traceparent[3:35], id: traceparent[36:52], start: at,
		end: at, scope: scope,
		attrs: []Attr{
			String(MessagingSystem, "nats"), String(MessagingOperation, "publish"), String(MessagingOperationType,
				"send"), String(MessagingDestination, subject),
		},
	}
	if emit {
		scope.Tracer.export(s)
	}
	return s.Traceparent()
}

func newHex(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// Set adds attributes.
func (s *Span) Set(attrs ...Attr) {
	if s != nil {
		s.attrs = append(s.attrs, attrs...)
	}
}

// Fail marks the span as failed, with the type of the error: a code, never a text.
func (s *Span) Fail(code string) {
	if s != nil && s.failure == "" {
		s.failure = code
	}
}

// End ends the span; an error that is not nil marks it as failed. It logs and exports the span without waiting.
func (s *Span) End(err error) {
	if s == nil {
		return
	}
	s.end = time.Now()
	if err != nil {
		s.Fail(errorCode(err))
	}
	if s.failure != "" {
		s.Set(String(ErrorType, s.failure))
	}
	if s.scope.logs(s.Kind) {
		fields := []any{"actor", s.scope.Actor, "ms", s.end.Sub(s.start).Milliseconds()}
		for _, a := range s.attrs {
			switch {
			case a.Key == Query:
				fields = append(fields, "query", a.Text)
			case a.isInt:
				fields = append(fields, a.Key, a.Int)
			default:
				fields = append(fields, a.Key, a.Text)
			}
		}
		s.scope.Log.Debug(s.Name, fields...)
	}
	if s.scope.Tracer != nil {
		s.scope.Tracer.export(s)
	}
}

// errorCode returns the code of a fault, "cancelled" or "timeout" for the end of a context, and "internal" for other
// errors, whose text may hold anything.
func errorCode(err error) string {
	var f *subjects.Fault
	switch {
	case errors.As(err, &f) && f != nil && f.Code != "":
		return f.Code
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, context.DeadlineExceeded):
		return subjects.CodeTimeout
	}
	return subjects.CodeInternal
}

// nanos is a time as OTLP writes it in JSON.
func nanos(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }
